package ledger_test

import (
	"errors"
	"fmt"
	"iter"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/ledger"
)

// histories is how many random histories the model is compared with. Under the
// race detector, which makes big numbers slow, and with -short it is fewer.
func histories() int {
	if testing.Short() || raced {
		return 4_000
	}
	return 100_000
}

// TestLedgerAgainstRationals compares the ledger with exact rational arithmetic
// over random histories of holds, renewals, price changes, preemptions, and
// duplicate and reordered reports. I6 and I7 are checked after every step.
func TestLedgerAgainstRationals(t *testing.T) {
	t.Parallel()
	var total counts
	for seed := range uint64(histories()) {
		rng := rand.New(rand.NewPCG(5, seed))
		w := newWorld(rng.IntN)
		if err := w.run(); err != nil {
			t.Fatalf("history %d: %v", seed, err)
		}
		total.add(w.counts)
	}
	t.Logf("%d histories: %+v", histories(), total)
	// A generator that never comes somewhere proves nothing about it.
	for what, n := range map[string]int{
		"holds": total.holds, "renewals": total.renewals, "refused": total.refused, "stopped": total.stopped, "settled": total.settled,
		"repeated": total.repeated, "reordered": total.reordered, "late": total.late, "own": total.own, "budgets": total.budgets, "returned": total.returned,
	} {
		if n < histories()/200 {
			t.Errorf("only %d %s in %d histories", n, what, histories())
		}
	}
}

// TestLedgerShrinks is the same over fewer histories, which rapid shrinks.
func TestLedgerShrinks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		if err := newWorld(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }).run(); err != nil {
			t.Fatal(err)
		}
	})
}

type counts struct {
	holds, renewals, refused, stopped, settled, repeated, reordered, late, own, budgets, returned, steps int
}

func (c *counts) add(o counts) {
	c.holds += o.holds
	c.renewals += o.renewals
	c.refused += o.refused
	c.stopped += o.stopped
	c.settled += o.settled
	c.repeated += o.repeated
	c.reordered += o.reordered
	c.late += o.late
	c.own += o.own
	c.budgets += o.budgets
	c.returned += o.returned
	c.steps += o.steps
}

// world is a grid of three accounts and what has happened on it, once as the
// ledger has it and once as exact fractions.
type world struct {
	pick   func(n int) int
	now    time.Time
	rules  ledger.Rules
	counts counts

	book     ledger.Book
	log      []ledger.Transaction
	receipts []ledger.Receipt
	runs     []*run
	spent    map[offpeak.JobID]offpeak.MicroCredits
	deposits int

	// What everything should be.
	balances map[ledger.Account]*big.Rat
}

// run is one attempt.
type run struct {
	l       ledger.Lease
	budget  *offpeak.MicroCredits
	started time.Time
	// ran is the agent's own count; said are its reports, late or not.
	ran      offpeak.Millis
	said     []offpeak.Millis
	metered  offpeak.Millis
	kept     offpeak.Millis
	verdict  ledger.Verdict
	punctual bool
	frozen   bool
	end      ledger.Ending
	ended    bool
	held     *big.Rat
}

var accounts = []offpeak.AccountID{"acct_a", "acct_b", "acct_c"}

func newWorld(pick func(int) int) *world {
	w := &world{
		pick: pick, now: time.Date(2026, 3, 28, 22, 0, 0, 0, time.UTC),
		spent: map[offpeak.JobID]offpeak.MicroCredits{}, balances: map[ledger.Account]*big.Rat{},
	}
	w.rules = ledger.DefaultRules()
	if pick(2) == 0 {
		w.rules = ledger.Rules{
			Term: time.Duration(1+pick(7200)) * time.Second, Interval: time.Duration(1+pick(1200)) * time.Second,
			Lead: time.Duration(pick(120_000)) * time.Millisecond, Least: time.Duration(pick(300_000)) * time.Millisecond,
		}
	}
	w.rules.Fee = []ledger.BasisPoints{0, 1, 250, 3333, 10_000}[pick(5)]
	return w
}

