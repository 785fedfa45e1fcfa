package ledger_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"offpeak"
	"offpeak/ledger"
)

// quick are rules on the scale of seconds.
func quick() ledger.Rules {
	return ledger.Rules{Term: time.Hour, Interval: 10 * time.Second, Lead: 2 * time.Second, Least: 3 * time.Second}
}

// perSecond is a price at which a second costs 1000 micro-credits.
const perSecond = offpeak.Price(3_600_000)

// desk is one book and the leases that draw on it.
type desk struct {
	t     *testing.T
	book  ledger.Book
	log   []ledger.Transaction
	lines []ledger.Receipt
	facts []ledger.LeaseFacts
}

func (d *desk) post(list ...ledger.Transaction) {
	d.t.Helper()
	for _, tx := range list {
		if err := d.book.Post(tx); err != nil {
			d.t.Fatal(err)
		}
		d.log = append(d.log, tx)
	}
}

func (d *desk) has(a ledger.Account, want offpeak.MicroCredits) {
	d.t.Helper()
	if got := d.book.Balance(a); got != want {
		d.t.Errorf("%s has %s, expected %s", a, got, want)
	}
}

func (d *desk) funds() ledger.Funds {
	return ledger.Funds{Available: d.book.Balance(ledger.Available("acct_a"))}
}

func ask(id offpeak.LeaseID, limit time.Duration) ledger.Lease {
	return ledger.Lease{ID: id, Job: "job_" + offpeak.JobID(id), Attempt: 1, Payer: "acct_a", Owner: "acct_o", Limit: offpeak.Millis(limit.Milliseconds())}
}

// play runs a lease from its claim until it is stopped, taking each step when
// the one before said to; deposits come when their second is reached.
func (d *desk) play(l ledger.Lease, now time.Time, list []ledger.Transaction, v ledger.Verdict, topUp map[time.Duration]offpeak.MicroCredits) (ledger.Lease, time.Time) {
	d.t.Helper()
	d.post(list...)
	began := now
	for step := 0; ; step++ {
		if step > 1000 {
			d.t.Fatal("never ends")
		}
		ran := offpeak.Millis(now.Sub(began).Milliseconds())
		if ran >= l.Limit || v.Stop != "" && !now.Before(v.PaidUntil) {
			return l, now
		}
		next := began.Add(time.Duration(l.Limit) * time.Millisecond)
		if v.Stop != "" && v.PaidUntil.Before(next) {
			next = v.PaidUntil
		}
		if v.Stop == "" && v.Next.After(now) && v.Next.Before(next) {
			next = v.Next
		}
		for at, m := range topUp {
			if t := began.Add(at); !t.After(next) {
				next = t
				d.post(deposit(d.t, "top-up-"+at.String(), l.Payer, m))
				delete(topUp, at)
			}
		}
		now = next
		var err error
		if l, list, v, err = l.Extend(quick(), d.funds(), now, offpeak.Millis(now.Sub(began).Milliseconds())); err != nil {
			d.t.Fatal(err)
		}
		d.post(list...)
	}
}

func (d *desk) settle(l ledger.Lease, reason offpeak.EndReason, metered, kept offpeak.Millis, at time.Time) []ledger.Receipt {
	d.t.Helper()
	e := ledger.Ending{Reason: reason, Metered: metered, Kept: kept, At: at}
	l, list, lines, err := l.Settle(e)
	if err != nil {
		d.t.Fatal(err)
	}
	d.post(list...)
	d.lines = append(d.lines, lines...)
	d.facts = append(d.facts, ledger.LeaseFacts{Lease: l, Ended: true, Ending: e})
	return lines
}

func (d *desk) books() ledger.Books {
	return ledger.Books{Transactions: all(d.log), Leases: all(d.facts), Receipts: all(d.lines), Balances: all(d.book.Balances())}
}

func (d *desk) clean() {
	d.t.Helper()
	for f, err := range ledger.Check(d.books()) {
		d.t.Errorf("check: %v %v", f, err)
	}
}

