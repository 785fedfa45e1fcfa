package ledger

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"offpeak"
)

// Part says which of its holder's accounts a ledger account is.
type Part string

// The parts. The first two exist for each account of the grid, the others
// once, for the grid itself.
const (
	// PartAvailable is what an account may spend or have paid out.
	PartAvailable Part = "available"
	// PartHeld is what is set aside for an account's leases.
	PartHeld Part = "held"
	// PartFee is what the operator took as fees.
	PartFee Part = "fee"
	// PartRounding is what rounding left.
	PartRounding Part = "rounding"
	// PartDeposits stands for the world money comes from.
	PartDeposits Part = "deposits"
	// PartPayouts stands for the world money goes to.
	PartPayouts Part = "payouts"
)

// PartRule is what holds for the accounts of one part.
type PartRule struct {
	Part Part
	// Owned is whether each account of the grid has one.
	Owned bool
	// Negative is whether the balance may go below zero.
	Negative bool
}

// Parts lists the parts and their rules in a stable order. Deposits alone goes
// below zero: it is what the world has given.
func Parts() []PartRule {
	return []PartRule{
		{Part: PartAvailable, Owned: true},
		{Part: PartHeld, Owned: true},
		{Part: PartFee},
		{Part: PartRounding},
		{Part: PartDeposits, Negative: true},
		{Part: PartPayouts},
	}
}

// rule returns the rule of a part.
func rule(p Part) (r PartRule, known bool) {
	switch p {
	case PartAvailable, PartHeld:
		return PartRule{Part: p, Owned: true}, true
	case PartFee, PartRounding, PartPayouts:
		return PartRule{Part: p}, true
	case PartDeposits:
		return PartRule{Part: p, Negative: true}, true
	}
	return PartRule{}, false
}

// Account is one account of the ledger.
type Account struct {
	// Of is whose it is, "" for the grid's own.
	Of   offpeak.AccountID `json:"account,omitempty"`
	Part Part              `json:"part"`
}

// Available is what an account may spend.
func Available(of offpeak.AccountID) Account { return Account{Of: of, Part: PartAvailable} }

// Held is what is set aside for an account's leases.
func Held(of offpeak.AccountID) Account { return Account{Of: of, Part: PartHeld} }

// Grid is one of the grid's own accounts.
func Grid(p Part) Account { return Account{Part: p} }

// String prints the account as "acct_x/held" or "grid/fee".
func (a Account) String() string {
	if a.Of == "" {
		return "grid/" + string(a.Part)
	}
	return string(a.Of) + "/" + string(a.Part)
}

// MayBeNegative says whether the account's balance may go below zero.
func (a Account) MayBeNegative() bool {
	r, _ := rule(a.Part)
	return r.Negative
}

// valid says whether there is such an account.
func (a Account) valid() bool {
	r, known := rule(a.Part)
	return known && r.Owned == (a.Of != "")
}

// TransactionID names a transaction. Its maker keeps it for retries: the id of
// a lease's hold or settlement follows from the lease, that of a deposit or
// payout from the world's own reference. It has 1 to 200 printable ASCII
// characters.
type TransactionID string

const maxTransactionID = 200

// Kind says what a transaction is for.
type Kind string

// The kinds.
const (
	// KindDeposit brings money in: deposits → available.
	KindDeposit Kind = "deposit"
	// KindPayout takes money out: available, fee or rounding → payouts.
	KindPayout Kind = "payout"
	// KindReturn gives back a payout that did not arrive: payouts → what it was from.
	KindReturn Kind = "payout_returned"
	// KindHold sets money aside for a lease: available → held.
	KindHold Kind = "hold"
	// KindSettle ends a lease's hold: held → owner, fee, rounding, and the rest
	// back to available.
	KindSettle Kind = "settle"
)

// Entry is one change of one account.
type Entry struct {
	Account Account              `json:"account"`
	Amount  offpeak.MicroCredits `json:"amount"`
}

