package hub_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"offpeak"
	"offpeak/hub"
	"offpeak/store"
	"offpeak/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs a test on a clock that stands still while anybody works.
func bubble(t *testing.T, cfg hub.Config, test func(t *testing.T, g *grid)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGrid(t, cfg)
		test(t, g)
		g.sound()
		g.stop()
	})
}

func TestJobGoesFromSubmitToSuccess(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		began := time.Now()
		id := g.submit(small())
		d := a.offered()
		if d.Job != id || d.Attempt != 1 || d.Work == nil || d.Offer <= 0 {
			t.Fatalf("offered %+v", d)
		}
		if waited := time.Since(began); waited > 0 {
			t.Fatalf("the offer came after %s, want at once", waited)
		}
		a.accept(d)
		if s := a.beat(d.Lease); len(s.Leases) != 1 || s.Leases[0].State != offpeak.LeasePreparing || s.Leases[0].Work != nil {
			t.Fatalf("the beat was answered with %+v", s.Leases)
		}
		a.run(d)
		if got := g.job(id).State; got != offpeak.JobRunning {
			t.Fatalf("job is %s", got)
		}
		a.keep(3*time.Minute, d.Lease)
		a.end(d, offpeak.EndCompleted)
		j, err := g.hub.WaitJob(t.Context(), g.account, id, time.Minute)
		must(t, err)
		if j.State != offpeak.JobSucceeded || j.Attempt != 1 || *j.ExitCode != 0 {
			t.Fatalf("job is %+v", j)
		}
		if s := a.beat(); len(s.Leases) != 0 {
			t.Fatalf("after the end the node should hold %+v", s.Leases)
		}
	})
}

// I5: the job of a silent node is queued again within its lease's expiry and
// one tick, and never before.
func TestSilentNodeLosesItsJobAtExpiryAndNotBefore(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		id := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		a.keep(time.Minute, d.Lease)
		s := a.beat(d.Lease)
		expiry := time.Now().Add(s.Timeout.Std())
		time.Sleep(time.Until(expiry) - time.Millisecond)
		synctest.Wait()
		if j := g.job(id); j.State != offpeak.JobRunning {
			t.Fatalf("taken back before its expiry: %s", j.State)
		}
		time.Sleep(time.Second + 2*time.Millisecond)
		synctest.Wait()
		if j := g.job(id); j.State != offpeak.JobQueued || j.Reason != offpeak.EndNodeLost {
			t.Fatalf("one tick after expiry it is %s (%s)", j.State, j.Reason)
		}
		if n := g.node(a.id); n.Liveness != offpeak.NodeOffline {
			t.Fatalf("the node is %s", n.Liveness)
		}
		// Another node takes it; the first comes back and is told to drop it.
		b := g.join("two")
		e := b.offered()
		if e.Job != id || e.Attempt != 2 {
			t.Fatalf("the second node was offered %+v", e)
		}
		b.accept(e)
		if s := a.beat(d.Lease); len(s.Leases) != 0 {
			t.Fatalf("the first node should hold %+v", s.Leases)
		}
		if _, err := a.report(d, "ended", func(r *wire.Report) { r.Reason = offpeak.EndCompleted }); !errors.Is(err, offpeak.ErrStaleLease) {
			t.Fatalf("the late result was answered with %v", err)
		}
		b.run(e)
		b.end(e, offpeak.EndCompleted)
		if j := g.job(id); j.State != offpeak.JobSucceeded || j.Attempt != 2 {
			t.Fatalf("job is %s after attempt %d", j.State, j.Attempt)
		}
	})
}

func TestLateNodeKeepsItsLeaseAndGetsNoNewOne(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 2000)
		a.keep(20 * time.Second)
		first := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.beat(d.Lease)
		time.Sleep(17 * time.Second)
		synctest.Wait()
		if n := g.node(a.id); n.Liveness != offpeak.NodeLate {
			t.Fatalf("after 17 s the node is %s", n.Liveness)
		}
		second := g.submit(small())
		synctest.Wait()
		if g.job(first).State != offpeak.JobLeased || g.job(second).State != offpeak.JobQueued {
			t.Fatalf("jobs are %s and %s", g.job(first).State, g.job(second).State)
		}
		a.beat(d.Lease)
		synctest.Wait()
		if g.node(a.id).Liveness != offpeak.NodeOnline || g.job(second).State != offpeak.JobLeased {
			t.Fatalf("after a beat the node is %s, the job %s", g.node(a.id).Liveness, g.job(second).State)
		}
	})
}

