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
	"offpeak/placement/queue"
	"offpeak/store"
	"offpeak/wire"
)

// gang is what the picture knows of a gang with members that are queued. They are
// gathered here as news of each comes; whether they are all that have not ended the
// store says, and only then the gang stands in the queue, as one job.
type gang struct {
	members map[offpeak.JobID]store.Queued
	asks    string
	// news is the number of what was heard last: what was read before is old.
	news int
	// notBefore and lost are what claims that came to nothing left.
	notBefore time.Time
	lost      uint8
}

// gangsAtOnce is how many gangs are read in one query.
const gangsAtOnce = 128

// gangItem is the name under which a gang stands in the queue.
func gangItem(id offpeak.GroupID) offpeak.JobID { return offpeak.JobID(id) }

// gather notes a member that is queued.
func (w *waiting) gather(in store.Queued, asks string) {
	g := w.gangs[in.Gang]
	if g == nil {
		g = &gang{members: make(map[offpeak.JobID]store.Queued)}
		w.gangs[in.Gang] = g
	}
	if old, there := g.members[in.Job]; there && old.Attempt >= in.Attempt {
		return
	}
	g.members[in.Job], g.asks = in, asks
	w.heard(in.Gang, g)
}

// heard has the store asked for a gang of which something is new.
func (w *waiting) heard(id offpeak.GroupID, g *gang) {
	w.Remove(gangItem(id))
	w.news++
	g.news = w.news
	w.unread[id] = struct{}{}
}

// leaves notes that a job waits no longer, if it may be a member of a gang that is
// gathered here: also of one that was not, as where it ended while others waited.
func (w *waiting) leaves(job offpeak.JobID) bool {
	id, _, ok := job.Member()
	g := w.gangs[id]
	if !ok || g == nil {
		return false
	}
	if delete(g.members, job); len(g.members) == 0 {
		w.forgetGang(id)
		return true
	}
	w.heard(id, g)
	return true
}

func (w *waiting) forgetGang(id offpeak.GroupID) {
	w.Remove(gangItem(id))
	delete(w.gangs, id)
	delete(w.unread, id)
}

// gangOf is the gang of which a job that is queued is a member, nil of all others.
func (w *waiting) gangOf(job offpeak.JobID) (offpeak.GroupID, *gang) {
	id, _, ok := job.Member()
	if g := w.gangs[id]; ok && g != nil {
		if _, there := g.members[job]; there {
			return id, g
		}
	}
	return "", nil
}

// Item is what stands in the queue for a job: the whole gang for a member.
func (w *waiting) Item(job offpeak.JobID) *queue.Item {
	if id, g := w.gangOf(job); g != nil {
		return w.Queue.Item(gangItem(id))
	}
	return w.Queue.Item(job)
}

// Reservation is that of a job, or of its gang.
func (w *waiting) Reservation(job offpeak.JobID) *queue.Reservation {
	if id, g := w.gangOf(job); g != nil {
		job = gangItem(id)
	}
	return w.Queue.Reservation(job)
}

// older says that a job waits here with an older attempt.
func (w *waiting) older(job offpeak.JobID, attempt offpeak.Attempt) bool {
	if _, g := w.gangOf(job); g != nil {
		return g.members[job].Attempt < attempt
	}
	it := w.Queue.Item(job)
	return it != nil && it.Job().Attempt < attempt
}

// size counts the jobs that are queued, each member of a gang as one.
func (w *waiting) size() int {
	n := w.Len()
	for id, g := range w.gangs {
		if n += len(g.members); w.Queue.Item(gangItem(id)) != nil {
			n--
		}
	}
	return n
}

// jobs yields the ids of all jobs that are queued.
func (w *waiting) jobs(yield func(offpeak.JobID) bool) {
	for it := range w.Items {
		if it.Gang() == nil && !yield(it.ID()) {
			return
		}
	}
	for _, g := range w.gangs {
		for id := range g.members {
			if !yield(id) {
				return
			}
		}
	}
}

