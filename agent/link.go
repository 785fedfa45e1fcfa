package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"offpeak"
	"offpeak/wire"
)

// mostTried bounds the incarnations that wait for an answer in node.json.
const mostTried = 8

// link makes calls to whichever hub answers, under a session that it opens and
// opens anew as needed. Hubs share one store, so a session is good at all.
type link struct {
	folder folder
	key    ed25519.PrivateKey
	client *http.Client
	agent  string
	hubs   []string
	times  Times
	boot   func() time.Duration
	log    *slog.Logger
	// incarnation is drawn once a process.
	incarnation offpeak.Incarnation
	// opened is called after every new session, conflicted when the hub says
	// that two agents use this identity and when it does not any more.
	opened     func()
	conflicted func(on bool)

	// opening is held while a session is opened, so that one is at a time.
	opening sync.Mutex
	id      identity // guarded by opening

	// mu guards what follows.
	mu      sync.Mutex
	at      int
	token   string
	refresh time.Duration
}

// direct returns the client for the hub in use, and which one that is.
func (l *link) direct() (*wire.Direct, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &wire.Direct{Client: l.client, Base: l.hubs[l.at], Token: l.token, Agent: l.agent}, l.at
}

// away moves to the next hub, if the one that did not answer is still in use.
func (l *link) away(from int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == from {
		l.at = (from + 1) % len(l.hubs)
	}
}

// forget drops a session that the hub refused, unless it was replaced already.
func (l *link) forget(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token == token {
		l.token = ""
	}
}

func (l *link) open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token != ""
}

// call makes one call, bounded in time, under a session. It tries twice when
// the session was refused and, when a hub gave no answer, leaves it to the
// caller to come again: the next call goes to the next hub.
func (l *link) call(ctx context.Context, f func(ctx context.Context, d *wire.Direct) error) error {
	return l.callFor(ctx, l.times.Call, f)
}

// callFor is call with another bound; 0 is none, for streams.
func (l *link) callFor(ctx context.Context, bound time.Duration, f func(ctx context.Context, d *wire.Direct) error) error {
	for again := false; ; again = true {
		if err := l.session(ctx); err != nil {
			return err
		}
		d, at := l.direct()
		err := l.bounded(ctx, bound, func(ctx context.Context) error { return f(ctx, d) })
		switch {
		case errors.Is(err, offpeak.ErrUnauthenticated), errors.Is(err, offpeak.ErrStaleSession):
			l.forget(d.Token)
			if !again {
				continue
			}
		case errors.Is(err, offpeak.ErrUnavailable):
			l.away(at)
		}
		return err
	}
}

func (l *link) bounded(ctx context.Context, bound time.Duration, f func(ctx context.Context) error) error {
	if bound <= 0 {
		return f(ctx)
	}
	once, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := f(once)
	if err != nil && ctx.Err() == nil && once.Err() != nil {
		return fmt.Errorf("no answer in %s: %w", bound, offpeak.ErrUnavailable)
	}
	return err
}

// session makes sure that there is a session that need not be refreshed.
func (l *link) session(ctx context.Context) error {
	if l.fresh() {
		return nil
	}
	l.opening.Lock()
	defer l.opening.Unlock()
	if l.fresh() {
		return nil
	}
	err := l.openSession(ctx)
	if errors.Is(err, offpeak.ErrUnavailable) && l.open() {
		// It was only to be refreshed; the old one may do for a while.
		return nil
	}
	return err
}

func (l *link) fresh() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token != "" && l.boot() < l.refresh
}

// openSession writes the incarnation down before it asks, so that whatever
// answer is lost, the next try can name what the hub may have stored.
func (l *link) openSession(ctx context.Context) error {
	if !slices.Contains(l.id.Tried, l.incarnation) {
		l.id.Tried = append(l.id.Tried, l.incarnation)
		if n := len(l.id.Tried); n > mostTried {
			l.id.Tried = l.id.Tried[n-mostTried:]
		}
		l.keep()
	}
	previous := slices.Clone(l.id.Tried)
	slices.Reverse(previous)
	var err error
	for _, p := range previous {
		if p == l.incarnation && len(previous) > 1 {
			continue
		}
		if err = l.openAs(ctx, p); !errors.Is(err, offpeak.ErrIdentityConflict) {
			break
		}
	}
	l.conflicted(errors.Is(err, offpeak.ErrIdentityConflict))
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	l.opened()
	return nil
}

// keep writes the identity down. A disk that refuses it must not silence the
// node: the session goes on, and only a restart before the disk has room again
// can be taken for a copy.
func (l *link) keep() {
	if err := l.folder.write("node.json", l.id, true); err != nil {
		l.log.Error("keep the node's identity: free space on its disk before the agent is restarted", "error", err)
	}
}

func (l *link) openAs(ctx context.Context, previous offpeak.Incarnation) error {
	d, at := l.direct()
	d.Token = ""
	var s wire.Session
	err := l.bounded(ctx, l.times.Call, func(ctx context.Context) error {
		c, err := d.Challenge(ctx)
		if err != nil {
			return err
		}
		in := wire.OpenSession{Node: l.id.Node, Incarnation: l.incarnation, Previous: previous, Generation: l.id.Generation, Challenge: c.Challenge}
		in.Signature = ed25519.Sign(l.key, wire.SessionMessage(in.Challenge, in.Node, in.Incarnation, in.Generation))
		s, err = d.OpenSession(ctx, in)
		return err
	})
	if errors.Is(err, offpeak.ErrUnavailable) {
		l.away(at)
	}
	if err != nil {
		return err
	}
	l.id.Generation, l.id.Tried = s.Generation, []offpeak.Incarnation{l.incarnation}
	if s.Name != "" {
		l.id.Name = s.Name
	}
	l.keep()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.refresh = s.Token, l.boot()+max(s.Refresh.Std(), time.Second)
	return nil
}

func newIncarnation(random io.Reader) (offpeak.Incarnation, error) {
	b := make([]byte, 16)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", fmt.Errorf("draw incarnation: %w", err)
	}
	return offpeak.Incarnation(hex.EncodeToString(b)), nil
}
