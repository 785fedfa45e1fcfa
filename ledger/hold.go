package ledger

import (
	"fmt"
	"slices"
	"time"

	"offpeak"
)

// Rules are the operator's figures for holds. They may change at any time: a
// lease takes the new ones with its next step, but keeps the fee it began with.
type Rules struct {
	// Term is for how long a price is locked.
	Term time.Duration
	// Interval is the metered time that is held for at once.
	Interval time.Duration
	// Lead is how much paid time must be left when the next interval is held.
	// It is the time a job has left once it is told that its money ends, so it
	// is at least its grace and two heartbeats.
	Lead time.Duration
	// Least is the shortest paid time worth holding for: an account that can
	// cover it, but not a whole interval, gets what it can cover. With Least
	// at Interval or above, an interval is covered whole or not at all.
	Least time.Duration
	// Fee is the operator's share of leases that open from now on.
	Fee BasisPoints
}

// DefaultRules returns terms of an hour, intervals of ten minutes, a minute's
// lead, at least two minutes, and no fee.
func DefaultRules() Rules {
	return Rules{Term: time.Hour, Interval: 10 * time.Minute, Lead: time.Minute, Least: 2 * time.Minute}
}

// Validate returns a *RangeError where a figure is out of bounds: Term and
// Interval are a second at least, Lead and Least are not negative, none is
// above offpeak.MaxDuration, and the fee is a share.
func (r Rules) Validate() error {
	for _, d := range []struct {
		what  string
		d     time.Duration
		least time.Duration
	}{{"term", r.Term, time.Second}, {"interval", r.Interval, time.Second}, {"lead", r.Lead, 0}, {"least", r.Least, 0}} {
		if err := inRange(d.what, int64(d.d), int64(d.least), int64(offpeak.MaxDuration)); err != nil {
			return err
		}
	}
	return inRange("fee", int64(r.Fee), 0, wholeShare)
}

// Funds is what an account and a job have when a step is taken.
type Funds struct {
	// Available is the balance of the payer's available account.
	Available offpeak.MicroCredits
	// Budget is the most the job may cost over all its attempts, nil for no
	// bound.
	Budget *offpeak.MicroCredits
	// Committed is what the job's settled attempts were charged and its open
	// leases, this one too, hold.
	Committed offpeak.MicroCredits
}

// room returns what may be held now.
func (f Funds) room() (room offpeak.MicroCredits, budget bool) {
	room = max(f.Available, 0)
	if f.Budget != nil {
		if left := max(*f.Budget, 0) - max(f.Committed, 0); left < room {
			return max(left, 0), true
		}
	}
	return room, false
}

// Term is one price term of a lease.
type Term struct {
	// N counts a lease's terms from 1.
	N int `json:"n"`
	// Price is locked for the term.
	Price offpeak.Price `json:"price"`
	// From is when the term began: the claim, or the renewal.
	From time.Time `json:"from"`
	// To is when the lock ends; once the next term has begun or the lease is
	// settled, when this one ended.
	To time.Time `json:"to"`
	// Metered is set when the term ends.
	Metered offpeak.Millis `json:"metered_ms"`
	// Paid is how much metered time of the term money is, or was, held for.
	Paid offpeak.Millis `json:"paid_ms"`
}

// Lease is the ledger's side of a lease: who pays whom, its price terms and
// what is held. The verbs return a changed copy.
type Lease struct {
	ID      offpeak.LeaseID `json:"lease"`
	Job     offpeak.JobID   `json:"job"`
	Attempt offpeak.Attempt `json:"attempt"`
	// Payer is the job's account, Owner the node's. They may be the same.
	Payer offpeak.AccountID `json:"payer"`
	Owner offpeak.AccountID `json:"owner"`
	// Limit is the attempt's time limit.
	Limit offpeak.Millis `json:"limit_ms"`
	// Fee is what Rules said when the lease opened.
	Fee BasisPoints `json:"fee_basis_points"`
	// Terms are the price terms so far; the last one is in force.
	Terms []Term `json:"terms"`
	// Held is what is set aside now. It covers the paid time of every term.
	Held offpeak.MicroCredits `json:"held"`
	// Holds counts the hold transactions; their ids follow from it.
	Holds int `json:"holds"`
	// Settled is set by Settle and never cleared.
	Settled bool `json:"settled"`
}

// Verdict says how a lease stands after a step.
type Verdict struct {
	// Covered is whether the lease may go on: it is paid for beyond the lead,
	// or for as long as it can run in this term.
	Covered bool
	// PaidUntil is when paid time ends if the job runs on without a pause. A
	// lease that is not covered must be gone by then.
	PaidUntil time.Time
	// Next is when to take the next step at the latest: hold for the next
	// interval, or renew. It may come later where the job was frozen; asking
	// early costs nothing.
	Next time.Time
	// Renew is whether the price lock has ended, so that the next step is a
	// renewal at the ask of then, or a stop for offpeak.EndTermEnded.
	Renew bool
	// Stop is offpeak.EndBudgetSpent where the lease is not covered, else "".
	// The job is given notice, with PaidUntil as its deadline. Money that
	// arrives before then makes it covered again.
	Stop offpeak.EndReason
	// Short says what is missing where the lease is not covered.
	Short *FundsError
}

