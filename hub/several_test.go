package hub_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/internal/history"
	"offpeak/internal/pgtest"
	"offpeak/store"
	"offpeak/wire"
)

// several are hubs on the database at db, each with a grid of its own to be asked
// by and wrap around its store.
func several(t *testing.T, n int, db string, cfg hub.Config, wrap func(store.Store) store.Store) []*grid {
	t.Helper()
	out := make([]*grid, n)
	for i := range out {
		g := &grid{t: t, cfg: cfg, db: db, wrap: wrap}
		if i > 0 {
			g.account, g.admin = out[0].account, out[0].admin
			g.ops.Store(int64(i) * 1_000_000)
		}
		g.begin()
		out[i] = g
	}
	return out
}

// at is the node's agent, speaking to another hub.
func (a *agent) at(g *grid) *agent {
	b := *a
	b.g = g
	return &b
}

// A hub that has just started takes nothing back that others might have kept: it
// has observed nobody's silence, and those who did may be gone, too.
func TestYoungHubTakesNothingBack(t *testing.T) {
	cfg := hub.Config{Interval: 100 * time.Millisecond, Timeout: 3 * time.Second, Tick: 50 * time.Millisecond}
	old := several(t, 1, pgtest.Start(t).Database(t), cfg, nil)[0]
	a := old.join("a")
	id := old.submit(small())
	d := a.offered()
	a.accept(d)
	a.run(d)
	a.beat(d.Lease)
	attempts, err := old.store.Attempts(t.Context(), "", id)
	must(t, err)
	expiry := attempts[0].ExpiresAt
	passed := func(g *grid, until time.Duration) {
		g.eventually("time to pass", func() bool {
			now, err := g.store.Now(t.Context())
			must(t, err)
			return now.Sub(expiry) > until
		})
	}
	// Each hub in its turn is there for less than a timeout, and another one always.
	last := old
	for i, from := range []time.Duration{-1500 * time.Millisecond, -500 * time.Millisecond} {
		passed(last, from)
		g := &grid{t: t, cfg: cfg, db: old.db, account: old.account, admin: old.admin}
		g.ops.Store(int64(i+1) * 1_000_000)
		g.begin()
		last.stop()
		last = g
	}
	// Nobody who is there has been silent to anybody for a timeout.
	passed(last, 500*time.Millisecond)
	if j := last.job(id); j.State != offpeak.JobRunning || j.Attempt != 1 {
		t.Errorf("the job is %s, attempt %d: nobody who is there has listened for a timeout", j.State, j.Attempt)
	}
	// And whoever stays silent in its sight is taken back.
	last.eventually("the lease to be taken back", func() bool { return last.job(id).State == offpeak.JobQueued })
	last.sound()
}

// Two hubs that both match, against the rule that one does: the store refuses what
// would not fit, so no node holds more than it has and every job runs once. What
// each was told of claims and ends is a history that one store could have had.
func TestTwoLeaders(t *testing.T) {
	const nodes, jobs = 6, 120
	recorder := history.New(time.Now)
	hubs := several(t, 2, pgtest.Start(t).Database(t), hub.Config{AlwaysLead: true, Timeout: time.Minute, Offer: time.Minute},
		func(s store.Store) store.Store { return recorder.Watch(s) })
	agents := make([]*agent, nodes)
	for i := range agents {
		agents[i] = hubs[0].join(string(rune('a' + i)))
	}
	var ran sync.Map
	var done atomic.Int64
	var all sync.WaitGroup
	for i, a := range agents {
		a = a.at(hubs[i%2])
		all.Go(func() {
			for done.Load() < jobs {
				for _, d := range a.beat().Leases {
					if d.State != offpeak.LeaseOffered {
						continue
					}
					a.accept(d)
					a.run(d)
					if other, again := ran.LoadOrStore(d.Job, a.id); again {
						t.Errorf("job %s runs on %s, it ran on %s", d.Job, a.id, other)
					}
					a.end(d, offpeak.EndCompleted)
					done.Add(1)
				}
			}
		})
	}
	for i := range jobs {
		hubs[i%2].submit(small())
	}
	all.Wait()
	conflicts := hubs[0].metric("offpeak_claim_conflicts_total") + hubs[1].metric("offpeak_claim_conflicts_total")
	t.Logf("%d jobs on %d nodes, %.0f claims refused", jobs, nodes, conflicts)
	if conflicts == 0 {
		t.Error("the two never wanted the same: nothing was tested")
	}
	for _, g := range hubs {
		g.sound()
	}
	for _, v := range recorder.Check(time.Minute) {
		t.Error(v)
	}
	t.Logf("%d calls are a right history", recorder.Len())
}

