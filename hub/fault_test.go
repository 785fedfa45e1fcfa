package hub_test

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/internal/steady"
	"offpeak/store"
	"offpeak/wire"
)

// flaky is a store whose answers get lost and which can be slow.
type flaky struct {
	store.Store
	loseSubmit, loseClaim, loseBeat, loseReport atomic.Bool
	slowBeat                                    atomic.Int64
	// full says that an amnesty finds no room on the disk.
	full atomic.Bool
	// lateSubmit is how long the answer to a committed submission takes,
	// lateClaim how long claims take to reach the store.
	lateSubmit, lateClaim atomic.Int64
	// stall is called on the way into each Expire, on the monitor's goroutine.
	stall atomic.Pointer[func()]
	// hangUp is called once something was committed, before its answer.
	hangUp atomic.Pointer[context.CancelFunc]
	// readQueue is called once the queue was read, before it is handed over.
	readQueue atomic.Pointer[func()]
}

func (f *flaky) Queue(ctx context.Context) iter.Seq2[store.Queued, error] {
	return func(yield func(store.Queued, error) bool) {
		var rows []store.Queued
		for q, err := range f.Store.Queue(ctx) {
			if err != nil {
				yield(store.Queued{}, err)
				return
			}
			rows = append(rows, q)
		}
		if read := f.readQueue.Swap(nil); read != nil {
			(*read)()
		}
		for _, q := range rows {
			if !yield(q, nil) {
				return
			}
		}
	}
}

// answered is what becomes of a committed write whose caller may have hung up.
func (f *flaky) answered(ctx context.Context) error {
	if hangUp := f.hangUp.Swap(nil); hangUp != nil {
		(*hangUp)()
	}
	return ctx.Err()
}

func (f *flaky) Report(ctx context.Context, r store.Report) (store.Change, error) {
	c, err := f.Store.Report(ctx, r)
	if gone := f.answered(ctx); err == nil && gone != nil {
		return store.Change{}, gone
	}
	if err == nil && f.loseReport.Swap(false) {
		return store.Change{}, offpeak.ErrUnavailable
	}
	return c, err
}

func (f *flaky) Amnesty(ctx context.Context, d time.Duration) error {
	if f.full.Load() {
		return offpeak.ErrStorage
	}
	return f.Store.Amnesty(ctx, d)
}

func (f *flaky) Expire(ctx context.Context, asOf time.Time, limit int) ([]store.Change, error) {
	if stall := f.stall.Load(); stall != nil {
		(*stall)()
	}
	return f.Store.Expire(ctx, asOf, limit)
}

func (f *flaky) Submit(ctx context.Context, op store.Op, job store.NewJob) (offpeak.Job, error) {
	j, err := f.Store.Submit(ctx, op, job)
	time.Sleep(time.Duration(f.lateSubmit.Swap(0)))
	if err == nil && f.loseSubmit.Load() {
		return offpeak.Job{}, offpeak.ErrUnavailable
	}
	if gone := f.answered(ctx); err == nil && gone != nil {
		return offpeak.Job{}, gone
	}
	return j, err
}

func (f *flaky) Claim(ctx context.Context, claims []store.Claim) ([]store.Claimed, error) {
	time.Sleep(time.Duration(f.lateClaim.Swap(0)))
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
		g := newGridWith(t, hub.Config{Workers: 2}, func(s store.Store) store.Store { f.Store = s; return f },
			func() time.Time { return time.Now().Add(time.Duration(push.Load())) })
		test(t, g, f, &push)
		g.sound()
		g.stop()
	})
}

// A machine whose clock is set back by an hour keeps nobody's jobs for an hour.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var back atomic.Int64
		clock := steady.New(
			func() time.Time { return time.Now().Add(-time.Duration(back.Load())) },
			func() time.Duration { return time.Since(start) })
		g := newGridWith(t, hub.Config{}, nil, clock.Now)
		a := g.join("one")
		id := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		a.keep(10*time.Second, d.Lease)
		back.Store(int64(time.Hour))
		// Who speaks is heard, who is silent is not waited for.
		b := g.join("two")
		a.keep(90*time.Second, d.Lease)
		if j := g.job(id); j.State != offpeak.JobRunning || g.node(b.id).Liveness != offpeak.NodeOffline {
			t.Fatalf("job is %s (%s), the silent node is %s", j.State, j.Reason, g.node(b.id).Liveness)
		}
		b.keep(65 * time.Second)
		again := b.offered()
		if again.Job != id || again.Attempt != 2 || g.job(id).Reason != offpeak.EndNodeLost {
			t.Errorf("attempt %d of %s is offered", again.Attempt, again.Job)
		}
		g.sound()
		g.stop()
	})
}

