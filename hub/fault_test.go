package hub_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/store"
	"offpeak/wire"
)

// flaky is a store whose answers get lost and which can be slow.
type flaky struct {
	store.Store
	loseSubmit, loseClaim, loseBeat atomic.Bool
	slowBeat                        atomic.Int64
	// stall is called on the way into each Expire, on the monitor's goroutine.
	stall atomic.Pointer[func()]
}

func (f *flaky) Expire(ctx context.Context, asOf time.Time, limit int) ([]store.Change, error) {
	if stall := f.stall.Load(); stall != nil {
		(*stall)()
	}
	return f.Store.Expire(ctx, asOf, limit)
}

func (f *flaky) Submit(ctx context.Context, op store.Op, job store.NewJob) (offpeak.Job, error) {
	j, err := f.Store.Submit(ctx, op, job)
	if err == nil && f.loseSubmit.Load() {
		return offpeak.Job{}, offpeak.ErrUnavailable
	}
	return j, err
}

func (f *flaky) Claim(ctx context.Context, claims []store.Claim) ([]store.Claimed, error) {
	c, err := f.Store.Claim(ctx, claims)
	if err == nil && f.loseClaim.Swap(false) {
		return nil, offpeak.ErrUnavailable
	}
	return c, err
}

func (f *flaky) Beat(ctx context.Context, beats []store.Beat) ([]store.BeatResult, error) {
	time.Sleep(time.Duration(f.slowBeat.Load()))
	if f.loseBeat.Load() {
		return nil, offpeak.ErrUnavailable
	}
	return f.Store.Beat(ctx, beats)
}

// withFlaky runs a grid with faults between the hub and its store, and a clock
// that the test can push.
func withFlaky(t *testing.T, test func(t *testing.T, g *grid, f *flaky, push *atomic.Int64)) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{}
		var push atomic.Int64
		g := newGridWith(t, hub.Config{}, func(s store.Store) store.Store { f.Store = s; return f },
			func() time.Time { return time.Now().Add(time.Duration(push.Load())) })
		test(t, g, f, &push)
		g.sound()
		g.stop()
	})
}

func TestLostAnswersOfTheStoreLoseNoJob(t *testing.T) {
	withFlaky(t, func(t *testing.T, g *grid, f *flaky, _ *atomic.Int64) {
		f.loseSubmit.Store(true)
		if _, err := g.hub.Submit(t.Context(), g.op(), g.account, small()); err == nil {
			t.Fatal("the lost answer arrived")
		}
		f.loseSubmit.Store(false)
		a := g.join("one")
		a.keep(30 * time.Second)
		d := a.offered() // found by the audit
		a.accept(d)
		a.run(d)
		a.end(d, offpeak.EndCompleted)
		// A claim whose answer is lost reaches the node with its next beat.
		f.loseClaim.Store(true)
		id := g.submit(small())
		synctest.Wait()
		var offer wire.Desired
		for _, l := range a.beat().Leases {
			offer = l
		}
		if offer.Job != id || offer.Work == nil {
			t.Fatalf("the beat was answered with %+v", offer)
		}
		a.accept(offer)
		a.run(offer)
		time.Sleep(3 * time.Second)
		a.end(offer, offpeak.EndCompleted)
		if j := g.job(id); j.State != offpeak.JobSucceeded || j.Attempt != 1 {
			t.Fatalf("job is %s after attempt %d", j.State, j.Attempt)
		}
	})
}

// While the store does not take heartbeats, nobody's silence counts.
func TestStoreThatIsAwayExpiresNobody(t *testing.T) {
	withFlaky(t, func(t *testing.T, g *grid, f *flaky, _ *atomic.Int64) {
		a := g.join("one")
		id := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		f.loseBeat.Store(true)
		for range 40 { // 200 s
			time.Sleep(5 * time.Second)
			if _, err := g.hub.Heartbeat(t.Context(), a.id, a.heartbeat(d.Lease)); err == nil {
				t.Fatal("acknowledged without a commit")
			}
		}
		f.loseBeat.Store(false)
		if j := g.job(id); j.State != offpeak.JobRunning {
			t.Fatalf("job is %s (%s)", j.State, j.Reason)
		}
	})
}

// A hub that was stopped for longer than a timeout (suspended, SIGSTOP) finds
// every lease expired when it goes on, and must not believe it.
func TestHubThatStoodStillGrantsAFullTimeout(t *testing.T) {
	withFlaky(t, func(t *testing.T, g *grid, _ *flaky, push *atomic.Int64) {
		a := g.join("one")
		a.keep(10 * time.Second)
		before := g.metric("offpeak_amnesties_total")
		push.Add(int64(10 * time.Minute))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := g.node(a.id); n.Liveness != offpeak.NodeOnline {
			t.Fatalf("the node is %s", n.Liveness)
		}
		if now := g.metric("offpeak_amnesties_total"); now <= before {
			t.Fatal("no amnesty was granted")
		}
		time.Sleep(65 * time.Second)
		synctest.Wait()
		if n := g.node(a.id); n.Liveness != offpeak.NodeOffline {
			t.Fatalf("after a full timeout the silent node is %s", n.Liveness)
		}
	})
}

// A process that is stopped between the monitor's look at the clock and the
// store's transaction finds leases expired that nobody could have renewed.
func TestStallOnTheWayIntoExpireLosesNoLease(t *testing.T) {
	withFlaky(t, func(t *testing.T, g *grid, f *flaky, push *atomic.Int64) {
		a := g.join("one")
		id := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		a.keep(10*time.Second, d.Lease)
		before := g.metric("offpeak_amnesties_total")
		stop := func() {
			f.stall.Store(nil)
			push.Add(int64(10 * time.Minute))
		}
		f.stall.Store(&stop)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if f.stall.Load() != nil {
			t.Fatal("the monitor never expired anything")
		}
		if j := g.job(id); j.State != offpeak.JobRunning || j.Attempt != 1 {
			t.Fatalf("after the stall the job is %s (%s)", j.State, j.Reason)
		}
		if n := g.node(a.id); n.Liveness != offpeak.NodeOnline {
			t.Fatalf("after the stall the node is %s", n.Liveness)
		}
		if now := g.metric("offpeak_amnesties_total"); now <= before {
			t.Fatal("no amnesty was granted")
		}
		a.ack = time.Time{} // the agent's clock did not jump
		a.keep(10*time.Second, d.Lease)
		time.Sleep(65 * time.Second)
		synctest.Wait()
		if j := g.job(id); j.State != offpeak.JobQueued || j.Reason != offpeak.EndNodeLost {
			t.Fatalf("after a full timeout of silence the job is %s (%s)", j.State, j.Reason)
		}
	})
}