// TestUnfundedRun is case 58: a balance for 30 s and a job of 5 min. The money
// is held before the time it pays for, the job is told before it ends, and the
// owner is paid for all that ran.
func TestUnfundedRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  string
		topUp map[time.Duration]offpeak.MicroCredits
		ran   time.Duration
	}{
		{"no more money", nil, 30 * time.Second},
		{"a top-up at 29 s for 60 s more", map[time.Duration]offpeak.MicroCredits{29 * time.Second: 60_000}, 90 * time.Second},
		{"a top-up at 29 s for more than the job", map[time.Duration]offpeak.MicroCredits{29 * time.Second: 900_000}, 5 * time.Minute},
		{"a top-up too small to go on with", map[time.Duration]offpeak.MicroCredits{29 * time.Second: 500}, 30 * time.Second},
	} {
		d := &desk{t: t}
		d.post(deposit(t, "first", "acct_a", 30_000))
		total := offpeak.MicroCredits(30_000)
		for _, m := range c.topUp {
			total += m
		}
		l, list, v, err := ledger.Open(ask("lease_1", 5*time.Minute), quick(), d.funds(), start, perSecond)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) != 1 || list[0].Entries[1].Amount != 10_000 {
			t.Errorf("%s: the claim holds %v, expected one interval", c.what, list)
		}
		l, at := d.play(l, start, list, v, c.topUp)
		if ran := at.Sub(start); ran != c.ran {
			t.Errorf("%s: ran %s, expected %s", c.what, ran, c.ran)
		}
		lines := d.settle(l, offpeak.EndBudgetSpent, offpeak.Millis(c.ran.Milliseconds()), 0, at)
		cost := offpeak.MicroCredits(c.ran / time.Second * 1000)
		if got := ledger.Charged(lines); got != cost {
			t.Errorf("%s: charged %s, expected %s", c.what, got, cost)
		}
		d.has(ledger.Available("acct_a"), total-cost)
		d.has(ledger.Available("acct_o"), cost)
		d.has(ledger.Held("acct_a"), 0)
		d.clean()
	}
}

// TestTwoJobsShareABalance: what one holds the other can't.
func TestTwoJobsShareABalance(t *testing.T) {
	t.Parallel()
	d := &desk{t: t}
	d.post(deposit(t, "first", "acct_a", 30_000))
	type job struct {
		l ledger.Lease
		v ledger.Verdict
	}
	var jobs []*job
	for _, id := range []offpeak.LeaseID{"lease_1", "lease_2"} {
		l, list, v, err := ledger.Open(ask(id, 5*time.Minute), quick(), d.funds(), start, perSecond)
		if err != nil {
			t.Fatal(err)
		}
		d.post(list...)
		jobs = append(jobs, &job{l, v})
	}
	d.has(ledger.Available("acct_a"), 10_000)
	// At 8 s both are due; there is one interval left.
	at := start.Add(8 * time.Second)
	for i, j := range jobs {
		if !j.v.Next.Equal(at) {
			t.Errorf("%s is due at %s", j.l.ID, j.v.Next)
		}
		var list []ledger.Transaction
		var err error
		if j.l, list, j.v, err = j.l.Extend(quick(), d.funds(), at, 8_000); err != nil {
			t.Fatal(err)
		}
		d.post(list...)
		if j.v.Covered != (i == 0) {
			t.Errorf("%s is covered: %t", j.l.ID, j.v.Covered)
		}
	}
	late := jobs[1].v
	if want := (&ledger.FundsError{Lease: "lease_2", Need: 3_000, Have: 0}); late.Stop != offpeak.EndBudgetSpent || !late.PaidUntil.Equal(start.Add(10*time.Second)) || cmp.Diff(want, late.Short) != "" {
		t.Errorf("the second: %+v %+v", late, late.Short)
	}
	d.settle(jobs[1].l, offpeak.EndBudgetSpent, 10_000, 0, start.Add(10*time.Second))
	d.settle(jobs[0].l, offpeak.EndCompleted, 15_000, 0, start.Add(15*time.Second))
	d.has(ledger.Available("acct_a"), 5_000)
	d.has(ledger.Available("acct_o"), 25_000)
	d.clean()
	// With nothing to hold, there is no claim.
	if _, list, _, err := ledger.Open(ask("lease_3", 5*time.Minute), quick(), ledger.Funds{Available: 2_999}, start, perSecond); !errors.Is(err, offpeak.ErrFunds) || len(list) > 0 {
		t.Errorf("claimed with 2.999 s of money: %v %v", list, err)
	}
}

