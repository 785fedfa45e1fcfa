package access_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"offpeak"
	"offpeak/hub/access"
	"offpeak/store"
	"offpeak/store/sqlite"
	"offpeak/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// desk is a control on a real store, with its first admin.
type desk struct {
	control *access.Control
	store   *sqlite.Store
	admin   offpeak.Token
	account offpeak.AccountID
	ops     atomic.Int64
	// stop ends Run, which also happens at the end of the test.
	stop func()
}

// bubble runs a test on a clock that stands still while anybody works.
func bubble(t *testing.T, test func(t *testing.T, d *desk)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "offpeak.db"), sqlite.Options{Now: time.Now})
		must(t, err)
		d := &desk{store: s}
		var ids atomic.Int64
		d.control = access.New(access.Config{Session: 15 * time.Minute}, access.Env{
			Store: s, Log: slog.New(slog.DiscardHandler), Now: time.Now, Random: rand.Reader, Wrote: func() {}, Addresses: func() []string { return []string{"https://hub.example"} },
			NewID: func(prefix string) (string, error) { return fmt.Sprintf("%s_%026d", prefix, ids.Add(1)), nil },
		})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- d.control.Run(ctx); close(ended) }()
		d.stop = func() { cancel(); must(t, <-ended) }
		secret, err := d.control.Bootstrap(t.Context())
		must(t, err)
		d.admin, err = d.control.Authenticate(t.Context(), secret)
		must(t, err)
		d.account = d.admin.Account
		test(t, d)
		d.stop()
		must(t, s.Close())
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (d *desk) op() store.Op {
	return store.Op{
		ID:    offpeak.OpID(fmt.Sprintf("op-%d", d.ops.Add(1))),
		Actor: offpeak.Actor{Account: d.account, Member: d.admin.Member, Token: d.admin.ID, Role: offpeak.RoleAdmin},
	}
}

func TestTokens(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		ctx := t.Context()
		made, err := d.control.CreateToken(ctx, d.op(), wire.NewToken{Role: offpeak.RoleSubmitter, Name: "ci"})
		must(t, err)
		if !strings.HasPrefix(made.Secret, "offpeak_u_") {
			t.Fatalf("the secret begins with %.12q", made.Secret)
		}
		good, err := d.control.Authenticate(ctx, made.Secret)
		must(t, err)
		if good.ID != made.Token.ID || good.Role != offpeak.RoleSubmitter {
			t.Fatalf("authenticated as %+v", good)
		}
		for what, bad := range map[string]string{
			"empty":      "",
			"cut off":    made.Secret[:len(made.Secret)-1],
			"mistyped":   made.Secret[:20] + "x" + made.Secret[21:],
			"other kind": strings.Replace(made.Secret, "_u_", "_s_", 1),
			"long":       made.Secret + "0",
			"join text":  "offpeak_join_abc",
		} {
			if _, err := d.control.Authenticate(ctx, bad); !errors.Is(err, offpeak.ErrUnauthenticated) {
				t.Errorf("%s: %v", what, err)
			}
		}
		// Revoked at once, although it was remembered as good.
		must(t, d.control.RevokeToken(ctx, d.op(), d.account, made.Token.ID))
		if _, err := d.control.Authenticate(ctx, made.Secret); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Fatalf("revoked: %v", err)
		}
		made, err = d.control.CreateToken(ctx, d.op(), wire.NewToken{Role: offpeak.RoleViewer, Expires: offpeak.Duration(time.Hour)})
		must(t, err)
		_, err = d.control.Authenticate(ctx, made.Secret)
		must(t, err)
		time.Sleep(time.Hour)
		if _, err := d.control.Authenticate(ctx, made.Secret); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Fatalf("expired: %v", err)
		}
	})
}

