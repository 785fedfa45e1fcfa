package money_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/hub/money"
	"offpeak/ledger"
	"offpeak/ledger/csvbatch"
	"offpeak/store"
	"offpeak/store/sqlite"
	"offpeak/wire"
)

// till is a till on a real store with accounts that have money.
type till struct {
	*money.Till
	store *sqlite.Store
	told  []offpeak.AccountID
	mu    sync.Mutex // guards told and ops
	ops   int
}

func newTill(t *testing.T, payments ledger.Payments, accounts ...offpeak.AccountID) *till {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "offpeak.db"), sqlite.Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	x := &till{store: s}
	x.Till = money.New(money.Env{Store: s, Payments: payments, Posted: func(list []offpeak.AccountID) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.told = append(x.told, list...)
	}})
	for _, a := range accounts {
		if _, err := s.CreateAccount(t.Context(), x.op(), offpeak.Account{ID: a, Name: string(a)}); err != nil {
			t.Fatal(err)
		}
		if _, err := x.Deposit(t.Context(), x.op(), wire.NewMovement{External: string(a), Account: a, Amount: "10"}); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

func (x *till) op() store.Op {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ops++
	return store.Op{ID: offpeak.OpID(fmt.Sprintf("op-%d", x.ops))}
}

func (x *till) has(t *testing.T, a offpeak.AccountID) offpeak.MicroCredits {
	t.Helper()
	b, err := x.Balance(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return b.Available
}

func adapter() csvbatch.Adapter {
	return csvbatch.Adapter{Own: ed25519.NewKeyFromSeed(bytes.Repeat([]byte{3}, ed25519.SeedSize))}
}

// broken can sign nothing.
type broken struct{ csvbatch.Adapter }

var errNoKey = errors.New("no key")

func (broken) WritePayouts(ledger.Batch) ([]byte, error) { return nil, errNoKey }

func TestWhatCannotBeSignedIsNotPaid(t *testing.T) {
	t.Parallel()
	x := newTill(t, broken{}, "acct_a")
	if _, err := x.ExportPayouts(t.Context(), x.op(), wire.NewPayouts{Batch: "b"}); !errors.Is(err, errNoKey) {
		t.Errorf("exported: %v", err)
	}
	if n := x.has(t, "acct_a"); n != 10*offpeak.Credit {
		t.Errorf("it has %s", n)
	}
	x = newTill(t, nil, "acct_a")
	if _, err := x.ExportPayouts(t.Context(), x.op(), wire.NewPayouts{Batch: "b"}); !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("exported without an adapter: %v", err)
	}
	if _, err := x.ImportDeposits(t.Context(), x.op(), nil); !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("imported without an adapter: %v", err)
	}
}

// Any number who ask for one batch at once get the same bytes, and everybody is
// paid once.
func TestOneBatchIsPaidOnce(t *testing.T) {
	t.Parallel()
	x := newTill(t, adapter(), "acct_a", "acct_b")
	const askers = 8
	out := make([][]byte, askers)
	var all sync.WaitGroup
	for i := range askers {
		all.Go(func() {
			signed, err := x.ExportPayouts(t.Context(), x.op(), wire.NewPayouts{Batch: "b"})
			if err != nil {
				t.Error(err)
			}
			out[i] = signed.Data
		})
	}
	all.Wait()
	for _, o := range out {
		if !bytes.Equal(o, out[0]) {
			t.Errorf("two asked and got\n%s\n%s", out[0], o)
		}
	}
	if x.has(t, "acct_a") != 0 || x.has(t, "acct_b") != 0 {
		t.Error("somebody was not paid")
	}
	if bad, err := x.store.CheckLedger(t.Context()); err != nil || len(bad) > 0 {
		t.Errorf("check: %v, %v", bad, err)
	}
}

