package storetest

import (
	"context"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// collectUses asks, for every way in which a blob can be in use, that a look
// which found it in use does not forget it: it is listed once nothing refers to
// it any more, and protected again once it was asked about.
func collectUses(t *testing.T, g *grid) {
	ctx := context.Background()
	input, inputChunk := g.tree(g.account, "collect-in")
	output, outputChunk := g.tree(g.account, "collect-out")
	cp, cpChunk := g.tree(g.account, "collect-cp")
	log := hashOf("collect-log")
	if err := g.AddBlob(ctx, g.account, log, 3); err != nil {
		t.Fatal(err)
	}
	sp := spec()
	sp.Task.Input = input
	n, l := g.leased(sp)
	if _, err := g.AddCheckpoint(ctx, store.NewCheckpoint{Node: n.ID, Lease: l.ID, Attempt: 1, Name: "c", Tree: cp}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.AppendLog(ctx, n.ID, l.ID, 1, store.LogAppend{Stream: "stdout", Blob: log, Length: 3}); err != nil {
		t.Fatal(err)
	}
	r := g.reportOf(l, store.ReportEnded)
	r.Reason, r.Started, r.Output = offpeak.EndCompleted, true, output
	g.report(r)
	unused := func() map[offpeak.Hash]bool {
		t.Helper()
		refs, err := g.Unused(ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		out := map[offpeak.Hash]bool{}
		for _, r := range refs {
			out[r.Hash] = true
		}
		return out
	}
	g.clock.Advance(25 * time.Hour)
	for range 2 { // the second look comes after they are no candidates
		if got := unused(); len(got) != 0 {
			t.Fatalf("Unused lists what is in use: %v", got)
		}
	}
	if _, err := g.Prune(ctx, store.Retention{Jobs: time.Hour}, 100); err != nil {
		t.Fatal(err)
	}
	got := unused()
	for what, h := range map[string]offpeak.Hash{"input": input, "output": output, "checkpoint": cp, "log": log} {
		if !got[h] {
			t.Errorf("once the job is gone its %s is not unused", what)
		}
	}
	// What was just asked about, or sent again, is safe for a day.
	if missing, err := g.MissingBlobs(ctx, g.account, []offpeak.Hash{log}); err != nil || len(missing) != 0 {
		t.Fatalf("MissingBlobs = %v, %v", missing, err)
	}
	if err := g.AddBlob(ctx, g.account, input, 3); err != nil {
		t.Fatal(err)
	}
	for _, h := range []offpeak.Hash{log, input} {
		if dropped, _, err := g.DropBlob(ctx, store.BlobRef{Account: g.account, Hash: h}); err != nil || dropped {
			t.Errorf("DropBlob of what was just answered or sent = %v, %v", dropped, err)
		}
	}
	g.clock.Advance(24*time.Hour - time.Second)
	if got := unused(); got[log] || got[input] {
		t.Errorf("within a day of it Unused = %v", got)
	}
	g.clock.Advance(time.Second)
	for _, h := range []offpeak.Hash{input, output, cp, log} {
		if dropped, last, err := g.DropBlob(ctx, store.BlobRef{Account: g.account, Hash: h}); err != nil || !dropped || !last {
			t.Errorf("DropBlob a day later = %v, %v, %v", dropped, last, err)
		}
	}
	got = unused()
	for _, h := range []offpeak.Hash{inputChunk, outputChunk, cpChunk} {
		if !got[h] {
			t.Errorf("a chunk of a tree that is gone is not unused: %v", got)
		}
	}
}
