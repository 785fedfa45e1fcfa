package storetest

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// events follows the stream while many write, and must see every cursor's event
// once and in order.
func events(t *testing.T, g *grid) {
	ctx := context.Background()
	last, err := g.LastEvent(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 25
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				g.submit(spec())
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var seen []int64
	cursor := last
	for over := false; ; {
		ev, err := g.Events(ctx, g.account, cursor, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range ev {
			if e.Cursor <= cursor || e.Type != "job.queued" || e.Job == "" || e.At.IsZero() {
				t.Fatalf("event %+v after cursor %d", e, cursor)
			}
			cursor = e.Cursor
			seen = append(seen, cursor)
		}
		if over && len(ev) == 0 {
			break
		}
		select {
		case <-done:
			over = true
		default:
		}
	}
	if len(seen) != writers*each {
		t.Errorf("a reader beside writers saw %d events, want %d", len(seen), writers*each)
	}
	if now, err := g.LastEvent(ctx); err != nil || now != cursor {
		t.Errorf("LastEvent = %d, %v; want %d", now, err, cursor)
	}
}

func prune(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	if _, err := g.AppendLog(ctx, n.ID, l.ID, 1, store.LogAppend{Stream: "stdout", Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	op := g.op()
	old, err := g.Submit(ctx, op, store.NewJob{ID: "job_old", Account: g.account, Spec: spec()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Cancel(ctx, g.op(), "", old.ID, ""); err != nil {
		t.Fatal(err)
	}
	g.clock.Advance(time.Hour)
	g.beat(n.ID, store.Held{Lease: l.ID})
	if removed, err := g.Prune(ctx, store.Retention{}, 100); err != nil || removed != 0 {
		t.Errorf("Prune that keeps all = %d, %v", removed, err)
	}
	last, err := g.LastEvent(ctx)
	if err != nil {
		t.Fatal(err)
	}
	keep := store.Retention{Jobs: time.Minute, Logs: time.Minute, Events: time.Minute, Operations: time.Minute}
	if removed, err := g.Prune(ctx, keep, 1); err != nil || removed > 4 || removed == 0 {
		t.Errorf("Prune of one each = %d, %v", removed, err)
	}
	for {
		removed, err := g.Prune(ctx, keep, 100)
		if err != nil {
			t.Fatal(err)
		}
		if removed == 0 {
			break
		}
	}
	_, err = g.Job(ctx, "", old.ID)
	refused(t, "Job that was pruned", err, offpeak.ErrNotFound)
	if segs, err := g.LogSegments(ctx, "", l.ID, 0, 10); err != nil || len(segs) != 1 {
		t.Errorf("the log of a live lease has %d segments, %v", len(segs), err)
	}
	if j := g.job(l.Job); j.State != offpeak.JobLeased {
		t.Errorf("a live job is %s after pruning", j.State)
	}
	_, err = g.Events(ctx, "", 0, 10)
	refused(t, "Events after a pruned cursor", err, offpeak.ErrNotFound)
	if now, err := g.LastEvent(ctx); err != nil || now < last {
		t.Errorf("LastEvent = %d, %v; it was %d before pruning", now, err, last)
	} else if ev, err := g.Events(ctx, "", now, 10); err != nil || len(ev) != 0 {
		t.Errorf("Events from LastEvent = %v, %v", ev, err)
	}
	// The operation was pruned: its id makes a new job.
	if j, err := g.Submit(ctx, op, store.NewJob{ID: "job_new", Account: g.account, Spec: spec()}); err != nil || j.ID != "job_new" {
		t.Errorf("Submit with a pruned operation = %s, %v", j.ID, err)
	}
	g.ended(l, offpeak.EndCompleted, 0)
	g.clock.Advance(time.Hour)
	if _, err := g.Prune(ctx, store.Retention{Logs: time.Minute}, 100); err != nil {
		t.Fatal(err)
	}
	if segs, err := g.LogSegments(ctx, "", l.ID, 0, 10); err != nil || len(segs) != 0 {
		t.Errorf("the log of an ended lease has %d segments after pruning, %v", len(segs), err)
	}
}

func backup(t *testing.T, g *grid) {
	ctx := context.Background()
	g.submit(spec())
	path := filepath.Join(t.TempDir(), "copy")
	if err := g.Backup(ctx, path); err != nil {
		t.Fatal(err)
	}
	if err := g.Backup(ctx, path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Backup over a file that is there = %v, want %v", err, fs.ErrExist)
	}
}

func closed(t *testing.T, g *grid) {
	ctx := context.Background()
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := g.Submit(gone, g.op(), store.NewJob{ID: "job_x", Account: g.account, Spec: spec()}); err == nil {
		t.Error("Submit with a dead context was stored")
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := g.Submit(ctx, g.op(), store.NewJob{ID: "job_x", Account: g.account, Spec: spec()})
	refused(t, "Submit after Close", err, offpeak.ErrUnavailable)
	_, err = g.Job(ctx, "", "job_x")
	refused(t, "Job after Close", err, offpeak.ErrUnavailable)
	_, err = g.Now(ctx)
	refused(t, "Now after Close", err, offpeak.ErrUnavailable)
	for _, err := range g.Queue(ctx) {
		refused(t, "Queue after Close", err, offpeak.ErrUnavailable)
	}
	refused(t, "Backup after Close", g.Backup(ctx, filepath.Join(t.TempDir(), "x")), offpeak.ErrUnavailable)
	if err := g.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
}
