package hub_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/placement/queue"
)

// What an account used counts after a restart as before it: who used nothing goes
// first, though it came later.
func TestUseSurvivesARestart(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		g.submit(small())
		d := a.works()
		a.keep(time.Hour, d.Lease)
		a.end(d, offpeak.EndCompleted)
		g.intends(a.id, offpeak.NodeClosed)
		g.stop()
		g.start()
		a.open("one-2")
		a.beat()
		mine := g.submit(small())
		guest := g.bids(g.guest("guest"), cent, nil)
		e, err := g.hub.Explain(t.Context(), g.account, mine)
		must(t, err)
		if e.Ahead != 1 || e.Share == nil || e.Share.CoreHours < 0.9 || e.Share.Part < 0.99 {
			t.Errorf("explained with %d ahead and a share of %+v", e.Ahead, e.Share)
		}
		g.intends(a.id, offpeak.NodeOpen)
		d = a.works()
		if d.Job != guest {
			t.Errorf("offered %s, want the job %s of who used nothing", d.Job, guest)
		}
		a.end(d, offpeak.EndCompleted)
		if d := a.offered(); d.Job != mine {
			t.Errorf("offered %s", d.Job)
		}
	})
}

// A job that waited for long gets the node when what runs there is over, though
// others come that would fit at once, of a higher priority even; those that are over
// before may run until then.
func TestNodeIsKeptForAJobThatWaitedLong(t *testing.T) {
	cfg := hub.Config{Queue: queue.Config{HalfLife: 24 * time.Hour, GPU: 16, ReserveAfter: time.Minute, Places: 4}}
	bubble(t, cfg, func(t *testing.T, g *grid) {
		takes := func(cpu int64, limit time.Duration, priority int) offpeak.Spec {
			sp := small()
			sp.Priority, sp.Requirements.CPU = priority, cpu
			sp.Limits.Time, sp.Limits.Prepare = offpeak.Duration(limit), offpeak.Duration(time.Minute)
			return sp
		}
		a := g.joinWith("one", 3000)
		g.submit(takes(2000, time.Hour, 0))
		first := a.works()
		large := g.submit(takes(3000, time.Hour, 0))
		a.keep(90*time.Second, first.Lease)
		long := g.submit(takes(1000, 2*time.Hour, 50))
		short := g.submit(takes(1000, 10*time.Minute, 0))
		d := a.works()
		if d.Job != short {
			t.Fatalf("offered %s, want the short job %s", d.Job, short)
		}
		e, err := g.hub.Explain(t.Context(), g.account, large)
		must(t, err)
		if e.Reserved == nil || e.Reserved.Node != a.id || e.StartsBy == nil || !e.StartsBy.Equal(e.Reserved.At) || !strings.Contains(e.Summary, "is kept for it") {
			t.Errorf("explained with %+v, %v, %q", e.Reserved, e.StartsBy, e.Summary)
		}
		a.end(d, offpeak.EndCompleted)
		a.keep(10*time.Second, first.Lease)
		synctest.Wait()
		if s := g.job(long).State; s != offpeak.JobQueued {
			t.Fatalf("the long job is %s", s)
		}
		a.end(first, offpeak.EndCompleted)
		d = a.works()
		if d.Job != large {
			t.Fatalf("offered %s, want the large job %s", d.Job, large)
		}
		a.end(d, offpeak.EndCompleted)
		if d := a.works(); d.Job != long {
			t.Errorf("offered %s", d.Job)
		}
	})
}
