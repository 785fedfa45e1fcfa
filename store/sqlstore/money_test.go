package sqlstore

import (
	"errors"
	"testing"

	"offpeak"
	"offpeak/ledger"
)

// silent is a transaction whose connection broke.
type silent struct{ Tx }

func (silent) Query(string, ...any) (Rows, error) { return nil, offpeak.ErrUnavailable }

// A balance that could not be read is not a balance of nothing: who asked is told to
// ask again, and not that there is no money.
func TestPostWithoutConnection(t *testing.T) {
	held := ledger.Held("acct_a")
	v := &verb{Tx: silent{}}
	err := v.post(ledger.Transaction{ID: "settle/lease_a", Kind: ledger.KindSettle, Subject: ledger.Subject{Job: "job_a", Lease: "lease_a", Attempt: 1}, Entries: []ledger.Entry{{Account: held, Amount: -1}, {Account: ledger.Available("acct_a"), Amount: 1}}})
	if !errors.Is(err, offpeak.ErrUnavailable) || errors.Is(err, offpeak.ErrFunds) {
		t.Errorf("post = %v", err)
	}
}
