package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/store"
)

// A lease that had a price is settled also when its last term is for nothing.
func renewedForNothing(t *testing.T, g *grid) {
	n := g.enrol(0)
	before := g.balances(g.account)
	l := g.running(spec(), n.ID, hourly)
	ran, billed := g.hour(l, 0) // nothing was ever set: the ask is 0
	if len(billed.Renewed) != 1 || billed.Renewed[0].Price != 0 || billed.Renewed[0].Paid.Price != hourly {
		t.Fatalf("at the first term's end: %+v", billed)
	}
	had := billed.Renewed[0].Metered
	// The next term is at a price again.
	g.asks(n.ID, priceOf(0, hourly/2))
	ran, billed = g.hour(l, ran)
	if len(billed.Renewed) != 1 || billed.Renewed[0].Price != hourly/2 || billed.Renewed[0].Paid.Price != 0 {
		t.Fatalf("at the second term's end: %+v", billed)
	}
	g.asks(n.ID, priceOf(0, 0))
	if ran, billed = g.hour(l, ran); len(billed.Renewed) != 1 || billed.Renewed[0].Price != 0 {
		t.Fatalf("at the third term's end: %+v", billed)
	}
	paid := billed.Renewed[0].Metered
	ran = g.runs(l, ran, time.Minute)
	end := g.ended(l, offpeak.EndCompleted, ran)
	if end.Paid == nil || end.Paid.Price != 0 || end.Paid.Metered != 60_000 {
		t.Errorf("the last term: %+v", end.Paid)
	}
	if b := g.balances(g.account); b.Held != 0 || b.Available != before.Available {
		t.Errorf("in the end its account, which pays itself, has %+v, had %+v", b, before)
	}
	lines, err := g.Receipts(context.Background(), "", l.Job)
	if err != nil || len(lines) != 4 {
		t.Fatalf("receipts: %+v, %v", lines, err)
	}
	for i, want := range []offpeak.MicroCredits{offpeak.MicroCredits(had) * 1000, 0, offpeak.MicroCredits(paid) * 500, 0} {
		if lines[i].Charged != want {
			t.Errorf("term %d: charged %s, want %s", i+1, lines[i].Charged, want)
		}
	}
}

