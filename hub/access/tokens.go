package access

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

const (
	userTokenLife = offpeak.Duration(90 * 24 * time.Hour)
	joinTokenLife = offpeak.Duration(time.Hour)
)

// mint makes a token and what its bearer presents.
func (c *Control) mint(role offpeak.Role, account offpeak.AccountID, life time.Duration, uses int) (offpeak.Token, string, error) {
	id, err := c.env.NewID("tok")
	if err != nil {
		return offpeak.Token{}, "", err
	}
	bearer, secret, err := c.newSecret(kindOf(role), offpeak.TokenID(id))
	if err != nil {
		return offpeak.Token{}, "", err
	}
	hash := sha256.Sum256([]byte(secret))
	now := c.env.Now()
	return offpeak.Token{
		ID: offpeak.TokenID(id), Account: account, Role: role, SecretHash: hash[:], UsesLeft: uses,
		CreatedAt: now, ExpiresAt: now.Add(life),
	}, bearer, nil
}

// Grants are the roles that a holder of a role may hand out: nobody hands out
// more than they have.
func Grants(by offpeak.Role) []offpeak.Role {
	switch by {
	case offpeak.RoleAdmin:
		return []offpeak.Role{offpeak.RoleAdmin, offpeak.RoleOwner, offpeak.RoleSubmitter, offpeak.RoleViewer, offpeak.RoleJoin}
	case offpeak.RoleOwner:
		return []offpeak.Role{offpeak.RoleOwner, offpeak.RoleViewer, offpeak.RoleJoin}
	case offpeak.RoleSubmitter:
		return []offpeak.Role{offpeak.RoleSubmitter, offpeak.RoleViewer}
	}
	return nil
}

// list names roles for people.
func list(roles []offpeak.Role) string {
	if len(roles) == 0 {
		return "no role"
	}
	words := make([]string, len(roles))
	for i, r := range roles {
		words[i] = string(r)
	}
	return strings.Join(words, ", ")
}

// checkRole refuses a role that nobody hands out, or that by may not. join
// admits the role of join tokens.
func checkRole(by, role offpeak.Role, join bool) error {
	all := Grants(offpeak.RoleAdmin)
	if !join {
		all = slices.DeleteFunc(all, func(r offpeak.Role) bool { return r == offpeak.RoleJoin })
	}
	if !slices.Contains(all, role) {
		return &offpeak.FieldError{Field: "role", Value: string(role), Rule: "is one of " + list(all)}
	}
	if may := Grants(by); !slices.Contains(may, role) {
		return fmt.Errorf("the role %s can hand out %s, not %s: %w", by, list(may), role, offpeak.ErrForbidden)
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
func (c *Control) CreateToken(ctx context.Context, op store.Op, in wire.NewToken) (wire.CreatedToken, error) {
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
	t, bearer, err := c.mint(in.Role, account, life, uses)
	if err != nil {
		return wire.CreatedToken{}, err
	}
	t.Name = in.Name
	if in.Role != offpeak.RoleJoin {
		t.Member = op.Actor.Member
	}
	stored, err := c.env.Store.CreateToken(ctx, op, t)
	if err != nil {
		return wire.CreatedToken{}, err
	}
	c.env.Wrote()
	if stored.ID != t.ID {
		return wire.CreatedToken{Token: stored}, nil
	}
	if in.Role == offpeak.RoleJoin {
		bearer, err = wire.JoinToken{Hubs: c.env.Addresses(), Fingerprint: c.cfg.Fingerprint, Token: bearer}.Encode()
	}
	return wire.CreatedToken{Token: stored, Secret: bearer}, err
}

// RevokeToken ends a token at once. Anyone may end their own; of the others
// only those of their account that they could have made (ErrForbidden, and
// ErrNotFound for another account's). account restricts it like a verb of the
// store's.
func (c *Control) RevokeToken(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.TokenID) error {
	if op.Actor.Role != offpeak.RoleAdmin && op.Actor.Token != id {
		t, err := c.env.Store.Token(ctx, id)
		if err != nil {
			return fmt.Errorf("revoke token %s: %w", id, err)
		}
		if t.Account != op.Actor.Account {
			return fmt.Errorf("revoke token %s: %w", id, offpeak.ErrNotFound)
		}
		if may := Grants(op.Actor.Role); !slices.Contains(may, t.Role) {
			return fmt.Errorf("the role %s can revoke tokens of %s, not of %s: %w", op.Actor.Role, list(may), t.Role, offpeak.ErrForbidden)
		}
	}
	ctx, done := settling(ctx)
	defer done()
	err := c.env.Store.RevokeToken(ctx, op, account, id)
	// Also after an error whose outcome is unknown.
	c.cache.drop(func(t *offpeak.Token) bool { return t.ID == id })
	if err != nil {
		return err
	}
	c.env.Wrote()
	return nil
}
