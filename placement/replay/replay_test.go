package replay_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/replay"
)

// start is when all worlds of these tests begin.
func start() time.Time { return time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC) }

// script writes traffic by hand.
type script struct{ t replay.Traffic }

func newScript(hours float64) *script {
	return &script{replay.Traffic{From: start(), Until: start().Add(time.Duration(hours * float64(time.Hour)))}}
}

func (s *script) at(minutes float64, step replay.Step) {
	step.At = start().Add(time.Duration(minutes * float64(time.Minute)))
	s.t.Steps = append(s.t.Steps, step)
}

func machine(id string, cores, memory int, vram ...int) *replay.Node {
	inv := offpeak.Inventory{
		OS: "linux", Arch: "amd64", CPU: int64(cores) * 1000, Memory: offpeak.Bytes(memory) * offpeak.GiB, Disk: 1000 * offpeak.GiB,
		Drivers: []string{"process"}, Shared: []string{"process"},
	}
	for i, v := range vram {
		inv.Devices = append(inv.Devices, offpeak.Device{ID: offpeak.DeviceID(id + "-" + string(rune('a'+i))), Vendor: "nvidia", Model: "card", VRAM: offpeak.Bytes(v) * offpeak.GiB})
	}
	return &replay.Node{
		ID: offpeak.NodeID(id), Account: "owner", Inventory: inv, Ask: &offpeak.Ask{GPU: 1_000_000, CPU: 100_000},
		Liveness: offpeak.NodeOnline, Intent: offpeak.NodeOpen, Availability: offpeak.NodeAvailable,
	}
}

func work(id string, cores int, hours float64, vram ...int) *replay.Job {
	j := &replay.Job{
		ID: offpeak.JobID(id), Account: "lab", Driver: "process", Work: offpeak.Duration(hours * float64(time.Hour)),
		Requirements: offpeak.Requirements{CPU: int64(cores) * 1000, Memory: offpeak.GiB, Disk: offpeak.GiB, Trust: offpeak.TrustAny},
	}
	for _, v := range vram {
		j.Requirements.GPUs = append(j.Requirements.GPUs, offpeak.GPURequest{VRAM: offpeak.Bytes(v) * offpeak.GiB})
	}
	return j
}

func run(t *testing.T, traffic *replay.Traffic) replay.Result {
	t.Helper()
	if err := traffic.Check(); err != nil {
		t.Fatal(err)
	}
	r, err := replay.Run(traffic, replay.Set{Name: "default", Tuning: placement.DefaultTuning()}, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func hours(h float64) offpeak.Duration { return offpeak.Duration(h * float64(time.Hour)) }

// A small job takes the small card, so that the large job finds the large one.
func TestTightFit(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("large", 8, 32, 24)})
	s.at(0, replay.Step{Join: machine("small", 8, 32, 8)})
	s.at(1, replay.Step{Submit: work("a", 1, 5, 4)})
	s.at(2, replay.Step{Submit: work("b", 1, 5, 16)})
	r := run(t, &s.t)
	if r.Started != 2 || r.Finished != 2 || r.WaitP95 != 0 || r.Paid != 10_000_000 || r.WorkHours != 10 {
		t.Errorf("%+v", r)
	}
}

func TestOneAfterTheOther(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8)})
	first := work("a", 1, 2, 8)
	first.Prepare = hours(0.5)
	s.at(0, replay.Step{Submit: first})
	s.at(30, replay.Step{Submit: work("b", 1, 1, 8)})
	low := work("c", 1, 1, 8)
	low.Priority = -1
	s.at(10, replay.Step{Submit: low})
	s.t.Sort()
	// As a hub orders them: c, which waited for long, has the node kept for it from 1 h
	// and 10 min on, and starts at 2.5 h, b at 3.5 h.
	r := run(t, &s.t)
	if r.Finished != 3 || r.WaitMedian != hours(2.5)-hours(1)/6 || r.WaitP95 != hours(3) {
		t.Errorf("%+v", r)
	}
	r, err := replay.Run(&s.t, replay.Set{Name: "default", Tuning: placement.DefaultTuning()}, replay.Options{Queue: replay.ByAge})
	if err != nil {
		t.Fatal(err)
	}
	// By priority and age b starts at 2.5 h, c at 3.5 h.
	if r.Finished != 3 || r.WaitMedian != hours(2) || r.WaitP95 != hours(3.5)-hours(1)/6 {
		t.Errorf("%+v", r)
	}
	if r.IdleGPUHours != 0 {
		t.Errorf("idle for %g h while the one GPU was held", r.IdleGPUHours)
	}
}