func TestBudgetBoundsAllAttempts(t *testing.T) {
	t.Parallel()
	budget := offpeak.MicroCredits(25_000)
	f := ledger.Funds{Available: 1_000_000, Budget: &budget}
	l, list, _, err := ledger.Open(ask("lease_1", time.Hour), quick(), f, start, perSecond)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	_, _, lines, err := l.Settle(ledger.Ending{Reason: offpeak.EndOwnerReturned, Metered: 9_000, Kept: 9_000, At: start})
	if err != nil {
		t.Fatal(err)
	}
	f.Committed = ledger.Charged(lines)
	l, list, v, err := ledger.Open(ask("lease_2", time.Hour), quick(), f, start, perSecond)
	if err != nil || l.Held != 10_000 || !v.Covered {
		t.Fatal(list, err)
	}
	f.Committed += l.Held
	l, _, v, err = l.Extend(quick(), f, start, 8_000)
	if err != nil || l.Held != 16_000 || !v.Covered {
		t.Fatalf("holds %s of what the budget leaves: %+v %v", l.Held, v, err)
	}
	f.Committed = budget
	l, list, v, err = l.Extend(quick(), f, start, 14_000)
	if err != nil || v.Stop != offpeak.EndBudgetSpent || !v.Short.Budget || len(list) > 0 || l.Held != 16_000 {
		t.Errorf("beyond the budget: %+v %v %v", v, list, err)
	}
}

// TestTermsAndPrices: the price changes at renewals, what one term leaves the
// next one uses, and the hold is made before the time it pays for.
func TestTermsAndPrices(t *testing.T) {
	t.Parallel()
	r := ledger.DefaultRules()
	f := ledger.Funds{Available: 100 * offpeak.Credit}
	l, list, v, err := ledger.Open(ask("lease_1", 24*time.Hour), r, f, start, 600_000)
	if err != nil || l.Held != 100_000 {
		t.Fatalf("%v %+v %v", list, v, err)
	}
	if want := start.Add(9 * time.Minute); !v.Next.Equal(want) || !v.PaidUntil.Equal(want.Add(time.Minute)) {
		t.Errorf("next %s, paid until %s", v.Next, v.PaidUntil)
	}
	if _, list, _, _ := l.Extend(r, f, start.Add(8*time.Minute), minutes(8)); len(list) > 0 {
		t.Errorf("two minutes before the end of an interval it holds %v", list)
	}
	for i := 9; i < 60; i += 10 {
		if l, list, v, err = l.Extend(r, f, start.Add(time.Duration(i)*time.Minute), minutes(i)); err != nil || !v.Covered {
			t.Fatal(v, err)
		}
	}
	// The last interval of the term has the lead on top, so that renewing at
	// the term's end runs nothing unpaid.
	if got := l.Terms[0].Paid; got != minutes(61) || len(list) != 1 || l.Held != 610_000 {
		t.Errorf("%d ms are paid, %s held", got, l.Held)
	}
	if want := start.Add(time.Hour); !v.Next.Equal(want) || v.Renew {
		t.Errorf("%+v", v)
	}
	at := start.Add(time.Hour + 20*time.Second)
	if _, _, v, _ = l.Extend(r, f, at, minutes(60)+20_000); !v.Renew || !v.Covered {
		t.Errorf("after the term's end: %+v", v)
	}
	before := l
	l, list, v, err = l.Renew(r, f, at, minutes(60)+20_000, 1_200_000)
	if err != nil || len(l.Terms) != 2 || !v.Covered || v.Renew {
		t.Fatal(v, err)
	}
	if len(before.Terms) != 1 || before.Terms[0].Metered != 0 {
		t.Errorf("renewing changed the lease it was asked of: %+v", before)
	}
	// 60:20 at 0.60/h and 10 min at 1.20/h.
	if want := offpeak.MicroCredits(603_333 + 200_000); l.Held != want || list[0].Entries[1].Amount != want-610_000 {
		t.Errorf("holds %s after %v", l.Held, list)
	}
	_, list, lines, err := l.Settle(ledger.Ending{Reason: offpeak.EndNodeLost, Metered: minutes(65), Kept: minutes(62), At: start.Add(65 * time.Minute)})
	if err != nil || len(lines) != 2 {
		t.Fatal(lines, err)
	}
	if lines[0].Charged != 603_333 || lines[1].Billed != 100_000 || lines[1].Charged != 33_333 || list[0].Entries[1].Amount != l.Held-636_666 {
		t.Errorf("%+v %+v", lines, list)
	}
	if _, _, v, err := before.Renew(r, ledger.Funds{}, at, minutes(60)+20_000, 1_200_000); err != nil || v.Stop != offpeak.EndBudgetSpent || !v.PaidUntil.Equal(start.Add(61*time.Minute)) {
		t.Errorf("without money: %+v %v", v, err)
	}
	for _, p := range []offpeak.Price{-1, offpeak.MaxPrice + 1} {
		if _, _, _, err := l.Renew(r, f, at, 0, p); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("renewed at %d: %v", p, err)
		}
	}
}