// deaf is a store through which hubs tell each other nothing.
type deaf struct{ store.Store }

func (deaf) Tell(context.Context, string) error { return nil }

func (deaf) Listen(ctx context.Context, _ func(string)) error {
	<-ctx.Done()
	return ctx.Err()
}

// What hubs tell each other only makes things sooner: with nothing told, a job that
// is handed in at one, and run at another, comes to its end, and
// who waits for it at the first hears of it.
func TestHubsThatHearNothing(t *testing.T) {
	hubs := several(t, 3, pgtest.Start(t).Database(t), hub.Config{Timeout: time.Minute, Offer: time.Minute},
		func(s store.Store) store.Store { return deaf{s} })
	hubs[0].eventually("a hub to match", func() bool {
		all, err := hubs[0].hub.Hubs(t.Context())
		must(t, err)
		return slices.ContainsFunc(all, func(h offpeak.Hub) bool { return h.Leads })
	})
	at, run := hubs[0], hubs[1]
	a := at.join("a").at(run)
	id := at.submit(small())
	ended := make(chan offpeak.Job, 1)
	go func() {
		for {
			j, err := at.hub.WaitJob(context.Background(), at.account, id, time.Minute)
			if err != nil || j.State.Terminal() {
				ended <- j
				return
			}
		}
	}()
	var d wire.Desired
	run.eventually("the offer", func() bool {
		for _, l := range a.beat().Leases {
			if l.State == offpeak.LeaseOffered {
				d = l
				return true
			}
		}
		return false
	})
	a.accept(d)
	a.run(d)
	a.end(d, offpeak.EndCompleted)
	select {
	case j := <-ended:
		if j.State != offpeak.JobSucceeded {
			t.Errorf("the job is %s", j.State)
		}
	case <-time.After(30 * time.Second):
		t.Error("who waits at another hub never heard that the job ended")
	}
	at.sound()
}

// A job that waits for its account's money begins when a deposit comes in at a hub
// that does not match: the one that does learns of it, told or by the events alone.
func TestDepositAtAnotherHubStartsWhatWaits(t *testing.T) {
	for name, wrap := range map[string]func(store.Store) store.Store{"told": nil, "deaf": func(s store.Store) store.Store { return deaf{s} }} {
		t.Run(name, func(t *testing.T) {
			hubs := several(t, 2, pgtest.Start(t).Database(t), hub.Config{Timeout: time.Minute, Offer: time.Minute}, wrap)
			a := hubs[0].join("a")
			hubs[0].asks(a.id, 10*cent, nil)
			// At each hub once: at one of the two it is another that matches.
			for i, at := range hubs {
				poor, err := at.hub.Access().CreateAccount(t.Context(), at.op(), wire.NewAccount{Name: fmt.Sprintf("poor-%d", i)})
				must(t, err)
				id := at.bids(poor.ID, 20*cent, nil)
				at.eventually("the job to wait for money", func() bool {
					return slices.ContainsFunc(hubs, func(g *grid) bool {
						e, err := g.hub.Explain(t.Context(), poor.ID, id)
						must(t, err)
						return strings.Contains(e.Summary, "first paid interval needs")
					})
				})
				if n := at.job(id).Attempt; n != 0 {
					t.Errorf("without money it is at attempt %d", n)
				}
				_, err = at.hub.Money().Deposit(t.Context(), at.op(), wire.NewMovement{External: string(poor.ID), Account: poor.ID, Amount: "1"})
				must(t, err)
				began := time.Now()
				d := a.works()
				if d.Job != id {
					t.Errorf("offered %s, want %s", d.Job, id)
				}
				// Later it might be the look that every hub takes now and then.
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("deposited at hub %d, begun after %s", i+1, took)
				}
				a.end(d, offpeak.EndCompleted)
				at.sound()
			}
		})
	}
}