// A GPU that nobody can have, since jobs without one hold the node's cores, is idle
// while its jobs wait.
func TestHostages(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8, 8)})
	s.at(0, replay.Step{Submit: work("cpu", 8, 3)})
	s.at(60, replay.Step{Submit: work("gpu", 2, 1, 8)})
	r := run(t, &s.t)
	if r.IdleGPUHours != 4 || r.WaitP95 != hours(2) {
		t.Errorf("idle for %g GPU-hours, p95 %s; two GPUs are idle for two hours: %+v", r.IdleGPUHours, r.WaitP95, r)
	}
}

func TestInterruptions(t *testing.T) {
	for name, tc := range map[string]struct {
		step replay.Step
		back replay.Step
	}{
		"lost":   {replay.Step{Change: &replay.Change{Node: "n", Liveness: offpeak.NodeOffline}}, replay.Step{Change: &replay.Change{Node: "n", Liveness: offpeak.NodeOnline}}},
		"in use": {replay.Step{Change: &replay.Change{Node: "n", Availability: offpeak.NodeInUse}}, replay.Step{Change: &replay.Change{Node: "n", Availability: offpeak.NodeAvailable}}},
		"left":   {replay.Step{Leave: "n"}, replay.Step{Join: machine("n", 8, 32, 8)}},
	} {
		s := newScript(10)
		s.at(0, replay.Step{Join: machine("n", 8, 32, 8)})
		keeps := work("a", 1, 4, 8)
		keeps.Keep = hours(1)
		s.at(0, replay.Step{Submit: keeps})
		s.at(150, tc.step) // 2 h are kept, half an hour is lost
		s.at(180, tc.back)
		r := run(t, &s.t)
		if r.Finished != 1 || r.Interrupted != 1 || r.InterruptedJobs != 1 || r.LostHours != 0.5 || r.Paid != 4_000_000 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestWhatNeverStarts(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8)})
	s.at(0, replay.Step{Submit: work("a", 1, 20, 8)})
	s.at(1, replay.Step{Submit: work("waits", 1, 1, 8)})
	s.at(2, replay.Step{Submit: work("none", 1, 1, 48)})
	s.at(3, replay.Step{Submit: work("cancelled", 1, 1, 8)})
	s.at(63, replay.Step{Cancel: "cancelled"})
	s.at(595, replay.Step{Submit: work("just now", 1, 1, 8)})
	r := run(t, &s.t)
	want := []replay.Kind{{Kind: "gpu 8GiB", Jobs: 1}}
	if r.Started != 1 || r.Unserved != 1 || r.StrandedJobs != 1 || !reflect.DeepEqual(r.Stranded, want) || r.Cancelled != 1 || r.WorkHours != 10 {
		t.Errorf("%+v", r)
	}
}

// Work that somebody cancels is not lost to an interruption.
func TestCancelledWhileItRuns(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8)})
	s.at(0, replay.Step{Submit: work("a", 1, 5, 8)})
	s.at(60, replay.Step{Cancel: "a"})
	if r := run(t, &s.t); r.Cancelled != 1 || r.Interrupted != 0 || r.LostHours != 0 {
		t.Errorf("%+v", r)
	}
}

// A node that left before a job came could not have served it.
func TestWhoIsGoneServesNobody(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8)})
	s.at(1, replay.Step{Leave: "n"})
	s.at(2, replay.Step{Submit: work("late", 1, 1, 8)})
	if r := run(t, &s.t); r.Unserved != 1 || r.StrandedJobs != 0 {
		t.Errorf("%+v", r)
	}
}

func TestInventoryThatShrinks(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8)})
	s.at(0, replay.Step{Submit: work("a", 1, 5, 8)})
	less := machine("n", 8, 32).Inventory
	s.at(60, replay.Step{Change: &replay.Change{Node: "n", Inventory: &less}})
	if r := run(t, &s.t); r.Interrupted != 1 || r.Finished != 0 || r.LostHours != 1 {
		t.Errorf("%+v", r)
	}
}

func TestAsks(t *testing.T) {
	s := newScript(10)
	n := machine("n", 8, 32, 8)
	n.Ask = nil
	s.at(0, replay.Step{Join: n})
	j := work("a", 1, 1, 8)
	most := offpeak.Price(500_000)
	j.Requirements.MaxPrice = &most
	s.at(0, replay.Step{Submit: j})
	s.at(60, replay.Step{Change: &replay.Change{Node: "n", Asks: true, Ask: &offpeak.Ask{GPU: 600_000}}})
	s.at(120, replay.Step{Change: &replay.Change{Node: "n", Asks: true, Ask: &offpeak.Ask{GPU: 400_000}}})
	if r := run(t, &s.t); r.WaitMedian != hours(2) || r.Paid != 400_000 {
		t.Errorf("%+v", r)
	}
}