func TestNobodyHandsOutMoreThanTheyHave(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		for _, c := range []struct {
			actor, role offpeak.Role
			want        error
		}{
			{offpeak.RoleAdmin, offpeak.RoleAdmin, nil},
			{offpeak.RoleOwner, offpeak.RoleJoin, nil},
			{offpeak.RoleOwner, offpeak.RoleAdmin, offpeak.ErrForbidden},
			{offpeak.RoleSubmitter, offpeak.RoleJoin, offpeak.ErrForbidden},
			{offpeak.RoleViewer, offpeak.RoleSubmitter, offpeak.ErrForbidden},
			{offpeak.RoleJoin, offpeak.RoleJoin, offpeak.ErrForbidden},
			{offpeak.RoleAdmin, offpeak.RoleNode, offpeak.ErrInvalid},
			{offpeak.RoleAdmin, "king", offpeak.ErrInvalid},
		} {
			op := d.op()
			op.Actor.Role = c.actor
			if _, err := d.control.CreateToken(t.Context(), op, wire.NewToken{Role: c.role}); !errors.Is(err, c.want) {
				t.Errorf("%s hands out %s: %v, want %v", c.actor, c.role, err, c.want)
			}
		}
		op := d.op()
		op.Actor.Role = offpeak.RoleOwner
		if _, err := d.control.CreateToken(t.Context(), op, wire.NewToken{Role: offpeak.RoleViewer, Account: "acct_other"}); !errors.Is(err, offpeak.ErrNotFound) {
			t.Errorf("for another account: %v", err)
		}
	})
}

func TestLocalTokenReplacesTheLast(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		first, err := d.control.LocalToken(t.Context(), "")
		must(t, err)
		tok, err := d.control.Authenticate(t.Context(), first)
		must(t, err)
		if tok.Role != offpeak.RoleAdmin || tok.Member == "" {
			t.Fatalf("the local token is %+v", tok)
		}
		second, err := d.control.LocalToken(t.Context(), "")
		must(t, err)
		if _, err := d.control.Authenticate(t.Context(), first); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Fatalf("the first local token: %v", err)
		}
		_, err = d.control.Authenticate(t.Context(), second)
		must(t, err)
		if again, err := d.control.Bootstrap(t.Context()); err != nil || again != "" {
			t.Fatalf("a second bootstrap made %q (%v)", again, err)
		}
	})
}

func TestSessions(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		ctx := t.Context()
		public, key, err := ed25519.GenerateKey(rand.Reader)
		must(t, err)
		made, err := d.control.CreateToken(ctx, d.op(), wire.NewToken{Role: offpeak.RoleJoin})
		must(t, err)
		text, err := wire.DecodeJoinToken(made.Secret)
		must(t, err)
		join, err := d.control.Authenticate(ctx, text.Token)
		must(t, err)
		enrol := wire.Enrol{Name: "one", Key: public, Proof: ed25519.Sign(key, wire.EnrolMessage("tok_other"))}
		if _, err := d.control.Enrol(ctx, join, enrol, ""); !errors.Is(err, offpeak.ErrInvalid) {
			t.Fatalf("a proof for another token: %v", err)
		}
		enrol.Proof = ed25519.Sign(key, wire.EnrolMessage(join.ID))
		node, err := d.control.Enrol(ctx, join, enrol, "")
		must(t, err)
		// Used up: what was remembered of it is forgotten.
		if _, err := d.control.Enrol(ctx, join, enrol, ""); err != nil {
			t.Errorf("the same key again: %v", err)
		}
		other, otherKey, err := ed25519.GenerateKey(rand.Reader)
		must(t, err)
		if _, err := d.control.Enrol(ctx, join, wire.Enrol{Key: other, Proof: ed25519.Sign(otherKey, wire.EnrolMessage(join.ID))}, ""); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Errorf("another key with a used token: %v", err)
		}
		open := func(challenge string, key ed25519.PrivateKey, generation int64) (wire.Session, error) {
			in := wire.OpenSession{Node: node.Node, Incarnation: "x", Challenge: challenge, Generation: generation}
			in.Signature = ed25519.Sign(key, wire.SessionMessage(in.Challenge, in.Node, in.Incarnation, in.Generation))
			return d.control.OpenSession(ctx, in, "")
		}
		first, err := open(d.control.Challenge().Challenge, key, 0)
		must(t, err)
		tok, err := d.control.Authenticate(ctx, first.Token)
		must(t, err)
		if tok.Node != node.Node || tok.Role != offpeak.RoleNode {
			t.Fatalf("the session is %+v", tok)
		}
		_, err = open(d.control.Challenge().Challenge, key, first.Generation)
		must(t, err)
		if _, err := d.control.Authenticate(ctx, first.Token); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Errorf("the replaced session: %v", err)
		}
		if _, err := open(d.control.Challenge().Challenge, otherKey, first.Generation+1); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Errorf("another key's signature: %v", err)
		}
		// A challenge is good for a minute, and only this hub's.
		stale := d.control.Challenge().Challenge
		time.Sleep(61 * time.Second)
		for what, c := range map[string]string{"old": stale, "empty": "", "garbled": "AAAA" + d.control.Challenge().Challenge[4:]} {
			if _, err := open(c, key, first.Generation+1); !errors.Is(err, offpeak.ErrUnauthenticated) {
				t.Errorf("%s challenge: %v", what, err)
			}
		}
	})
}

