// Package link is how an agent speaks to its hubs: calls under a session that
// is opened and opened anew as needed, at whichever hub answers, and the outbox
// of reports.
//
// It owns the session and its place in the node's identity. It decides nothing
// about leases and keeps nothing on disk itself. A Link and an Outbox may be
// used by any number of goroutines. They are tested against hubs that hang and
// die, and with the agent around them against one that loses calls.
package link

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
	"sync/atomic"
	"time"

	"offpeak"
	"offpeak/wire"
)

// mostTried bounds the incarnations that wait for an answer in node.json.
const mostTried = 8

// Identity is who a node is. It is written down before every change of it is
// relied on.
type Identity struct {
	Node        offpeak.NodeID    `json:"node"`
	Account     offpeak.AccountID `json:"account"`
	Name        string            `json:"name"`
	Hubs        []string          `json:"hubs"`
	Fingerprint string            `json:"fingerprint,omitempty"`
	// Generation is that of the last session whose opening was answered.
	Generation int64 `json:"generation"`
	// Tried are the incarnations that may have opened the next one, the newest
	// last: it is written before each opening, so that an agent whose answer
	// was lost can be told from a copy of its disk.
	Tried []offpeak.Incarnation `json:"tried,omitempty"`
}

// Config is what a Link needs.
type Config struct {
	Key    ed25519.PrivateKey
	Client *http.Client
	// Agent is sent as User-Agent.
	Agent string
	Hubs  []string
	// Bound is how long one call may take.
	Bound time.Duration
	// Boot is the clock that counts suspended time.
	Boot func() time.Duration
	Log  *slog.Logger
	// Incarnation is drawn once a process.
	Incarnation offpeak.Incarnation
	Identity    Identity
	// Keep writes the identity down.
	Keep func(Identity) error
	// Opened is called after every new session, Conflicted when the hub says
	// that two agents use this identity and when it does not any more.
	Opened     func()
	Conflicted func(on bool)
}

// Link makes calls to whichever hub answers, under a session that it opens and
// opens anew as needed. Hubs share one store, so a session is good at all.
type Link struct {
	cfg Config

	// opening is held while a session is opened, so that one is at a time.
	opening sync.Mutex
	id      Identity // guarded by opening

	// seq is the number of the last message that was stamped.
	seq atomic.Int64

	// mu guards what follows.
	mu      sync.Mutex
	at      int
	token   string
	refresh time.Duration
}

// New returns a link; it makes no call.
func New(cfg Config) *Link { return &Link{cfg: cfg, id: cfg.Identity} }

// Incarnation is that of this process.
func (l *Link) Incarnation() offpeak.Incarnation { return l.cfg.Incarnation }

// Stamp is what marks the next message: this process and its next number.
func (l *Link) Stamp() (offpeak.Incarnation, int64) { return l.cfg.Incarnation, l.seq.Add(1) }

// Hubs are the addresses in use.
func (l *Link) Hubs() []string { return l.cfg.Hubs }

// Close closes connections that are idle.
func (l *Link) Close() { l.cfg.Client.CloseIdleConnections() }

// direct returns the client for the hub in use, and which one that is.
func (l *Link) direct() (*wire.Direct, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &wire.Direct{Client: l.cfg.Client, Base: l.cfg.Hubs[l.at], Token: l.token, Agent: l.cfg.Agent}, l.at
}

// away moves to the next hub, if the one that did not answer is still in use.
func (l *Link) away(from int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == from {
		l.at = (from + 1) % len(l.cfg.Hubs)
	}
}

// forget drops a session that the hub refused, unless it was replaced already.
func (l *Link) forget(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token == token {
		l.token = ""
	}
}

func (l *Link) open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token != ""
}

// Call makes one call, bounded in time, under a session. It tries twice when
// the session was refused and, when a hub gave no answer, leaves it to the
// caller to come again: the next call goes to the next hub.
func (l *Link) Call(ctx context.Context, f func(ctx context.Context, d *wire.Direct) error) error {
	return l.CallFor(ctx, l.cfg.Bound, f)
}

// CallFor is Call with another bound; 0 is none, for streams.
func (l *Link) CallFor(ctx context.Context, bound time.Duration, f func(ctx context.Context, d *wire.Direct) error) error {
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

func (l *Link) bounded(ctx context.Context, bound time.Duration, f func(ctx context.Context) error) error {
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
func (l *Link) session(ctx context.Context) error {
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

func (l *Link) fresh() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token != "" && l.cfg.Boot() < l.refresh
}

// openSession writes the incarnation down before it asks, so that whatever
// answer is lost, the next try can name what the hub may have stored.
func (l *Link) openSession(ctx context.Context) error {
	if !slices.Contains(l.id.Tried, l.cfg.Incarnation) {
		l.id.Tried = append(l.id.Tried, l.cfg.Incarnation)
		if n := len(l.id.Tried); n > mostTried {
			l.id.Tried = l.id.Tried[n-mostTried:]
		}
		l.keep()
	}
	previous := slices.Clone(l.id.Tried)
	slices.Reverse(previous)
	var err error
	for _, p := range previous {
		if p == l.cfg.Incarnation && len(previous) > 1 {
			continue
		}
		if err = l.openAs(ctx, p); !errors.Is(err, offpeak.ErrIdentityConflict) {
			break
		}
	}
	l.cfg.Conflicted(errors.Is(err, offpeak.ErrIdentityConflict))
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	l.cfg.Opened()
	return nil
}

// keep writes the identity down. A disk that refuses it must not silence the
// node: the session goes on, and only a restart before the disk has room again
// can be taken for a copy.
func (l *Link) keep() {
	if err := l.cfg.Keep(l.id); err != nil {
		l.cfg.Log.Error("keep the node's identity: free space on its disk before the agent is restarted", "error", err)
	}
}

func (l *Link) openAs(ctx context.Context, previous offpeak.Incarnation) error {
	d, at := l.direct()
	d.Token = ""
	var s wire.Session
	err := l.bounded(ctx, l.cfg.Bound, func(ctx context.Context) error {
		c, err := d.Challenge(ctx)
		if err != nil {
			return err
		}
		in := wire.OpenSession{Node: l.id.Node, Incarnation: l.cfg.Incarnation, Previous: previous, Generation: l.id.Generation, Challenge: c.Challenge}
		in.Signature = ed25519.Sign(l.cfg.Key, wire.SessionMessage(in.Challenge, in.Node, in.Incarnation, in.Generation))
		s, err = d.OpenSession(ctx, in)
		return err
	})
	if errors.Is(err, offpeak.ErrUnavailable) {
		l.away(at)
	}
	if err != nil {
		return err
	}
	l.id.Generation, l.id.Tried = s.Generation, []offpeak.Incarnation{l.cfg.Incarnation}
	if s.Name != "" {
		l.id.Name = s.Name
	}
	l.keep()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.refresh = s.Token, l.cfg.Boot()+max(s.Refresh.Std(), time.Second)
	return nil
}

// NewIncarnation draws the name of one agent process.
func NewIncarnation(random io.Reader) (offpeak.Incarnation, error) {
	b := make([]byte, 16)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", fmt.Errorf("draw incarnation: %w", err)
	}
	return offpeak.Incarnation(hex.EncodeToString(b)), nil
}
