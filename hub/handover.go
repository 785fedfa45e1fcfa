package hub

import (
	"context"
	"errors"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/queue"
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
	// A node that is kept for a job goes to it by a match.
	if doubtful || won || h.queue.taken != nil || h.queue.Reserved(r.Node) {
		return attempt{}, false
	}
	now := h.env.Now()
	h.queue.Wake(now)
	var it *queue.Item
	var best placement.Candidate
	h.fleet.Without(r.Node, r.Lease, func() {
		h.queue.Freed(r.Node)
		it, best, _ = h.queue.First(now)
	})
	if it == nil || it.Gang() != nil || best.Node != r.Node || !h.fleet.Pass(r.Node, r.Lease, lease, best.Resources) {
		return attempt{}, false
	}
	return h.take(it, best, lease), true
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
	h.queue.Release(a.claim.Lease, h.env.Now())
	// What the end released was seen without this, and may be enough now.
	h.queue.Freed(a.claim.Node)
	h.mu.Unlock()
	if errors.Is(err, offpeak.ErrUnavailable) {
		h.unclaimed(ctx, []attempt{a}, err)
		return
	}
	// The report was refused, is a repeated one, or freed jobs that may go first:
	// nothing was claimed.
	q, again := h.requeued(ctx, a.item)
	h.mu.Lock()
	h.queue.Back(a.turn)
	if again {
		h.queue.repause(q, q.Lost, h.env.Now())
	}
	h.mu.Unlock()
	if again {
		h.wake()
	}
}
