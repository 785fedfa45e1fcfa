// Package queue is the order in which jobs that wait are matched: which is
// first, which may pass it, and which need not be looked at.
//
// The order is: higher priority, then the account that used and holds less
// (decayed by a half-life), then first submitted. A job that waited for long gets
// a reservation: a node and a moment at which leases there have reached their
// time limits. What it needs there is kept free, and others use it only where
// their own time limits end before that moment. So small jobs pass a large one
// that can't start anyway, and none waits for ever: see Bound.
//
// It owns this order and nothing else: whether a job fits a node is decided by
// offpeak's Requirements.Fit, and which of the nodes is best by package placement.
// It knows of no stores, networks, clocks or goroutines: the time is an argument.
//
// Jobs that ask for the same thing are of one kind; those of a kind that have one
// account and one priority (and are of one array, where that has a limit of its own)
// are a class. Where the first of a class fits no node,
// none of it does, so the class is parked; a node that changes opens the kinds
// that it may serve, which stand on shelves by roughly what they need. So a pass
// costs what changed, however many wait.
//
// A gang is one job that needs several nodes: it is tried on all at once, and holds
// or has reserved all of them or none.
//
// A Queue is not safe for concurrent use: its owner holds a lock. It is tested
// against a sorted list, and in virtual time against a stream of small jobs that
// would keep a large one out.
package queue

import (
	"cmp"
	"time"

	"offpeak"
	"offpeak/placement"
)

// Config is what an operator may set.
type Config struct {
	// HalfLife is after what time use counts half. 0: use does not count, and
	// the order is priority and age.
	HalfLife time.Duration
	// GPU is how many cores a GPU counts as.
	GPU float64
	// ReserveAfter is how long a job waits before it gets a reservation. 0: none
	// does.
	ReserveAfter time.Duration
	// Places is the most reservations at once.
	Places int
}

// DefaultConfig returns the settings of a hub that sets none.
func DefaultConfig() Config {
	return Config{HalfLife: 24 * time.Hour, GPU: 16, ReserveAfter: time.Hour, Places: 16}
}

// Job is what the order and matching need of a job that waits.
type Job struct {
	ID       offpeak.JobID
	Account  offpeak.AccountID
	Attempt  offpeak.Attempt // the newest so far
	Priority int
	// Submitted is its age; it does not start before NotBefore.
	Submitted, NotBefore time.Time
	Driver               string
	Requirements         *offpeak.Requirements
	// Text is the requirements' canonical text: jobs with the same are alike.
	Text string
	// Policy orders the nodes that fit; "" is what SetPolicy set.
	Policy placement.Policy
	// Lasts is for how long an attempt may hold a node, all its limits together.
	Lasts time.Duration
	Avoid []offpeak.NodeID
	// Fences keep it off nodes for a while.
	Fences []placement.Fence
	// Group is the array that it is a member of, if at most AtOnce of that may hold
	// leases at once; "" and 0 otherwise.
	Group  offpeak.GroupID
	AtOnce int
	// Gang are the members of a gang, which is one job here: each gets a node of its own,
	// all at once. Requirements are those of each; nil of all others.
	Gang []Member
	// Lost counts claims in a row that lost a race.
	Lost uint8
}

// Member is one of a gang that has not ended.
type Member struct {
	ID      offpeak.JobID
	Attempt offpeak.Attempt
}

