package queue

import (
	"math"
	"time"

	"offpeak"
)

// account is who waits, and what they have had lately.
type account struct {
	id offpeak.AccountID
	// use is what was used until at, in core-seconds of today: what was used a
	// half-life ago counts half. rate is what the live leases add, in cores.
	use, rate float64
	live      int
	gpus      int // that the live leases hold
	at        int64
	// standing orders accounts: see Queue.stands. It is off by settled at most, so
	// that what changes little moves nobody.
	standing float64
	lines    map[*line]struct{}
	// ripe are the classes whose first job may have a reservation, reserved is the
	// one it has, had when it got its last; seat is its own in Queue.turns.
	ripe     heap[*class, byRipe]
	reserved *Reservation
	had      int64
	seat     int
}

// settled is by how much an account's standing may be off: a 64th of its use.
const settled = 1.0 / 44

// held is one live lease: what it adds to its account's use, and when it ends
// at the latest; 0 where nobody knows.
type held struct {
	account   *account
	node      offpeak.NodeID
	resources offpeak.Resources
	ends      int64
}

// Lease is what the order must know of a live lease.
type Lease struct {
	ID        offpeak.LeaseID
	Account   offpeak.AccountID
	Node      offpeak.NodeID
	Resources offpeak.Resources
	// Since is when it took its resources, Ends when it gives them back at the
	// latest: the zero time where that is not known.
	Since, Ends time.Time
}

// Hold notes a lease that holds resources. Of one that is known only the end is
// noted, if it is said.
func (q *Queue) Hold(l Lease, now time.Time) {
	q.tick(now)
	h, known := q.leases[l.ID]
	if !known {
		a := q.account(l.Account)
		h = held{account: a, node: l.Node, resources: l.Resources}
		q.settle(a)
		q.usedUntil(a, q.held(h), micro(l.Since), q.now)
		a.rate += q.held(h)
		a.live++
		a.gpus += len(l.Resources.Devices)
	}
	if !l.Ends.IsZero() {
		h.ends = micro(l.Ends)
	}
	q.leases[l.ID] = h
	if q.reserved[l.Node] != nil {
		q.Freed(l.Node) // what is kept free there may change
	}
}

// Release notes that a lease no longer holds anything.
func (q *Queue) Release(lease offpeak.LeaseID, now time.Time) {
	h, known := q.leases[lease]
	if !known {
		return
	}
	q.tick(now)
	delete(q.leases, lease)
	q.settle(h.account)
	h.account.live--
	h.account.gpus -= len(h.resources.Devices)
	if h.account.rate -= q.held(h); h.account.live == 0 {
		h.account.rate = 0 // and no sum of roundings
	}
	q.lower(h.account)
}

// Used adds what an account used before: so many thousandths of cores and GPUs
// for that long.
func (q *Queue) Used(id offpeak.AccountID, cpu int64, gpus int, from, to, now time.Time) {
	q.tick(now)
	a := q.account(id)
	q.settle(a)
	q.usedUntil(a, q.cores(cpu, gpus), micro(from), micro(to))
}

func (q *Queue) cores(cpu int64, gpus int) float64 {
	return float64(cpu)/1000 + q.cfg.GPU*float64(gpus)
}

func (q *Queue) held(h held) float64 { return q.cores(h.resources.CPU, len(h.resources.Devices)) }

// usedUntil adds cores from one moment to another, as they count now. The
// account is settled.
func (q *Queue) usedUntil(a *account, cores float64, from, to int64) {
	to = min(to, q.now)
	if from <= 0 || from >= to {
		return
	}
	if !q.fair() {
		return
	}
	half := q.cfg.HalfLife.Seconds()
	ago := func(t int64) float64 { return math.Exp2(-float64(q.now-t) / 1e6 / half) }
	a.use += cores * half / math.Ln2 * (ago(to) - ago(from))
}

// settle brings an account's use up to now.
func (q *Queue) settle(a *account) {
	dt := float64(q.now-a.at) / 1e6
	a.at = q.now
	if dt <= 0 || !q.fair() {
		return
	}
	half := q.cfg.HalfLife.Seconds()
	most := a.rate * half / math.Ln2 // where its use would end up
	a.use = most + (a.use-most)*math.Exp2(-dt/half)
}

func (q *Queue) fair() bool { return q.cfg.HalfLife > 0 }

// stands is where an account stands among others: the logarithm of what it used
// lately and of what it holds now, as if it held that for ever, in units that do
// not shrink with time. So it falls only when a lease ends: whoever looks at a
// line with an old standing knows that it can only come later.
func (q *Queue) stands(a *account) float64 {
	if !q.fair() {
		return 0
	}
	q.settle(a)
	half := q.cfg.HalfLife.Seconds()
	return math.Log2(a.use+a.rate*half/math.Ln2) + float64(q.now-q.origin)/1e6/half
}

// standing raises an account's standing to where it stands, where that is much.
func (q *Queue) standing(a *account) float64 {
	if s := q.stands(a); s > a.standing+settled || math.IsInf(a.standing, -1) {
		a.standing = s
	}
	return a.standing
}

// lower moves an account's lines forward where it has come to stand better.
func (q *Queue) lower(a *account) {
	now := q.stands(a)
	if !(a.standing-now > settled) {
		return
	}
	a.standing = now
	for l := range a.lines {
		if l.standing > now {
			l.standing = now
			q.show(l)
		}
	}
}

// GPUs counts the GPUs that an account's live leases hold.
func (q *Queue) GPUs(id offpeak.AccountID) int {
	if a := q.accounts[id]; a != nil {
		return a.gpus
	}
	return 0
}

// Share is what an account has of all that was used lately.
type Share struct {
	// Hours is its use in core-hours, as it counts now; Part is its part of
	// everybody's, 0 to 1.
	Hours, Part float64
	// Cores are what it holds now, GPUs counted as cores.
	Cores float64
}

// Share says what an account used and holds.
func (q *Queue) Share(id offpeak.AccountID, now time.Time) Share {
	q.tick(now)
	all := 0.0
	for _, a := range q.accounts {
		q.settle(a)
		all += a.use
	}
	a := q.accounts[id]
	if a == nil || !q.fair() {
		return Share{}
	}
	s := Share{Hours: a.use / 3600, Cores: a.rate}
	if all > 0 {
		s.Part = a.use / all
	}
	return s
}
