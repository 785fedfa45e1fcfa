package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

func enrol(t *testing.T, g *grid) {
	ctx := context.Background()
	join := g.token("join_once", offpeak.RoleJoin)
	join.UsesLeft = 1
	if _, err := g.CreateToken(ctx, g.op(), join); err != nil {
		t.Fatal(err)
	}
	n, err := g.Enrol(ctx, join.ID, store.NewNode{ID: "node_a", Name: "a", Key: []byte("key a"), Inventory: inventory(2)}, offpeak.Actor{})
	if err != nil {
		t.Fatal(err)
	}
	if n.Account != g.account || n.Liveness != offpeak.NodeOffline || n.Intent != offpeak.NodeOpen || n.Capacity.CPU != 4000 || len(n.Capacity.Devices) != 2 || n.Generation != 0 || string(n.Key) != "key a" {
		t.Errorf("Enrol = %+v", n)
	}
	again, err := g.Enrol(ctx, join.ID, store.NewNode{ID: "node_b", Name: "a", Key: []byte("key a")}, offpeak.Actor{})
	if err != nil || again.ID != n.ID {
		t.Errorf("Enrol again = %s, %v; want %s", again.ID, err, n.ID)
	}
	_, err = g.Enrol(ctx, join.ID, store.NewNode{ID: "node_c", Key: []byte("key c")}, offpeak.Actor{})
	refused(t, "Enrol with a used token", err, offpeak.ErrUnauthenticated)
	_, err = g.Enrol(ctx, "none", store.NewNode{ID: "node_c", Key: []byte("key c")}, offpeak.Actor{})
	refused(t, "Enrol with no token", err, offpeak.ErrUnauthenticated)
	_, err = g.Enrol(ctx, "tok_admin", store.NewNode{ID: "node_c", Key: []byte("key c")}, offpeak.Actor{})
	refused(t, "Enrol with a token of another role", err, offpeak.ErrUnauthenticated)
	foreign := g.token("join_other", offpeak.RoleJoin)
	foreign.Account = g.other()
	if _, err := g.CreateToken(ctx, g.op(), foreign); err != nil {
		t.Fatal(err)
	}
	_, err = g.Enrol(ctx, foreign.ID, store.NewNode{ID: "node_d", Key: []byte("key a")}, offpeak.Actor{})
	refused(t, "Enrol with another account's key", err, offpeak.ErrConflict)
	late := g.token("join_late", offpeak.RoleJoin)
	late.ExpiresAt = g.clock.Now().Add(time.Minute)
	revoked := g.token("join_revoked", offpeak.RoleJoin)
	for _, k := range []offpeak.Token{late, revoked} {
		if _, err := g.CreateToken(ctx, g.op(), k); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.RevokeToken(ctx, g.op(), g.account, revoked.ID); err != nil {
		t.Fatal(err)
	}
	g.clock.Advance(time.Minute)
	for _, k := range []offpeak.TokenID{late.ID, revoked.ID} {
		_, err = g.Enrol(ctx, k, store.NewNode{ID: "node_e", Key: []byte("key e")}, offpeak.Actor{})
		refused(t, "Enrol with "+string(k), err, offpeak.ErrUnauthenticated)
	}
}

// A join token serves as many nodes at once as it has uses, and no more.
func enrolMany(t *testing.T, g *grid) {
	const uses, tries = 40, 50
	join := g.token("join_many", offpeak.RoleJoin)
	join.UsesLeft = uses
	if _, err := g.CreateToken(context.Background(), g.op(), join); err != nil {
		t.Fatal(err)
	}
	var enrolled atomic.Int64
	var all sync.WaitGroup
	for i := range tries {
		all.Go(func() {
			name := fmt.Sprintf("many_%d", i)
			_, err := g.Enrol(context.Background(), join.ID, store.NewNode{ID: offpeak.NodeID("node_" + name), Name: name, Key: []byte(name), Inventory: inventory(0)}, offpeak.Actor{})
			switch {
			case err == nil:
				enrolled.Add(1)
			case !errors.Is(err, offpeak.ErrUnauthenticated):
				t.Errorf("Enrol: %v", err)
			}
		})
	}
	all.Wait()
	if n := enrolled.Load(); n != uses {
		t.Errorf("%d nodes were enrolled with a token for %d", n, uses)
	}
}

func sessions(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	try := func(gen int64, inc, previous offpeak.Incarnation) (offpeak.Node, error) {
		return g.OpenSession(ctx, store.NewSession{Node: n.ID, Incarnation: inc, Previous: previous, Generation: gen, Token: g.token(offpeak.TokenID(g.id("s")), offpeak.RoleNode)})
	}
	if n.Generation != 1 || n.Incarnation != inc {
		t.Fatalf("OpenSession = %+v", n)
	}
	for _, c := range []struct {
		what     string
		gen      int64
		inc      offpeak.Incarnation
		previous offpeak.Incarnation
		want     int64
		err      error
	}{
		{"the next", 1, "i2", inc, 2, nil},
		{"the next, its answer lost", 1, "i2", inc, 2, nil},
		{"the next, its answer lost, the agent restarted", 1, "i3", "i2", 2, nil},
		{"a clone", 1, "i9", "i8", 0, offpeak.ErrIdentityConflict},
		{"an old one", 0, "i3", "i3", 0, offpeak.ErrIdentityConflict},
		{"the same agent again", 2, "i3", "i3", 3, nil},
	} {
		got, err := try(c.gen, c.inc, c.previous)
		if !errors.Is(err, c.err) || err == nil && (got.Generation != c.want || got.Incarnation != c.inc) {
			t.Errorf("%s: generation %d, %v; want %d, %v", c.what, got.Generation, err, c.want, c.err)
		}
	}
	keys, _, err := g.Tokens(ctx, g.account, store.Page{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	live := 0
	for _, k := range keys {
		if k.Node == n.ID {
			live++
		}
	}
	if live != 1 {
		t.Errorf("the node has %d sessions, want 1", live)
	}
	if !hasEvent(g, "node.identity_conflict") {
		t.Error("no event names the identity conflict")
	}
	_, err = g.OpenSession(ctx, store.NewSession{Node: "node_none", Token: g.token("x", offpeak.RoleNode)})
	refused(t, "OpenSession of no node", err, offpeak.ErrUnknownNode)
}

func hasEvent(g *grid, typ string) bool {
	g.Helper()
	ev, err := g.Events(context.Background(), "", 0, 1000)
	if err != nil {
		g.Fatal(err)
	}
	for _, e := range ev {
		if e.Type == typ {
			return true
		}
	}
	return false
}

func shrinking(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(2)
	gpu := g.claim(g.submit(spec()).ID, 1, n.ID, "GPU-1")
	g.clock.Advance(time.Second)
	a := g.claim(g.submit(spec()).ID, 1, n.ID)
	g.clock.Advance(time.Second)
	b := g.claim(g.submit(spec()).ID, 1, n.ID)
	for _, l := range []offpeak.Lease{gpu, a, b} {
		g.accept(l)
	}
	less := inventory(1)
	less.CPU = 1000
	got, _, err := g.SetInventory(ctx, n.ID, less)
	if err != nil || got.Capacity.CPU != 3000 || got.Reserved.CPU != 3000 {
		t.Fatalf("SetInventory = %+v, %v; want a capacity of what is held", got.Capacity, err)
	}
	for _, c := range []struct {
		lease offpeak.Lease
		want  offpeak.EndReason
	}{{gpu, offpeak.EndDeviceLost}, {a, ""}, {b, offpeak.EndNodeError}} {
		if got := g.lease(c.lease.Job, c.lease.ID).Stop; got != c.want {
			t.Errorf("a lease on a shrunken node is asked to stop as %q, want %q", got, c.want)
		}
	}
	g.ended(gpu, offpeak.EndDeviceLost, 0)
	g.ended(b, offpeak.EndNodeError, 0)
	if got := g.node(n.ID); got.Capacity.CPU != 1000 || got.Reserved.CPU != 1000 {
		t.Errorf("after they ended: capacity %d, reserved %d", got.Capacity.CPU, got.Reserved.CPU)
	}
	if free, err := g.FreeDevices(ctx, n.ID); err != nil || !equal(free, []offpeak.DeviceID{"GPU-0"}) {
		t.Errorf("FreeDevices = %v, %v", free, err)
	}
	if got, _, err := g.SetInventory(ctx, n.ID, inventory(2)); err != nil || got.Capacity.CPU != 4000 || len(got.Capacity.Devices) != 2 {
		t.Errorf("SetInventory of more = %+v, %v", got.Capacity, err)
	}
	_, _, err = g.SetInventory(ctx, "node_none", less)
	refused(t, "SetInventory of no node", err, offpeak.ErrUnknownNode)
}

func readings(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(2)
	before, err := g.Events(ctx, "", 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	used, hot := 3*offpeak.GiB, 91
	want := []offpeak.Reading{{Device: "GPU-0", Used: &used, Temperature: &hot, Throttled: []string{"heat"}}, {Device: "GPU-1"}}
	if err := g.SetReadings(ctx, n.ID, want); err != nil {
		t.Fatal(err)
	}
	if got := g.node(n.ID); !equalJSON(got.Readings, want) || got.Revision != n.Revision {
		t.Errorf("readings %+v at revision %d, want %+v at %d", got.Readings, got.Revision, want, n.Revision)
	}
	list, _, err := g.Nodes(ctx, "", store.Page{Limit: 10})
	if err != nil || len(list) != 1 || !equalJSON(list[0].Readings, want) {
		t.Errorf("Nodes = %+v, %v", list, err)
	}
	after, err := g.Events(ctx, "", 0, 1000)
	if err != nil || len(after) != len(before) {
		t.Errorf("readings are %d events, %v", len(after)-len(before), err)
	}
	if err := g.SetReadings(ctx, n.ID, nil); err != nil || len(g.node(n.ID).Readings) != 0 {
		t.Errorf("no readings: %v, %+v", err, g.node(n.ID).Readings)
	}
	refused(t, "SetReadings of no node", g.SetReadings(ctx, "node_none", want), offpeak.ErrUnknownNode)
}

func equalJSON(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

func intent(t *testing.T, g *grid) {
	ctx := context.Background()
	set := func(n offpeak.NodeID, to offpeak.Intent, stop bool) (offpeak.Node, []store.Change) {
		t.Helper()
		got, changes, err := g.SetIntent(ctx, g.op(), g.account, n, to, stop)
		if err != nil {
			t.Fatalf("SetIntent(%s): %v", to, err)
		}
		return got, changes
	}
	n := g.enrol(0)
	if got, _ := set(n.ID, offpeak.NodeDraining, false); got.Intent != offpeak.NodeClosed {
		t.Errorf("an idle node drained is %s, want closed", got.Intent)
	}
	set(n.ID, offpeak.NodeOpen, false)
	l := g.claim(g.submit(spec()).ID, 1, n.ID)
	g.accept(l)
	got, changes := set(n.ID, offpeak.NodeDraining, true)
	if got.Intent != offpeak.NodeDraining || len(changes) != 1 || changes[0].Lease.Stop != offpeak.EndDrained {
		t.Errorf("SetIntent(draining, stop) = %s, %+v", got.Intent, changes)
	}
	if _, changes := set(n.ID, offpeak.NodeDraining, true); len(changes) != 0 {
		t.Errorf("draining again changes %+v", changes)
	}
	c := g.ended(l, offpeak.EndDrained, 0)
	if !c.NodeClosed || g.node(n.ID).Intent != offpeak.NodeClosed {
		t.Errorf("after the last lease: closed %v, %s", c.NodeClosed, g.node(n.ID).Intent)
	}
	_, _, err := g.SetIntent(ctx, g.op(), g.account, "node_none", offpeak.NodeOpen, false)
	refused(t, "SetIntent of no node", err, offpeak.ErrNotFound)
}

func removeNode(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	op := g.op()
	changes, err := g.RemoveNode(ctx, op, g.account, n.ID)
	if err != nil || len(changes) != 1 || changes[0].Lease.Reason != offpeak.EndNodeRemoved || changes[0].Queued == nil {
		t.Fatalf("RemoveNode = %+v, %v", changes, err)
	}
	if again, err := g.RemoveNode(ctx, op, g.account, n.ID); err != nil || len(again) != 1 || again[0].Lease.ID != l.ID {
		t.Errorf("RemoveNode again = %+v, %v; want the first outcome", again, err)
	}
	_, err = g.RemoveNode(ctx, g.op(), g.account, n.ID)
	refused(t, "RemoveNode of a removed node", err, offpeak.ErrNotFound)
	_, err = g.Node(ctx, "", n.ID)
	refused(t, "Node of a removed node", err, offpeak.ErrNotFound)
	out, err := g.Beat(ctx, []store.Beat{{Node: n.ID, Incarnation: inc, Seq: 1000, Grant: timeout}})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, "Beat of a removed node", out[0].Err, offpeak.ErrUnknownNode)
	if all, err := g.Attempts(ctx, g.account, l.Job); err != nil || len(all) != 1 {
		t.Errorf("Attempts on a removed node = %v, %v", all, err)
	}
}

func liveness(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	move := func(to offpeak.Liveness, before time.Time) int {
		t.Helper()
		moved, err := g.SetLiveness(ctx, []store.LivenessChange{{Node: n.ID, To: to, HeardBefore: before}})
		if err != nil {
			t.Fatal(err)
		}
		return len(moved)
	}
	if move(offpeak.NodeLate, g.clock.Now()) != 0 {
		t.Error("a node heard just now became late")
	}
	g.clock.Advance(time.Minute)
	if err := g.Touch(ctx, map[offpeak.NodeID]time.Time{n.ID: g.clock.Now(), "node_none": g.clock.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := g.Touch(ctx, map[offpeak.NodeID]time.Time{n.ID: g.clock.Now().Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if got := g.node(n.ID).LastHeard; !got.Equal(g.clock.Now()) {
		t.Errorf("Touch moved last heard to %v", got)
	}
	if move(offpeak.NodeOffline, g.clock.Now()) != 0 {
		t.Error("a touched node became offline")
	}
	after := g.clock.Now().Add(time.Second)
	if move(offpeak.NodeLate, after) != 1 || move(offpeak.NodeLate, after) != 0 || move(offpeak.NodeOffline, after) != 1 || move(offpeak.NodeLate, after) != 0 {
		t.Error("online → late → offline is not what SetLiveness does")
	}
	if got := g.node(n.ID).Liveness; got != offpeak.NodeOffline {
		t.Errorf("the node is %s", got)
	}
}

func accounts(t *testing.T, g *grid) {
	ctx := context.Background()
	made, err := g.Bootstrap(ctx, offpeak.Account{ID: "acct_x", Name: "x"}, offpeak.Member{ID: "m", Role: offpeak.RoleAdmin}, g.token("x", offpeak.RoleAdmin))
	if err != nil || made {
		t.Errorf("Bootstrap again = %v, %v; want false", made, err)
	}
	_, err = g.CreateAccount(ctx, g.op(), offpeak.Account{ID: "acct_y", Name: "lab"})
	refused(t, "CreateAccount with a taken name", err, offpeak.ErrConflict)
	_, err = g.Account(ctx, "acct_y")
	refused(t, "Account that was refused", err, offpeak.ErrNotFound)
	b := g.other()
	list, next, err := g.Accounts(ctx, store.Page{Limit: 10})
	if err != nil || len(list) != 2 || next != "" || list[0].ID != b || list[1].ID != g.account {
		t.Errorf("Accounts = %+v, %q, %v", list, next, err)
	}
	q := offpeak.Quota{Storage: 1, Queued: 2, Running: 3}
	if a, err := g.SetQuota(ctx, g.op(), b, q); err != nil || a.Quota != q {
		t.Errorf("SetQuota = %+v, %v", a, err)
	}
	_, err = g.SetQuota(ctx, g.op(), b, offpeak.Quota{Storage: -1})
	refused(t, "SetQuota under nothing", err, offpeak.ErrInvalid)
	_, err = g.SetQuota(ctx, g.op(), "acct_none", q)
	refused(t, "SetQuota of no account", err, offpeak.ErrNotFound)
	tok := g.token("tok_m", offpeak.RoleViewer)
	m, err := g.AddMember(ctx, g.op(), offpeak.Member{ID: "member_2", Account: b, Name: "eve", Role: offpeak.RoleViewer}, tok)
	if err != nil || m.CreatedAt.IsZero() {
		t.Errorf("AddMember = %+v, %v", m, err)
	}
	if ms, err := g.Members(ctx, b); err != nil || len(ms) != 1 || ms[0] != m {
		t.Errorf("Members = %+v, %v", ms, err)
	}
	got, err := g.Token(ctx, tok.ID)
	if err != nil || got.Account != b || got.Member != m.ID || got.RevokedAt != nil || string(got.SecretHash) != string(tok.SecretHash) {
		t.Errorf("Token = %+v, %v", got, err)
	}
	if err := g.TouchTokens(ctx, map[offpeak.TokenID]time.Time{tok.ID: g.clock.Now()}); err != nil {
		t.Fatal(err)
	}
	refused(t, "RemoveMember of the last admin", g.RemoveMember(ctx, g.op(), g.account, "member_1"), offpeak.ErrConflict)
	refused(t, "RemoveMember of another account", g.RemoveMember(ctx, g.op(), g.account, m.ID), offpeak.ErrNotFound)
	if err := g.RemoveMember(ctx, g.op(), b, m.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := g.Token(ctx, tok.ID); err != nil || got.RevokedAt == nil || got.LastUsed == nil {
		t.Errorf("the token of a removed member = %+v, %v", got, err)
	}
	refused(t, "RevokeToken of another account", g.RevokeToken(ctx, g.op(), b, "tok_admin"), offpeak.ErrNotFound)
	_, err = g.Token(ctx, "none")
	refused(t, "Token of no id", err, offpeak.ErrNotFound)
	bad := g.token("tok_plain", offpeak.RoleViewer)
	bad.SecretHash = []byte("secret")
	if _, err := g.CreateToken(ctx, g.op(), bad); err == nil {
		t.Error("a token was stored with something else than a SHA-256")
	}
}

// operations asks every verb with an operation id twice, and many at once.
func operations(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	j := g.submit(spec())
	for _, c := range []struct {
		name string
		do   func(op store.Op, i int) (any, error)
	}{
		{"Cancel", func(op store.Op, _ int) (any, error) { return g.Cancel(ctx, op, g.account, j.ID, "") }},
		{"CreateAccount", func(op store.Op, i int) (any, error) {
			return g.CreateAccount(ctx, op, offpeak.Account{ID: offpeak.AccountID(fmt.Sprintf("acct_p%d", i)), Name: fmt.Sprintf("p%d", i)})
		}},
		{"SetQuota", func(op store.Op, i int) (any, error) {
			return g.SetQuota(ctx, op, g.account, offpeak.Quota{Queued: 100 + i})
		}},
		{"AddMember", func(op store.Op, i int) (any, error) {
			return g.AddMember(ctx, op, offpeak.Member{ID: offpeak.MemberID(fmt.Sprintf("mm%d", i)), Account: g.account, Role: offpeak.RoleAdmin}, g.token(offpeak.TokenID(fmt.Sprintf("mt%d", i)), offpeak.RoleViewer))
		}},
		{"CreateToken", func(op store.Op, i int) (any, error) {
			return g.CreateToken(ctx, op, g.token(offpeak.TokenID(fmt.Sprintf("ct%d", i)), offpeak.RoleViewer))
		}},
		{"SetIntent", func(op store.Op, _ int) (any, error) {
			n, _, err := g.SetIntent(ctx, op, g.account, n.ID, offpeak.NodeClosed, false)
			return n, err
		}},
		{"Trust", func(op store.Op, _ int) (any, error) { return g.Trust(ctx, op, g.account, n.ID) }},
		{"RevokeToken", func(op store.Op, _ int) (any, error) { return nil, g.RevokeToken(ctx, op, g.account, "tok_admin") }},
		{"RemoveMember", func(op store.Op, _ int) (any, error) { return nil, g.RemoveMember(ctx, op, g.account, "member_1") }},
		{"RemoveNode", func(op store.Op, _ int) (any, error) { return g.RemoveNode(ctx, op, g.account, n.ID) }},
	} {
		op := g.op()
		answers := make([]string, 20)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() {
				v, err := c.do(op, i)
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
				b, err := json.Marshal(v)
				if err != nil {
					t.Error(err)
				}
				answers[i] = string(b)
			})
		}
		wg.Wait()
		for _, a := range answers {
			if a != answers[0] {
				t.Errorf("%s with one operation id answered %s and %s", c.name, answers[0], a)
				break
			}
		}
		op.Digest[0] ^= 1
		_, err := c.do(op, 99)
		refused(t, c.name+" with the id of another request", err, offpeak.ErrOperationConflict)
	}
}

func otherAccounts(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	other := g.other()
	for _, c := range []struct {
		what string
		err  func() error
	}{
		{"Job", func() error { _, err := g.Job(ctx, other, l.Job); return err }},
		{"Cancel", func() error { _, err := g.Cancel(ctx, g.op(), other, l.Job, ""); return err }},
		{"Attempts", func() error { _, err := g.Attempts(ctx, other, l.Job); return err }},
		{"Checkpoints", func() error { _, err := g.Checkpoints(ctx, other, l.Job); return err }},
		{"Node", func() error { _, err := g.Node(ctx, other, n.ID); return err }},
		{"RemoveNode", func() error { _, err := g.RemoveNode(ctx, g.op(), other, n.ID); return err }},
		{"SetIntent", func() error {
			_, _, err := g.SetIntent(ctx, g.op(), other, n.ID, offpeak.NodeClosed, false)
			return err
		}},
		{"LogSegments", func() error { _, err := g.LogSegments(ctx, other, l.ID, 0, 1); return err }},
		{"LogAt", func() error { _, err := g.LogAt(ctx, other, l.ID, "stdout", 0, 1); return err }},
		{"Submit as a retry", func() error {
			_, err := g.Submit(ctx, g.op(), store.NewJob{ID: "job_r", Account: other, Spec: spec(), RetryOf: l.Job})
			return err
		}},
	} {
		refused(t, c.what+" of another account", c.err(), offpeak.ErrNotFound)
	}
	if nodes, _, err := g.Nodes(ctx, other, store.Page{Limit: 10}); err != nil || len(nodes) != 0 {
		t.Errorf("Nodes of another account = %v, %v", nodes, err)
	}
	if counts, err := g.CountJobs(ctx, other); err != nil || len(counts) != 0 {
		t.Errorf("CountJobs of another account = %v, %v", counts, err)
	}
	ev, err := g.Events(ctx, other, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ev {
		if e.Account != other {
			t.Errorf("another account sees event %+v", e)
		}
	}
}

func blobs(t *testing.T, g *grid) {
	ctx := context.Background()
	tree, chunk := g.tree(g.account, "in")
	other := g.other()
	refused(t, "HasBlob of another account", g.HasBlob(ctx, other, tree), offpeak.ErrNotFound)
	if err := g.HasBlob(ctx, g.account, tree); err != nil {
		t.Errorf("HasBlob: %v", err)
	}
	none := hashOf("none")
	refused(t, "AddTree over a missing chunk", g.AddTree(ctx, g.account, tree, []offpeak.Hash{none}), offpeak.ErrBlobMissing)
	if missing, err := g.MissingBlobs(ctx, g.account, []offpeak.Hash{none, tree, hashOf("n2"), chunk}); err != nil || !equal(missing, []offpeak.Hash{none, hashOf("n2")}) {
		t.Errorf("MissingBlobs = %v, %v", missing, err)
	}
	sp := spec()
	sp.Task.Input = tree
	n, l := g.leased(sp)
	for _, h := range []offpeak.Hash{tree, chunk} {
		if err := g.LeaseReads(ctx, n.ID, l.ID, h); err != nil {
			t.Errorf("LeaseReads of the input: %v", err)
		}
	}
	if err := g.AddBlob(ctx, g.account, none, 3); err != nil {
		t.Fatal(err)
	}
	refused(t, "LeaseReads of another blob", g.LeaseReads(ctx, n.ID, l.ID, none), offpeak.ErrNotFound)
	refused(t, "LeaseReads under no lease", g.LeaseReads(ctx, n.ID, "lease_none", tree), offpeak.ErrStaleLease)
	cp, cpChunk := g.tree(g.account, "cp")
	if _, err := g.AddCheckpoint(ctx, store.NewCheckpoint{Node: n.ID, Lease: l.ID, Attempt: 1, Name: "c", Tree: cp}); err != nil {
		t.Fatal(err)
	}
	if err := g.LeaseReads(ctx, n.ID, l.ID, cpChunk); err != nil {
		t.Errorf("LeaseReads of a checkpoint: %v", err)
	}
	unused := func() []store.BlobRef {
		t.Helper()
		refs, err := g.Unused(ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		return refs
	}
	if refs := unused(); len(refs) != 0 {
		t.Errorf("Unused lists protected blobs: %v", refs)
	}
	g.clock.Advance(25 * time.Hour)
	ref := store.BlobRef{Account: g.account, Hash: none}
	if refs := unused(); !equal(refs, []store.BlobRef{ref}) {
		t.Errorf("Unused = %v, want %v", refs, ref)
	}
	// Asking about it protects it again.
	if _, err := g.MissingBlobs(ctx, g.account, []offpeak.Hash{none}); err != nil {
		t.Fatal(err)
	}
	if dropped, _, err := g.DropBlob(ctx, ref); err != nil || dropped {
		t.Errorf("DropBlob of a protected blob = %v, %v", dropped, err)
	}
	if err := g.AddBlob(ctx, other, none, 3); err != nil {
		t.Fatal(err)
	}
	g.clock.Advance(25 * time.Hour)
	if dropped, last, err := g.DropBlob(ctx, ref); err != nil || !dropped || last {
		t.Errorf("DropBlob = %v, %v, %v; want dropped and not the last", dropped, last, err)
	}
	if dropped, last, err := g.DropBlob(ctx, store.BlobRef{Account: other, Hash: none}); err != nil || !dropped || !last {
		t.Errorf("DropBlob of the last = %v, %v, %v", dropped, last, err)
	}
	if dropped, _, err := g.DropBlob(ctx, store.BlobRef{Account: g.account, Hash: chunk}); err != nil || dropped {
		t.Errorf("DropBlob of a used chunk = %v, %v", dropped, err)
	}
	// Once the job is gone its trees go, and then their chunks.
	if _, err := g.Expire(ctx, g.clock.Now(), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Cancel(ctx, g.op(), "", l.Job, ""); err != nil {
		t.Fatal(err)
	}
	g.clock.Advance(time.Hour)
	if _, err := g.Prune(ctx, store.Retention{Jobs: time.Minute}, 100); err != nil {
		t.Fatal(err)
	}
	for round := 0; ; round++ {
		refs := unused()
		if len(refs) == 0 {
			break
		}
		if round > 3 {
			t.Fatalf("collection does not end: %v", refs)
		}
		for _, r := range refs {
			if _, _, err := g.DropBlob(ctx, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, h := range []offpeak.Hash{tree, chunk, cp, cpChunk} {
		refused(t, "HasBlob after collection", g.HasBlob(ctx, g.account, h), offpeak.ErrNotFound)
	}
	if a, err := g.Account(ctx, g.account); err != nil || a.Stored != 0 {
		t.Errorf("after collection %d bytes are stored, %v", a.Stored, err)
	}
}
