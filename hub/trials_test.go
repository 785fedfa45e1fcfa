package hub_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/internal/pgtest"
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

// quarantined says what is held against a node and what keeps a job from it.
func (a *agent) quarantined(job offpeak.JobID) (*offpeak.Quarantine, offpeak.FitCode) {
	a.g.t.Helper()
	n, err := a.g.hub.Node(a.g.t.Context(), "", a.id)
	must(a.g.t, err)
	e, err := a.g.hub.Explain(a.g.t.Context(), a.g.account, job)
	must(a.g.t, err)
	for _, v := range e.Nodes {
		if v.Node == a.id {
			return n.Quarantine, v.Reason.Code
		}
	}
	return n.Quarantine, offpeak.FitOK
}

// A restart of the hub forgets neither faults that are too few so far, nor a quarantine
// and its end, nor that a probe is under way.
func TestQuarantineSurvivesRestarts(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 4000)
		restarts := 0
		again := func(held ...offpeak.LeaseID) {
			t.Helper()
			g.stop()
			g.start()
			restarts++
			a.open(fmt.Sprint("after restart ", restarts))
			a.beat(held...)
			synctest.Wait()
		}
		for range 3 {
			id := g.submit(small())
			a.end(a.works(), offpeak.EndNodeError)
			g.cancel(id)
			again()
		}
		job := g.submit(small())
		time.Sleep(time.Millisecond) // the order is by age
		other := g.submit(small())
		synctest.Wait()
		q, code := a.quarantined(job)
		if q == nil || q.Times != 1 || q.Reason != offpeak.EndNodeError || q.Until == nil || q.Until.Sub(q.Since) != time.Minute || code != offpeak.FitQuarantined {
			t.Fatalf("after three restarts the quarantine is %+v, the job is kept off by %q", q, code)
		}
		a.keep(time.Until(*q.Until) - 10*time.Second)
		time.Sleep(time.Until(*q.Until) - time.Second)
		if g.job(job).State != offpeak.JobQueued || g.job(other).State != offpeak.JobQueued {
			t.Fatal("a job went to a node in quarantine")
		}
		a.beat()
		time.Sleep(time.Second)
		g.startsWithin(job, time.Second)
		d := a.works()
		again(d.Lease)
		a.keep(time.Minute, d.Lease)
		if s := g.job(other).State; s != offpeak.JobQueued {
			t.Fatalf("after a restart, beside the probe, another job is %s", s)
		}
		if q, code := a.quarantined(other); q == nil || code != offpeak.FitQuarantined {
			t.Fatalf("beside the probe: %+v, %q", q, code)
		}
		// A probe that lasts ends it, for good.
		a.keep(8*time.Minute, d.Lease)
		for range 240 {
			if g.job(other).State != offpeak.JobQueued {
				break
			}
			a.beat(d.Lease)
			time.Sleep(time.Second)
		}
		if s := g.job(other).State; s != offpeak.JobLeased {
			t.Fatalf("after a probe that lasted another job is %s", s)
		}
		if q, _ := a.quarantined(other); q != nil {
			t.Fatalf("after a probe that lasted the store has %+v", q)
		}
	})
}

// Who mended a node says so, and it takes work at once.
func TestTrustEndsQuarantine(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 4000)
		first := g.submit(small())
		a.end(a.works(), offpeak.EndDeviceLost)
		g.cancel(first)
		job, other := g.submit(small()), g.submit(small())
		synctest.Wait()
		if q, code := a.quarantined(job); q == nil || code != offpeak.FitQuarantined {
			t.Fatalf("the quarantine is %+v, the job is kept off by %q", q, code)
		}
		op := g.op()
		for range 2 {
			n, err := g.hub.Trust(t.Context(), op, "", a.id)
			must(t, err)
			if n.Quarantine != nil {
				t.Fatalf("trusted, it has %+v", n.Quarantine)
			}
		}
		g.startsWithin(job, time.Second)
		g.startsWithin(other, time.Second)
	})
}

// Hubs on one database share what is held against a node, whoever heard of it, and so
// does the one that takes over.
func TestHubsShareQuarantine(t *testing.T) {
	cfg := hub.Config{Interval: 100 * time.Millisecond, Timeout: time.Minute, Tick: 50 * time.Millisecond, Quarantine: time.Hour}
	hubs := several(t, 2, pgtest.Start(t).Database(t), cfg, nil)
	one, two := hubs[0], hubs[1]
	a := one.join("a")
	first := one.submit(small())
	a.end(a.works(), offpeak.EndDeviceLost)
	one.cancel(first)
	b := a.at(two)
	job := two.submit(small())
	two.eventually("the other hub to keep work off the node", func() bool {
		q, code := b.quarantined(job)
		return q != nil && q.Until != nil && code == offpeak.FitQuarantined
	})
	one.stop()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		b.beat()
		if s := two.job(job).State; s != offpeak.JobQueued {
			t.Fatalf("with a new lead the job is %s", s)
		}
	}
	_, err := two.hub.Trust(t.Context(), two.op(), "", a.id)
	must(t, err)
	two.eventually("the job to go", func() bool { b.beat(); return two.job(job).State == offpeak.JobLeased })
	two.sound()
}

func (g *grid) cancel(job offpeak.JobID) {
	g.t.Helper()
	_, err := g.hub.Cancel(g.t.Context(), g.op(), g.account, job)
	must(g.t, err)
}
