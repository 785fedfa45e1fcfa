package history

import (
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// at is a call made by hand.
func at(from, til int64, steps ...step) *call { return &call{from: from, til: til, steps: steps} }

// lost is a call that never returned.
func lost(from int64, steps ...step) *call { return at(from, never, unsure(steps)...) }

func has(cpu int64, devices ...offpeak.DeviceID) step {
	return step{Kind: capacity, Node: "n", Resources: offpeak.Resources{CPU: cpu, Devices: devices}}
}

func claims(lease offpeak.LeaseID, job offpeak.JobID, attempt offpeak.Attempt, cpu int64, devices ...offpeak.DeviceID) step {
	return step{Kind: claim, Node: "n", Lease: lease, Job: job, Attempt: attempt, Resources: offpeak.Resources{CPU: cpu, Devices: devices}}
}

func reports(lease offpeak.LeaseID, job offpeak.JobID, attempt offpeak.Attempt, kind store.ReportKind, seq int64) step {
	return step{Kind: report, Node: "n", Lease: lease, Job: job, Attempt: attempt, Report: kind, Incarnation: "i", Seq: seq}
}

func refused(lease offpeak.LeaseID, attempt offpeak.Attempt) step {
	return step{Kind: stale, Node: "n", Lease: lease, Attempt: attempt, Report: store.ReportRunning, Incarnation: "i", Seq: 9}
}

func ends(lease offpeak.LeaseID, job offpeak.JobID, attempt offpeak.Attempt) step {
	return step{Kind: end, Node: "n", Lease: lease, Job: job, Attempt: attempt}
}

func holds(leases ...offpeak.LeaseID) step { return step{Kind: held, Node: "n", Leases: leases} }

func TestHistories(t *testing.T) {
	sweeps := step{Kind: sweep}
	for _, c := range []struct {
		name  string
		wrong string // of what; "" is right
		calls []*call
	}{
		{"attempts in turn", "", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 4)), at(5, 6, reports("a", "j", 1, "accepted", 1)),
			at(7, 8, ends("a", "j", 1)), at(9, 10, claims("b", "j", 2, 4)), at(11, 12, holds("b"), step{Kind: live, Job: "j", Node: "n", Lease: "b", Attempt: 2}),
		}},
		{"one attempt claimed twice", "job j", []*call{
			at(1, 2, has(4)), at(3, 9, claims("a", "j", 1, 1)), at(3, 9, claims("b", "j", 1, 1)),
		}},
		{"claimed while a lease is live", "job j", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 1)), at(5, 6, claims("b", "j", 2, 1)), at(7, 8, ends("a", "j", 1)),
		}},
		{"claimed while a lease may have ended", "", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 1)), at(5, 9, claims("b", "j", 2, 1)), at(5, 9, ends("a", "j", 1)),
		}},
		{"an attempt left out", "job j", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 1)), at(5, 6, ends("a", "j", 1)), at(7, 8, claims("b", "j", 3, 1)),
		}},
		{"claimed after its end", "job j", []*call{
			at(1, 2, has(4)), at(3, 4, step{Kind: over, Job: "j"}), at(5, 6, claims("a", "j", 1, 1)),
		}},
		{"more than the node has", "node n", []*call{
			at(1, 2, has(4)), at(3, 9, claims("a", "j", 1, 3)), at(3, 9, claims("b", "k", 1, 3)),
		}},
		{"one device for two", "node n", []*call{
			at(1, 2, has(4, "gpu")), at(3, 9, claims("a", "j", 1, 1, "gpu")), at(3, 9, claims("b", "k", 1, 1, "gpu")),
		}},
		{"a device that is not there", "node n", []*call{
			at(1, 2, has(4)), at(3, 9, claims("a", "j", 1, 1, "gpu")),
		}},
		{"a node of which nothing is known", "node n", []*call{at(3, 9, claims("a", "j", 1, 1))}},
		{"released by finishing", "", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 3)), at(5, 6, reports("a", "j", 1, "finishing", 1)),
			at(7, 8, claims("b", "k", 1, 3)), at(9, 10, holds("a", "b")),
		}},
		{"capacity that shrinks under leases", "node n", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 3)), at(5, 6, has(2)), at(7, 8, claims("b", "k", 1, 1)),
		}},
		{"what it holds stays when capacity shrinks", "", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 3)), at(5, 6, has(2)), at(7, 8, holds("a")), at(9, 10, claims("b", "k", 1, 0)),
		}},
		// A claim that was answered as lost is no step at all.
		{"a claim lost and yet reported on", "job j", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 1)), at(5, 6, reports("b", "j", 1, "accepted", 1)),
		}},
		{"a claim lost and yet held", "node n", []*call{at(1, 2, has(4)), at(5, 6, holds("b"))}},
		{"a claim won and not held", "node n", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 1)), at(5, 6, holds()),
		}},
		{"a claim won and refused", "job j", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 1)), at(5, 6, reports("a", "j", 1, "accepted", 1)), at(7, 8, refused("a", 1)),
		}},
		{"an offer that lapsed refused", "", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 1)), at(7, 8, refused("a", 1)), at(9, 10, ends("a", "j", 1)),
		}},
		{"ended by two", "job j", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 1)), at(5, 9, ends("a", "j", 1)), at(5, 9, ends("a", "j", 1)),
		}},
		{"an old attempt heard", "job j", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 1)), at(5, 6, ends("a", "j", 1)), at(7, 8, claims("b", "j", 2, 1)),
			at(9, 10, reports("a", "j", 1, "ended", 1)),
		}},
		{"an end said twice", "", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 1)), at(5, 6, reports("a", "j", 1, "ended", 2)), at(7, 8, claims("b", "j", 2, 1)),
			at(9, 10, reports("a", "j", 1, "ended", 2)),
		}},

		{"a claim that nobody knows of, seen", "", []*call{
			at(1, 2, has(4)), lost(3, claims("a", "j", 1, 4)), at(5, 6, reports("a", "j", 1, "accepted", 1)), at(7, 8, holds("a")),
		}},
		{"a claim that nobody knows of, seen, that took too much", "node n", []*call{
			at(1, 2, has(4)), lost(3, claims("a", "j", 1, 4)), at(5, 6, claims("b", "k", 1, 1)), at(7, 8, reports("a", "j", 1, "accepted", 1)),
		}},
		{"a claim that nobody knows of, never made", "", []*call{
			at(1, 2, has(4)), lost(3, claims("a", "j", 1, 4)), at(5, 6, claims("b", "j", 1, 4)), at(7, 8, holds("b")),
		}},
		{"a claim that nobody knows of, needed by the next", "", []*call{
			at(1, 2, has(4)), lost(3, claims("a", "j", 1, 4)), lost(5, sweeps), at(7, 8, claims("b", "j", 2, 4)), at(9, 10, holds("b")),
		}},
		{"an end that nobody knows of", "", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 4)), at(5, 6, holds("a")), lost(7, sweeps), at(8, 9, holds("a")), at(9, 10, claims("b", "j", 2, 4)),
		}},
		{"an end that nobody can have made yet", "node n", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 4)), at(5, 6, claims("b", "k", 1, 4)), lost(7, sweeps),
		}},
		{"an end of something else", "node n", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 4)), lost(5, step{Kind: sweep, Node: "other"}), at(6, 7, claims("b", "k", 1, 4)),
		}},
		{"a report that nobody knows of, said again", "", []*call{
			at(1, 2, has(4)), at(3, 4, claims("a", "j", 1, 4)), lost(5, reports("a", "", 1, "ended", 1)), at(6, 7, claims("b", "j", 2, 4)),
			at(8, 9, reports("a", "j", 1, "ended", 1)),
		}},
		{"a cancellation that nobody knows of", "", []*call{
			at(1, 2, has(4)), lost(3, step{Kind: sweep, Job: "j"}, step{Kind: over, Job: "j"}), at(5, 6, claims("a", "j", 1, 4)), at(7, 8, ends("a", "j", 1)),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := New(time.Now)
			r.calls = c.calls
			found := r.Check(10 * time.Second)
			if c.wrong == "" {
				if len(found) > 0 {
					t.Fatalf("it is right, but %v", found)
				}
				return
			}
			for _, v := range found {
				if v.Of == c.wrong && strings.Contains(v.Detail, "none of these can be next:\n") {
					return
				}
			}
			t.Fatalf("want what is wrong with %s, found %v", c.wrong, found)
		})
	}
}
