package hub_test

import (
	"errors"
	"testing"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/wire"
)

func TestHubStopsWhatRunsOverItsLimits(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 2000)
		spec := small()
		spec.Limits.Time = offpeak.Duration(time.Minute)
		spec.Limits.Prepare = offpeak.Duration(30 * time.Second)
		g.submit(spec)
		running := a.offered()
		a.accept(running)
		a.run(running)
		g.submit(spec)
		preparing := a.offered()
		a.accept(preparing)
		stops := func() map[offpeak.LeaseID]offpeak.EndReason {
			out := map[offpeak.LeaseID]offpeak.EndReason{}
			for _, l := range a.beat(running.Lease, preparing.Lease).Leases {
				out[l.Lease] = l.Stop
			}
			return out
		}
		a.keep(25*time.Second, running.Lease, preparing.Lease)
		if s := stops(); s[running.Lease] != "" || s[preparing.Lease] != "" {
			t.Fatalf("stopped early: %v", s)
		}
		a.keep(10*time.Second, running.Lease, preparing.Lease)
		if s := stops(); s[running.Lease] != "" || s[preparing.Lease] != offpeak.EndPrepareTimeout {
			t.Fatalf("after 35 s: %v", s)
		}
		a.keep(40*time.Second, running.Lease, preparing.Lease)
		if s := stops(); s[running.Lease] != offpeak.EndTimeLimit {
			t.Fatalf("after 75 s: %v", s)
		}
	})
}

// A node that beats on but never ends a finishing lease does not keep its job.
func TestHubEndsWhatNeverFinishes(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		spec := small()
		spec.Limits.Prepare = offpeak.Duration(2 * time.Minute)
		id := g.submit(spec)
		d := a.offered()
		a.accept(d)
		a.run(d)
		a.keep(10*time.Minute, d.Lease) // the bound is of finishing alone
		_, err := a.report(d, "finishing", nil)
		must(t, err)
		stop := func() offpeak.EndReason {
			for _, l := range a.beat(d.Lease).Leases {
				if l.Lease == d.Lease {
					return l.Stop
				}
			}
			return "gone"
		}
		a.keep(115*time.Second, d.Lease)
		if s := stop(); s != "" {
			t.Fatalf("stopped early: %s", s)
		}
		a.keep(10*time.Second, d.Lease)
		if s := stop(); s != offpeak.EndNodeError {
			t.Fatalf("after 125 s of finishing it is asked to stop with %q", s)
		}
		a.keep(50*time.Second, d.Lease)
		if s := stop(); s != offpeak.EndNodeError {
			t.Fatalf("within a timeout of being asked: %q", s)
		}
		a.keep(10*time.Second, d.Lease)
		if s := stop(); s != "gone" {
			t.Fatalf("a timeout after it was asked: %q", s)
		}
		if j := g.job(id); j.Reason != offpeak.EndNodeError || j.Counts.Node != 1 {
			t.Fatalf("job is %s (%s)", j.State, j.Reason)
		}
		if _, err := a.report(d, "ended", func(r *wire.Report) { r.Reason = offpeak.EndCompleted }); !errors.Is(err, offpeak.ErrStaleLease) {
			t.Fatalf("the late result was answered with %v", err)
		}
	})
}
