package hub

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"errors"
	"math"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/placement"
	"offpeak/store"
)

// queue is the picture of all queued jobs. Jobs that ask for the same thing
// share a class: where the first of a class finds no node, none does, so the
// whole class is parked until a node changes. Its owner holds a lock.
type queue struct {
	items   map[offpeak.JobID]*item
	classes map[classKey]*class
	ready   classHeap
	paused  pauseHeap
	parked  map[*class]struct{}
	// taken notes who leaves while the store's queue is read, nil otherwise:
	// what was read of them is old. Nothing is matched meanwhile.
	taken map[offpeak.JobID]struct{}
	// effective returns what offers are held against.
	effective func(offpeak.Requirements) offpeak.Requirements
}

// classKey is what makes two jobs alike for matching. The requirements' JSON
// is canonical: fields in order, map keys sorted.
type classKey struct {
	account offpeak.AccountID
	driver  string
	asks    string
}

type class struct {
	key  classKey
	asks *offpeak.Requirements
	// fits are asks as offers are held against them: with the highest ask that the
	// job can take.
	fits  *offpeak.Requirements
	items itemHeap
	// index is the place in queue.ready, −1 while parked or empty.
	index int
	// lacks says what of its account's it is parked for; "" while it waits for a
	// node. funds is what was missing where that is funds.
	lacks lack
	funds *ledger.FundsError
}

// lack is what an account has too little of for its jobs.
type lack string

const (
	// lackLeases: it has all the leases that its quota allows.
	lackLeases lack = "leases"
	// lackFunds: its balance, or the job's budget, does not cover the first interval.
	lackFunds lack = "funds"
)

// item is one queued job in as few bytes as matching needs.
type item struct {
	job      offpeak.JobID
	class    *class
	avoid    []offpeak.NodeID
	since    int64 // submitted, microseconds
	until    int64 // not before, microseconds; 0: now
	attempt  offpeak.Attempt
	index    int // in class.items or, while paused, in queue.paused
	priority int16
	// lost counts claims in a row that lost a race.
	lost   uint8
	paused bool
}

func newQueue(effective func(offpeak.Requirements) offpeak.Requirements) queue {
	return queue{
		effective: effective,
		items:     make(map[offpeak.JobID]*item),
		classes:   make(map[classKey]*class),
		parked:    make(map[*class]struct{}),
	}
}

func (it *item) placement() placement.Job {
	return placement.Job{
		ID: it.job, Account: it.class.key.account, Attempt: it.attempt + 1,
		Driver: it.class.key.driver, Requirements: it.class.fits, Class: it.class.key.asks, Avoid: it.avoid,
	}
}

// asksText is the canonical text of requirements.
func asksText(r *offpeak.Requirements) string {
	data, err := json.Marshal(r)
	if err != nil {
		// Requirements hold strings, numbers and maps of strings only.
		panic("hub: requirements have no JSON: " + err.Error())
	}
	return string(data)
}

// queued is what matching needs of a job that is queued.
func queued(j *offpeak.Job) store.Queued {
	q := store.Queued{
		Job: j.ID, Account: j.Account, Attempt: j.Attempt, Priority: j.Spec.Priority,
		Submitted: j.SubmittedAt, Driver: j.Spec.Task.Driver, Requirements: &j.Spec.Requirements,
	}
	if j.NotBefore != nil {
		q.NotBefore = *j.NotBefore
	}
	return q
}

// add queues a job. One that is there with the same or a newer attempt stays
// as it is.
func (q *queue) add(in store.Queued, asks string, now time.Time) *item {
	if old := q.items[in.Job]; old != nil {
		if old.attempt >= in.Attempt {
			return old
		}
		q.remove(in.Job)
	}
	key := classKey{in.Account, in.Driver, asks}
	c := q.classes[key]
	if c == nil {
		// The key is kept as long as the class: the id's bytes are shared by all
		// its jobs. The requirements are copied out of the job they came with.
		r := *in.Requirements
		c = &class{key: key, asks: &r, fits: &r, index: -1}
		if r.NonInterruptible {
			fits := q.effective(r)
			c.fits = &fits
		}
		q.classes[key] = c
	}
	it := &item{
		job: in.Job, class: c, avoid: in.Avoid, attempt: in.Attempt,
		since: in.Submitted.UnixMicro(), priority: int16(in.Priority),
	}
	if !in.NotBefore.IsZero() {
		it.until = in.NotBefore.UnixMicro() + 1 // rounded up
	}
	q.items[in.Job] = it
	q.place(it, now.UnixMicro())
	return it
}

// place puts an item where it waits.
func (q *queue) place(it *item, now int64) {
	if it.until > now {
		it.paused = true
		heap.Push(&q.paused, it)
		return
	}
	it.paused = false
	c := it.class
	heap.Push(&c.items, it)
	switch {
	case c.index >= 0:
		heap.Fix(&q.ready, c.index)
	case !q.isParked(c):
		heap.Push(&q.ready, c)
	}
}

func (q *queue) isParked(c *class) bool {
	_, parked := q.parked[c]
	return parked
}

