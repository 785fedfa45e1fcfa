package queue

import (
	"time"

	"offpeak"
	"offpeak/placement"
)

// mostNodes is the most nodes for whose sake a kind is opened; for more, each of
// its classes is tried on all.
const mostNodes = 16

// Freed notes that something of a node changed that may let a job go on.
func (q *Queue) Freed(node offpeak.NodeID) { q.freed[node] = struct{}{} }

// Gone notes that a node has left the fleet.
func (q *Queue) Gone(node offpeak.NodeID) {
	delete(q.freed, node)
	if r := q.reserved[node]; r != nil {
		q.unreserve(r)
	}
}

// Next is the first job in order that fits a node as the fleet stands, with the
// best one. Those before it that fit none are parked, and get a reservation if
// they waited for long. The caller takes the job out and holds the resources.
func (q *Queue) Next(now time.Time) (*Item, placement.Candidate, bool) {
	q.tick(now)
	q.reserve()
	it, best, ok := q.first()
	if !ok {
		q.reserve()
	}
	return it, best, ok
}

// First is Next on a fleet as it may come to be: it reserves nothing.
func (q *Queue) First(now time.Time) (*Item, placement.Candidate, bool) {
	q.tick(now)
	return q.first()
}

func (q *Queue) first() (*Item, placement.Candidate, bool) {
	if it, best, ok := q.arrived(); ok {
		return it, best, true
	}
	q.stir()
	for q.front.len() > 0 {
		c := q.front.top().ready.top()
		if s := q.standing(c.account); c.standing < s {
			c.standing = s
			q.reseat(c)
			continue
		}
		k := c.kind
		if k.nodes != nil && !q.servesAny(k) {
			q.shut(k)
			continue
		}
		it := c.items.top()
		if best, ok := q.fleet.Best(it.Placement()); ok {
			return it, best, true
		}
		if best, ok := q.between(it); ok {
			return it, best, true
		}
		q.park(c)
	}
	return nil, placement.Candidate{}, false
}

// stir opens the kinds that a node which changed may serve now.
func (q *Queue) stir() {
	if len(q.freed) == 0 {
		return
	}
	if q.parked > 0 {
		offers := make([]offpeak.Offer, 0, len(q.freed))
		for id := range q.freed {
			if o, ok := q.fleet.Offer(id); ok && o.Ready {
				offers = append(offers, o)
			}
		}
		for _, s := range q.shelves {
			if len(s.kinds) > 0 {
				q.stirShelf(s, offers)
			}
		}
	}
	clear(q.freed)
}

func (q *Queue) stirShelf(s *shelf, offers []offpeak.Offer) {
	for i := range offers {
		// Those before the first that serves the shelf at all serve nothing here.
		if !q.reached(s, &offers[i]) {
			continue
		}
		for k := range s.kinds {
			var nodes []offpeak.NodeID
			for j := i; j < len(offers) && len(nodes) <= mostNodes; j++ {
				if q.serves(k, &offers[j]) {
					nodes = append(nodes, offers[j].Node)
				}
			}
			switch {
			case len(nodes) > mostNodes:
				q.open(k, nil)
			case len(nodes) > 0:
				q.open(k, nodes)
			}
		}
		return
	}
}

func (q *Queue) reached(s *shelf, o *offpeak.Offer) bool {
	if r := q.reserved[o.Node]; r != nil {
		whole := with(o, r.kept)
		o = &whole
	}
	return serves(s.floor, s.key.driver, o)
}

// serves says whether a node may serve jobs of a kind now, as far as the kind
// tells.
func (q *Queue) serves(k *kind, o *offpeak.Offer) bool {
	return serves(k.fits, k.key.driver, o) || q.mayHave(k, o.Node)
}

// serves says whether an offer may serve a job of some account: its owner's, to
// whom nothing is refused that others get.
func serves(r *offpeak.Requirements, driver string, o *offpeak.Offer) bool {
	return r.Fits(o.Account, driver, o)
}

// servesAny says whether one of the nodes for whose sake a kind was opened still
// serves it.
func (q *Queue) servesAny(k *kind) bool {
	for _, id := range k.nodes {
		if o, ok := q.fleet.Offer(id); ok && q.serves(k, &o) {
			return true
		}
	}
	return false
}
