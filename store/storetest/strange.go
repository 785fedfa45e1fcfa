package storetest

import (
	"context"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// strangeIDs: an id that is no text is one that nothing has, alone and in a list.
func strangeIDs(t *testing.T, g *grid) {
	ctx := context.Background()
	_, l := g.leased(spec())
	for _, id := range []string{"\xff", "a\x00b", "\xed\xa0\x80"} {
		for what, ask := range map[string]func() error{
			"Job":      func() error { _, err := g.Job(ctx, "", offpeak.JobID(id)); return err },
			"Attempts": func() error { _, err := g.Attempts(ctx, "", offpeak.JobID(id)); return err },
			"Node":     func() error { _, err := g.Node(ctx, "", offpeak.NodeID(id)); return err },
			"Cancel":   func() error { _, err := g.Cancel(ctx, g.op(), "", offpeak.JobID(id), ""); return err },
			"Token":    func() error { _, err := g.Token(ctx, offpeak.TokenID(id)); return err },
			"HasBlob":  func() error { return g.HasBlob(ctx, g.account, offpeak.Hash(id)) },
			"Submit as a retry": func() error {
				_, err := g.Submit(ctx, g.op(), store.NewJob{ID: "job_strange", Account: g.account, Spec: spec(), RetryOf: offpeak.JobID(id)})
				return err
			},
		} {
			refused(t, what+" of a strange id", ask(), offpeak.ErrNotFound)
		}
		known := hashOf("known")
		if err := g.AddBlob(ctx, g.account, known, 1); err != nil {
			t.Fatal(err)
		}
		if missing, err := g.MissingBlobs(ctx, g.account, []offpeak.Hash{offpeak.Hash(id), known}); err != nil || len(missing) != 1 || missing[0] != offpeak.Hash(id) {
			t.Errorf("MissingBlobs of a strange hash and a known one = %q, %v", missing, err)
		}
		if list, err := g.Waiting(ctx, []offpeak.JobID{offpeak.JobID(id), l.Job}); err != nil || len(list) != 0 {
			t.Errorf("Waiting = %v, %v", list, err)
		}
		if heard, err := g.LastHeard(ctx, []offpeak.NodeID{offpeak.NodeID(id), l.Node}); err != nil || len(heard) != 1 {
			t.Errorf("LastHeard of a strange node and a known one = %v, %v", heard, err)
		}
		if err := g.Touch(ctx, map[offpeak.NodeID]time.Time{offpeak.NodeID(id): g.clock.Now(), l.Node: g.clock.Now()}); err != nil {
			t.Errorf("Touch: %v", err)
		}
		out, err := g.Beat(ctx, []store.Beat{{Node: offpeak.NodeID(id), Incarnation: inc, Seq: g.seq(l.Node), Grant: timeout}, {Node: l.Node, Incarnation: inc, Seq: g.seq(l.Node), Grant: timeout, Held: []store.Held{{Lease: l.ID}}}})
		if err != nil || out[1].Err != nil {
			t.Fatalf("Beat = %+v, %v", out, err)
		}
		refused(t, "Beat of a strange node", out[0].Err, offpeak.ErrUnknownNode)
		r := g.reportOf(l, store.ReportRunning)
		r.Lease = offpeak.LeaseID(id)
		_, err = g.Report(ctx, r)
		refused(t, "Report of a strange lease", err, offpeak.ErrStaleLease)
	}
}

// badAmongGood: a heartbeat that can't be taken is refused by itself.
func badAmongGood(t *testing.T, g *grid) {
	var beats []store.Beat
	for range 7 {
		n := g.enrol(0)
		beats = append(beats, store.Beat{Node: n.ID, Incarnation: inc, Seq: g.seq(n.ID), Availability: offpeak.NodeInUse, Grant: timeout})
	}
	beats[2].Availability, beats[5].Availability = "asleep", "asleep"
	out, err := g.Beat(context.Background(), beats)
	if err != nil || len(out) != len(beats) {
		t.Fatalf("Beat = %d results, %v", len(out), err)
	}
	for i, b := range beats {
		bad := i == 2 || i == 5
		if (out[i].Err != nil) != bad {
			t.Errorf("heartbeat %d: %v", i, out[i].Err)
		}
		if in := g.node(b.Node).Availability == offpeak.NodeInUse; in == bad {
			t.Errorf("node %d is %s", i, g.node(b.Node).Availability)
		}
	}
}
