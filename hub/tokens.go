package hub

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"sync"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

const (
	// goodFor is how long a good token is believed without asking the store:
	// a revocation through another hub takes that long to be felt.
	goodFor = 5 * time.Second
	// sessionGoodFor is the same for node sessions. They live for minutes
	// anyway, and an agent's every message is fenced by its incarnation.
	sessionGoodFor = time.Minute
	// mostTokens bounds the memory of good tokens.
	mostTokens = 20_000

	userTokenLife = offpeak.Duration(90 * 24 * time.Hour)
	joinTokenLife = offpeak.Duration(time.Hour)
)

// tokenCache remembers good tokens for seconds.
type tokenCache struct {
	mu   sync.Mutex
	good map[offpeak.TokenID]goodToken
	// session is the session of a node that this hub saw last.
	session map[offpeak.NodeID]offpeak.TokenID
	used    map[offpeak.TokenID]time.Time
	// epoch grows with every revocation, so that a token that was being read
	// while it was revoked is not remembered.
	epoch uint64
}

type goodToken struct {
	token offpeak.Token
	until time.Time
}

func newTokenCache() tokenCache {
	return tokenCache{
		good:    make(map[offpeak.TokenID]goodToken),
		session: make(map[offpeak.NodeID]offpeak.TokenID),
		used:    make(map[offpeak.TokenID]time.Time),
	}
}

func (c *tokenCache) get(id offpeak.TokenID, now time.Time) (t offpeak.Token, ok bool, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, there := c.good[id]
	return g.token, there && now.Before(g.until), c.epoch
}

func (c *tokenCache) put(t offpeak.Token, now time.Time, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch {
		return
	}
	if len(c.good) >= mostTokens {
		clear(c.good)
	}
	life := goodFor
	if t.Role == offpeak.RoleNode {
		life = sessionGoodFor
		c.session[t.Node] = t.ID
	} else {
		c.used[t.ID] = now
	}
	c.good[t.ID] = goodToken{t, now.Add(life)}
}

// drop forgets the tokens that pick says.
func (c *tokenCache) drop(pick func(*offpeak.Token) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	for id, g := range c.good {
		if pick(&g.token) {
			delete(c.good, id)
		}
	}
}

// replace forgets a node's session before the newest one.
func (c *tokenCache) replace(node offpeak.NodeID, id offpeak.TokenID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	delete(c.good, c.session[node])
	if id == "" {
		delete(c.session, node)
	} else {
		c.session[node] = id
	}
}

// flush tells the store when tokens were last used.
func (c *tokenCache) flush(ctx context.Context, h *Hub) {
	c.mu.Lock()
	used := c.used
	c.used = make(map[offpeak.TokenID]time.Time)
	c.mu.Unlock()
	if len(used) == 0 {
		return
	}
	if err := h.env.Store.TouchTokens(ctx, used); err != nil && ctx.Err() == nil {
		h.env.Log.Warn("note down use of tokens", "err", err)
	}
}