// HoldID names the n-th hold of a lease, counted from 1.
func HoldID(lease offpeak.LeaseID, n int) TransactionID {
	return TransactionID(fmt.Sprintf("hold/%s/%d", lease, n))
}

// SettleID names the settlement of a lease. There is one: that a lease is
// settled once is that a transaction's id is used once.
func SettleID(lease offpeak.LeaseID) TransactionID {
	return TransactionID("settle/" + string(lease))
}

// Open begins a lease that is being claimed: it locks the price for the first
// term and holds for the first interval. It returns an error that is offpeak.ErrFunds
// (a *FundsError) where not even the shortest time worth running is covered, so
// that the claim is refused, and a *RangeError for a price, limit or rule out of bounds.
func Open(l Lease, r Rules, f Funds, now time.Time, price offpeak.Price) (Lease, []Transaction, Verdict, error) {
	if l.ID == "" || l.Job == "" || l.Payer == "" || l.Owner == "" {
		return l, nil, Verdict{}, &offpeak.FieldError{Field: "lease", Value: string(l.ID), Rule: "has an id, a job, a payer and an owner"}
	}
	if err := r.Validate(); err != nil {
		return l, nil, Verdict{}, err
	}
	if err := inRange("limit_ms", int64(l.Limit), 1, int64(MaxMillis)); err != nil {
		return l, nil, Verdict{}, err
	}
	if err := inRange("price", int64(price), 0, int64(offpeak.MaxPrice)); err != nil {
		return l, nil, Verdict{}, err
	}
	n := l
	n.Fee, n.Held, n.Holds, n.Settled = r.Fee, 0, 0, false
	n.Terms = []Term{{N: 1, Price: price, From: now, To: now.Add(r.Term)}}
	n, list, v := n.cover(r, f, now, 0)
	if !v.Covered {
		return l, nil, v, v.Short
	}
	return n, list, v, nil
}

// Extend holds for the next interval where less than the lead is left of what
// is paid, and says how the lease stands. Metered is what Meter accepted. A
// step that comes late, after a hub's outage, holds for what ran meanwhile as
// far as there is money; what there is none for is never charged. It returns
// a *SettledError for a lease that is settled.
func (l Lease) Extend(r Rules, f Funds, now time.Time, metered offpeak.Millis) (Lease, []Transaction, Verdict, error) {
	if l.Settled {
		return l, nil, Verdict{}, &SettledError{Lease: l.ID}
	}
	n, list, v := l.clone().cover(r, f, now, l.inTerm(metered))
	return n, list, v, nil
}

// Renew ends the term in force and begins the next at a price that the caller
// has found to be within the job's limit. Where the new term is not covered,
// the lease stays as it is and the verdict says when its paid time ends. It
// returns a *SettledError for a lease that is settled and a *RangeError for a
// price out of bounds.
func (l Lease) Renew(r Rules, f Funds, now time.Time, metered offpeak.Millis, price offpeak.Price) (Lease, []Transaction, Verdict, error) {
	if l.Settled {
		return l, nil, Verdict{}, &SettledError{Lease: l.ID}
	}
	if err := inRange("price", int64(price), 0, int64(offpeak.MaxPrice)); err != nil {
		return l, nil, Verdict{}, err
	}
	used, old := l.inTerm(metered), l.clone()
	// What ran past its paid time is paid for now, as far as there is money.
	room, _ := f.room()
	list := old.pay(now, min(used, affords(old.last().Price, old.free()+room)))
	for _, t := range list {
		f.Available += t.Entries[0].Amount
		f.Committed -= t.Entries[0].Amount
	}
	n := old.clone()
	t := n.last()
	t.Metered, t.Paid, t.To = used, min(t.Paid, used), now
	n.Terms = append(n.Terms, Term{N: t.N + 1, Price: price, From: now, To: now.Add(r.Term)})
	n, more, v := n.cover(r, f, now, 0)
	if !v.Covered {
		v.PaidUntil = now.Add(span(old.last().Paid - used))
		v.Renew = true
		return old, list, v, nil
	}
	return n, append(list, more...), v, nil
}

// Noticed returns the rules for a job of some grace: with a lead that gives it its
// notice, and its node the time to hear of it.
func (r Rules) Noticed(grace time.Duration) Rules {
	const hear = 30 * time.Second
	r.Lead = max(r.Lead, grace+hear)
	return r
}

