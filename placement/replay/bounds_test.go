package replay_test

import (
	"fmt"
	"strings"
	"testing"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/replay"
)

// inBothOrders replays in the order of a hub and in the plain one: bounds hold in both.
func inBothOrders(t *testing.T, s *script, check func(t *testing.T, r replay.Result)) {
	t.Helper()
	s.t.Sort()
	if err := s.t.Check(); err != nil {
		t.Fatal(err)
	}
	set := replay.Set{Tuning: placement.DefaultTuning()}
	for name, opts := range map[string]replay.Options{"by share": {}, "by age": {Queue: replay.ByAge}} {
		r, err := replay.Run(&s.t, set, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { check(t, r) })
	}
}

func TestQuotaOfRunningJobs(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8, 8, 8)})
	s.at(0, replay.Step{Quota: &replay.Quota{Account: "lab", Running: 1}})
	for _, id := range []string{"a", "b", "c"} {
		s.at(0, replay.Step{Submit: work(id, 1, 2, 8)})
	}
	other := work("other", 1, 2, 8)
	other.Account = "works"
	s.at(0, replay.Step{Submit: other})
	// Raised, the third need not wait for the second.
	s.at(180, replay.Step{Quota: &replay.Quota{Account: "lab", Running: 2}})
	inBothOrders(t, s, func(t *testing.T, r replay.Result) {
		if r.Finished != 4 || r.WaitP95 != hours(3) || r.WaitMean != hours(5.0/4) {
			t.Errorf("%+v", r)
		}
		// No GPU is kept from anybody by a quota.
		if r.IdleGPUHours != 0 {
			t.Errorf("GPUs are said to be idle for %g h while jobs wait for room in a quota", r.IdleGPUHours)
		}
	})
}

func TestQuotaOfGPUs(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8, 8, 8)})
	s.at(0, replay.Step{Quota: &replay.Quota{Account: "lab", GPUs: 2}})
	s.at(0, replay.Step{Submit: work("two", 1, 2, 8, 8)})
	s.at(1, replay.Step{Submit: work("one", 1, 2, 8)})
	s.at(2, replay.Step{Submit: work("none", 1, 2)})
	s.at(3, replay.Step{Submit: work("three", 1, 2, 8, 8, 8)})   // more than it may ever have
	s.at(3, replay.Step{Submit: work("four", 1, 2, 8, 8, 8, 8)}) // more than there is
	inBothOrders(t, s, func(t *testing.T, r replay.Result) {
		if r.Finished != 3 || r.WaitMedian != 0 || r.Bounded != 1 || r.StrandedJobs != 0 || r.Unserved != 1 || r.IdleGPUHours != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// What was refused at submission under a quota is submitted as soon as there is room.
func TestQuotaOfOpenJobs(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8, 8, 8)})
	s.at(0, replay.Step{Quota: &replay.Quota{Account: "lab", Queued: 2}})
	for i := range 5 {
		s.at(float64(i), replay.Step{Submit: work(fmt.Sprint("j", i), 1, 4, 8)})
	}
	s.at(60, replay.Step{Cancel: "j2"}) // while it is held back
	inBothOrders(t, s, func(t *testing.T, r replay.Result) {
		if r.Finished != 4 || r.Cancelled != 1 || r.Started != 4 || r.WaitP95 < hours(3.9) {
			t.Errorf("%+v", r)
		}
	})
}

func TestArrayWithALimit(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8, 8, 8)})
	for i := range 4 {
		j := work(fmt.Sprint("j", i), 1, 2, 8)
		j.Group, j.AtOnce = "group_a", 2
		s.at(0, replay.Step{Submit: j})
	}
	s.at(1, replay.Step{Submit: work("alone", 1, 1, 8)})
	// None of it waits any more when the last come.
	for i := range 3 {
		j := work(fmt.Sprint("later", i), 1, 1, 8)
		j.Group, j.AtOnce = "group_a", 2
		s.at(300, replay.Step{Submit: j})
	}
	inBothOrders(t, s, func(t *testing.T, r replay.Result) {
		if r.Finished != 8 || r.WaitMean != hours(5.0/8) || r.WaitP95 != hours(2) || r.IdleGPUHours != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// An interrupted member gives its turn back.
func TestInterruptedMember(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("a", 8, 32, 8)})
	s.at(0, replay.Step{Join: machine("b", 8, 32, 8)})
	for i := range 2 {
		j := work(fmt.Sprint("j", i), 1, 2, 8)
		j.Group, j.AtOnce = "group_a", 1
		s.at(0, replay.Step{Submit: j})
	}
	s.at(60, replay.Step{Leave: "a"})
	s.at(61, replay.Step{Leave: "b"})
	s.at(90, replay.Step{Join: machine("c", 8, 32, 8, 8)})
	inBothOrders(t, s, func(t *testing.T, r replay.Result) {
		if r.Finished != 2 || r.Interrupted == 0 {
			t.Errorf("%+v", r)
		}
	})
}