// A batch asked for again is the same, whoever asks and however late, and says so; one
// that is asked for otherwise is refused.
func TestOneBatchIsAskedForOneWay(t *testing.T) {
	t.Parallel()
	x := newTill(t, adapter(), "acct_a", "acct_b")
	all := wire.NewPayouts{Batch: "all", Minimum: "5"}
	some := wire.NewPayouts{Batch: "some", Payouts: []wire.Payout{{Account: "acct_a", Amount: "1"}}}
	first := map[string][]byte{}
	for _, in := range []wire.NewPayouts{some, all} {
		signed, err := x.ExportPayouts(t.Context(), x.op(), in)
		if err != nil || signed.Again {
			t.Fatal(err, signed.Again)
		}
		first[in.Batch] = signed.Data
	}
	// Money that came since is for another batch.
	if _, err := x.Deposit(t.Context(), x.op(), wire.NewMovement{External: "more", Account: "acct_a", Amount: "50"}); err != nil {
		t.Fatal(err)
	}
	written := all
	written.Minimum = "5.000"
	for _, in := range []wire.NewPayouts{some, all, written} {
		op := x.op()
		op.Actor.Account = "acct_b"
		if signed, err := x.ExportPayouts(t.Context(), op, in); err != nil || !signed.Again || !bytes.Equal(signed.Data, first[in.Batch]) {
			t.Errorf("%+v again: %v, %t\n%s", in, err, signed.Again, signed.Data)
		}
	}
	for _, in := range []wire.NewPayouts{
		{Batch: "all"}, {Batch: "all", Minimum: "6"}, {Batch: "some"}, {Batch: "some", Minimum: "5"},
		{Batch: "all", Payouts: []wire.Payout{{Account: "acct_a", Amount: "9"}, {Account: "acct_b", Amount: "10"}}},
		{Batch: "some", Payouts: []wire.Payout{{Account: "acct_a", Amount: "2"}}},
		{Batch: "some", Payouts: []wire.Payout{{Account: "acct_a", Amount: "1"}, {Account: "acct_b", Amount: "1"}}},
	} {
		if _, err := x.ExportPayouts(t.Context(), x.op(), in); !errors.Is(err, offpeak.ErrConflict) {
			t.Errorf("%+v: %v", in, err)
		}
	}
	if a, b := x.has(t, "acct_a"), x.has(t, "acct_b"); a != 50*offpeak.Credit || b != 0 {
		t.Errorf("they have %s and %s", a, b)
	}
}

