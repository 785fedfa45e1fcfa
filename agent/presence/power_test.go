package presence

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"offpeak/internal/require"
)

// supplies makes a tree like /sys of "NAME file=value …" lines.
func supplies(lines ...string) fstest.MapFS {
	tree := fstest.MapFS{"class/power_supply": {Mode: fs.ModeDir | 0o755}}
	for _, line := range lines {
		fields := strings.Fields(line)
		for _, f := range fields[1:] {
			name, value, _ := strings.Cut(f, "=")
			tree[path.Join("class/power_supply", fields[0], name)] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(value, "_", " ") + "\n")}
		}
	}
	return tree
}

func TestSysPower(t *testing.T) {
	const full, half = "BAT0 type=Battery present=1 status=Full capacity=100", "BAT0 type=Battery present=1 status=Discharging capacity=50"
	for name, c := range map[string]struct {
		tree fs.FS
		want string
	}{
		"no such class":           {fstest.MapFS{}, "absent"},
		"nothing there":           {supplies(), "absent"},
		"a desktop":               {supplies("AC type=Mains online=1"), "absent"},
		"a UPS is no battery":     {supplies("ups type=UPS status=Discharging capacity=20"), "absent"},
		"nor is a mouse's":        {supplies("hidpp_battery_0 type=Battery scope=Device status=Discharging capacity=20"), "absent"},
		"a bay that is empty":     {supplies("BAT1 type=Battery present=0"), "absent"},
		"plugged in":              {supplies("AC type=Mains online=1", full), "mains 100"},
		"not plugged in":          {supplies("AC type=Mains online=0", half), "battery 50"},
		"a status nobody knows":   {supplies("AC type=Mains online=0", "BAT0 type=Battery status=Unknown capacity=50"), "battery 50"},
		"held at a threshold":     {supplies("AC type=Mains online=1", "BAT0 type=Battery status=Not_charging capacity=80"), "mains 80"},
		"charged over USB":        {supplies("AC type=Mains online=0", "ucsi type=USB online=1", "BAT0 type=Battery status=Charging capacity=30"), "mains 30"},
		"a weak charger":          {supplies("ucsi type=USB online=1", half), "battery 50"},
		"charging and no charger": {supplies("BAT0 type=Battery status=Charging capacity=30"), "mains 30"},
		"a phone that is charged": {supplies("AC type=Mains online=0", "phone type=USB scope=Device online=1", half), "battery 50"},
		"two batteries, by their size": {supplies("AC type=Mains online=0",
			"BAT0 type=Battery status=Unknown capacity=100 energy_now=10000000 energy_full=10000000",
			"BAT1 type=Battery status=Discharging capacity=50 energy_now=15000000 energy_full=30000000"), "battery 62"},
		"two that don't say it":    {supplies("BAT0 type=Battery status=Full capacity=100", "BAT1 type=Battery status=Discharging capacity=50"), "battery 75"},
		"no capacity but a charge": {supplies("BAT0 type=Battery status=Discharging charge_now=20 charge_full=80"), "battery 25"},
		"more than full":           {supplies("BAT0 type=Battery status=Full capacity=103"), "mains 100"},
		"no word of its charge":    {supplies("BAT0 type=Battery status=Discharging"), "lost"},
		"junk for a charge":        {supplies("BAT0 type=Battery status=Discharging capacity=lots"), "lost"},
		"nothing but junk":         {supplies("BAT0 type=Battery status=Discharging capacity=-5"), "lost"},
		"a battery that fails":     {failing{supplies("AC type=Mains online=1", full), "class/power_supply/BAT0/capacity", syscall.EIO}, "lost"},
		"one just taken out":       {failing{supplies("AC type=Mains online=1", full), "class/power_supply/BAT0/capacity", syscall.ENODEV}, "absent"},
		"a supply that fails":      {failing{supplies("AC type=Mains online=1", full), "class/power_supply/AC/type", syscall.EIO}, "lost"},
	} {
		p, err := sysPower(c.tree)
		got := map[bool]string{true: "battery ", false: "mains "}[p.Battery] + fmt.Sprint(p.Percent)
		switch {
		case errors.Is(err, ErrAbsent):
			got = "absent"
		case err != nil:
			got = "lost"
		}
		if got != c.want {
			t.Errorf("%s: %s (%v), want %s", name, got, err, c.want)
		}
	}
}