func TestQuotasAtTheCut(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Quota: &replay.Quota{Account: "lab", Running: 1}})
	s.at(60, replay.Step{Quota: &replay.Quota{Account: "lab", Running: 2}})
	s.at(60, replay.Step{Quota: &replay.Quota{Account: "works", GPUs: 2}})
	_, second := s.t.Split(0.5)
	if err := second.Check(); err != nil {
		t.Error(err)
	}
	if len(second.Steps) != 2 || *second.Steps[0].Quota != (replay.Quota{Account: "lab", Running: 2}) || second.Steps[1].Quota.Account != "works" {
		t.Errorf("%+v", second.Steps)
	}
}

// What a file says that makes no sense is refused with the line's step; nothing in it
// makes a run fail, or last for ever.
func TestHostileFiles(t *testing.T) {
	head := `{"traffic":2,"from":"2026-01-01T00:00:00Z","until":"2026-01-02T00:00:00Z"}` + "\n"
	at := `{"at":"2026-01-01T00:00:00Z",`
	job := func(more string) string { return head + at + `"submit":{"id":"j","work":"1s"` + more + "}}" }
	for name, bad := range map[string]struct{ text, want string }{
		"negative preparation":    {job(`,"prepare":"-1h"`), "from 0s to ten years"},
		"a limit of ages":         {job(`,"limit":"2000000h"`), "from 0s to ten years"},
		"keeps below nothing":     {job(`,"keep":"-1ns"`), "from 0s to ten years"},
		"a negative limit":        {job(`,"group":"group_x","at_once":-1`), "at_once is -1"},
		"a limit of no array":     {job(`,"at_once":3`), "at_once is 3"},
		"negative memory":         {job(`,"requirements":{"memory_bytes":-5}`), "from 0 to 1024TiB"},
		"cores that run over":     {job(`,"requirements":{"cpu_milli":9223372036854775807}`), "cpu_milli is"},
		"very many GPUs":          {job(`,"requirements":{"gpus":[` + strings.Repeat("{},", 99) + `{}]}`), "100 GPUs: at most 64"},
		"a negative quota":        {head + at + `"quota":{"account":"a","gpus":-1}}`, "quota of account a"},
		"nobody's quota":          {head + at + `"quota":{"gpus":1}}`, "it names an account"},
		"a state that is none":    {head + at + `"join":{"id":"n","liveness":"onlin"}}`, `join of node n: liveness "onlin" is not`},
		"an ask below nothing":    {head + at + `"join":{"id":"n","ask":{"gpu":-1}}}`, "join of node n: "},
		"one device twice":        {head + at + `"join":{"id":"n","inventory":{"devices":[{"id":"d"},{"id":"d"}]}}}`, `device "d"`},
		"memory below nothing":    {head + at + `"change":{"node":"n","inventory":{"memory_bytes":-1}}}`, "from 0 to 1024TiB"},
		"an end that is none":     {head + at + `"change":{"node":"n","stop":"boom"}}`, `stop is "boom"`},
		"a time that is no time":  {head + `{"at":"never","leave":"n"}`, "line 2: "},
		"weights that run away":   {strings.Replace(head, `"from"`, `"in_force":{"vram":-1},"from"`, 1) + at + `"leave":"n"}`, "in_force: "},
		"a value behind a value":  {head + at + `"leave":"n"} {}`, "line 2: there is more than one value"},
		"a line longer than fits": {head + at + `"leave":"` + strings.Repeat("n", replay.MaxLine) + `"}`, "line 2: "},
	} {
		if _, err := replay.Read(strings.NewReader(bad.text)); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %q", name, err, bad.want)
		}
	}
	// As much as is allowed, of everything.
	s := newScript(90 * 365 * 24)
	n := machine("n", 1, 1, 8)
	n.Ask = &offpeak.Ask{GPU: offpeak.MaxPrice, CPU: offpeak.MaxPrice}
	s.at(0, replay.Step{Join: n})
	for i := range 100 {
		j := work(fmt.Sprint("j", i), 1, 1, 8)
		j.Work, j.Prepare, j.Limit = offpeak.MaxDuration, offpeak.MaxDuration, offpeak.MaxDuration
		s.at(1, replay.Step{Submit: j})
	}
	if r := run(t, &s.t); r.Finished != 4 || r.JobHours < 87_000 || r.WorkHours < 4*87_000 || r.Paid < 0 {
		t.Errorf("%+v", r)
	}
}
