package wire

import (
	"errors"
	"net/http"
	"strings"

	"offpeak"
)

// Problem is an error on the network: RFC 9457 problem details with a stable
// code, the fields that are wrong, and what to do next.
type Problem struct {
	Type   string         `json:"type,omitempty"`
	Title  string         `json:"title"`
	Status int            `json:"status"`
	Detail string         `json:"detail,omitempty"`
	Code   string         `json:"code"`
	Next   string         `json:"next,omitempty"`
	Errors []FieldProblem `json:"errors,omitempty"`
	// WantOffset is set for a log gap: where the stored log ends.
	WantOffset *int64 `json:"want_offset,omitempty"`
}

// FieldProblem is one field that breaks a rule, named as huma names them.
type FieldProblem struct {
	Location string `json:"location"`
	Message  string `json:"message"`
	Value    any    `json:"value,omitempty"`
}

// codes is the one table of errors on the network, most specific first.
var codes = []struct {
	err    error
	code   string
	status int
	next   string
}{
	{offpeak.ErrOperationConflict, "operation_conflict", http.StatusConflict, "Use a fresh operation id for another request."},
	{offpeak.ErrStaleLease, "stale_lease", http.StatusConflict, "Drop the lease."},
	{offpeak.ErrStaleSession, "stale_session", http.StatusConflict, "Open a new session."},
	{offpeak.ErrIdentityConflict, "identity_conflict", http.StatusConflict, "Two agents use one identity: stop one, remove its state and join it again."},
	{offpeak.ErrUnknownNode, "unknown_node", http.StatusGone, "The node was removed: join again with a fresh token (offpeak agent join TOKEN)."},
	{offpeak.ErrUnauthenticated, "unauthenticated", http.StatusUnauthorized, "Log in: offpeak login URL."},
	{offpeak.ErrForbidden, "forbidden", http.StatusForbidden, "Ask an admin of the grid for a token with the right role."},
	{offpeak.ErrFunds, "funds", http.StatusPaymentRequired, "Have an admin deposit credits, or ask for less: a lower price, a shorter time."},
	{offpeak.ErrQuota, "quota", http.StatusForbidden, "Wait for jobs to end, remove stored data, or ask an admin to raise the quota."},
	{offpeak.ErrTooLarge, "too_large", http.StatusRequestEntityTooLarge, "Send less at once."},
	{offpeak.ErrBlobMissing, "blob_missing", http.StatusConflict, "Upload the missing blob, then repeat the request."},
	{offpeak.ErrHashMismatch, "hash_mismatch", http.StatusUnprocessableEntity, "Send the bytes again."},
	{offpeak.ErrNotFound, "not_found", http.StatusNotFound, ""},
	{offpeak.ErrConflict, "conflict", http.StatusConflict, "Look at it again, then decide."},
	{offpeak.ErrInvalid, "invalid", http.StatusUnprocessableEntity, "Change what is named and send it again."},
	{offpeak.ErrIllegalMove, "illegal_move", http.StatusConflict, "Look at it again, then decide."},
	{offpeak.ErrStorage, "storage", http.StatusServiceUnavailable, "The hub's disk is full or broken: free space there."},
	{offpeak.ErrUnavailable, "unavailable", http.StatusServiceUnavailable, "Try again; the same operation id makes that safe."},
}

// ProblemOf turns an error into a problem. An error that is not in the table
// becomes an internal one whose text stays in the hub's log; one that is a
// problem already stays as it is.
func ProblemOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	p := &Problem{Title: "Internal error", Status: http.StatusInternalServerError, Code: "internal", Next: "Look in the hub's log."}
	for _, row := range codes {
		if errors.Is(err, row.err) {
			p = &Problem{Title: title(row.code), Status: row.status, Code: row.code, Next: row.next, Detail: err.Error()}
			break
		}
	}
	for _, e := range flatten(err) {
		var field *offpeak.FieldError
		var gap *offpeak.LogGapError
		if errors.As(e, &field) {
			p.Errors = append(p.Errors, FieldProblem{Location: field.Field, Message: field.Rule, Value: field.Value})
		}
		if errors.As(e, &gap) {
			p.WantOffset = &gap.Want
		}
	}
	return p
}

// Error makes a problem an error.
func (p *Problem) Error() string {
	s := p.Detail
	if s == "" {
		s = p.Title
		for _, f := range p.Errors {
			s += "; " + f.Location + ": " + f.Message
		}
	}
	return s
}

// Unwrap returns the sentinel of the code, so that errors.Is works across the
// network; a log gap comes back as *offpeak.LogGapError.
func (p *Problem) Unwrap() error {
	if p.WantOffset != nil {
		return &offpeak.LogGapError{Want: *p.WantOffset}
	}
	for _, row := range codes {
		if row.code == p.Code {
			return row.err
		}
	}
	switch p.Status {
	case http.StatusUnauthorized:
		return offpeak.ErrUnauthenticated
	case http.StatusForbidden:
		return offpeak.ErrForbidden
	case http.StatusNotFound:
		return offpeak.ErrNotFound
	case http.StatusRequestEntityTooLarge:
		return offpeak.ErrTooLarge
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		if p.Code == "" {
			return nil // whoever answered is no hub: what was sent may be right
		}
		return offpeak.ErrInvalid
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return offpeak.ErrUnavailable
	}
	return nil
}

func title(code string) string {
	s := strings.ReplaceAll(code, "_", " ")
	return strings.ToUpper(s[:1]) + s[1:]
}

func flatten(err error) []error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range many.Unwrap() {
			out = append(out, flatten(e)...)
		}
		return out
	}
	return []error{err}
}