func (w *world) run() error {
	for range 8 + w.pick(16) {
		w.counts.steps++
		var err error
		switch w.pick(8) {
		case 0:
			err = w.deposit()
		case 1:
			err = w.payout()
		case 2, 3:
			err = w.open()
		case 4, 5, 6:
			err = w.pass()
		default:
			if n := len(w.runs); n > 0 {
				err = w.finish(w.runs[w.pick(n)], offpeak.Ends()[w.pick(len(offpeak.Ends()))].Reason)
			}
		}
		if err == nil {
			err = w.invariants()
		}
		if err != nil {
			return err
		}
	}
	for _, r := range w.runs {
		if !r.ended {
			if err := w.finish(r, offpeak.EndCompleted); err != nil {
				return err
			}
		}
	}
	if err := w.invariants(); err != nil {
		return err
	}
	for f, err := range ledger.Check(w.books()) {
		return fmt.Errorf("check: %v %w", f, err)
	}
	return nil
}

func (w *world) books() ledger.Books {
	var facts []ledger.LeaseFacts
	for _, r := range w.runs {
		facts = append(facts, ledger.LeaseFacts{Lease: r.l, Ended: r.ended, Ending: r.end})
	}
	return ledger.Books{Transactions: all(w.log), Leases: all(facts), Receipts: all(w.receipts), Balances: all(w.book.Balances())}
}

