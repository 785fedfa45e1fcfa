package gridtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"offpeak"
)

// A referee that sees nothing would let every test pass.
func TestFaults(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	ended := func(s int) *time.Time { e := at(s); return &e }
	lost := offpeak.Lease{ID: "one", Attempt: 1, State: offpeak.LeaseLost, Reason: offpeak.EndNodeLost, EndedAt: ended(10)}
	won := offpeak.Lease{ID: "two", Attempt: 2, State: offpeak.LeaseSucceeded, Reason: offpeak.EndCompleted, EndedAt: ended(20)}
	job := offpeak.Job{State: offpeak.JobSucceeded, Attempt: 2}
	fact := func(what string, l offpeak.Lease, step, s int) Fact {
		return Fact{What: what, Attempt: l.Attempt, Lease: l.ID, Step: step, At: at(s)}
	}
	sound := []Fact{
		fact("start", lost, 0, 1), fact("step", lost, 1, 2), fact("step", lost, 2, 3),
		fact("start", won, 1, 11), fact("step", won, 2, 12), fact("end", won, 2, 13),
	}
	if got := faults(job, []offpeak.Lease{lost, won}, sound, false); len(got) > 0 {
		t.Errorf("sound facts are faulted: %q", got)
	}
	with := func(more ...Fact) []Fact { return append(slices.Clone(sound), more...) }
	both := lost
	both.State = offpeak.LeaseSucceeded
	for _, c := range []struct {
		what   string
		job    offpeak.Job
		leases []offpeak.Lease
		facts  []Fact
		slept  bool
		want   string
	}{
		{"two succeeded", job, []offpeak.Lease{both, won}, sound, false, "2 attempts succeeded"},
		{"an old one succeeded", offpeak.Job{State: offpeak.JobSucceeded, Attempt: 3}, []offpeak.Lease{lost, won}, sound, false, "the newest is 3"},
		{"none did", job, []offpeak.Lease{lost}, sound[:3], false, "0 attempts succeeded"},
		{"one did and did not run", job, []offpeak.Lease{lost, won}, sound[:3], false, "did not run"},
		{"no lease", job, []offpeak.Lease{won}, sound, false, "did not give"},
		{"another attempt's lease", job, []offpeak.Lease{lost, won}, with(Fact{What: "step", Attempt: 1, Lease: "two", Step: 3, At: at(14)}), false, "did not give"},
		{"started twice", job, []offpeak.Lease{lost, won}, with(fact("start", won, 0, 14)), false, "started twice"},
		{"a step again", job, []offpeak.Lease{lost, won}, with(fact("step", won, 2, 14)), false, "step 2 after step 2"},
		{"a step left out", job, []offpeak.Lease{lost, won}, with(fact("step", won, 4, 14)), false, "step 4 after step 2"},
		{"after its lease", job, []offpeak.Lease{lost, won}, with(fact("step", lost, 3, 11)), false, "after its lease ended as node_lost"},
		{"after its success, though another slept", job, []offpeak.Lease{lost, won}, with(fact("end", won, 2, 21)), true, "after its lease ended as completed"},
	} {
		if got := faults(c.job, c.leases, c.facts, c.slept); !strings.Contains(strings.Join(got, "\n"), c.want) {
			t.Errorf("%s: faults are %q, want one that says %q", c.what, got, c.want)
		}
	}
	woken := with(fact("step", lost, 3, 11))
	if got := faults(job, []offpeak.Lease{lost, won}, woken, true); len(got) > 0 {
		t.Errorf("what a sleeper does before it knows the time is faulted: %q", got)
	}
}
