package hub

import (
	"context"
	"errors"

	"offpeak"
	"offpeak/placement"
	"offpeak/store"
)

// handOver finds the job to which a lease that ends leaves what it holds, so
// that the job is claimed in the transaction of that end: it starts a commit and
// a wake-up sooner. It is what match would find after the commit, or nothing:
// where the ended job might come back and go first, where the first job in
// order has a better node, or needs more than the lease leaves.
//
// The picture never shows more free than the store will have: the next lease
// takes from what the old one holds, and the rest is released with the end.
func (h *Hub) handOver(r *store.Report) (next attempt, found bool) {
	if r.Kind != store.ReportEnded || r.Reason != offpeak.EndCompleted || h.cfg.NoProcessLock || !h.leads() {
		return attempt{}, false
	}
	select {
	case <-h.loaded:
	default:
		return attempt{}, false
	}
	lease, err := h.newLease()
	if err != nil {
		return attempt{}, false // match will say so
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, doubtful := h.stale[r.Node]
	_, won := h.prizes[r.Lease]
	if doubtful || won || h.queue.taken != nil {
		return attempt{}, false
	}
	h.queue.wake(h.env.Now().UnixMicro())
	var it *item
	var best placement.Candidate
	h.fleet.Without(r.Node, r.Lease, func() {
		h.freed[r.Node] = struct{}{}
		it, best = h.first()
	})
	if it == nil || best.Node != r.Node || !h.fleet.Pass(r.Node, r.Lease, lease, best.Resources) {
		return attempt{}, false
	}
	h.queue.remove(it.job)
	return h.attempt(it, best, lease), true
}

// handedOver settles what became of a claim that was made with an end.
func (h *Hub) handedOver(ctx context.Context, from offpeak.LeaseID, a attempt, then *store.Claimed, err error) {
	if then != nil && err == nil {
		h.metrics.batch.Observe(1)
		h.claimed(ctx, []attempt{a}, []store.Claimed{*then})
		return
	}
	h.mu.Lock()
	h.fleet.TakeBack(a.claim.Node, from, a.claim.Lease)
	// What the end released was seen without this, and may be enough now.
	h.freed[a.claim.Node] = struct{}{}
	h.mu.Unlock()
	if errors.Is(err, offpeak.ErrUnavailable) {
		h.unclaimed(ctx, []attempt{a}, err)
		return
	}
	// The report was refused, is a repeated one, or freed jobs that may go first:
	// nothing was claimed.
	if q, again := h.requeued(ctx, a.item); again {
		h.mu.Lock()
		a.item.class.back()
		h.queue.repause(q, a.item.class.key.asks, a.item.lost, h.env.Now())
		h.mu.Unlock()
		h.wake()
	}
}
