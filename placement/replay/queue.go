package replay

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"slices"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/queue"
)

// Queue is the order in which waiting jobs are matched, over the fleet that it was
// made for.
type Queue interface {
	// Add has a job wait.
	Add(w *Waiting, now time.Time)
	// Remove takes a job out that is gone.
	Remove(w *Waiting)
	// Freed says that a node may take work that it could not take before.
	Freed(node offpeak.NodeID)
	// Next takes the job out that is to be placed next, with the node that it gets;
	// nil where none that waits fits a node.
	Next(now time.Time) (*Waiting, placement.Candidate)
	// Refused puts a job back that Next took, for what its account or its array lacks:
	// ErrTurn where it is the array's turn. It waits until Enough says that something
	// of this changed.
	Refused(w *Waiting, why error, now time.Time)
	// Enough lets the jobs of an account be tried again that were refused; group is the
	// array with a limit of which a member ended, "" for none.
	Enough(account offpeak.AccountID, group offpeak.GroupID)
	// Hold says that a lease began, which its time limit ends at until at the latest,
	// and Release that it ended: for orders that count who uses how much. room is how
	// many more members of the job's array may go, if that has a limit.
	Hold(w *Waiting, lease offpeak.LeaseID, c *placement.Candidate, room int, until, now time.Time)
	Release(lease offpeak.LeaseID, now time.Time)
}

// ErrTurn says that as many members of an array hold leases as may at once.
var ErrTurn = queue.ErrTurn

// Waiting is a job in the queue.
type Waiting struct {
	placement.Job
	Priority int
	// Since is when it was submitted, in microseconds.
	Since int64
	// Class is the same for jobs that ask for the same thing, Text what they ask for.
	Class int
	Text  string
	// Lasts is for how long an attempt may hold a node.
	Lasts time.Duration
	// Group is the array of which at most AtOnce members may hold leases at once.
	Group  offpeak.GroupID
	AtOnce int

	index int
	class *class
	turn  queue.Turn
}

// ByAge is the plain order: priority, then first submitted. Jobs of one class
// are parked together where no node fits the first of them.
func ByAge(fleet *placement.Fleet) Queue {
	return &byAge{fleet: fleet, classes: make(map[int]*class), refused: make(map[offpeak.AccountID][]*Waiting)}
}

type byAge struct {
	fleet   *placement.Fleet
	classes map[int]*class
	ready   classHeap
	parked  []*class
	freed   []offpeak.NodeID
	refused map[offpeak.AccountID][]*Waiting
}

func (q *byAge) Add(w *Waiting, _ time.Time) { q.add(w) }

func (q *byAge) Remove(w *Waiting) {
	if i := slices.Index(q.refused[w.Account], w); i >= 0 {
		q.refused[w.Account] = slices.Delete(q.refused[w.Account], i, i+1)
		return
	}
	q.remove(w)
}

func (q *byAge) Refused(w *Waiting, _ error, _ time.Time) {
	q.refused[w.Account] = append(q.refused[w.Account], w)
}

func (q *byAge) Enough(account offpeak.AccountID, _ offpeak.GroupID) {
	for _, w := range q.refused[account] {
		q.add(w)
	}
	delete(q.refused, account)
}

func (q *byAge) Freed(node offpeak.NodeID) { q.freed = append(q.freed, node) }

func (q *byAge) Hold(*Waiting, offpeak.LeaseID, *placement.Candidate, int, time.Time, time.Time) {}
func (q *byAge) Release(offpeak.LeaseID, time.Time)                                              {}

func (q *byAge) Next(time.Time) (*Waiting, placement.Candidate) {
	if len(q.freed) > 0 {
		slices.Sort(q.freed)
		q.freed = slices.Compact(q.freed)
		q.wake(func(w *Waiting) bool {
			return slices.ContainsFunc(q.freed, func(id offpeak.NodeID) bool { return q.fleet.MayFit(w.Job, id) })
		})
		q.freed = q.freed[:0]
	}
	for w := q.first(); w != nil; w = q.first() {
		if best, ok := q.fleet.Best(w.Job); ok {
			q.remove(w)
			return w, best
		}
		q.park(w)
	}
	return nil, placement.Candidate{}
}

type class struct {
	items itemHeap
	// index is the place in ready, −1 while parked or empty.
	index  int
	parked bool
}

func (q *byAge) add(w *Waiting) {
	c := q.classes[w.Class]
	if c == nil {
		c = &class{index: -1}
		q.classes[w.Class] = c
	}
	w.class = c
	heap.Push(&c.items, w)
	switch {
	case c.index >= 0:
		heap.Fix(&q.ready, c.index)
	case !c.parked:
		heap.Push(&q.ready, c)
	}
}

func (q *byAge) first() *Waiting {
	if len(q.ready) == 0 {
		return nil
	}
	return q.ready[0].items[0]
}

func (q *byAge) remove(w *Waiting) {
	c := w.class
	heap.Remove(&c.items, w.index)
	switch {
	case c.index < 0:
	case len(c.items) > 0:
		heap.Fix(&q.ready, c.index)
	default:
		heap.Remove(&q.ready, c.index)
	}
}

func (q *byAge) park(w *Waiting) {
	c := w.class
	if c.index >= 0 {
		heap.Remove(&q.ready, c.index)
	}
	if !c.parked {
		c.parked = true
		q.parked = append(q.parked, c)
	}
}

func (q *byAge) wake(may func(w *Waiting) bool) {
	still := q.parked[:0]
	for _, c := range q.parked {
		switch {
		case len(c.items) == 0:
			c.parked = false
		case may(c.items[0]):
			c.parked = false
			heap.Push(&q.ready, c)
		default:
			still = append(still, c)
		}
	}
	clear(q.parked[len(still):])
	q.parked = still
}

func (w *Waiting) before(other *Waiting) bool {
	return cmp.Or(
		cmp.Compare(other.Priority, w.Priority),
		cmp.Compare(w.Since, other.Since),
		cmp.Compare(w.ID, other.ID),
	) < 0
}

type itemHeap []*Waiting

func (h itemHeap) Len() int           { return len(h) }
func (h itemHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h itemHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *itemHeap) Push(x any)        { w := x.(*Waiting); w.index = len(*h); *h = append(*h, w) }
func (h *itemHeap) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return w
}

type classHeap []*class

func (h classHeap) Len() int           { return len(h) }
func (h classHeap) Less(i, j int) bool { return h[i].items[0].before(h[j].items[0]) }
func (h classHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *classHeap) Push(x any)        { c := x.(*class); c.index = len(*h); *h = append(*h, c) }
func (h *classHeap) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	c.index = -1
	return c
}

// classKey is what makes two jobs alike for matching.
type classKey struct {
	account offpeak.AccountID
	driver  string
	policy  placement.Policy
	asks    string
	// group is set where that has a limit of its own.
	group offpeak.GroupID
}

func keyOf(j *Job) classKey {
	asks, err := json.Marshal(&j.Requirements)
	if err != nil {
		panic("replay: requirements have no JSON: " + err.Error())
	}
	return classKey{j.Account, j.Driver, j.Policy, string(asks), j.limited()}
}
