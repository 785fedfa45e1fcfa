package hub

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/store"
)

// claimBatch is the most claims that share a transaction.
const claimBatch = 64

// claimPace is the time between two claims that hubs on a shared store leave for
// more to come together: a transaction costs as much as many claims, and there
// nothing arrives while one is being committed that would have to wait for it.
const claimPace = 10 * time.Millisecond

// attempt is one job on its way to one node.
type attempt struct {
	item  *item
	claim store.Claim
	// funded is what picture.funded was when it was matched.
	funded int64
}

// dispatch matches queued jobs with nodes and claims, until ctx is done. It is
// woken by what may let a job go on: a submission, a requeue, a node or
// resources that came free, the end of a pause. What arrives while a claim is
// being committed shares the next one.
func (h *Hub) dispatch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-h.loaded:
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		unread := h.reloadStale(ctx)
		if !h.leads() {
			if h.rest(ctx, timer, time.Hour, unread) {
				continue
			}
			return nil
		}
		h.takeHints(ctx)
		end := h.writes.Begin()
		batch, due := h.match(h.env.Now())
		if len(batch) > 0 {
			h.wake() // another worker may go on meanwhile
			h.claim(ctx, batch)
		}
		end()
		if len(batch) > 0 {
			if len(batch) < claimBatch && !h.circle.alone.Load() {
				sleep(ctx, claimPace)
			}
			continue
		}
		wait := time.Hour
		if !due.IsZero() {
			wait = max(due.Sub(h.env.Now()), time.Millisecond)
		}
		h.rest(ctx, timer, wait, unread)
	}
	return nil
}

// rest waits until there may be something to match, and says whether ctx is still
// alive.
func (h *Hub) rest(ctx context.Context, timer *time.Timer, wait time.Duration, unread bool) bool {
	if unread {
		wait = min(wait, 100*time.Millisecond)
	}
	timer.Reset(wait)
	select {
	case <-ctx.Done():
		return false
	case <-h.wakeup:
	case <-timer.C:
	}
	return true
}

