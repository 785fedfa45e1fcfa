package hub_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/internal/pgtest"
	"offpeak/store"
	"offpeak/wire"
)

func upTo(n int) offpeak.Indexes { return offpeak.Indexes{{First: 0, Last: n - 1}} }

func (g *grid) submitArray(spec offpeak.Spec, array offpeak.Array) offpeak.Group {
	g.t.Helper()
	out, err := g.hub.SubmitGroup(g.t.Context(), g.op(), g.account, spec, array)
	must(g.t, err)
	return out
}

func (g *grid) group(id offpeak.GroupID) offpeak.Group {
	g.t.Helper()
	out, err := g.store.Group(g.t.Context(), "", id)
	must(g.t, err)
	return out
}

// What a member finds in its environment, beside what the spec says.
func TestArrayEnvironment(t *testing.T) {
	g := newGrid(t, hub.Config{})
	a := g.join("one")
	spec := small()
	spec.Task.Env = map[string]string{"OWN": "1"}
	id := g.submitArray(spec, offpeak.Array{Sweep: []offpeak.Parameter{{Name: "lr", Values: []string{"0.1", "0.01"}}, {Name: "Seed", Values: []string{"7"}}}}).ID
	for i, lr := range []string{"0.1", "0.01"} {
		d := a.offered()
		if d.Job != id.Member(i) {
			t.Fatalf("%s is offered, want member %d", d.Job, i)
		}
		env := d.Work.Task.Env
		if env["OWN"] != "1" || env["OFFPEAK_PARAM_LR"] != lr || env["OFFPEAK_PARAM_SEED"] != "7" || env["OFFPEAK_ARRAY_SIZE"] != "2" || env["OFFPEAK_GROUP"] != string(id) {
			t.Errorf("member %d has the environment %v", i, env)
		}
		a.accept(d)
		a.end(d, offpeak.EndCompleted)
	}
	if got := g.group(id); got.State != offpeak.JobSucceeded || len(got.Spec.Task.Env) != 1 {
		t.Errorf("Group = %+v", got)
	}
	// One that is repeated by itself has what it had.
	j, err := g.hub.Retry(t.Context(), g.op(), g.account, id.Member(1))
	must(t, err)
	if d := a.offered(); j.RetryOf != id.Member(1) || d.Job != j.ID || d.Work.Task.Env["OFFPEAK_PARAM_LR"] != "0.01" || d.Work.Task.Env["OFFPEAK_ARRAY_SIZE"] != "2" {
		t.Errorf("the repeated member = %+v, it is offered with %v", j, d.Work.Task.Env)
	}
	g.sound()
}

// At most so many members run at once; the end of one lets the next one go at that
// moment, and nobody asks the store in vain meanwhile.
func TestArrayRunsAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrid(t, hub.Config{})
		a := g.joinWith("wide", 8000)
		id := g.submitArray(small(), offpeak.Array{Indexes: upTo(6), AtOnce: 2}).ID
		// Others are not held up by an array that waits for its turn.
		other := g.submit(small())
		synctest.Wait()
		held := a.holds()
		if len(held) != 3 || held[2].Job != other && held[1].Job != other && held[0].Job != other {
			t.Fatalf("the node holds %+v, want two members and the other job", held)
		}
		e, err := g.hub.Explain(t.Context(), "", id.Member(5))
		if must(t, err); e.Summary != "It goes when another ends: as many members of its array run as may at once (2, from --array or --at-once)." {
			t.Errorf("Explain = %q", e.Summary)
		}
		conflicts := g.metric("offpeak_claim_conflicts_total")
		claims := g.metric("offpeak_claims_total")
		done := map[offpeak.JobID]bool{}
		for range 6 {
			begun := time.Now()
			for _, d := range a.holds() {
				if d.Job != other && !done[d.Job] {
					done[d.Job] = true
					a.accept(d)
					a.end(d, offpeak.EndCompleted)
					break
				}
			}
			synctest.Wait()
			live := 0
			for _, d := range a.holds() {
				if d.Job != other {
					live++
				}
			}
			if want := min(2, 6-len(done)); live != want || !time.Now().Equal(begun) {
				t.Fatalf("after %d ends %d members hold leases %s later, want %d at once", len(done), live, time.Since(begun), want)
			}
		}
		if got := g.group(id); got.State != offpeak.JobSucceeded {
			t.Errorf("Group = %s %v", got.State, got.Counts)
		}
		if n, all := g.metric("offpeak_claim_conflicts_total")-conflicts, g.metric("offpeak_claims_total")-claims; n != 0 || all != 4 {
			t.Errorf("%v claims were made and %v lost, want 4 and none", all, n)
		}
		g.sound()
		g.stop()
	})
}

