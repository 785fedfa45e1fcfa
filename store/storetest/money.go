package storetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/store"
)

// deposit gives an account money.
func (g *grid) deposit(to offpeak.AccountID, amount offpeak.MicroCredits) ledger.Transaction {
	g.Helper()
	t, err := ledger.Deposit(ledger.Movement{External: g.id("bank"), Account: to, Amount: amount}, g.clock.Now())
	if err != nil {
		g.Fatalf("Deposit: %v", err)
	}
	if _, err := g.Post(context.Background(), g.op(), []ledger.Transaction{t}); err != nil {
		g.Fatalf("Post: %v", err)
	}
	return t
}

func (g *grid) balances(of offpeak.AccountID) store.Balances {
	g.Helper()
	b, err := g.Balances(context.Background(), of)
	if err != nil {
		g.Fatalf("Balances: %v", err)
	}
	return b
}

// priced submits for an account and claims at a price per hour.
func (g *grid) priced(of offpeak.AccountID, node offpeak.NodeID, price offpeak.Price) (offpeak.Job, store.Claimed) {
	g.Helper()
	ctx := context.Background()
	op := g.op()
	op.Actor.Account = of
	j, err := g.Submit(ctx, op, store.NewJob{ID: offpeak.JobID(g.id("job")), Account: of, Spec: spec()})
	if err != nil {
		g.Fatalf("Submit: %v", err)
	}
	c := g.ask(j.ID, 1, node)
	c.Price = price
	out, err := g.Claim(ctx, []store.Claim{c})
	if err != nil {
		g.Fatalf("Claim: %v", err)
	}
	return j, out[0]
}