// Every line of a statement is stamped by the store as it is appended, so batches
// stand among the others in the order of time.
func TestStatementsAreInTheOrderOfTime(t *testing.T) {
	t.Parallel()
	x := newTill(t, adapter(), "acct_a")
	for i := range 3 {
		if _, err := x.Deposit(t.Context(), x.op(), wire.NewMovement{External: fmt.Sprintf("more-%d", i), Account: "acct_a", Amount: "1"}); err != nil {
			t.Fatal(err)
		}
		if _, err := x.ExportPayouts(t.Context(), x.op(), wire.NewPayouts{Batch: fmt.Sprintf("b-%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	var last time.Time
	lines := 0
	for l, err := range x.Statement(t.Context(), "acct_a", time.Time{}, time.Time{}) {
		if err != nil || l.At.Before(last) {
			t.Errorf("%s at %s comes after one at %s: %v", l.Transaction, l.At, last, err)
		}
		last = l.At
		lines++
	}
	if lines != 7 {
		t.Errorf("%d lines", lines)
	}
	list, err := x.store.Transactions(t.Context(), []ledger.TransactionID{"payout/b-0/1", "payout/b-1/1", "payout/b-2/1"})
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	if rounded := func(x ledger.Transaction) bool { return x.At.Equal(x.At.Truncate(time.Second)) }; rounded(list[0]) && rounded(list[1]) && rounded(list[2]) {
		t.Errorf("payouts are stamped in whole seconds: %+v", list)
	}
}

// What did not arrive goes back to where it was from, once: an account, or the fee.
func TestPayoutsComeBack(t *testing.T) {
	t.Parallel()
	x := newTill(t, adapter(), "acct_a")
	// What a settled lease brings the operator, by hand.
	fee := ledger.Transaction{ID: "settle/l1", Kind: ledger.KindSettle, Subject: ledger.Subject{Job: "job_1", Lease: "l1", Attempt: 1},
		Entries: []ledger.Entry{{Account: ledger.Held("acct_a"), Amount: -2 * offpeak.Credit}, {Account: ledger.Grid(ledger.PartFee), Amount: 2 * offpeak.Credit}}}
	held := ledger.Transaction{ID: "hold/l1/1", Kind: ledger.KindHold, Subject: fee.Subject,
		Entries: []ledger.Entry{{Account: ledger.Available("acct_a"), Amount: -2 * offpeak.Credit}, {Account: ledger.Held("acct_a"), Amount: 2 * offpeak.Credit}}}
	if _, err := x.store.Post(t.Context(), x.op(), []ledger.Transaction{held, fee}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.GridPayout(t.Context(), x.op(), wire.NewGridPayout{External: "fee-1", Part: "fee", Amount: "2"}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Payout(t.Context(), x.op(), wire.NewMovement{External: "out-1", Account: "acct_a", Amount: "3"}); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"fee-1", "out-1"} {
		for _, fresh := range []int{1, 0} {
			if p, err := x.Return(t.Context(), x.op(), wire.NewReturn{External: ref}); err != nil || p.Fresh != fresh {
				t.Errorf("return of %s: %+v, %v", ref, p, err)
			}
		}
	}
	want := wire.GridBalance{Deposits: 10 * offpeak.Credit, Available: 8 * offpeak.Credit, Fee: 2 * offpeak.Credit}
	if b, err := x.GridBalance(t.Context()); err != nil || b != want {
		t.Errorf("in the end %+v, %v", b, err)
	}
}

// A grid takes in what its books can count and refuses the rest, a file of deposits as
// a whole.
func TestDepositsHaveALimit(t *testing.T) {
	t.Parallel()
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{3}, ed25519.SeedSize))
	x := newTill(t, csvbatch.Adapter{Own: key, Trusted: key.Public().(ed25519.PublicKey)}, "acct_a")
	batch := ledger.Batch{ID: "most", Direction: ledger.DirectionDeposits, At: time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC)}
	for i := range 9 {
		batch.Movements = append(batch.Movements, ledger.Movement{External: fmt.Sprintf("bank-%d", i), Account: "acct_a", Amount: ledger.MaxAmount})
	}
	imported := func() (wire.Posted, error) {
		signed, err := csvbatch.Write(batch, key)
		if err != nil {
			t.Fatal(err)
		}
		return x.ImportDeposits(t.Context(), x.op(), signed)
	}
	if p, err := imported(); err != nil || p.Fresh != 9 {
		t.Fatal(p, err)
	}
	const room = "223372036844.775807"
	_, err := x.Deposit(t.Context(), x.op(), wire.NewMovement{External: "more", Account: "acct_a", Amount: "223372036844.775808"})
	if limit := new(ledger.LimitError); !errors.As(err, &limit) || limit.Room.String() != room {
		t.Errorf("a micro-credit too much: %v", err)
	}
	// Its first row would fit, and rows that are there already count for nothing.
	batch.ID = "more"
	batch.Movements = append(batch.Movements[:2:2], ledger.Movement{External: "small", Account: "acct_a", Amount: 1}, ledger.Movement{External: "large", Account: "acct_a", Amount: ledger.MaxAmount})
	if p, err := imported(); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("a file of too much: %+v, %v", p, err)
	}
	if _, err := x.Deposit(t.Context(), x.op(), wire.NewMovement{External: "rest", Account: "acct_a", Amount: room}); err != nil {
		t.Error(err)
	}
	b, err := x.GridBalance(t.Context())
	if want := (wire.GridBalance{Deposits: ledger.MaxDeposits, Available: ledger.MaxDeposits}); err != nil || b != want {
		t.Errorf("in the end %+v, %v", b, err)
	}
	if bad, err := x.store.CheckLedger(t.Context()); err != nil || len(bad) > 0 {
		t.Errorf("check: %v, %v", bad, err)
	}
}

// One operation is one answer, and money that was there already tells nobody.
func TestRepeats(t *testing.T) {
	t.Parallel()
	x := newTill(t, nil, "acct_a")
	in := wire.NewMovement{External: "bank", Account: "acct_a", Amount: "1"}
	op := x.op()
	for range 2 {
		if p, err := x.Deposit(t.Context(), op, in); err != nil || p.Fresh != 1 {
			t.Errorf("deposited %+v, %v", p, err)
		}
	}
	told := len(x.told)
	if p, err := x.Deposit(t.Context(), x.op(), in); err != nil || p.Fresh != 0 || len(x.told) != told {
		t.Errorf("deposited again %+v, %v; told %v", p, err, x.told)
	}
	op.Digest[0]++
	if _, err := x.Deposit(t.Context(), op, in); !errors.Is(err, offpeak.ErrOperationConflict) {
		t.Errorf("another request under the operation: %v", err)
	}
	if n := x.has(t, "acct_a"); n != 11*offpeak.Credit {
		t.Errorf("it has %s", n)
	}
}
