package ledger_test

import (
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"offpeak"
	"offpeak/ledger"
)

var start = time.Date(2026, 12, 2, 9, 0, 0, 0, time.UTC)

func minutes(n int) offpeak.Millis { return offpeak.Millis(n) * 60_000 }

func TestCharge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		price offpeak.Price
		ms    offpeak.Millis
		want  offpeak.MicroCredits
	}{
		{0, ledger.MaxMillis, 0}, {400_000, 0, 0}, {400_000, 3_600_000, 400_000}, {1, 3_599_999, 0}, {1, 3_600_000, 1}, {3_600_000, 1, 1}, {3_599_999, 1, 0},
		{250_000, 90_000, 6_250}, {offpeak.MaxPrice, ledger.MaxMillis, 87_600 * 1_000_000 * offpeak.Credit},
	} {
		if got, err := ledger.Charge(c.price, c.ms); err != nil || got != c.want {
			t.Errorf("%d ms at %s cost %s, expected %s (%v)", c.ms, c.price, got, c.want, err)
		}
	}
	for _, c := range []struct {
		price offpeak.Price
		ms    offpeak.Millis
	}{{-1, 1}, {offpeak.MaxPrice + 1, 1}, {math.MaxInt64, math.MaxInt64}, {1, -1}, {1, ledger.MaxMillis + 1}, {math.MinInt64, math.MinInt64}} {
		var e *ledger.RangeError
		if got, err := ledger.Charge(c.price, c.ms); !errors.As(err, &e) || !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%d ms at %d cost %s (%v)", c.ms, c.price, got, err)
		}
	}
}

func TestMaxCharge(t *testing.T) {
	t.Parallel()
	if got, err := ledger.MaxCharge(400_000, offpeak.Duration(24*time.Hour)); err != nil || got != 9_600_000 {
		t.Errorf("a day at 0.40/h costs at most %s (%v)", got, err)
	}
	if got, err := ledger.MaxCharge(3_600_000, offpeak.Duration(time.Millisecond+1)); err != nil || got != 2 {
		t.Errorf("a millisecond and a bit costs at most %s (%v)", got, err)
	}
	if _, err := ledger.MaxCharge(offpeak.MaxPrice, offpeak.MaxDuration); err != nil {
		t.Errorf("the dearest job there can be: %v", err)
	}
	for _, c := range []struct {
		price offpeak.Price
		limit offpeak.Duration
	}{{-1, 1}, {offpeak.MaxPrice + 1, 1}, {1, -1}, {1, offpeak.MaxDuration + 1}} {
		if _, err := ledger.MaxCharge(c.price, c.limit); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%d for %d: %v", c.price, c.limit, err)
		}
	}
}

func TestDivide(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		charged offpeak.MicroCredits
		fee     ledger.BasisPoints
		want    ledger.Split
	}{
		{100, 0, ledger.Split{Earned: 100}},
		{100, 10_000, ledger.Split{Fee: 100}},
		{100, 250, ledger.Split{Earned: 97, Fee: 2, Rounding: 1}},
		{1, 1, ledger.Split{Rounding: 1}},
		{math.MaxInt64, 5_000, ledger.Split{Earned: math.MaxInt64 / 2, Fee: math.MaxInt64 / 2, Rounding: 1}},
	} {
		if got, err := ledger.Divide(c.charged, c.fee); err != nil || got != c.want {
			t.Errorf("%s at %d: %+v, expected %+v (%v)", c.charged, c.fee, got, c.want, err)
		}
	}
	for _, fee := range []ledger.BasisPoints{-1, 10_001} {
		if _, err := ledger.Divide(1, fee); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("fee %d: %v", fee, err)
		}
	}
}

// TestRoundingIsExact holds charge and split against fractions.
func TestRoundingIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := offpeak.Price(rapid.Int64Range(0, int64(offpeak.MaxPrice)).Draw(t, "price"))
		ms := offpeak.Millis(rapid.Int64Range(0, int64(ledger.MaxMillis)).Draw(t, "ms"))
		fee := ledger.BasisPoints(rapid.IntRange(0, 10_000).Draw(t, "fee"))
		charged, err := ledger.Charge(p, ms)
		if err != nil {
			t.Fatal(err)
		}
		if want := floor(exact(p, ms)); rat(int64(charged)).Cmp(want) != 0 {
			t.Fatalf("costs %s, exactly %s", charged, want.FloatString(6))
		}
		s, err := ledger.Divide(charged, fee)
		if err != nil {
			t.Fatal(err)
		}
		share := new(big.Rat).Mul(rat(int64(charged)), big.NewRat(int64(fee), 10_000))
		if rat(int64(s.Fee)).Cmp(floor(share)) != 0 || s.Earned+s.Fee+s.Rounding != charged || s.Rounding < 0 || s.Rounding > 1 {
			t.Fatalf("%s at %d is split %+v", charged, fee, s)
		}
	})
}

