// Package remote is how the commands of people reach a hub: which hub and with
// which token (contexts, environment, the local file), what to do when it does
// not answer (the next address, a pause, the same operation id again), and how
// to follow its streams over broken connections without losing or doubling
// anything.
//
// It owns the contexts file. It knows nothing of flags, terminals or tables: it
// is handed a function that shows a note to the person who waits. A Hub may be
// used by several goroutines. Tests run it against a hub of their own making
// that answers, cuts and forgets as told.
package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"offpeak"
	"offpeak/wire"
)

// Patience is how long a call is repeated while no hub answers.
type Patience time.Duration

// How long commands wait. A read fails soon, since nothing is lost by asking
// again; a mutation outlives the restart of a hub; a follower stays until its
// context ends.
const (
	Reading   = Patience(5 * time.Second)
	Mutating  = Patience(30 * time.Second)
	Following = Patience(0)
)

// Config is what New needs.
type Config struct {
	Target Target
	// Agent is sent as User-Agent.
	Agent string
	// Renew is asked for another token when a hub does not know the one there is:
	// one that was started again on this machine made a new one. "" is none.
	Renew func() string
	// Note shows a line to the person who waits. It may be called by any
	// goroutine that uses the Hub.
	Note func(line string)
	// Pause is the first pause between tries; it grows up to 20 times of it and
	// is jittered. Default 100ms.
	Pause time.Duration
	// Quiet is how long a silent hub goes without a note. Default 2s.
	Quiet time.Duration
	// Idle is how long a stream may be silent before it is opened anew, from
	// where it was. Default 1m.
	Idle time.Duration
}

// Hub makes calls to whichever of a target's addresses answers.
type Hub struct {
	cfg     Config
	directs []wire.Direct

	mu sync.Mutex // guards what follows
	// current is the index of the address that answered last.
	current int
	// token is the newest one there is.
	token string
}

// New returns a Hub for a target; it makes no call.
func New(cfg Config) (*Hub, error) {
	if len(cfg.Target.Hubs) == 0 {
		return nil, &offpeak.FieldError{Field: "hubs", Rule: "names at least one address of a hub, for example http://127.0.0.1:7070"}
	}
	or(&cfg.Pause, 100*time.Millisecond)
	or(&cfg.Quiet, 2*time.Second)
	or(&cfg.Idle, time.Minute)
	if cfg.Note == nil {
		cfg.Note = func(string) {}
	}
	pin := cfg.Target.Fingerprint
	if pin != "" {
		var err error
		if pin, err = ParseFingerprint(pin); err != nil {
			return nil, err
		}
	}
	client := wire.Client(pin)
	h := &Hub{cfg: cfg, token: cfg.Target.Token}
	for _, base := range cfg.Target.Hubs {
		if err := CheckAddress("URL", base); err != nil {
			return nil, err
		}
		h.directs = append(h.directs, wire.Direct{Client: client, Base: base, Agent: cfg.Agent})
	}
	return h, nil
}

func or(v *time.Duration, fallback time.Duration) {
	if *v <= 0 {
		*v = fallback
	}
}

// Target returns what the Hub was made for.
func (h *Hub) Target() Target { return h.cfg.Target }

// NewOp makes an operation id. A command makes one for each thing it changes
// and keeps it over all tries.
func NewOp() offpeak.OpID { return offpeak.OpID("op_" + rand.Text()) }

// callTimeout bounds one try of a call that is no stream.
const callTimeout = 90 * time.Second

// Call runs f against one address after another until one answers; while none
// does it pauses and begins again, for as long as patience lasts. An answer
// that is an error is returned as it is. f is called more than once, so a
// mutation in it must carry one and the same operation id each time.
func (h *Hub) Call(ctx context.Context, patience Patience, f func(ctx context.Context, d *wire.Direct) error) error {
	return h.retry(ctx, patience, func(func()) error {
		return h.eachHub(ctx, func(ctx context.Context, d *wire.Direct) error {
			once, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			err := f(once, d)
			if err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				return fmt.Errorf("%s: no answer in %s: %w", d.Base, callTimeout, offpeak.ErrUnavailable)
			}
			return err
		})
	})
}

// Ask is Call for a function with a result.
func Ask[T any](ctx context.Context, h *Hub, patience Patience, f func(ctx context.Context, d *wire.Direct) (T, error)) (T, error) {
	var out T
	err := h.Call(ctx, patience, func(ctx context.Context, d *wire.Direct) (err error) {
		out, err = f(ctx, d)
		return err
	})
	return out, err
}

