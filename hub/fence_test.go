package hub_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/wire"
)

// fence is what explain says of a fence: how many nodes it keeps the job from, and what
// the nearest change is.
func (g *grid) fence(job offpeak.JobID) (nodes int, nearest *wire.Nearest) {
	g.t.Helper()
	synctest.Wait()
	e, err := g.hub.Explain(g.t.Context(), g.account, job)
	must(g.t, err)
	for _, c := range e.Causes {
		if c.Code == offpeak.FitFence {
			nodes = c.All
		}
	}
	if len(e.Nearest) > 0 {
		nearest = &e.Nearest[0]
	}
	return nodes, nearest
}

// A job is kept off the node where it failed for a while that is stated, doubles with
// each time there, survives a restart of the hub, and ends by itself. Jobs like it go
// there meanwhile.
func TestFence(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		sp := small()
		sp.Retry = &offpeak.RetryPolicy{User: 5}
		id := g.submit(sp)
		for _, lasts := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
			a.end(a.works(), offpeak.EndExitNonzero)
			failed := time.Now()
			if nodes, _ := g.fence(id); nodes != 1 {
				t.Fatalf("the fence keeps it from %d nodes", nodes)
			}
			g.stop()
			g.start()
			a.open("again " + lasts.String())
			a.keep(20 * time.Second)
			left := lasts - time.Since(failed)
			nodes, near := g.fence(id)
			if says := "once the fence on one ends, in " + left.Round(time.Second).String(); nodes != 1 || near == nil || near.Nodes != 1 || !strings.HasPrefix(near.Sentence, says) {
				t.Fatalf("after a restart %d nodes are fenced, %+v; want %q", nodes, near, says)
			}
			like := g.submit(sp)
			if d := a.works(); d.Job != like {
				t.Fatalf("%s went before its fence ended", d.Job)
			} else {
				a.end(d, offpeak.EndCompleted)
			}
			a.keep(lasts - time.Since(failed) - 10*time.Second)
			time.Sleep(lasts - time.Since(failed) - time.Second)
			if j := g.job(id); j.State != offpeak.JobQueued {
				t.Fatalf("a second before the fence ends it is %s", j.State)
			}
			time.Sleep(time.Second)
			g.startsWithin(id, 100*time.Millisecond)
			a.beat()
		}
	})
}

// Another node takes the job at once, and the node where it failed does not though it
// were cheaper.
func TestFencedJobGoesElsewhere(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a, b := g.join("one"), g.join("two")
		g.deposits(g.account, "100")
		g.asks(b.id, 10*cent, nil)
		sp := small()
		sp.Retry = &offpeak.RetryPolicy{User: 5}
		id := g.submit(sp)
		a.end(a.works(), offpeak.EndExitNonzero)
		time.Sleep(2 * time.Second)
		d := b.works()
		if d.Job != id {
			t.Fatalf("%s went to the other node", d.Job)
		}
		b.end(d, offpeak.EndExitNonzero)
		time.Sleep(4 * time.Second)
		if nodes, near := g.fence(id); nodes != 2 || near == nil || !strings.Contains(near.Sentence, "the fence on one ends") {
			t.Fatalf("%d nodes are fenced, %+v", nodes, near)
		}
	})
}

// Who fell silent and came back, or had its owner back, is as good as before: the job
// that was lost goes on there. One that declined is let alone for some seconds.
func TestWhatFencesNot(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		id := g.submit(small())
		d := a.works()
		a.end(d, offpeak.EndOwnerReturned)
		g.startsWithin(id, time.Second)
		a.works()
		time.Sleep(2 * time.Minute) // it is lost, and its node offline
		if j := g.job(id); j.State != offpeak.JobQueued || j.Reason != offpeak.EndNodeLost {
			t.Fatalf("a lost job is %s, %s", j.State, j.Reason)
		}
		a.beat()
		g.startsWithin(id, time.Second)
		d = a.offered()
		a.end(d, offpeak.EndDeclined)
		if nodes, _ := g.fence(id); nodes != 1 {
			t.Fatalf("the node that declined is not fenced: %d", nodes)
		}
		time.Sleep(4900 * time.Millisecond)
		if j := g.job(id); j.State != offpeak.JobQueued {
			t.Fatalf("it is %s right after", j.State)
		}
		g.startsWithin(id, time.Second)
	})
}