// A hub that was away counts only the silence it observes.
func TestRestartGrantsAFullTimeout(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		id := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		a.beat(d.Lease)
		g.stop()
		time.Sleep(3 * time.Minute) // three timeouts
		g.start()
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if j := g.job(id); j.State != offpeak.JobRunning || g.node(a.id).Liveness == offpeak.NodeOffline {
			t.Fatalf("within the amnesty the job is %s, the node %s", j.State, g.node(a.id).Liveness)
		}
		a.beat(d.Lease)
		a.keep(2*time.Minute, d.Lease)
		a.end(d, offpeak.EndCompleted)
		if j := g.job(id); j.State != offpeak.JobSucceeded || j.Attempt != 1 {
			t.Fatalf("job is %s after attempt %d", j.State, j.Attempt)
		}
		// Who stays silent is taken back after the amnesty all the same.
		other := g.submit(small())
		d = a.offered()
		a.accept(d)
		a.run(d)
		g.stop()
		g.start()
		time.Sleep(62 * time.Second)
		synctest.Wait()
		if j := g.job(other); j.State != offpeak.JobQueued {
			t.Fatalf("after the amnesty the silent node's job is %s", j.State)
		}
	})
}

// Beats that arrive but whose answers do not: the agent has frozen the job, so
// the hub must not keep it there for ever.
func TestOneWayLinkDoesNotHoldAJob(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		id := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		a.beat(d.Lease)
		lastAck := a.ack
		for range 40 {
			time.Sleep(5 * time.Second)
			if _, err := g.hub.Heartbeat(t.Context(), a.id, a.heartbeat(d.Lease)); err != nil {
				t.Fatal(err)
			}
			a.ack = lastAck // the answer never came
			synctest.Wait()
			if g.job(id).State == offpeak.JobQueued {
				return
			}
		}
		t.Fatalf("after 200 s of one-way beats the job is %s", g.job(id).State)
	})
}

func TestCancelAtEveryStage(t *testing.T) {
	for _, stage := range []string{"queued", "offered", "preparing", "running", "finishing", "silent"} {
		t.Run(stage, func(t *testing.T) {
			bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
				var a *agent
				var d wire.Desired
				if stage != "queued" {
					a = g.join("one")
				}
				id := g.submit(small())
				cancel := func() offpeak.Job {
					j, err := g.hub.Cancel(t.Context(), g.op(), g.account, id)
					must(t, err)
					return j
				}
				if stage == "queued" {
					if j := cancel(); j.State != offpeak.JobCancelled {
						t.Fatalf("job is %s", j.State)
					}
					a = g.join("one") // nothing is left to be offered
				} else {
					d = a.offered()
				}
				switch stage {
				case "offered":
					if j := cancel(); j.State != offpeak.JobCancelled {
						t.Fatalf("job is %s", j.State)
					}
					if _, err := a.report(d, "accepted", nil); !errors.Is(err, offpeak.ErrStaleLease) {
						t.Fatalf("accepting a cancelled offer: %v", err)
					}
				case "preparing", "running", "finishing", "silent":
					a.accept(d)
					if stage != "preparing" {
						a.run(d)
					}
					if stage == "finishing" {
						_, err := a.report(d, "finishing", nil)
						must(t, err)
					}
					changed, stop := g.hub.Watch(a.id)
					<-changed
					if j := cancel(); j.State != offpeak.JobCancelling {
						t.Fatalf("job is %s", j.State)
					}
					<-changed // told at once
					stop()
					if s, err := g.hub.Desired(t.Context(), a.id); err != nil || len(s.Leases) != 1 || s.Leases[0].Stop != offpeak.EndCancelled {
						t.Fatalf("the node should hold %+v (%v)", s.Leases, err)
					}
					if stage == "silent" {
						time.Sleep(62 * time.Second)
						synctest.Wait()
					} else {
						a.end(d, offpeak.EndCancelled)
					}
				}
				if j := g.job(id); j.State != offpeak.JobCancelled {
					t.Fatalf("job is %s (%s)", j.State, j.Reason)
				}
				// The node is free for the next one.
				if stage != "silent" {
					next := g.submit(small())
					if d := a.offered(); d.Job != next {
						t.Fatalf("offered %s, want %s", d.Job, next)
					}
				}
			})
		})
	}
}

