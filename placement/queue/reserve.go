package queue

import (
	"cmp"
	"slices"
	"time"

	"offpeak"
	"offpeak/placement"
)

// Reservation is a node that a job will get, and when at the latest, as far as
// time limits tell.
type Reservation struct {
	Job  offpeak.JobID
	Node offpeak.NodeID
	At   time.Time

	account *account
	at      int64
	// mates are all the nodes that a gang gets, this one among them; nil of others.
	mates []*Reservation
	// kept is what is kept free for it now, held in the fleet under the name
	// shadow: what the job needs beyond what leases give back until then.
	kept   offpeak.Resources
	shadow offpeak.LeaseID
}

// Reservation returns that of a job, nil for none.
func (q *Queue) Reservation(job offpeak.JobID) *Reservation {
	if it := q.items[job]; it != nil {
		if r := it.class.line.account.reserved; r != nil && r.Job == job {
			return r
		}
	}
	return nil
}

// Reserved says that a node is kept for a job.
func (q *Queue) Reserved(node offpeak.NodeID) bool { return q.reserved[node] != nil }

// ripen notes when the first job of a class may have a reservation.
func (q *Queue) ripen(c *class) {
	if q.cfg.ReserveAfter <= 0 || q.cfg.Places <= 0 {
		return
	}
	q.unripen(c)
	delete(q.blocked, c)
	c.due = max(c.items.top().since+q.cfg.ReserveAfter.Microseconds(), c.later)
	q.ripening.push(c)
}

// unripen takes a class out of what may have reservations.
func (q *Queue) unripen(c *class) {
	switch a := c.line.account; {
	case c.ripe == 0:
	case a.ripe.has(c):
		a.ripe.remove(c)
		q.queueUp(a)
	default:
		q.ripening.remove(c)
	}
}

// queueUp puts an account where it belongs among those that wait for a reservation.
func (q *Queue) queueUp(a *account) {
	switch waits := a.ripe.len() > 0 && a.reserved == nil; {
	case waits && a.seat == 0:
		q.turns.push(a)
	case waits:
		q.turns.fix(a)
	case a.seat > 0:
		q.turns.remove(a)
	}
}

// byTurn is the order in which accounts get reservations: who had one stands behind
// those that wait already, and so does who comes new.
type byTurn struct{}

func (byTurn) before(a, b *account) bool {
	return cmp.Or(cmp.Compare(a.turn(), b.turn()), cmp.Compare(a.id, b.id)) < 0
}
func (byTurn) seat(a *account) *int { return &a.seat }

func (a *account) turn() int64 { return max(a.had, a.ripe.top().due) }

// reserve gives reservations to accounts whose jobs waited for long, in turn: to
// the one of each that waited longest. Each is one look at all nodes.
func (q *Queue) reserve() {
	for q.ripening.len() > 0 && q.ripening.top().due <= q.now {
		c := q.ripening.top()
		q.ripening.remove(c)
		c.line.account.ripe.push(c)
		q.queueUp(c.line.account)
	}
	for q.turns.len() > 0 && len(q.reserved) < q.cfg.Places {
		a := q.turns.top()
		c := a.ripe.top()
		if c.seat == 0 || c.line.ready.has(c) {
			return // it is to be tried first
		}
		it := c.items.top()
		if q.holding == c && q.now < q.until {
			return
		}
		var r *Reservation
		hold := false
		if it.gang != nil {
			r, hold = q.together(it)
		} else {
			r = q.soonest(it)
		}
		if r != nil {
			c.pause, a.had = 0, q.now
			a.reserved = r
			q.queueUp(a)
			for _, m := range r.all() {
				q.reserved[m.Node] = m
				q.keep(m)
			}
			if r.due() <= q.now {
				q.Freed(r.Node) // it may have it at once
			}
			continue
		}
		if hold {
			q.holding, q.until = c, q.now+(10*time.Second).Microseconds()
			return // nobody gets one before it: those that are taken make room
		}
		if need := max(1, c.size); q.could(it, need) >= need {
			// Those that could are kept for others, or nobody knows when what runs there
			// ends: look again when one is kept no longer, or a little later.
			c.later = q.now + time.Minute.Microseconds()
			q.ripen(c)
			q.blocked[c] = struct{}{}
			continue
		}
		// No node can ever take it, as things are: look again after a growing pause.
		c.pause = min(max(2*c.pause, time.Minute.Microseconds()), time.Hour.Microseconds())
		c.later = q.now + c.pause
		q.ripen(c)
		return
	}
}

