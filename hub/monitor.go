package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/past"
	"offpeak/store"
)

// expireBatch is the most leases that one call takes back.
const expireBatch = 256

// billBatch is the most leases whose money one call looks after.
const billBatch = 256

// monitor takes back leases whose holders are silent, marks nodes late and
// offline, and stops what runs over its limits. It counts only silence that
// this hub observed: when the hub itself was not able to listen or to write,
// everyone gets a full timeout anew first.
func (h *Hub) monitor(ctx context.Context) error {
	ticker := time.NewTicker(h.cfg.Tick)
	defer ticker.Stop()
	last := h.env.Now()
	reckoned := last
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		// The store's time first: the gap that is looked at next includes the
		// whole way to it, so at that moment this hub was listening. Should it
		// stand still after the look, what runs out meanwhile stays as it is.
		asOf, err := h.env.Store.Now(ctx)
		if err != nil {
			h.refused(ctx, "read the store's time", err)
			continue
		}
		now := h.env.Now()
		gap := max(now.Sub(last), now.Round(0).Sub(last.Round(0)))
		last = now
		if gap > h.patience()+h.cfg.Tick {
			h.stalled.Store(true)
		}
		if h.stalled.Load() {
			h.env.Log.Warn("the hub was not listening; nobody's silence counts", "for", gap)
			h.makeAmends(ctx)
			last = h.env.Now()
			continue
		}
		if now.Sub(reckoned) >= pastPace {
			reckoned = now
			h.expectAll(now)
		}
		h.overdue(ctx, now)
		if err := h.expire(ctx, asOf); err != nil {
			h.refused(ctx, "expire leases", err)
			if _, one := errors.AsType[*store.UnendedError](err); !one {
				continue
			}
		}
		if err := h.silence(ctx, now, asOf); err != nil {
			h.refused(ctx, "note down silence", err)
		}
		if err := h.bill(ctx); err != nil {
			h.refused(ctx, "bill leases", err)
		}
		if err := h.free(ctx); err != nil {
			h.refused(ctx, "free jobs that wait for ended ones", err)
		}
		h.auction(ctx, now)
	}
}

// bill has what runs paid for before it runs on, and tells the agents of leases that
// are not that they must go.
func (h *Hub) bill(ctx context.Context) error {
	for {
		billed, more, err := h.env.Store.Bill(ctx, billBatch)
		h.apply(billed.Gone...)
		for i := range billed.Renewed {
			r := &billed.Renewed[i]
			h.mu.Lock()
			h.live.repriced(r.Lease, r.Price)
			h.mu.Unlock()
			h.traded(&r.Paid, false)
			h.traded(&store.Paid{Node: r.Node, Devices: r.Devices, Price: r.Price}, true)
		}
		if err != nil || !more {
			return err
		}
	}
}

// makeAmends grants an amnesty for what this hub may have missed.
func (h *Hub) makeAmends(ctx context.Context) {
	h.amends.Store(true)
	defer h.amends.Store(false)
	h.stalled.Store(false) // it may be so again meanwhile
	if err := h.amnesty(ctx); err != nil {
		h.stalled.Store(true)
		h.refused(ctx, "grant amnesty", err)
	}
}

// patience is how late the hub's own work may be before it distrusts itself:
// three ticks, or a share of the timeout where ticks are much shorter.
func (h *Hub) patience() time.Duration {
	return max(3*h.cfg.Tick, min(h.cfg.Timeout/4, time.Second))
}

// refused notes that the store did not do what the monitor asked.
func (h *Hub) refused(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	h.env.Log.Warn(what, "err", err)
	if errors.Is(err, offpeak.ErrConflict) {
		h.stalled.Store(true) // the way to the store took longer than it allows
	}
	if errors.Is(err, offpeak.ErrUnavailable) {
		h.stalled.Store(true)
		h.doubt.Store(true)
	}
}

// amnesty gives everyone a full timeout to speak from now on. The timeout is
// the longest that any node was granted. Where another hub listened meanwhile,
// leases were kept or not by what it heard: this hub's own picture of who is silent
// begins anew, and it takes nothing back before it has listened for that long.
func (h *Hub) amnesty(ctx context.Context) error {
	heard, err := h.accompanied(ctx)
	if err != nil {
		return err
	}
	longest := h.cfg.Timeout
	h.peers.all(func(p *peer) { longest = max(longest, min(p.granted, 5*h.cfg.Timeout)) })
	if !heard {
		if err := h.env.Store.Amnesty(ctx, longest); err != nil {
			return err
		}
		h.wrote()
	}
	now := h.env.Now()
	if heard {
		h.brake.young = now.Add(longest)
	}
	h.peers.all(func(p *peer) {
		if p.heard.Before(now) {
			p.heard = now
		}
		p.beaten = time.Time{} // the gap was the hub's
	})
	h.metrics.amnesties.Inc()
	return nil
}

// expire takes back what the store finds to have run out by asOf, in batches.
func (h *Hub) expire(ctx context.Context, asOf time.Time) error {
	defer h.writes.Begin()()
	if hold, err := h.holdBack(ctx, asOf); err != nil || hold {
		return err
	}
	for {
		changes, err := h.env.Store.Expire(ctx, asOf, expireBatch)
		h.metrics.expired.Add(float64(len(changes)))
		for i := range changes {
			if l := changes[i].Lease; l != nil {
				h.env.Log.Info("lease expired", "lease", l.ID, "job", l.Job, "attempt", l.Attempt, "node", l.Node, "reason", l.Reason)
			}
		}
		h.apply(changes...)
		if err != nil || len(changes) < expireBatch {
			return err
		}
	}
}

// silence marks nodes late that missed three heartbeats, and offline that were
// silent for the timeout they had been granted, at asOf by the store's time.
func (h *Hub) silence(ctx context.Context, now, asOf time.Time) error {
	type mute struct {
		node offpeak.NodeID
		to   offpeak.Liveness
		span time.Duration
	}
	var mutes []mute
	h.peers.all(func(p *peer) {
		silent := now.Sub(p.heard)
		timeout := max(p.granted, h.cfg.Timeout)
		late := min(3*h.cfg.Interval+p.jitterLocked(), timeout)
		switch {
		case p.liveness == offpeak.NodeOffline:
		case silent > timeout:
			mutes = append(mutes, mute{p.id, offpeak.NodeOffline, timeout})
		case silent > late && p.liveness == offpeak.NodeOnline:
			mutes = append(mutes, mute{p.id, offpeak.NodeLate, late})
		}
	})
	if len(mutes) == 0 {
		return nil
	}
	changes := make([]store.LivenessChange, len(mutes))
	to := make(map[offpeak.NodeID]offpeak.Liveness, len(mutes))
	for i, m := range mutes {
		changes[i] = store.LivenessChange{Node: m.node, To: m.to, HeardBefore: asOf.Add(-m.span)}
		to[m.node] = m.to
	}
	moved, err := h.env.Store.SetLiveness(ctx, changes)
	if err != nil {
		return fmt.Errorf("set liveness: %w", err)
	}
	if err := h.elsewhereHeard(ctx, changes, moved, now, asOf); err != nil {
		return err
	}
	for _, id := range moved {
		l := to[id]
		p := h.peers.get(id)
		p.mu.Lock()
		p.liveness = l
		p.settled = false
		p.mu.Unlock()
		h.changedNode(id, func(f *placement.Fleet) {
			f.SetLiveness(id, l)
			h.turned(id, now, func(p *past.Node) { p.Heard(l, now) })
		})
		h.env.Log.Info("node fell silent", "node", id, "liveness", l)
	}
	return nil
}
