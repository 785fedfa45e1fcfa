package queue

import (
	"slices"
	"time"

	"offpeak"
	"offpeak/placement"
)

// mostNodes is the most nodes for whose sake a shelf is open; for more, all that
// stands there is tried anew.
const mostNodes = 64

// Freed notes that something of a node changed that may let a job go on.
func (q *Queue) Freed(node offpeak.NodeID) {
	q.freed[node] = struct{}{}
	q.changes++
}

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
	for {
		c, s := q.head()
		if c == nil {
			return nil, placement.Candidate{}, false
		}
		it := c.items.top()
		if best, ok := q.best(it, s); ok {
			return it, best, true
		}
		if best, ok := q.between(it); ok {
			return it, best, true
		}
		if s == nil {
			q.park(c)
		} else {
			q.setAside(s, c)
		}
	}
}

// best is the best node for a job; one from an open shelf fits none but those for
// whose sake it is open.
func (q *Queue) best(it *Item, s *shelf) (placement.Candidate, bool) {
	if it.gang != nil {
		return q.seat(it)
	}
	if s != nil && len(s.nodes) == 1 {
		return q.fleet.Candidate(q.Placement(it), s.nodes[0])
	}
	return q.fleet.Best(q.Placement(it))
}

// head is the first class in order that is to be tried: one that was not yet, or one
// from an open shelf.
func (q *Queue) head() (first *class, from *shelf) {
	for first == nil && q.front.len() > 0 {
		if l := q.front.top(); q.current(l) {
			first = l.ready.top()
		}
	}
	for i := 0; i < len(q.open); {
		s := q.open[i]
		c := q.headOf(s)
		if c == nil {
			q.open = slices.Delete(q.open, i, i+1)
			q.close(s)
			continue
		}
		if first == nil || c.before(first) {
			first, from = c, s
		}
		i++
	}
	return first, from
}

// current says whether a line stands where its account does; if not, it is moved.
func (q *Queue) current(l *line) bool {
	s := q.standing(l.account)
	if l.standing >= s {
		return true
	}
	l.standing = s
	q.show(l)
	return false
}

// headOf is the first class of a shelf that one of its nodes may serve; nil: none.
func (q *Queue) headOf(s *shelf) *class {
	for len(s.nodes) > 0 {
		if o := q.fleet.Peek(s.nodes[0]); o != nil && q.reached(s, o) {
			break
		}
		s.nodes = s.nodes[1:] // used up
	}
	for len(s.nodes) > 0 && s.parked.len() > 0 {
		l := s.parked.top()
		c := l.parked.top()
		switch {
		case !q.current(l):
		case q.servesAny(c.kind, s.nodes):
			return c
		default:
			q.setAside(s, c)
		}
	}
	return nil
}

// setAside takes a class from its open shelf for as long as that is open: its nodes
// serve others there, but not this one.
func (q *Queue) setAside(s *shelf, c *class) {
	c.line.parked.remove(c)
	q.parked--
	q.show(c.line)
	s.aside = append(s.aside, c)
}

// close puts back what was set aside while a shelf was open.
func (q *Queue) close(s *shelf) {
	s.nodes = nil
	for _, c := range s.aside {
		if c.seat == 0 && c.items.len() > 0 && c.lacks == nil {
			c.line.parked.push(c)
			q.parked++
			q.show(c.line)
		}
	}
	s.aside = nil
}

// stir opens the shelves that a node which changed may serve now.
func (q *Queue) stir() {
	if len(q.freed) == 0 {
		return
	}
	offers := make([]offpeak.Offer, 0, len(q.freed))
	for id := range q.freed {
		if o, ok := q.fleet.Offer(id); ok && o.Ready {
			offers = append(offers, o)
		}
	}
	clear(q.freed)
	if len(offers) == 0 {
		return
	}
	for _, s := range q.shelves {
		if s.parked.len() == 0 && len(s.nodes) == 0 {
			continue
		}
		nodes := slices.Clone(s.nodes)
		for i := range offers {
			if q.reached(s, &offers[i]) && !slices.Contains(nodes, offers[i].Node) {
				if nodes = append(nodes, offers[i].Node); len(nodes) > mostNodes {
					break
				}
			}
		}
		switch open := len(s.nodes) > 0; {
		case len(nodes) == 0:
		case len(nodes) > mostNodes:
			if open {
				q.open = slices.DeleteFunc(q.open, func(o *shelf) bool { return o == s })
				q.close(s)
			}
			q.ready(s)
		default:
			if open {
				q.close(s) // what was set aside may fit now
			} else {
				q.open = append(q.open, s)
			}
			s.nodes = nodes
		}
	}
}

// ready has all of a shelf tried anew.
func (q *Queue) ready(s *shelf) {
	for s.parked.len() > 0 {
		l := s.parked.top()
		q.parked -= l.parked.len()
		l.ready, l.parked = merged(l.parked, l.ready), heap[*class, byFirst]{}
		q.show(l)
	}
}

// merged joins two heaps, at the cost of the smaller.
func merged(a, b heap[*class, byFirst]) heap[*class, byFirst] {
	if a.len() < b.len() {
		a, b = b, a
	}
	for _, c := range b.list {
		a.push(c)
	}
	return a
}

// reached says whether a node serves what all of a shelf need at least.
func (q *Queue) reached(s *shelf, o *offpeak.Offer) bool {
	if r := q.reserved[o.Node]; r != nil {
		whole := with(o, r.kept)
		o = &whole
	}
	return serves(s.floor, s.key.driver, o)
}

// serves says whether an offer may serve a job of some account: its owner's, to
// whom nothing is refused that others get.
func serves(r *offpeak.Requirements, driver string, o *offpeak.Offer) bool {
	return r.Fits(o.Account, driver, o)
}

// servesAny says whether one of the nodes may serve jobs of a kind now, as far as
// the kind tells.
func (q *Queue) servesAny(k *kind, nodes []offpeak.NodeID) bool {
	for _, id := range nodes {
		if o := q.fleet.Peek(id); o != nil && (serves(k.fits, k.key.driver, o) || q.mayHave(k, id)) {
			return true
		}
	}
	return false
}
