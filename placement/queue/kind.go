package queue

import (
	"cmp"
	"encoding/json"
	"math/bits"
	"slices"
	"time"

	"offpeak"
)

// kindKey is what makes two jobs ask for the same thing.
type kindKey struct {
	driver, text string
	lasts        time.Duration
}

// kind is all jobs that ask for the same thing, by class.
type kind struct {
	key  kindKey
	asks *offpeak.Requirements
	// fits are asks as offers are held against them.
	fits *offpeak.Requirements
	// ready are the classes to be tried, parked those that fitted no node.
	ready, parked heap[*class, byOrder]
	shelf         *shelf
	refs          int // classes
	seat          int // in Queue.front
	shelved       int // in shelf.parked
}

// class is the jobs of one kind, account and priority: where the first fits no
// node, none does.
type class struct {
	kind     *kind
	account  *account
	priority int
	items    heap[*Item, byAge]
	// standing is the account's when it was last looked at.
	standing float64
	// lacks says what of its account's it waits for; nil while it waits for a node.
	lacks error
	// due is when its first job may have a reservation, later when to look again
	// after a look found none, after what pause.
	due, later, pause int64
	refs              int // items, also paused ones
	seat, ripe        int // in kind.ready or kind.parked; in Queue.ripening or account.ripe
}

type classKey struct {
	kind     *kind
	account  *account
	priority int
}

// before is the order of matching.
func (c *class) before(other *class) bool {
	switch {
	case c.priority != other.priority:
		return c.priority > other.priority
	case c.standing != other.standing:
		return c.standing < other.standing
	}
	return c.items.top().before(other.items.top())
}

type byOrder struct{}

func (byOrder) before(a, b *class) bool { return a.before(b) }
func (byOrder) seat(c *class) *int      { return &c.seat }

type byRipe struct{}

func (byRipe) before(a, b *class) bool { return a.due < b.due }
func (byRipe) seat(c *class) *int      { return &c.ripe }

type byFirst struct{}

func (byFirst) before(a, b *kind) bool { return a.ready.top().before(b.ready.top()) }
func (byFirst) seat(k *kind) *int      { return &k.seat }

type byParked struct{}

func (byParked) before(a, b *kind) bool { return a.parked.top().before(b.parked.top()) }
func (byParked) seat(k *kind) *int      { return &k.shelved }

func (q *Queue) account(id offpeak.AccountID) *account {
	a := q.accounts[id]
	if a == nil {
		a = &account{id: id, at: q.now, classes: make(map[*class]struct{})}
		a.standing = q.stands(a)
		q.accounts[id] = a
	}
	return a
}

func (q *Queue) class(in *Job) *class {
	kk := kindKey{in.Driver, in.Text, in.Lasts}
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
		if r.MaxPrice != nil {
			q.bidders[k] = struct{}{}
		}
	}
	ck := classKey{k, q.account(in.Account), in.Priority}
	c := q.classes[ck]
	if c == nil {
		c = &class{kind: k, account: ck.account, priority: in.Priority}
		q.classes[ck] = c
		ck.account.classes[c] = struct{}{}
		k.refs++
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
	case c.seat == 0:
		c.standing = q.standing(c.account)
		c.kind.ready.push(c)
		q.show(c.kind)
		q.ripen(c)
	default:
		q.reseat(c)
		q.ripen(c)
	}
}

func (q *Queue) forget(c *class) {
	k := c.kind
	delete(q.classes, classKey{k, c.account, c.priority})
	delete(c.account.classes, c)
	delete(q.blocked, c)
	if k.refs--; k.refs > 0 {
		return
	}
	delete(q.kinds, k.key)
	delete(q.bidders, k)
	if k.shelf.refs--; k.shelf.refs == 0 {
		delete(q.shelves, k.shelf.key) // if it is open, it is closed by the next look
	}
}

// reseat moves a class whose order changed.
func (q *Queue) reseat(c *class) {
	switch k := c.kind; {
	case c.seat == 0:
	case k.ready.has(c):
		k.ready.fix(c)
		q.front.fix(k)
	default:
		k.parked.fix(c)
		if k.shelved > 0 {
			k.shelf.parked.fix(k)
		}
	}
}

