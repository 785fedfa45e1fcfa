package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// tries has a new attempt end on a node.
func (g *grid) tries(n offpeak.NodeID, reason offpeak.EndReason) store.Change {
	g.Helper()
	g.clock.Advance(time.Second)
	l := g.claim(g.submit(spec()).ID, 1, n)
	g.accept(l)
	g.clock.Advance(time.Second)
	return g.ended(l, reason, 0)
}

// told counts the events of a kind that name a node.
func (g *grid) told(n offpeak.NodeID, kind string) (count int) {
	g.Helper()
	list, err := g.Events(context.Background(), "", 0, 1000)
	if err != nil {
		g.Fatal(err)
	}
	for _, e := range list {
		if e.Type == kind && e.Node == n {
			count++
		}
	}
	return count
}

// What is held against a node is written with the end that decides it, told once, and
// ends with a probe that completes, one that lasts, or a word.
func quarantine(t *testing.T, g *grid) {
	ctx := context.Background()
	n, other := g.enrol(0), g.enrol(0)
	in := func(times int) *offpeak.Quarantine {
		t.Helper()
		q := g.node(n.ID).Quarantine
		if (q != nil) != (times > 0) || q != nil && q.Times != times {
			t.Fatalf("the node's quarantine is %+v, want %d times", q, times)
		}
		return q
	}
	for range 2 {
		if c := g.tries(n.ID, offpeak.EndNodeError); c.Tried || c.Quarantine != nil {
			t.Fatalf("after too few faults: %+v", c.Quarantine)
		}
	}
	in(0)
	long := g.claim(g.submit(spec()).ID, 1, n.ID)
	g.accept(long)
	c := g.tries(n.ID, offpeak.EndNodeDiskFull)
	q := in(1)
	if !c.Tried || c.Quarantine == nil || *c.Quarantine != *q || q.Reason != offpeak.EndNodeDiskFull || !q.Since.Equal(*c.Lease.EndedAt) {
		t.Fatalf("quarantined as %+v, told %+v", q, c.Quarantine)
	}
	if list, _, err := g.Nodes(ctx, "", store.Page{Limit: 100}); err != nil || !slices.ContainsFunc(list, func(l offpeak.Node) bool { return l.ID == n.ID && l.Quarantine != nil && *l.Quarantine == *q }) {
		t.Fatalf("listed as %+v, %v", list, err)
	}
	// What ran there before says nothing any more.
	if c := g.ended(long, offpeak.EndCompleted, 1000); c.Tried {
		t.Fatalf("a lease from before the quarantine made it %+v", c.Quarantine)
	}
	in(1)
	if c := g.tries(n.ID, offpeak.EndNodeError); !c.Tried || c.Quarantine.Times != 2 {
		t.Fatalf("a probe that died: %+v", c)
	}
	if c := g.tries(n.ID, offpeak.EndExitNonzero); c.Tried {
		t.Fatal("a job's own failure says something of the node")
	}
	if e := g.told(n.ID, "node.quarantined"); e != 2 {
		t.Fatalf("%d events tell of it, want 2", e)
	}
	in(2)
	if c := g.tries(n.ID, offpeak.EndCompleted); !c.Tried || c.Quarantine != nil {
		t.Fatalf("a probe that passed: %+v", c)
	}
	in(0)
	if e := g.told(n.ID, "node.trusted"); e != 1 {
		t.Fatalf("%d events tell that it is trusted, want 1", e)
	}
	// A word ends it, also of faults that are too few so far; once.
	g.tries(n.ID, offpeak.EndDeviceLost)
	in(1)
	op := g.op()
	for range 2 {
		if got, err := g.Trust(ctx, op, g.account, n.ID); err != nil || got.Quarantine != nil || got.ID != n.ID || len(got.Key) == 0 {
			t.Fatalf("Trust = %+v, %v", got, err)
		}
	}
	in(0)
	g.tries(n.ID, offpeak.EndNodeError)
	g.tries(n.ID, offpeak.EndNodeError)
	if _, err := g.Trust(ctx, g.op(), "", n.ID); err != nil {
		t.Fatal(err)
	}
	g.tries(n.ID, offpeak.EndNodeError)
	in(0)
	if e := g.told(n.ID, "node.trusted"); e != 3 {
		t.Fatalf("%d events tell that it is trusted, want 3", e)
	}
	_, err := g.Trust(ctx, g.op(), g.account, "node_none")
	refused(t, "Trust of no node", err, offpeak.ErrNotFound)
	_, err = g.Trust(ctx, g.op(), g.other(), n.ID)
	refused(t, "Trust of another account's node", err, offpeak.ErrNotFound)
	// A probe that lasts ends the quarantine that it is of.
	g.tries(n.ID, offpeak.EndDeviceLost)
	first := in(1).Since
	g.tries(n.ID, offpeak.EndNodeError)
	if err := g.Proved(ctx, n.ID, first); err != nil {
		t.Fatal(err)
	}
	if err := g.Proved(ctx, n.ID, in(2).Since); err != nil {
		t.Fatal(err)
	}
	in(0)
	for _, id := range []offpeak.NodeID{n.ID, "node_none"} {
		if err := g.Proved(ctx, id, first); err != nil {
			t.Fatal(err)
		}
	}
	if g.node(other.ID).Quarantine != nil {
		t.Error("another node is quarantined")
	}
}
