package hub_test

import (
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/wire"
)

// worker is a node that runs one job at a time, each for so long and to that end.
type worker struct {
	*agent
	takes  time.Duration
	reason offpeak.EndReason
	now    *wire.Desired
	until  time.Time
	seen   map[offpeak.JobID]bool
	count  int
}

// turn lets the worker end what is over, begin what it is offered, and beat.
func (w *worker) turn() {
	w.g.t.Helper()
	if w.now != nil && !time.Now().Before(w.until) {
		w.end(*w.now, w.reason)
		w.now = nil
	}
	if w.now == nil {
		s, err := w.g.hub.Desired(w.g.t.Context(), w.id)
		must(w.g.t, err)
		for _, d := range s.Leases {
			if d.State == offpeak.LeaseOffered {
				w.accept(d)
				w.run(d)
				w.now, w.until = &d, time.Now().Add(w.takes)
				w.seen[d.Job] = true
				w.count++
				break
			}
		}
	}
	if w.now != nil {
		w.beat(w.now.Lease)
	} else {
		w.beat()
	}
}

// Field fault 35: a broken node that fetches work and fails it within seconds is
// kept from the queue. Few jobs meet it, none fails for it, and it comes back by
// itself when it is well again.
func TestBlackHole(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		node := func(name string, takes time.Duration, reason offpeak.EndReason) *worker {
			return &worker{agent: g.join(name), takes: takes, reason: reason, seen: map[offpeak.JobID]bool{}}
		}
		broken := node("broken", 2*time.Second, offpeak.EndNodeError)
		all := []*worker{broken, node("one", 5*time.Second, offpeak.EndCompleted), node("two", 5*time.Second, offpeak.EndCompleted), node("three", 5*time.Second, offpeak.EndCompleted)}
		const jobs = 200
		var ids []offpeak.JobID
		for range jobs {
			ids = append(ids, g.submit(small()))
		}
		step := func(d time.Duration) {
			for _, w := range all {
				w.turn()
			}
			time.Sleep(d)
			synctest.Wait()
		}
		done := func() int {
			n := 0
			for _, w := range all[1:] {
				n += w.count
			}
			return n
		}
		said := false
		for done() < jobs {
			step(time.Second)
			if broken.count == 3 && broken.now == nil && !said {
				e, err := g.hub.Explain(t.Context(), g.account, ids[jobs-1])
				must(t, err)
				for _, c := range e.Causes {
					said = said || c.Code == offpeak.FitQuarantined
				}
			}
		}
		if !said {
			t.Error("explain did not name the quarantine")
		}
		for range 6 {
			step(time.Second)
		}
		for _, id := range ids {
			if j := g.job(id); j.State != offpeak.JobSucceeded {
				t.Fatalf("job %s is %s: %s", id, j.State, j.Reason)
			}
		}
		if n := len(broken.seen); n >= jobs/20 || n < 4 {
			t.Errorf("%d of %d jobs met the broken node; want fewer than one in twenty, and probes among them", n, jobs)
		}
		// Repaired, it passes its next probe and takes work as any other.
		broken.takes, broken.reason = 5*time.Second, offpeak.EndCompleted
		before := broken.count
		for range 400 {
			if broken.count > before+3 {
				return
			}
			for range 8 { // more than the others take at once
				g.submit(small())
			}
			step(6 * time.Second)
		}
		t.Errorf("the repaired node took %d jobs", broken.count-before)
	})
}

// A GPU that vanishes under a job is enough: the node gets a probe first (field
// fault 34).
func TestVanishedGPUQuarantines(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		id := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		a.end(d, offpeak.EndDeviceLost)
		a.keep(30 * time.Second)
		e, err := g.hub.Explain(t.Context(), g.account, id)
		must(t, err)
		if j := g.job(id); j.State != offpeak.JobQueued || j.Counts.User != 0 || len(e.Causes) != 2 || e.Causes[0].Code != offpeak.FitQuarantined || e.Causes[1].Code != offpeak.FitFence {
			t.Fatalf("job is %s with %+v: %+v", j.State, j.Counts, e)
		}
		other := g.submit(small())
		a.keep(35 * time.Second)
		d = a.offered()
		a.accept(d)
		a.run(d)
		if g.job(id).State == g.job(other).State {
			t.Fatal("the probe is not alone")
		}
		a.end(d, offpeak.EndCompleted)
		if d := a.offered(); d.Job == "" {
			t.Fatal("nothing after the probe passed")
		}
	})
}
