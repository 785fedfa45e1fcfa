package past

import (
	"time"

	"offpeak"
)

// Book is the pasts of a fleet. The zero value is an empty one.
type Book struct {
	byID map[offpeak.NodeID]*Node
}

// Of returns a node's past, nil where it is not in the book.
func (b *Book) Of(id offpeak.NodeID) *Node { return b.byID[id] }

// Open begins a node's past, unless there is one: as it stands, and has stood since a
// moment.
func (b *Book) Open(id offpeak.NodeID, a offpeak.Availability, l offpeak.Liveness, since time.Time) *Node {
	p := b.byID[id]
	if p == nil {
		if b.byID == nil {
			b.byID = make(map[offpeak.NodeID]*Node)
		}
		p = &Node{}
		p.Heard(l, since)
		p.Says(a, since)
		b.byID[id] = p
	}
	return p
}

// Forget takes a node out.
func (b *Book) Forget(id offpeak.NodeID) { delete(b.byID, id) }

// Nodes lists who is in the book, in no order.
func (b *Book) Nodes() []offpeak.NodeID {
	out := make([]offpeak.NodeID, 0, len(b.byID))
	for id := range b.byID {
		out = append(out, id)
	}
	return out
}
