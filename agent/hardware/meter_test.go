package hardware

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"offpeak"
)

// tools is a folder with one made-up tool.
func tools(t *testing.T, name, script string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTools(t *testing.T) {
	two := "cat " + absolute(t, "nvidia-two.csv")
	for _, c := range []struct {
		name, tool, script string
		devices            int
		warning            string
	}{
		{"answers", "nvidia-smi", two, 2, ""},
		{"fails", "nvidia-smi", "echo no driver; exit 9", 0, "no driver"},
		{"hangs", "nvidia-smi", "trap '' TERM; sleep 1000 & sleep 1001", 0, "no answer within 2s"},
		{"leaves a child with the pipe", "nvidia-smi", "setsid sleep 1000 & exit 0", 0, ""},
		{"floods", "nvidia-smi", "yes GPU-x", 0, "it says more than 1048576 bytes"},
		{"is silent", "nvidia-smi", "", 0, ""},
		{"knows fewer columns", "nvidia-smi", `case "$*" in *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;;
			*clocks_throttle_reasons.active*) echo 'Field "clocks_throttle_reasons.active" is not a valid field to query.'; exit 2;;
			*mig.mode*) echo 'Field "mig.mode.current" is not a valid field to query.'; exit 2;; esac
			cat ` + absolute(t, "nvidia-old.csv"), 1, ""},
		{"knows none", "nvidia-smi", `echo 'Field "uuid" is not a valid field to query.'; exit 2`, 0, "not a valid field"},
		{"tells other columns", "nvidia-smi", `echo 'Field "fan.speed" is not a valid field to query.'; exit 2`, 0, "not a valid field"},
		{"divided", "nvidia-smi", `case "$1" in -L) cat ` + absolute(t, "nvidia-mig.list") + `;; -q) cat ` + absolute(t, "nvidia-mig.xml") + `;; *) cat ` + absolute(t, "nvidia-mig.csv") + `;; esac`, 3, ""},
		{"AMD", "rocm-smi", "cat " + absolute(t, "rocm-smi.json"), 3, "does not tell its memory"},
		{"AMD, failing", "rocm-smi", "exit 1", 0, "AMD GPUs are not offered"},
		{"AMD, garbage", "rocm-smi", "echo {", 0, "can't be read"},
		{"AMD, newer", "amd-smi", `case "$1" in static) cat ` + absolute(t, "amd-smi-static.json") + `;; *) cat ` + absolute(t, "amd-smi-metric.json") + `;; esac`, 1, ""},
		{"Apple", "system_profiler", "cat " + absolute(t, "apple-m2.json"), 1, ""},
		{"Apple, failing", "system_profiler", "echo oh; exit 3", 0, "oh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			s := NewMeter(Sources{Tools: tools(t, c.tool, c.script), Sys: t.TempDir()}).Measure(context.Background(), nil)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			if len(s.Devices()) != c.devices {
				t.Errorf("devices %+v", s.Devices())
			}
			if c.warning != "" && !strings.Contains(strings.Join(s.Warnings, "\n"), c.warning) || c.warning == "" && len(s.Warnings) > 0 && c.devices > 1 {
				t.Errorf("warnings %q", s.Warnings)
			}
		})
	}
}

func TestProbe(t *testing.T) {
	inv := Probe(context.Background(), Sources{Folder: t.TempDir()})
	if inv.CPU < 1000 || inv.Memory < offpeak.MiB || inv.Disk <= 0 || inv.OS == "" || inv.Arch == "" || len(inv.Warnings) > 0 {
		t.Errorf("%+v", inv)
	}
}

