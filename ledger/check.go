package ledger

import (
	"fmt"
	"iter"
	"slices"

	"offpeak"
)

// Books is everything that is stored of a ledger, as of one moment.
type Books struct {
	// Transactions come in the order in which they were appended.
	Transactions iter.Seq2[Transaction, error]
	Leases       iter.Seq2[LeaseFacts, error]
	Receipts     iter.Seq2[Receipt, error]
	// Balances are the stored ones. An account without a row has 0.
	Balances iter.Seq2[Balance, error]
}

// LeaseFacts is what is stored of one lease beside its money.
type LeaseFacts struct {
	Lease Lease
	// Ended says whether the lease is in a final state, Ending how it came to it.
	Ended  bool
	Ending Ending
	// MaxPrice is the job's limit, nil for none.
	MaxPrice *offpeak.Price
}

// FindingKind says what is wrong.
type FindingKind string

// The kinds of findings.
const (
	// FindForm: a transaction is not valid, for example does not sum to zero.
	FindForm FindingKind = "form"
	// FindRepeated: a transaction or a lease is there more than once.
	FindRepeated FindingKind = "repeated"
	// FindOverdrawn: an account that may not was below zero at some time.
	FindOverdrawn FindingKind = "overdrawn"
	// FindBalance: a stored balance is not the sum of the account's entries.
	FindBalance FindingKind = "balance"
	// FindOrphan: a transaction or a receipt is of a lease that is not there.
	FindOrphan FindingKind = "orphan"
	// FindHeld: what a lease holds is not what its transactions say.
	FindHeld FindingKind = "held"
	// FindUnsettled: a lease has ended and is not settled, or the reverse.
	FindUnsettled FindingKind = "unsettled"
	// FindSettlement: a settlement is not what the lease's receipt says.
	FindSettlement FindingKind = "settlement"
	// FindReceipt: a line of a receipt does not follow from itself.
	FindReceipt FindingKind = "receipt"
	// FindTerms: a receipt is not about the terms that the lease had, or those
	// do not agree with the lease.
	FindTerms FindingKind = "terms"
	// FindUncovered: more time was paid for than was held for.
	FindUncovered FindingKind = "uncovered"
	// FindPrice: a term's price is above the job's limit.
	FindPrice FindingKind = "price"
)

// invariant returns which invariant of the design a kind of finding breaks.
func (k FindingKind) invariant() string {
	switch k {
	case FindReceipt, FindTerms, FindUncovered:
		return "I7"
	case FindPrice:
		return "I8"
	}
	return "I6"
}

// Finding is one difference between what is stored and what follows from it.
type Finding struct {
	// Invariant is "I6", "I7" or "I8".
	Invariant string      `json:"invariant"`
	Kind      FindingKind `json:"kind"`
	// Object is the transaction, ledger account or lease.
	Object string `json:"object"`
	// Text says what differs from what.
	Text string `json:"text"`
}

// String prints the finding in one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s %s: %s: %s", f.Invariant, f.Kind, f.Object, f.Text)
}

// Check recomputes every balance from the entries, every receipt from its
// metered time and price, and every settlement from its receipt, and yields
// each difference. It ends with the first error of a source. It takes memory
// for each account, transaction id, lease and receipt line.
func Check(b Books) iter.Seq2[Finding, error] {
	return func(yield func(Finding, error) bool) {
		c := checker{
			ids: map[TransactionID]struct{}{}, balances: map[Account]offpeak.MicroCredits{},
			leases: map[offpeak.LeaseID]*tally{}, going: true,
		}
		c.yield = yield
		for _, pass := range []func(Books) error{c.transactions, c.receipts, c.compareLeases, c.orphans, c.compareBalances} {
			err := pass(b)
			switch {
			case !c.going:
				return
			case err != nil:
				yield(Finding{}, err)
				return
			}
		}
	}
}

// tally is what transactions and receipts say of one lease.
type tally struct {
	// known is set once the lease itself is seen; first is what named it before.
	known bool
	first string
	// held is what was set aside in all, open what still is.
	held, open offpeak.MicroCredits
	payers     []offpeak.AccountID
	holds      int
	settled    []Transaction
	lines      []Receipt
}

type checker struct {
	yield    func(Finding, error) bool
	going    bool
	ids      map[TransactionID]struct{}
	balances map[Account]offpeak.MicroCredits
	leases   map[offpeak.LeaseID]*tally
	order    []offpeak.LeaseID
}

func (c *checker) find(k FindingKind, object, format string, args ...any) {
	if c.going {
		c.going = c.yield(Finding{Invariant: k.invariant(), Kind: k, Object: object, Text: fmt.Sprintf(format, args...)}, nil)
	}
}

