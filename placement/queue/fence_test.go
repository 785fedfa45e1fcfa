package queue

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/placement"
)

// A job that is fenced off the only node keeps none of its kind out, and goes itself at
// the moment at which the fence ends, though nothing of the node changes.
func TestFenceEnds(t *testing.T) {
	w := newWorld(t, Config{})
	w.joins("one", 2, 0)
	w.match()
	until := w.now.Add(time.Minute)
	w.submit("fenced", "acct", 1, 0, time.Hour, func(j *Job) {
		j.Attempt, j.Fences = 1, []placement.Fence{{Node: "one", Until: until}}
	})
	w.passes(time.Second)
	w.submit("like it", "acct", 1, 0, time.Hour, nil)
	w.match()
	w.q.check(t)
	if w.started["like it"].IsZero() || !w.started["fenced"].IsZero() {
		t.Fatalf("started are %v", w.started)
	}
	if at := w.q.Wake(w.now); !at.Equal(until) {
		t.Fatalf("it is looked at again at %s, want %s", at, until)
	}
	w.passes(until.Sub(w.now) - time.Microsecond)
	if !w.started["fenced"].IsZero() {
		t.Fatal("it went before the fence ended")
	}
	w.passes(time.Microsecond)
	w.q.check(t)
	if !w.started["fenced"].Equal(until) {
		t.Fatalf("it started at %s, want %s", w.started["fenced"], until)
	}
	if at := w.q.Wake(w.now); !at.IsZero() || len(w.q.classes) != 0 {
		t.Fatalf("something is left: %s, %d classes", at, len(w.q.classes))
	}
}

// A job that waited for long has a reservation on the node that it is fenced off, from
// the end of the fence on, and goes then.
func TestFencedJobHasAReservation(t *testing.T) {
	w := newWorld(t, Config{ReserveAfter: time.Minute, Places: 4})
	w.joins("one", 2, 0)
	until := w.now.Add(10 * time.Minute)
	w.submit("fenced", "acct", 2, 0, time.Hour, func(j *Job) {
		j.Attempt, j.Fences = 1, []placement.Fence{{Node: "one", Until: until}}
	})
	w.passes(2 * time.Minute)
	if r := w.q.Reservation("fenced"); r == nil || !r.At.Equal(until) {
		t.Fatalf("its reservation is %+v, want one at %s", r, until)
	}
	w.submit("short", "acct", 1, 0, 5*time.Minute, nil)
	w.submit("long", "acct", 1, 0, time.Hour, nil)
	w.match()
	if w.started["short"].IsZero() || !w.started["long"].IsZero() {
		t.Fatalf("started are %v", w.started)
	}
	w.passes(until.Sub(w.now))
	if !w.started["fenced"].Equal(until) {
		t.Fatalf("it started at %s, want %s", w.started["fenced"], until)
	}
}

// Whatever fences, pauses and leases do, at any moment no job waits that fits a node,
// none is where it is fenced off, and the end of each fence is waited for.
func TestFencesAreBruteForce(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(t, Config{})
		for i := range rapid.IntRange(1, 4).Draw(r, "nodes") {
			w.joins(offpeak.NodeID(fmt.Sprint("n", i)), 2, 0)
		}
		n := 0
		for range rapid.IntRange(1, 40).Draw(r, "steps") {
			for range rapid.IntRange(0, 3).Draw(r, "jobs") {
				n++
				w.now = w.now.Add(time.Microsecond)
				w.submit(fmt.Sprintf("job_%03d", n), "acct", rapid.Int64Range(1, 2).Draw(r, "cores"), 0, time.Duration(rapid.IntRange(1, 90).Draw(r, "lasts"))*time.Second, func(j *Job) {
					for range rapid.IntRange(0, 3).Draw(r, "fences") {
						node := offpeak.NodeID(fmt.Sprint("n", rapid.IntRange(0, 4).Draw(r, "fenced")))
						j.Fences = append(j.Fences, placement.Fence{Node: node, Until: w.now.Add(time.Duration(rapid.IntRange(0, 60).Draw(r, "for")) * time.Second)})
					}
					if rapid.IntRange(0, 3).Draw(r, "pauses") == 0 {
						j.NotBefore = w.now.Add(time.Duration(rapid.IntRange(0, 30).Draw(r, "pause")) * time.Second)
					}
				})
			}
			could := 0
			next := w.q.Wake(w.now)
			for it := range w.q.Items {
				if _, ok := w.fleet.Best(w.q.Placement(it)); ok && !it.Paused() {
					could++
				}
			}
			before := len(w.started)
			w.match()
			w.q.check(r)
			if could > 0 && len(w.started) == before {
				r.Fatalf("%d jobs could go, none did", could)
			}
			for it := range w.q.Items {
				if c, ok := w.fleet.Best(w.q.Placement(it)); ok && !it.Paused() {
					r.Fatalf("%s waits and fits %s", it.ID(), c.Node)
				}
				for _, f := range it.Job().Fences {
					if f.Until.After(w.now) && (next.IsZero() || next.After(f.Until)) && !it.Paused() {
						r.Fatalf("nobody looks at %s when its fence ends at %s, but at %s", it.ID(), f.Until, next)
					}
				}
			}
			for id, node := range w.node {
				if !w.started[id].Equal(w.now) {
					continue
				}
				for _, l := range w.runs {
					if l.job.ID != id {
						continue
					}
					for _, f := range l.job.Fences {
						if f.Node == node && f.Until.After(w.now) {
							r.Fatalf("%s went to %s, from which it is fenced until %s", id, node, f.Until)
						}
					}
				}
			}
			step := time.Duration(rapid.IntRange(1, 20).Draw(r, "step")) * time.Second
			if until := next.Sub(w.now); !next.IsZero() && rapid.Bool().Draw(r, "to the next") {
				step = max(until, time.Microsecond)
			}
			w.passes(step)
		}
	})
}