func TestMeter(t *testing.T) {
	t.Parallel()
	m := ledger.Meter{Was: 1000, Said: 5000, Started: start, Limit: 60_000, Holding: true}
	for _, c := range []struct {
		what   string
		change func(*ledger.Meter)
		after  time.Duration
		want   offpeak.Millis
	}{
		{"what the agent says", func(*ledger.Meter) {}, 10 * time.Second, 5000},
		{"no more than has passed", func(*ledger.Meter) {}, 4500 * time.Millisecond, 4500},
		{"no more than the time limit", func(m *ledger.Meter) { m.Said = 70_000 }, time.Hour, 60_000},
		{"never less than before, reordered", func(m *ledger.Meter) { m.Said = 500 }, time.Hour, 1000},
		{"never less than before, a clock that was set back", func(*ledger.Meter) {}, -time.Hour, 1000},
		{"nothing below zero", func(m *ledger.Meter) { m.Said = -5 }, time.Hour, 1000},
		{"a frozen job stands still, as the agent's count does", func(m *ledger.Meter) { m.Said = m.Was }, time.Hour, 1000},
		{"nothing before the start", func(m *ledger.Meter) { m.Started = time.Time{} }, time.Hour, 1000},
		{"nothing once the process is gone", func(m *ledger.Meter) { m.Holding = false }, time.Hour, 1000},
	} {
		m := m
		c.change(&m)
		if got := m.Accept(start.Add(c.after)); got != c.want {
			t.Errorf("%s: %d ms, expected %d", c.what, got, c.want)
		}
	}
}