func TestEveryEndIsCharged(t *testing.T) {
	t.Parallel()
	for _, end := range offpeak.Ends() {
		l, _, _, err := ledger.Open(ask("lease_1", time.Hour), quick(), ledger.Funds{Available: offpeak.Credit}, start, perSecond)
		if err != nil {
			t.Fatal(err)
		}
		for kept, want := range map[offpeak.Millis]map[offpeak.Charge]offpeak.MicroCredits{
			0:      {offpeak.ChargeFull: 9_000, offpeak.ChargeKept: 0, offpeak.ChargeNothing: 0},
			4_000:  {offpeak.ChargeFull: 9_000, offpeak.ChargeKept: 4_000, offpeak.ChargeNothing: 0},
			20_000: {offpeak.ChargeFull: 9_000, offpeak.ChargeKept: 9_000, offpeak.ChargeNothing: 0},
		} {
			n, list, lines, err := l.Settle(ledger.Ending{Reason: end.Reason, Metered: 9_000, Kept: kept, At: start})
			if err != nil || ledger.Charged(lines) != want[end.Charge] || !n.Settled || n.Held != 0 {
				t.Errorf("%s with %d ms kept: %+v %v", end.Reason, kept, lines, err)
			}
			if list[0].Entries[0].Amount != -l.Held {
				t.Errorf("%s releases %v of %s", end.Reason, list[0].Entries, l.Held)
			}
			if _, list, _, err := n.Settle(ledger.Ending{Reason: end.Reason}); !errors.Is(err, offpeak.ErrConflict) || len(list) > 0 {
				t.Errorf("%s settled twice: %v %v", end.Reason, list, err)
			}
			if _, _, _, err := n.Extend(quick(), ledger.Funds{}, start, 0); !errors.Is(err, offpeak.ErrConflict) {
				t.Errorf("extended after settling: %v", err)
			}
		}
		if _, _, _, err := l.Settle(ledger.Ending{Reason: "gift"}); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("an unknown end: %v", err)
		}
	}
}

