package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// What a hub that starts asks of the past: how leases ended, and when nodes were
// available, of which being offline is the opposite.
func past(t *testing.T, g *grid) {
	ctx := context.Background()
	began := g.clock.Now()
	a, b := g.enrol(0), g.enrol(0)
	end := func(n offpeak.NodeID, reason offpeak.EndReason) offpeak.Lease {
		l := g.claim(g.submit(spec()).ID, 1, n)
		g.accept(l)
		return *g.ended(l, reason, 0).Lease
	}
	end(a.ID, offpeak.EndCompleted)
	g.clock.Advance(48 * time.Hour)
	g.beat(a.ID)
	g.beat(b.ID)
	middle := g.clock.Now()
	first := end(a.ID, offpeak.EndCompleted)
	end(a.ID, offpeak.EndCompleted)
	newest := end(a.ID, offpeak.EndNodeError)
	end(b.ID, offpeak.EndExitNonzero)
	lives := g.claim(g.submit(spec()).ID, 1, b.ID)
	count := func(since time.Time) map[offpeak.NodeID]map[offpeak.EndReason]int64 {
		list, err := g.Ends(ctx, since)
		if err != nil {
			t.Fatal(err)
		}
		out := map[offpeak.NodeID]map[offpeak.EndReason]int64{a.ID: {}, b.ID: {}}
		for _, e := range list {
			if out[e.Node][e.Reason] += e.Leases; e.At.Before(since) || e.At.After(e.Last) || e.Last.After(*newest.EndedAt) && e.Node == a.ID {
				t.Errorf("Ends = %+v", e)
			}
		}
		return out
	}
	for since, kept := range map[time.Time]int64{began.Add(-time.Hour): 3, middle.Add(-time.Hour): 2} {
		got := count(since)
		if got[a.ID][offpeak.EndCompleted] != kept || got[a.ID][offpeak.EndNodeError] != 1 || got[b.ID][offpeak.EndExitNonzero] != 1 || len(got) != 2 {
			t.Errorf("Ends since %s = %+v, want %d completed; the second ended at %s", since, got, kept, first.EndedAt)
		}
	}

	g.accept(lives)
	g.ended(lives, offpeak.EndCompleted, 0)

	say := func(n offpeak.NodeID, av offpeak.Availability) time.Time {
		g.clock.Advance(time.Hour)
		why := offpeak.EndReason("")
		if av == offpeak.NodeInUse {
			why = offpeak.EndOwnerReturned
		}
		g.beats(store.Beat{Node: n, Incarnation: inc, Seq: g.seq(n), Availability: av, Why: why, Grant: timeout})
		return g.clock.Now()
	}
	from := g.clock.Now()
	say(b.ID, offpeak.NodeInUse)
	x1 := say(b.ID, offpeak.NodeAvailable)
	x2 := say(b.ID, offpeak.NodeInUse)
	x3 := say(b.ID, offpeak.NodeAvailable)
	g.clock.Advance(time.Hour)
	if moved, err := g.SetLiveness(ctx, []store.LivenessChange{{Node: b.ID, To: offpeak.NodeLate, HeardBefore: g.clock.Now()}}); err != nil || len(moved) != 1 {
		t.Fatalf("SetLiveness = %v, %v", moved, err)
	}
	if moved, err := g.SetLiveness(ctx, []store.LivenessChange{{Node: b.ID, To: offpeak.NodeOffline, HeardBefore: g.clock.Now()}}); err != nil || len(moved) != 1 {
		t.Fatalf("SetLiveness = %v, %v", moved, err)
	}
	x4 := g.clock.Now()
	x5 := say(b.ID, offpeak.NodeAvailable)
	say(b.ID, offpeak.NodeAvailable) // nothing new
	var got []store.Stay
	for y, err := range g.Stays(ctx, from) {
		if err != nil {
			t.Fatal(err)
		}
		if y.Node == b.ID {
			got = append(got, y)
		}
	}
	// The engines' clocks may go on a little between two verbs.
	near := func(a, b time.Time) bool { return a.IsZero() == b.IsZero() && a.Sub(b).Abs() < time.Minute }
	want := []store.Stay{{Node: b.ID, From: x1, To: x2}, {Node: b.ID, From: x3, To: x4}, {Node: b.ID, From: x5}}
	if !slices.EqualFunc(got, want, func(a, b store.Stay) bool { return near(a.From, b.From) && near(a.To, b.To) }) {
		t.Errorf("Stays = %+v, want %+v", got, want)
	}
	for y, err := range g.Stays(ctx, from) {
		if err != nil || y.Node != "" {
			break // nobody need hear all of it
		}
	}
}
