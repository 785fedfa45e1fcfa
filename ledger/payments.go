package ledger

import (
	"fmt"
	"strings"
	"time"

	"offpeak"
)

// Movement is one deposit or payout.
type Movement struct {
	// External is the world's reference: it is unique for its direction for
	// ever, and has 1 to 100 printable ASCII characters but commas.
	External string               `json:"external"`
	Account  offpeak.AccountID    `json:"account"`
	Amount   offpeak.MicroCredits `json:"amount"`
}

const maxExternal = 100

// Validate returns nil or the rule that the movement breaks, as a
// *offpeak.FieldError or *RangeError.
func (m Movement) Validate() error {
	if !printable(m.External, maxExternal) || strings.Contains(m.External, ",") {
		return &offpeak.FieldError{Field: "external", Value: m.External, Rule: "has 1 to 100 printable ASCII characters, without spaces and commas"}
	}
	if !printable(string(m.Account), maxExternal) || strings.Contains(string(m.Account), ",") {
		return &offpeak.FieldError{Field: "account", Value: string(m.Account), Rule: "names an account"}
	}
	return inRange("amount", int64(m.Amount), 1, int64(MaxAmount))
}

// Direction says which way a batch moves money.
type Direction string

// The directions.
const (
	// DirectionDeposits is from the world to the grid.
	DirectionDeposits Direction = "deposits"
	// DirectionPayouts is from the grid to the world.
	DirectionPayouts Direction = "payouts"
)

// Batch is what a payment adapter carries at once.
type Batch struct {
	// ID is made by who writes the batch.
	ID        string     `json:"id"`
	Direction Direction  `json:"direction"`
	At        time.Time  `json:"at"`
	Movements []Movement `json:"movements"`
	// Minimum is what an account had to have to be in a batch of all that accounts
	// have, 0 for one whose movements were named. No adapter carries it.
	Minimum offpeak.MicroCredits `json:"minimum,omitempty"`
}

// Transactions returns what a batch is in the ledger, a transaction a movement,
// in its order. It returns the errors of Movement.Validate, and no transaction
// unless all are valid.
func (b Batch) Transactions(at time.Time) ([]Transaction, error) {
	as := Deposit
	switch b.Direction {
	case DirectionDeposits:
	case DirectionPayouts:
		as = Payout
	default:
		return nil, &offpeak.FieldError{Field: "direction", Value: string(b.Direction), Rule: "is deposits or payouts"}
	}
	out := make([]Transaction, 0, len(b.Movements))
	for i, m := range b.Movements {
		t, err := as(m, at)
		if err != nil {
			return nil, fmt.Errorf("movement %d: %w", i+1, err)
		}
		t.Subject.Minimum = b.Minimum
		out = append(out, t)
	}
	return out, nil
}

// Payments carries money between the grid and the world. It works on bytes:
// who calls it reads, sends and stores them.
type Payments interface {
	// WritePayouts returns a batch of payouts, which the ledger has recorded,
	// in the form in which the world takes them. The same batch gives the same
	// bytes.
	WritePayouts(b Batch) ([]byte, error)
	// ReadDeposits returns the deposits that the world says it has received.
	// It returns an error, and no batch, unless every byte is what the world
	// wrote. Reading the same bytes again gives the same movements, so that
	// posting them again changes nothing.
	ReadDeposits(data []byte) (Batch, error)
}

// Deposit brings money in. Its id follows from the external reference, so the
// same deposit counts once, and one with another account or amount is a
// conflict. It returns the errors of Movement.Validate.
func Deposit(m Movement, at time.Time) (Transaction, error) {
	return moving(KindDeposit, m, at, Grid(PartDeposits), Available(m.Account))
}

// Payout takes money out. It returns the errors of Movement.Validate; whether
// the account has the money is for Apply to say.
func Payout(m Movement, at time.Time) (Transaction, error) {
	return moving(KindPayout, m, at, Available(m.Account), Grid(PartPayouts))
}

// PayoutReturned gives back a payout that did not arrive, under the payout's
// own reference, so once. That there was such a payout is for its caller to
// have looked up. It returns the errors of Movement.Validate.
func PayoutReturned(m Movement, at time.Time) (Transaction, error) {
	return moving(KindReturn, m, at, Grid(PartPayouts), Available(m.Account))
}

// GridPayout takes what the operator earned, or what rounding left, out of the
// grid: part is PartFee or PartRounding. It returns the errors of
// Movement.Validate, and a *FormError for every other part.
func GridPayout(part Part, external string, amount offpeak.MicroCredits, at time.Time) (Transaction, error) {
	return gridMoving(KindPayout, part, external, amount, at, Grid(part), Grid(PartPayouts))
}

// GridPayoutReturned gives back a GridPayout that did not arrive, as PayoutReturned
// does.
func GridPayoutReturned(part Part, external string, amount offpeak.MicroCredits, at time.Time) (Transaction, error) {
	return gridMoving(KindReturn, part, external, amount, at, Grid(PartPayouts), Grid(part))
}

func gridMoving(kind Kind, part Part, external string, amount offpeak.MicroCredits, at time.Time, from, to Account) (Transaction, error) {
	m := Movement{External: external, Account: offpeak.AccountID(Grid(part).String()), Amount: amount}
	t, err := moving(kind, m, at, from, to)
	if err != nil {
		return t, err
	}
	return t, t.Validate()
}

func moving(kind Kind, m Movement, at time.Time, from, to Account) (Transaction, error) {
	if err := m.Validate(); err != nil {
		return Transaction{}, err
	}
	return Transaction{
		ID: TransactionID(string(kind) + "/" + m.External), Kind: kind, At: at,
		Subject: Subject{External: m.External},
		Entries: []Entry{{from, -m.Amount}, {to, m.Amount}},
	}, nil
}

// ParseAmount reads what comes in or goes out, as offpeak.ParseCredits does, but in
// one form only: without spaces around it. It returns a *offpeak.ValueError for
// anything else, and for zero.
func ParseAmount(s string) (offpeak.MicroCredits, error) {
	n, err := offpeak.ParseCredits(s)
	if err != nil || n == 0 || strings.TrimSpace(s) != s {
		return 0, &offpeak.ValueError{Value: s, Rule: "an amount is credits with at most six decimals, for example 12.50, above 0 and at most 1000000000000"}
	}
	return n, nil
}
