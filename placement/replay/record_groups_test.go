package replay_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/placement/replay"
)

const (
	array   = offpeak.GroupID("group_00000000000000000000000000")
	another = offpeak.GroupID("group_00000000000000000000010000")
	// members is what an event says of some of them.
	members = `"account":"l","data":{"group":"%s","indexes":%q,"spec":"s","priority":3,"at_once":2%s}`
	theyAsk = `,"driver":"wasm","requirements":{"cpu_milli":500},"time_limit":"2h"`
)

func ofMember(g offpeak.GroupID, index int) string {
	return fmt.Sprintf(`"account":"l","job":%q,"attempt":1,"lease":"x%d","node":"n"`, g.Member(index), index)
}

func jobsOf(t *replay.Traffic) map[offpeak.JobID]replay.Step {
	out := map[offpeak.JobID]replay.Step{}
	for _, s := range t.Steps {
		if s.Submit != nil {
			out[s.Submit.ID] = s
		}
	}
	return out
}

// Events alone tell arrays: members wait from when they are queued, under the limit of
// their array.
func TestArrays(t *testing.T) {
	traffic := told(t,
		`1 group.queued `+fmt.Sprintf(members, array, "0-1", theyAsk),
		`2 group.queued `+fmt.Sprintf(members, array, "2", ""),
		`3 lease.offered `+ofMember(array, 0),
		`3 lease.running `+ofMember(array, 0),
		`9 lease.succeeded `+ofMember(array, 0)+`,"reason":"completed","data":{"metered_ms":300000}`,
		`9 job.succeeded `+ofMember(array, 0),
		`9 job.cancelled "account":"l","job":"`+string(array.Member(2))+`","reason":"cancelled"`,
	)
	jobs := jobsOf(traffic)
	if len(jobs) != 3 {
		t.Fatalf("%d jobs: %+v, %q", len(jobs), traffic.Steps, traffic.Notes)
	}
	first, last := jobs[array.Member(0)], jobs[array.Member(2)]
	if j := first.Submit; j.Work.Std() != 5*time.Minute || j.Guessed || j.Driver != "wasm" || j.Requirements.CPU != 500 || j.Priority != 3 || j.Limit != hours(2) || j.Group != array || j.AtOnce != 2 || j.Account != "l" {
		t.Errorf("%+v", j)
	}
	if first.At.Sub(start()) != time.Minute || last.At.Sub(start()) != 2*time.Minute {
		t.Errorf("submitted at %s and %s", first.At, last.At)
	}
}

// Members of an array that waits are no jobs before they are queued, nor ever where the
// whole failed or was cancelled; neither is a job that can't begin.
func TestArraysThatWait(t *testing.T) {
	traffic := told(t,
		`1 group.blocked `+fmt.Sprintf(members, array, "0-9", theyAsk),
		`1 group.blocked `+fmt.Sprintf(members, another, "0-9", theyAsk),
		`1 job.blocked "account":"l","job":"k","data":{"requirements":{"cpu_milli":1}}`,
		`2 job.failed "account":"l","job":"never","reason":"dependency_failed","data":{"requirements":{"cpu_milli":1}}`,
		`3 group.failed `+fmt.Sprintf(members, another, "0-9", ""),
		`4 job.failed "account":"l","job":"k","reason":"dependency_failed","data":{"parent":"p"}`,
		`5 group.queued `+fmt.Sprintf(members, array, "0-3", ""),
	)
	jobs := jobsOf(traffic)
	if len(jobs) != 4 || len(traffic.Steps) != 4 || jobs[array.Member(3)].At.Sub(start()) != 5*time.Minute || jobs[array.Member(3)].Submit.Driver != "wasm" {
		t.Errorf("%+v", traffic.Steps)
	}
	if len(traffic.Notes) != 1 || !strings.Contains(traffic.Notes[0], "4 jobs were not seen to their end") {
		t.Errorf("notes %q", traffic.Notes)
	}
}

// Where one hub's events were read before another's of before, it comes to the same.
func TestSubmissionReadLast(t *testing.T) {
	traffic := told(t,
		`2 lease.offered `+ofJob,
		`2 lease.offered `+ofMember(array, 4),
		`1 group.queued `+fmt.Sprintf(members, array, "4", theyAsk),
		`1 job.queued `+asks,
		`3 lease.running `+ofJob,
	)
	jobs := jobsOf(traffic)
	if len(jobs) != 2 || jobs["j"].At.Sub(start()) != time.Minute || jobs[array.Member(4)].At.Sub(start()) != time.Minute {
		t.Errorf("%+v, %q", traffic.Steps, traffic.Notes)
	}
}

