// Package access says who may come in: accounts and their members, tokens,
// nodes and their sessions.
//
// It owns the form of secrets, what a role may hand out, how long anything is
// good, and the memory of tokens that were good a moment ago. It must not know
// of jobs, leases, matching or HTTP: which role a request needs stands beside
// its route in package api, and what an enrolled node means for the fleet is
// the hub's. Secrets are hashed at rest and shown once.
//
// All methods may be called from any number of goroutines. Run tells the store
// when tokens were last used; everything else works without it. It is tested on
// the real embedded store; what its answers mean for a whole hub is tested in
// package hub, and that each route asks it in package api. DESIGN.md beside
// this file holds the invariants.
package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"offpeak"
	"offpeak/store"
)

// Config is what an operator may set.
type Config struct {
	// Session is how long a node's session token lives.
	Session time.Duration
	// Fingerprint pins the hub's key in join tokens; "" on plain loopback.
	Fingerprint string
}

// Store is what is kept of people, tokens and nodes.
type Store interface {
	store.Accounts
	Enrol(ctx context.Context, join offpeak.TokenID, n store.NewNode, actor offpeak.Actor) (offpeak.Node, error)
	OpenSession(ctx context.Context, s store.NewSession) (offpeak.Node, error)
	Node(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID) (offpeak.Node, error)
}

// Env is the outside world, handed in.
type Env struct {
	Store Store
	Log   *slog.Logger
	// Now is the clock by which tokens and challenges end.
	Now func() time.Time
	// Random is where secrets come from; NewID makes an id behind a prefix.
	Random io.Reader
	NewID  func(prefix string) (string, error)
	// Wrote is called after each change, which has left an event.
	Wrote func()
	// Raised is called after an account's quota changed; nil: nobody asks.
	Raised func(account offpeak.AccountID)
	// Addresses are the hubs' that join tokens and enrolled nodes are given.
	Addresses func() []string
}

// Control is one hub's control of who comes in.
type Control struct {
	cfg          Config
	env          Env
	cache        cache
	challengeKey [32]byte
}

// New makes a control; it works before Run does.
func New(cfg Config, env Env) *Control {
	c := &Control{cfg: cfg, env: env, cache: newCache()}
	if _, err := io.ReadFull(env.Random, c.challengeKey[:]); err != nil {
		// Without randomness no id or token can be made either.
		panic("access: no randomness: " + err.Error())
	}
	return c
}

// Follow forgets what an event of another hub says is no longer good.
func (c *Control) Follow(e *offpeak.Event) {
	switch e.Type {
	case "node.session", "node.removed":
		c.Forget(e.Node)
	case "node.enrolled", "token.revoked", "member.removed":
		c.cache.drop(func(t *offpeak.Token) bool { return t.Account == e.Account && t.Role != offpeak.RoleNode })
	}
}

// flushPeriod is how often the store is told when tokens were last used.
const flushPeriod = 15 * time.Second

// Run tells the store when tokens were last used, until ctx is done and once
// more then.
func (c *Control) Run(ctx context.Context) error {
	ticker := time.NewTicker(flushPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			c.flush(last)
			return nil
		case <-ticker.C:
			c.flush(ctx)
		}
	}
}

func (c *Control) flush(ctx context.Context) {
	used := c.cache.take()
	if len(used) == 0 {
		return
	}
	if err := c.env.Store.TouchTokens(ctx, used); err != nil && ctx.Err() == nil {
		c.env.Log.Warn("note down use of tokens", "err", err)
	}
}

// settleFor bounds a write that goes on without its caller.
const settleFor = 30 * time.Second

// settling is the context of a write that changes what is remembered too: it
// goes on when its caller hangs up, so that what was forgotten before the
// commit is not remembered anew until after it.
func settling(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), settleFor)
}

// Authenticate returns the good token behind a bearer secret, or
// ErrUnauthenticated. It is cheap: good tokens are remembered for seconds, and
// a revocation through this hub takes effect at once.
func (c *Control) Authenticate(ctx context.Context, bearer string) (offpeak.Token, error) {
	kind, id, secret, err := parseSecret(bearer)
	if err != nil {
		return offpeak.Token{}, err
	}
	now := c.env.Now()
	t, known, epoch := c.cache.get(id, now)
	if !known {
		if t, err = c.env.Store.Token(ctx, id); errors.Is(err, offpeak.ErrNotFound) {
			return offpeak.Token{}, fmt.Errorf("unknown token: %w", offpeak.ErrUnauthenticated)
		} else if err != nil {
			return offpeak.Token{}, fmt.Errorf("look up token: %w", err)
		}
	}
	hash := sha256.Sum256([]byte(secret))
	switch {
	case subtle.ConstantTimeCompare(hash[:], t.SecretHash) != 1 || kind != kindOf(t.Role):
		return offpeak.Token{}, fmt.Errorf("unknown token: %w", offpeak.ErrUnauthenticated)
	case t.RevokedAt != nil:
		return offpeak.Token{}, fmt.Errorf("the token was revoked: %w", offpeak.ErrUnauthenticated)
	case !t.ExpiresAt.IsZero() && !now.Before(t.ExpiresAt):
		return offpeak.Token{}, fmt.Errorf("the token expired at %s: %w", t.ExpiresAt.UTC().Format(time.RFC3339), offpeak.ErrUnauthenticated)
	}
	if !known {
		c.cache.put(t, now, epoch)
	}
	return t, nil
}

func kindOf(r offpeak.Role) string {
	switch r {
	case offpeak.RoleJoin:
		return kindJoin
	case offpeak.RoleNode:
		return kindSession
	default:
		return kindUser
	}
}