func all[T any](list []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range list {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// amount draws from all magnitudes.
func (w *world) amount(digits int) int64 {
	n := int64(1)
	for range w.pick(digits) {
		n *= 10
	}
	return n * int64(1+w.pick(9))
}

func (w *world) price() offpeak.Price {
	if w.pick(10) == 0 {
		return 0
	}
	return offpeak.Price(min(w.amount(13)+int64(w.pick(1000)), int64(offpeak.MaxPrice)))
}

func (w *world) post(list ...ledger.Transaction) error {
	for _, t := range list {
		if err := w.book.Post(t); err != nil {
			return err
		}
		w.log = append(w.log, t)
		if w.pick(4) == 0 { // a retry
			w.counts.repeated++
			if err := w.book.Post(t); err != nil {
				return fmt.Errorf("again: %w", err)
			}
		}
		if t.Kind == ledger.KindHold {
			w.counts.holds++
		}
	}
	return nil
}

func (w *world) change(a ledger.Account, by *big.Rat) {
	if w.balances[a] == nil {
		w.balances[a] = new(big.Rat)
	}
	w.balances[a].Add(w.balances[a], by)
}

func (w *world) deposit() error {
	w.deposits++
	m := ledger.Movement{External: fmt.Sprint("bank-", w.deposits), Account: accounts[w.pick(3)], Amount: offpeak.MicroCredits(w.amount(14))}
	t, err := ledger.Deposit(m, w.now)
	if err != nil {
		return err
	}
	if err := w.post(t); err != nil {
		return err
	}
	w.change(ledger.Available(m.Account), rat(int64(m.Amount)))
	w.change(ledger.Grid(ledger.PartDeposits), rat(-int64(m.Amount)))
	m.Amount++
	other, err := ledger.Deposit(m, w.now)
	if err != nil {
		return err
	}
	if err := w.book.Post(other); !errors.Is(err, offpeak.ErrOperationConflict) {
		return fmt.Errorf("another amount under one reference: %w", err)
	}
	return nil
}

func (w *world) payout() error {
	a := accounts[w.pick(3)]
	have := w.book.Balance(ledger.Available(a))
	m := ledger.Movement{External: fmt.Sprint("out-", len(w.log)), Account: a, Amount: offpeak.MicroCredits(w.amount(14))}
	t, err := ledger.Payout(m, w.now)
	if err != nil {
		return err
	}
	if m.Amount > have {
		if err := w.book.Post(t); !errors.Is(err, offpeak.ErrFunds) {
			return fmt.Errorf("pay out %s of %s: %w", m.Amount, have, err)
		}
		return nil
	}
	if err := w.post(t); err != nil {
		return err
	}
	if w.pick(2) == 0 {
		w.counts.returned++
		t, err := ledger.PayoutReturned(m, w.now)
		if err != nil {
			return err
		}
		return w.post(t)
	}
	w.change(ledger.Available(a), rat(-int64(m.Amount)))
	w.change(ledger.Grid(ledger.PartPayouts), rat(int64(m.Amount)))
	return nil
}

func (w *world) funds(r *run) ledger.Funds {
	f := ledger.Funds{Available: w.book.Balance(ledger.Available(r.l.Payer)), Budget: r.budget, Committed: w.spent[r.l.Job]}
	for _, o := range w.runs {
		if o.l.Job == r.l.Job {
			f.Committed += o.l.Held
		}
	}
	return f
}

func (w *world) open() error {
	n := len(w.runs)
	job := offpeak.JobID(fmt.Sprint("job_", n/2))
	r := &run{held: new(big.Rat), punctual: w.pick(2) == 0, l: ledger.Lease{
		ID: offpeak.LeaseID(fmt.Sprint("lease_", n)), Job: job, Attempt: offpeak.Attempt(1 + n%2),
		Payer: accounts[w.pick(3)], Owner: accounts[w.pick(3)], Limit: offpeak.Millis(w.amount(9)) + offpeak.Millis(w.pick(1000)),
	}}
	if n%2 == 1 && w.runs[n-1].l.Job == job {
		r.l.Payer = w.runs[n-1].l.Payer
		r.budget = w.runs[n-1].budget
	} else if w.pick(3) == 0 {
		b := offpeak.MicroCredits(w.amount(13))
		r.budget = &b
		w.counts.budgets++
	}
	f := w.funds(r)
	l, list, v, err := ledger.Open(r.l, w.rules, f, w.now, w.price())
	if err != nil {
		if !errors.Is(err, offpeak.ErrFunds) || len(list) > 0 {
			return fmt.Errorf("open: %w", err)
		}
		w.counts.refused++
		return nil
	}
	if l.Payer == l.Owner {
		w.counts.own++
	}
	w.runs = append(w.runs, r)
	r.l, r.verdict = l, v
	return w.held(r, f, list)
}

// held takes over what a step held, and checks it against the fractions.
func (w *world) held(r *run, before ledger.Funds, list []ledger.Transaction) error {
	if err := w.post(list...); err != nil {
		return err
	}
	need := new(big.Rat)
	for _, t := range r.l.Terms {
		need.Add(need, floor(exact(t.Price, t.Paid)))
	}
	if need.Cmp(r.held) > 0 {
		more := new(big.Rat).Sub(need, r.held)
		w.change(ledger.Available(r.l.Payer), new(big.Rat).Neg(more))
		w.change(ledger.Held(r.l.Payer), more)
		r.held.Set(need)
	}
	if rat(int64(r.l.Held)).Cmp(r.held) != 0 {
		return fmt.Errorf("%s holds %s, its paid time takes %s", r.l.ID, r.l.Held, r.held.FloatString(6))
	}
	if r.budget != nil && w.funds(r).Committed > max(*r.budget, before.Committed) {
		return fmt.Errorf("%s: %s of the budget %s is committed", r.l.ID, w.funds(r).Committed, *r.budget)
	}
	return w.judged(r, list)
}

// judged checks the verdict of the step that was taken last.
func (w *world) judged(r *run, list []ledger.Transaction) error {
	var closed offpeak.Millis
	for _, t := range r.l.Terms[:len(r.l.Terms)-1] {
		closed += t.Metered
	}
	t, v := r.l.Terms[len(r.l.Terms)-1], r.verdict
	left := t.Paid - (r.metered - closed)
	if want := w.now.Add(time.Duration(left) * time.Millisecond); !v.PaidUntil.Equal(want) {
		return fmt.Errorf("%s: paid until %s, by its terms until %s", r.l.ID, v.PaidUntil, want)
	}
	if v.Covered && left < 0 {
		return fmt.Errorf("%s is covered but ran %d ms unpaid", r.l.ID, -left)
	}
	if v.Covered == (v.Stop == offpeak.EndBudgetSpent) || v.Covered != (v.Short == nil) {
		return fmt.Errorf("%s: verdict %+v", r.l.ID, v)
	}
	if v.Covered && v.Next.After(v.PaidUntil) && t.Paid+closed < r.l.Limit {
		return fmt.Errorf("%s: next step at %s, paid until %s", r.l.ID, v.Next, v.PaidUntil)
	}
	if !v.Covered {
		w.counts.stopped++
		if len(list) == 0 && v.Short.Have >= v.Short.Need {
			return fmt.Errorf("%s is stopped though %s cover %s", r.l.ID, v.Short.Have, v.Short.Need)
		}
	}
	return nil
}

// pass lets time go by for every lease, reports come in, and steps be taken.
func (w *world) pass() error {
	d := time.Duration(w.amount(8)) * time.Millisecond
	until := w.now.Add(d)
	for range 50 {
		// A hub that is on time wakes for each punctual lease.
		at := until
		for _, r := range w.runs {
			if !r.punctual || r.ended {
				continue
			}
			if next := r.verdict.Next; next.After(w.now) && next.Before(at) {
				at = next
			}
			if !r.verdict.Covered && r.verdict.PaidUntil.Before(at) {
				at = later(r.verdict.PaidUntil, w.now)
			}
		}
		w.advance(at)
		for _, r := range w.runs {
			if r.ended {
				continue
			}
			if err := w.report(r); err != nil {
				return err
			}
		}
		if !w.now.Before(until) {
			return nil
		}
	}
	return nil
}

func (w *world) advance(to time.Time) {
	for _, r := range w.runs {
		if !r.started.IsZero() && !r.ended && !r.frozen {
			r.ran += offpeak.Millis(to.Sub(w.now).Milliseconds())
		}
	}
	w.now = to
}

func (w *world) report(r *run) error {
	if r.started.IsZero() {
		if w.pick(4) == 0 {
			return w.step(r)
		}
		r.started = w.now
	}
	said := r.ran
	if !r.punctual {
		r.said = append(r.said, r.ran)
		switch w.pick(4) {
		case 0:
			said = r.said[w.pick(len(r.said))]
			w.counts.reordered++
		case 1:
			said += offpeak.Millis(w.pick(100_000)) // an agent that says too much
		}
	}
	meter := ledger.Meter{Was: r.metered, Said: said, Started: r.started, Limit: r.l.Limit, Holding: true}
	metered := meter.Accept(w.now)
	most := min(offpeak.Millis(w.now.Sub(r.started).Milliseconds()), r.l.Limit)
	if metered < r.metered || metered > most || r.punctual && metered != min(r.ran, r.l.Limit) {
		return fmt.Errorf("%s: metered %d after %d, the agent says %d", r.l.ID, metered, r.metered, said)
	}
	r.metered = metered
	if w.pick(3) == 0 {
		r.kept = r.metered
	}
	r.frozen = w.pick(5) == 0
	if !r.punctual && w.pick(2) == 0 {
		w.counts.late++
		return nil
	}
	return w.step(r)
}

func (w *world) step(r *run) error {
	if r.punctual && !r.verdict.Covered && !w.now.Before(r.verdict.PaidUntil) {
		return w.finish(r, offpeak.EndBudgetSpent)
	}
	f := w.funds(r)
	var list []ledger.Transaction
	var err error
	if !w.now.Before(r.l.Terms[len(r.l.Terms)-1].To) {
		n := len(r.l.Terms)
		r.l, list, r.verdict, err = r.l.Renew(w.rules, f, w.now, r.metered, w.price())
		w.counts.renewals += len(r.l.Terms) - n
	} else {
		r.l, list, r.verdict, err = r.l.Extend(w.rules, f, w.now, r.metered)
	}
	if err != nil {
		return err
	}
	return w.held(r, f, list)
}

func (w *world) finish(r *run, reason offpeak.EndReason) error {
	e := ledger.Ending{Reason: reason, Metered: r.metered, Kept: r.kept, At: w.now}
	if r.ended {
		l, list, lines, err := r.l.Settle(e)
		if settled := (*ledger.SettledError)(nil); !errors.As(err, &settled) || len(list) > 0 || len(lines) > 0 || l.Held != 0 {
			return fmt.Errorf("settle %s again: %w", r.l.ID, err)
		}
		w.counts.repeated++
		return nil
	}
	before := r.l
	l, list, lines, err := r.l.Settle(e)
	if err != nil {
		return err
	}
	r.l, r.end, r.ended = l, e, true
	w.receipts = append(w.receipts, lines...)
	w.counts.settled++
	w.spent[l.Job] += ledger.Charged(lines)
	end, _ := offpeak.EndOf(reason)

	// The same in fractions.
	left := map[offpeak.Charge]offpeak.Millis{offpeak.ChargeFull: r.metered, offpeak.ChargeKept: min(r.kept, r.metered)}[end.Charge]
	var exactly, charged, owner, fee big.Rat
	share := big.NewRat(int64(before.Fee), 10_000)
	for _, t := range l.Terms {
		billed := min(left, t.Metered)
		left -= billed
		cost := exact(t.Price, min(billed, t.Paid))
		exactly.Add(&exactly, cost)
		cost = floor(cost)
		charged.Add(&charged, cost)
		f := new(big.Rat).Mul(cost, share)
		owner.Add(&owner, floor(new(big.Rat).Sub(cost, f)))
		fee.Add(&fee, floor(f))
	}
	if left != 0 {
		return fmt.Errorf("%s: %d ms are in no term", l.ID, left)
	}
	if rat(int64(ledger.Charged(lines))).Cmp(&charged) != 0 {
		return fmt.Errorf("%s is charged %s, exactly it is %s", l.ID, ledger.Charged(lines), exactly.FloatString(9))
	}
	// I7: rounding gives the submitter less than a micro-credit a line; and the
	// charge is no more than was held.
	if lost := new(big.Rat).Sub(&exactly, &charged); lost.Sign() < 0 || lost.Cmp(rat(int64(len(lines)))) >= 0 {
		return fmt.Errorf("%s: rounding took %s", l.ID, lost.FloatString(9))
	}
	if charged.Cmp(rat(int64(before.Held))) > 0 {
		return fmt.Errorf("%s is charged %s of %s held", l.ID, charged.FloatString(0), before.Held)
	}
	// The owner is paid for all that ran, where the hub was on time.
	if r.punctual && end.Charge == offpeak.ChargeFull {
		for _, line := range lines {
			if line.Billed != line.Term.Metered {
				return fmt.Errorf("%s: %d of %d ms were paid in term %d", l.ID, line.Billed, line.Term.Metered, line.Term.N)
			}
		}
	}
	rest := new(big.Rat).Sub(&charged, &owner)
	rest.Sub(rest, &fee)
	w.change(ledger.Held(l.Payer), new(big.Rat).Neg(r.held))
	w.change(ledger.Available(l.Payer), new(big.Rat).Sub(r.held, &charged))
	w.change(ledger.Available(l.Owner), &owner)
	w.change(ledger.Grid(ledger.PartFee), &fee)
	w.change(ledger.Grid(ledger.PartRounding), rest)
	return w.post(list...)
}

// invariants are I6 and what the fractions say.
func (w *world) invariants() error {
	var sum offpeak.MicroCredits
	held := map[offpeak.AccountID]offpeak.MicroCredits{}
	for _, r := range w.runs {
		held[r.l.Payer] += r.l.Held
		if r.ended && r.l.Held != 0 {
			return fmt.Errorf("%s has ended and holds %s", r.l.ID, r.l.Held)
		}
	}
	for _, b := range w.book.Balances() {
		sum += b.Amount
		if b.Amount < 0 && b.Account != ledger.Grid(ledger.PartDeposits) {
			return fmt.Errorf("%s is negative: %s", b.Account, b.Amount)
		}
		if b.Account.Part == ledger.PartHeld && b.Amount != held[b.Account.Of] {
			return fmt.Errorf("%s has %s, leases hold %s", b.Account, b.Amount, held[b.Account.Of])
		}
		want := w.balances[b.Account]
		if want == nil {
			want = new(big.Rat)
		}
		if rat(int64(b.Amount)).Cmp(want) != 0 {
			return fmt.Errorf("%s has %s, by fractions %s", b.Account, b.Amount, want.FloatString(6))
		}
	}
	if sum != 0 {
		return fmt.Errorf("the ledger sums to %s", sum)
	}
	return nil
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// exact is what time costs, as a fraction.
func exact(p offpeak.Price, ms offpeak.Millis) *big.Rat {
	return new(big.Rat).Mul(rat(int64(p)), big.NewRat(int64(ms), 3_600_000))
}

func floor(r *big.Rat) *big.Rat {
	return new(big.Rat).SetInt(new(big.Int).Quo(r.Num(), r.Denom()))
}

func later(a, b time.Time) time.Time {
	return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare)
}
