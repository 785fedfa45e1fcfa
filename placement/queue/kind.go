package queue

import (
	"cmp"
	"encoding/json"
	"errors"
	"math/bits"
	"slices"
	"time"

	"offpeak"
	"offpeak/placement"
)

// kindKey is what makes two jobs ask for the same thing.
type kindKey struct {
	driver, text string
	policy       placement.Policy
	lasts        time.Duration
}

// kind is what jobs of several classes ask for alike.
type kind struct {
	key  kindKey
	asks *offpeak.Requirements
	// fits are asks as offers are held against them.
	fits  *offpeak.Requirements
	shelf *shelf
	refs  int // classes
}

// class is the jobs of one kind, account and priority: where the first fits no
// node, none does.
type class struct {
	kind  *kind
	line  *line
	items heap[*Item, byAge]
	// group is set where an array has a limit of its own; "" of all others, which have
	// no turns.
	group offpeak.GroupID
	turns *turns
	// fenced are the nodes that fences keep its jobs off, "" for none: it is what they
	// have in common, not for how long.
	fenced string
	// size is how many nodes at once each of its jobs needs, gangs; 0 of all others.
	size int
	// at is at how many of Queue.changes there may be enough nodes for a gang: each makes
	// one more fit at most.
	at uint64
	// lacks says what of its account's, or of its array's, it waits for; nil while it
	// waits for a node.
	lacks error
	// due is when its first job may have a reservation, later when to look again
	// after a look found none, after what pause.
	due, later, pause int64
	refs              int // items, also paused ones
	seat, ripe        int // in line.ready or line.parked; in Queue.ripening or account.ripe
}

type classKey struct {
	kind   *kind
	line   *line
	group  offpeak.GroupID
	fenced string
	size   int
}

// line is the classes on one shelf of one account and priority, by age. Accounts
// move by line, so that it costs little however many kinds they have.
type line struct {
	lineKey
	// standing is the account's when it was last looked at.
	standing float64
	// ready are the classes to be tried, parked those that fitted no node.
	ready, parked heap[*class, byFirst]
	refs          int // classes
	front         int // seat in Queue.front
	shelved       int // seat in shelf.parked
}

type lineKey struct {
	shelf    *shelf
	account  *account
	priority int
}

// before is the order of matching, of lines with those classes first.
func (l *line) before(first *class, other *line, others *class) bool {
	switch {
	case l.priority != other.priority:
		return l.priority > other.priority
	case l.standing != other.standing:
		return l.standing < other.standing
	}
	return first.items.top().before(others.items.top())
}

func (c *class) before(other *class) bool { return c.line.before(c, other.line, other) }

// byFirst is the order within a line.
type byFirst struct{}

func (byFirst) before(a, b *class) bool { return a.items.top().before(b.items.top()) }
func (byFirst) seat(c *class) *int      { return &c.seat }

type byRipe struct{}

func (byRipe) before(a, b *class) bool {
	return cmp.Or(
		cmp.Compare(a.due, b.due), cmp.Compare(a.line.account.id, b.line.account.id), cmp.Compare(b.line.priority, a.line.priority),
		cmp.Compare(a.kind.key.text, b.kind.key.text), cmp.Compare(a.group, b.group), cmp.Compare(a.fenced, b.fenced), cmp.Compare(a.size, b.size),
	) < 0
}
func (byRipe) seat(c *class) *int { return &c.ripe }

type byReady struct{}

func (byReady) before(a, b *line) bool { return a.ready.top().before(b.ready.top()) }
func (byReady) seat(l *line) *int      { return &l.front }

type byParked struct{}

func (byParked) before(a, b *line) bool { return a.parked.top().before(b.parked.top()) }
func (byParked) seat(l *line) *int      { return &l.shelved }

func (q *Queue) account(id offpeak.AccountID) *account {
	a := q.accounts[id]
	if a == nil {
		a = &account{id: id, at: q.now, lines: make(map[*line]struct{})}
		a.standing = q.stands(a)
		q.accounts[id] = a
	}
	return a
}

