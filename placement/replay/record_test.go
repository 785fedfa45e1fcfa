package replay_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/placement/replay"
)

// told is events as a file has them: minute, type, and what else an event says.
func told(t *testing.T, lines ...string) *replay.Traffic {
	t.Helper()
	traffic, err := replay.Record(replay.Events(func(yield func([]byte, error) bool) {
		for i, l := range lines {
			minute, rest, _ := strings.Cut(l, " ")
			what, rest, _ := strings.Cut(rest, " ")
			var m int
			if _, err := fmt.Sscan(minute, &m); err != nil {
				t.Fatal(err)
			}
			at := start().Add(time.Duration(m) * time.Minute)
			if rest != "" {
				rest = "," + rest
			}
			if !yield(fmt.Appendf(nil, `{"cursor":%d,"at":%q,"type":%q%s}`, i+1, at.Format(time.RFC3339), what, rest), nil) {
				return
			}
		}
	}), replay.Base{})
	if err != nil {
		t.Fatal(err)
	}
	return traffic
}

const (
	onNode = `"account":"o","node":"n"`
	ofJob  = `"account":"l","job":"j","attempt":1,"lease":"x","node":"n"`
	asks   = `"account":"l","job":"j","data":{"spec":"s","driver":"wasm","requirements":{"cpu_milli":1000},"time_limit":"24h"}`
)

func submitted(t *testing.T, traffic *replay.Traffic) (time.Duration, *replay.Job) {
	t.Helper()
	for _, s := range traffic.Steps {
		if s.Submit != nil {
			return s.At.Sub(start()), s.Submit
		}
	}
	t.Fatalf("no job in %+v", traffic.Steps)
	return 0, nil
}

// A job's work is what its last attempt ran and what checkpoints kept of those that
// were interrupted before.
func TestWorkOfSeveralAttempts(t *testing.T) {
	traffic := told(t,
		`0 node.enrolled `+onNode+`,"data":{"name":"n","inventory":{"cpu_milli":4000,"drivers":["wasm"],"shared_drivers":["wasm"]},"ask":{"gpu":1,"cpu":2}}`,
		`0 node.online `+onNode,
		`1 job.queued `+asks,
		`2 lease.offered `+ofJob,
		`3 lease.running `+ofJob,
		`13 checkpoint.stored `+ofJob+`,"data":{"metered_ms":600000}`,
		`24 checkpoint.stored `+ofJob+`,"data":{"metered_ms":1200000}`,
		`30 node.offline `+onNode,
		`30 lease.lost `+ofJob+`,"reason":"node_lost","data":{"metered_ms":1500000}`,
		`30 job.queued `+ofJob,
		`40 node.online `+onNode,
		`40 lease.offered `+ofJob,
		`42 lease.running `+ofJob,
		`50 lease.succeeded `+ofJob+`,"reason":"completed","data":{"metered_ms":480000}`,
		`50 job.succeeded `+ofJob,
		`60 node.in_use `+onNode,
	)
	at, j := submitted(t, traffic)
	if at != time.Minute || j.Work.Std() != 28*time.Minute || j.Keep.Std() != 10*time.Minute || j.Prepare.Std() != 2*time.Minute || j.Guessed || j.Driver != "wasm" {
		t.Errorf("submitted after %s: %+v", at, j)
	}
	// Replayed on the one node that there was, it comes to the same.
	r := run(t, traffic)
	if r.Finished != 1 || r.Interrupted != 1 || r.WaitMedian != 0 {
		t.Errorf("%+v", r)
	}
}

// A job that waited for others waits for a node from when they have ended.
func TestBlockedJobs(t *testing.T) {
	traffic := told(t,
		`0 job.blocked `+asks,
		`7 job.queued `+ofJob,
		`8 lease.offered `+ofJob,
		`8 lease.running `+ofJob,
		`9 lease.succeeded `+ofJob+`,"reason":"completed","data":{"metered_ms":60000}`,
		`9 job.succeeded `+ofJob,
		`10 job.blocked "account":"l","job":"k","data":{"requirements":{"cpu_milli":1}}`,
	)
	if at, j := submitted(t, traffic); at != 7*time.Minute || j.ID != offpeak.JobID("j") || len(traffic.Steps) != 1 {
		t.Errorf("submitted after %s: %+v, %d steps", at, j, len(traffic.Steps))
	}
}

// What came before the first event is told by what happened to it, as far as that goes.
func TestNodesFromBefore(t *testing.T) {
	traffic := told(t,
		`1 node.available `+onNode,
		`2 node.draining `+onNode+`,"data":{"stop":true}`,
		`3 node.removed `+onNode+`,"data":{"inventory":{"cpu_milli":4000},"ask":{"gpu":1,"cpu":2}}`,
		`4 node.online "account":"o","node":"unknown"`,
	)
	first := traffic.Steps[0].Join
	if first == nil || first.Availability != offpeak.NodeInUse || first.Intent != offpeak.NodeOpen || first.Ask == nil || first.Inventory.CPU != 4000 || len(traffic.Steps) != 4 {
		t.Errorf("%+v in %+v", first, traffic.Steps)
	}
	if len(traffic.Notes) != 1 || !strings.HasPrefix(traffic.Notes[0], "1 nodes joined before the record begins") {
		t.Errorf("notes %q", traffic.Notes)
	}
}
