package hub

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/queue"
	"offpeak/store"
)

// claimBatch is the most claims that share a transaction, but for the last: a gang.
const claimBatch = 64

// claimPace is the time between two claims that hubs on a shared store leave for
// more to come together: a transaction costs as much as many claims, and there
// nothing arrives while one is being committed that would have to wait for it.
const claimPace = 10 * time.Millisecond

// attempt is one job on its way to one node.
type attempt struct {
	item  *queue.Item
	claim store.Claim
	// turn is that of a member of an array with a limit.
	turn queue.Turn
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
		unread = h.proved(ctx) || unread
		unread = h.readGangs(ctx) || unread
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
	due = h.queue.Wake(now)
	if at := h.probation(now); !at.IsZero() && (due.IsZero() || at.Before(due)) {
		due = at
	}
	batch = h.collect(batch)
	for len(batch) < claimBatch {
		it, best, ok := h.queue.Next(now)
		if !ok {
			break
		}
		leases, err := h.newLeases(max(1, len(it.Gang())))
		if err != nil {
			h.env.Log.Error("no claim made", "err", err)
			break
		}
		if it.Gang() != nil {
			batch = append(batch, h.takeGang(it, leases)...)
		} else {
			batch = append(batch, h.take(it, best, leases[0]))
		}
	}
	return batch, due
}

// take makes a claim of a choice: the job leaves the queue, and the picture holds
// what it gets. Where another lease has passed it that, it is held already.
func (h *Hub) take(it *queue.Item, best placement.Candidate, lease offpeak.LeaseID) attempt {
	now, j := h.env.Now(), it.Job()
	turn := h.queue.Went(it)
	h.queue.remove(j.ID)
	a := h.seat(it, &j, best, lease, now)
	a.turn = turn
	return a
}

// seat holds in the picture what a claim for a job, or one of a gang, asks for.
func (h *Hub) seat(it *queue.Item, j *queue.Job, best placement.Candidate, lease offpeak.LeaseID, now time.Time) attempt {
	if !h.cfg.NoProcessLock {
		h.fleet.Hold(best.Node, lease, best.Resources)
		l := &offpeak.Lease{ID: lease, Account: j.Account, Node: best.Node, Resources: best.Resources, OfferedAt: now}
		h.queue.hold(l, now.Add(j.Lasts), now)
	}
	return attempt{funded: h.funded, item: it, claim: store.Claim{
		Job: j.ID, Attempt: j.Attempt + 1, Node: best.Node, Lease: lease,
		Resources: best.Resources, Price: h.trade.Charged(best.Price, j.Requirements), OfferFor: h.cfg.Offer,
		Placement: record(best, j.Policy, h.queue.Policy()),
	}}
}

// record is what is kept of a choice with its event. named is the job's policy, which
// goes before the grid's.
func record(c placement.Candidate, named, grid placement.Policy) json.RawMessage {
	policy, from := chosenBy(named, grid)
	b := append(make([]byte, 0, 96), `{"policy":"`...)
	b = append(b, policy...)
	b = append(b, `","policy_from":"`...)
	b = append(b, from...)
	b = append(b, `","weights":`...)
	b = strconv.AppendInt(b, c.Version, 10)
	b = append(b, `,"score":`...)
	b = strconv.AppendFloat(b, c.Score, 'g', 6, 64)
	if c.Fits > 0 { // nobody counts where it makes no difference
		b = append(b, `,"candidates":`...)
		b = strconv.AppendInt(b, int64(c.Fits), 10)
	}
	return append(b, '}')
}

// Where a policy comes from.
const (
	policyJobs  = "job"
	policyGrids = "grid"
)

// chosenBy is by which policy a job is placed, and whose that is.
func chosenBy(named, grid placement.Policy) (policy placement.Policy, from string) {
	if named != "" {
		return named, policyJobs
	}
	return grid, policyGrids
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
			h.queue.Left(a.turn, r.Room)
			h.mu.Unlock()
			h.metrics.claims.Inc()
			changes = append(changes, r.Change)
		}
	}
	h.apply(changes...)
	for i := 0; i < len(results); {
		n := batch[i].members()
		switch err := results[i].Err; {
		case err != nil && batch[i].item.Gang() != nil:
			h.lostGang(batch[i:i+n], err)
		case err != nil:
			h.lost(ctx, batch[i], err)
		}
		i += n
	}
}

// lost settles a claim that the store refused: the node is read anew, and the
// job matched again if it is still queued.
func (h *Hub) lost(ctx context.Context, a attempt, err error) {
	if errors.Is(err, offpeak.ErrQuota) || errors.Is(err, offpeak.ErrFunds) || errors.Is(err, store.ErrAtOnce) {
		h.mu.Lock()
		defer h.mu.Unlock()
		now := h.env.Now()
		h.release(a.claim.Node, a.claim.Lease, now)
		it := h.queue.again(a.item, time.Time{}, now)
		if errors.Is(err, store.ErrAtOnce) {
			h.queue.Left(a.turn, 0)
			return
		}
		if h.queue.Back(a.turn); a.funded == h.funded {
			h.queue.Lack(it, err)
		}
		return
	}
	h.metrics.conflicts.Inc()
	h.env.Log.Debug("claim lost", "job", a.claim.Job, "attempt", a.claim.Attempt, "node", a.claim.Node, "err", err)
	const oftenEnough = 3
	if lost := a.item.Job().Lost; errors.Is(err, store.ErrInHand) && lost < oftenEnough {
		h.mu.Lock()
		defer h.mu.Unlock()
		now := h.env.Now()
		h.queue.Back(a.turn)
		h.release(a.claim.Node, a.claim.Lease, now)
		h.queue.Freed(a.claim.Node)
		h.queue.repause(a.item.Job(), bump(lost), now)
		return
	}
	q, again := h.requeued(ctx, a.item)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue.Back(a.turn)
	h.release(a.claim.Node, a.claim.Lease, h.env.Now())
	h.stale[a.claim.Node] = struct{}{}
	if again {
		h.queue.repause(q, bump(q.Lost), h.env.Now())
	}
}

// requeued reads a job whose claim was refused: is it still to be matched?
func (h *Hub) requeued(ctx context.Context, it *queue.Item) (queue.Job, bool) {
	was := it.Job()
	j, err := h.env.Store.Job(ctx, "", was.ID)
	switch {
	case errors.Is(err, offpeak.ErrNotFound):
		return queue.Job{}, false
	case err != nil:
		h.doubt.Store(true)
		was.NotBefore = h.env.Now().Add(time.Second)
		return was, true
	case j.State != offpeak.JobQueued:
		return queue.Job{}, false
	}
	now := h.queue.job(queued(&j), was.Text)
	now.Avoid, now.Fences, now.Lost, now.Group, now.AtOnce = was.Avoid, was.Fences, was.Lost, was.Group, was.AtOnce
	return now, true
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
		h.queue.Back(a.turn)
		h.release(a.claim.Node, a.claim.Lease, now)
		h.stale[a.claim.Node] = struct{}{}
		if a.item.Gang() != nil {
			h.queue.scatter(a.item, a.item.Job().Lost, now.Add(time.Second))
		} else {
			h.queue.again(a.item, now.Add(time.Second), now)
		}
	}
	h.mu.Unlock()
	for _, a := range batch {
		h.peers.changed(a.claim.Node, 0, true)
	}
}