func (q *Queue) class(in *Job) *class {
	kk := kindKey{in.Driver, in.Text, in.Policy, in.Lasts}
	k := q.kinds[kk]
	if k == nil {
		// The requirements are copied out of the job they came with.
		r := *in.Requirements
		k = &kind{key: kk, asks: &r, fits: &r}
		if q.effective != nil && r.NonInterruptible {
			fits := q.effective(r)
			k.fits = &fits
		}
		k.shelf = q.shelve(k)
		q.kinds[kk] = k
	}
	lk := lineKey{k.shelf, q.account(in.Account), in.Priority}
	l := q.lines[lk]
	if l == nil {
		l = &line{lineKey: lk}
		q.lines[lk] = l
		lk.account.lines[l] = struct{}{}
	}
	key := classKey{k, l, in.Group, fencesAt(in.Fences, q.now), len(in.Gang)}
	c := q.classes[key]
	if c == nil {
		c = &class{kind: k, line: l, group: in.Group, fenced: key.fenced, size: len(in.Gang)}
		q.classes[key] = c
		q.takeTurns(c, in.AtOnce)
		k.refs++
		l.refs++
		if c.size > 0 {
			q.gangs++
		} else if k.asks.MaxPrice != nil {
			q.bidders[c] = struct{}{}
		}
	}
	return c
}

// moved puts a class in its place after its first item may have changed.
func (q *Queue) moved(c *class) {
	switch {
	case c.items.len() == 0:
		q.unseat(c)
		q.enough(c)
		if c.refs == 0 {
			q.forget(c)
		}
	case c.lacks != nil:
	case !c.mayGo():
		q.lack(c, ErrTurn)
	case c.seat == 0:
		l := c.line
		if l.front == 0 && l.shelved == 0 {
			l.standing = q.standing(l.account)
		}
		l.ready.push(c)
		q.show(l)
		q.ripen(c)
	default:
		l := c.line
		if l.ready.has(c) {
			l.ready.fix(c)
		} else {
			l.parked.fix(c)
		}
		q.show(l)
		q.ripen(c)
	}
}

func (q *Queue) forget(c *class) {
	k, l := c.kind, c.line
	delete(q.classes, classKey{k, l, c.group, c.fenced, c.size})
	if c.size > 0 {
		q.gangs--
	}
	q.leaveTurns(c)
	delete(q.blocked, c)
	delete(q.bidders, c)
	if l.refs--; l.refs == 0 {
		delete(q.lines, l.lineKey)
		delete(l.account.lines, l)
	}
	if k.refs--; k.refs > 0 {
		return
	}
	delete(q.kinds, k.key)
	if k.shelf.refs--; k.shelf.refs == 0 {
		delete(q.shelves, k.shelf.key) // if it is open, it is closed by the next look
	}
}

// unseat takes a class out of matching.
func (q *Queue) unseat(c *class) {
	q.unripen(c)
	switch l := c.line; {
	case c.seat == 0:
		return
	case l.ready.has(c):
		l.ready.remove(c)
	default:
		l.parked.remove(c)
		q.parked--
	}
	q.show(c.line)
}

// show puts a line where it belongs: in front while it has something to be tried,
// on its shelf while it has something that waits for a node.
func (q *Queue) show(l *line) {
	switch {
	case l.ready.len() == 0 && l.front > 0:
		q.front.remove(l)
	case l.ready.len() == 0:
	case l.front == 0:
		q.front.push(l)
	default:
		q.front.fix(l)
	}
	switch s := l.shelf; {
	case l.parked.len() == 0 && l.shelved > 0:
		s.parked.remove(l)
	case l.parked.len() == 0:
	case l.shelved == 0:
		s.parked.push(l)
	default:
		s.parked.fix(l)
	}
}

// park sets a class aside until a node that it may fit changes.
func (q *Queue) park(c *class) {
	l := c.line
	l.ready.remove(c)
	l.parked.push(c)
	q.parked++
	q.show(l)
}

// Lack sets the class of an item aside until something of its account's changes:
// why says what it lacks.
func (q *Queue) Lack(it *Item, why error) {
	c := it.class
	if !it.paused && c.items.len() > 0 && why != nil {
		q.lack(c, why)
	}
}

func (q *Queue) lack(c *class, why error) {
	if r := c.line.account.reserved; r != nil && q.items[r.Job] != nil && q.items[r.Job].class == c {
		q.unreserve(r)
	}
	q.unseat(c)
	c.lacks = why
	of := q.lacking[c.line.account.id]
	if of == nil {
		of = make(map[*class]struct{})
		q.lacking[c.line.account.id] = of
	}
	of[c] = struct{}{}
}

// enough notes that a class lacks nothing any more.
func (q *Queue) enough(c *class) {
	if c.lacks == nil {
		return
	}
	c.lacks = nil
	delete(q.lacking[c.line.account.id], c)
	if len(q.lacking[c.line.account.id]) == 0 {
		delete(q.lacking, c.line.account.id)
	}
}