// Subject is what a transaction is about.
type Subject struct {
	Job     offpeak.JobID   `json:"job,omitempty"`
	Lease   offpeak.LeaseID `json:"lease,omitempty"`
	Attempt offpeak.Attempt `json:"attempt,omitempty"`
	// Term is the number of the price term a hold was made in.
	Term int `json:"term,omitempty"`
	// External is the world's reference of a deposit or payout.
	External string `json:"external,omitempty"`
	// Minimum is what an account had to have, for a payout of a batch of everything;
	// 0 for all else.
	Minimum offpeak.MicroCredits `json:"minimum,omitempty"`
}

// Transaction is a set of entries that sum to zero. It is written once and
// never changed.
type Transaction struct {
	ID   TransactionID `json:"id"`
	Kind Kind          `json:"kind"`
	// At is when it was first recorded; a retry does not change it.
	At      time.Time `json:"at"`
	Subject Subject   `json:"subject"`
	// Entries has each account at most once, none with the amount zero.
	Entries []Entry `json:"entries"`
}

// Validate returns nil, or a *FormError with the rule that the transaction
// breaks: it has an id and entries, sums to zero, and moves money only between
// the accounts of its kind.
func (t Transaction) Validate() error {
	bad := func(format string, args ...any) error {
		return &FormError{Transaction: t.ID, Rule: fmt.Sprintf(format, args...)}
	}
	if !printable(string(t.ID), maxTransactionID) {
		return bad("an id has 1 to %d printable ASCII characters", maxTransactionID)
	}
	if len(t.Entries) < 2 {
		return bad("a transaction has at least two entries")
	}
	var sum offpeak.MicroCredits
	for i, e := range t.Entries {
		if !e.Account.valid() {
			return bad("there is no account %s", e.Account)
		}
		if e.Amount == 0 {
			return bad("the entry of %s moves nothing", e.Account)
		}
		if slices.ContainsFunc(t.Entries[:i], func(o Entry) bool { return o.Account == e.Account }) {
			return bad("%s has more than one entry", e.Account)
		}
		var ok bool
		if sum, ok = add(sum, e.Amount); !ok {
			return bad("the entries overflow")
		}
	}
	if sum != 0 {
		return bad("the entries sum to %s, not to zero", sum)
	}
	return t.form(bad)
}

// form checks what each kind of transaction may move.
func (t Transaction) form(bad func(string, ...any) error) error {
	pair := func(from, to func(Account) bool) bool {
		if len(t.Entries) != 2 {
			return false
		}
		a, b := t.Entries[0], t.Entries[1]
		if a.Amount > 0 {
			a, b = b, a
		}
		return from(a.Account) && to(b.Account)
	}
	is := func(parts ...Part) func(Account) bool {
		return func(a Account) bool { return slices.Contains(parts, a.Part) }
	}
	s := t.Subject
	switch t.Kind {
	case KindDeposit, KindPayout, KindReturn:
		if s.External == "" || s.Lease != "" {
			return bad("a %s has an external reference and no lease", t.Kind)
		}
	case KindHold, KindSettle:
		if s.Lease == "" || s.Job == "" || s.External != "" {
			return bad("a %s has a job, a lease and no external reference", t.Kind)
		}
	}
	if s.Minimum < 0 || s.Minimum > 0 && t.Kind != KindPayout {
		return bad("only a payout has a minimum, above zero")
	}
	switch t.Kind {
	case KindDeposit:
		if !pair(is(PartDeposits), is(PartAvailable)) {
			return bad("a deposit moves money from deposits to one account's available")
		}
	case KindPayout:
		if !pair(is(PartAvailable, PartFee, PartRounding), is(PartPayouts)) {
			return bad("a payout moves money from an available, fee or rounding account to payouts")
		}
	case KindReturn:
		if !pair(is(PartPayouts), is(PartAvailable, PartFee, PartRounding)) {
			return bad("a returned payout moves money from payouts to an available, fee or rounding account")
		}
	case KindHold:
		if !pair(is(PartAvailable), is(PartHeld)) || t.Entries[0].Account.Of != t.Entries[1].Account.Of {
			return bad("a hold moves money from an account's available to its held")
		}
	case KindSettle:
		held := 0
		for _, e := range t.Entries {
			switch {
			case e.Account.Part == PartHeld && e.Amount < 0:
				held++
			case !is(PartAvailable, PartFee, PartRounding)(e.Account) || e.Amount < 0:
				return bad("a settlement takes from one held account and gives to available, fee and rounding accounts")
			}
		}
		if held != 1 {
			return bad("a settlement takes from exactly one held account")
		}
	default:
		return bad("there is no kind %q", clip(string(t.Kind)))
	}
	return nil
}

