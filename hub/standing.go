package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/placement"
	"offpeak/placement/queue"
	"offpeak/wire"
)

// standing is where a queued job stands in the order, as far as the picture tells;
// so many nodes that take work would fit it if they were idle.
func (h *Hub) standing(j *offpeak.Job, could int, out *wire.Explanation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	it := h.queue.Item(j.ID)
	if it == nil {
		return
	}
	now := h.env.Now()
	out.Ahead = h.queue.Ahead(it, now)
	if s := h.queue.Share(j.Account, now); s != (queue.Share{}) {
		out.Share = &wire.Share{CoreHours: s.Hours, Part: s.Part, Cores: s.Cores}
	}
	if r := h.queue.Reservation(j.ID); r != nil {
		if out.Reserved = (&wire.Reservation{Node: r.Node, At: r.At}); it.Gang() != nil {
			out.Reserved.Nodes = r.Nodes()
		}
	}
	if by, bounded := h.queue.Bound(it, now, could); bounded {
		out.StartsBy = &by
	}
}

// order says in words where a job stands, that waits for a node.
func order(out *wire.Explanation) string {
	var b strings.Builder
	if s := out.Share; s != nil && s.Part > 0 {
		fmt.Fprintf(&b, " Its account had %.0f %% of what was used lately.", 100*s.Part)
	}
	switch {
	case out.Reserved != nil && out.Reserved.Nodes > 0:
		fmt.Fprintf(&b, " %d nodes are kept for it, and are free for it by %s UTC.", out.Reserved.Nodes, out.Reserved.At.UTC().Format(time.DateTime))
	case out.Reserved != nil:
		fmt.Fprintf(&b, " %s is kept for it, and is free for it by %s UTC.", out.Reserved.Node, out.Reserved.At.UTC().Format(time.DateTime))
	case out.StartsBy != nil:
		fmt.Fprintf(&b, " It starts by %s UTC at the latest, if the nodes that could take it stay.", out.StartsBy.UTC().Format(time.DateTime))
	}
	return b.String()
}

// purse is what a job may have beside a node, of its account and by its own budget.
type purse struct {
	placement.Means
	// live are its account's running jobs, of most; most is 0 without a quota. The
	// same of GPUs, which it wants so many of.
	live, most, gpus, mostGPUs, want int
	balances                         wire.Balance
}

// purse looks at what a job may have that begins with so many leases. An id is needed
// for one that may have spent some of its budget. It returns ErrQuota where the account
// may submit no more and none is given.
func (h *Hub) purse(ctx context.Context, account offpeak.AccountID, spec *offpeak.Spec, job offpeak.JobID, leases int) (*purse, error) {
	leases = max(leases, 1) // a gang of which none is left
	a, err := h.env.Store.Account(ctx, account)
	if err != nil {
		return nil, err
	}
	p := &purse{most: a.Quota.Running, mostGPUs: a.Quota.GPUs, want: leases * len(spec.Requirements.GPUs)}
	p.GPUs, p.MostGPUs = -1, -1
	if q := a.Quota; q.Running > 0 || q.Queued > 0 && job == "" {
		counts, err := h.env.Store.CountJobs(ctx, account)
		if err != nil {
			return nil, err
		}
		all := 0
		for state, n := range counts {
			if !state.Terminal() {
				all += n
			}
		}
		if job == "" && q.Queued > 0 && all >= q.Queued {
			return nil, fmt.Errorf("%w: %d jobs have not ended, the account may have %d", offpeak.ErrQuota, all, q.Queued)
		}
		p.live = counts[offpeak.JobLeased] + counts[offpeak.JobRunning] + counts[offpeak.JobCancelling]
		p.Full = q.Running > 0 && p.live+leases > q.Running
	}
	if p.mostGPUs > 0 {
		h.mu.Lock()
		p.gpus = h.queue.GPUs(account)
		h.mu.Unlock()
		p.GPUs, p.MostGPUs = max(p.mostGPUs-p.gpus, 0)/leases, p.mostGPUs/leases
	}
	if p.balances, err = h.money.Balance(ctx, account); err != nil {
		return nil, err
	}
	p.Balance = p.balances.Available
	if b := spec.Limits.Budget; b != nil {
		left := *b
		if job != "" {
			lines, err := h.env.Store.Receipts(ctx, account, job)
			if err != nil {
				return nil, err
			}
			for i := range lines {
				left -= lines[i].Charged
			}
		}
		left = max(left, 0)
		p.Budget = &left
	}
	rules, limit, r := h.cfg.Holds.Noticed(spec.Task.Grace.Std()), offpeak.Millis(spec.Limits.Time.Std().Milliseconds()), spec.Requirements
	p.Need = func(ask offpeak.Price) offpeak.MicroCredits {
		return ledger.Least(rules, limit, h.trade.Charged(ask, &r))
	}
	return p, nil
}

