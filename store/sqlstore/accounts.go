package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"offpeak"
	"offpeak/store"
)

// Bootstrap makes the first account.
func (s *Store) Bootstrap(ctx context.Context, a offpeak.Account, m offpeak.Member, tok offpeak.Token) (bool, error) {
	return write(ctx, s, "bootstrap", func(t *verb) (bool, error) {
		if err := t.Lock(`LOCK TABLE accounts IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return false, err
		}
		some, err := t.exists(`SELECT 1 FROM accounts LIMIT 1`)
		if err != nil || some {
			return false, err
		}
		if err := t.addAccount(a); err != nil {
			return false, err
		}
		m.Account, tok.Account, tok.Member = a.ID, a.ID, m.ID
		if err := t.addMember(m); err != nil {
			return false, err
		}
		if err := t.addToken(tok); err != nil {
			return false, err
		}
		t.audit(byHub(), "hub.bootstrap", string(a.ID), "done")
		return true, nil
	})
}

func (t *verb) addAccount(a offpeak.Account) error {
	n, err := t.Exec(`INSERT INTO accounts (id, name, quota_storage, quota_queued, quota_running, quota_gpus, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING`,
		string(a.ID), a.Name, int64(a.Quota.Storage), int64(a.Quota.Queued), int64(a.Quota.Running), int64(a.Quota.GPUs), micros(t.now))
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("account %q: the name is taken: %w", a.Name, offpeak.ErrConflict)
	}
	t.event(offpeak.Event{Type: "account.created", Account: a.ID, Data: data(struct {
		Name  string         `json:"name"`
		Quota *offpeak.Quota `json:"quota,omitempty"`
	}{a.Name, bounds(a.Quota)})})
	return nil
}

// bounds is a quota, nil where it bounds nothing.
func bounds(q offpeak.Quota) *offpeak.Quota {
	if q == (offpeak.Quota{}) {
		return nil
	}
	return &q
}

func (t *verb) addMember(m offpeak.Member) error {
	if _, err := t.Exec(`INSERT INTO members (id, account, name, role, created_at) VALUES ($1, $2, $3, $4, $5)`,
		string(m.ID), string(m.Account), m.Name, string(m.Role), micros(t.now)); err != nil {
		return err
	}
	t.event(offpeak.Event{Type: "member.added", Account: m.Account, Data: data(map[string]any{"member": m.ID, "name": m.Name, "role": m.Role})})
	return nil
}

func (t *verb) addToken(k offpeak.Token) error {
	created := k.CreatedAt
	if created.IsZero() {
		created = t.now
	}
	_, err := t.Exec(`INSERT INTO tokens (id, account, member, node, role, name, secret_hash, uses_left, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		string(k.ID), string(k.Account), string(k.Member), string(k.Node), string(k.Role), k.Name, k.SecretHash, int64(k.UsesLeft), micros(created), micros(k.ExpiresAt))
	return err
}

const accountColumns = `id, name, quota_storage, quota_queued, quota_running, quota_gpus, stored, created_at`

func scanAccount(rows Rows, a *offpeak.Account) error {
	var created int64
	err := rows.Scan(&a.ID, &a.Name, &a.Quota.Storage, &a.Quota.Queued, &a.Quota.Running, &a.Quota.GPUs, &a.Stored, &created)
	a.CreatedAt = moment(created)
	return err
}

func (t *verb) account(id offpeak.AccountID) (a offpeak.Account, err error) {
	err = t.each(`SELECT `+accountColumns+` FROM accounts WHERE id = $1`, []any{string(id)}, func(rows Rows) error { return scanAccount(rows, &a) })
	if err == nil && a.ID == "" {
		err = offpeak.ErrNotFound
	}
	return a, err
}

// CreateAccount stores an account.
func (s *Store) CreateAccount(ctx context.Context, op store.Op, a offpeak.Account) (offpeak.Account, error) {
	return write(ctx, s, "create account", func(t *verb) (offpeak.Account, error) {
		out, _, err := once(t, op, "account.create", string(a.ID), func() (offpeak.Account, error) {
			if err := t.addAccount(a); err != nil {
				return offpeak.Account{}, err
			}
			return t.account(a.ID)
		})
		return out, err
	})
}

// Account returns one account.
func (s *Store) Account(ctx context.Context, id offpeak.AccountID) (offpeak.Account, error) {
	return read(ctx, s, "read account "+string(id), func(t *verb) (offpeak.Account, error) { return t.account(id) })
}

// Accounts lists accounts by id.
func (s *Store) Accounts(ctx context.Context, page store.Page) ([]offpeak.Account, string, error) {
	limit, err := bounded(page.Limit)
	if err != nil {
		return nil, "", err
	}
	list, err := read(ctx, s, "list accounts", func(t *verb) (out []offpeak.Account, err error) {
		err = t.each(`SELECT `+accountColumns+` FROM accounts WHERE id > $1 ORDER BY id LIMIT $2`, []any{page.Cursor, int64(limit + 1)}, func(rows Rows) error {
			out = append(out, offpeak.Account{})
			return scanAccount(rows, &out[len(out)-1])
		})
		return out, err
	})
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	return list[:limit], string(list[limit-1].ID), nil
}

// SetQuota sets an account's quota.
func (s *Store) SetQuota(ctx context.Context, op store.Op, id offpeak.AccountID, q offpeak.Quota) (offpeak.Account, error) {
	if q.Storage < 0 || q.Queued < 0 || q.Running < 0 || q.GPUs < 0 {
		return offpeak.Account{}, &offpeak.FieldError{Field: "quota", Rule: "is not negative; 0 is no bound"}
	}
	return write(ctx, s, "set quota of account "+string(id), func(t *verb) (offpeak.Account, error) {
		out, _, err := once(t, op, "account.quota", string(id), func() (offpeak.Account, error) {
			was, err := t.account(id)
			if err != nil {
				return offpeak.Account{}, err
			}
			n, err := t.Exec(`UPDATE accounts SET quota_storage = $1, quota_queued = $2, quota_running = $3, quota_gpus = $4 WHERE id = $5`, int64(q.Storage), int64(q.Queued), int64(q.Running), int64(q.GPUs), string(id))
			if err == nil && n == 0 {
				err = offpeak.ErrNotFound
			}
			if err != nil {
				return offpeak.Account{}, err
			}
			t.event(offpeak.Event{Type: "account.quota", Account: id, Data: data(struct {
				offpeak.Quota
				Was offpeak.Quota `json:"was"`
			}{q, was.Quota})})
			return t.account(id)
		})
		return out, err
	})
}

// AddMember stores a member and a token.
func (s *Store) AddMember(ctx context.Context, op store.Op, m offpeak.Member, k offpeak.Token) (offpeak.Member, error) {
	return write(ctx, s, "add member", func(t *verb) (offpeak.Member, error) {
		out, _, err := once(t, op, "member.add", string(m.ID), func() (offpeak.Member, error) {
			if _, err := t.account(m.Account); err != nil {
				return offpeak.Member{}, err
			}
			k.Account, k.Member = m.Account, m.ID
			if err := t.addMember(m); err != nil {
				return offpeak.Member{}, err
			}
			m.CreatedAt = t.now
			return m, t.addToken(k)
		})
		return out, err
	})
}

// Members lists an account's members.
func (s *Store) Members(ctx context.Context, account offpeak.AccountID) ([]offpeak.Member, error) {
	return read(ctx, s, "list members", func(t *verb) (out []offpeak.Member, err error) {
		if _, err := t.account(account); err != nil {
			return nil, err
		}
		err = t.each(`SELECT id, account, name, role, created_at FROM members WHERE account = $1 ORDER BY id`, []any{string(account)}, func(rows Rows) error {
			var m offpeak.Member
			var created int64
			err := rows.Scan(&m.ID, &m.Account, &m.Name, &m.Role, &created)
			m.CreatedAt = moment(created)
			out = append(out, m)
			return err
		})
		return out, err
	})
}

// RemoveMember removes a member and revokes their tokens.
func (s *Store) RemoveMember(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.MemberID) error {
	_, err := write(ctx, s, "remove member "+string(id), func(t *verb) (struct{}, error) {
		_, _, err := once(t, op, "member.remove", string(id), func() (struct{}, error) {
			if err := t.owns(account, "members", string(id)); err != nil {
				return struct{}{}, err
			}
			if err := t.Lock(`SELECT 1 FROM members WHERE role = $1 ORDER BY id FOR UPDATE`, string(offpeak.RoleAdmin)); err != nil {
				return struct{}{}, err
			}
			var owner offpeak.AccountID
			var role offpeak.Role
			if err := t.row(`DELETE FROM members WHERE id = $1 RETURNING account, role`, []any{string(id)}, &owner, &role); err != nil {
				return struct{}{}, err
			}
			admins, err := t.exists(`SELECT 1 FROM members WHERE role = $1`, string(offpeak.RoleAdmin))
			if err != nil {
				return struct{}{}, err
			}
			if role == offpeak.RoleAdmin && !admins {
				return struct{}{}, fmt.Errorf("they are the grid's last admin, invite another first: %w", offpeak.ErrConflict)
			}
			_, err = t.Exec(`UPDATE tokens SET revoked_at = $1 WHERE account = $2 AND member = $3 AND revoked_at = 0`, micros(t.now), string(owner), string(id))
			t.event(offpeak.Event{Type: "member.removed", Account: owner, Data: data(map[string]any{"member": id})})
			return struct{}{}, err
		})
		return struct{}{}, err
	})
	return err
}

const tokenColumns = `id, account, member, node, role, name, secret_hash, uses_left, created_at, expires_at, revoked_at, last_used`

func scanToken(rows Rows, k *offpeak.Token) error {
	var created, expires, revoked, used int64
	err := rows.Scan(&k.ID, &k.Account, &k.Member, &k.Node, &k.Role, &k.Name, &k.SecretHash, &k.UsesLeft, &created, &expires, &revoked, &used)
	k.CreatedAt, k.ExpiresAt, k.RevokedAt, k.LastUsed = moment(created), moment(expires), maybe(revoked), maybe(used)
	return err
}

func (t *verb) token(id offpeak.TokenID) (k offpeak.Token, err error) {
	err = t.each(`SELECT `+tokenColumns+` FROM tokens WHERE id = $1`, []any{string(id)}, func(rows Rows) error { return scanToken(rows, &k) })
	if err == nil && k.ID == "" {
		err = offpeak.ErrNotFound
	}
	return k, err
}

// CreateToken stores a token.
func (s *Store) CreateToken(ctx context.Context, op store.Op, k offpeak.Token) (offpeak.Token, error) {
	return write(ctx, s, "create token", func(t *verb) (offpeak.Token, error) {
		out, _, err := once(t, op, "token.create", string(k.ID), func() (offpeak.Token, error) {
			if _, err := t.account(k.Account); err != nil {
				return offpeak.Token{}, err
			}
			if err := t.addToken(k); err != nil {
				return offpeak.Token{}, err
			}
			t.event(offpeak.Event{Type: "token.created", Account: k.Account, Data: data(map[string]any{"token": k.ID, "role": k.Role, "name": k.Name})})
			return t.token(k.ID)
		})
		if err != nil {
			return offpeak.Token{}, err
		}
		// The hash is not in the kept outcome.
		if kept, err := t.token(out.ID); err == nil {
			out.SecretHash = kept.SecretHash
		} else if !errors.Is(err, offpeak.ErrNotFound) {
			return offpeak.Token{}, err
		}
		return out, nil
	})
}

// Token looks a token up.
func (s *Store) Token(ctx context.Context, id offpeak.TokenID) (offpeak.Token, error) {
	return read(ctx, s, "read token "+string(id), func(t *verb) (offpeak.Token, error) { return t.token(id) })
}

// Tokens lists tokens by id.
func (s *Store) Tokens(ctx context.Context, account offpeak.AccountID, page store.Page) ([]offpeak.Token, string, error) {
	limit, err := bounded(page.Limit)
	if err != nil {
		return nil, "", err
	}
	list, err := read(ctx, s, "list tokens", func(t *verb) (out []offpeak.Token, err error) {
		q, args := `SELECT `+tokenColumns+` FROM tokens WHERE id > $1`, []any{page.Cursor, int64(limit + 1)}
		if account != "" {
			q, args = q+` AND account = $3`, append(args, string(account))
		}
		err = t.each(q+` ORDER BY id LIMIT $2`, args, func(rows Rows) error {
			out = append(out, offpeak.Token{})
			return scanToken(rows, &out[len(out)-1])
		})
		return out, err
	})
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	return list[:limit], string(list[limit-1].ID), nil
}

// RevokeToken ends a token.
func (s *Store) RevokeToken(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.TokenID) error {
	_, err := write(ctx, s, "revoke token "+string(id), func(t *verb) (struct{}, error) {
		_, _, err := once(t, op, "token.revoke", string(id), func() (struct{}, error) {
			if err := t.owns(account, "tokens", string(id)); err != nil {
				return struct{}{}, err
			}
			n, err := t.Exec(`UPDATE tokens SET revoked_at = $1 WHERE id = $2 AND revoked_at = 0`, micros(t.now), string(id))
			if err == nil && n == 1 {
				var owner offpeak.AccountID
				err = t.row(`SELECT account FROM tokens WHERE id = $1`, []any{string(id)}, &owner)
				t.event(offpeak.Event{Type: "token.revoked", Account: owner, Data: data(map[string]any{"token": id})})
			}
			return struct{}{}, err
		})
		return struct{}{}, err
	})
	return err
}

// TouchTokens sets when tokens were last used.
func (s *Store) TouchTokens(ctx context.Context, used map[offpeak.TokenID]time.Time) error {
	_, err := write(ctx, s, "touch tokens", func(t *verb) (struct{}, error) {
		// In one order, so that two hubs never wait for each other.
		rows := make([][]any, 0, len(used))
		for _, id := range slices.Sorted(maps.Keys(used)) {
			rows = append(rows, []any{micros(used[id]), string(id)})
		}
		_, err := t.ExecMany(Many{`UPDATE tokens SET last_used = $1 WHERE id = $2 AND last_used < $1`, rows})
		return struct{}{}, err
	})
	return err
}
