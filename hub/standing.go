package hub

import (
	"context"
	"errors"
	"fmt"
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
		out.Reserved = &wire.Reservation{Node: r.Node, At: r.At}
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
	case out.Reserved != nil:
		fmt.Fprintf(&b, " %s is kept for it, and is free for it by %s UTC.", out.Reserved.Node, out.Reserved.At.UTC().Format(time.DateTime))
	case out.StartsBy != nil:
		fmt.Fprintf(&b, " It starts by %s UTC at the latest, if the nodes that could take it stay.", out.StartsBy.UTC().Format(time.DateTime))
	}
	return b.String()
}

// lacking is one thing that a job waits for beside a node, and the same as a cause
// beside those of the nodes: it keeps the job from all that fit. An array's turn has
// no such code.
type lacking struct {
	wire.Withheld
	cause offpeak.Reason
}

// withheld lists what of its account's, its array's or its own a job waits for beside
// a node of the fleet; turn is the limit of its array, where that keeps it.
func (h *Hub) withheld(ctx context.Context, j *offpeak.Job, fleet *placement.Snapshot, lacks error, turn int) (out []lacking, err error) {
	a, err := h.env.Store.Account(ctx, j.Account)
	if err != nil {
		return nil, err
	}
	add := func(why offpeak.Reason, code, format string, args ...any) {
		out = append(out, lacking{wire.Withheld{Code: code, Sentence: fmt.Sprintf(format, args...)}, why})
	}
	quota := offpeak.Reason{Code: offpeak.FitQuota}
	if turn > 0 {
		add(offpeak.Reason{}, "turn", "It goes when another ends: as many members of its array run as may at once (%d, from --array or --at-once).", turn)
	}
	if most := a.Quota.Running; most > 0 {
		counts, err := h.env.Store.CountJobs(ctx, j.Account)
		if err != nil {
			return nil, err
		}
		if live := counts[offpeak.JobLeased] + counts[offpeak.JobRunning] + counts[offpeak.JobCancelling]; live >= most {
			add(quota, "running_jobs", "Its account has as many running jobs as its quota allows, %d of %d: it goes on when one ends, or when an admin raises the quota (`offpeak account quota --running`).", live, most)
		}
	}
	if most, want := a.Quota.GPUs, len(j.Spec.Requirements.GPUs); most > 0 && want > 0 {
		h.mu.Lock()
		have := h.queue.GPUs(j.Account)
		h.mu.Unlock()
		switch {
		case want > most:
			add(quota, "gpus", "It asks for %s, and its account's quota allows %d at once: submit it with less --gpus, or have an admin raise the quota (`offpeak account quota --gpus`).", count(want, "GPU"), most)
		case have+want > most:
			add(quota, "gpus", "Its account holds %s of the %d that its quota allows, and it asks for %d: it goes on when a job gives one back, or when an admin raises the quota (`offpeak account quota --gpus`).", count(have, "GPU"), most, want)
		}
	}
	short, _ := errors.AsType[*ledger.FundsError](lacks)
	if short == nil && !errors.Is(lacks, offpeak.ErrFunds) {
		if short, err = h.short(ctx, j, fleet); err != nil {
			return nil, err
		}
		if short == nil {
			return out, nil
		}
	}
	has, err := h.money.Balance(ctx, j.Account)
	if err != nil {
		return nil, err
	}
	why := offpeak.Reason{Code: offpeak.FitBalance}
	if short != nil {
		if why.Want, why.Have = short.Need.String(), short.Have.String(); short.Budget {
			why.Code = offpeak.FitBudget
		}
	}
	add(why, string(why.Code), "%s", unpaid(short, has))
	return out, nil
}

// short says what a job lacks to begin at the least price that anybody asks.
func (h *Hub) short(ctx context.Context, j *offpeak.Job, fleet *placement.Snapshot) (*ledger.FundsError, error) {
	asks := h.trade.Effective(j.Spec.Requirements)
	least, any := offpeak.MaxPrice, false
	for o := range fleet.Offers {
		if price := o.Ask.For(asks); !any || price < least {
			least, any = price, true
		}
	}
	if !any || least == 0 || j.Spec.Requirements.MaxPrice != nil && least > *j.Spec.Requirements.MaxPrice {
		return nil, nil
	}
	price := h.trade.Charged(least, &j.Spec.Requirements)
	return h.covered(ctx, &winner{prize: prize{Outbid: offpeak.Outbid{Job: j.ID, Price: price}}, account: j.Account})
}