// A graphics processor that the kernel has put to sleep is not woken to be asked.
func TestAsleep(t *testing.T) {
	sys, dir := t.TempDir(), tools(t, "nvidia-smi", "touch $0.asked; cat "+absolute(t, "nvidia-h200.csv"))
	status := filepath.Join(sys, "bus/pci/drivers/nvidia/0000:01:00.0/power/runtime_status")
	if err := os.MkdirAll(filepath.Dir(status), 0o755); err != nil {
		t.Fatal(err)
	}
	asked := func(state string) (devices int, asked bool) {
		t.Helper()
		if err := os.WriteFile(status, []byte(state+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		mark := filepath.Join(dir, "nvidia-smi.asked")
		_ = os.Remove(mark)
		n := &nvidia{tool: tool{name: "nvidia-smi", src: &Sources{Tools: dir, Sys: sys}}, columns: nvidiaColumns}
		all, _, err := n.look(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, gone := os.Stat(mark)
		return len(all), gone == nil
	}
	if n, was := asked("active"); n != 1 || !was {
		t.Errorf("awake: %d devices, asked %v", n, was)
	}
	if _, was := asked("suspended"); was {
		t.Error("asleep, it was asked")
	}
}

// lab is a meter over one source whose answers and clock the test sets.
type lab struct {
	*Meter
	at      time.Time
	all     []found
	err     error
	looks   int
	between func()
}

func newLab() *lab {
	l := &lab{at: time.Unix(1e9, 0)}
	l.Meter = &Meter{src: Sources{Proc: "/nonexistent"}, now: func() time.Time { return l.at }, fall: fallAfter, known: map[offpeak.DeviceID]*known{}}
	l.sources = []*source{{look: func(context.Context, forest) ([]found, []string, error) {
		l.looks++
		all := append([]found(nil), l.all...)
		if l.between != nil {
			l.between()
		}
		return all, nil, l.err
	}}}
	return l
}

// look measures after a while and returns what is offered of the device, -1 if
// it is not.
func (l *lab) look(after time.Duration, ours ...int) offpeak.Bytes {
	l.at = l.at.Add(after)
	s := l.Measure(context.Background(), ours)
	if len(s.Readings) == 0 {
		return -1
	}
	return s.Readings[0].Device.VRAM
}

func card24(used offpeak.Bytes, processes ...Process) []found {
	return []found{{device: offpeak.Device{ID: "GPU-1", Model: "Card", VRAM: 24564 * mib}, used: &used, processes: processes}}
}

func TestMissing(t *testing.T) {
	l := newLab()
	l.all = card24(0)
	if got := l.look(0); got != 24564*mib {
		t.Fatal(got)
	}
	// One look that fails is nothing; nor are many in a moment.
	for _, err := range []error{nil, errors.New("hangs")} {
		l.all, l.err = nil, err
		if got := l.look(time.Second); got != 24564*mib {
			t.Errorf("a device is gone at the first look (%v)", err)
		}
		if got := l.look(time.Second); got != 24564*mib {
			t.Errorf("a device is gone within 2 s (%v)", err)
		}
		if got := l.look(10 * time.Second); got != -1 {
			t.Errorf("a device is still there after 11 s (%v)", err)
		}
		if w := strings.Join(l.Last().Warnings, "\n"); !strings.Contains(w, "GPU missing: Card (GPU-1)") || err != nil && !strings.Contains(w, "its tool does not answer") {
			t.Errorf("warnings %q", w)
		}
		before := l.Last().Warnings
		l.look(time.Hour)
		if diff := cmp.Diff(before, l.Last().Warnings); diff != "" {
			t.Errorf("warnings change while nothing does: %s", diff)
		}
		l.all, l.err = card24(0), nil
		if got := l.look(time.Second); got != 24564*mib || len(l.Last().Warnings) != 0 {
			t.Errorf("it is not back: %s, %q", got, l.Last().Warnings)
		}
	}
}

func TestOffered(t *testing.T) {
	l := newLab()
	is := func(what string, after time.Duration, used, want offpeak.Bytes) {
		t.Helper()
		l.all = card24(used * mib)
		if got := l.look(after); got != want*mib {
			t.Errorf("%s: %s offered, want %s", what, got, want*mib)
		}
	}
	const step = 64
	is("what a driver takes", time.Second, 120, 24564-2*step)
	is("a desktop", time.Second, 900, 24564-19*step)
	is("a window more", time.Second, 950, 24564-19*step)
	is("a game", time.Second, 10240, 24564-164*step)
	is("it is over", time.Second, 1000, 24564-164*step)
	is("not for long yet", 29*time.Second, 900, 24564-164*step)
	is("for long", time.Second, 1000, 24564-20*step)
	is("a window less", time.Minute, 940, 24564-20*step)
	is("again", time.Minute, 940, 24564-20*step)
	is("all of it", time.Second, 24564, 0)
	// However small or large the card, what its driver takes costs it no size
	// that it is sold under.
	for _, gib := range []offpeak.Bytes{3, 4, 6, 8, 12, 16, 24, 48, 80, 141} {
		total := gib * offpeak.GiB
		if got := total - keep(total, total/100); got < total-total/offpeak.Tolerance {
			t.Errorf("of %s only %s are offered beside its driver", total, got)
		}
	}
}

// What our own jobs hold is not others'; a device that does not tell which job
// holds how much keeps what it offered.
func TestOurs(t *testing.T) {
	l := newLab()
	ten, two := 10*offpeak.GiB, 2*offpeak.GiB
	l.all = card24(ten+two, Process{PID: 7, VRAM: &ten}, Process{PID: 8, VRAM: &two})
	offered := l.look(0, 7)
	if r := l.Last().Readings[0]; r.Foreign != two || r.Ours[7] != ten || offered != r.Device.Total-keep(r.Device.Total, two) {
		t.Errorf("%+v", r)
	}
	l.all = card24(20*offpeak.GiB, Process{PID: 7}, Process{PID: 8, VRAM: &two})
	if got := l.look(time.Second, 7); got != offered {
		t.Errorf("with a job that does not tell, %s offered, want %s", got, offered)
	}
	if r := l.Last().Readings[0]; len(r.Blind) != 1 || r.Blind[0] != 7 {
		t.Errorf("%+v", r)
	}
	// A job that ends between the two questions of a look is nobody's game.
	l.all = card24(ten+two, Process{PID: 7, VRAM: &ten})
	l.look(time.Second, 7)
	l.all = card24(ten + two)
	l.between = func() { l.all = card24(two) }
	if got := l.look(time.Second, 7); got != offered {
		t.Errorf("after a job's end %s offered, want %s", got, offered)
	}
}

func TestReport(t *testing.T) {
	f := func(n float64) *float64 { return &n }
	sample := func(used offpeak.Bytes, heat, watts, use float64, why ...string) Sample {
		return Sample{Readings: []Reading{{Device: offpeak.Device{ID: "GPU-1", Total: 24 * offpeak.GiB}, Used: &used, Foreign: used, Temperature: f(heat), Power: f(watts), Utilisation: f(use), Throttled: why}}}
	}
	told := Report(nil, sample(offpeak.GiB, 50, 100, 10))
	if len(told) != 1 || *told[0].Temperature != 50 || *told[0].Used != offpeak.GiB {
		t.Fatalf("%+v", told)
	}
	for name, c := range map[string]struct {
		s    Sample
		news bool
	}{
		"the same":       {sample(offpeak.GiB, 50, 100, 10), false},
		"about the same": {sample(offpeak.GiB+100*mib, 52.6, 120, 25), false},
		"more memory":    {sample(2*offpeak.GiB, 50, 100, 10), true},
		"hotter":         {sample(offpeak.GiB, 54, 100, 10), true},
		"busier":         {sample(offpeak.GiB, 50, 100, 90), true},
		"throttled":      {sample(offpeak.GiB, 50, 100, 10, ThrottleHeat), true},
		"gone":           {Sample{}, true},
		"silent":         {Sample{Readings: []Reading{{Device: offpeak.Device{ID: "GPU-1"}}}}, true},
	} {
		got := Report(told, c.s)
		if (got != nil) != c.news {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if Report(nil, Sample{}) != nil {
		t.Error("no devices are news")
	}
}

// Case 32: devices go by UUID, or by an order that is pinned.
func TestVisible(t *testing.T) {
	have := []offpeak.Device{
		{ID: "GPU-n1", Vendor: "nvidia"}, {ID: "GPU-n0", Vendor: "nvidia"}, {ID: "GPU-a0", Vendor: "amd"}, {ID: "pci-0000:09:00.0", Vendor: "amd"},
		{ID: "pci-0000:04:00.0", Vendor: "intel"}, {ID: "pci-0000:00:02.0", Vendor: "intel", Unified: true},
	}
	for _, c := range []struct {
		held string
		want string
	}{
		{"", "CUDA_VISIBLE_DEVICES= HIP_VISIBLE_DEVICES=-1 NVIDIA_VISIBLE_DEVICES=void OFFPEAK_DEVICES= ROCR_VISIBLE_DEVICES="},
		{"GPU-n0", "CUDA_VISIBLE_DEVICES=GPU-n0 HIP_VISIBLE_DEVICES=-1 NVIDIA_VISIBLE_DEVICES=GPU-n0 OFFPEAK_DEVICES=GPU-n0 ROCR_VISIBLE_DEVICES="},
		{"GPU-n1,GPU-n0", "CUDA_VISIBLE_DEVICES=GPU-n1,GPU-n0 HIP_VISIBLE_DEVICES=-1 NVIDIA_VISIBLE_DEVICES=GPU-n1,GPU-n0 OFFPEAK_DEVICES=GPU-n1,GPU-n0 ROCR_VISIBLE_DEVICES="},
		{"GPU-a0", "HIP_VISIBLE_DEVICES=0 NVIDIA_VISIBLE_DEVICES=void OFFPEAK_DEVICES=GPU-a0 ROCR_VISIBLE_DEVICES=GPU-a0"},
		{"GPU-a0,GPU-n0", "CUDA_VISIBLE_DEVICES=GPU-n0 HIP_VISIBLE_DEVICES=0 NVIDIA_VISIBLE_DEVICES=GPU-n0 OFFPEAK_DEVICES=GPU-a0,GPU-n0 ROCR_VISIBLE_DEVICES=GPU-a0"},
		{"pci-0000:09:00.0", "NVIDIA_VISIBLE_DEVICES=void OFFPEAK_DEVICES=pci-0000:09:00.0"},
		{"pci-0000:04:00.0", "CUDA_VISIBLE_DEVICES= HIP_VISIBLE_DEVICES=-1 NVIDIA_VISIBLE_DEVICES=void OFFPEAK_DEVICES=pci-0000:04:00.0 ROCR_VISIBLE_DEVICES= ZE_AFFINITY_MASK=1 ZE_ENABLE_PCI_ID_DEVICE_ORDER=1"},
		{"GPU-gone", "CUDA_VISIBLE_DEVICES=GPU-gone HIP_VISIBLE_DEVICES=-1 NVIDIA_VISIBLE_DEVICES=GPU-gone OFFPEAK_DEVICES=GPU-gone ROCR_VISIBLE_DEVICES="},
	} {
		var held []offpeak.DeviceID
		for s := range strings.SplitSeq(c.held, ",") {
			if s != "" {
				held = append(held, offpeak.DeviceID(s))
			}
		}
		env := Visible(have, held)
		var got []string
		for _, k := range []string{"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "OFFPEAK_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"} {
			if v, ok := env[k]; ok {
				got = append(got, k+"="+v)
			}
		}
		if diff := cmp.Diff(c.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: %s", c.held, diff)
		}
	}
}