// could counts the nodes that would fit a job if they were idle, to at most n.
func (q *Queue) could(it *Item, n int) (found int) {
	for o := range q.fleet.Offers() {
		if o.Ready && it.fitsIdle(o) {
			if found++; found == n {
				break
			}
		}
	}
	return found
}

// soonest is the node that can take a job first, once leases there have reached
// their time limits; nil for none.
func (q *Queue) soonest(it *Item) (best *Reservation) {
	var leases []ending
	for o, held := range q.fleet.Offers() {
		if !o.Ready || q.reserved[o.Node] != nil || !it.fitsIdle(o) {
			continue
		}
		leases = leases[:0]
		for id, res := range held {
			leases = append(leases, ending{q.ends(id), res})
		}
		r := q.on(it, o, leases)
		if r != nil && (best == nil || cmp.Or(cmp.Compare(r.at, best.at), cmp.Compare(r.Node, best.Node)) < 0) {
			best = r
		}
	}
	return best
}

// fitsIdle says whether an offer would fit if nothing were leased there.
func (it *Item) fitsIdle(o *offpeak.Offer) bool {
	k := it.class.kind
	idle := *o
	idle.Free, idle.FreeDevices = o.Capacity, o.Devices
	return k.fits.Fits(it.class.line.account.id, k.key.driver, &idle)
}

// ending is a lease's resources and when it gives them back at the latest.
type ending struct {
	at        int64
	resources offpeak.Resources
}

// never is when a lease ends of which nobody knows when.
const never = 1<<63 - 1

func (q *Queue) ends(lease offpeak.LeaseID) int64 {
	h, known := q.leases[lease]
	if !known || h.ends == 0 {
		return never
	}
	// One that is over its time is about to be stopped.
	const about = 30 * 1e6
	if h.ends < q.now {
		return q.now + about
	}
	return h.ends
}

// on is the reservation that a job could have on a node; nil where it does not
// fit it even when all has ended that ends.
func (q *Queue) on(it *Item, o *offpeak.Offer, leases []ending) *Reservation {
	k, account := it.class.kind, it.class.line.account
	if !it.fitsIdle(o) {
		return nil
	}
	slices.SortFunc(leases, func(a, b ending) int { return cmp.Compare(a.at, b.at) })
	at, then, back := max(q.now, it.fencedUntil(o.Node)), *o, offpeak.Resources{}
	for i := 0; !k.fits.Fits(account.id, k.key.driver, &then); i++ {
		if i == len(leases) || leases[i].at == never {
			return nil
		}
		at = max(at, leases[i].at)
		then = with(&then, leases[i].resources)
		back = sum(back, leases[i].resources)
	}
	need, ok := k.fits.Assign(then)
	if !ok {
		return nil
	}
	r := &Reservation{Job: it.id, Node: o.Node, At: time.UnixMicro(at), account: account, at: at, shadow: "reserved-" + offpeak.LeaseID(it.id)}
	r.kept = offpeak.Resources{CPU: max(0, need.CPU-back.CPU), Memory: max(0, need.Memory-back.Memory), Disk: max(0, need.Disk-back.Disk)}
	for _, d := range need.Devices {
		if slices.Contains(o.Free.Devices, d) {
			r.kept.Devices = append(r.kept.Devices, d)
		}
	}
	return r
}

