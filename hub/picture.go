package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/store"
)

// apply takes what verbs did into the picture and tells those who wait: the
// nodes, matching, and who follows jobs and events. Changes may arrive in
// another order than they were committed in; what each step may conclude is
// limited accordingly.
func (h *Hub) apply(changes ...store.Change) { h.applyFrom("", changes...) }

// applyFrom is apply for changes that a node's own report made: it knows what
// it said, so its stream is not rung for that.
func (h *Hub) applyFrom(reporter offpeak.NodeID, changes ...store.Change) {
	if len(changes) == 0 {
		return
	}
	changes = h.withFreed(changes)
	now := h.env.Now()
	h.mu.Lock()
	for i := range changes {
		h.applyLocked(&changes[i], now)
	}
	h.mu.Unlock()
	for i := range changes {
		// An offer that nobody took, or a job that could not start, is no trade.
		if l := changes[i].Lease; l != nil && changes[i].Begun {
			h.traded(&store.Paid{Node: l.Node, Devices: l.Resources.Devices, Price: l.Price}, true)
		}
		if changes[i].Broken != "" {
			h.tend()
		}
		if paid := changes[i].Paid; paid != nil {
			h.traded(paid, false)
		}
		if c := &changes[i]; c.Node != "" {
			h.peers.changed(c.Node, c.Revision, c.Node != reporter)
			if c.Node != reporter {
				h.circle.tell(string(c.Node)) // its agent may be connected elsewhere
			}
		}
		if id := changes[i].Job.ID; id != "" {
			h.bells.Ring(string(id))
			if c := &changes[i]; c.Job.Group != string(id) {
				h.bells.Ring(c.Job.Group)
			}
			if changes[i].Queued != nil && changes[i].Lease == nil {
				h.circle.tell(string(id)) // whoever matches need not wait for the event
			}
		}
	}
	h.wrote()
	h.wake()
}

func (h *Hub) applyLocked(c *store.Change, now time.Time) {
	if l := c.Lease; l != nil {
		if !l.State.Holds() {
			h.release(l.Node, l.ID, now)
			h.queue.Funded(l.Account) // it holds fewer GPUs, or has fewer leases
		}
		if l.Outbid != nil && l.State.Holds() {
			h.award(l.ID, prize{Outbid: *l.Outbid, node: l.Node})
		}
		if !l.State.Holds() {
			h.yielded(l.ID)
		}
		if !l.State.Holds() && !h.circle.alone.Load() {
			h.over[l.ID] = now
		}
		if l.State.Terminal() {
			ended := now
			if l.EndedAt != nil {
				ended = *l.EndedAt
			}
			h.fared(l.Node, l.ID, l.Reason, ended, now)
			h.live.drop(l.ID)
			h.queue.MemberEnded(offpeak.GroupID(c.Job.Group))
		} else {
			h.live.track(l, c.Job.Spec.Limits, now)
			if e := h.live.byID[l.ID]; l.State == offpeak.LeaseRunning && e != nil && !e.at.IsZero() {
				h.queue.hold(l, e.at, now)
			}
			h.live.stakes(l, &c.Job.Spec.Requirements, c.Job.OutbidAt)
		}
	}
	if c.Tried {
		if c.Quarantine != nil && h.fleet.Version(c.Node) != 0 {
			h.held(c.Node, c.Quarantine)
		}
		h.stale[c.Node] = struct{}{} // another end may have come after
	}
	if c.NodeClosed {
		h.fleet.SetIntent(c.Node, offpeak.NodeClosed)
	}
	switch {
	case c.Queued != nil:
		h.queue.add(h.elsewhere(*c.Queued, c.Lease, now), asksText(c.Queued.Requirements), now)
	case c.Job.State.Terminal() || h.queue.older(c.Job.ID, c.Job.Attempt):
		// A change that is older than what queued the job again says nothing.
		h.queue.remove(c.Job.ID)
	}
}

// release gives back what a lease holds of a node in the picture; mu is held.
func (h *Hub) release(node offpeak.NodeID, lease offpeak.LeaseID, now time.Time) {
	h.queue.Release(lease, now)
	if h.fleet.Release(node, lease) {
		h.queue.Freed(node)
	}
}

// elsewhere has a job that a node declined, or did not answer, pause for a moment:
// the store counts no fault there, and where many nodes decline nothing else would
// keep it from going round among them.
func (h *Hub) elsewhere(q store.Queued, l *offpeak.Lease, now time.Time) store.Queued {
	const pause = 250 * time.Millisecond
	if l == nil || (l.Reason != offpeak.EndDeclined && l.Reason != offpeak.EndOfferLapsed) {
		return q
	}
	if at := now.Add(pause); at.After(q.NotBefore) {
		q.NotBefore = at
	}
	return q
}

// wake lets a dispatch worker look for something to match.
func (h *Hub) wake() {
	select {
	case h.wakeup <- struct{}{}:
	default:
	}
}

