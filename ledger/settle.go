package ledger

import (
	"fmt"
	"time"

	"offpeak"
)

// Ending is how an attempt ended.
type Ending struct {
	Reason offpeak.EndReason
	// Metered is what Meter accepted last.
	Metered offpeak.Millis
	// Kept is the metered time at which the attempt's last stored checkpoint
	// was taken, 0 for none.
	Kept offpeak.Millis
	At   time.Time
}

// Receipt is one line of what an attempt cost: one price term. Whoever has it
// can recompute the charge by the rule in the package comment.
type Receipt struct {
	Lease   offpeak.LeaseID   `json:"lease"`
	Job     offpeak.JobID     `json:"job"`
	Attempt offpeak.Attempt   `json:"attempt"`
	Payer   offpeak.AccountID `json:"payer"`
	Owner   offpeak.AccountID `json:"owner"`
	// Term has the price, and how much was metered and paid for at it.
	Term Term `json:"term"`
	// Kept is how much of the term's metered time the last stored checkpoint
	// keeps.
	Kept offpeak.Millis `json:"kept_ms"`
	// Reason is why the attempt ended, Rule is what that means for the charge.
	Reason offpeak.EndReason `json:"reason"`
	Rule   offpeak.Charge    `json:"rule"`
	// Billed is the time that is charged: by the rule full all metered time,
	// by the rule kept the kept time, by the rule nothing none; never more
	// than was paid for.
	Billed offpeak.Millis `json:"billed_ms"`
	// Charged is what Billed costs at the term's price.
	Charged offpeak.MicroCredits `json:"charged"`
	// Fee is the operator's share in basis points; Split is who got what.
	Fee   BasisPoints `json:"fee_basis_points"`
	Split Split       `json:"split"`
}

// Recompute returns the receipt with everything that follows from its other
// fields computed anew: the rule from the reason, the billed time from the
// rule, the charge and its split from those. It returns a *RangeError for a
// receipt whose figures are out of bounds and a *offpeak.FieldError for a
// reason that is not in the table of ends.
func Recompute(r Receipt) (Receipt, error) {
	end, known := offpeak.EndOf(r.Reason)
	if !known {
		return r, &offpeak.FieldError{Field: "reason", Value: string(r.Reason), Rule: "stands in the table of ends"}
	}
	r.Rule = end.Charge
	switch r.Rule {
	case offpeak.ChargeFull:
		r.Billed = min(r.Term.Metered, r.Term.Paid)
	case offpeak.ChargeKept:
		r.Billed = min(r.Kept, r.Term.Metered, r.Term.Paid)
	default:
		r.Billed = 0
	}
	var err error
	if r.Charged, err = Charge(r.Term.Price, r.Billed); err != nil {
		return r, err
	}
	r.Split, err = Divide(r.Charged, r.Fee)
	return r, err
}

// Settle ends a lease's money: it charges what the table of ends says, pays
// the owner and the operator, and releases what is left of the hold. The
// receipt has one line for each price term; the kept time covers terms from
// the first one on. There is no transaction where nothing was held. It returns
// a *SettledError for a lease that is settled, and then nothing is to be done;
// and a *offpeak.FieldError for a reason that is not in the table.
func (l Lease) Settle(e Ending) (Lease, []Transaction, []Receipt, error) {
	if l.Settled {
		return l, nil, nil, &SettledError{Lease: l.ID}
	}
	n := l.clone()
	last := n.last()
	last.Metered, last.To = l.inTerm(e.Metered), e.At
	kept := max(e.Kept, 0)
	lines := make([]Receipt, 0, len(n.Terms))
	for _, t := range n.Terms {
		line := Receipt{
			Lease: l.ID, Job: l.Job, Attempt: l.Attempt, Payer: l.Payer, Owner: l.Owner,
			Term: t, Kept: min(kept, t.Metered), Reason: e.Reason, Fee: l.Fee,
		}
		kept -= line.Kept
		line, err := Recompute(line)
		if err != nil {
			return l, nil, nil, fmt.Errorf("settle lease %s: %w", l.ID, err)
		}
		lines = append(lines, line)
	}
	var list []Transaction
	if l.Held > 0 {
		list = []Transaction{settlement(l, e.At, lines)}
	}
	n.Held, n.Settled = 0, true
	return n, list, lines, nil
}

// settlement is the transaction of a receipt. Payer and owner may be the same
// account: its entries are one.
func settlement(l Lease, at time.Time, lines []Receipt) Transaction {
	t := Transaction{
		ID: SettleID(l.ID), Kind: KindSettle, At: at,
		Subject: Subject{Job: l.Job, Lease: l.ID, Attempt: l.Attempt},
	}
	var charged offpeak.MicroCredits
	var split Split
	for _, r := range lines {
		charged += r.Charged
		split.Earned += r.Split.Earned
		split.Fee += r.Split.Fee
		split.Rounding += r.Split.Rounding
	}
	give := func(a Account, m offpeak.MicroCredits) {
		if m == 0 {
			return
		}
		for i := range t.Entries {
			if t.Entries[i].Account == a {
				t.Entries[i].Amount += m
				return
			}
		}
		t.Entries = append(t.Entries, Entry{Account: a, Amount: m})
	}
	give(Held(l.Payer), -l.Held)
	give(Available(l.Payer), l.Held-charged)
	give(Available(l.Owner), split.Earned)
	give(Grid(PartFee), split.Fee)
	give(Grid(PartRounding), split.Rounding)
	return t
}

// Charged sums what the lines of a receipt cost.
func Charged(lines []Receipt) (sum offpeak.MicroCredits) {
	for _, r := range lines {
		sum += r.Charged
	}
	return sum
}
