package hub_test

import (
	"iter"
	"reflect"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/placement"
	"offpeak/placement/replay"
	"offpeak/store"
	"offpeak/store/recorded"
	"offpeak/wire"
)

// told are all events that the store keeps.
func (g *grid) told() iter.Seq2[offpeak.Event, error] {
	events, err := g.store.Events(g.t.Context(), "", 0, 1000)
	return func(yield func(offpeak.Event, error) bool) {
		for i := range events {
			if !yield(events[i], err) {
				return
			}
		}
	}
}

// What a grid did can be replayed from its events alone: they say what nodes have and
// ask, when they came and went, and what jobs asked for and turned out to be.
func TestEventsAreEnoughToReplay(t *testing.T) {
	g := newGrid(t, hub.Config{})
	a, b := g.join("a"), g.join("b")
	done := g.submit(small())
	var d wire.Desired
	runner := a
	g.eventually("the first job to be placed", func() bool { return g.job(done).Lease != "" })
	if g.job(done).Node == b.id {
		runner = b
	}
	d = runner.offered()
	runner.accept(d)
	runner.run(d)
	time.Sleep(60 * time.Millisecond)
	_, err := runner.report(d, "ended", func(r *wire.Report) {
		zero := 0
		r.Reason, r.Started, r.ExitCode, r.Ran = offpeak.EndCompleted, true, &zero, 50
	})
	must(t, err)
	big := small()
	big.Requirements.CPU = 64_000
	big.Priority, big.Policy = 7, offpeak.PolicyFastest
	waits, gone := g.submit(big), g.submit(big)
	_, err = g.hub.Cancel(t.Context(), g.op(), "", gone)
	must(t, err)
	must(t, g.hub.RemoveNode(t.Context(), g.op(), "", b.id))
	_, err = g.hub.SetIntent(t.Context(), g.op(), "", a.id, wire.IntentChange{Intent: offpeak.NodeDraining, Stop: true})
	must(t, err)

	alone, err := replay.Record(g.told(), replay.Base{})
	must(t, err)
	if len(alone.Notes) != 1 || !strings.Contains(alone.Notes[0], "2 jobs were not seen to their end") {
		t.Errorf("notes: %q", alone.Notes)
	}
	jobs := map[offpeak.JobID]*replay.Job{}
	cancelled := map[offpeak.JobID]bool{}
	joins, left, stopped := 0, 0, false
	for _, s := range alone.Steps {
		switch {
		case s.Submit != nil:
			jobs[s.Submit.ID] = s.Submit
		case s.Cancel != "":
			cancelled[s.Cancel] = true
		case s.Join != nil:
			joins++
			if s.Join.Ask == nil || s.Join.Inventory.CPU != 1000 || s.Join.Account != g.account {
				t.Errorf("joined with %+v", s.Join)
			}
		case s.Leave == b.id:
			left++
		case s.Change != nil && s.Change.Stop == offpeak.EndDrained:
			stopped = true
		}
	}
	if joins != 2 || left != 1 || !stopped || len(jobs) != 3 || len(cancelled) != 1 || !cancelled[gone] {
		t.Errorf("%d joined, %d left, stopped %v, %d jobs, cancelled %v", joins, left, stopped, len(jobs), cancelled)
	}
	if j := jobs[done]; j.Work.Std() != 50*time.Millisecond || j.Guessed || j.Driver != small().Task.Driver || j.Account != g.account || j.Limit == 0 {
		t.Errorf("the job that ran: %+v", j)
	}
	if j := jobs[waits]; !j.Guessed || j.Priority != 7 || j.Policy != offpeak.PolicyFastest || j.Requirements.CPU != 64_000 {
		t.Errorf("the job that waits: %+v", j)
	}

	// What the store knows beside them adds nothing here.
	whole, err := recorded.Read(t.Context(), g.store, nil)
	must(t, err)
	if !reflect.DeepEqual(whole.Steps, alone.Steps) {
		t.Errorf("from the store\n%+v\nfrom events alone\n%+v", whole.Steps, alone.Steps)
	}
	r, err := replay.Run(whole, replay.Set{Tuning: placement.DefaultTuning()}, replay.Options{})
	must(t, err)
	if r.Jobs != 3 || r.Started != 1 || r.Finished != 1 || r.Cancelled != 1 {
		t.Errorf("replayed: %+v", r)
	}
}

// Once old events are gone, the store still knows what was there.
func TestReplayAfterEventsWerePruned(t *testing.T) {
	g := newGrid(t, hub.Config{})
	a := g.join("a")
	old := g.submit(small())
	d := a.offered()
	a.accept(d)
	a.run(d)
	_, err := g.store.Prune(t.Context(), store.Retention{Events: time.Microsecond}, 10_000)
	must(t, err)
	if n, err := g.store.Pruned(t.Context()); err != nil || n == 0 {
		t.Fatalf("pruned up to %d, %v", n, err)
	}
	a.end(d, offpeak.EndCompleted)
	time.Sleep(time.Millisecond)
	next := g.submit(small())
	a.offered()
	alone, err := replay.Record(func(yield func(offpeak.Event, error) bool) {
		pruned, err := g.store.Pruned(t.Context())
		must(t, err)
		events, err := g.store.Events(t.Context(), "", pruned, 1000)
		for i := range events {
			if !yield(events[i], err) {
				return
			}
		}
	}, replay.Base{})
	must(t, err)
	if joins, notes := joined(alone), strings.Join(alone.Notes, " "); joins != 0 || !strings.Contains(notes, "1 jobs were submitted before the record begins, and nothing says") {
		t.Errorf("from events alone %d nodes and the notes %q", joins, notes)
	}
	whole, err := recorded.Read(t.Context(), g.store, nil)
	must(t, err)
	jobs := map[offpeak.JobID]bool{}
	for _, s := range whole.Steps {
		if s.Submit != nil {
			jobs[s.Submit.ID] = true
		}
	}
	if joined(whole) != 1 || !jobs[old] || !jobs[next] || len(jobs) != 2 {
		t.Errorf("from the store: %+v, %q", whole.Steps, whole.Notes)
	}
}

func joined(t *replay.Traffic) (n int) {
	for _, s := range t.Steps {
		if s.Join != nil {
			n++
		}
	}
	return n
}