// Queue is all jobs that wait. Its owner holds a lock.
type Queue struct {
	cfg   Config
	fleet *placement.Fleet
	// effective returns what offers are held against.
	effective func(offpeak.Requirements) offpeak.Requirements
	// policy orders the nodes that fit jobs which name none.
	policy placement.Policy
	// now is the moment of the call under way, origin that of the first.
	now, origin int64

	items    map[offpeak.JobID]*Item
	classes  map[classKey]*class
	kinds    map[kindKey]*kind
	accounts map[offpeak.AccountID]*account
	leases   map[offpeak.LeaseID]held
	shelves  map[shelfKey]*shelf
	// open are the shelves from which something may be taken.
	open  []*shelf
	lines map[lineKey]*line
	// bidders are the classes that name a price.
	bidders map[*class]struct{}
	// front are the lines with classes to be tried.
	front  heap[*line, byReady]
	paused heap[*Item, byPause]
	// fences are jobs by when the next fence of theirs ends.
	fences heap[*fenced, byFence]
	// ripening are the classes by when their first job may have a reservation;
	// turns are the accounts with such as may.
	ripening heap[*class, byRipe]
	turns    heap[*account, byTurn]
	// lacking are the classes whose account lacks something.
	lacking map[offpeak.AccountID]map[*class]struct{}
	// limited are arrays of which only some members may go at once.
	limited map[offpeak.GroupID]*turns
	// freed are nodes of which something changed since the last pass.
	freed    map[offpeak.NodeID]struct{}
	reserved map[offpeak.NodeID]*Reservation
	// blocked are classes that only nodes could take that are kept for others.
	blocked map[*class]struct{}
	parked  int
	// gangs counts the classes of gangs. holding is one whose turn for a reservation it
	// is, which has to wait for nodes, and until when not to look again.
	gangs   int
	holding *class
	until   int64
	// changes counts what may have let a job go on.
	changes uint64
}

// New returns an empty queue before a fleet. effective returns requirements as
// offers are held against them; nil: as they are.
func New(cfg Config, fleet *placement.Fleet, effective func(offpeak.Requirements) offpeak.Requirements) *Queue {
	return &Queue{
		cfg: cfg, fleet: fleet, effective: effective,
		items: make(map[offpeak.JobID]*Item), classes: make(map[classKey]*class), kinds: make(map[kindKey]*kind),
		accounts: make(map[offpeak.AccountID]*account), leases: make(map[offpeak.LeaseID]held),
		shelves: make(map[shelfKey]*shelf), lines: make(map[lineKey]*line), bidders: make(map[*class]struct{}),
		lacking: make(map[offpeak.AccountID]map[*class]struct{}), limited: make(map[offpeak.GroupID]*turns), freed: make(map[offpeak.NodeID]struct{}),
		reserved: make(map[offpeak.NodeID]*Reservation), blocked: make(map[*class]struct{}),
	}
}

// SetPolicy has nodes that fit jobs which name no policy ordered otherwise from now on. No job fits another
// node by that, so none that is parked is tried again.
func (q *Queue) SetPolicy(p placement.Policy) { q.policy = p }

// Policy returns what SetPolicy set.
func (q *Queue) Policy() placement.Policy { return q.policy }

// Item is one job in as few bytes as matching needs.
type Item struct {
	id      offpeak.JobID
	class   *class
	past    *past // nil where no attempt went wrong
	gang    *gang
	since   int64 // submitted, microseconds
	until   int64 // not before, microseconds; 0: now
	attempt offpeak.Attempt
	seat    int // in class.items or, while paused, in Queue.paused
	lost    uint8
	paused  bool
}

// past is what an item has of earlier attempts.
type past struct {
	avoid  []offpeak.NodeID
	fences []placement.Fence
}

// ID is the job's.
func (it *Item) ID() offpeak.JobID { return it.id }

// Paused says that its time has not come.
func (it *Item) Paused() bool { return it.paused }

// Lacks is what was said of the account with Lack, ErrTurn of a member of an array
// that waits for its turn, nil for nothing.
func (it *Item) Lacks() error { return it.class.lacks }

// HasTurn is false of a member of an array of which as many go as may at once.
func (it *Item) HasTurn() bool { return it.class.mayGo() }

// Job is the item as it was added.
func (it *Item) Job() Job {
	k := it.class.kind
	j := Job{
		ID: it.id, Account: it.class.line.account.id, Attempt: it.attempt, Priority: it.class.line.priority,
		Submitted: time.UnixMicro(it.since), Driver: k.key.driver, Requirements: k.asks, Text: k.key.text, Policy: k.key.policy, Lasts: k.key.lasts,
		Group: it.class.group, Gang: it.Gang(), Lost: it.lost,
	}
	if p := it.past; p != nil {
		j.Avoid, j.Fences = p.avoid, p.fences
	}
	if t := it.class.turns; t != nil {
		j.AtOnce = t.most
	}
	if it.until != 0 {
		j.NotBefore = time.UnixMicro(it.until)
	}
	return j
}

