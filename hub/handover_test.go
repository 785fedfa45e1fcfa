package hub_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/wire"
)

// done ends a lease well and says whether the agent takes what it is given next.
func (a *agent) done(d wire.Desired, takes bool, change func(*wire.Report)) error {
	_, err := a.report(d, "ended", func(r *wire.Report) {
		zero := 0
		r.Reason, r.Started, r.ExitCode, r.Takes = offpeak.EndCompleted, true, &zero, takes
		if change != nil {
			change(r)
		}
	})
	return err
}

// holds is what the node should hold now.
func (a *agent) holds() []wire.Desired {
	a.g.t.Helper()
	s, err := a.g.hub.Desired(a.g.t.Context(), a.id)
	must(a.g.t, err)
	return s.Leases
}

// The next job is claimed with the end of the one before it: when the end is
// answered, it is there.
func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrid(t, hub.Config{})
		a := g.join("one")
		first, second := g.submit(small()), g.submit(small())
		urgent := small()
		urgent.Priority = 10
		third := g.submit(urgent)
		d := a.offered()
		if d.Job != first {
			t.Fatalf("%s is offered first, want %s", d.Job, first)
		}
		a.accept(d)
		// An end that is refused hands nothing over, and loses nothing.
		gap := func(r *wire.Report) { r.LogEnd = map[string]int64{"stdout": 3} }
		if err := a.done(d, true, gap); err == nil {
			t.Fatal("an end whose log has a gap was taken")
		}
		if got := a.holds(); len(got) != 1 || got[0].Lease != d.Lease {
			t.Fatalf("the node holds %+v", got)
		}
		must(t, a.done(d, true, nil))
		got := a.holds()
		if len(got) != 1 || got[0].Job != third || got[0].State != offpeak.LeasePreparing || got[0].Work == nil {
			t.Fatalf("after the end the node holds %+v, want the urgent job, taken", got)
		}
		// Beats tell it with its work until the agent holds it.
		if s := a.beat(); len(s.Leases) != 1 || s.Leases[0].Work == nil {
			t.Errorf("a beat without it is answered %+v", s.Leases)
		}
		if s := a.beat(got[0].Lease); len(s.Leases) != 1 || s.Leases[0].Work != nil {
			t.Errorf("a beat with it is answered %+v", s.Leases)
		}
		// Who does not say that it takes it is asked.
		must(t, a.done(got[0], false, nil))
		if got = a.holds(); len(got) != 1 || got[0].Job != second || got[0].State != offpeak.LeaseOffered {
			t.Fatalf("after the end the node holds %+v, want an offer", got)
		}
		if n := g.metric("offpeak_claim_conflicts_total"); n != 0 {
			t.Errorf("%v claims were refused", n)
		}
		g.sound()
		g.stop()
	})
}

// What does not fit into what an end leaves waits for its place as ever, and is
// not passed over.
func TestHandOverKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrid(t, hub.Config{})
		a := g.joinWith("two", 2000)
		for range 2 {
			g.submit(small())
		}
		var held []wire.Desired
		for len(held) < 2 {
			synctest.Wait()
			held = a.holds()
		}
		a.accept(held[0])
		a.accept(held[1])
		big := small()
		big.Requirements.CPU = 2000
		large := g.submit(big)
		must(t, a.done(held[0], true, nil))
		if got := a.holds(); len(got) != 1 || got[0].Lease != held[1].Lease {
			t.Fatalf("the node holds %+v", got)
		}
		must(t, a.done(held[1], true, nil))
		if d := a.offered(); d.Job != large {
			t.Errorf("%s is offered, want the large job", d.Job)
		}
		g.sound()
		g.stop()
	})
}

// An end whose answer is lost hands over all the same: nothing is claimed twice,
// and the job that was claimed with it runs.
func TestHandOverWithoutAnswer(t *testing.T) {
	withFlaky(t, func(t *testing.T, g *grid, f *flaky, _ *atomic.Int64) {
		a := g.join("one")
		first, second := g.submit(small()), g.submit(small())
		d := a.offered()
		a.accept(d)
		f.loseReport.Store(true)
		if err := a.done(d, true, nil); err == nil {
			t.Fatal("the lost answer arrived")
		}
		a.seq-- // the agent says it again
		must(t, a.done(d, true, nil))
		g.eventually("the next job to be the node's", func() bool {
			s := a.beat()
			return len(s.Leases) == 1 && s.Leases[0].Job == second && s.Leases[0].Work != nil
		})
		next := a.holds()[0]
		must(t, a.done(next, true, nil))
		for _, id := range []offpeak.JobID{first, second} {
			if j := g.job(id); j.State != offpeak.JobSucceeded || j.Attempt != 1 {
				t.Errorf("job %s is %s after %d attempts", id, j.State, j.Attempt)
			}
		}
		time.Sleep(5 * time.Second)
	})
}
