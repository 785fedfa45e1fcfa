package offpeak

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Sentinel errors: what a caller branches on, on either side of the network.
// The table that maps them to stable codes and HTTP statuses is in package wire.
var (
	// ErrNotFound: no such object, or it belongs to another account.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the object changed since the caller looked. Look again.
	ErrConflict = errors.New("conflict")
	// ErrOperationConflict: the operation id was used before for another request.
	ErrOperationConflict = errors.New("operation id was used for another request")
	// ErrStaleLease: the lease is not (or no longer) the newest of its job, or
	// has ended. Its holder must drop it.
	ErrStaleLease = errors.New("stale lease")
	// ErrStaleSession: the node's session, incarnation or sequence is older
	// than one the hub has seen.
	ErrStaleSession = errors.New("stale session")
	// ErrIdentityConflict: two agents use one node's identity.
	ErrIdentityConflict = errors.New("identity conflict")
	// ErrUnknownNode: the hub has no such node; it must join again.
	ErrUnknownNode = errors.New("unknown node")
	// ErrUnauthenticated: no token, or one that is wrong, expired or revoked.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrForbidden: the token is good but its role does not allow this.
	ErrForbidden = errors.New("forbidden")
	// ErrQuota: the account's quota does not allow this.
	ErrQuota = errors.New("quota exceeded")
	// ErrFunds: the account's balance or the job's budget does not cover what was
	// asked.
	ErrFunds = errors.New("not enough funds")
	// ErrTooLarge: a body or file is over its bound.
	ErrTooLarge = errors.New("too large")
	// ErrBlobMissing: a blob that was named is not stored for this account.
	ErrBlobMissing = errors.New("blob missing")
	// ErrHashMismatch: bytes do not have the hash they were said to have.
	ErrHashMismatch = errors.New("hash mismatch")
	// ErrStorage: the disk is full or broken; nothing was changed.
	ErrStorage = errors.New("storage unavailable")
	// ErrUnavailable: try again later; the outcome may be unknown, so keep the
	// operation id.
	ErrUnavailable = errors.New("unavailable")
	// ErrInvalid: the input breaks a rule; see *FieldError and *ValueError.
	ErrInvalid = errors.New("invalid")
	// ErrIllegalMove: the state machine has no such transition; see *IllegalMoveError.
	ErrIllegalMove = errors.New("illegal move")
)

// ValueError says that a value breaks a rule of its type.
type ValueError struct {
	// Value is what was given.
	Value string
	// Rule says what is allowed, with an example.
	Rule string
}

func (e *ValueError) Error() string { return fmt.Sprintf("%q: %s", clip(e.Value), e.Rule) }

// Unwrap makes errors.Is(e, ErrInvalid) true.
func (e *ValueError) Unwrap() error { return ErrInvalid }

// FieldError says which field of a request breaks which rule.
type FieldError struct {
	// Field is the path of the field in the request, "task.command[0]".
	Field string
	// Value is what was given, "" where it can't be shown.
	Value string
	// Rule says what is allowed.
	Rule string
}

func (e *FieldError) Error() string {
	if e.Value == "" {
		return e.Field + ": " + e.Rule
	}
	return fmt.Sprintf("%s: %q: %s", e.Field, clip(e.Value), e.Rule)
}

// Unwrap makes errors.Is(e, ErrInvalid) true.
func (e *FieldError) Unwrap() error { return ErrInvalid }

// QuotaError says which bound of an account's quota stands in the way.
type QuotaError struct {
	// Bound is the field of the quota: "queued_jobs", "running_jobs", "gpus".
	Bound string
	// Have is what the account has of Most, and More what was asked for beside.
	Most, Have, More int64
}

func (e *QuotaError) Error() string {
	what := map[string]string{"queued_jobs": "jobs that have not ended", "running_jobs": "live leases", "gpus": "GPUs in live leases"}[e.Bound]
	return fmt.Sprintf("quota exceeded: %s: the account has %d %s and may have %d, and %d more is asked for", e.Bound, e.Have, what, e.Most, e.More)
}

// Unwrap makes errors.Is(e, ErrQuota) true.
func (e *QuotaError) Unwrap() error { return ErrQuota }

// IllegalMoveError names a transition that a state machine does not have.
type IllegalMoveError struct {
	// Machine is "job", "lease", "liveness", "intent" or "availability".
	Machine string
	// From and To are the states.
	From, To string
}

func (e *IllegalMoveError) Error() string {
	return fmt.Sprintf("%s can't go from %q to %q", e.Machine, clip(e.From), clip(e.To))
}

// Unwrap makes errors.Is(e, ErrIllegalMove) true.
func (e *IllegalMoveError) Unwrap() error { return ErrIllegalMove }

// StaleLeaseError says why a lease was refused.
type StaleLeaseError struct {
	// Lease is the lease that was shown.
	Lease LeaseID
	// Attempt is the job's newest attempt, 0 if the lease is not known at all.
	Attempt Attempt
	// State is the state of the lease that was shown, "" if it is not known.
	State LeaseState
}

func (e *StaleLeaseError) Error() string {
	if e.State == "" {
		return fmt.Sprintf("stale lease %s: not known here; drop it", e.Lease)
	}
	return fmt.Sprintf("stale lease %s: it is %s, the newest attempt is %d; drop it", e.Lease, e.State, e.Attempt)
}

// Unwrap makes errors.Is(e, ErrStaleLease) true.
func (e *StaleLeaseError) Unwrap() error { return ErrStaleLease }

// LogGapError says that a log append does not start where the stored log ends.
type LogGapError struct {
	// Want is the offset at which the stored log ends.
	Want int64
	// Got is the offset of the refused append.
	Got int64
}

func (e *LogGapError) Error() string {
	return fmt.Sprintf("log append at %d leaves a gap: the stored log ends at %d", e.Got, e.Want)
}

// Unwrap makes errors.Is(e, ErrConflict) true.
func (e *LogGapError) Unwrap() error { return ErrConflict }

// clip keeps a hostile value from filling a terminal.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
