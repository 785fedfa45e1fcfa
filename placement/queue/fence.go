package queue

import (
	"slices"
	"strings"

	"offpeak"
	"offpeak/placement"
)

// Jobs that fences keep off the same nodes are of one class: where the first of them
// fits no node, none does, as of all classes. When a fence ends, its job joins the
// class that it belongs to then.

// fenced is a job of which a fence ends at some moment. Where the job has left the
// queue meanwhile it stays until then, which is soon.
type fenced struct {
	item *Item
	at   int64
	seat int
}

type byFence struct{}

func (byFence) before(a, b *fenced) bool { return a.at < b.at }
func (byFence) seat(f *fenced) *int      { return &f.seat }

// fencesAt names the nodes of the fences that stand at a moment, in their order.
func fencesAt(fences []placement.Fence, now int64) string {
	if len(fences) == 0 {
		return ""
	}
	var nodes []string
	for i := range fences {
		if f := &fences[i]; micro(f.Until) > now {
			nodes = append(nodes, string(f.Node))
		}
	}
	slices.Sort(nodes)
	return strings.Join(slices.Compact(nodes), " ")
}

// fencedUntil is until when a job is kept off a node, 0 where it is not.
func (it *Item) fencedUntil(node offpeak.NodeID) (until int64) {
	if it.past != nil {
		for i := range it.past.fences {
			if f := &it.past.fences[i]; f.Node == node {
				until = max(until, micro(f.Until))
			}
		}
	}
	return until
}

// classify puts an item that is in no heap into the class of the fences that stand
// now, and has it looked at again when the next of them ends.
func (q *Queue) classify(it *Item) {
	next := int64(never)
	for i := range it.past.fences {
		if at := micro(it.past.fences[i].Until); at > q.now {
			next = min(next, at)
		}
	}
	if next != never {
		q.fences.push(&fenced{item: it, at: next})
	}
	was := it.class
	if was.fenced == fencesAt(it.past.fences, q.now) {
		return
	}
	j := it.Job()
	it.class = q.class(&j)
	it.class.refs++
	was.refs--
	q.moved(was)
}

// unfence lets jobs be tried again of which a fence has ended, and returns when the
// next one ends.
func (q *Queue) unfence() (next int64) {
	for q.fences.len() > 0 {
		f := q.fences.top()
		if f.at > q.now {
			return f.at
		}
		q.fences.remove(f)
		it := f.item
		if q.items[it.id] != it || it.paused {
			continue // it is gone, or is looked at when its pause is over
		}
		it.class.items.remove(it)
		q.place(it, q.now)
		// What is reserved for it may be its own at once.
		if r := q.Reservation(it.id); r != nil {
			for _, m := range r.all() {
				q.Freed(m.Node)
			}
		}
	}
	return never
}