// changedNode notes that a node's state in the picture changed.
func (h *Hub) changedNode(id offpeak.NodeID, change func(*placement.Fleet)) {
	h.mu.Lock()
	change(h.fleet)
	h.queue.Freed(id)
	h.mu.Unlock()
	h.wrote()
	h.wake()
}

// loadUse reads what accounts used lately: what counts still, that is. What is
// leased now comes with the fleet.
func (h *Hub) loadUse(ctx context.Context) error {
	if h.cfg.Queue.HalfLife <= 0 {
		return nil
	}
	now := h.env.Now()
	const faded = 7 // half-lives: less than a hundredth counts
	used, err := h.env.Store.Used(ctx, now.Add(-faded*h.cfg.Queue.HalfLife))
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range used {
		h.queue.Used(u.Account, u.CPU, u.GPUs, u.From, u.To, now)
	}
	return nil
}

// loadFleet reads all nodes and what is leased on them.
func (h *Hub) loadFleet(ctx context.Context) error {
	for cursor := ""; ; {
		nodes, next, err := h.env.Store.Nodes(ctx, "", store.Page{Cursor: cursor, Limit: 1000})
		if err != nil {
			return err
		}
		for i := range nodes {
			n := &nodes[i]
			if n.Reserved.CPU == 0 {
				h.setNode(*n, nil) // nothing is leased on it: nothing more to read
				continue
			}
			if err := h.reload(ctx, n.ID); err != nil {
				return err
			}
		}
		if cursor = next; cursor == "" {
			return nil
		}
	}
}

// reload reads a node anew into the picture. What changes in memory while it
// reads makes it read again, so that a lease that ends meanwhile does not come
// back to life in the picture.
func (h *Hub) reload(ctx context.Context, id offpeak.NodeID) error {
	for range 5 {
		h.mu.Lock()
		version := h.fleet.Version(id)
		h.mu.Unlock()
		n, err := h.env.Store.Node(ctx, "", id)
		if errors.Is(err, offpeak.ErrNotFound) {
			h.forget(id)
			return nil
		}
		if err != nil {
			return fmt.Errorf("read node %s: %w", id, err)
		}
		_, held, err := h.env.Store.Assignments(ctx, id)
		if err != nil {
			return fmt.Errorf("read assignments of %s: %w", id, err)
		}
		h.mu.Lock()
		same := h.fleet.Version(id) == version
		h.mu.Unlock()
		if same && h.setNodeIf(n, held, version) {
			return nil
		}
	}
	// It changes faster than it can be read: the store refuses what would not
	// fit, and the next conflict reads it again.
	h.mu.Lock()
	h.stale[id] = struct{}{}
	h.mu.Unlock()
	return nil
}

func (h *Hub) setNode(n offpeak.Node, held []store.Assignment) {
	h.setNodeIf(n, held, 0)
}

// setNodeIf puts a node into the picture if that still is at version.
func (h *Hub) setNodeIf(n offpeak.Node, held []store.Assignment, version uint64) bool {
	p := h.peers.get(n.ID)
	p.loaded(&n, len(held) > 0, h.env.Now())
	now := h.env.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fleet.Version(n.ID) != version {
		return false
	}
	var holds []placement.Holding
	for i := range held {
		l := &held[i].Lease
		if l.State.Holds() {
			holds = append(holds, placement.Holding{Lease: l.ID, Resources: l.Resources})
		}
		h.live.track(l, held[i].Spec.Limits, now)
		h.live.stakes(l, &held[i].Spec.Requirements, nil)
	}
	before := slices.Collect(h.fleet.Leases(n.ID))
	h.fleet.Set(n, holds)
	h.remember(&n, now)
	h.held(n.ID, n.Quarantine)
	for i := range held {
		if q, l := n.Quarantine, &held[i].Lease; q != nil && l.State.Holds() && l.OfferedAt.After(q.Since) {
			h.fleet.Probing(n.ID, l.ID)
		}
	}
	for _, id := range before {
		if !slices.Contains(slices.Collect(h.fleet.Leases(n.ID)), id) {
			h.queue.Release(id, now)
		}
	}
	for i := range held {
		if l := &held[i].Lease; l.State.Holds() {
			h.queue.hold(l, h.queue.ends(l, held[i].Spec.Limits), now)
		}
		if l := &held[i].Lease; l.Outbid != nil && l.State.Holds() {
			h.award(l.ID, prize{Outbid: *l.Outbid, node: l.Node})
		}
	}
	h.queue.Freed(n.ID)
	return true
}

func (h *Hub) forget(id offpeak.NodeID) {
	h.mu.Lock()
	for lease := range h.fleet.Leases(id) {
		h.queue.Release(lease, h.env.Now())
	}
	h.fleet.Remove(id)
	h.past.Forget(id)
	delete(h.trials, id)
	delete(h.proven, id)
	h.queue.Gone(id)
	delete(h.stale, id)
	h.mu.Unlock()
	h.peers.remove(id)
}

