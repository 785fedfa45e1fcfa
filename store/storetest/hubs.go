package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// hubs is what one hub needs of the others' work, in any engine.
func hubs(t *testing.T, g *grid) {
	ctx := context.Background()
	a, err := g.Attend(ctx, offpeak.Hub{ID: "hub_1", Addresses: []string{"https://hub.example"}, Blobs: "here"}, time.Minute)
	if err != nil || !a.Leads || a.Others != 0 || len(a.Addresses) != 1 {
		t.Errorf("Attend alone = %+v, %v", a, err)
	}
	if err := g.Tell(ctx, "hub_1 lease_1"); err != nil {
		t.Errorf("Tell: %v", err)
	}
	waiting(t, g)
	overdue(t, g)
	elsewhere := new(store.BlobsElsewhereError)
	if _, err := g.Attend(ctx, offpeak.Hub{ID: "hub_2", Blobs: "there"}, 0); !errors.As(err, &elsewhere) || elsewhere.There != "here" {
		t.Errorf("a hub with blobs elsewhere: %v", err)
	}
	if err := g.MoveBlobs(ctx, "hub_1", "there", "/srv/there"); err != nil {
		t.Errorf("MoveBlobs: %v", err)
	}
	if p, err := g.Place(ctx); err != nil || a.Grid == "" || p != (store.Place{Grid: a.Grid, Blobs: "there", BlobsAt: "/srv/there"}) {
		t.Errorf("Place = %+v, %v; the grid is %s", p, err, a.Grid)
	}
	if again, err := g.Attend(ctx, offpeak.Hub{ID: "hub_2", Blobs: "there"}, 0); err != nil || again.Grid != a.Grid {
		t.Errorf("Attend where the blobs are = %+v, %v", again, err)
	}
	if err := g.Leave(ctx, "hub_2"); err != nil {
		t.Errorf("Leave: %v", err)
	}
	if err := g.Leave(ctx, "hub_1"); err != nil {
		t.Errorf("Leave: %v", err)
	}
}

func waiting(t *testing.T, g *grid) {
	ctx := context.Background()
	queued, _ := g.submit(spec()), g.submit(spec())
	_, l := g.leased(spec())
	got, err := g.Waiting(ctx, []offpeak.JobID{l.Job, queued.ID, "job_none"})
	if err != nil || len(got) != 1 || got[0].Job != queued.ID || got[0].Requirements == nil || got[0].Account != g.account || !got[0].Submitted.Equal(queued.SubmittedAt) {
		t.Errorf("Waiting = %+v, %v; want the one of the named that is queued", got, err)
	}
	if got, err := g.Waiting(ctx, nil); err != nil || len(got) != 0 {
		t.Errorf("Waiting for none = %+v, %v", got, err)
	}
}

func overdue(t *testing.T, g *grid) {
	ctx := context.Background()
	n, _ := g.leased(spec())
	g.leased(spec())
	count := func(wantDue, wantHolding int) {
		t.Helper()
		now := g.clock.Now()
		due, holding, err := g.Overdue(ctx, now, now.Add(timeout/2))
		if err != nil || due != wantDue || holding != wantHolding {
			t.Errorf("Overdue = %d of %d, %v; want %d of %d", due, holding, err, wantDue, wantHolding)
		}
	}
	count(0, 0)
	heard, err := g.LastHeard(ctx, []offpeak.NodeID{n.ID, "node_none"})
	if err != nil || len(heard) != 1 || !heard[n.ID].Equal(g.clock.Now()) {
		t.Errorf("LastHeard = %v, %v; want now", heard, err)
	}
	stand, err := g.Standing(ctx, []offpeak.NodeID{n.ID, "node_none"})
	if err != nil || len(stand) != 1 || stand[n.ID].Liveness != offpeak.NodeOnline || stand[n.ID].Revision != g.node(n.ID).Revision {
		t.Errorf("Standing = %v, %v; want online at revision %d", stand, err, g.node(n.ID).Revision)
	}
	g.clock.Advance(timeout)
	count(3, 3) // with that of waiting
	if _, err := g.Expire(ctx, g.clock.Now(), 10); err != nil {
		t.Fatal(err)
	}
	count(0, 0)
}