// lacking is one thing that a job waits for beside a node, and the same as a cause
// beside those of the nodes. An array's turn has no such code.
type lacking struct {
	wire.Withheld
	cause wire.Cause
	// never says that waiting does not help.
	never bool
}

// withheld lists what of its account's, its array's or its own a job waits for beside
// a node; turn is the limit of its array, where that keeps it, lacks what a claim of
// it lacked.
func (p *purse) withheld(s *survey, lacks error, turn int) (out []lacking) {
	add := func(why offpeak.Reason, code, format string, args ...any) *lacking {
		out = append(out, lacking{Withheld: wire.Withheld{Code: code, Sentence: fmt.Sprintf(format, args...)}, cause: wire.Cause{Code: why.Code, Nodes: s.Fits, All: s.fleet.Len(), Example: why}})
		return &out[len(out)-1]
	}
	if turn > 0 {
		add(offpeak.Reason{}, "turn", "It goes when another ends: as many members of its array run as may at once (%d, from --array or --at-once).", turn)
	}
	if p.Full {
		why := offpeak.Reason{Code: offpeak.FitQuota, Want: "another running job", Have: fmt.Sprintf("%d of %d", p.live, p.most)}
		add(why, "running_jobs", "Its account has as many running jobs as its quota allows, %d of %d: it goes on when one ends, or when an admin raises the quota (`offpeak account quota --running`).", p.live, p.most)
	}
	why := offpeak.Reason{Code: offpeak.FitQuota, Want: count(p.want, "GPU"), Have: fmt.Sprintf("%d of %d in use", p.gpus, p.mostGPUs)}
	switch {
	case p.mostGPUs <= 0 || p.want == 0:
	case p.want > p.mostGPUs:
		add(why, "gpus", "It asks for %s, and its account's quota allows %d at once: submit it with less --gpus, or have an admin raise the quota (`offpeak account quota --gpus`).", count(p.want, "GPU"), p.mostGPUs).never = true
	case p.gpus+p.want > p.mostGPUs:
		add(why, "gpus", "Its account holds %s of the %d that its quota allows, and it asks for %d: it goes on when a job gives one back, or when an admin raises the quota (`offpeak account quota --gpus`).", count(p.gpus, "GPU"), p.mostGPUs, p.want)
	}
	// What it would pay where it would go, else the least that anybody asks.
	least, known := offpeak.Price(0), false
	if s.Fits > 0 {
		least, known = s.Nodes[0].Offer.Ask.For(*s.job.Requirements), true
	} else {
		for o := range s.fleet.Offers {
			if price := o.Ask.For(*s.job.Requirements); !known || price < least {
				least, known = price, true
			}
		}
	}
	need := offpeak.MicroCredits(0)
	if known {
		need = p.Need(least)
	}
	short, _ := errors.AsType[*ledger.FundsError](lacks)
	money := func(code offpeak.FitCode, budget bool, have offpeak.MicroCredits) {
		e := &ledger.FundsError{Need: need, Have: have, Budget: budget}
		if short != nil && short.Budget == budget {
			e = short
		} else if need <= have {
			return
		}
		add(offpeak.Reason{Code: code, Want: e.Need.String(), Have: e.Have.String()}, string(code), "%s", unpaid(e, p.balances))
	}
	money(offpeak.FitBalance, false, p.Balance)
	if p.Budget != nil {
		money(offpeak.FitBudget, true, *p.Budget)
	}
	if short == nil && errors.Is(lacks, offpeak.ErrFunds) && need <= p.Balance {
		add(offpeak.Reason{Code: offpeak.FitBalance}, string(offpeak.FitBalance), "%s", unpaid(nil, p.balances))
	}
	return out
}

// causes are what keeps a job beside the nodes, each code once.
func causes(lack []lacking) (out []wire.Cause) {
	for i := range lack {
		if c := lack[i].cause; c.Code != offpeak.FitOK && !slices.ContainsFunc(out, func(o wire.Cause) bool { return o.Code == c.Code }) {
			out = append(out, c)
		}
	}
	return out
}