// unseat takes a class out of matching.
func (q *Queue) unseat(c *class) {
	q.unripen(c)
	switch k := c.kind; {
	case c.seat == 0:
		return
	case k.ready.has(c):
		k.ready.remove(c)
	default:
		k.parked.remove(c)
		q.parked--
	}
	q.show(c.kind)
}

// show puts a kind where it belongs: in front while it has something to be tried,
// on its shelf while it has something that waits for a node.
func (q *Queue) show(k *kind) {
	switch {
	case k.ready.len() == 0 && k.seat > 0:
		q.front.remove(k)
	case k.ready.len() == 0:
	case k.seat == 0:
		q.front.push(k)
	default:
		q.front.fix(k)
	}
	switch s := k.shelf; {
	case k.parked.len() == 0 && k.shelved > 0:
		s.parked.remove(k)
	case k.parked.len() == 0:
	case k.shelved == 0:
		s.parked.push(k)
	default:
		s.parked.fix(k)
	}
}

// park sets a class aside until a node that it may fit changes.
func (q *Queue) park(c *class) {
	k := c.kind
	k.ready.remove(c)
	k.parked.push(c)
	q.parked++
	q.show(k)
}

// Lack sets the class of an item aside until something of its account's changes:
// why says what it lacks.
func (q *Queue) Lack(it *Item, why error) {
	c := it.class
	if it.paused || c.items.len() == 0 || why == nil {
		return
	}
	if r := c.account.reserved; r != nil && q.items[r.Job] != nil && q.items[r.Job].class == c {
		q.unreserve(r)
	}
	q.unseat(c)
	c.lacks = why
	of := q.lacking[c.account.id]
	if of == nil {
		of = make(map[*class]struct{})
		q.lacking[c.account.id] = of
	}
	of[c] = struct{}{}
}

// enough notes that a class lacks nothing any more.
func (q *Queue) enough(c *class) {
	if c.lacks == nil {
		return
	}
	c.lacks = nil
	delete(q.lacking[c.account.id], c)
	if len(q.lacking[c.account.id]) == 0 {
		delete(q.lacking, c.account.id)
	}
}

// Funded lets the classes of an account be tried again that lacked something.
func (q *Queue) Funded(id offpeak.AccountID) {
	for c := range q.lacking[id] {
		q.enough(c)
		q.moved(c)
	}
}

// FundedAll is Funded for all accounts.
func (q *Queue) FundedAll() {
	for id := range q.lacking {
		q.Funded(id)
	}
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
	return !it.paused && !c.kind.ready.has(c)
}

// Bidders returns the first items of at most n classes that name a price and wait
// for a node, in order.
func (q *Queue) Bidders(n int) []*Item {
	var classes []*class
	for k := range q.bidders {
		classes = append(classes, k.parked.list...)
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
	for c := range q.eachClass {
		if c.kind.asks.MaxPrice != nil {
			n += c.refs
		}
	}
	return n
}

func (q *Queue) eachClass(yield func(*class) bool) {
	for _, c := range q.classes {
		if !yield(c) {
			return
		}
	}
}

// shelf is the kinds that roughly need the same: what a node must have at least
// to serve any of them.
type shelf struct {
	key   shelfKey
	floor *offpeak.Requirements
	// parked are the kinds that have a class parked.
	parked heap[*kind, byParked]
	refs   int
	// nodes are those for whose sake it is open: no other serves what stands here.
	// aside is what they did not serve after all.
	nodes      []offpeak.NodeID
	aside      []*class
	asideKinds []*kind
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
		s = &shelf{key: key, floor: &floor}
		q.shelves[key] = s
	}
	s.refs++
	return s
}

// floorOf is requirements that fit wherever r does, the same for many like r:
// sizes rounded down to a power of two, prices up.
func floorOf(r *offpeak.Requirements) offpeak.Requirements {
	f := *r
	f.CPU, f.Memory, f.Disk = power(r.CPU), power(r.Memory), power(r.Disk)
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

// power is the greatest power of two that is not above n; n itself below one.
func power[T ~int64](n T) T {
	if n < 1 {
		return n
	}
	return 1 << (bits.Len64(uint64(n)) - 1)
}
