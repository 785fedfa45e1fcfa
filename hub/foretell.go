package hub

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"offpeak"
	"offpeak/placement"
	"offpeak/wire"
)

// Foretell says what would become of a job if it were submitted now: as Explain
// does, and refused for what Submit refuses. It stores nothing. That inputs are
// stored is not asked: who asks first sends them later.
func (h *Hub) Foretell(ctx context.Context, account offpeak.AccountID, spec offpeak.Spec, after ...offpeak.After) (wire.Explanation, error) {
	spec = spec.WithDefaults()
	if err := errors.Join(spec.Validate(), offpeak.ValidateAfter(after)); err != nil {
		return wire.Explanation{}, err
	}
	if err := h.known(ctx, "", &spec.Requirements); err != nil {
		return wire.Explanation{}, err
	}
	var out wire.Explanation
	for i, a := range after {
		stands := offpeak.Awaited{Job: a.Job, Any: a.Any, Into: a.Into}
		var err error
		if group := offpeak.GroupID(a.Job); group.Valid() {
			var g offpeak.Group
			g, err = h.env.Store.Group(ctx, account, group)
			stands.Name, stands.State = g.Spec.Name, g.State
		} else {
			var j offpeak.Job
			j, err = h.env.Store.Job(ctx, account, a.Job)
			stands.Name, stands.State = j.Spec.Name, j.State
		}
		if errors.Is(err, offpeak.ErrNotFound) {
			return out, &offpeak.FieldError{Field: fmt.Sprintf("after[%d].job", i), Value: string(a.Job), Rule: "is a job or an array of the account"}
		}
		if err != nil {
			return out, fmt.Errorf("foretell: %w", err)
		}
		out.After = append(out.After, stands)
	}
	asks := h.trade.Effective(spec.Requirements)
	h.mu.Lock()
	policy, from := chosenBy(spec.Policy, h.queue.Policy())
	fleet := h.fleet.Snapshot()
	h.mu.Unlock()
	s := newSurvey(placement.Job{Account: account, Attempt: 1, Driver: spec.Task.Driver, Requirements: &asks, Policy: policy}, fleet)
	out.Policy, out.PolicyFrom = string(policy), from
	bid := ""
	if s.Fits == 0 && s.Could > 0 {
		bid = h.wouldTake(&offpeak.Job{Account: account, Spec: spec}, fleet)
	}
	own, err := h.purse(ctx, account, &spec, "", 1)
	if err != nil {
		return out, fmt.Errorf("foretell: %w", err)
	}
	lack := own.withheld(s, nil, 0)
	if err := h.tell(ctx, s, &spec, account, own, lack, &out); err != nil {
		return out, fmt.Errorf("foretell: %w", err)
	}
	var says []string
	for i := range lack {
		if l := &lack[i]; l.never {
			says = append(says, "It would never start: "+l.cause.Example.String()+". "+l.Sentence)
		} else {
			says = append(says, fmt.Sprintf("It would wait: %s. %s", l.cause.Example, remedy(l.cause.Example)))
		}
	}
	switch {
	case s.Fits == 0:
		says = append(says, h.waiting(&offpeak.Job{Account: account, Spec: spec}, &s.Explanation, fleet.Len(), 0)+bid)
	case len(lack) == 0:
		first := &out.Nodes[0]
		name := first.Name
		if name == "" {
			name = string(first.Node)
		}
		says = append(says, fmt.Sprintf("%s it now: it would go to %s, at %s.", fit(s.Fits), name, first.Price))
	}
	waits, dead := open(out.After)
	switch {
	case dead != nil:
		named := string(dead.Job)
		if dead.Name != "" {
			named += " (" + dead.Name + ")"
		}
		says = []string{fmt.Sprintf("It would end at once with %s: %s is %s, and it would run only after that succeeded. Submit it with --after-any, or retry that first (`offpeak retry %s`).", offpeak.EndDependencyFailed, named, dead.State, dead.Job)}
	case waits > 0:
		says = append(says, fmt.Sprintf("It would wait for %s to end first.", count(waits, "job")))
	}
	out.Summary = strings.Join(says, " ")
	out.Starts = s.Fits > 0 && len(lack) == 0 && waits == 0 && dead == nil
	return out, nil
}

// open counts the jobs of after that have not ended, and returns one that has ended so
// that who waits for it can't begin.
func open(after []offpeak.Awaited) (waits int, dead *offpeak.Awaited) {
	for i := range after {
		switch a := &after[i]; {
		case !a.State.Terminal():
			waits++
		case !a.Any && a.State != offpeak.JobSucceeded && dead == nil:
			dead = a
		}
	}
	return waits, dead
}

// withheld adds what an account lacks to the filters that nodes passed: it keeps the
// job from all that are left.
func withheld(filters []wire.Filter, nodes int, lacks []wire.Cause) []wire.Filter {
	left := nodes
	if len(filters) > 0 {
		left = filters[len(filters)-1].Left
	}
	if len(lacks) > 0 && left > 0 {
		filters = append(filters, wire.Filter{Code: lacks[0].Code, Failed: left})
	}
	return filters
}
