package ledger

import (
	"fmt"
	"math"
	"strconv"

	"offpeak"
)

// RangeError says that a number is outside the bounds of its kind.
type RangeError struct {
	// What names the number: "price", "metered_ms", "amount".
	What string
	// Value is what was given, Least and Most are the bounds.
	Value, Least, Most int64
}

func (e *RangeError) Error() string {
	most := strconv.FormatInt(e.Most, 10)
	if e.Most == math.MaxInt64 {
		most = "2⁶³−1"
	}
	return fmt.Sprintf("%s: %d is not within %d … %s", e.What, e.Value, e.Least, most)
}

// Unwrap makes errors.Is(e, offpeak.ErrInvalid) true.
func (e *RangeError) Unwrap() error { return offpeak.ErrInvalid }

func inRange(what string, v, least, most int64) error {
	if v < least || v > most {
		return &RangeError{What: what, Value: v, Least: least, Most: most}
	}
	return nil
}

// FundsError says how much is missing for which lease.
type FundsError struct {
	Lease offpeak.LeaseID
	// Need is what the next interval, or the least part of it that is worth
	// running, takes; Have is what may be held for it.
	Need, Have offpeak.MicroCredits
	// Budget is whether the job's budget is the bound and not the balance.
	Budget bool
}

func (e *FundsError) Error() string {
	bound := "the account's balance"
	if e.Budget {
		bound = "the job's budget"
	}
	return fmt.Sprintf("hold %s for lease %s: %s leaves %s", e.Need, e.Lease, bound, e.Have)
}

// Unwrap makes errors.Is(e, offpeak.ErrFunds) true.
func (e *FundsError) Unwrap() error { return offpeak.ErrFunds }

// LimitError says that deposits would be above what a grid may take in, in all its
// life.
type LimitError struct {
	// Amount is what was to come in, Room is what still fits.
	Amount, Room offpeak.MicroCredits
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("deposit %s credits: a grid takes in at most %s credits in all its life, and %s more fit", e.Amount, MaxDeposits, e.Room)
}

// Unwrap makes errors.Is(e, offpeak.ErrInvalid) true.
func (e *LimitError) Unwrap() error { return offpeak.ErrInvalid }

// NegativeError says that a transaction would overdraw an account.
type NegativeError struct {
	Transaction TransactionID
	Account     Account
	// Balance is what the account has, Change is what it was to change by.
	Balance, Change offpeak.MicroCredits
}

func (e *NegativeError) Error() string {
	return fmt.Sprintf("post %s: %s has %s, which a change by %s overdraws", e.Transaction, e.Account, e.Balance, e.Change)
}

// Unwrap makes errors.Is(e, offpeak.ErrFunds) true.
func (e *NegativeError) Unwrap() error { return offpeak.ErrFunds }

// ConflictError says that a transaction's id was used for another one.
type ConflictError struct {
	Transaction TransactionID
	// Field is the first one that differs.
	Field string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("post %s: the id was used for a transaction with another %s", e.Transaction, e.Field)
}

// Unwrap makes errors.Is(e, offpeak.ErrOperationConflict) true.
func (e *ConflictError) Unwrap() error { return offpeak.ErrOperationConflict }

// FormError says which rule of its kind a transaction breaks.
type FormError struct {
	Transaction TransactionID
	Rule        string
}

func (e *FormError) Error() string { return fmt.Sprintf("post %s: %s", e.Transaction, e.Rule) }

// Unwrap makes errors.Is(e, offpeak.ErrInvalid) true.
func (e *FormError) Unwrap() error { return offpeak.ErrInvalid }

// SettledError says that a lease is settled: its money moves no more.
type SettledError struct {
	Lease offpeak.LeaseID
}

func (e *SettledError) Error() string { return fmt.Sprintf("lease %s is settled", e.Lease) }

// Unwrap makes errors.Is(e, offpeak.ErrConflict) true.
func (e *SettledError) Unwrap() error { return offpeak.ErrConflict }
