package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"offpeak"
	"offpeak/wire"
)

type header struct {
	name  string
	value []string
}

// securityHeaders are on every answer. Nothing here is a page, so a browser is
// told to treat nothing as one.
func securityHeaders() []header {
	return []header{
		{"X-Content-Type-Options", []string{"nosniff"}},
		{"Content-Security-Policy", []string{"default-src 'none'; frame-ancestors 'none'"}},
		{"Referrer-Policy", []string{"no-referrer"}},
		{"Cache-Control", []string{"no-store"}},
		{wire.HeaderProtocol, []string{strconv.Itoa(wire.Protocol)}},
	}
}

// problem is the one place that turns an error into what is answered. What the
// caller must not see goes to the log.
func (a *api) problem(h http.Header, path string, err error) *wire.Problem {
	if tooBig, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = tooLarge(tooBig.Limit)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = wrap("the request ended before its outcome was known", offpeak.ErrUnavailable)
	}
	p := wire.ProblemOf(err)
	switch {
	case p.Status >= http.StatusInternalServerError && p.Status != http.StatusServiceUnavailable:
		a.log.Error("request failed", "route", path, "err", err)
	case p.Code == "storage":
		a.log.Error("storage unavailable", "route", path, "err", err)
	}
	if p.Status == http.StatusServiceUnavailable && h.Get("Retry-After") == "" {
		h.Set("Retry-After", "1")
	}
	return p
}

// fail answers with an error, or breaks the connection off where an answer has
// begun, so that nobody takes half of one for the whole.
func (a *api) fail(c *caller, rt *route, err error) {
	if c.status != 0 {
		a.log.Debug("answer broken off", "route", rt.path, "err", err)
		panic(http.ErrAbortHandler)
	}
	p := a.problem(c.Header(), rt.path, err)
	data, err := json.Marshal(p)
	if err != nil {
		data = []byte(`{"title":"Internal error","status":500,"code":"internal"}`)
	}
	h := c.Header()
	h.Del("Content-Length")
	h.Del("Content-Disposition")
	h.Set("Content-Type", "application/problem+json")
	c.WriteHeader(p.Status)
	_, _ = c.Write(data)
}

// statusError carries a problem through huma.
type statusError struct{ *wire.Problem }

// GetStatus implements huma.StatusError.
func (e statusError) GetStatus() int { return e.Status }

// ContentType implements huma.ContentTypeFilter.
func (e statusError) ContentType(string) string { return "application/problem+json" }

// MarshalJSON writes the problem itself.
func (e statusError) MarshalJSON() ([]byte, error) { return json.Marshal(e.Problem) }

// transform turns what huma found wrong with parameters into a problem like any
// other. huma's own hook for this is a variable shared by the whole process.
func (a *api) transform(_ huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	p := &wire.Problem{Title: m.Title, Status: m.Status, Detail: m.Detail, Code: "internal"}
	if m.Status < http.StatusInternalServerError {
		p.Title, p.Code, p.Detail, p.Next = "Invalid", "invalid", "", "Change what is named and send it again."
	}
	var said []string
	for _, e := range m.Errors {
		if e == nil {
			continue
		}
		p.Errors = append(p.Errors, wire.FieldProblem{Location: e.Location, Message: e.Message, Value: e.Value})
		said = append(said, e.Location+": "+e.Message)
	}
	if p.Detail == "" {
		p.Detail = strings.Join(said, "; ")
	}
	return p, nil
}

type wrapped struct {
	msg string
	err error
}

func (e *wrapped) Error() string { return e.msg }
func (e *wrapped) Unwrap() error { return e.err }

// wrap says msg and is err.
func wrap(msg string, err error) error { return &wrapped{msg, err} }

func tooLarge(limit int64) error {
	return wrap(fmt.Sprintf("the body is over %s", offpeak.Bytes(limit)), offpeak.ErrTooLarge)
}

func cutShort(err error) error {
	return wrap("the body did not arrive whole: "+err.Error(), offpeak.ErrInvalid)
}

func tooMany(c *caller, wait time.Duration, detail string) error {
	seconds := strconv.Itoa(int(math.Ceil(wait.Seconds())))
	c.Header().Set("Retry-After", seconds)
	return &wire.Problem{Title: "Rate limited", Status: http.StatusTooManyRequests, Code: "rate_limited",
		Detail: detail, Next: "Wait " + seconds + " s, then go on more slowly."}
}

func noRoute(path string) error {
	return &wire.Problem{Title: "Not found", Status: http.StatusNotFound, Code: "not_found",
		Detail: "there is nothing at " + strconv.Quote(clip(path)), Next: "See /v1/openapi.json for what there is."}
}

func notAllowed(w http.ResponseWriter, method string, allowed []string) error {
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return &wire.Problem{Title: "Method not allowed", Status: http.StatusMethodNotAllowed, Code: "method_not_allowed",
		Detail: clip(method) + " is not possible here", Next: "Use " + strings.Join(allowed, " or ") + "."}
}