// enter puts a gang into the queue, as the store has it.
func (w *waiting) enter(id offpeak.GroupID, g *gang, list []store.Queued, now time.Time) {
	members := make(map[offpeak.JobID]store.Queued, len(list))
	fences := make(map[offpeak.NodeID]time.Time)
	j := w.job(list[0], g.asks)
	j.ID, j.Gang, j.Avoid, j.NotBefore = gangItem(id), make([]queue.Member, len(list)), nil, g.notBefore
	for i, q := range list {
		if had, there := g.members[q.Job]; there && had.Attempt == q.Attempt {
			q.NotBefore = later(had.NotBefore, q.NotBefore)
		}
		members[q.Job] = q
		j.Gang[i] = queue.Member{ID: q.Job, Attempt: q.Attempt}
		j.Attempt, j.NotBefore = max(j.Attempt, q.Attempt), later(j.NotBefore, q.NotBefore)
		j.Avoid = append(j.Avoid, q.Avoid...)
		for _, f := range w.job(q, g.asks).Fences {
			if at, there := fences[f.Node]; !there || f.Until.After(at) {
				fences[f.Node] = f.Until
			}
		}
	}
	j.Fences = nil
	for _, node := range slices.Sorted(maps.Keys(fences)) {
		j.Fences = append(j.Fences, placement.Fence{Node: node, Until: fences[node]})
	}
	slices.Sort(j.Avoid)
	j.Avoid = slices.Compact(j.Avoid)
	g.members = members
	w.repause(j, g.lost, now)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// scatter notes the members of a gang that was taken out as queued, if the store says
// so: from some moment on, zero for now.
func (w *waiting) scatter(it *queue.Item, lost uint8, notBefore time.Time) {
	j := it.Job()
	id := offpeak.GroupID(j.ID)
	for _, m := range j.Gang {
		w.gather(store.Queued{
			Job: m.ID, Attempt: m.Attempt, Account: j.Account, Priority: j.Priority, Submitted: j.Submitted, NotBefore: j.NotBefore,
			Driver: j.Driver, Requirements: j.Requirements, Policy: j.Policy, Lasts: j.Lasts - w.margin, Avoid: j.Avoid, Gang: id,
		}, j.Text)
	}
	g := w.gangs[id]
	g.lost, g.notBefore = lost, later(notBefore, g.notBefore)
}

// askForGangs has the store asked for all gangs that wait for members, in case news of
// one was missed.
func (h *Hub) askForGangs() {
	h.mu.Lock()
	waits := false
	for id := range h.queue.gangs {
		if h.queue.Queue.Item(gangItem(id)) == nil {
			h.queue.unread[id] = struct{}{}
			waits = true
		}
	}
	h.mu.Unlock()
	if waits {
		h.wake()
	}
}

// readGangs asks the store for gangs of which something is new, and puts those into
// the queue that are whole. It says whether some could not be read.
func (h *Hub) readGangs(ctx context.Context) (unread bool) {
	h.mu.Lock()
	if len(h.queue.unread) == 0 || h.queue.taken != nil {
		h.mu.Unlock()
		return false // or the queue is being read
	}
	news := make(map[offpeak.GroupID]int, len(h.queue.unread))
	for id := range h.queue.unread {
		if g := h.queue.gangs[id]; g != nil {
			news[id] = g.news
		}
	}
	clear(h.queue.unread)
	h.mu.Unlock()
	for ids := range slices.Chunk(slices.Collect(maps.Keys(news)), gangsAtOnce) {
		read, err := h.env.Store.Gangs(ctx, ids)
		h.mu.Lock()
		for _, id := range ids {
			g, now := h.queue.gangs[id], read[id]
			switch {
			case g == nil || g.news != news[id]: // it is gone, or to be read again
			case err != nil:
				h.queue.unread[id] = struct{}{}
				unread = true
			case now.Whole && h.queue.Queue.Item(gangItem(id)) == nil:
				h.queue.enter(id, g, now.Queued, h.env.Now())
			}
		}
		h.mu.Unlock()
	}
	return unread
}

// takeGang makes claims of the nodes that were found for a gang: it leaves the queue as
// a whole, and the picture holds what all its members get.
func (h *Hub) takeGang(it *queue.Item, leases []offpeak.LeaseID) []attempt {
	now, j := h.env.Now(), it.Job()
	id := offpeak.GroupID(j.ID)
	h.queue.forgetGang(id)
	out := make([]attempt, len(j.Gang))
	for i, seat := range it.Seats() {
		a := h.seat(it, &j, seat, leases[i], now)
		a.claim.Job, a.claim.Attempt, a.claim.Gang = j.Gang[i].ID, j.Gang[i].Attempt+1, id
		out[i] = a
	}
	return out
}

// members is how many claims of a batch stand and fall with this one.
func (a *attempt) members() int { return max(1, len(a.item.Gang())) }

// lostGang settles claims of a gang that the store refused, all of them.
func (h *Hub) lostGang(unit []attempt, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	it, now := unit[0].item, h.env.Now()
	for _, a := range unit {
		h.release(a.claim.Node, a.claim.Lease, now)
	}
	if errors.Is(err, offpeak.ErrQuota) || errors.Is(err, offpeak.ErrFunds) {
		id := offpeak.GroupID(it.ID())
		_, heard := h.queue.gangs[id]
		h.queue.scatter(it, 0, time.Time{})
		if heard || unit[0].funded != h.funded {
			return // it is read anew
		}
		delete(h.queue.unread, id)
		h.queue.Lack(h.queue.again(it, time.Time{}, now), err)
		return
	}
	h.metrics.conflicts.Inc()
	h.env.Log.Debug("claims of a gang lost", "gang", it.ID(), "members", len(unit), "err", err)
	for _, a := range unit {
		if errors.Is(err, store.ErrInHand) {
			h.queue.Freed(a.claim.Node)
		} else {
			h.stale[a.claim.Node] = struct{}{}
		}
	}
	h.queue.scatter(it, bump(it.Job().Lost), time.Time{})
	h.wake()
}

// mend has the members of a broken gang leave their nodes, or end.
func (h *Hub) mend(ctx context.Context, id offpeak.GroupID) (left bool, err error) {
	settling, done := h.settling(ctx)
	defer done()
	changes, more, err := h.env.Store.MendGang(settling, id)
	if err != nil {
		return true, h.failed(err)
	}
	h.apply(changes...)
	return more || len(changes) > 0, nil
}

// newLeases makes ids of leases.
func (h *Hub) newLeases(n int) ([]offpeak.LeaseID, error) {
	out := make([]offpeak.LeaseID, n)
	for i := range out {
		var err error
		if out[i], err = h.newLease(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// gangStands is what the picture says of the gang of which a queued job is a member, nil
// for none; mu is held. Needs is 0 where it is not whole.
func (h *Hub) gangStands(j *offpeak.Job) *wire.Gang {
	id, g := h.queue.gangOf(j.ID)
	if g == nil {
		return nil
	}
	out := &wire.Gang{Queued: len(g.members)}
	if h.queue.Queue.Item(gangItem(id)) != nil {
		out.Needs = out.Queued
	}
	return out
}

// gangNeeds completes it, and says how many leases a job begins with.
func (h *Hub) gangNeeds(ctx context.Context, j *offpeak.Job, gang *wire.Gang) (int, error) {
	if gang == nil {
		return 1, nil
	}
	if gang.Needs == 0 {
		g, err := h.env.Store.Group(ctx, j.Account, offpeak.GroupID(j.Group))
		if err != nil {
			return 0, err
		}
		for state, n := range g.Counts {
			if !state.Terminal() {
				gang.Needs += n
			}
		}
		gang.Queued = g.Counts[offpeak.JobQueued]
	}
	return gang.Needs, nil
}

// gangWaits says in one sentence why a gang waits, with the next step.
func gangWaits(g *wire.Gang, e *placement.Explanation, nodes, ahead int) string {
	needs := fmt.Sprintf("Its gang needs %s at once, one for each member that has not ended", count(g.Needs, "node"))
	switch {
	case g.Queued < g.Needs:
		return fmt.Sprintf("Its gang starts again as a whole: %d of its %d members that have not ended are queued, the others leave their nodes.", g.Queued, g.Needs)
	case e.Fits >= g.Needs:
		return fmt.Sprintf("%s: %d fit now and %s ahead of it: it is matched in a moment.", needs, e.Fits, count(ahead, "job"))
	case e.Could >= g.Needs:
		s := fmt.Sprintf("%s: %d fit now, %d could run one later.", needs, e.Fits, e.Could)
		if ahead > 0 {
			s += fmt.Sprintf(" %s ahead of it.", count(ahead, "job"))
		}
		return s + remedies(e, false)
	}
	return fmt.Sprintf("%s: %d fit now, and of %s only %d could ever run one as it is. Submit it with a smaller --gang, or add nodes.", needs, e.Fits, count(nodes, "node"), e.Could) + remedies(e, true)
}