// eachHub calls f with one hub after another, the one that answered last first,
// until one answers.
func (h *Hub) eachHub(ctx context.Context, f func(ctx context.Context, d *wire.Direct) error) error {
	h.mu.Lock()
	first := h.current
	h.mu.Unlock()
	var err error
	mayPass := false
	for i := range h.directs {
		n := (first + i) % len(h.directs)
		if err = h.oneHub(ctx, n, f); !errors.Is(err, offpeak.ErrUnavailable) {
			h.mu.Lock()
			h.current = n
			h.mu.Unlock()
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		mayPass = mayPass || !hopeless(err)
	}
	if !mayPass {
		return &final{err}
	}
	return err
}

// oneHub calls f, and once more with a renewed token if the hub does not know
// the one there was.
func (h *Hub) oneHub(ctx context.Context, n int, f func(ctx context.Context, d *wire.Direct) error) error {
	d := h.directs[n]
	h.mu.Lock()
	d.Token = h.token
	h.mu.Unlock()
	err := h.whileAwake(ctx, &d, func(ctx context.Context) error { return f(ctx, &d) })
	if h.cfg.Renew == nil || !errors.Is(err, offpeak.ErrUnauthenticated) {
		return err
	}
	token := h.cfg.Renew()
	if token == "" || token == d.Token {
		return err
	}
	h.mu.Lock()
	h.token = token
	h.mu.Unlock()
	d.Token = token
	return h.whileAwake(ctx, &d, func(ctx context.Context) error { return f(ctx, &d) })
}

// hopeless says that no patience helps: the hub is not the one that is wanted,
// or may not be spoken to as things are.
func hopeless(err error) bool {
	_, untrusted := errors.AsType[*wire.UntrustedError](err)
	return untrusted || errors.Is(err, offpeak.ErrInvalid)
}

// final marks an error of all addresses that is not worth another try.
type final struct{ error }

func (f *final) Unwrap() error { return f.error }

// retry repeats f while it returns ErrUnavailable. f calls answered when it
// heard from a hub, though it may go on for long after.
func (h *Hub) retry(ctx context.Context, patience Patience, f func(answered func()) error) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = h.cfg.Pause
	pause.MaxInterval = 20 * h.cfg.Pause
	var silent time.Time
	noted := false
	answered := func() {
		if noted {
			h.cfg.Note("the hub answers again")
		}
		silent, noted = time.Time{}, false
		pause.Reset()
	}
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := f(answered)
		if err == nil {
			answered()
		} else if end, ok := errors.AsType[*final](err); ok {
			err = backoff.Permanent(end.error)
		} else if !errors.Is(err, offpeak.ErrUnavailable) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(time.Duration(patience)), backoff.WithNotify(func(err error, _ time.Duration) {
		if silent.IsZero() {
			silent = time.Now()
		}
		if !noted && time.Since(silent) >= h.cfg.Quiet {
			noted = true
			h.cfg.Note(err.Error() + "; trying again")
		}
	}))
	return err
}

// Blobs is a blob.Remote over the account's blobs that outlives a hub's restart.
type Blobs struct{ Hub *Hub }

// GaveUpError ends a transfer for which no hub answered in all patience. It
// hides ErrUnavailable, at which a transfer would begin again.
type GaveUpError struct{ Err error }

func (e *GaveUpError) Error() string { return e.Err.Error() }

// As finds the typed errors below, though not the sentinels.
func (e *GaveUpError) As(target any) bool { return errors.As(e.Err, target) }

func (b Blobs) call(ctx context.Context, f func(ctx context.Context, d wire.Blobs) error) error {
	err := b.Hub.Call(ctx, Mutating, func(ctx context.Context, d *wire.Direct) error { return f(ctx, wire.Blobs{Direct: d}) })
	if errors.Is(err, offpeak.ErrUnavailable) {
		return &GaveUpError{err}
	}
	return err
}

// Missing implements blob.Remote.
func (b Blobs) Missing(ctx context.Context, hashes []offpeak.Hash) (out []offpeak.Hash, err error) {
	err = b.call(ctx, func(ctx context.Context, d wire.Blobs) (err error) {
		out, err = d.Missing(ctx, hashes)
		return err
	})
	return out, err
}

// Upload implements blob.Remote.
func (b Blobs) Upload(ctx context.Context, hash offpeak.Hash, data []byte) error {
	return b.call(ctx, func(ctx context.Context, d wire.Blobs) error { return d.Upload(ctx, hash, data) })
}

// Commit implements blob.Remote.
func (b Blobs) Commit(ctx context.Context, tree offpeak.Hash) error {
	return b.call(ctx, func(ctx context.Context, d wire.Blobs) error { return d.Commit(ctx, tree) })
}

// Download implements blob.Remote.
func (b Blobs) Download(ctx context.Context, hash offpeak.Hash) (out []byte, err error) {
	err = b.call(ctx, func(ctx context.Context, d wire.Blobs) (err error) {
		out, err = d.Download(ctx, hash)
		return err
	})
	return out, err
}