// A hub that starts on a full disk is there, and expires nobody before it could
// grant the amnesty: not those who were silent because it was away.
func TestHubStartsOnAFullDisk(t *testing.T) {
	withFlaky(t, func(t *testing.T, g *grid, f *flaky, _ *atomic.Int64) {
		a := g.join("one")
		id := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		g.stop()
		time.Sleep(10 * time.Minute)
		f.full.Store(true)
		g.start()
		time.Sleep(10 * time.Second)
		if j := g.job(id); j.State != offpeak.JobRunning || j.Attempt != 1 {
			t.Fatalf("before the amnesty the job is %s (%s)", j.State, j.Reason)
		}
		f.full.Store(false)
		time.Sleep(5 * time.Second)
		a.open("one-1")
		a.keep(90*time.Second, d.Lease)
		a.end(d, offpeak.EndCompleted)
		if j := g.job(id); j.State != offpeak.JobSucceeded || j.Attempt != 1 {
			t.Errorf("the job is %s after attempt %d", j.State, j.Attempt)
		}
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

// What was committed is taken into the picture though its caller hung up before
// the answer: a submitted job is offered at once, and what a report freed is free.
func TestCallersThatHangUpLoseNothing(t *testing.T) {
	withFlaky(t, func(t *testing.T, g *grid, f *flaky, _ *atomic.Int64) {
		a := g.join("one")
		hungUp := func() context.Context {
			ctx, hangUp := context.WithCancel(t.Context())
			f.hangUp.Store(&hangUp)
			return ctx
		}
		began := time.Now()
		ctx := hungUp()
		_, _ = g.hub.Submit(ctx, g.op(), g.account, small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		ctx = hungUp()
		a.seq++
		g.hub.Report(ctx, a.id, []wire.Report{{
			Lease: d.Lease, Attempt: d.Attempt, Incarnation: a.inc, Seq: a.seq, Kind: "ended", Reason: offpeak.EndDrained, Started: true,
		}})
		if ctx.Err() == nil {
			t.Fatal("nobody hung up: the test tests nothing")
		}
		// Sent back after a short pause.
		again := a.offered()
		if again.Job != d.Job || again.Attempt != 2 {
			t.Errorf("attempt %d of %s is offered", again.Attempt, again.Job)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("both offers took %s: they were found by the audit only", took)
		}
		a.accept(again)
		a.run(again)
		a.end(again, offpeak.EndCompleted)
	})
}

// While the queue is read again, what was read of a job is old when the job has
// left meanwhile: it is not queued, and claimed, a second time.
func TestQueueReadAgainBringsNothingBack(t *testing.T) {
	// The audit believes that memory and store differ after five seconds.
	const long = 8 * time.Second
	for name, test := range map[string]func(t *testing.T, g *grid, f *flaky, lose func()) (leased int){
		"cancelled while it reads": func(t *testing.T, g *grid, f *flaky, lose func()) int {
			first := g.submit(small())
			lose()
			cancelled := make(chan struct{})
			read := func() {
				defer close(cancelled)
				if _, err := g.hub.Cancel(t.Context(), g.op(), g.account, first); err != nil {
					t.Errorf("cancel: %v", err)
				}
			}
			f.readQueue.Store(&read)
			<-cancelled
			g.join("one")
			g.join("two")
			return 1
		},
		"claimed when it begins": func(_ *testing.T, g *grid, f *flaky, lose func()) int {
			f.lateClaim.Store(int64(long))
			g.submit(small())
			g.join("one")
			g.join("two")
			lose()
			return 2
		},
		"submitted when it begins": func(_ *testing.T, g *grid, f *flaky, _ func()) int {
			g.join("one")
			g.join("two")
			f.lateSubmit.Store(int64(long))
			g.submit(small())
			return 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			withFlaky(t, func(t *testing.T, g *grid, f *flaky, _ *atomic.Int64) {
				lose := func() {
					f.loseSubmit.Store(true)
					if _, err := g.hub.Submit(t.Context(), g.op(), g.account, small()); err == nil {
						t.Fatal("the lost answer arrived")
					}
					f.loseSubmit.Store(false)
				}
				want := test(t, g, f, lose)
				g.eventually("all jobs to be leased", func() bool {
					counts, err := g.store.CountJobs(t.Context(), "")
					must(t, err)
					return counts[offpeak.JobLeased] == want && counts[offpeak.JobQueued] == 0
				})
				time.Sleep(long)
				synctest.Wait()
				if n := g.metric("offpeak_claim_conflicts_total"); n != 0 {
					t.Errorf("%v claims were made for jobs that had their lease", n)
				}
			})
		})
	}
}
