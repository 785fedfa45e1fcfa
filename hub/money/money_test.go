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
			var err error
			if out[i], err = x.ExportPayouts(t.Context(), x.op(), wire.NewPayouts{Batch: "b"}); err != nil {
				t.Error(err)
			}
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