// failing is a tree in which one file can't be read.
type failing struct {
	fs.FS
	name string
	err  error
}

func (f failing) Open(name string) (fs.File, error) {
	if name == f.name {
		return nil, &fs.PathError{Op: "read", Path: name, Err: f.err}
	}
	return f.FS.Open(name)
}

func TestSysHeat(t *testing.T) {
	chip := func(n int, name string, sensors ...string) fstest.MapFS {
		tree := fstest.MapFS{fmt.Sprintf("class/hwmon/hwmon%d/name", n): {Data: []byte(name + "\n")}}
		for i, s := range sensors {
			tree[fmt.Sprintf("class/hwmon/hwmon%d/temp%d_input", n, i+1)] = &fstest.MapFile{Data: []byte(s + "\n")}
		}
		return tree
	}
	both := chip(0, "coretemp", "61000", "93500", "70000")
	for name, file := range chip(1, "nvme", "99000") {
		both[name] = file
	}
	if c, err := sysHeat(both); err != nil || c != 93.5 {
		t.Errorf("the hottest core: %v, %v", c, err)
	}
	if c, err := sysHeat(chip(0, "k10temp", "-128000", "41000")); err != nil || c != 41 {
		t.Errorf("beside a broken sensor: %v, %v", c, err)
	}
	if _, err := sysHeat(chip(0, "k10temp", "-128000")); err == nil || errors.Is(err, ErrAbsent) {
		t.Errorf("a broken sensor alone: %v", err)
	}
	if _, err := sysHeat(chip(0, "nvme", "99000")); !errors.Is(err, ErrAbsent) {
		t.Errorf("no sensor: %v", err)
	}
}

func TestPmset(t *testing.T) {
	for text, want := range map[string]string{
		"Now drawing from 'AC Power'\n -InternalBattery-0 (id=4653155)\t92%; charging; 0:41 remaining present: true\n":         "mains 92",
		"Now drawing from 'Battery Power'\n -InternalBattery-0 (id=4653155)\t57%; discharging; 5:21 remaining present: true\n": "battery 57",
		"Now drawing from 'AC Power'\n": "absent",
		"Now drawing from 'AC Power'\n -Back-UPS ES 700 -Status (id=123)\t100%; charging present: true\n":                                                                                           "absent",
		"Now drawing from 'UPS Power'\n -Back-UPS ES 700 (id=123)\t80%; discharging; 0:32 remaining present: true\n":                                                                                "absent",
		"Now drawing from 'UPS Power'\n -InternalBattery-0 (id=1)\t100%; charged; 0:00 remaining present: true\n -UPS (id=2)\t80%; discharging; 0:32 remaining present: true\n":                     "mains 100",
		"Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t40%; discharging; (no estimate) present: true\n -InternalBattery-1 (id=2)\t60%; discharging; 1:00 remaining present: true\n": "battery 50",
		"Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t0%; (removed) present: false\n":                                                                                                   "absent",
		"":                             "lost",
		"Now drawing from 'AC Power\n": "lost",
		"Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\tlots; charging present: true\n": "lost",
		"Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t920%; charging present: true\n": "lost",
	} {
		p, err := pmsetPower(text)
		got := map[bool]string{true: "battery ", false: "mains "}[p.Battery] + fmt.Sprint(p.Percent)
		switch {
		case errors.Is(err, ErrAbsent):
			got = "absent"
		case err != nil:
			got = "lost"
		}
		if got != want {
			t.Errorf("%q: %s (%v), want %s", text, got, err, want)
		}
	}
}