// Least returns the least that Open holds at a price for an attempt with a time limit.
func Least(r Rules, limit offpeak.Millis, price offpeak.Price) offpeak.MicroCredits {
	_, enough := r.next(min(millis(r.Term+r.Lead), limit), 0, 0)
	return charge(price, enough)
}

// next returns up to where a term is paid for next, of which at most so much can be
// metered, and with how much of that it may go on.
func (r Rules) next(most, used, paid offpeak.Millis) (want, enough offpeak.Millis) {
	lead, interval := millis(r.Lead), millis(r.Interval)
	want = min(most, ((used+lead)/interval+1)*interval)
	return want, min(want, max(paid+millis(r.Least), used+lead+1))
}

// Finished says whether everything a lease may still run is paid for.
func (l Lease) Finished() bool { return l.Settled || l.closed()+l.last().Paid >= l.Limit }

// cover holds what the term in force needs when used of it are metered.
func (l Lease) cover(r Rules, f Funds, now time.Time, used offpeak.Millis) (Lease, []Transaction, Verdict) {
	t := l.last()
	lead, most := millis(r.Lead), l.longest(r, now, used)
	var v Verdict
	var list []Transaction
	if t.Paid <= used+lead && t.Paid < most {
		want, enough := r.next(most, used, t.Paid)
		room, budget := f.room()
		paid := min(want, affords(t.Price, l.free()+room))
		if paid < enough {
			v.Short = &FundsError{Lease: l.ID, Need: charge(t.Price, enough) - l.free(), Have: room, Budget: budget}
			// Too little to go on with: only what ran already is paid for.
			paid = min(paid, used)
		}
		list = l.pay(now, paid)
	}
	v.Covered = t.Paid > used+lead || t.Paid >= most && t.Paid >= used
	v.PaidUntil = now.Add(span(t.Paid - used))
	v.Renew = !now.Before(t.To)
	switch {
	case !v.Covered:
		v.Stop, v.Next = offpeak.EndBudgetSpent, now
	case l.Finished():
		v.Next = t.To
	default:
		v.Next = v.PaidUntil.Add(-r.Lead)
		if t.To.Before(v.Next) || t.Paid >= most {
			v.Next = t.To
		}
	}
	return l, list, v
}

// longest returns how much of the term in force can be metered in all. The
// lock ends at To, but it is only at the first step after it that the next
// term begins, so the last interval has the lead on top. The time limit ends
// everything.
func (l Lease) longest(r Rules, now time.Time, used offpeak.Millis) offpeak.Millis {
	left := millis(l.last().To.Add(r.Lead).Sub(now))
	return max(min(used+max(left, 0), l.Limit-l.closed()), used)
}

// pay raises the paid time of the term in force, and holds what that takes
// beyond what is free.
func (l *Lease) pay(now time.Time, paid offpeak.Millis) []Transaction {
	t := l.last()
	if paid <= t.Paid {
		return nil
	}
	need := charge(t.Price, paid) - l.free()
	t.Paid = paid
	if need <= 0 {
		return nil
	}
	l.Held += need
	l.Holds++
	return []Transaction{{
		ID: HoldID(l.ID, l.Holds), Kind: KindHold, At: now,
		Subject: Subject{Job: l.Job, Lease: l.ID, Attempt: l.Attempt, Term: t.N},
		Entries: []Entry{{Available(l.Payer), -need}, {Held(l.Payer), need}},
	}}
}

// free is what is held beyond the ended terms: the term in force may use it.
func (l Lease) free() offpeak.MicroCredits { return l.Held - l.base() }

// base is what the paid time of the ended terms takes.
func (l Lease) base() (sum offpeak.MicroCredits) {
	for _, t := range l.Terms[:len(l.Terms)-1] {
		sum += charge(t.Price, t.Paid)
	}
	return sum
}

// closed is what was metered in the ended terms.
func (l Lease) closed() (sum offpeak.Millis) {
	for _, t := range l.Terms[:len(l.Terms)-1] {
		sum += t.Metered
	}
	return sum
}

// inTerm returns how much of what is metered falls into the term in force.
func (l Lease) inTerm(metered offpeak.Millis) offpeak.Millis {
	return max(min(metered, l.Limit)-l.closed(), 0)
}

func (l Lease) last() *Term { return &l.Terms[len(l.Terms)-1] }

func (l Lease) clone() Lease {
	l.Terms = slices.Clone(l.Terms)
	return l
}

// millis rounds a time up to whole milliseconds, so that what is held never
// falls short of it.
func millis(d time.Duration) offpeak.Millis {
	return offpeak.Millis((d + time.Millisecond - 1).Truncate(time.Millisecond) / time.Millisecond)
}

func span(ms offpeak.Millis) time.Duration { return time.Duration(ms) * time.Millisecond }