// remove forgets a job, if it is queued.
func (q *queue) remove(job offpeak.JobID) {
	if q.taken != nil {
		q.taken[job] = struct{}{}
	}
	it := q.items[job]
	if it == nil {
		return
	}
	delete(q.items, job)
	if it.paused {
		heap.Remove(&q.paused, it.index)
		q.settle(it.class)
		return
	}
	heap.Remove(&it.class.items, it.index)
	q.settle(it.class)
}

// settle puts a class in its place after its first item may have changed.
func (q *queue) settle(c *class) {
	switch {
	case len(c.items) > 0 && c.index >= 0:
		heap.Fix(&q.ready, c.index)
	case len(c.items) == 0:
		if c.index >= 0 {
			heap.Remove(&q.ready, c.index)
		}
		delete(q.parked, c)
		// A paused item still points at its class: it stays usable, and the next
		// job of the kind begins a class of its own.
		if q.classes[c.key] == c {
			delete(q.classes, c.key)
		}
	}
}

// wake lets those go on whose pause is over and returns when the next one's is,
// zero for none.
func (q *queue) wake(now int64) (next time.Time) {
	for len(q.paused) > 0 {
		it := q.paused[0]
		if it.until > now {
			return time.UnixMicro(it.until)
		}
		heap.Pop(&q.paused)
		if c := q.classes[it.class.key]; c != nil {
			it.class = c
		} else {
			q.classes[it.class.key] = it.class
		}
		q.place(it, now)
	}
	return time.Time{}
}

// first is the item to match next, nil for none.
func (q *queue) first() *item {
	if len(q.ready) == 0 {
		return nil
	}
	return q.ready[0].items[0]
}

// park sets a class aside until a node changes or, where its account lacks
// something, a lease of the account ends or money comes in.
func (q *queue) park(c *class, why error) {
	if c.index >= 0 {
		heap.Remove(&q.ready, c.index)
	}
	if len(c.items) > 0 {
		c.lacks, c.funds = "", nil
		switch {
		case errors.Is(why, offpeak.ErrFunds):
			c.lacks = lackFunds
			c.funds, _ = errors.AsType[*ledger.FundsError](why)
		case why != nil:
			c.lacks = lackLeases
		}
		q.parked[c] = struct{}{}
	}
}

// unpark lets parked classes be tried again that pick says.
func (q *queue) unpark(pick func(*class) bool) {
	for c := range q.parked {
		if !pick(c) {
			continue
		}
		delete(q.parked, c)
		c.lacks, c.funds = "", nil
		if len(c.items) > 0 {
			heap.Push(&q.ready, c)
		}
	}
}

// unparkAccount lets those be tried again whose account lacked something.
func (q *queue) unparkAccount(account offpeak.AccountID) {
	q.unpark(func(c *class) bool { return c.lacks != "" && c.key.account == account })
}

// ahead counts jobs that are matched before the item.
func (q *queue) ahead(it *item) int {
	n := 0
	for _, other := range q.items {
		if other != it && !other.paused && other.before(it) {
			n++
		}
	}
	return n
}

// before is the order of matching: priority, then first submitted.
func (it *item) before(other *item) bool {
	return cmp.Or(
		cmp.Compare(other.priority, it.priority),
		cmp.Compare(it.since, other.since),
		cmp.Compare(it.job, other.job),
	) < 0
}

// repause puts a job that lost a race back, with a pause that grows with each
// loss in a row; the first costs none.
func (q *queue) repause(in store.Queued, asks string, lost uint8, now time.Time) {
	if lost > 1 {
		pause := min(time.Millisecond<<min(lost, 10), time.Second)
		if at := now.Add(pause); at.After(in.NotBefore) {
			in.NotBefore = at
		}
	}
	if it := q.add(in, asks, now); it.attempt == in.Attempt {
		it.lost = lost
	}
}

func (it *item) queued() store.Queued {
	q := store.Queued{
		Job: it.job, Account: it.class.key.account, Attempt: it.attempt, Priority: int(it.priority),
		Submitted: time.UnixMicro(it.since), Driver: it.class.key.driver,
		Requirements: it.class.asks, Avoid: it.avoid,
	}
	if it.until != 0 {
		q.NotBefore = time.UnixMicro(it.until)
	}
	return q
}

func bump(n uint8) uint8 {
	if n == math.MaxUint8 {
		return n
	}
	return n + 1
}

type itemHeap []*item

func (h itemHeap) Len() int           { return len(h) }
func (h itemHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h itemHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *itemHeap) Push(x any)        { it := x.(*item); it.index = len(*h); *h = append(*h, it) }
func (h *itemHeap) Pop() any {
	last := len(*h) - 1
	it := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return it
}

type pauseHeap []*item

func (h pauseHeap) Len() int           { return len(h) }
func (h pauseHeap) Less(i, j int) bool { return h[i].until < h[j].until }
func (h pauseHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *pauseHeap) Push(x any)        { it := x.(*item); it.index = len(*h); *h = append(*h, it) }
func (h *pauseHeap) Pop() any {
	last := len(*h) - 1
	it := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return it
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