// The limit holds over a restart of the hub, which knows nothing of who runs, and a
// member that is lost with its node leaves its turn to another.
func TestArrayTurnsOverRestartAndLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrid(t, hub.Config{Timeout: time.Minute})
		a, b := g.joinWith("a", 1000), g.joinWith("b", 4000)
		id := g.submitArray(small(), offpeak.Array{Indexes: upTo(8), AtOnce: 2}).ID
		synctest.Wait()
		begin := func(n *agent) (held []offpeak.LeaseID) {
			t.Helper()
			for _, d := range n.holds() {
				if d.State == offpeak.LeaseOffered {
					n.accept(d)
					n.run(d)
				}
				held = append(held, d.Lease)
			}
			return held
		}
		live := func() int {
			c := g.group(id).Counts
			return c[offpeak.JobLeased] + c[offpeak.JobRunning]
		}
		onA, onB := begin(a), begin(b)
		if len(onA) != 1 || len(onB) != 1 {
			t.Fatalf("%d and %d members run, want one on each node", len(onA), len(onB))
		}
		g.stop()
		g.start()
		for range 20 {
			synctest.Wait()
			if n := live(); n != 2 {
				t.Fatalf("after the restart %d members hold leases", n)
			}
			a.beat(onA...)
			b.beat(onB...)
			time.Sleep(time.Second)
		}
		for range 300 { // a is silent from here on
			b.beat(begin(b)...)
			if n := live(); n > 2 {
				t.Fatalf("%d members hold leases", n)
			}
			if len(b.holds()) == 2 {
				break
			}
			time.Sleep(time.Second)
		}
		if n := len(b.holds()); n != 2 {
			t.Fatalf("%d members are on b after a was lost", n)
		}
		for range 8 {
			for _, d := range b.holds() {
				begin(b)
				b.end(d, offpeak.EndCompleted)
				synctest.Wait()
				if n := live(); n > 2 {
					t.Fatalf("%d members hold leases", n)
				}
			}
			b.beat(begin(b)...)
		}
		if got := g.group(id); got.State != offpeak.JobSucceeded {
			t.Errorf("Group = %s %v", got.State, got.Counts)
		}
		g.sound()
		g.stop()
	})
}

// A large array is accepted before all of it is written. What is left a hub writes
// that starts, and a member without a row is a job like others.
func TestArrayIsWrittenWhole(t *testing.T) {
	g := newGrid(t, hub.Config{})
	const n = 3000
	big := g.submitArray(small(), offpeak.Array{Indexes: upTo(n)})
	last := big.ID.Member(n - 1)
	if j := g.job(last); j.State != offpeak.JobQueued || j.Index != n-1 {
		t.Errorf("the last member = %+v", j)
	}
	g.stop()
	g.start()
	j, err := g.hub.Cancel(t.Context(), g.op(), g.account, last)
	if must(t, err); j.State != offpeak.JobCancelled {
		t.Errorf("the last member is %s", j.State)
	}
	g.eventually("all to be written", func() bool {
		c, err := g.store.CountJobs(t.Context(), g.account)
		must(t, err)
		return c[offpeak.JobQueued] == n-1 && c[offpeak.JobCancelled] == 1
	})
	a := g.join("one")
	if d := a.offered(); d.Job != big.ID.Member(0) {
		t.Errorf("%s is offered first", d.Job)
	}
	got, err := g.hub.CancelGroup(t.Context(), g.op(), g.account, big.ID)
	if must(t, err); got.State != offpeak.JobCancelled || got.Counts[offpeak.JobCancelled] != n {
		t.Errorf("after the cancel: %s %v", got.State, got.Counts)
	}
	if g.metric("offpeak_queue_depth") != 0 {
		t.Errorf("%v jobs are still queued in memory", g.metric("offpeak_queue_depth"))
	}
	g.sound()
}

// loseGroup loses the answer to a submission.
type loseGroup struct {
	store.Store
	lose atomic.Bool
}

func (l *loseGroup) SubmitGroup(ctx context.Context, op store.Op, n store.NewGroup) (store.Filled, error) {
	f, err := l.Store.SubmitGroup(ctx, op, n)
	if err == nil && l.lose.Swap(false) {
		return store.Filled{}, offpeak.ErrUnavailable
	}
	return f, err
}