// Authenticate returns the good token behind a bearer secret, or
// ErrUnauthenticated. It is cheap: good tokens are remembered for seconds, and
// a revocation through this hub takes effect at once.
func (h *Hub) Authenticate(ctx context.Context, bearer string) (offpeak.Token, error) {
	kind, id, secret, err := parseSecret(bearer)
	if err != nil {
		return offpeak.Token{}, err
	}
	now := h.env.Now()
	t, known, epoch := h.tokens.get(id, now)
	if !known {
		if t, err = h.env.Store.Token(ctx, id); errors.Is(err, offpeak.ErrNotFound) {
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
		h.tokens.put(t, now, epoch)
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

// mint makes a token and what its bearer presents.
func (h *Hub) mint(role offpeak.Role, account offpeak.AccountID, life time.Duration, uses int) (offpeak.Token, string, error) {
	id, err := h.newID("tok")
	if err != nil {
		return offpeak.Token{}, "", err
	}
	bearer, secret, err := h.newSecret(kindOf(role), offpeak.TokenID(id))
	if err != nil {
		return offpeak.Token{}, "", err
	}
	hash := sha256.Sum256([]byte(secret))
	now := h.env.Now()
	return offpeak.Token{
		ID: offpeak.TokenID(id), Account: account, Role: role, SecretHash: hash[:], UsesLeft: uses,
		CreatedAt: now, ExpiresAt: now.Add(life),
	}, bearer, nil
}

// grantable says whether an actor may hand out a role: nobody hands out more
// than they have.
func grantable(actor, role offpeak.Role) bool {
	switch actor {
	case offpeak.RoleAdmin:
		return role == offpeak.RoleAdmin || role == offpeak.RoleOwner || role == offpeak.RoleSubmitter || role == offpeak.RoleViewer || role == offpeak.RoleJoin
	case offpeak.RoleOwner:
		return role == offpeak.RoleOwner || role == offpeak.RoleViewer || role == offpeak.RoleJoin
	case offpeak.RoleSubmitter:
		return role == offpeak.RoleSubmitter || role == offpeak.RoleViewer
	case offpeak.RoleViewer:
		return role == offpeak.RoleViewer
	}
	return false
}

func checkRole(actor, role offpeak.Role, join bool) error {
	switch role {
	case offpeak.RoleAdmin, offpeak.RoleOwner, offpeak.RoleSubmitter, offpeak.RoleViewer:
	case offpeak.RoleJoin:
		if !join {
			return &offpeak.FieldError{Field: "role", Value: string(role), Rule: "is admin, owner, submitter or viewer"}
		}
	default:
		return &offpeak.FieldError{Field: "role", Value: string(role), Rule: "is admin, owner, submitter, viewer or join"}
	}
	if !grantable(actor, role) {
		return fmt.Errorf("role %s can't hand out role %s: %w", actor, role, offpeak.ErrForbidden)
	}
	return nil
}

func checkLife(d, fallback offpeak.Duration) (time.Duration, error) {
	if d == 0 {
		d = fallback
	}
	if d < 0 || d > offpeak.MaxDuration {
		return 0, &offpeak.FieldError{Field: "expires", Value: d.String(), Rule: "is from 1s to ten years"}
	}
	return d.Std(), nil
}

// CreateToken makes a token for an account; a join token's secret also holds
// the hub's addresses and key. When the operation id was used before, the
// token made then is returned without its secret, which is not kept: revoke it
// and make another.
func (h *Hub) CreateToken(ctx context.Context, op store.Op, in wire.NewToken) (wire.CreatedToken, error) {
	account := op.Actor.Account
	if in.Account != "" && in.Account != account {
		if op.Actor.Role != offpeak.RoleAdmin {
			return wire.CreatedToken{}, fmt.Errorf("account %s: %w", in.Account, offpeak.ErrNotFound)
		}
		account = in.Account
	}
	if err := checkRole(op.Actor.Role, in.Role, true); err != nil {
		return wire.CreatedToken{}, err
	}
	fallback, uses := userTokenLife, -1
	if in.Role == offpeak.RoleJoin {
		fallback, uses = joinTokenLife, max(in.Uses, 1)
	}
	life, err := checkLife(in.Expires, fallback)
	if err != nil {
		return wire.CreatedToken{}, err
	}
	switch {
	case in.Uses < 0 || in.Uses > 10_000 || (in.Uses > 0 && in.Role != offpeak.RoleJoin):
		return wire.CreatedToken{}, &offpeak.FieldError{Field: "uses", Value: fmt.Sprint(in.Uses), Rule: "is from 1 to 10000, for join tokens only"}
	case in.Name != "":
		if err := offpeak.ValidName("name", in.Name); err != nil {
			return wire.CreatedToken{}, err
		}
	}
	t, bearer, err := h.mint(in.Role, account, life, uses)
	if err != nil {
		return wire.CreatedToken{}, err
	}
	t.Name = in.Name
	if in.Role != offpeak.RoleJoin {
		t.Member = op.Actor.Member
	}
	stored, err := h.env.Store.CreateToken(ctx, op, t)
	if err != nil {
		return wire.CreatedToken{}, fmt.Errorf("create token: %w", err)
	}
	h.tail.ring()
	if stored.ID != t.ID {
		return wire.CreatedToken{Token: stored}, nil
	}
	if in.Role == offpeak.RoleJoin {
		bearer, err = wire.JoinToken{Hubs: h.cfg.Hubs, Fingerprint: h.cfg.Fingerprint, Token: bearer}.Encode()
	}
	return wire.CreatedToken{Token: stored, Secret: bearer}, err
}

// RevokeToken ends a token at once.
func (h *Hub) RevokeToken(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.TokenID) error {
	ctx, done := h.settling(ctx)
	defer done()
	err := h.env.Store.RevokeToken(ctx, op, account, id)
	// Also after an error whose outcome is unknown.
	h.tokens.drop(func(t *offpeak.Token) bool { return t.ID == id })
	if err != nil {
		return fmt.Errorf("revoke token %s: %w", id, err)
	}
	h.tail.ring()
	return nil
}
