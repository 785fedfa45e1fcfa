package hub

import (
	"context"
	"fmt"
	"strings"

	"offpeak"
	"offpeak/store"
)

// freeBatch is the most ended jobs whose waiting ones one call looks after.
const freeBatch = 256

// freeLooks is how often the monitor looks for jobs that are yet to be told of an end,
// in ticks: whoever wrote the end looks at the next one.
const freeLooks = 10

// withFreed adds to changes what they meant for jobs that wait: they are changes of
// the same transaction.
func (h *Hub) withFreed(changes []store.Change) []store.Change {
	for i := range changes {
		if f := changes[i].Freed; f != nil {
			changes = append(changes, f.Changes...)
			if f.More {
				h.untold.Store(freeLooks)
			}
			if f.Fill {
				h.tend()
			}
		}
	}
	return changes
}

// free tells jobs of ends that were too many to tell in their own transaction, those of
// a hub that has gone meanwhile too.
func (h *Hub) free(ctx context.Context) error {
	if h.untold.Add(1) < freeLooks {
		return nil
	}
	for {
		changes, more, err := h.env.Store.Free(ctx, freeBatch)
		h.apply(changes...)
		if err != nil {
			return err
		}
		if !more {
			h.untold.Store(0)
			return nil
		}
	}
}

// mostNamed is the most jobs that an explanation names one by one.
const mostNamed = 8

// awaits says for which jobs a blocked one waits, and how they stand.
func awaits(j *offpeak.Job) string {
	var names []string
	open, some, every := 0, false, false
	for _, a := range j.After {
		if a.State.Terminal() {
			continue
		}
		some, every = some || a.Any, every || !a.Any
		if open++; open > mostNamed {
			continue
		}
		name := string(a.Job)
		if a.Name != "" {
			name += " (" + a.Name + ")"
		}
		names = append(names, fmt.Sprintf("%s is %s", name, a.State))
	}
	if open > mostNamed {
		names = append(names, fmt.Sprintf("and %d more", open-mostNamed))
	}
	what := "end"
	switch {
	case every && some:
		what = "succeed or end"
	case every:
		what = "succeed"
	}
	return fmt.Sprintf("It waits for %s to %s: %s. `offpeak explain` of those says what they wait for.", count(open, "job"), what, strings.Join(names, ", "))
}