// An array whose answer was lost is submitted once, and goes.
func TestArrayWithoutAnswer(t *testing.T) {
	l := &loseGroup{}
	g := newGridWith(t, hub.Config{}, func(s store.Store) store.Store { l.Store = s; return l }, nil)
	a := g.join("one")
	op, array := g.op(), offpeak.Array{Indexes: upTo(3)}
	l.lose.Store(true)
	if _, err := g.hub.SubmitGroup(t.Context(), op, g.account, small(), array); err == nil {
		t.Fatal("the lost answer arrived")
	}
	group, err := g.hub.SubmitGroup(t.Context(), op, g.account, small(), array)
	must(t, err)
	for i := range 3 {
		d := a.offered()
		if d.Job != group.ID.Member(i) {
			t.Fatalf("%s is offered, want member %d", d.Job, i)
		}
		a.accept(d)
		a.end(d, offpeak.EndCompleted)
	}
	again, err := g.hub.SubmitGroup(t.Context(), op, g.account, small(), array)
	if must(t, err); again.ID != group.ID || again.State != offpeak.JobQueued {
		t.Errorf("submitted again it is %s %s, want the first answer", again.ID, again.State)
	}
	if list, _, err := g.store.Groups(t.Context(), store.GroupFilter{}, store.Page{Limit: 10}); err != nil || len(list) != 1 {
		t.Errorf("there are %d groups, %v", len(list), err)
	}
	g.sound()
}

// Hubs learn of members from one another's events: whoever leads matches what another
// took in, and the limit holds whichever hub hears of an end.
func TestArrayAmongHubs(t *testing.T) {
	const size, most = 700, 3
	hubs := several(t, 2, pgtest.Start(t).Database(t), hub.Config{Timeout: time.Minute, Offer: time.Minute}, nil)
	// The second one does not lead: it takes in the array, and hears of half the ends.
	group := hubs[1].submitArray(small(), offpeak.Array{Indexes: upTo(size)})
	hubs[1].eventually("all to be written", func() bool {
		c, err := hubs[1].store.CountJobs(t.Context(), "")
		must(t, err)
		return c[offpeak.JobQueued] == size
	})
	limited := hubs[1].submitArray(func() offpeak.Spec { s := small(); s.Priority = 5; return s }(), offpeak.Array{Indexes: upTo(20), AtOnce: most})
	var over atomic.Int64
	var ended sync.Map
	var all sync.WaitGroup
	stop := make(chan struct{})
	for i := range 8 {
		a := hubs[0].join(string(rune('a' + i))).at(hubs[i%2])
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var held []wire.Desired
				for _, d := range a.beat().Leases {
					if d.State == offpeak.LeaseOffered {
						a.accept(d)
						a.run(d)
						held = append(held, d)
					}
				}
				for _, d := range held {
					if g := a.g.group(limited.ID); g.Counts[offpeak.JobLeased]+g.Counts[offpeak.JobRunning] > most {
						over.Add(1)
					}
					a.end(d, offpeak.EndCompleted)
					if _, again := ended.LoadOrStore(d.Job, true); again {
						t.Errorf("%s ran twice", d.Job)
					}
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	hubs[0].eventually("the limited array to end", func() bool { return hubs[0].group(limited.ID).State == offpeak.JobSucceeded })
	close(stop)
	all.Wait()
	if n := over.Load(); n != 0 {
		t.Errorf("more than %d members ran at once, seen %d times", most, n)
	}
	if _, err := hubs[1].hub.CancelGroup(t.Context(), hubs[1].op(), hubs[1].account, group.ID); err != nil {
		t.Fatal(err)
	}
	hubs[0].eventually("the rest to be gone from both hubs", func() bool {
		return hubs[0].metric("offpeak_queue_depth") == 0 && hubs[1].metric("offpeak_queue_depth") == 0 && hubs[0].group(group.ID).State.Terminal()
	})
	hubs[0].sound()
}

// BenchmarkSubmitArray compares an array of 10,000 with one job: until it is
// accepted, and until all its members are queued.
func BenchmarkSubmitArray(b *testing.B) {
	const size = 10_000
	b.Run("job", func(b *testing.B) {
		g := newGrid(b, hub.Config{})
		for b.Loop() {
			g.submit(small())
		}
	})
	b.Run("accepted", func(b *testing.B) {
		g := newGrid(b, hub.Config{})
		for b.Loop() {
			id := g.submitArray(small(), offpeak.Array{Indexes: upTo(size)}).ID
			b.StopTimer()
			g.whole(id)
			b.StartTimer()
		}
	})
	b.Run("written", func(b *testing.B) {
		g := newGrid(b, hub.Config{})
		for b.Loop() {
			g.whole(g.submitArray(small(), offpeak.Array{Indexes: upTo(size)}).ID)
		}
		b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "members/s")
	})
}

// whole waits until all members of an array have rows.
func (g *grid) whole(id offpeak.GroupID) {
	g.t.Helper()
	g.eventually("all to be written", func() bool {
		list, err := g.store.UnfinishedGroups(g.t.Context(), 100)
		must(g.t, err)
		for _, u := range list {
			if u.ID == id {
				return false
			}
		}
		return true
	})
}