func TestDrain(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 4000)
		g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		n, err := g.hub.SetIntent(t.Context(), g.op(), g.account, a.id, wire.IntentChange{Intent: offpeak.NodeDraining})
		must(t, err)
		if n.Intent != offpeak.NodeDraining {
			t.Fatalf("intent is %s", n.Intent)
		}
		waiting := g.submit(small())
		synctest.Wait()
		if j := g.job(waiting); j.State != offpeak.JobQueued {
			t.Fatalf("a draining node was given a job: %s", j.State)
		}
		e, err := g.hub.Explain(t.Context(), g.account, waiting)
		must(t, err)
		if len(e.Causes) != 1 || e.Causes[0].Code != offpeak.FitDraining {
			t.Fatalf("explained with %+v", e.Causes)
		}
		a.end(d, offpeak.EndCompleted)
		if n := g.node(a.id); n.Intent != offpeak.NodeClosed {
			t.Fatalf("after the last lease the node is %s", n.Intent)
		}
		_, err = g.hub.SetIntent(t.Context(), g.op(), g.account, a.id, wire.IntentChange{Intent: offpeak.NodeOpen})
		must(t, err)
		if d := a.offered(); d.Job != waiting {
			t.Fatalf("an open node was offered %s", d.Job)
		}
	})
}

func TestOfferThatIsNotAcceptedGoesElsewhere(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a, b := g.join("one"), g.join("two")
		id := g.submit(small())
		synctest.Wait()
		first := g.job(id).Node
		silent, other := a, b
		if first == b.id {
			silent, other = b, a
		}
		for range 4 {
			time.Sleep(5 * time.Second)
			silent.beat()
			other.beat()
		}
		synctest.Wait()
		if j := g.job(id); j.Attempt != 2 || j.Node != other.id {
			t.Fatalf("attempt %d on %s", j.Attempt, j.Node)
		}
	})
}

func TestRetryGoesToAnotherNode(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a, b := g.join("one"), g.join("two")
		id := g.submit(small())
		synctest.Wait()
		first, other := a, b
		if g.job(id).Node == b.id {
			first, other = b, a
		}
		d := first.offered()
		first.accept(d)
		first.end(d, offpeak.EndNodeError)
		synctest.Wait()
		if j := g.job(id); j.State != offpeak.JobQueued || j.NotBefore == nil {
			t.Fatalf("job is %s, not before %v", j.State, j.NotBefore)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if j := g.job(id); j.Attempt != 2 || j.Node != other.id {
			t.Fatalf("attempt %d on %s, want another node", j.Attempt, j.Node)
		}
	})
}

func TestPriorityThenFirstSubmitted(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		var want []offpeak.JobID
		low := small()
		low.Priority = -1
		last := g.submit(low)
		for range 3 {
			time.Sleep(time.Millisecond)
			want = append(want, g.submit(small()))
		}
		high := small()
		high.Priority = 5
		want = append([]offpeak.JobID{g.submit(high)}, want...)
		want = append(want, last)
		a := g.join("one")
		var got []offpeak.JobID
		for range want {
			d := a.offered()
			got = append(got, d.Job)
			a.accept(d)
			a.run(d)
			a.end(d, offpeak.EndCompleted)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("ran in the order %v, want %v", got, want)
		}
	})
}

func TestQueueSurvivesARestart(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		ids := []offpeak.JobID{g.submit(small())}
		time.Sleep(time.Millisecond)
		ids = append(ids, g.submit(small()))
		g.stop()
		g.start()
		a := g.join("one")
		for _, id := range ids {
			d := a.offered()
			if d.Job != id {
				t.Fatalf("offered %s, want %s", d.Job, id)
			}
			a.accept(d)
			a.run(d)
			a.end(d, offpeak.EndCompleted)
		}
	})
}

func TestQuotaOfRunningJobsParksUntilOneEnds(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		_, err := g.store.SetQuota(t.Context(), g.op(), g.account, offpeak.Quota{Running: 1})
		must(t, err)
		a := g.joinWith("one", 4000)
		g.submit(small())
		time.Sleep(time.Millisecond) // jobs of one instant have no order
		second := g.submit(small())
		d := a.offered()
		synctest.Wait()
		if j := g.job(second); j.State != offpeak.JobQueued {
			t.Fatalf("beyond the quota the job is %s", j.State)
		}
		a.accept(d)
		a.run(d)
		a.end(d, offpeak.EndCompleted)
		if d := a.offered(); d.Job != second {
			t.Fatalf("offered %s", d.Job)
		}
	})
}

func TestRemovedNodeIsUnknown(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		id := g.submit(small())
		d := a.offered()
		a.accept(d)
		must(t, g.hub.RemoveNode(t.Context(), g.op(), g.account, a.id))
		if _, err := g.hub.Access().Authenticate(t.Context(), a.session); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Fatalf("the removed node's session: %v", err)
		}
		if _, err := g.hub.Heartbeat(t.Context(), a.id, a.heartbeat()); !errors.Is(err, offpeak.ErrUnknownNode) {
			t.Fatalf("the removed node's beat: %v", err)
		}
		if err := a.tryOpen("one-2"); !errors.Is(err, offpeak.ErrUnknownNode) {
			t.Fatalf("the removed node's session: %v", err)
		}
		if j := g.job(id); j.State != offpeak.JobQueued {
			t.Fatalf("its job is %s", j.State)
		}
	})
}