func (c *checker) tally(id offpeak.LeaseID, first string) *tally {
	t := c.leases[id]
	if t == nil {
		t = &tally{first: first}
		c.leases[id] = t
		c.order = append(c.order, id)
	}
	return t
}

func (c *checker) transactions(b Books) error {
	for t, err := range b.Transactions {
		if err != nil {
			return err
		}
		object := string(t.ID)
		if _, again := c.ids[t.ID]; again {
			c.find(FindRepeated, object, "its id is used more than once")
		}
		c.ids[t.ID] = struct{}{}
		if err := t.Validate(); err != nil {
			c.find(FindForm, object, "%v", err)
		}
		for _, e := range t.Entries {
			is, ok := add(c.balances[e.Account], e.Amount)
			if !ok {
				c.find(FindForm, object, "the balance of %s overflows", e.Account)
				continue
			}
			c.balances[e.Account] = is
			if is < 0 && e.Amount < 0 && !e.Account.MayBeNegative() {
				c.find(FindOverdrawn, e.Account.String(), "%s left it with %s", t.ID, is)
			}
		}
		if t.Subject.Lease != "" {
			c.tally(t.Subject.Lease, "transaction "+object).take(t)
		}
		if !c.going {
			return nil
		}
	}
	return nil
}

// take notes a transaction of the lease.
func (l *tally) take(t Transaction) {
	for _, e := range t.Entries {
		if e.Account.Part != PartHeld {
			continue
		}
		if !slices.Contains(l.payers, e.Account.Of) {
			l.payers = append(l.payers, e.Account.Of)
		}
		l.open += e.Amount
		if t.Kind == KindHold {
			l.held += e.Amount
		}
	}
	switch t.Kind {
	case KindHold:
		l.holds++
	case KindSettle:
		l.settled = append(l.settled, t)
	}
}

func (c *checker) receipts(b Books) error {
	for r, err := range b.Receipts {
		if err != nil {
			return err
		}
		object := fmt.Sprintf("%s term %d", r.Lease, r.Term.N)
		t := c.tally(r.Lease, "receipt "+object)
		t.lines = append(t.lines, r)
		switch want, err := Recompute(r); {
		case err != nil:
			c.find(FindReceipt, object, "%v", err)
		case want.Rule != r.Rule:
			c.find(FindReceipt, object, "has the rule %q, the reason %s has %q", r.Rule, r.Reason, want.Rule)
		case want.Billed != r.Billed:
			c.find(FindReceipt, object, "bills %d ms, the rule %s gives %d ms", r.Billed, r.Rule, want.Billed)
		case want.Charged != r.Charged:
			c.find(FindReceipt, object, "charges %s, %d ms at %s cost %s", r.Charged, r.Billed, r.Term.Price, want.Charged)
		case want.Split != r.Split:
			c.find(FindReceipt, object, "is split %s, %s, %s; %d basis points of %s give %s, %s, %s", r.Split.Earned, r.Split.Fee, r.Split.Rounding,
				r.Fee, r.Charged, want.Split.Earned, want.Split.Fee, want.Split.Rounding)
		}
		if !c.going {
			return nil
		}
	}
	return nil
}

func (c *checker) compareLeases(b Books) error {
	for f, err := range b.Leases {
		if err != nil {
			return err
		}
		t := c.tally(f.Lease.ID, "")
		if t.known {
			c.find(FindRepeated, string(f.Lease.ID), "is there more than once")
			continue
		}
		t.known = true
		c.lease(f, t)
		if !c.going {
			return nil
		}
	}
	return nil
}

// lease compares a lease with its transactions and its receipt.
func (c *checker) lease(f LeaseFacts, t *tally) {
	l, id := f.Lease, string(f.Lease.ID)
	if l.Settled != f.Ended {
		c.find(FindUnsettled, id, "has ended: %t, is settled: %t", f.Ended, l.Settled)
	}
	if l.Held != t.open {
		c.find(FindHeld, id, "holds %s, its transactions leave %s", l.Held, t.open)
	}
	if l.Settled && l.Held != 0 {
		c.find(FindHeld, id, "is settled and holds %s", l.Held)
	}
	if l.Holds != t.holds {
		c.find(FindHeld, id, "counts %d holds, there are %d", l.Holds, t.holds)
	}
	for _, p := range t.payers {
		if p != l.Payer {
			c.find(FindHeld, id, "is paid by %s, its transactions are of %s", l.Payer, p)
		}
	}
	if !c.terms(f, t) {
		return // what follows would only say the same again
	}
	want := 0
	if l.Settled && t.held > 0 {
		want = 1
	}
	if len(t.settled) != want {
		c.find(FindSettlement, id, "is settled: %t, held %s, and has %d settlements", l.Settled, t.held, len(t.settled))
	}
	if len(t.settled) == 1 && l.Settled {
		l.Held = t.held
		should := settlement(l, f.Ending.At, t.lines)
		if err := t.settled[0].Again(should); err != nil || t.settled[0].ID != should.ID {
			c.find(FindSettlement, id, "%s has the entries %v, the receipt gives %v", t.settled[0].ID, t.settled[0].Entries, should.Entries)
		}
	}
}