// reloadStale reads nodes anew of which the picture may be wrong, and says
// whether some could not be read.
func (h *Hub) reloadStale(ctx context.Context) (unread bool) {
	h.mu.Lock()
	var ids []offpeak.NodeID
	for id := range h.stale {
		ids = append(ids, id)
	}
	clear(h.stale)
	h.mu.Unlock()
	for _, id := range ids {
		if err := h.reload(ctx, id); err != nil {
			h.mu.Lock()
			h.stale[id] = struct{}{}
			h.mu.Unlock()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.stale) > 0
}

// match takes jobs off the queue in order, each with its best node, and holds
// the nodes' resources for them. Holding before the lock is given back is the
// lock in the process: whoever looks at the node next sees it taken, so claims
// of one hub never collide on it. due is when the next pause ends.
func (h *Hub) match(now time.Time) (batch []attempt, due time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queue.taken != nil {
		return nil, time.Time{} // the queue is being read
	}
	due = h.queue.wake(now.UnixMicro())
	if at := h.probation(now); !at.IsZero() && (due.IsZero() || at.Before(due)) {
		due = at
	}
	batch = h.collect(batch)
	for len(batch) < claimBatch {
		it, best := h.first()
		if it == nil {
			break
		}
		lease, err := h.newLease()
		if err != nil {
			h.env.Log.Error("no claim made", "err", err)
			break
		}
		h.queue.remove(it.job)
		if !h.cfg.NoProcessLock {
			h.fleet.Hold(best.Node, lease, best.Resources)
		}
		batch = append(batch, h.attempt(it, best, lease))
	}
	return batch, due
}

// first is the first job in order that fits a node as the picture stands, with
// the best one. Those before it that fit none are parked.
func (h *Hub) first() (*item, placement.Candidate) {
	if len(h.freed) > 0 {
		h.queue.unpark(h.mayGoOn)
		clear(h.freed)
	}
	for it := h.queue.first(); it != nil; it = h.queue.first() {
		if best, ok := h.fleet.Best(it.placement()); ok {
			return it, best
		}
		h.queue.park(it.class, nil)
	}
	return nil, placement.Candidate{}
}

func (h *Hub) attempt(it *item, best placement.Candidate, lease offpeak.LeaseID) attempt {
	return attempt{funded: h.funded, item: it, claim: store.Claim{
		Job: it.job, Attempt: it.attempt + 1, Node: best.Node, Lease: lease,
		Resources: best.Resources, Price: h.trade.Charged(best.Price, it.class.asks), OfferFor: h.cfg.Offer,
		Placement: record(best),
	}}
}

// mayGoOn says whether a node that came free may take the class's jobs.
func (h *Hub) mayGoOn(c *class) bool {
	if c.lacks != "" {
		return false
	}
	job := placement.Job{Account: c.key.account, Driver: c.key.driver, Requirements: c.fits}
	for id := range h.freed {
		if h.fleet.MayFit(job, id) {
			return true
		}
	}
	return false
}

// record is what is kept of a choice with its event.
func record(c placement.Candidate) json.RawMessage {
	b := append(make([]byte, 0, 64), `{"policy":"cheapest","score":`...)
	b = strconv.AppendFloat(b, c.Score, 'g', 6, 64)
	if c.Fits > 0 { // nobody counts where it makes no difference
		b = append(b, `,"candidates":`...)
		b = strconv.AppendInt(b, int64(c.Fits), 10)
	}
	return append(b, '}')
}

// claim asks the store for the leases and settles what became of each.
func (h *Hub) claim(ctx context.Context, batch []attempt) {
	claims := make([]store.Claim, len(batch))
	for i := range batch {
		claims[i] = batch[i].claim
	}
	h.metrics.batch.Observe(float64(len(batch)))
	results, err := h.env.Store.Claim(ctx, claims)
	if err != nil || len(results) != len(batch) {
		h.unclaimed(ctx, batch, err)
		return
	}
	h.claimed(ctx, batch, results)
}

// claimed settles claims whose outcome is known.
func (h *Hub) claimed(ctx context.Context, batch []attempt, results []store.Claimed) {
	changes := make([]store.Change, 0, len(results))
	for i := range results {
		if a, r := batch[i], &results[i]; r.Err == nil {
			h.mu.Lock()
			if h.cfg.NoProcessLock {
				h.stale[a.claim.Node] = struct{}{}
			} else {
				h.fleet.Confirm(a.claim.Node, a.claim.Lease)
			}
			h.mu.Unlock()
			h.metrics.claims.Inc()
			changes = append(changes, r.Change)
			h.traded(&store.Paid{Node: a.claim.Node, Devices: a.claim.Resources.Devices, Price: a.claim.Price}, true)
		}
	}
	h.apply(changes...)
	for i := range results {
		if results[i].Err != nil {
			h.lost(ctx, batch[i], results[i].Err)
		}
	}
}

// lost settles a claim that the store refused: the node is read anew, and the
// job matched again if it is still queued.
func (h *Hub) lost(ctx context.Context, a attempt, err error) {
	asks := a.item.class.key.asks
	if errors.Is(err, offpeak.ErrQuota) || errors.Is(err, offpeak.ErrFunds) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.fleet.Release(a.claim.Node, a.claim.Lease)
		h.freed[a.claim.Node] = struct{}{}
		if it := h.queue.add(a.item.queued(), asks, h.env.Now()); !it.paused && a.funded == h.funded {
			h.queue.park(it.class, err)
		}
		return
	}
	h.metrics.conflicts.Inc()
	h.env.Log.Debug("claim lost", "job", a.claim.Job, "attempt", a.claim.Attempt, "node", a.claim.Node, "err", err)
	const oftenEnough = 3
	if errors.Is(err, store.ErrInHand) && a.item.lost < oftenEnough {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.fleet.Release(a.claim.Node, a.claim.Lease)
		h.freed[a.claim.Node] = struct{}{}
		h.queue.repause(a.item.queued(), asks, bump(a.item.lost), h.env.Now())
		return
	}
	q, again := h.requeued(ctx, a.item)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fleet.Release(a.claim.Node, a.claim.Lease)
	h.stale[a.claim.Node] = struct{}{}
	if again {
		h.queue.repause(q, asks, bump(a.item.lost), h.env.Now())
	}
}

// requeued reads a job whose claim was refused: is it still to be matched?
func (h *Hub) requeued(ctx context.Context, it *item) (store.Queued, bool) {
	j, err := h.env.Store.Job(ctx, "", it.job)
	switch {
	case errors.Is(err, offpeak.ErrNotFound):
		return store.Queued{}, false
	case err != nil:
		h.doubt.Store(true)
		q := it.queued()
		q.NotBefore = h.env.Now().Add(time.Second)
		return q, true
	case j.State != offpeak.JobQueued:
		return store.Queued{}, false
	}
	q := queued(&j)
	q.Avoid = it.avoid
	return q, true
}

// unclaimed settles a batch of which nothing is known: it may be committed or
// not. The nodes are read anew and the jobs tried again a little later; those
// that were committed will be refused then, and their nodes learn of them with
// their next heartbeat.
func (h *Hub) unclaimed(ctx context.Context, batch []attempt, err error) {
	if ctx.Err() == nil {
		h.env.Log.Warn("claim", "jobs", len(batch), "err", h.failed(err))
	}
	now := h.env.Now()
	h.mu.Lock()
	for _, a := range batch {
		h.fleet.Release(a.claim.Node, a.claim.Lease)
		h.stale[a.claim.Node] = struct{}{}
		q := a.item.queued()
		q.NotBefore = now.Add(time.Second)
		h.queue.add(q, a.item.class.key.asks, now)
	}
	h.mu.Unlock()
	for _, a := range batch {
		h.peers.changed(a.claim.Node, 0, true)
	}
}