// What an older hub wrote of arrays lacks what members ask for. Events alone leave them
// out, and say so; where their jobs are known they are replayed.
func TestArraysOfOlderHubs(t *testing.T) {
	line := fmt.Sprintf(`{"cursor":1,"at":%q,"type":"group.queued",`+members+`}`, start().Format(time.RFC3339), array, "0-2", "")
	end := fmt.Sprintf(`{"cursor":2,"at":%q,"type":"job.cancelled","job":%q,"reason":"cancelled"}`, start().Add(time.Hour).Format(time.RFC3339), array.Member(1))
	record := func(base replay.Base) *replay.Traffic {
		traffic, err := replay.Record(replay.Events(func(yield func([]byte, error) bool) { _ = yield([]byte(line), nil) && yield([]byte(end), nil) }), base)
		if err != nil {
			t.Fatal(err)
		}
		return traffic
	}
	if alone := record(replay.Base{}); len(jobsOf(alone)) != 0 || len(alone.Notes) != 1 || !strings.HasPrefix(alone.Notes[0], "3 jobs are members of arrays of which the hub, an older one, did not tell") {
		t.Errorf("%+v, %q", alone.Steps, alone.Notes)
	}
	asked := 0
	whole := record(replay.Base{Job: func(id offpeak.JobID) (offpeak.Job, bool) {
		asked++
		return offpeak.Job{ID: id, Account: "l", Group: string(array), Spec: offpeak.Spec{Requirements: offpeak.Requirements{CPU: 700}}}, true
	}})
	jobs := jobsOf(whole)
	if len(jobs) != 3 || asked != 1 {
		t.Fatalf("%d jobs, after %d questions", len(jobs), asked)
	}
	for id, s := range jobs {
		if s.Submit.ID != id || s.Submit.AtOnce != 2 || s.Submit.Group != array || s.Submit.Requirements.CPU != 700 {
			t.Errorf("%+v", s.Submit)
		}
	}
}

func TestQuotasFromEvents(t *testing.T) {
	traffic := told(t,
		`0 account.created "account":"new","data":{"name":"new","quota":{"running_jobs":2}}`,
		`0 account.created "account":"free","data":{"name":"free"}`,
		`5 account.quota "account":"old","data":{"gpus":4,"was":{"queued_jobs":9}}`,
		`6 account.quota "account":"old","data":{"gpus":5,"was":{"gpus":4}}`,
		`7 account.quota "account":"older","data":{"gpus":6}`,
	)
	var got []string
	for _, s := range traffic.Steps {
		got = append(got, fmt.Sprintf("%s %+v", s.At.Sub(start()), *s.Quota))
	}
	want := []string{
		"0s {Account:new Queued:0 Running:2 GPUs:0}", "0s {Account:old Queued:9 Running:0 GPUs:0}",
		"5m0s {Account:old Queued:0 Running:0 GPUs:4}", "6m0s {Account:old Queued:0 Running:0 GPUs:5}", "7m0s {Account:older Queued:0 Running:0 GPUs:6}",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q", got)
	}
}

// A file of events may say anything: it is refused with the line or the event.
func TestHostileEvents(t *testing.T) {
	for name, bad := range map[string]struct{ event, want string }{
		"no JSON":               {`job`, "line 2: "},
		"no time":               {`{"cursor":7,"type":"job.queued"}`, "line 2: an event has a type and a time"},
		"no type":               {`{"cursor":7,"at":"2026-01-01T00:00:00Z"}`, "line 2: "},
		"an array without name": {`{"cursor":7,"at":"2026-01-01T00:00:00Z","type":"group.queued","data":{"group":"g","indexes":"0-5"}}`, `event 7 (group.queued): group "g"`},
		"too many members":      {`{"cursor":7,"at":"2026-01-01T00:00:00Z","type":"group.queued","data":{"group":"` + string(array) + `","indexes":"0-999999"}}`, "event 7 (group.queued): "},
		"a negative run":        {`{"cursor":7,"at":"2026-01-01T00:00:00Z","type":"lease.lost","job":"j","data":{"metered_ms":-1}}`, "event 7 (lease.lost): metered_ms is -1"},
		"a run of ages":         {`{"cursor":7,"at":"2026-01-01T00:00:00Z","type":"checkpoint.stored","job":"j","data":{"metered_ms":9223372036854775807}}`, "metered_ms is"},
		"asks for ages of GPUs": {`{"cursor":7,"at":"2026-01-01T00:00:00Z","type":"job.queued","job":"j","data":{"requirements":{"gpus":[` + strings.Repeat("{},", 99) + `{}]}}}`, "event 7 (job.queued): job j: it asks for 100 GPUs"},
		"a negative quota":      {`{"cursor":7,"at":"2026-01-01T00:00:00Z","type":"account.quota","account":"a","data":{"gpus":-1}}`, "event 7 (account.quota): quota of account a"},
		"a node of ages":        {`{"cursor":7,"at":"2026-01-01T00:00:00Z","type":"node.inventory","node":"n","data":{"inventory":{"cpu_milli":-1}}}`, "event 7 (node.inventory): node n: cpu_milli is -1"},
		"another millennium":    {`{"cursor":7,"at":"3026-01-01T00:00:00Z","type":"node.online","node":"n"}`, "more than a hundred years"},
	} {
		lines := []string{`{"cursor":1,"at":"2026-01-01T00:00:00Z","type":"node.online","node":"n"}`, bad.event}
		_, err := replay.Record(replay.Events(func(yield func([]byte, error) bool) {
			for _, l := range lines {
				if !yield([]byte(l), nil) {
					return
				}
			}
		}), replay.Base{})
		if err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %q", name, err, bad.want)
		}
	}
}

// A few lines can name very many jobs; there is an end to it.
func TestMoreJobsThanFit(t *testing.T) {
	n := 0
	_, err := replay.Record(func(yield func(offpeak.Event, error) bool) {
		for ; ; n++ {
			id := offpeak.NewGroupID(fmt.Sprintf("group_%022d0000", n))
			e := offpeak.Event{Cursor: int64(n), At: start(), Type: "group.queued", Data: fmt.Appendf(nil, `{"group":%q,"indexes":"0-99"}`, id)}
			if !yield(e, nil) {
				return
			}
		}
	}, replay.Base{Most: 1000})
	if err == nil || !strings.Contains(err.Error(), "record less time at once") || n > 10 {
		t.Errorf("after %d events: %v", n, err)
	}
}