// Whose token one may end follows from whom one may let in.
func TestRevokingOthersTokens(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		ctx := t.Context()
		make := func(role offpeak.Role) offpeak.TokenID {
			made, err := d.control.CreateToken(ctx, d.op(), wire.NewToken{Role: role})
			must(t, err)
			return made.Token.ID
		}
		for _, c := range []struct {
			by, of offpeak.Role
			own    bool
			want   error
		}{
			{by: offpeak.RoleSubmitter, of: offpeak.RoleViewer},
			{by: offpeak.RoleSubmitter, of: offpeak.RoleOwner, want: offpeak.ErrForbidden},
			{by: offpeak.RoleOwner, of: offpeak.RoleAdmin, want: offpeak.ErrForbidden},
			{by: offpeak.RoleViewer, of: offpeak.RoleViewer, want: offpeak.ErrForbidden},
			{by: offpeak.RoleViewer, of: offpeak.RoleViewer, own: true},
		} {
			op, id := d.op(), make(c.of)
			op.Actor.Role = c.by
			if c.own {
				op.Actor.Token = id
			}
			if err := d.control.RevokeToken(ctx, op, d.account, id); !errors.Is(err, c.want) {
				t.Errorf("%s revokes %s (own %v): %v, want %v", c.by, c.of, c.own, err, c.want)
			}
		}
		op := d.op()
		op.Actor.Role, op.Actor.Account = offpeak.RoleOwner, "acct_other"
		if err := d.control.RevokeToken(ctx, op, op.Actor.Account, make(offpeak.RoleViewer)); !errors.Is(err, offpeak.ErrNotFound) {
			t.Errorf("another account's: %v", err)
		}
	})
}

func TestQuotasThatMakeNoSense(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		for _, q := range []offpeak.Quota{{Storage: -1}, {Queued: -1}, {Running: -1}} {
			if _, err := d.control.SetQuota(t.Context(), d.op(), d.account, q); !errors.Is(err, offpeak.ErrInvalid) {
				t.Errorf("%+v: %v", q, err)
			}
			if _, err := d.control.CreateAccount(t.Context(), d.op(), wire.NewAccount{Name: "x", Quota: q}); !errors.Is(err, offpeak.ErrInvalid) {
				t.Errorf("an account with %+v: %v", q, err)
			}
		}
	})
}

// The use of a token is noted down a while later, and at the end.
func TestUseIsNotedDown(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		made, err := d.control.CreateToken(t.Context(), d.op(), wire.NewToken{Role: offpeak.RoleViewer})
		must(t, err)
		use := func() time.Time {
			time.Sleep(time.Minute) // it is asked for anew
			_, err := d.control.Authenticate(t.Context(), made.Secret)
			must(t, err)
			return time.Now()
		}
		noted := func(when time.Time) {
			t.Helper()
			got, err := d.store.Token(t.Context(), made.Token.ID)
			must(t, err)
			if got.LastUsed == nil || got.LastUsed.Sub(when).Abs() > time.Second {
				t.Errorf("used at %v, noted down is %v", when, got.LastUsed)
			}
		}
		when := use()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		noted(when)
		when = use()
		d.stop()
		noted(when)
	})
}
