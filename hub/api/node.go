package api

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

type leasePath struct {
	Lease offpeak.LeaseID `path:"lease" maxLength:"128"`
}

func (a *api) enrol(ctx context.Context, c *caller, _ *none) (wire.Enrolled, error) {
	in, err := decode[wire.Enrol](c.body)
	if err != nil {
		return wire.Enrolled{}, err
	}
	return a.hub.Enrol(ctx, c.token, in, c.address)
}

func (a *api) challenge(context.Context, *caller, *none) (wire.Challenge, error) {
	return a.access.Challenge(), nil
}

func (a *api) openSession(ctx context.Context, c *caller, _ *none) (wire.Session, error) {
	in, err := decode[wire.OpenSession](c.body)
	if err != nil {
		return wire.Session{}, err
	}
	s, err := a.hub.OpenSession(ctx, in, c.address)
	if errors.Is(err, offpeak.ErrUnauthenticated) {
		a.failures.take(c.from, a.opts.Now())
	}
	return s, err
}

func (a *api) setInventory(ctx context.Context, c *caller, _ *none) error {
	in, err := decode[offpeak.Inventory](c.body)
	if err != nil {
		return err
	}
	return a.hub.SetInventory(ctx, c.token.Node, in)
}

func (a *api) setReadings(ctx context.Context, c *caller, _ *none) error {
	in, err := decode[wire.Readings](c.body)
	if err != nil {
		return err
	}
	return a.hub.SetReadings(ctx, c.token.Node, in.Readings)
}

type earningsQuery struct {
	Today time.Time `query:"today" doc:"when the owner's day began; absent: the day in UTC"`
}

// earned tells a node what it brought, and of no other.
func (a *api) earned(ctx context.Context, c *caller, in *earningsQuery) (wire.Earnings, error) {
	return a.hub.Money().Earned(ctx, c.token.Node, in.Today)
}

// leave needs no operation id from the agent: a node leaves once.
func (a *api) leave(ctx context.Context, c *caller, _ *none) error {
	node := c.token.Node
	return a.hub.RemoveNode(ctx, store.Op{
		ID:     offpeak.OpID("leave-" + string(node)),
		Actor:  offpeak.Actor{Account: c.token.Account, Token: c.token.ID, Node: node, Role: c.token.Role, Address: c.address},
		Digest: sha256.Sum256([]byte("leave " + string(node))),
	}, c.token.Account, node)
}

func (a *api) work(ctx context.Context, c *caller, in *leasePath) (wire.Desired, error) {
	return a.hub.Work(ctx, c.token.Node, in.Lease)
}

func (a *api) addCheckpoint(ctx context.Context, c *caller, in *leasePath) (offpeak.Checkpoint, error) {
	p, err := decode[wire.NewCheckpoint](c.body)
	if err != nil {
		return offpeak.Checkpoint{}, err
	}
	return a.hub.AddCheckpoint(ctx, c.token.Node, in.Lease, p)
}

func (a *api) heartbeat(w http.ResponseWriter, r *http.Request, c *caller) error {
	in, err := decode[wire.Heartbeat](c.body)
	if err != nil {
		return err
	}
	out, err := a.hub.Heartbeat(r.Context(), c.token.Node, in)
	if err != nil {
		return err
	}
	return writeJSON(w, out)
}

func (a *api) reports(w http.ResponseWriter, r *http.Request, c *caller) error {
	in, err := decode[wire.Reports](c.body)
	if err != nil {
		return err
	}
	if len(in.Reports) > wire.MaxReports {
		return wrap(fmt.Sprintf("%d reports in one request, at most %d", len(in.Reports), wire.MaxReports), offpeak.ErrTooLarge)
	}
	results := a.hub.Report(r.Context(), c.token.Node, in.Reports)
	if results == nil {
		results = []wire.ReportResult{}
	}
	return writeJSON(w, wire.ReportResults{Results: results})
}

func writeJSON(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	w.Header()["Content-Type"] = []string{"application/json"}
	_, _ = w.Write(append(data, '\n'))
	return nil
}

// stream tells a node what it should hold: at once, and whenever that changes.
// Many thousands are open at a time and idle, so each costs this goroutine, one
// timer and nothing else: messages are encoded when they are sent.
func (a *api) stream(w http.ResponseWriter, r *http.Request, c *caller) error {
	ctx := r.Context()
	// The watch begins before the first look, so that no change falls between.
	changed, stop := a.hub.Watch(c.token.Node)
	defer stop()
	read := func() (wire.Sync, error) { return a.hub.Desired(ctx, c.token.Node) }
	desired, err := aside(read)
	if err != nil {
		return err
	}
	w.Header()["Content-Type"] = []string{"application/x-ndjson"}
	out := flusher{http.NewResponseController(w), w}
	defer a.metrics.open("node")()
	if err := sendJSON(out, desired); err != nil {
		return err
	}
	ping := time.NewTimer(a.opts.Ping)
	defer ping.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.opts.Streams.Done():
			return nil
		case <-changed:
			if desired, err = aside(read); err == nil {
				err = sendJSON(out, desired)
			}
		case <-ping.C:
			// A session that has ended must not go on listening.
			if !a.opts.Now().Before(c.token.ExpiresAt) {
				return nil
			}
			err = out.send([]byte{'\n'})
		}
		if err != nil {
			return err
		}
		ping.Reset(a.opts.Ping)
	}
}

// aside calls f on a goroutine that ends with it. What reads the database needs
// a deep stack, which a stream's own goroutine would keep for as long as it idles.
func aside[T any](f func() (T, error)) (v T, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		v, err = f()
	}()
	<-done
	return v, err
}

func sendJSON(out flusher, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	return out.send(append(data, '\n'))
}

// flusher sends pieces of a stream at once. The bound on the whole answer is
// lifted; each piece has one of its own, so that a reader who has stopped
// reading does not hold the stream open for ever.
type flusher struct {
	rc *http.ResponseController
	w  http.ResponseWriter
}

const sendWithin = 30 * time.Second

// send sends p, or the header alone when p is empty, which is for the beginning.
func (f flusher) send(p []byte) error {
	if err := bound(f.rc.SetWriteDeadline, sendWithin); err != nil {
		return err
	}
	if len(p) == 0 {
		f.w.WriteHeader(http.StatusOK)
	} else if _, err := f.w.Write(p); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err := f.rc.Flush(); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}
