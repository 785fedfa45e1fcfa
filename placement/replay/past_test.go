package replay_test

import (
	"slices"
	"testing"
	"time"

	"offpeak/placement"
)

// A record has what its nodes' past let expect of them at each moment, as a hub
// reckons it, and nothing from after. What nobody measures is flat.
func TestRecordsMeasureNodes(t *testing.T) {
	inventory := `,"data":{"name":"n","inventory":{"cpu_milli":4000,"drivers":["wasm"],"shared_drivers":["wasm"]},"ask":{"gpu":1,"cpu":2}}`
	leases := func(minute string, id, end string) []string {
		job := `"account":"l","job":"j","attempt":1,"lease":"` + id + `","node":"n"`
		return []string{minute + ` lease.running ` + job, minute + ` ` + end[:len("lease.lost")] + ` ` + job + end[len("lease.lost"):]}
	}
	lines := []string{`0 node.enrolled ` + onNode + inventory, `0 node.online ` + onNode, `1 job.queued ` + asks}
	for _, id := range []string{"a", "b", "c", "c"} {
		lines = append(lines, leases("2", id, `lease.lost,"reason":"node_restarted"`)...)
	}
	for _, m := range []string{"10", "20", "30", "40", "50", "60"} {
		lines = append(lines, m+` node.in_use `+onNode+`,"reason":"owner_returned"`, m+` node.available `+onNode)
	}
	traffic := told(t, lines...)
	var at []time.Duration
	var got []placement.Metrics
	for _, s := range traffic.Steps {
		switch {
		case s.Join != nil:
			got = append(got, *s.Join.Metrics)
		case s.Change != nil && s.Change.Metrics != nil:
			got = append(got, *s.Change.Metrics)
		default:
			continue
		}
		at = append(at, s.At.Sub(start()))
	}
	if len(got) < 5 || at[3] != 2*time.Minute || got[0].Reliability != 29.0/32 || got[3].Reliability != 16.0/32 || got[0].Return < 3*time.Hour {
		t.Fatalf("%+v at %v", got, at)
	}
	last := got[len(got)-1]
	if last.Reliability != 16.0/32 || last.Return > 2*time.Hour || last.Latency != 0 || last.GPUSpeed != 0 {
		t.Errorf("in the end it has %+v", last)
	}
	if flat := traffic.Flat(placement.Cheapest); slices.Contains(flat, "reliability") || slices.Contains(flat, "return") || !slices.Contains(flat, "speed") || !slices.Contains(flat, "latency") {
		t.Errorf("flat are %v", flat)
	}
}