// Funded lets the classes of an account be tried again that lacked something of its.
func (q *Queue) Funded(id offpeak.AccountID) {
	for c := range q.lacking[id] {
		if !errors.Is(c.lacks, ErrTurn) {
			q.enough(c)
			q.moved(c)
		}
	}
}

// FundedAll is Funded for all accounts, and for arrays that wait for the turn of a
// member: where news may have been missed.
func (q *Queue) FundedAll() {
	for id := range q.lacking {
		q.Funded(id)
	}
	q.tryTurns()
}

// Parked counts the classes that wait for a node or for something of their
// account's.
func (q *Queue) Parked() int {
	n := q.parked
	for _, of := range q.lacking {
		n += len(of)
	}
	return n
}

// IsParked says that an item's class fitted no node when it was last tried, or
// that its account lacks something.
func (q *Queue) IsParked(it *Item) bool {
	c := it.class
	return !it.paused && !c.line.ready.has(c)
}

// Bidders returns the first items of at most n classes that name a price and wait
// for a node, in order. Gangs are none: to outbid one after the other for part of the
// nodes would be in vain.
func (q *Queue) Bidders(n int) []*Item {
	var classes []*class
	for c := range q.bidders {
		if c.line.parked.has(c) {
			classes = append(classes, c)
		}
	}
	slices.SortFunc(classes, func(a, b *class) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	out := make([]*Item, 0, min(n, len(classes)))
	for _, c := range classes[:min(n, len(classes))] {
		out = append(out, c.items.top())
	}
	return out
}

// Bids counts the jobs that name a price.
func (q *Queue) Bids() (n int) {
	for c := range q.bidders {
		n += c.refs
	}
	return n
}

// shelf is the kinds that roughly need the same: what a node must have at least
// to serve any of them.
type shelf struct {
	key   shelfKey
	floor *offpeak.Requirements
	// parked are the lines that have a class parked.
	parked heap[*line, byParked]
	refs   int
	// nodes are those for whose sake it is open: no other serves what stands here.
	// aside is what they did not serve after all.
	nodes []offpeak.NodeID
	aside []*class
}

type shelfKey struct{ driver, floor string }

func (q *Queue) shelve(k *kind) *shelf {
	floor := floorOf(k.fits)
	text, err := json.Marshal(&floor)
	if err != nil {
		panic("queue: requirements have no JSON: " + err.Error()) // strings and numbers only
	}
	key := shelfKey{k.key.driver, string(text)}
	s := q.shelves[key]
	if s == nil {
		floor.CPU, floor.Memory, floor.Disk = k.fits.CPU, k.fits.Memory, k.fits.Disk
		s = &shelf{key: key, floor: &floor}
		q.shelves[key] = s
	}
	// As much as all that ever stood here needed: more than the rounded sizes say.
	f := s.floor
	f.CPU, f.Memory, f.Disk = min(f.CPU, k.fits.CPU), min(f.Memory, k.fits.Memory), min(f.Disk, k.fits.Disk)
	s.refs++
	return s
}

// floorOf is requirements that fit wherever r does, the same for many like r:
// sizes rounded down, to a power of two or, memory, to a quarter of one; prices up.
func floorOf(r *offpeak.Requirements) offpeak.Requirements {
	f := *r
	f.CPU, f.Memory, f.Disk = power(r.CPU), quarter(r.Memory), power(r.Disk)
	if r.MaxPrice != nil {
		most := offpeak.MaxPrice
		if *r.MaxPrice < offpeak.MaxPrice/2 {
			most = 2 * power(*r.MaxPrice)
		}
		f.MaxPrice = &most
	}
	if len(r.GPUs) > 0 {
		f.GPUs = slices.Clone(r.GPUs)
		for i := range f.GPUs {
			f.GPUs[i].VRAM = power(f.GPUs[i].VRAM)
		}
		slices.SortFunc(f.GPUs, func(a, b offpeak.GPURequest) int {
			return cmp.Or(cmp.Compare(b.VRAM, a.VRAM), cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Model, b.Model))
		})
	}
	return f
}

// quarter is the greatest quarter of a power of two, beyond that power, that is not
// above n: what jobs differ in most is told apart more finely.
func quarter(n offpeak.Bytes) offpeak.Bytes {
	p := power(n)
	if p < 4 {
		return n
	}
	return p + (n-p)/(p/4)*(p/4)
}

// power is the greatest power of two that is not above n; n itself below one.
func power[T ~int64](n T) T {
	if n < 1 {
		return n
	}
	return 1 << (bits.Len64(uint64(n)) - 1)
}