// Deposits and payouts are written once, whoever says them how often, and never
// overdraw an account.
func money(t *testing.T, g *grid) {
	ctx := context.Background()
	poor, err := g.CreateAccount(ctx, g.op(), offpeak.Account{ID: "acct_poor", Name: "poor"})
	if err != nil {
		t.Fatal(err)
	}
	in := g.deposit(poor.ID, 5*offpeak.Credit)
	if fresh, err := g.Post(ctx, g.op(), []ledger.Transaction{in}); err != nil || fresh != 0 {
		t.Errorf("the same deposit again: %d, %v", fresh, err)
	}
	if list, err := g.Transactions(ctx, []ledger.TransactionID{"deposit/none", in.ID}); err != nil || len(list) != 1 || in.Again(list[0]) != nil {
		t.Errorf("the deposit by its id: %+v, %v", list, err)
	}
	other := in
	other.Entries = []ledger.Entry{{Account: ledger.Grid(ledger.PartDeposits), Amount: -7}, {Account: ledger.Available(poor.ID), Amount: 7}}
	if _, err := g.Post(ctx, g.op(), []ledger.Transaction{other}); !errors.As(err, new(*ledger.ConflictError)) {
		t.Errorf("another deposit under its id = %v", err)
	}
	out, err := ledger.Payout(ledger.Movement{External: "out", Account: poor.ID, Amount: 6 * offpeak.Credit}, g.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Post(ctx, g.op(), []ledger.Transaction{out}); !errors.Is(err, offpeak.ErrFunds) {
		t.Errorf("a payout of more than there is = %v", err)
	}
	// What is posted has the store's time, and keeps how a batch was asked for.
	batch := ledger.Batch{ID: "b", Direction: ledger.DirectionPayouts, Minimum: 3, Movements: []ledger.Movement{{External: "b/1", Account: poor.ID, Amount: 4}}}
	rows, err := batch.Transactions(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Post(ctx, g.op(), rows); err != nil {
		t.Fatal(err)
	}
	if list, err := g.Transactions(ctx, []ledger.TransactionID{rows[0].ID}); err != nil || len(list) != 1 || rows[0].Again(list[0]) != nil || !list[0].At.Equal(g.clock.Now()) {
		t.Errorf("the row of a batch: %+v, %v", list, err)
	}
	otherwise := rows[0]
	otherwise.Subject.Minimum = 0
	if _, err := g.Post(ctx, g.op(), []ledger.Transaction{otherwise}); !errors.As(err, new(*ledger.ConflictError)) {
		t.Errorf("the same row of a batch that was asked for otherwise = %v", err)
	}
	back, err := ledger.PayoutReturned(batch.Movements[0], time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Post(ctx, g.op(), []ledger.Transaction{back}); err != nil {
		t.Fatal(err)
	}
	lost, err := ledger.Deposit(ledger.Movement{External: "lost", Account: "acct_nobody", Amount: 1}, g.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Post(ctx, g.op(), []ledger.Transaction{lost}); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("a deposit to nobody = %v", err)
	}
	if b := g.balances(poor.ID); b != (store.Balances{Available: 5 * offpeak.Credit}) {
		t.Errorf("balances are %+v", b)
	}
	var all []ledger.TransactionID
	for x, err := range g.Statement(ctx, poor.ID) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x.ID)
	}
	if !slices.Equal(all, []ledger.TransactionID{in.ID, rows[0].ID, back.ID}) {
		t.Errorf("the statement is %v", all)
	}
	sums, err := g.Totals(ctx)
	if err != nil || sums[ledger.PartAvailable]+sums[ledger.PartDeposits] != 0 || sums[ledger.PartAvailable] < 5*offpeak.Credit {
		t.Errorf("the sums are %v, %v", sums, err)
	}
	if bad, err := g.CheckLedger(ctx); err != nil || len(bad) > 0 {
		t.Errorf("the ledger differs: %v, %v", bad, err)
	}
}

// An attempt is paid for as the table of ends says, once, to whom the node belongs.
func moneyEnds(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	payer := g.other()
	stranger, err := g.CreateAccount(ctx, g.op(), offpeak.Account{ID: "acct_stranger", Name: "stranger"})
	if err != nil {
		t.Fatal(err)
	}
	const perHour = offpeak.Price(3600 * offpeak.Credit) // a credit a second
	var had offpeak.MicroCredits
	idle := g.enrol(0)
	for _, c := range []struct {
		reason  offpeak.EndReason
		charged offpeak.MicroCredits
	}{
		{offpeak.EndCompleted, 20 * offpeak.Credit},
		{offpeak.EndExitNonzero, 20 * offpeak.Credit},
		{offpeak.EndNodeError, 0},
	} {
		before, earned := g.balances(payer), g.balances(g.account)
		j, claimed := g.priced(payer, n.ID, perHour)
		if claimed.Err != nil {
			t.Fatal(claimed.Err)
		}
		if b := g.balances(payer); b.Held != 600*offpeak.Credit || b.Available != before.Available-b.Held {
			t.Errorf("%s: while it runs: %+v", c.reason, b)
		}
		g.accept(*claimed.Lease)
		r := g.reportOf(*claimed.Lease, store.ReportRunning)
		g.report(r)
		g.clock.Advance(20 * time.Second)
		g.ended(*claimed.Lease, c.reason, 20_000)
		if b := g.balances(payer); b.Held != 0 || before.Available-b.Available != c.charged {
			t.Errorf("%s: paid %s, holds %s", c.reason, before.Available-b.Available, b.Held)
		}
		if b := g.balances(g.account); b.Available-earned.Available != c.charged {
			t.Errorf("%s: the owner got %s", c.reason, b.Available-earned.Available)
		}
		lines, err := g.Receipts(ctx, "", j.ID)
		if err != nil || len(lines) != 1 || lines[0].Charged != c.charged {
			t.Fatalf("%s: receipts %+v, %v", c.reason, lines, err)
		}
		for _, of := range []offpeak.AccountID{payer, g.account} {
			if seen, err := g.Receipts(ctx, of, j.ID); err != nil || len(seen) != 1 {
				t.Errorf("%s: %s sees %+v, %v", c.reason, of, seen, err)
			}
		}
		if seen, err := g.Receipts(ctx, stranger.ID, j.ID); !errors.Is(err, offpeak.ErrNotFound) {
			t.Errorf("%s: a stranger sees %+v, %v", c.reason, seen, err)
		}
		if sums, err := g.Earned(ctx, claimed.Lease.Node, time.Time{}, g.clock.Now(), g.clock.Now().Add(time.Second)); err != nil || sums[0] != c.charged+had || sums[1] != c.charged || sums[2] != 0 {
			t.Errorf("%s: the node earned %v, %v, after %s before", c.reason, sums, err, had)
		}
		had += c.charged
		if sums, err := g.Earned(ctx, idle.ID, time.Time{}); err != nil || sums[0] != 0 {
			t.Errorf("%s: another node of the owner's earned %v, %v", c.reason, sums, err)
		}
		if again, err := ledger.Recompute(lines[0]); err != nil || again != lines[0] {
			t.Errorf("%s: recomputed: %+v, %v; was %+v", c.reason, again, err, lines[0])
		}
		if j := g.job(j.ID); !j.State.Terminal() {
			if _, err := g.Cancel(ctx, g.op(), payer, j.ID, ""); err != nil {
				t.Errorf("cancel: %v", err)
			}
		}
	}
}

// What runs is paid for before it runs: the next interval is held while the last one
// lasts, and who can't pay is asked to go. Nobody is claimed for who can pay nothing.
func bill(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	poor, err := g.CreateAccount(ctx, g.op(), offpeak.Account{ID: "acct_poor", Name: "poor"})
	if err != nil {
		t.Fatal(err)
	}
	const perHour = offpeak.Price(3600 * offpeak.Credit)
	if _, refused := g.priced(poor.ID, n.ID, perHour); !errors.Is(refused.Err, offpeak.ErrFunds) {
		t.Fatalf("a claim without money = %v", refused.Err)
	}
	g.deposit(poor.ID, 900*offpeak.Credit)
	j, claimed := g.priced(poor.ID, n.ID, perHour)
	if claimed.Err != nil {
		t.Fatal(claimed.Err)
	}
	l := *claimed.Lease
	g.accept(l)
	g.report(g.reportOf(l, store.ReportRunning))
	step := func(d time.Duration, ran offpeak.Millis) []store.Change {
		t.Helper()
		for range int(d / (30 * time.Second)) {
			g.clock.Advance(30 * time.Second)
			ran += 30_000
			g.beat(n.ID, store.Held{Lease: l.ID, Metered: ran})
		}
		out, more, err := g.Bill(ctx, 10)
		if err != nil || more {
			t.Fatal(more, err)
		}
		return out.Gone
	}
	if out := step(8*time.Minute, 0); len(out) != 0 || g.balances(poor.ID).Held != 600*offpeak.Credit {
		t.Errorf("after 8 minutes: %+v, %+v", out, g.balances(poor.ID))
	}
	if out := step(90*time.Second, 480_000); len(out) != 0 || g.balances(poor.ID) != (store.Balances{Held: 900 * offpeak.Credit}) {
		t.Errorf("after 9 and a half: %+v, %+v", out, g.balances(poor.ID))
	}
	out := step(5*time.Minute, 570_000)
	if len(out) != 1 || out[0].Lease.Stop != offpeak.EndBudgetSpent {
		t.Fatalf("when the money ends: %+v", out)
	}
	g.ended(l, offpeak.EndBudgetSpent, 880_000)
	if b := g.balances(poor.ID); b.Held != 0 {
		t.Errorf("in the end: %+v", b)
	}
	if lines, err := g.Receipts(ctx, "", j.ID); err != nil || len(lines) != 1 {
		t.Errorf("receipts: %+v, %v", lines, err)
	}
}
