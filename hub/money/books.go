package money

import (
	"context"
	"iter"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/store"
	"offpeak/wire"
)

// Balance says what an account has.
func (t *Till) Balance(ctx context.Context, account offpeak.AccountID) (wire.Balance, error) {
	b, err := t.env.Store.Balances(ctx, account)
	return wire.Balance{Account: account, Available: b.Available, Held: b.Held}, err
}

// GridBalance says what all accounts and the grid itself have.
func (t *Till) GridBalance(ctx context.Context) (wire.GridBalance, error) {
	sums, err := t.env.Store.Totals(ctx)
	// The world's account of deposits owes what it gave.
	return wire.GridBalance{
		Deposits: -sums[ledger.PartDeposits], Payouts: sums[ledger.PartPayouts],
		Available: sums[ledger.PartAvailable], Held: sums[ledger.PartHeld],
		Fee: sums[ledger.PartFee], Rounding: sums[ledger.PartRounding],
	}, err
}

// Receipt says what a job's settled attempts cost, and to an account that only
// was paid by it, what those attempts brought.
func (t *Till) Receipt(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) (wire.Receipt, error) {
	lines, err := t.env.Store.Receipts(ctx, account, job)
	if err != nil {
		return wire.Receipt{}, err
	}
	out := wire.Receipt{Job: job, Lines: make([]wire.ReceiptLine, 0, len(lines)), Total: ledger.Charged(lines)}
	for _, r := range lines {
		out.Lines = append(out.Lines, wire.ReceiptLine{
			Lease: r.Lease, Attempt: r.Attempt, Payer: r.Payer, Owner: r.Owner,
			Term: r.Term.N, Price: r.Term.Price, Metered: r.Term.Metered, Paid: r.Term.Paid, Kept: r.Kept,
			Reason: r.Reason, Rule: r.Rule, Billed: r.Billed, Charged: r.Charged,
			Fee: int(r.Fee), Earned: r.Split.Earned, Operator: r.Split.Fee, Rounding: r.Split.Rounding,
		})
	}
	return out, nil
}

// Earned says what a node brought its owner: since today began where the owner is,
// in the last seven days, and ever.
func (t *Till) Earned(ctx context.Context, node offpeak.NodeID, today time.Time) (wire.Earnings, error) {
	now, err := t.env.Store.Now(ctx)
	if err != nil {
		return wire.Earnings{}, err
	}
	if today.IsZero() {
		today = now.UTC().Truncate(24 * time.Hour)
	}
	sums, err := t.env.Store.Earned(ctx, node, today, now.Add(-7*24*time.Hour), time.Time{})
	if err != nil {
		return wire.Earnings{}, err
	}
	return wire.Earnings{Today: sums[0], Week: sums[1], Total: sums[2], At: now.UTC()}, nil
}

// Statement walks over what changed an account's balances from one moment on and
// before another (zero: no bound), the oldest first. Who the other side of a
// transaction is stays theirs.
func (t *Till) Statement(ctx context.Context, account offpeak.AccountID, from, until time.Time) iter.Seq2[wire.StatementLine, error] {
	return func(yield func(wire.StatementLine, error) bool) {
		var after store.Balances
		var last time.Time
		for x, err := range t.env.Store.Statement(ctx, account) {
			if err != nil {
				yield(wire.StatementLine{}, err)
				return
			}
			// Who waited for another's lock was stamped before it and written after it.
			if x.At.Before(last) {
				x.At = last
			}
			last = x.At
			line := wire.StatementLine{
				At: x.At.UTC(), Transaction: string(x.ID), Kind: string(x.Kind),
				Job: x.Subject.Job, Attempt: x.Subject.Attempt, External: x.Subject.External,
			}
			for _, e := range x.Entries {
				switch e.Account {
				case ledger.Available(account):
					line.Available += e.Amount
				case ledger.Held(account):
					line.Held += e.Amount
				}
			}
			after.Available, after.Held = after.Available+line.Available, after.Held+line.Held
			line.AvailableAfter, line.HeldAfter = after.Available, after.Held
			if x.At.Before(from) || !until.IsZero() && !x.At.Before(until) {
				continue
			}
			if !yield(line, nil) {
				return
			}
		}
	}
}