// A copy of a node's key at the same generation collides, whatever it does.
func TestSecondHolderOfAKeyIsRefused(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		old := a.session
		thief := *a
		a.open("one-2")
		if _, err := g.hub.Access().Authenticate(t.Context(), old); !errors.Is(err, offpeak.ErrUnauthenticated) {
			t.Fatalf("the replaced session: %v", err)
		}
		if err := thief.tryOpen("thief-1"); !errors.Is(err, offpeak.ErrIdentityConflict) {
			t.Fatalf("the thief's session: %v", err)
		}
		if _, err := g.hub.Heartbeat(t.Context(), a.id, thief.heartbeat()); !errors.Is(err, offpeak.ErrStaleSession) {
			t.Fatalf("the thief's beat: %v", err)
		}
	})
}

// refusals notes claims that the store refused, and how many for their node.
type refusals struct {
	store.Store
	mu    sync.Mutex // guards what follows
	said  []string
	nodes int
}

func (r *refusals) Claim(ctx context.Context, claims []store.Claim) ([]store.Claimed, error) {
	out, err := r.Store.Claim(ctx, claims)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range out {
		if e := out[i].Err; e != nil {
			r.said = append(r.said, e.Error())
			if strings.Contains(e.Error(), "node "+string(claims[i].Node)) {
				r.nodes++
			}
		}
	}
	return out, err
}

// Many submissions at once against nodes that fit one each: every node holds
// one lease at a time, every job runs once. With the lock in the process no
// claim is ever lost, without it the database refuses the second claim.
func TestTwoLocks(t *testing.T) {
	const nodes = 20
	for off, jobs := range map[bool]int{false: 200, true: 100} {
		t.Run(fmt.Sprintf("process lock off %v", off), func(t *testing.T) {
			refused := &refusals{}
			g := newGridWith(t, hub.Config{NoProcessLock: off, Workers: 2, Interval: time.Minute, Timeout: 5 * time.Minute}, func(s store.Store) store.Store {
				refused.Store = s
				return refused
			}, time.Now)
			var agents sync.WaitGroup
			var mu sync.Mutex
			ran := map[offpeak.JobID]int{}
			all := make([]*agent, nodes)
			for i := range all {
				all[i] = g.join(fmt.Sprintf("node-%02d", i))
			}
			var submits sync.WaitGroup
			start := make(chan struct{})
			for range jobs {
				submits.Go(func() {
					<-start
					if _, err := g.hub.Submit(t.Context(), g.op(), g.account, small()); err != nil {
						t.Error(err)
					}
				})
			}
			quit := make(chan struct{})
			for _, a := range all {
				agents.Go(func() {
					changed, stop := g.hub.Watch(a.id)
					defer stop()
					for {
						select {
						case <-quit:
							return
						case <-changed:
						}
						s, err := g.hub.Desired(t.Context(), a.id)
						if err != nil {
							t.Error(err)
							return
						}
						if len(s.Leases) > 1 {
							t.Errorf("node %s should hold %d leases", a.id, len(s.Leases))
						}
						for _, d := range s.Leases {
							if d.State != offpeak.LeaseOffered {
								continue
							}
							if _, err := a.report(d, "accepted", nil); err != nil {
								t.Error(err)
							}
							if _, err := a.report(d, "ended", func(r *wire.Report) {
								zero := 0
								r.Reason, r.Started, r.ExitCode = offpeak.EndCompleted, true, &zero
							}); err != nil {
								t.Error(err)
							}
							mu.Lock()
							ran[d.Job]++
							mu.Unlock()
						}
					}
				})
			}
			close(start)
			submits.Wait()
			g.eventually("all jobs succeed", func() bool {
				counts, err := g.store.CountJobs(t.Context(), "")
				must(t, err)
				return counts[offpeak.JobSucceeded] == jobs
			})
			close(quit)
			agents.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(ran) != jobs {
				t.Errorf("%d jobs ran, want %d", len(ran), jobs)
			}
			for id, n := range ran {
				if n != 1 {
					t.Errorf("job %s ran %d times", id, n)
				}
			}
			if off && (refused.nodes == 0 || g.metric("offpeak_claim_conflicts_total") == 0) {
				t.Error("without the process lock no claim met a taken node")
			}
			if !off && len(refused.said) != 0 {
				t.Errorf("with the process lock %d claims were refused: %v", len(refused.said), refused.said)
			}
			t.Logf("%d claims refused, %d of them for their node: %v", len(refused.said), refused.nodes, refused.said)
			g.sound()
		})
	}
}
