package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

func expire(t *testing.T, g *grid) {
	ctx := context.Background()
	_, l := g.leased(spec())
	n := g.enrol(0)
	offer := g.claim(g.submit(spec()).ID, 1, n.ID)
	if out, err := g.Expire(ctx, g.clock.Now(), 10); err != nil || len(out) != 0 {
		t.Errorf("Expire before anything is due = %v, %v", out, err)
	}
	g.clock.Advance(15 * time.Second)
	out, err := g.Expire(ctx, g.clock.Now(), 10)
	if err != nil || len(out) != 1 || out[0].Lease.ID != offer.ID || out[0].Lease.Reason != offpeak.EndOfferLapsed || out[0].Queued == nil || !out[0].Queued.NotBefore.IsZero() || !equal(out[0].Queued.Avoid, []offpeak.NodeID{n.ID}) || len(out[0].Queued.Failed) != 1 {
		t.Fatalf("Expire of an offer = %+v, %v", out, err)
	}
	g.clock.Advance(timeout - 15*time.Second)
	out, err = g.Expire(ctx, g.clock.Now(), 10)
	if err != nil || len(out) != 1 || out[0].Lease.ID != l.ID || out[0].Lease.Reason != offpeak.EndNodeLost || out[0].Job.State != offpeak.JobQueued || out[0].Job.Counts.Interruption != 1 || out[0].Node != l.Node {
		t.Fatalf("Expire of a lease = %+v, %v", out, err)
	}
	expireAsOf(t, g)
	// A cancelling job whose node is lost is cancelled.
	_, l = g.leased(spec())
	if _, err := g.Cancel(ctx, g.op(), "", l.Job, ""); err != nil {
		t.Fatal(err)
	}
	g.clock.Advance(timeout)
	if out, err := g.Expire(ctx, g.clock.Now(), 10); err != nil || len(out) != 1 || out[0].Job.State != offpeak.JobCancelled {
		t.Errorf("Expire of a cancelling job = %+v, %v", out, err)
	}
	// The limit holds, and monitors may race.
	for range 6 {
		g.leased(spec())
	}
	g.clock.Advance(timeout)
	if out, err := g.Expire(ctx, g.clock.Now(), 2); err != nil || len(out) != 2 {
		t.Errorf("Expire(2) = %d, %v", len(out), err)
	}
	total := make(chan int, 4)
	for range 4 {
		go func() {
			out, err := g.Expire(ctx, g.clock.Now(), 10)
			if err != nil {
				t.Error(err)
			}
			total <- len(out)
		}()
	}
	if n := <-total + <-total + <-total + <-total; n != 4 {
		t.Errorf("four monitors expired %d leases, want 4", n)
	}
}

// expireAsOf asks that a caller who stood still ends nothing that ran out
// meanwhile.
func expireAsOf(t *testing.T, g *grid) {
	ctx := context.Background()
	_, l := g.leased(spec())
	expiry := g.lease(l.Job, l.ID).ExpiresAt
	listened := g.clock.Now()
	g.clock.Advance(timeout + time.Second)
	// Refused or merely without result: nothing had run out by then.
	if out, err := g.Expire(ctx, listened, 10); len(out) != 0 || err != nil && !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("Expire as of before a stall = %v, %v", out, err)
	}
	if out, err := g.Expire(ctx, expiry.Add(-time.Microsecond), 10); err != nil || len(out) != 0 {
		t.Errorf("Expire as of just before the expiry = %v, %v", out, err)
	}
	g.clock.Advance(store.ExpireWithin)
	if out, err := g.Expire(ctx, expiry, 10); !errors.Is(err, offpeak.ErrConflict) || len(out) != 0 {
		t.Errorf("Expire as of too long ago = %v, %v, want conflict", out, err)
	}
	if out, err := g.Expire(ctx, g.clock.Now().Add(time.Hour), 10); err != nil || len(out) != 1 || out[0].Lease.ID != l.ID {
		t.Errorf("Expire as of a moment to come = %v, %v", out, err)
	}
	_, l = g.leased(spec())
	expiry = g.lease(l.Job, l.ID).ExpiresAt
	if out, err := g.Expire(ctx, expiry, 10); err != nil || len(out) != 0 {
		t.Errorf("Expire as of an expiry to come = %v, %v", out, err)
	}
	if _, err := g.Cancel(ctx, g.op(), "", l.Job, ""); err != nil {
		t.Fatal(err)
	}
	g.report(func() store.Report { r := g.reportOf(l, store.ReportEnded); r.Reason = offpeak.EndCancelled; return r }())
}

func amnesty(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	g.clock.Advance(3 * timeout)
	if err := g.Amnesty(ctx, timeout); err != nil {
		t.Fatal(err)
	}
	if out, err := g.Expire(ctx, g.clock.Now(), 10); err != nil || len(out) != 0 {
		t.Errorf("Expire after an amnesty = %v, %v", out, err)
	}
	if got := g.lease(l.Job, l.ID).ExpiresAt; !got.Equal(g.clock.Now().Add(timeout)) {
		t.Errorf("after an amnesty the lease expires %v", got)
	}
	if moved, err := g.SetLiveness(ctx, []store.LivenessChange{{Node: n.ID, To: offpeak.NodeOffline, HeardBefore: g.clock.Now()}}); err != nil || len(moved) != 0 {
		t.Errorf("SetLiveness after an amnesty = %v, %v", moved, err)
	}
	if err := g.Amnesty(ctx, time.Second); err != nil {
		t.Fatal(err)
	}
	if got := g.lease(l.Job, l.ID).ExpiresAt; !got.Equal(g.clock.Now().Add(timeout)) {
		t.Errorf("an amnesty shortened the lease to %v", got)
	}
}