// terms compares a lease's terms with what was held for them, with the job's
// limits and with the receipt. It returns false where they can't be right.
func (c *checker) terms(f LeaseFacts, t *tally) (right bool) {
	l, id := f.Lease, string(f.Lease.ID)
	bad := func(k FindingKind, format string, args ...any) {
		c.find(k, id, format, args...)
		right = false
	}
	right = true
	var metered offpeak.Millis
	var paid offpeak.MicroCredits
	for i, term := range l.Terms {
		costs, err := Charge(term.Price, term.Paid)
		sum, fits := add(paid, costs)
		if err != nil || !fits {
			bad(FindTerms, "has a term %d whose paid time has no price: %d ms at %s", term.N, term.Paid, term.Price)
			return right
		}
		paid = sum
		if term.N != i+1 || term.Metered < 0 || term.Metered > MaxMillis {
			bad(FindTerms, "has %d ms in term %d, which is the one at place %d", term.Metered, term.N, i+1)
			return right
		}
		metered += term.Metered
		if f.MaxPrice != nil && term.Price > *f.MaxPrice {
			c.find(FindPrice, id, "was leased at %s in term %d, the job's limit is %s", term.Price, term.N, *f.MaxPrice)
		}
	}
	if paid > t.held {
		c.find(FindUncovered, id, "is paid for time that costs %s, held were %s", paid, t.held)
	}
	if !l.Settled {
		if len(t.lines) > 0 {
			bad(FindTerms, "is not settled and has a receipt")
		}
		return right
	}
	if metered > l.Limit {
		bad(FindTerms, "metered %d ms, its time limit is %d ms", metered, l.Limit)
	}
	if metered != f.Ending.Metered {
		bad(FindTerms, "metered %d ms, its terms have %d ms", f.Ending.Metered, metered)
	}
	if len(t.lines) != len(l.Terms) {
		bad(FindTerms, "has %d terms and %d lines of receipt", len(l.Terms), len(t.lines))
		return right
	}
	slices.SortStableFunc(t.lines, func(a, b Receipt) int { return a.Term.N - b.Term.N })
	kept := max(f.Ending.Kept, 0)
	for i, r := range t.lines {
		term := l.Terms[i]
		want := Receipt{Lease: l.ID, Job: l.Job, Attempt: l.Attempt, Payer: l.Payer, Owner: l.Owner, Reason: f.Ending.Reason, Fee: l.Fee, Kept: min(kept, term.Metered)}
		kept -= want.Kept
		have := Receipt{Lease: r.Lease, Job: r.Job, Attempt: r.Attempt, Payer: r.Payer, Owner: r.Owner, Reason: r.Reason, Fee: r.Fee, Kept: r.Kept}
		if !r.Term.same(term) {
			bad(FindTerms, "has a receipt for term %+v, which was %+v", r.Term, term)
		} else if have != want {
			bad(FindTerms, "has a receipt for term %d with %+v, it is %+v", term.N, have, want)
		}
	}
	return right
}

// same compares two terms; times are equal when they are the same moment.
func (t Term) same(o Term) bool {
	times := t.From.Equal(o.From) && t.To.Equal(o.To)
	t.From, t.To = o.From, o.To
	return times && t == o
}

// orphans finds what belongs to no lease.
func (c *checker) orphans(Books) error {
	for _, id := range c.order {
		if t := c.leases[id]; !t.known {
			c.find(FindOrphan, string(id), "there is a %s but no such lease", t.first)
		}
	}
	return nil
}

func (c *checker) compareBalances(b Books) error {
	seen := map[Account]bool{}
	for s, err := range b.Balances {
		if err != nil {
			return err
		}
		if seen[s.Account] {
			c.find(FindRepeated, s.Account.String(), "its balance is there more than once")
		}
		seen[s.Account] = true
		if want := c.balances[s.Account]; want != s.Amount {
			c.find(FindBalance, s.Account.String(), "is stored with %s, its entries sum to %s", s.Amount, want)
		}
		if !c.going {
			return nil
		}
	}
	var missing []Account
	for a, m := range c.balances {
		if m != 0 && !seen[a] {
			missing = append(missing, a)
		}
	}
	slices.SortFunc(missing, compareAccounts)
	for _, a := range missing {
		c.find(FindBalance, a.String(), "is not stored, its entries sum to %s", c.balances[a])
	}
	return nil
}