func TestIoreg(t *testing.T) {
	const node = `+-o IOHIDSystem  <class IOHIDSystem, id 0x100000391, registered, matched, active, busy 0 (0 ms), retain 32>
    {
      "IOClass" = "IOHIDSystem"
      "HIDIdleTimeDelta" = 12
      "HIDIdleTime" = %s
      "IOProviderClass" = "IOResources"
    }
`
	for text, want := range map[string]time.Duration{
		fmt.Sprintf(node, "68412933875"): 68412 * time.Millisecond, fmt.Sprintf(node, "0"): 0,
		fmt.Sprintf(node, "18446744073709551615"): 10 * 365 * 24 * time.Hour,
		fmt.Sprintf(node, "-1"):                   -1, fmt.Sprintf(node, ""): -1, "": -1, "+-o IOHIDSystem\n": -1,
	} {
		d, err := ioregIdle(text)
		if err != nil {
			d = -1
		}
		if d != want && (want < 24*time.Hour || d < 24*time.Hour) {
			t.Errorf("%q: %s, %v, want %s", text, d, err, want)
		}
	}
}

func TestWindowsPower(t *testing.T) {
	for in, want := range map[[3]byte]string{
		{1, 8, 80}: "mains 80", {0, 2, 33}: "battery 33", {1, 128, 255}: "absent", {255, 255, 255}: "lost",
		{0, 1, 255}: "lost", {1, 9, 255}: "mains 100", {255, 1, 50}: "lost",
	} {
		p, err := windowsPower(in[0], in[1], in[2])
		got := map[bool]string{true: "battery ", false: "mains "}[p.Battery] + fmt.Sprint(p.Percent)
		switch {
		case errors.Is(err, ErrAbsent):
			got = "absent"
		case err != nil:
			got = "lost"
		}
		if got != want {
			t.Errorf("%v: %s (%v), want %s", in, got, err, want)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("Now drawing from 'AC Power'\n -InternalBattery-0 (id=4653155)\t92%; charging; 0:41 remaining present: true\n")
	f.Add(`"HIDIdleTime" = 68412933875`)
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := pmsetPower(text); err == nil && (p.Percent < 0 || p.Percent > 100) {
			t.Errorf("%q: %d%%", text, p.Percent)
		}
		if d, err := ioregIdle(text); err == nil && d < 0 {
			t.Errorf("%q: %s", text, d)
		}
		tree := supplies("AC type=Mains online=0", "BAT0 type=Battery status=Discharging capacity=50")
		tree["class/power_supply/BAT0/capacity"].Data = []byte(text)
		tree["class/power_supply/BAT0/energy_full"] = &fstest.MapFile{Data: []byte(text)}
		tree["class/power_supply/BAT0/energy_now"] = &fstest.MapFile{Data: []byte(text)}
		if p, err := sysPower(tree); err == nil && (p.Percent < 0 || p.Percent > 100) {
			t.Errorf("%q: %d%%", text, p.Percent)
		}
	})
}

// TestRunningApps looks for a program that does run.
func TestRunningApps(t *testing.T) {
	cmd := exec.Command(require.Tool(t, "sleep", "coreutils"), "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	p := DefaultPolicy()
	p.BusyApps = []string{"SLEEP.exe", "no-such-game"}
	apps, err := runningApps(bounded(t), p)
	if err != nil || !slices.Contains(apps, "sleep") || len(apps) != 1 {
		t.Errorf("apps %q, %v", apps, err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := runningApps(stopped, p); !errors.Is(err, context.Canceled) {
		t.Errorf("out of time: %v", err)
	}
}

// TestThisMachine asks all sources of the machine that the tests run on: whatever
// is there, each answers in time, and a verdict comes of it.
func TestThisMachine(t *testing.T) {
	list, _, done := Sources(Options{Getenv: env()})
	defer done()
	p := DefaultPolicy()
	p.BusyApps, p.MaxCPUTemperature = []string{"no-such-game"}, 90
	var o Observation
	for _, s := range list {
		ctx, cancel := context.WithTimeout(t.Context(), Bound)
		put, err := s.Read(ctx, p)
		if ctx.Err() != nil {
			t.Errorf("%s did not answer in time", s.Name)
		}
		cancel()
		if err != nil {
			t.Logf("%s: %v", s.Name, err)
			s.Lost(&o, err)
			continue
		}
		put(&o, 0)
	}
	v := NewDecider(p).Step(at(0), o)
	if (v.Allow == AllowAll) != (v.Why == "") {
		t.Errorf("verdict: %+v", v)
	}
}
