package access

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

// localName begins the names of the tokens that stand in local files.
const localName = "local file"

// CreateAccount makes an account.
func (c *Control) CreateAccount(ctx context.Context, op store.Op, in wire.NewAccount) (offpeak.Account, error) {
	if err := errors.Join(offpeak.ValidName("name", in.Name), checkQuota("quota.", in.Quota)); err != nil {
		return offpeak.Account{}, err
	}
	id, err := c.env.NewID("acct")
	if err != nil {
		return offpeak.Account{}, err
	}
	a, err := c.env.Store.CreateAccount(ctx, op, offpeak.Account{
		ID: offpeak.AccountID(id), Name: in.Name, Quota: in.Quota, CreatedAt: c.env.Now(),
	})
	if err != nil {
		return offpeak.Account{}, err
	}
	c.env.Wrote()
	return a, nil
}

// SetQuota bounds what an account may hold.
func (c *Control) SetQuota(ctx context.Context, op store.Op, account offpeak.AccountID, q offpeak.Quota) (offpeak.Account, error) {
	if err := checkQuota("", q); err != nil {
		return offpeak.Account{}, err
	}
	a, err := c.env.Store.SetQuota(ctx, op, account, q)
	if err != nil {
		return offpeak.Account{}, err
	}
	if c.env.Raised != nil {
		c.env.Raised(account)
	}
	c.env.Wrote()
	return a, nil
}

// checkQuota refuses quotas that make no sense. prefix stands before the names
// of their fields.
func checkQuota(prefix string, q offpeak.Quota) error {
	var errs []error
	for _, f := range []struct {
		name string
		n    int64
	}{{"storage_bytes", int64(q.Storage)}, {"queued_jobs", int64(q.Queued)}, {"running_jobs", int64(q.Running)}, {"gpus", int64(q.GPUs)}} {
		if f.n < 0 {
			errs = append(errs, &offpeak.FieldError{Field: prefix + f.name, Value: fmt.Sprint(f.n), Rule: "is not negative; 0 is no bound"})
		}
	}
	return errors.Join(errs...)
}

// Invite adds a member with a first token. When the operation id was used
// before, the member made then is returned without the secret.
func (c *Control) Invite(ctx context.Context, op store.Op, account offpeak.AccountID, in wire.NewMember) (wire.Invited, error) {
	if err := offpeak.ValidName("name", in.Name); err != nil {
		return wire.Invited{}, err
	}
	if err := checkRole(op.Actor.Role, in.Role, false); err != nil {
		return wire.Invited{}, err
	}
	life, err := checkLife(in.Expires, userTokenLife)
	if err != nil {
		return wire.Invited{}, err
	}
	id, err := c.env.NewID("member")
	if err != nil {
		return wire.Invited{}, err
	}
	t, bearer, err := c.mint(in.Role, account, life, -1)
	if err != nil {
		return wire.Invited{}, err
	}
	m := offpeak.Member{ID: offpeak.MemberID(id), Account: account, Name: in.Name, Role: in.Role, CreatedAt: c.env.Now()}
	t.Member, t.Name = m.ID, "invitation"
	stored, err := c.env.Store.AddMember(ctx, op, m, t)
	if err != nil {
		return wire.Invited{}, fmt.Errorf("invite %s: %w", in.Name, err)
	}
	c.env.Wrote()
	if stored.ID != m.ID {
		return wire.Invited{Member: stored}, nil
	}
	return wire.Invited{Member: stored, Secret: bearer}, nil
}

// RemoveMember removes a member and revokes their tokens at once.
func (c *Control) RemoveMember(ctx context.Context, op store.Op, account offpeak.AccountID, m offpeak.MemberID) error {
	ctx, done := settling(ctx)
	defer done()
	err := c.env.Store.RemoveMember(ctx, op, account, m)
	c.cache.drop(func(t *offpeak.Token) bool { return t.Member == m })
	if err != nil {
		return err
	}
	c.env.Wrote()
	return nil
}

// Bootstrap makes the first account and admin and returns the admin's secret,
// "" when there is an account already.
func (c *Control) Bootstrap(ctx context.Context) (secret string, err error) {
	account, err := c.env.NewID("acct")
	if err != nil {
		return "", err
	}
	member, err := c.env.NewID("member")
	if err != nil {
		return "", err
	}
	now := c.env.Now()
	a := offpeak.Account{ID: offpeak.AccountID(account), Name: "main", CreatedAt: now}
	m := offpeak.Member{ID: offpeak.MemberID(member), Account: a.ID, Name: "admin", Role: offpeak.RoleAdmin, CreatedAt: now}
	t, bearer, err := c.mint(offpeak.RoleAdmin, a.ID, userTokenLife.Std(), -1)
	if err != nil {
		return "", err
	}
	t.Member, t.Name = m.ID, "first token"
	made, err := c.env.Store.Bootstrap(ctx, a, m, t)
	if err != nil {
		return "", fmt.Errorf("make the first account: %w", err)
	}
	if !made {
		return "", nil
	}
	return bearer, nil
}

// LocalToken makes an admin token for the local file of a hub in place, "" where
// the grid has only one; it replaces the last one made there.
func (c *Control) LocalToken(ctx context.Context, place string) (secret string, err error) {
	name := localName
	if place != "" {
		sum := sha256.Sum256([]byte(place))
		name += " " + hex.EncodeToString(sum[:4])
	}
	accounts, _, err := c.env.Store.Accounts(ctx, store.Page{Limit: 1})
	if err != nil {
		return "", fmt.Errorf("find the first account: %w", err)
	}
	if len(accounts) == 0 {
		return "", fmt.Errorf("find the first account: %w", offpeak.ErrNotFound)
	}
	a := accounts[0].ID
	actor := offpeak.Actor{Account: a, Role: offpeak.RoleAdmin, Address: "local"}
	t, bearer, err := c.mint(offpeak.RoleAdmin, a, userTokenLife.Std(), -1)
	if err != nil {
		return "", err
	}
	t.Name = name
	members, err := c.env.Store.Members(ctx, a)
	if err != nil {
		return "", fmt.Errorf("find the first admin: %w", err)
	}
	for _, m := range members {
		if m.Role == offpeak.RoleAdmin {
			t.Member, actor.Member = m.ID, m.ID
			break
		}
	}
	if _, err := c.env.Store.CreateToken(ctx, c.ownOp(actor, t.ID), t); err != nil {
		return "", fmt.Errorf("make the local token: %w", err)
	}
	for cursor := ""; ; {
		tokens, next, err := c.env.Store.Tokens(ctx, a, store.Page{Cursor: cursor, Limit: 1000})
		if err != nil {
			return "", fmt.Errorf("find older local tokens: %w", err)
		}
		for _, old := range tokens {
			if old.Name != name || old.ID == t.ID || old.RevokedAt != nil {
				continue
			}
			if err := c.RevokeToken(ctx, c.ownOp(actor, "revoke-"+old.ID), a, old.ID); err != nil {
				return "", err
			}
		}
		if cursor = next; cursor == "" {
			return bearer, nil
		}
	}
}

// ownOp is the operation of something that the hub does of its own accord,
// named by what it is done to.
func (c *Control) ownOp(actor offpeak.Actor, name offpeak.TokenID) store.Op {
	return store.Op{ID: offpeak.OpID(name), Actor: actor, Digest: sha256.Sum256([]byte(name))}
}