// loadQueue reads the whole queue, while the hub serves already. Matching
// begins when it is whole, so that the order holds from the first claim on.
func (h *Hub) loadQueue(ctx context.Context) error {
	if _, _, err := h.readQueue(ctx); err != nil {
		return fmt.Errorf("load queue: %w", err)
	}
	close(h.loaded)
	h.wake()
	return nil
}

// readQueue adds all queued jobs of the store and returns how many were new,
// and which there are. One at a time. Nothing is matched while it reads, and it
// waits for the writes under way before and after: so what it adds is neither
// being claimed, nor will the write that queued it add it once more later.
func (h *Hub) readQueue(ctx context.Context) (added int, seen map[offpeak.JobID]struct{}, err error) {
	h.mu.Lock()
	h.queue.taken = make(map[offpeak.JobID]struct{})
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.queue.taken = nil
		h.mu.Unlock()
		h.wake()
	}()
	if err := h.writes.Wait(ctx); err != nil {
		return 0, nil, err
	}
	// Rows with equal requirements may share them: their text is made once.
	texts := make(map[*offpeak.Requirements]string)
	seen = make(map[offpeak.JobID]struct{})
	batch := make([]store.Queued, 0, 512)
	put := func() {
		asks := make([]string, len(batch))
		for i := range batch {
			text, known := texts[batch[i].Requirements]
			if !known {
				text = asksText(batch[i].Requirements)
				texts[batch[i].Requirements] = text
			}
			asks[i] = text
		}
		now := h.env.Now()
		h.mu.Lock()
		before := h.queue.size()
		for i := range batch {
			if _, left := h.queue.taken[batch[i].Job]; !left {
				h.queue.add(batch[i], asks[i], now)
			}
		}
		added += h.queue.size() - before
		h.mu.Unlock()
		batch = batch[:0]
	}
	for q, err := range h.env.Store.Queue(ctx) {
		if err != nil {
			return added, seen, err
		}
		seen[q.Job] = struct{}{}
		if batch = append(batch, q); len(batch) == cap(batch) {
			put()
		}
	}
	put()
	return added, seen, h.writes.Wait(ctx)
}

// audit compares memory with the store now and then, soon after a write of
// unknown outcome, and reads the queue again where they go on differing. It is
// what makes a lost answer of the store harmless.
func (h *Hub) audit(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-h.loaded:
	}
	// A job on its way between store and memory counts on one side only for a
	// moment, so one difference says nothing.
	const convinced = 5
	differed, by := 0, 0
	for n := 1; sleep(ctx, time.Second); n++ {
		if n%5 == 0 {
			h.mu.Lock()
			const old = 5 * time.Minute // events that take longer tell of a day gone wrong
			maps.DeleteFunc(h.over, func(_ offpeak.LeaseID, at time.Time) bool { return h.env.Now().Sub(at) > old })
			h.mu.Unlock()
		}
		doubted := h.doubt.Swap(false)
		if doubted {
			h.fundedAll() // money or a quota may be among what was not learned
		}
		if !doubted && n%30 != 1 && differed == 0 {
			continue
		}
		counts, err := h.env.Store.CountJobs(ctx, "")
		if err != nil {
			h.doubt.Store(true)
			continue
		}
		h.metrics.counted(counts)
		h.countMoney(ctx)
		h.mu.Lock()
		have := h.queue.size()
		h.mu.Unlock()
		off := counts[offpeak.JobQueued] - have
		switch {
		case off == 0:
			differed = 0
		case off != by && !h.circle.alone.Load() && n%30 > 2*convinced:
			differed = 0 // enough looks for now
		case off != by && !h.circle.alone.Load():
			// What other hubs queue and claim is on its way for longer, now more of it,
			// now less; what is lost stays the same.
			differed = 1
		default:
			differed++
		}
		by = off
		if differed == convinced {
			differed = 0
			if err := h.reconcile(ctx); err != nil {
				h.doubt.Store(true)
			}
		}
	}
	return nil
}

// reconcile makes the queue in memory what the store has.
func (h *Hub) reconcile(ctx context.Context) error {
	h.mu.Lock()
	before := slices.AppendSeq(make([]offpeak.JobID, 0, h.queue.size()), h.queue.jobs)
	h.mu.Unlock()
	added, seen, err := h.readQueue(ctx)
	if err != nil {
		return fmt.Errorf("read queue again: %w", err)
	}
	// What was missed may be money or a quota as well.
	h.fundedAll()
	removed := 0
	for _, id := range before {
		if _, there := seen[id]; there {
			continue
		}
		// It may have been claimed and queued again between the two looks.
		if j, err := h.env.Store.Job(ctx, "", id); err == nil && j.State == offpeak.JobQueued {
			continue
		}
		h.mu.Lock()
		h.queue.remove(id)
		h.mu.Unlock()
		removed++
	}
	if added+removed > 0 {
		h.env.Log.Warn("queue in memory differed from the store", "added", added, "removed", removed)
		h.wake()
	}
	return nil
}