// TestLateStep: a hub that was down finds that more ran than was paid for. It
// holds for that as far as the money goes, and charges no more, by every rule.
func TestLateStep(t *testing.T) {
	t.Parallel()
	l, _, _, err := ledger.Open(ask("lease_1", time.Hour), quick(), ledger.Funds{Available: 13_000}, start, perSecond)
	if err != nil {
		t.Fatal(err)
	}
	at := start.Add(14 * time.Second)
	rest := ledger.Funds{Available: 3_000}
	extended, list, v, err := l.Extend(quick(), rest, at, 14_000)
	if err != nil || len(list) != 1 || extended.Held != 13_000 || v.Stop != offpeak.EndBudgetSpent || !v.PaidUntil.Equal(start.Add(13*time.Second)) {
		t.Fatalf("%v %+v %v", list, v, err)
	}
	for _, reason := range []offpeak.EndReason{offpeak.EndBudgetSpent, offpeak.EndNodeLost} {
		_, _, lines, err := extended.Settle(ledger.Ending{Reason: reason, Metered: 14_000, Kept: 14_000, At: at})
		if err != nil || lines[0].Term.Metered != 14_000 || lines[0].Billed != 13_000 || lines[0].Charged != 13_000 {
			t.Errorf("%s: %+v %v", reason, lines, err)
		}
	}
	renewed, list, v, err := l.Renew(quick(), rest, at, 14_000, perSecond)
	if err != nil || len(list) != 1 || renewed.Held != 13_000 || len(renewed.Terms) != 1 || !v.PaidUntil.Equal(start.Add(13*time.Second)) || !v.Renew {
		t.Errorf("renewed: %v %+v %v", list, v, err)
	}
	renewed, list, _, err = l.Renew(quick(), ledger.Funds{Available: 7_000}, at, 14_000, perSecond)
	if err != nil || len(list) != 2 || renewed.Held != 17_000 || len(renewed.Terms) != 2 || renewed.Terms[0].Paid != 14_000 {
		t.Errorf("renewed with a little more: %v %+v %v", list, renewed, err)
	}
}

