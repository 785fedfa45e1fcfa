package queue

import (
	"cmp"
	"slices"

	"offpeak/placement"
)

// gang is what an item has where it is one.
type gang struct {
	members []Member
	// seats are the nodes that it was found last, one for each member.
	seats []placement.Candidate
}

// Gang are the members of a gang; nil of a job of its own.
func (it *Item) Gang() []Member {
	if it.gang == nil {
		return nil
	}
	return it.gang.members
}

// Seats are the nodes that Next found for a gang: those for its members, in order. The
// caller holds all of them, or none.
func (it *Item) Seats() []placement.Candidate {
	if it.gang == nil {
		return nil
	}
	return it.gang.seats
}

// seat finds nodes for all of a gang, the best there are, also among those that are
// reserved for it. Where there are enough it is one look at all nodes.
func (q *Queue) seat(it *Item) (placement.Candidate, bool) {
	mine, c, need := q.Reservation(it.id), it.class, len(it.gang.members)
	if mine == nil && q.changes < c.at {
		return placement.Candidate{}, false
	}
	kept := make([]Reservation, 0, len(mine.all()))
	for _, m := range mine.all() {
		kept = append(kept, *m)
		q.let(m)
	}
	fits := q.fleet.Fits(q.Placement(it), need)
	if fits >= need {
		all := q.fleet.Rank(q.Placement(it))
		it.gang.seats = all[:need:need]
		for _, m := range mine.all() {
			q.Freed(m.Node) // if it is not taken after all, the next pass keeps it anew
		}
		return all[0], true
	}
	c.at = q.changes + uint64(need-fits)
	for i, m := range mine.all() {
		m.kept = kept[i].kept
		q.keep(m)
	}
	return placement.Candidate{}, false
}

// all are the nodes of a reservation, each by itself.
func (r *Reservation) all() []*Reservation {
	switch {
	case r == nil:
		return nil
	case r.mates == nil:
		return []*Reservation{r}
	}
	return r.mates
}

// Nodes counts the nodes that are kept.
func (r *Reservation) Nodes() int { return len(r.all()) }

// due is when all of its nodes are free for it at the latest.
func (r *Reservation) due() int64 {
	at := r.at
	for _, m := range r.mates {
		at = max(at, m.at)
	}
	return at
}

// together is the reservation that a gang could have now: the nodes that can take its
// members first. All of them are found in one look, and kept at once: so no two gangs
// ever keep a part each of what both need. hold says that it could have one if nodes were
// not kept for others. Where it needs more nodes than there are places it has them alone.
func (q *Queue) together(it *Item) (r *Reservation, hold bool) {
	var mates []*Reservation
	var leases []ending
	taken, need := 0, it.class.size
	for o, held := range q.fleet.Offers() {
		switch {
		case !o.Ready || !it.fitsIdle(o):
			continue
		case q.reserved[o.Node] != nil:
			taken++
			continue
		}
		leases = leases[:0]
		for id, res := range held {
			leases = append(leases, ending{q.ends(id), res})
		}
		if r := q.on(it, o, leases); r != nil {
			mates = append(mates, r)
		}
	}
	if len(mates) < need || len(q.reserved) > 0 && len(q.reserved)+need > q.cfg.Places {
		return nil, len(mates)+taken >= need
	}
	slices.SortFunc(mates, func(a, b *Reservation) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.Node, b.Node)) })
	mates = slices.Clip(mates[:need])
	for _, m := range mates {
		m.mates, m.At = mates, mates[need-1].At
	}
	return mates[0], false
}

// gathered is a gang of whose reserved nodes one changed, if it can have all its nodes
// now. If not, what is kept there is made anew.
func (q *Queue) gathered(r *Reservation) (*Item, placement.Candidate, bool) {
	it := q.items[r.Job]
	if it == nil || it.paused {
		q.unreserve(r)
		return nil, placement.Candidate{}, false
	}
	if best, ok := q.seat(it); ok {
		return it, best, true
	}
	for _, m := range r.mates {
		q.let(m)
		o, there := q.fleet.Offer(m.Node)
		var leases []ending
		for lease := range q.fleet.Leases(m.Node) {
			leases = append(leases, ending{q.ends(lease), q.leases[lease].resources})
		}
		next := q.on(it, &o, leases)
		if !there || !o.Ready || next == nil {
			q.unreserve(r)
			return nil, placement.Candidate{}, false
		}
		next.mates = r.mates
		*m = *next
		q.keep(m)
	}
	last := slices.MaxFunc(r.mates, func(a, b *Reservation) int { return cmp.Compare(a.at, b.at) }).At
	for _, m := range r.mates {
		m.At = last
	}
	return nil, placement.Candidate{}, false
}