func TestTimeLimit(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8)})
	j := work("a", 1, 5, 8)
	j.Limit = hours(2)
	s.at(0, replay.Step{Submit: j})
	if r := run(t, &s.t); r.Failed != 1 || r.WorkHours != 2 {
		t.Errorf("%+v", r)
	}
}

func TestFileAndBack(t *testing.T) {
	s := newScript(10)
	s.t.Notes = []string{"made by hand"}
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8)})
	s.at(0, replay.Step{Submit: work("a", 1, 5, 8)})
	s.at(30, replay.Step{Change: &replay.Change{Node: "n", Asks: true}})
	s.at(60, replay.Step{Cancel: "a"})
	s.at(90, replay.Step{Leave: "n"})
	s.at(90, replay.Step{Quota: &replay.Quota{Account: "lab", Running: 3}})
	var file bytes.Buffer
	if err := s.t.Write(&file); err != nil {
		t.Fatal(err)
	}
	text := file.String()
	back, err := replay.Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, &s.t) {
		t.Errorf("written\n%+v\nread\n%+v", &s.t, back)
	}
	line, _, _ := strings.Cut(text, "\n")
	if !replay.Known([]byte(line)) {
		t.Errorf("the first line is not known: %s", line)
	}
	for name, bad := range map[string]struct{ text, want string }{
		"empty":        {"", "empty"},
		"no head":      {`{"cursor":1}`, `begins with {"traffic":2`},
		"newer":        {strings.Replace(text, `"traffic":2`, `"traffic":7`, 1), "format 7"},
		"unknown word": {strings.Replace(text, `"leave"`, `"leaves"`, 1), `line 6: json: unknown field "leaves"`},
		"two at once":  {strings.Replace(text, `"leave"`, `"cancel":"a","leave"`, 1), "step 5: a step has one of"},
		"no work":      {strings.Replace(text, `"work":"5h0m0s"`, `"work":"0s"`, 1), "step 2: submit of job a: work is above 0s"},
		"out of order": {strings.Replace(text, `00:30:00Z","change"`, `05:30:00Z","change"`, 1), "step 4: its time"},
		"a line less":  {text[:strings.LastIndex(text[:len(text)-1], "\n")+1], "line 6: the file ends after 5 of 6 steps"},
		"half a line":  {text[:len(text)-10], "line 7"},
	} {
		if _, err := replay.Read(strings.NewReader(bad.text)); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %q", name, err, bad.want)
		}
	}
}

func TestSplit(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8)})
	s.at(0, replay.Step{Join: machine("gone", 8, 32, 8)})
	s.at(0, replay.Step{Submit: work("a", 1, 1, 8)})
	s.at(10, replay.Step{Leave: "gone"})
	s.at(20, replay.Step{Change: &replay.Change{Node: "n", Availability: offpeak.NodeInUse}})
	s.at(400, replay.Step{Cancel: "a"})
	s.at(410, replay.Step{Submit: work("b", 1, 1, 8)})
	s.at(420, replay.Step{Cancel: "b"})
	first, second := s.t.Split(0.5)
	for _, part := range []replay.Traffic{first, second} {
		if err := part.Check(); err != nil {
			t.Error(err)
		}
	}
	if len(first.Steps) != 5 || len(second.Steps) != 3 {
		t.Fatalf("%d and %d steps", len(first.Steps), len(second.Steps))
	}
	if n := second.Steps[0].Join; n == nil || n.ID != "n" || n.Availability != offpeak.NodeInUse {
		t.Errorf("the second part begins with %+v", n)
	}
	if s.t.Steps[0].Join.Availability != offpeak.NodeAvailable {
		t.Error("the traffic itself was changed")
	}
}

func TestStopped(t *testing.T) {
	s := newScript(10)
	s.at(0, replay.Step{Join: machine("n", 8, 32, 8)})
	_, err := replay.Run(&s.t, replay.Set{Tuning: placement.DefaultTuning()}, replay.Options{Tick: func(float64) bool { return false }})
	if !errors.Is(err, replay.ErrStopped) {
		t.Errorf("%v", err)
	}
	bad := replay.Set{Tuning: placement.DefaultTuning()}
	bad.VRAM = -1
	if _, err := replay.Run(&s.t, bad, replay.Options{}); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("weights that make no sense: %v", err)
	}
}