// TestPriceZeroMeetsNoMoney: a grid of friends has no transactions.
func TestPriceZeroMeetsNoMoney(t *testing.T) {
	t.Parallel()
	nothing := offpeak.MicroCredits(0)
	l, list, v, err := ledger.Open(ask("lease_1", time.Hour), quick(), ledger.Funds{Budget: &nothing}, start, 0)
	if err != nil || len(list) > 0 || !v.Covered {
		t.Fatal(list, v, err)
	}
	if l, list, v, err = l.Extend(quick(), ledger.Funds{}, start, minutes(30)); err != nil || len(list) > 0 || !v.Covered {
		t.Fatal(list, v, err)
	}
	_, list, lines, err := l.Settle(ledger.Ending{Reason: offpeak.EndCompleted, Metered: minutes(30), At: start})
	if err != nil || len(list) > 0 || len(lines) != 1 || lines[0].Billed != minutes(30) || lines[0].Charged != 0 {
		t.Errorf("%v %+v %v", list, lines, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	rich := ledger.Funds{Available: 1 << 60}
	for what, c := range map[string]struct {
		l     func(*ledger.Lease)
		r     func(*ledger.Rules)
		price offpeak.Price
	}{
		"no payer":        {l: func(l *ledger.Lease) { l.Payer = "" }},
		"no owner":        {l: func(l *ledger.Lease) { l.Owner = "" }},
		"no limit":        {l: func(l *ledger.Lease) { l.Limit = 0 }},
		"too long":        {l: func(l *ledger.Lease) { l.Limit = ledger.MaxMillis + 1 }},
		"negative price":  {price: -1},
		"too dear":        {price: offpeak.MaxPrice + 1},
		"no interval":     {r: func(r *ledger.Rules) { r.Interval = 0 }},
		"a negative lead": {r: func(r *ledger.Rules) { r.Lead = -1 }},
		"a fee of 101 %":  {r: func(r *ledger.Rules) { r.Fee = 10_100 }},
	} {
		l, r := ask("lease_1", time.Hour), quick()
		if c.l != nil {
			c.l(&l)
		}
		if c.r != nil {
			c.r(&r)
		}
		if _, list, _, err := ledger.Open(l, r, rich, start, c.price); !errors.Is(err, offpeak.ErrInvalid) || len(list) > 0 {
			t.Errorf("%s: %v %v", what, list, err)
		}
	}
}

// TestCheckNamesWhatWasBent bends one stored thing at a time.
func TestCheckNamesWhatWasBent(t *testing.T) {
	t.Parallel()
	most := perSecond - 1
	for _, c := range []struct {
		what string
		bend func(b *bent)
		kind ledger.FindingKind
	}{
		{"an entry", func(b *bent) { b.log[1].Entries[0].Amount-- }, ledger.FindForm},
		{"a transaction twice", func(b *bent) { b.log = append(b.log, b.log[0]) }, ledger.FindRepeated},
		{"a deposit lost", func(b *bent) { b.log = b.log[1:] }, ledger.FindOverdrawn},
		{"a balance", func(b *bent) { b.balances[0].Amount++ }, ledger.FindBalance},
		{"a balance lost", func(b *bent) { b.balances = b.balances[1:] }, ledger.FindBalance},
		{"a lease lost", func(b *bent) { b.facts = nil }, ledger.FindOrphan},
		{"a lease twice", func(b *bent) { b.facts = append(b.facts, b.facts[0]) }, ledger.FindRepeated},
		{"a hold left", func(b *bent) { b.facts[0].Lease.Held = 5 }, ledger.FindHeld},
		{"another payer", func(b *bent) { b.facts[0].Lease.Payer = "acct_o" }, ledger.FindHeld},
		{"not settled", func(b *bent) { b.facts[0].Lease.Settled = false }, ledger.FindUnsettled},
		{"settled while live", func(b *bent) { b.facts[0].Ended = false }, ledger.FindUnsettled},
		{"a settlement lost", func(b *bent) { b.log = b.log[:len(b.log)-1] }, ledger.FindSettlement},
		{"a charge", func(b *bent) { b.lines[0].Charged++ }, ledger.FindReceipt},
		{"a billed time", func(b *bent) { b.lines[0].Billed-- }, ledger.FindReceipt},
		{"a split", func(b *bent) { b.lines[0].Split.Earned-- }, ledger.FindReceipt},
		{"a rule", func(b *bent) { b.lines[0].Rule = offpeak.ChargeNothing }, ledger.FindReceipt},
		{"a reason", func(b *bent) { b.lines[0].Reason = "gift" }, ledger.FindReceipt},
		{"a receipt's price", func(b *bent) { b.lines[0].Term.Price++ }, ledger.FindTerms},
		{"a receipt lost", func(b *bent) { b.lines = nil }, ledger.FindTerms},
		{"another metered time", func(b *bent) { b.facts[0].Ending.Metered++ }, ledger.FindTerms},
		{"another end", func(b *bent) { b.facts[0].Ending.Reason = offpeak.EndNodeError }, ledger.FindTerms},
		{"over its limit", func(b *bent) { b.facts[0].Lease.Limit = 1 }, ledger.FindTerms},
		{"paid time", func(b *bent) { b.facts[0].Lease.Terms[0].Paid *= 2 }, ledger.FindUncovered},
		{"a dear lease", func(b *bent) { b.facts[0].MaxPrice = &most }, ledger.FindPrice},
	} {
		d := &desk{t: t}
		d.post(deposit(t, "first", "acct_a", 30_000))
		l, list, v, err := ledger.Open(ask("lease_1", 15*time.Second), quick(), d.funds(), start, perSecond)
		if err != nil {
			t.Fatal(err)
		}
		l, at := d.play(l, start, list, v, nil)
		d.settle(l, offpeak.EndTimeLimit, l.Limit, 0, at)
		d.clean()
		b := &bent{log: d.log, lines: d.lines, facts: d.facts, balances: d.book.Balances()}
		c.bend(b)
		var found []ledger.FindingKind
		for f, err := range ledger.Check(ledger.Books{Transactions: all(b.log), Leases: all(b.facts), Receipts: all(b.lines), Balances: all(b.balances)}) {
			if err != nil || f.Object == "" || f.Text == "" || f.Invariant == "" {
				t.Errorf("%s: %+v %v", c.what, f, err)
			}
			found = append(found, f.Kind)
		}
		if !slices.Contains(found, c.kind) {
			t.Errorf("%s: found %v, expected %s", c.what, found, c.kind)
		}
	}
}

// bent is what a broken store would hand to Check.
type bent struct {
	log      []ledger.Transaction
	lines    []ledger.Receipt
	facts    []ledger.LeaseFacts
	balances []ledger.Balance
}
