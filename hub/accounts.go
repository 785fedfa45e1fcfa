package hub

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

// localName is the name of the tokens that stand in the local file.
const localName = "local file"

// CreateAccount makes an account.
func (h *Hub) CreateAccount(ctx context.Context, op store.Op, in wire.NewAccount) (offpeak.Account, error) {
	if err := offpeak.ValidName("name", in.Name); err != nil {
		return offpeak.Account{}, err
	}
	if err := CheckQuota(in.Quota); err != nil {
		return offpeak.Account{}, err
	}
	id, err := h.newID("acct")
	if err != nil {
		return offpeak.Account{}, err
	}
	a, err := h.env.Store.CreateAccount(ctx, op, offpeak.Account{
		ID: offpeak.AccountID(id), Name: in.Name, Quota: in.Quota, CreatedAt: h.env.Now(),
	})
	if err != nil {
		return offpeak.Account{}, fmt.Errorf("create account: %w", err)
	}
	h.tail.ring()
	return a, nil
}

// CheckQuota refuses quotas that make no sense.
func CheckQuota(q offpeak.Quota) error {
	var errs []error
	for _, f := range []struct {
		name string
		n    int64
	}{{"quota.storage_bytes", int64(q.Storage)}, {"quota.queued_jobs", int64(q.Queued)}, {"quota.running_jobs", int64(q.Running)}} {
		if f.n < 0 {
			errs = append(errs, &offpeak.FieldError{Field: f.name, Value: fmt.Sprint(f.n), Rule: "is not negative; 0 is no bound"})
		}
	}
	return errors.Join(errs...)
}

// Invite adds a member with a first token. When the operation id was used
// before, the member made then is returned without the secret.
func (h *Hub) Invite(ctx context.Context, op store.Op, account offpeak.AccountID, in wire.NewMember) (wire.Invited, error) {
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
	id, err := h.newID("member")
	if err != nil {
		return wire.Invited{}, err
	}
	t, bearer, err := h.mint(in.Role, account, life, -1)
	if err != nil {
		return wire.Invited{}, err
	}
	m := offpeak.Member{ID: offpeak.MemberID(id), Account: account, Name: in.Name, Role: in.Role, CreatedAt: h.env.Now()}
	t.Member, t.Name = m.ID, "invitation"
	stored, err := h.env.Store.AddMember(ctx, op, m, t)
	if err != nil {
		return wire.Invited{}, fmt.Errorf("invite %s: %w", in.Name, err)
	}
	h.tail.ring()
	if stored.ID != m.ID {
		return wire.Invited{Member: stored}, nil
	}
	return wire.Invited{Member: stored, Secret: bearer}, nil
}

// RemoveMember removes a member and revokes their tokens at once.
func (h *Hub) RemoveMember(ctx context.Context, op store.Op, account offpeak.AccountID, m offpeak.MemberID) error {
	ctx, done := h.settling(ctx)
	defer done()
	err := h.env.Store.RemoveMember(ctx, op, account, m)
	h.tokens.drop(func(t *offpeak.Token) bool { return t.Member == m })
	if err != nil {
		return fmt.Errorf("remove member %s: %w", m, err)
	}
	h.tail.ring()
	return nil
}

// Bootstrap makes the first account and admin and returns the admin's secret,
// "" when there is an account already.
func (h *Hub) Bootstrap(ctx context.Context) (secret string, err error) {
	account, err := h.newID("acct")
	if err != nil {
		return "", err
	}
	member, err := h.newID("member")
	if err != nil {
		return "", err
	}
	now := h.env.Now()
	a := offpeak.Account{ID: offpeak.AccountID(account), Name: "main", CreatedAt: now}
	m := offpeak.Member{ID: offpeak.MemberID(member), Account: a.ID, Name: "admin", Role: offpeak.RoleAdmin, CreatedAt: now}
	t, bearer, err := h.mint(offpeak.RoleAdmin, a.ID, userTokenLife.Std(), -1)
	if err != nil {
		return "", err
	}
	t.Member, t.Name = m.ID, "first token"
	made, err := h.env.Store.Bootstrap(ctx, a, m, t)
	if err != nil {
		return "", fmt.Errorf("make the first account: %w", err)
	}
	if !made {
		return "", nil
	}
	return bearer, nil
}

// LocalToken makes an admin token for the local file; it replaces the last one.
func (h *Hub) LocalToken(ctx context.Context) (secret string, err error) {
	accounts, _, err := h.env.Store.Accounts(ctx, store.Page{Limit: 1})
	if err != nil {
		return "", fmt.Errorf("find the first account: %w", err)
	}
	if len(accounts) == 0 {
		return "", fmt.Errorf("find the first account: %w", offpeak.ErrNotFound)
	}
	a := accounts[0].ID
	actor := offpeak.Actor{Account: a, Role: offpeak.RoleAdmin, Address: "local"}
	t, bearer, err := h.mint(offpeak.RoleAdmin, a, userTokenLife.Std(), -1)
	if err != nil {
		return "", err
	}
	t.Name = localName
	members, err := h.env.Store.Members(ctx, a)
	if err != nil {
		return "", fmt.Errorf("find the first admin: %w", err)
	}
	for _, m := range members {
		if m.Role == offpeak.RoleAdmin {
			t.Member, actor.Member = m.ID, m.ID
			break
		}
	}
	if _, err := h.env.Store.CreateToken(ctx, h.ownOp(actor, t.ID), t); err != nil {
		return "", fmt.Errorf("make the local token: %w", err)
	}
	for cursor := ""; ; {
		tokens, next, err := h.env.Store.Tokens(ctx, a, store.Page{Cursor: cursor, Limit: 1000})
		if err != nil {
			return "", fmt.Errorf("find older local tokens: %w", err)
		}
		for _, old := range tokens {
			if old.Name != localName || old.ID == t.ID || old.RevokedAt != nil {
				continue
			}
			if err := h.RevokeToken(ctx, h.ownOp(actor, "revoke-"+old.ID), a, old.ID); err != nil {
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
func (h *Hub) ownOp(actor offpeak.Actor, name offpeak.TokenID) store.Op {
	return store.Op{ID: offpeak.OpID(name), Actor: actor, Digest: sha256.Sum256([]byte(name))}
}