func deposit(t testing.TB, external string, to offpeak.AccountID, m offpeak.MicroCredits) ledger.Transaction {
	t.Helper()
	tx, err := ledger.Deposit(ledger.Movement{External: external, Account: to, Amount: m}, start)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestPostIsIdempotent(t *testing.T) {
	t.Parallel()
	var b ledger.Book
	first := deposit(t, "bank-1", "acct_a", 10)
	again := first
	again.At = again.At.Add(time.Hour)
	again.Entries = []ledger.Entry{first.Entries[1], first.Entries[0]}
	for _, tx := range []ledger.Transaction{first, first, again} {
		if err := b.Post(tx); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.Balance(ledger.Available("acct_a")); got != 10 {
		t.Errorf("has %s", got)
	}
	for field, tx := range map[string]ledger.Transaction{
		"amount or account": deposit(t, "bank-1", "acct_b", 10),
		"subject":           {ID: first.ID, Kind: first.Kind, Subject: ledger.Subject{External: "x"}, Entries: first.Entries},
		"kind":              {ID: first.ID, Kind: ledger.KindHold, Subject: first.Subject, Entries: first.Entries},
	} {
		var e *ledger.ConflictError
		if err := b.Post(tx); !errors.As(err, &e) || e.Field != field || !errors.Is(err, offpeak.ErrOperationConflict) {
			t.Errorf("another %s: %v", field, err)
		}
	}
	first.Entries[0].Amount = 99 // the book keeps its own
	if err := b.Post(again); err != nil {
		t.Error(err)
	}
}

func TestTransactionsAreRefused(t *testing.T) {
	t.Parallel()
	entry := func(a ledger.Account, m offpeak.MicroCredits) ledger.Entry {
		return ledger.Entry{Account: a, Amount: m}
	}
	a, h, out := ledger.Available("acct_a"), ledger.Held("acct_a"), ledger.Grid(ledger.PartPayouts)
	in, fee := ledger.Grid(ledger.PartDeposits), ledger.Grid(ledger.PartFee)
	lease, bank := ledger.Subject{Job: "job_1", Lease: "lease_1"}, ledger.Subject{External: "bank-1"}
	for what, tx := range map[string]ledger.Transaction{
		"no id":                     {Kind: ledger.KindDeposit, Subject: bank, Entries: []ledger.Entry{entry(in, -1), entry(a, 1)}},
		"an id with a space":        {ID: "a b", Kind: ledger.KindDeposit, Subject: bank, Entries: []ledger.Entry{entry(in, -1), entry(a, 1)}},
		"no entries":                {ID: "x", Kind: ledger.KindDeposit, Subject: bank},
		"one entry":                 {ID: "x", Kind: ledger.KindDeposit, Subject: bank, Entries: []ledger.Entry{entry(a, 1)}},
		"not balanced":              {ID: "x", Kind: ledger.KindDeposit, Subject: bank, Entries: []ledger.Entry{entry(in, -1), entry(a, 2)}},
		"nothing moved":             {ID: "x", Kind: ledger.KindDeposit, Subject: bank, Entries: []ledger.Entry{entry(in, 0), entry(a, 0)}},
		"an account twice":          {ID: "x", Kind: ledger.KindDeposit, Subject: bank, Entries: []ledger.Entry{entry(in, -2), entry(a, 1), entry(a, 1)}},
		"overflow that wraps to 0":  {ID: "x", Kind: ledger.KindSettle, Subject: lease, Entries: []ledger.Entry{entry(h, math.MinInt64), entry(ledger.Available("acct_b"), math.MinInt64)}},
		"nobody's available":        {ID: "x", Kind: ledger.KindDeposit, Subject: bank, Entries: []ledger.Entry{entry(in, -1), entry(ledger.Grid(ledger.PartAvailable), 1)}},
		"somebody's fee":            {ID: "x", Kind: ledger.KindPayout, Subject: bank, Entries: []ledger.Entry{entry(ledger.Account{Of: "acct_a", Part: ledger.PartFee}, -1), entry(out, 1)}},
		"no such part":              {ID: "x", Kind: ledger.KindDeposit, Subject: bank, Entries: []ledger.Entry{entry(in, -1), entry(ledger.Account{Of: "acct_a", Part: "gift"}, 1)}},
		"no such kind":              {ID: "x", Kind: "gift", Subject: bank, Entries: []ledger.Entry{entry(in, -1), entry(a, 1)}},
		"a deposit of no reference": {ID: "x", Kind: ledger.KindDeposit, Entries: []ledger.Entry{entry(in, -1), entry(a, 1)}},
		"a deposit out of nothing":  {ID: "x", Kind: ledger.KindDeposit, Subject: bank, Entries: []ledger.Entry{entry(fee, -1), entry(a, 1)}},
		"a deposit backwards":       {ID: "x", Kind: ledger.KindDeposit, Subject: bank, Entries: []ledger.Entry{entry(in, 1), entry(a, -1)}},
		"a payout of what is held":  {ID: "x", Kind: ledger.KindPayout, Subject: bank, Entries: []ledger.Entry{entry(h, -1), entry(out, 1)}},
		"a hold of no lease":        {ID: "x", Kind: ledger.KindHold, Entries: []ledger.Entry{entry(a, -1), entry(h, 1)}},
		"a hold for another":        {ID: "x", Kind: ledger.KindHold, Subject: lease, Entries: []ledger.Entry{entry(a, -1), entry(ledger.Held("acct_b"), 1)}},
		"a hold released":           {ID: "x", Kind: ledger.KindHold, Subject: lease, Entries: []ledger.Entry{entry(a, 1), entry(h, -1)}},
		"a settlement of available": {ID: "x", Kind: ledger.KindSettle, Subject: lease, Entries: []ledger.Entry{entry(a, -1), entry(fee, 1)}},
		"a settlement of two":       {ID: "x", Kind: ledger.KindSettle, Subject: lease, Entries: []ledger.Entry{entry(h, -1), entry(ledger.Held("acct_b"), -1), entry(fee, 2)}},
		"a settlement to payouts":   {ID: "x", Kind: ledger.KindSettle, Subject: lease, Entries: []ledger.Entry{entry(h, -1), entry(out, 1)}},
	} {
		var b ledger.Book
		var e *ledger.FormError
		if err := b.Post(tx); !errors.As(err, &e) || !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
		if got := b.Balances(); len(got) > 0 {
			t.Errorf("%s left %v", what, got)
		}
	}
}

func TestNoAccountIsOverdrawn(t *testing.T) {
	t.Parallel()
	var b ledger.Book
	if err := b.Post(deposit(t, "bank-1", "acct_a", 10)); err != nil {
		t.Fatal(err)
	}
	out, err := ledger.Payout(ledger.Movement{External: "out-1", Account: "acct_a", Amount: 11}, start)
	if err != nil {
		t.Fatal(err)
	}
	var e *ledger.NegativeError
	if err := b.Post(out); !errors.As(err, &e) || !errors.Is(err, offpeak.ErrFunds) {
		t.Fatalf("pay out 11 of 10: %v", err)
	}
	if d := cmp.Diff(&ledger.NegativeError{Transaction: out.ID, Account: ledger.Available("acct_a"), Balance: 10, Change: -11}, e); d != "" {
		t.Error(d)
	}
	if got := b.Balance(ledger.Available("acct_a")); got != 10 {
		t.Errorf("it left %s", got)
	}
	for _, p := range ledger.Parts() {
		a := ledger.Account{Part: p.Part}
		if a.MayBeNegative() != p.Negative || p.Negative != (p.Part == ledger.PartDeposits) {
			t.Errorf("%s may be negative: %t", a, a.MayBeNegative())
		}
	}
}

func TestBalancesDoNotOverflow(t *testing.T) {
	t.Parallel()
	var b ledger.Book
	var err error
	for i := range 10 {
		if err = b.Post(deposit(t, string(rune('a'+i)), "acct_a", ledger.MaxAmount)); err != nil {
			break
		}
	}
	const left = ledger.MaxDeposits - 9*ledger.MaxAmount
	if e := (*ledger.LimitError)(nil); !errors.As(err, &e) || *e != (ledger.LimitError{Amount: ledger.MaxAmount, Room: left}) {
		t.Fatalf("10 × %s: %v", ledger.MaxAmount, err)
	}
	if got := b.Balance(ledger.Available("acct_a")); got != 9*ledger.MaxAmount {
		t.Errorf("has %s", got)
	}
	// To the last micro-credit, and none more.
	if err := errors.Join(b.Post(deposit(t, "rest", "acct_b", left)), b.Post(deposit(t, "more", "acct_b", 1))); !errors.Is(err, offpeak.ErrInvalid) || b.Balance(ledger.Grid(ledger.PartDeposits)) != -ledger.MaxDeposits {
		t.Errorf("the rest, and one: %v; %s", err, b.Balance(ledger.Grid(ledger.PartDeposits)))
	}
}

func TestMovements(t *testing.T) {
	t.Parallel()
	for _, m := range []ledger.Movement{
		{External: "", Account: "acct_a", Amount: 1}, {External: "a,b", Account: "acct_a", Amount: 1}, {External: "x", Account: "", Amount: 1}, {External: "x", Account: "acct\n", Amount: 1},
		{External: "x", Account: "acct_a", Amount: 0}, {External: "x", Account: "acct_a", Amount: -1}, {External: "x", Account: "acct_a", Amount: ledger.MaxAmount + 1},
	} {
		for what, make := range map[string]func(ledger.Movement, time.Time) (ledger.Transaction, error){"deposit": ledger.Deposit, "payout": ledger.Payout, "return": ledger.PayoutReturned} {
			if _, err := make(m, start); !errors.Is(err, offpeak.ErrInvalid) {
				t.Errorf("%s %+v: %v", what, m, err)
			}
		}
	}
	if _, err := ledger.GridPayout(ledger.PartHeld, "x", 1, start); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("pay out the grid's held: %v", err)
	}
	for _, p := range []ledger.Part{ledger.PartFee, ledger.PartRounding} {
		if _, err := ledger.GridPayout(p, "x", 1, start); err != nil {
			t.Error(err)
		}
	}
	if _, err := (ledger.Batch{Direction: "gifts"}).Transactions(start); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("a batch of gifts: %v", err)
	}
}

func TestParseAmount(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]offpeak.MicroCredits{"1": 1_000_000, "0.000001": 1, "12.50": 12_500_000, "007.5": 7_500_000, "1000000000000": ledger.MaxAmount} {
		if got, err := ledger.ParseAmount(s); err != nil || got != want {
			t.Errorf("%q is %s (%v)", s, got, err)
		}
	}
	for _, s := range []string{"", "0", "0.000000", "-1", "+1", "1.", ".1", "1.0000001", "NaN", "inf", "1e3", "0x1", "1_000", "1,5", " 1", "1 ", "٣", "1000000000000.000001", "99999999999999"} {
		if got, err := ledger.ParseAmount(s); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%q is %s (%v)", s, got, err)
		}
	}
}
