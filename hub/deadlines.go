package hub

import (
	"container/heap"
	"context"
	"errors"
	"time"

	"offpeak"
)

// deadlines holds the live leases in the order in which they run out of time:
// the hub's own watch over limits that supervisors and agents enforce first.
// Its owner holds a lock.
type deadlines struct {
	byID map[offpeak.LeaseID]*deadline
	due  dueHeap
}

type deadline struct {
	lease  offpeak.LeaseID
	node   offpeak.NodeID
	job    offpeak.JobID
	state  offpeak.LeaseState
	limits offpeak.Limits
	// began is when the lease reached its state, as this hub saw it.
	began time.Time
	// stake is nil where no auction looks at the lease.
	stake *stake
	// asked says that a finishing lease was asked to stop: next it ends.
	asked bool
	// at is when to look; zero while there is nothing to watch.
	at    time.Time
	index int // in due, −1 when not there
}

func newDeadlines() deadlines { return deadlines{byID: make(map[offpeak.LeaseID]*deadline)} }

// slack is how much later than the supervisor the hub stops an attempt.
func slack(limit time.Duration) time.Duration {
	return min(max(limit/10, 2*time.Second), 30*time.Second)
}

// track notes a lease's state.
func (d *deadlines) track(l *offpeak.Lease, limits offpeak.Limits, now time.Time) {
	e := d.byID[l.ID]
	if e == nil {
		if l.State == offpeak.LeaseOffered {
			return // its expiry is the store's
		}
		e = &deadline{lease: l.ID, node: l.Node, job: l.Job, index: -1}
		d.byID[l.ID] = e
	} else if e.state == l.State {
		return
	}
	e.state, e.began, e.asked = l.State, now, false
	if limits.Time > 0 {
		e.limits = limits
	}
	var at time.Time
	switch {
	case (l.State == offpeak.LeasePreparing || l.State == offpeak.LeaseFinishing) && e.limits.Prepare > 0:
		// Storing outputs has as long as fetching inputs.
		at = now.Add(e.limits.Prepare.Std())
	case l.State == offpeak.LeaseRunning && e.limits.Time > 0:
		if l.StartedAt != nil {
			e.began = *l.StartedAt
		}
		at = now.Add(e.limits.Time.Std() - time.Duration(l.Metered)*time.Millisecond + slack(e.limits.Time.Std()))
	}
	d.set(e, at)
}

// note is track for a lease that another hub moved: its limits are read when it has
// been in its state for a while.
func (d *deadlines) note(e *offpeak.Event, state offpeak.LeaseState, now time.Time) {
	if state == offpeak.LeaseOffered {
		return
	}
	l := &offpeak.Lease{ID: e.Lease, Node: e.Node, Job: e.Job, State: state}
	d.track(l, offpeak.Limits{}, now)
	if have := d.byID[e.Lease]; have.limits == (offpeak.Limits{}) {
		d.set(have, now.Add(lookAfter))
	}
}

// lookAfter is how long a lease of unknown limits waits for the first look.
const lookAfter = 30 * time.Second

func (d *deadlines) set(e *deadline, at time.Time) {
	e.at = at
	switch {
	case at.IsZero() && e.index >= 0:
		heap.Remove(&d.due, e.index)
	case at.IsZero():
	case e.index >= 0:
		heap.Fix(&d.due, e.index)
	default:
		heap.Push(&d.due, e)
	}
}

// drop forgets a lease that has ended.
func (d *deadlines) drop(id offpeak.LeaseID) {
	if e := d.byID[id]; e != nil {
		d.set(e, time.Time{})
		delete(d.byID, id)
	}
}

// overdue stops leases that ran, prepared or finished for longer than their job
// allows.
func (h *Hub) overdue(ctx context.Context, now time.Time) {
	for {
		h.mu.Lock()
		if len(h.live.due) == 0 || h.live.due[0].at.After(now) {
			h.mu.Unlock()
			return
		}
		e := *h.live.due[0]
		// Looked at again in a while, should what follows fail.
		h.live.set(h.live.due[0], now.Add(10*time.Second))
		h.mu.Unlock()
		if err := h.judge(ctx, &e, now); err != nil {
			h.env.Log.Warn("time limit not enforced yet", "lease", e.lease, "job", e.job, "err", h.failed(err))
			return
		}
	}
}

// judge looks at one lease whose time seems to be over. Time for which a job
// was frozen does not count, so the metered time decides, up to a bound for
// agents that do not tell it.
func (h *Hub) judge(ctx context.Context, e *deadline, now time.Time) error {
	defer h.writes.Begin()()
	_, held, err := h.env.Store.Assignments(ctx, e.node)
	if err != nil && !errors.Is(err, offpeak.ErrNotFound) && !errors.Is(err, offpeak.ErrUnknownNode) {
		return err
	}
	for i := range held {
		l := &held[i].Lease
		if l.ID != e.lease {
			continue
		}
		if l.State != e.state || e.limits == (offpeak.Limits{}) {
			h.mu.Lock()
			h.live.drop(l.ID)
			h.live.track(l, held[i].Spec.Limits, e.began)
			h.live.stakes(l, &held[i].Spec.Requirements, nil)
			h.mu.Unlock()
			return nil
		}
		reason := offpeak.EndPrepareTimeout
		if l.State == offpeak.LeaseFinishing {
			if e.asked {
				return h.abandon(ctx, l)
			}
			reason = offpeak.EndNodeError
		}
		if l.State == offpeak.LeaseRunning {
			reason = offpeak.EndTimeLimit
			limit := e.limits.Time.Std()
			left := limit - time.Duration(l.Metered)*time.Millisecond
			if left > 0 && now.Sub(e.began) < 4*limit && l.Metered > 0 {
				h.mu.Lock()
				if still := h.live.byID[e.lease]; still != nil {
					h.live.set(still, now.Add(left+slack(limit)))
				}
				h.mu.Unlock()
				return nil
			}
		}
		c, err := h.env.Store.Stop(ctx, l.ID, reason)
		if errors.Is(err, offpeak.ErrStaleLease) || errors.Is(err, offpeak.ErrNotFound) {
			break
		}
		if err != nil {
			return err
		}
		h.env.Log.Info("lease is over its time", "lease", l.ID, "job", l.Job, "node", l.Node, "reason", reason)
		h.mu.Lock()
		if still := h.live.byID[e.lease]; still != nil {
			var next time.Time
			if l.State == offpeak.LeaseFinishing {
				still.asked, next = true, now.Add(h.cfg.Timeout)
			}
			h.live.set(still, next)
		}
		h.mu.Unlock()
		h.apply(c)
		return nil
	}
	h.mu.Lock()
	h.live.drop(e.lease)
	h.mu.Unlock()
	return nil
}

// abandon ends a finishing lease whose node beats on but does not end it a
// timeout after it was asked to.
func (h *Hub) abandon(ctx context.Context, l *offpeak.Lease) error {
	c, err := h.env.Store.Abandon(ctx, l.ID, offpeak.EndNodeError)
	if err != nil && !errors.Is(err, offpeak.ErrStaleLease) && !errors.Is(err, offpeak.ErrNotFound) {
		return err
	}
	h.mu.Lock()
	h.live.drop(l.ID)
	h.mu.Unlock()
	if err == nil {
		h.env.Log.Warn("lease never finished", "lease", l.ID, "job", l.Job, "attempt", l.Attempt, "node", l.Node)
		h.apply(c)
	}
	return nil
}

type dueHeap []*deadline

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *dueHeap) Push(x any)        { e := x.(*deadline); e.index = len(*h); *h = append(*h, e) }
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	e.index = -1
	return e
}
