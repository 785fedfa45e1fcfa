package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"offpeak"
	"offpeak/wire"
)

// ask reads the query of a plain route: each parameter at most once, none that
// the table does not list.
type ask struct {
	values map[string][]string
	err    error
}

func asked(r *http.Request, known ...string) *ask {
	q := &ask{values: r.URL.Query()}
	for name, v := range q.values {
		switch {
		case !slices.Contains(known, name):
			q.fail(name, "", fmt.Sprintf("is not known here; there is %v", known))
		case len(v) > 1:
			q.fail(name, "", "is given once")
		}
	}
	return q
}

func (q *ask) fail(name, value, rule string) {
	if q.err == nil {
		q.err = &offpeak.FieldError{Field: "query." + clip(name), Value: value, Rule: rule}
	}
}

func (q *ask) text(name string) string {
	if v := q.values[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func (q *ask) number(name string, least, most int64) int64 {
	s := q.text(name)
	if s == "" && least == 0 {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < least || n > most {
		q.fail(name, clip(s), fmt.Sprintf("is a whole number from %d to %d", least, most))
	}
	return n
}

func (q *ask) flag(name string) bool {
	switch s := q.text(name); s {
	case "", "false", "0":
		return false
	case "true", "1":
		return true
	default:
		q.fail(name, clip(s), "is true or false")
		return false
	}
}

func (q *ask) stream(name, fallback string) string {
	s := q.text(name)
	if s == "" {
		s = fallback
	}
	if s != "stdout" && s != "stderr" {
		q.fail(name, clip(s), "is stdout or stderr")
	}
	return s
}

const maxAttempt = 1 << 30

func (a *api) appendLog(w http.ResponseWriter, r *http.Request, c *caller) error {
	q := asked(r, "attempt", "stream", "offset")
	attempt := offpeak.Attempt(q.number("attempt", 1, maxAttempt))
	stream := q.stream("stream", "")
	offset := q.number("offset", 0, 1<<62)
	if q.err != nil {
		return q.err
	}
	end, err := a.hub.AppendLog(r.Context(), c.token.Node, offpeak.LeaseID(r.PathValue("lease")), attempt, stream, offset, c.body)
	if err != nil {
		return err
	}
	return writeJSON(w, wire.LogEnd{End: end})
}

// logs sends the bytes of one stream of one attempt.
func (a *api) logs(w http.ResponseWriter, r *http.Request, c *caller) error {
	q := asked(r, "attempt", "stream", "offset", "follow")
	attempt := offpeak.Attempt(q.number("attempt", 0, maxAttempt))
	stream := q.stream("stream", "stdout")
	offset := q.number("offset", 0, 1<<62)
	follow := q.flag("follow")
	if q.err != nil {
		return q.err
	}
	job := offpeak.JobID(r.PathValue("job"))
	if _, err := a.hub.Store().Job(r.Context(), c.account, job); err != nil {
		return err
	}
	ctx, stop := a.untilClosing(r.Context())
	defer stop()
	w.Header().Set("Content-Type", "application/octet-stream")
	if !follow {
		w.Header().Set("Content-Disposition", "attachment; filename="+strconv.Quote(string(job)+"."+stream+".log"))
	}
	out := flusher{http.NewResponseController(w), w}
	if follow {
		defer a.metrics.open("log")()
		// The client learns at once that it is connected, not with the first byte.
		if err := out.send(nil); err != nil {
			return err
		}
	}
	for data, err := range a.data.ReadLog(ctx, c.account, job, attempt, stream, offset, follow) {
		if err == nil {
			err = out.send(data)
		}
		if err != nil {
			return a.ended(ctx, err)
		}
	}
	return a.ended(ctx, nil)
}

// records sends the records of all attempts and both streams.
func (a *api) records(w http.ResponseWriter, r *http.Request, c *caller) error {
	q := asked(r, "after", "follow")
	after, follow := q.text("after"), q.flag("follow")
	if q.err != nil {
		return q.err
	}
	job := offpeak.JobID(r.PathValue("job"))
	if _, err := a.hub.Store().Job(r.Context(), c.account, job); err != nil {
		return err
	}
	ctx, stop := a.untilClosing(r.Context())
	defer stop()
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := flusher{http.NewResponseController(w), w}
	begun := false
	if follow && after == "" {
		defer a.metrics.open("log")()
		begun = true
		if err := out.send(nil); err != nil {
			return err
		}
	}
	for record, err := range a.data.FollowLog(ctx, c.account, job, after, follow) {
		if err == nil {
			begun = true
			err = sendJSON(out, record)
		}
		if err != nil {
			if !begun {
				return err
			}
			return a.ended(ctx, err)
		}
	}
	return a.ended(ctx, nil)
}

// untilClosing is ctx that also ends when open streams are told to.
func (a *api) untilClosing(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(a.opts.Streams, cancel)
	return ctx, func() { stop(); cancel() }
}

// errClosing breaks a log off because the hub goes away.
var errClosing = errors.New("the hub is closing")

// ended says how a followed log ends: whole when it is whole, or when the
// client went away and nobody sees it; broken off otherwise, so that the client
// takes it up again instead of taking it for the end of the log.
func (a *api) ended(ctx context.Context, err error) error {
	switch {
	case a.opts.Streams.Err() != nil && ctx.Err() != nil:
		return errClosing
	case ctx.Err() != nil:
		return nil //nolint:nilerr // nobody is there to be told
	}
	return err
}