// Again compares a transaction with the one that is stored under its id. It
// returns nil where they are the same, so that nothing is to be done, and a
// *ConflictError where they are not. The time is not compared: a retry comes
// later.
func (t Transaction) Again(stored Transaction) error {
	var field string
	switch {
	case t.Kind != stored.Kind:
		field = "kind"
	case t.Subject != stored.Subject:
		field = "subject"
	case !sameEntries(t.Entries, stored.Entries):
		field = "amount or account"
	default:
		return nil
	}
	return &ConflictError{Transaction: t.ID, Field: field}
}

// sameEntries ignores the order: it means nothing.
func sameEntries(a, b []Entry) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(e Entry) bool { return !slices.Contains(b, e) })
}

// Balance is what one account has.
type Balance struct {
	Account Account              `json:"account"`
	Amount  offpeak.MicroCredits `json:"amount"`
}

// Apply returns the balances of the accounts that a new transaction changes,
// as they are after it, in the order of its entries. It returns a *FormError
// where the transaction is not valid, or would overflow a balance, a *LimitError for
// a deposit that fits no more, and a *NegativeError where it would overdraw one.
func Apply(t Transaction, balance func(Account) offpeak.MicroCredits) ([]Balance, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	out := make([]Balance, 0, len(t.Entries))
	for _, e := range t.Entries {
		was := balance(e.Account)
		is, ok := add(was, e.Amount)
		if e.Account == Grid(PartDeposits) && (!ok || is < -MaxDeposits) {
			return nil, &LimitError{Amount: -e.Amount, Room: DepositsRoom(was)}
		}
		if !ok {
			return nil, &FormError{Transaction: t.ID, Rule: fmt.Sprintf("the balance of %s overflows", e.Account)}
		}
		// An account that is overdrawn already may still be filled.
		if is < 0 && e.Amount < 0 && !e.Account.MayBeNegative() {
			return nil, &NegativeError{Transaction: t.ID, Account: e.Account, Balance: was, Change: e.Amount}
		}
		out = append(out, Balance{Account: e.Account, Amount: is})
	}
	return out, nil
}

// Book is a ledger in memory: the rules of Apply and Again over what was
// posted. Its zero value is an empty book. It is not safe for concurrent use.
type Book struct {
	balances map[Account]offpeak.MicroCredits
	posted   map[TransactionID]Transaction
}

// Post appends a transaction, wholly or not at all. Posting one again changes
// nothing. It returns the errors of Again and Apply.
func (b *Book) Post(t Transaction) error {
	if stored, ok := b.posted[t.ID]; ok {
		return t.Again(stored)
	}
	after, err := Apply(t, b.Balance)
	if err != nil {
		return err
	}
	if b.posted == nil {
		b.balances, b.posted = map[Account]offpeak.MicroCredits{}, map[TransactionID]Transaction{}
	}
	t.Entries = slices.Clone(t.Entries)
	b.posted[t.ID] = t
	for _, a := range after {
		b.balances[a.Account] = a.Amount
	}
	return nil
}

// Balance returns what an account has, 0 for one that nothing was posted to.
func (b *Book) Balance(a Account) offpeak.MicroCredits { return b.balances[a] }

// Balances returns every account that something was posted to, sorted.
func (b *Book) Balances() []Balance {
	out := make([]Balance, 0, len(b.balances))
	for a, m := range b.balances {
		out = append(out, Balance{Account: a, Amount: m})
	}
	slices.SortFunc(out, func(x, y Balance) int { return compareAccounts(x.Account, y.Account) })
	return out
}

func compareAccounts(a, b Account) int { return strings.Compare(a.String(), b.String()) }

func printable(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// clip keeps a hostile value from filling a terminal.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
