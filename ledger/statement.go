package ledger

import (
	"fmt"
	"iter"

	"offpeak"
)

// Line is one line of an account's statement.
type Line struct {
	Transaction Transaction `json:"transaction"`
	// Amount is what the transaction changed the account by, Balance what the
	// account had after it.
	Amount  offpeak.MicroCredits `json:"amount"`
	Balance offpeak.MicroCredits `json:"balance"`
}

// Statement yields the entries of one account with its running balance, from
// what it had before the first transaction, in the order in which the
// transactions come: that in which they were appended. It ends with the first
// error of its source, or with one where a balance overflows.
func Statement(a Account, before offpeak.MicroCredits, list iter.Seq2[Transaction, error]) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		balance := before
		for t, err := range list {
			if err != nil {
				yield(Line{}, err)
				return
			}
			for _, e := range t.Entries {
				if e.Account != a {
					continue
				}
				var ok bool
				if balance, ok = add(balance, e.Amount); !ok {
					yield(Line{}, &FormError{Transaction: t.ID, Rule: fmt.Sprintf("the balance of %s overflows", a)})
					return
				}
				if !yield(Line{Transaction: t, Amount: e.Amount, Balance: balance}, nil) {
					return
				}
			}
		}
	}
}