// with is an offer with more of it free.
func with(o *offpeak.Offer, r offpeak.Resources) offpeak.Offer {
	out := *o
	out.Free = sum(o.Free, r)
	if len(r.Devices) > 0 {
		out.FreeDevices = slices.Clone(o.FreeDevices)
		for _, d := range o.Devices {
			if slices.Contains(r.Devices, d.ID) {
				out.FreeDevices = append(out.FreeDevices, d)
			}
		}
	}
	return out
}

func sum(a, b offpeak.Resources) offpeak.Resources {
	a.CPU, a.Memory, a.Disk = a.CPU+b.CPU, a.Memory+b.Memory, a.Disk+b.Disk
	a.Devices = slices.Concat(a.Devices, b.Devices)
	return a
}

// keep holds in the fleet what a reservation keeps free.
func (q *Queue) keep(r *Reservation) {
	if r.kept.CPU > 0 || r.kept.Memory > 0 || r.kept.Disk > 0 || len(r.kept.Devices) > 0 {
		q.fleet.Reserve(r.Node, r.shadow, r.kept)
	}
}

// let gives it free.
func (q *Queue) let(r *Reservation) {
	q.fleet.Release(r.Node, r.shadow)
	r.kept = offpeak.Resources{}
}

// unreserve ends a reservation, taken or not.
func (q *Queue) unreserve(r *Reservation) {
	for _, m := range r.all() {
		q.let(m)
		delete(q.reserved, m.Node)
		q.Freed(m.Node)
	}
	r.account.reserved, q.holding = nil, nil
	q.queueUp(r.account)
	for c := range q.blocked {
		delete(q.blocked, c)
		c.later = 0
		if c.items.len() > 0 && c.lacks == nil {
			q.ripen(c)
		}
	}
}

// arrived is a job whose reserved node can take it now. The reservations of other
// nodes that changed are made anew.
func (q *Queue) arrived() (*Item, placement.Candidate, bool) {
	if len(q.reserved) == 0 {
		return nil, placement.Candidate{}, false
	}
	for id := range q.freed {
		r := q.reserved[id]
		if r == nil {
			continue
		}
		if r.mates != nil {
			if it, best, ok := q.gathered(r); ok {
				return it, best, true
			}
			continue
		}
		q.let(r)
		it := q.items[r.Job]
		if it == nil || it.paused {
			q.unreserve(r)
			continue
		}
		if best, ok := q.fleet.Candidate(q.Placement(it), id); ok {
			return it, best, true
		}
		o, there := q.fleet.Offer(id)
		var leases []ending
		for lease := range q.fleet.Leases(id) {
			leases = append(leases, ending{q.ends(lease), q.leases[lease].resources})
		}
		if next := q.on(it, &o, leases); there && o.Ready && next != nil {
			*r = *next
			q.keep(r)
		} else {
			q.unreserve(r)
		}
	}
	return nil, placement.Candidate{}, false
}

// between is a reserved node that a job may have all the same: it is over before
// the reservation is due.
func (q *Queue) between(it *Item) (best placement.Candidate, found bool) {
	if it.gang != nil {
		return best, false // it would take several from several
	}
	for id, r := range q.reserved {
		if !q.mayHave(it.class.kind, id) {
			continue
		}
		kept := r.kept
		q.let(r)
		c, ok := q.fleet.Candidate(q.Placement(it), id)
		if ok && (!found || cmp.Or(cmp.Compare(c.Price, best.Price), cmp.Compare(best.Score, c.Score), cmp.Compare(c.Node, best.Node)) < 0) {
			best, found = c, true
		}
		r.kept = kept
		q.keep(r)
	}
	if found {
		q.let(q.reserved[best.Node]) // made anew by the next pass
		q.Freed(best.Node)
	}
	return best, found
}

// mayHave says that a reserved node serves jobs of a kind, which end before the
// reservation is due.
func (q *Queue) mayHave(k *kind, node offpeak.NodeID) bool {
	r := q.reserved[node]
	if r == nil || q.now+k.key.lasts.Microseconds() > r.due() {
		return false
	}
	o, ok := q.fleet.Offer(node)
	if !ok {
		return false
	}
	o = with(&o, r.kept)
	return serves(k.fits, k.key.driver, &o)
}
