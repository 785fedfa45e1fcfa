package hub

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"offpeak"
	"offpeak/ledger"
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
	policy, fleet := h.queue.Policy(), h.fleet.Snapshot()
	h.mu.Unlock()
	s := newSurvey(placement.Job{Account: account, Attempt: 1, Driver: spec.Task.Driver, Requirements: &asks, Policy: policy}, fleet)
	bid := ""
	if s.Fits == 0 && s.Could > 0 {
		bid = h.wouldTake(&offpeak.Job{Account: account, Spec: spec}, fleet)
	}
	h.tell(s, &spec, account, &out)
	lacks, err := h.lacking(ctx, account, &spec, out.Nodes)
	if err != nil {
		return out, err
	}
	var says []string
	for _, l := range lacks {
		l.Nodes, l.All = s.Fits, s.Fits
		out.Causes = append(out.Causes, l)
		says = append(says, fmt.Sprintf("It would wait: %s. %s", l.Example, remedy(l.Example)))
	}
	out.Filters = withheld(out.Filters, fleet.Len(), lacks)
	switch {
	case s.Fits == 0:
		says = append(says, h.waiting(&offpeak.Job{Account: account, Spec: spec}, &s.Explanation, fleet.Len(), 0)+bid)
	case len(lacks) == 0:
		first := &out.Nodes[0]
		name := first.Name
		if name == "" {
			name = string(first.Node)
		}
		says = append(says, fmt.Sprintf("%s fit it now: it would go to %s, at %s.", count(s.Fits, "node"), name, first.Price))
	}
	if waits := open(out.After); waits > 0 {
		says = append(says, fmt.Sprintf("It would wait for %s to end first.", count(waits, "job")))
	}
	out.Summary = strings.Join(says, " ")
	out.Starts = s.Fits > 0 && len(lacks) == 0 && open(out.After) == 0
	return out, nil
}

func open(after []offpeak.Awaited) (n int) {
	for i := range after {
		if !after[i].State.Terminal() {
			n++
		}
	}
	return n
}

// lacking is what an account lacks for a job that is not submitted, beside a node.
// It returns ErrQuota where the account may submit no more.
func (h *Hub) lacking(ctx context.Context, account offpeak.AccountID, spec *offpeak.Spec, nodes []wire.NodeVerdict) (out []wire.Cause, err error) {
	a, err := h.env.Store.Account(ctx, account)
	if err != nil {
		return nil, fmt.Errorf("foretell: %w", err)
	}
	if q := a.Quota; q.Queued > 0 || q.Running > 0 {
		counts, err := h.env.Store.CountJobs(ctx, account)
		if err != nil {
			return nil, fmt.Errorf("foretell: %w", err)
		}
		all := 0
		for state, n := range counts {
			if !state.Terminal() {
				all += n
			}
		}
		if q.Queued > 0 && all >= q.Queued {
			return nil, fmt.Errorf("%w: %d jobs have not ended, the account may have %d", offpeak.ErrQuota, all, q.Queued)
		}
		if live := counts[offpeak.JobLeased] + counts[offpeak.JobRunning] + counts[offpeak.JobCancelling]; q.Running > 0 && live >= q.Running {
			out = append(out, wire.Cause{Code: offpeak.FitQuota, Example: offpeak.Reason{Code: offpeak.FitQuota, Want: "another running job", Have: fmt.Sprintf("%d of %d", live, q.Running)}})
		}
	}
	if len(nodes) == 0 || !nodes[0].Fits {
		return out, nil
	}
	need := ledger.Least(h.cfg.Holds.Noticed(spec.Task.Grace.Std()), offpeak.Millis(spec.Limits.Time.Std().Milliseconds()), *nodes[0].Price)
	if need == 0 {
		return out, nil
	}
	b, err := h.env.Store.Balances(ctx, account)
	if err != nil {
		return nil, fmt.Errorf("foretell: %w", err)
	}
	if b.Available < need {
		out = append(out, wire.Cause{Code: offpeak.FitBalance, Example: offpeak.Reason{Code: offpeak.FitBalance, Want: need.String(), Have: b.Available.String()}})
	}
	if most := spec.Limits.Budget; most != nil && *most < need {
		out = append(out, wire.Cause{Code: offpeak.FitBudget, Example: offpeak.Reason{Code: offpeak.FitBudget, Want: need.String(), Have: most.String()}})
	}
	return out, nil
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