// The price of the next term is what the operator makes of the ask, and everybody
// who looks is told it.
func renewedWithPremium(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(1)
	sp := spec()
	limit := 22 * hourly / 10
	sp.Requirements.NonInterruptible, sp.Requirements.MaxPrice = true, &limit
	sp.Requirements.GPUs = []offpeak.GPURequest{{}}
	l := g.running(sp, n.ID, hourly, "GPU-0")
	g.asks(n.ID, priceOf(2*hourly, 7))
	ran, billed := g.hour(l, 0)
	if len(billed.Renewed) != 1 || billed.Renewed[0].Price != limit {
		t.Fatalf("at the limit: %+v", billed)
	}
	if got := g.lease(l.Job, l.ID); got.Price != limit {
		t.Errorf("the lease has %s", got.Price)
	}
	ev, err := g.Events(ctx, g.account, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, e := range ev {
		if e.Type != "lease.renewed" {
			continue
		}
		told++
		if e.Lease != l.ID || e.Job != l.Job || e.Node != n.ID || string(e.Data) != `{"term":2,"price":7920000000}` {
			t.Errorf("told: %+v %s", e, e.Data)
		}
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	g.asks(n.ID, priceOf(2*hourly+10, 7))
	if _, billed = g.hour(l, ran); len(billed.Gone) != 1 || billed.Gone[0].Lease.Stop != offpeak.EndTermEnded {
		t.Errorf("a premium that goes above the limit: %+v", billed)
	}
}

// Who was asked to go keeps the price until then.
func renewedNotWhenGoing(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	l := g.running(spec(), n.ID, hourly)
	g.asks(n.ID, priceOf(0, 2*hourly))
	ran := g.runs(l, 0, 30*time.Second)
	for ran < 3_570_000 {
		ran = g.runs(l, ran, 30*time.Second)
		if b := g.bills(); len(b.Gone)+len(b.Renewed) != 0 {
			t.Fatalf("before the term's end: %+v", b)
		}
	}
	if _, err := g.Outbid(ctx, l.ID, offpeak.Outbid{Job: "job_other", Price: 3 * hourly}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ran = g.runs(l, ran, 30*time.Second)
		if b := g.bills(); len(b.Gone)+len(b.Renewed) != 0 {
			t.Errorf("after %d ms: %+v", ran, b)
		}
	}
	end := g.ended(l, offpeak.EndOutbid, ran)
	if end.Paid == nil || end.Paid.Price != hourly || end.Paid.Metered != ran {
		t.Errorf("paid: %+v, ran %d", end.Paid, ran)
	}
	lines, err := g.Receipts(ctx, "", l.Job)
	if err != nil || len(lines) != 1 || lines[0].Term.Price != hourly {
		t.Errorf("receipts: %+v, %v", lines, err)
	}
}

// A term is not renewed before its node was heard after its end: what ran until then
// is paid at the old price, and who is never heard again owes and had nothing more.
func renewedNotWhenSilent(t *testing.T, g *grid) {
	ctx := context.Background()
	for _, back := range []bool{true, false} {
		n := g.enrol(0)
		l := g.running(spec(), n.ID, hourly)
		g.asks(n.ID, priceOf(0, 2*hourly))
		ran := g.runs(l, 0, 30*time.Second)
		for ran < 3_570_000 {
			if b := g.bills(); len(b.Gone)+len(b.Renewed) != 0 {
				t.Fatalf("before the term's end: %+v", b)
			}
			ran = g.runs(l, ran, 30*time.Second)
		}
		g.bills()
		held := g.balances(g.account).Held
		silent := func(d time.Duration) {
			for range int(d / (10 * time.Second)) {
				g.clock.Advance(10 * time.Second)
				if b := g.bills(); len(b.Gone)+len(b.Renewed) != 0 {
					t.Fatalf("of a silent node: %+v", b)
				}
			}
			if now := g.balances(g.account).Held; now > held {
				t.Errorf("while it is silent %s are held, %s were before", now, held)
			}
		}
		silent(time.Minute) // the term is over, its node only just missed
		if _, err := g.SetLiveness(ctx, []store.LivenessChange{{Node: n.ID, To: offpeak.NodeLate, HeardBefore: g.clock.Now()}}); err != nil {
			t.Fatal(err)
		}
		silent(2 * time.Minute)
		if !back {
			changes, err := g.Expire(ctx, g.clock.Now().Add(time.Hour), 10)
			if err != nil || len(changes) != 1 || changes[0].Paid == nil || changes[0].Paid.Price != hourly || changes[0].Paid.Metered != ran {
				t.Fatalf("expired: %+v, %v", changes, err)
			}
			lines, err := g.Receipts(ctx, "", l.Job)
			if err != nil || len(lines) != 1 || lines[0].Term.Price != hourly || lines[0].Billed > ran {
				t.Errorf("receipts: %+v, %v", lines, err)
			}
			if b := g.balances(g.account); b.Held != 0 {
				t.Errorf("in the end %s are held", b.Held)
			}
			continue
		}
		// It ran all the while: at the old price, until it is heard.
		ran += 180_000 + 30_000
		g.clock.Advance(30 * time.Second)
		g.beat(n.ID, store.Held{Lease: l.ID, Metered: ran})
		b := g.bills()
		if len(b.Gone) != 0 || len(b.Renewed) != 1 || b.Renewed[0].Paid.Price != hourly || b.Renewed[0].Metered != ran || b.Renewed[0].Price != 2*hourly {
			t.Fatalf("once it is heard: %+v, ran %d", b, ran)
		}
		ran = g.runs(l, ran, time.Minute)
		g.ended(l, offpeak.EndCompleted, ran)
		lines, err := g.Receipts(ctx, "", l.Job)
		if err != nil || len(lines) != 2 || lines[0].Billed != ran-60_000 || lines[1].Billed != 60_000 || lines[1].Term.Price != 2*hourly {
			t.Errorf("receipts: %+v, %v", lines, err)
		}
	}
}

// A job whose notice is long needs money for it, or else its next claim is refused:
// it ends rather than waits for that.
func budgetForNotice(t *testing.T, g *grid) {
	n := g.enrol(0)
	sp := spec()
	most := 900 * offpeak.Credit
	sp.Limits.Budget, sp.Task.Grace = &most, offpeak.Duration(5*time.Minute)
	// After eight minutes seven are left, which cover five and a half; after four
	// more they do not.
	j := g.submit(sp)
	l := g.again(j.ID, 1, n.ID, hourly)
	end := g.ended(l, offpeak.EndTermEnded, g.runs(l, 0, 8*time.Minute))
	if end.Queued == nil {
		t.Fatalf("with seven minutes left: %+v", end.Job)
	}
	g.clock.Advance(time.Minute)
	g.beat(n.ID)
	l = g.again(j.ID, 2, n.ID, hourly)
	ran := g.runs(l, 0, 2*time.Minute)
	r := g.reportOf(l, store.ReportEnded)
	r.Reason, r.Started, r.Ran = offpeak.EndTermEnded, true, ran
	end = g.report(r)
	if end.Queued != nil || end.Job.State != offpeak.JobFailed || end.Job.Reason != offpeak.EndBudgetSpent || end.Job.EndedAt == nil || end.Job.NotBefore != nil {
		t.Errorf("with five minutes left: %+v", end.Job)
	}
	if got := g.lease(j.ID, l.ID); got.Reason != offpeak.EndTermEnded {
		t.Errorf("the lease ended as %s", got.Reason)
	}
	if again := g.report(r); again.Paid != nil || again.Job.State != offpeak.JobFailed {
		t.Errorf("the report again: %+v, paid %+v", again.Job, again.Paid)
	}
	// One that is at the bound is claimed: what ends a job is what refuses a claim.
	for _, c := range []struct {
		budget offpeak.MicroCredits
		covers bool
	}{{331 * offpeak.Credit, true}, {330 * offpeak.Credit, false}} {
		sp.Limits.Budget = &c.budget
		claim := g.ask(g.submit(sp).ID, 1, n.ID)
		claim.Price = hourly
		out, err := g.Claim(context.Background(), []store.Claim{claim})
		if err != nil {
			t.Fatal(err)
		}
		if c.covers {
			if out[0].Err != nil {
				t.Errorf("a budget of %s: %v", c.budget, out[0].Err)
			}
			continue
		}
		if funds, ok := errors.AsType[*ledger.FundsError](out[0].Err); !ok || !funds.Budget {
			t.Errorf("a budget of %s: %v", c.budget, out[0].Err)
		}
	}
}
