package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"offpeak"
)

// events is the stream of events: server-sent, with each event's cursor as its id.
func (a *api) events(w http.ResponseWriter, r *http.Request, c *caller) error {
	q := asked(r, "after", "job", "account")
	account, err := a.scoped(r.Context(), c, q.text("account"))
	if err != nil {
		return err
	}
	from := r.Header.Get("Last-Event-ID")
	if from == "" {
		from = q.text("after")
	}
	after := int64(-1)
	if from != "" {
		n, err := strconv.ParseInt(from, 10, 64)
		if err != nil || n < 0 {
			q.fail("after", clip(from), "is the id of an event of this stream, or 0 for the oldest kept")
		}
		after = n
	}
	if q.err != nil {
		return q.err
	}
	job := offpeak.JobID(q.text("job"))
	if job != "" {
		if _, err := a.hub.Store().Job(r.Context(), account, job); err != nil {
			return err
		}
	}
	return a.tell(w, r, c, account, after, job)
}

// told is what the goroutine that waits for events hands to the one that writes.
type told struct {
	event offpeak.Event
	err   error
}

// tell writes events and, between them, pings. The events come from an iterator
// that blocks, so it runs in a goroutine of its own, which ends before tell does.
func (a *api) tell(w http.ResponseWriter, r *http.Request, c *caller, account offpeak.AccountID, after int64, job offpeak.JobID) error {
	ctx, cancel := context.WithCancel(r.Context())
	// What is new begins here, before the client learns that it is connected,
	// and the client is told where, so that one who is cut off before the first
	// event can come back to the same place.
	if after < 0 {
		var err error
		if after, err = a.hub.Store().LastEvent(ctx); err != nil {
			cancel()
			return wrap("find the newest event: "+err.Error(), offpeak.ErrUnavailable)
		}
	}
	seq := a.hub.Events(ctx, account, after, job)
	// What comes while a message is on its way is sent together.
	news, done := make(chan told, mostTold), make(chan struct{})
	defer func() { cancel(); <-done }()
	go func() {
		defer close(done)
		defer close(news)
		a.listen(ctx, seq, account, job, func(n told) bool {
			select {
			case news <- n:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}()

	w.Header().Set("Content-Type", "text/event-stream")
	out := flusher{http.NewResponseController(w), w}
	defer a.metrics.open("events")()
	if err := out.send([]byte(": connected\nid: " + strconv.FormatInt(after, 10) + "\n\n")); err != nil {
		return err
	}
	_, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	ping := time.NewTicker(a.opts.Ping)
	defer ping.Stop()
	for {
		select {
		case <-a.opts.Streams.Done():
			return nil
		case n, ok := <-news:
			if !ok {
				return nil
			}
			var text []byte
			for {
				if n.err != nil {
					return n.err
				}
				text = appendEvent(text, n.event)
				if len(news) == 0 {
					break
				}
				n = <-news
			}
			if err := out.send(text); err != nil {
				return err
			}
		case <-ping.C:
			// A token that was revoked must not go on listening; a store that
			// does not answer now is no reason to hang up.
			if _, err := a.authenticate(ctx, secret); errors.Is(err, offpeak.ErrUnauthenticated) {
				return nil
			}
			if err := out.send([]byte(": ping\n\n")); err != nil {
				return err
			}
		}
	}
}

// mostTold is how many events wait for a listener's connection; the others wait
// in the hub's tail or in the store.
const mostTold = 32

// resync is the type of what is told when events were lost to retention.
const resync = "resync"

// listen hands events to yield until it refuses. When the place to go on from
// is older than what is kept, it says so and goes on with the newest.
func (a *api) listen(ctx context.Context, seq iter.Seq2[offpeak.Event, error], account offpeak.AccountID, job offpeak.JobID, yield func(told) bool) {
	for {
		lost := false
		for e, err := range seq {
			switch {
			case errors.Is(err, offpeak.ErrNotFound):
				lost = true
			case err != nil:
				yield(told{err: err})
				return
			case !yield(told{event: e}):
				return
			}
			if lost {
				break
			}
		}
		if !lost || ctx.Err() != nil {
			return
		}
		last, err := a.hub.Store().LastEvent(ctx)
		if err != nil {
			yield(told{err: fmt.Errorf("resync events: %w", err)})
			return
		}
		if !yield(told{event: offpeak.Event{Cursor: last, Type: resync}}) {
			return
		}
		seq = a.hub.Events(ctx, account, last, job)
	}
}

// appendEvent adds one event as the stream has it. JSON has no line breaks, so
// data is one line.
func appendEvent(b []byte, e offpeak.Event) []byte {
	b = strconv.AppendInt(append(b, "id: "...), e.Cursor, 10)
	if e.Type == resync {
		return append(b, "\nevent: resync\ndata: {}\n\n"...)
	}
	data, err := json.Marshal(e)
	if err != nil {
		data = []byte("{}") // Data came from the store as JSON; a broken one must not end the stream
	}
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}
