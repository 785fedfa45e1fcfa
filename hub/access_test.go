package hub_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/placement"
	"offpeak/wire"
)

// metric reads a counter or gauge.
func (g *grid) metric(name string) float64 {
	g.t.Helper()
	families, err := g.hub.Metrics().Gather()
	must(g.t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		sum := 0.0
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return sum
	}
	g.t.Fatalf("no metric %s", name)
	return 0
}

func TestTokens(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		ctx := t.Context()
		made, err := g.hub.CreateToken(ctx, g.op(), wire.NewToken{Role: offpeak.RoleSubmitter, Name: "ci"})
		must(t, err)
		if !strings.HasPrefix(made.Secret, "offpeak_u_") {
			t.Fatalf("the secret begins with %.12q", made.Secret)
		}
		good, err := g.hub.Authenticate(ctx, made.Secret)
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
			if _, err := g.hub.Authenticate(ctx, bad); !errors.Is(err, offpeak.ErrUnauthenticated) {
				t.Errorf("%s: %v", what, err)
			}
		}
		// Revoked at once, although it was remembered as good.
		must(t, g.hub.RevokeToken(ctx, g.op(), g.account, made.Token.ID))
		if _, err := g.hub.Authenticate(ctx, made.Secret); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Fatalf("revoked: %v", err)
		}
		made, err = g.hub.CreateToken(ctx, g.op(), wire.NewToken{Role: offpeak.RoleViewer, Expires: offpeak.Duration(time.Hour)})
		must(t, err)
		_, err = g.hub.Authenticate(ctx, made.Secret)
		must(t, err)
		time.Sleep(time.Hour)
		if _, err := g.hub.Authenticate(ctx, made.Secret); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Fatalf("expired: %v", err)
		}
	})
}

func TestNobodyHandsOutMoreThanTheyHave(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
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
			op := g.op()
			op.Actor.Role = c.actor
			if _, err := g.hub.CreateToken(t.Context(), op, wire.NewToken{Role: c.role}); !errors.Is(err, c.want) {
				t.Errorf("%s hands out %s: %v, want %v", c.actor, c.role, err, c.want)
			}
		}
		op := g.op()
		op.Actor.Role = offpeak.RoleOwner
		if _, err := g.hub.CreateToken(t.Context(), op, wire.NewToken{Role: offpeak.RoleViewer, Account: "acct_other"}); !errors.Is(err, offpeak.ErrNotFound) {
			t.Errorf("for another account: %v", err)
		}
	})
}

func TestLocalTokenReplacesTheLast(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		first, err := g.hub.LocalToken(t.Context())
		must(t, err)
		tok, err := g.hub.Authenticate(t.Context(), first)
		must(t, err)
		if tok.Role != offpeak.RoleAdmin || tok.Member == "" {
			t.Fatalf("the local token is %+v", tok)
		}
		second, err := g.hub.LocalToken(t.Context())
		must(t, err)
		if _, err := g.hub.Authenticate(t.Context(), first); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Fatalf("the first local token: %v", err)
		}
		_, err = g.hub.Authenticate(t.Context(), second)
		must(t, err)
		if again, err := g.hub.Bootstrap(t.Context()); err != nil || again != "" {
			t.Fatalf("a second bootstrap made %q (%v)", again, err)
		}
	})
}

func TestSessions(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		old := a.session
		tok, err := g.hub.Authenticate(t.Context(), old)
		must(t, err)
		if tok.Node != a.id || tok.Role != offpeak.RoleNode {
			t.Fatalf("the session is %+v", tok)
		}
		// A copy of the key at the same generation collides.
		thief := *a
		a.open("one-2")
		if _, err := g.hub.Authenticate(t.Context(), old); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Fatalf("the replaced session: %v", err)
		}
		if err := thief.tryOpen("thief-1"); !errors.Is(err, offpeak.ErrIdentityConflict) {
			t.Fatalf("the thief's session: %v", err)
		}
		if _, err := g.hub.Heartbeat(t.Context(), a.id, thief.heartbeat()); !errors.Is(err, offpeak.ErrStaleSession) {
			t.Fatalf("the thief's beat: %v", err)
		}
		// A challenge is good for a minute, and only this hub's.
		stale := g.hub.Challenge()
		time.Sleep(61 * time.Second)
		for what, c := range map[string]string{"old": stale.Challenge, "empty": "", "garbled": "AAAA" + g.hub.Challenge().Challenge[4:]} {
			_, err := g.hub.OpenSession(t.Context(), wire.OpenSession{Node: a.id, Incarnation: "x", Challenge: c}, "")
			if !errors.Is(err, offpeak.ErrUnauthenticated) {
				t.Errorf("%s challenge: %v", what, err)
			}
		}
		_, err = g.hub.OpenSession(t.Context(), wire.OpenSession{Node: a.id, Incarnation: "x", Challenge: g.hub.Challenge().Challenge, Signature: make([]byte, 64)}, "")
		if !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Errorf("wrong signature: %v", err)
		}
	})
}

func TestMetricsShowTheStoresCommits(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		before := g.store.Stats()
		g.submit(small())
		after := g.store.Stats()
		if after.Commits <= before.Commits || after.Verbs <= before.Verbs {
			t.Fatalf("a submission moved the counts from %+v to %+v", before, after)
		}
		synctest.Wait()
		st := g.store.Stats()
		for name, want := range map[string]float64{
			"offpeak_store_commits_total":        float64(st.Commits),
			"offpeak_store_verbs_total":          float64(st.Verbs),
			"offpeak_store_commit_seconds_total": st.Committing.Seconds(),
			"offpeak_store_failures_total":       0,
		} {
			if got := g.metric(name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}

// The explanation says how many nodes must fit before secondary metrics count.
func TestExplanationSaysWhileSecondaryMetricsSleep(t *testing.T) {
	for baseline, want := range map[int]int{1: 0, 2: 2} {
		weights := placement.DefaultWeights()
		weights.Baseline = baseline
		t.Run(strconv.Itoa(baseline), func(t *testing.T) {
			bubble(t, hub.Config{Weights: weights}, func(t *testing.T, g *grid) {
				spec := small()
				spec.Retry = &offpeak.RetryPolicy{User: 1}
				a := g.join("one")
				id := g.submit(spec)
				d := a.offered()
				a.accept(d)
				a.run(d)
				a.end(d, offpeak.EndExitNonzero) // it pauses, with one node that fits it
				e, err := g.hub.Explain(t.Context(), g.account, id)
				must(t, err)
				if e.State != offpeak.JobQueued || len(e.Nodes) != 1 || !e.Nodes[0].Fits || e.Asleep != want {
					t.Errorf("with a baseline of %d: %+v", baseline, e)
				}
			})
		})
	}
}