// Placement is an item as placement sees it, with its next attempt.
func (q *Queue) Placement(it *Item) placement.Job {
	k := it.class.kind
	j := placement.Job{
		ID: it.id, Account: it.class.line.account.id, Attempt: it.attempt + 1,
		Driver: k.key.driver, Requirements: k.fits, Class: k.key.text, Policy: cmp.Or(k.key.policy, q.policy),
	}
	if p := it.past; p != nil {
		j.Avoid, j.Fences, j.Now = p.avoid, p.fences, time.UnixMicro(q.now)
	}
	return j
}

// before is the order within a class.
func (it *Item) before(other *Item) bool {
	if it.since != other.since { // heaps ask this all the time, and ids are long
		return it.since < other.since
	}
	return it.id < other.id
}

// Len counts the jobs.
func (q *Queue) Len() int { return len(q.items) }

// Item returns a job that waits, nil for none.
func (q *Queue) Item(job offpeak.JobID) *Item { return q.items[job] }

// Items yields all jobs, in no order.
func (q *Queue) Items(yield func(*Item) bool) {
	for _, it := range q.items {
		if !yield(it) {
			return
		}
	}
}

func micro(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// tick takes the time; it does not go back.
func (q *Queue) tick(now time.Time) {
	q.now = max(q.now, now.UnixMicro())
	if q.origin == 0 {
		q.origin = q.now
	}
}

// Add queues a job. One that is there with the same or a newer attempt stays as
// it is.
func (q *Queue) Add(in Job, now time.Time) *Item {
	q.tick(now)
	if old := q.items[in.ID]; old != nil {
		if old.attempt >= in.Attempt {
			return old
		}
		q.Remove(in.ID)
	}
	it := &Item{id: in.ID, class: q.class(&in), attempt: in.Attempt, since: in.Submitted.UnixMicro(), lost: in.Lost}
	if len(in.Avoid)+len(in.Fences) > 0 {
		it.past = &past{in.Avoid, in.Fences}
	}
	if len(in.Gang) > 0 {
		it.gang = &gang{members: in.Gang}
	}
	if !in.NotBefore.IsZero() {
		it.until = in.NotBefore.UnixMicro() + 1 // rounded up
	}
	q.items[in.ID] = it
	it.class.refs++
	q.place(it, now.UnixMicro())
	return it
}

// place puts an item where it waits.
func (q *Queue) place(it *Item, now int64) {
	if it.paused = it.until > now; it.paused {
		q.paused.push(it)
		return
	}
	if it.past != nil {
		q.classify(it)
	}
	it.class.items.push(it)
	q.moved(it.class)
}

// Remove forgets a job, if it waits.
func (q *Queue) Remove(job offpeak.JobID) {
	it := q.items[job]
	if it == nil {
		return
	}
	if r := it.class.line.account.reserved; r != nil && r.Job == job {
		q.unreserve(r)
	}
	delete(q.items, job)
	c := it.class
	if c.refs--; it.paused {
		q.paused.remove(it)
	} else {
		c.items.remove(it)
	}
	q.moved(c)
}

// Wake lets those go on whose pause is over, or a fence of theirs, and returns when
// the next such ends, zero for none.
func (q *Queue) Wake(now time.Time) (next time.Time) {
	q.tick(now)
	for q.paused.len() > 0 {
		it := q.paused.top()
		if it.until > now.UnixMicro() {
			next = time.UnixMicro(it.until)
			break
		}
		q.paused.remove(it)
		q.place(it, now.UnixMicro())
	}
	if at := q.unfence(); at != never && (next.IsZero() || at < micro(next)) {
		next = time.UnixMicro(at)
	}
	return next
}

type byAge struct{}

func (byAge) before(a, b *Item) bool { return a.before(b) }
func (byAge) seat(it *Item) *int     { return &it.seat }

type byPause struct{}

func (byPause) before(a, b *Item) bool { return a.until < b.until }
func (byPause) seat(it *Item) *int     { return &it.seat }
