package presence

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"pgregory.net/rapid"

	"offpeak"
)

// at is a moment: noon on a Wednesday, and some time later.
func at(later time.Duration) Now {
	return Now{Boot: time.Hour + later, Wall: time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC).Add(later)}
}

func idle(d time.Duration) Input { return Input{Source: "display", Field: Read(d)} }

// away is a look at a machine on which nothing stands in the way of work.
func away() Observation {
	return Observation{
		Input: []Input{idle(time.Hour)}, Apps: Read([]string(nil)), FullScreen: Read(""), Power: Read(Power{Percent: 100}),
		Metered: Read(false), CPU: Read(50.0),
		Devices: Read([]Device{{ID: "gpu0", Name: "RTX", Temperature: Read(60.0), Others: Read(offpeak.Bytes(0)), Use: Read(0)}}),
	}
}

var errBroken = errors.New("broke")

func TestDecider(t *testing.T) {
	gpu := func(change func(*Device)) func(*Observation) {
		return func(o *Observation) {
			d := slices.Clone(o.Devices.Value)
			change(&d[0])
			o.Devices = Read(d)
		}
	}
	for name, c := range map[string]struct {
		policy func(*Policy)
		see    func(*Observation)
		allow  Allow
		why    offpeak.EndReason
		// detail and unknown are parts of what is said.
		detail, unknown string
		owner           bool
	}{
		"nobody is there": {allow: AllowAll},
		"the owner types": {see: func(o *Observation) { o.Input = []Input{idle(0)} }, allow: AllowNone, why: offpeak.EndOwnerReturned, detail: "last input 0s ago", owner: true},
		"not long enough away": {see: func(o *Observation) { o.Input = []Input{idle(5*time.Minute - time.Millisecond)} },
			allow: AllowNone, why: offpeak.EndOwnerReturned, owner: true},
		"just long enough away": {see: func(o *Observation) { o.Input = []Input{idle(5 * time.Minute)} }, allow: AllowAll},
		"the latest of several inputs counts": {see: func(o *Observation) { o.Input = []Input{idle(time.Hour), idle(time.Second), idle(time.Minute)} },
			allow: AllowNone, why: offpeak.EndOwnerReturned, detail: "last input 1s ago", owner: true},
		"a hint is not asked where something better knows": {see: func(o *Observation) {
			o.Input = []Input{{Source: "session", Hint: true, Field: Read(time.Duration(0))}, idle(time.Hour)}
		}, allow: AllowAll},
		"a hint is better than nothing": {see: func(o *Observation) {
			o.Input = []Input{{Source: "display", Field: Lost[time.Duration](errBroken)}, {Source: "session", Hint: true, Field: Read(time.Duration(0))}}
		}, allow: AllowNone, why: offpeak.EndOwnerReturned, unknown: "input: display broke; the others count", owner: true},
		"a server has no owner at it": {see: func(o *Observation) { o.Input = []Input{{Source: "display", Field: Lost[time.Duration](ErrAbsent)}} },
			allow: AllowAll, unknown: "input: there is no display and no session here; you count as away"},
		"a display that hangs may hide its owner": {see: func(o *Observation) {
			o.Input = []Input{{Source: "display", Field: Lost[time.Duration](errHung)}, {Source: "GNOME", Field: Lost[time.Duration](ErrAbsent)}}
		}, allow: AllowNone, why: offpeak.EndOwnerReturned, unknown: "input: display does not answer; you count as present", owner: true},
		"unless the owner says else": {policy: func(p *Policy) { p.IfInputUnknown = Away }, see: func(o *Observation) {
			o.Input = []Input{{Source: "display", Field: Lost[time.Duration](errHung)}}
		}, allow: AllowAll, unknown: "you count as away"},
		"beside the owner":                {policy: func(p *Policy) { p.IdleAfter = 0 }, see: func(o *Observation) { o.Input = []Input{idle(0)} }, allow: AllowAll},
		"jobs without a GPU may go on":    {policy: func(p *Policy) { p.WhilePresent = AllowCPU }, see: func(o *Observation) { o.Input = []Input{idle(0)} }, allow: AllowCPU, why: offpeak.EndOwnerReturned, owner: true},
		"all may go on":                   {policy: func(p *Policy) { p.WhilePresent = AllowAll }, see: func(o *Observation) { o.Input = []Input{idle(0)} }, allow: AllowAll, owner: true},
		"a game":                          {policy: func(p *Policy) { p.BusyApps = []string{"Game"} }, see: func(o *Observation) { o.Apps = Read([]string{"game.exe"}) }, allow: AllowNone, why: offpeak.EndOwnerReturned, detail: "game.exe runs", owner: true},
		"a name that Linux cut":           {policy: func(p *Policy) { p.BusyApps = []string{"Cyberpunk2077-Launcher"} }, see: func(o *Observation) { o.Apps = Read([]string{"Cyberpunk2077-L"}) }, allow: AllowNone, why: offpeak.EndOwnerReturned, owner: true},
		"a program nobody minds":          {policy: func(p *Policy) { p.BusyApps = []string{"game"} }, see: func(o *Observation) { o.Apps = Read([]string{"gamed"}) }, allow: AllowAll},
		"programs can't be listed":        {policy: func(p *Policy) { p.BusyApps = []string{"game"} }, see: func(o *Observation) { o.Apps = Lost[[]string](errBroken) }, allow: AllowAll, unknown: "apps: broke; none counts as running"},
		"a film":                          {see: func(o *Observation) { o.FullScreen = Read("mpv") }, allow: AllowNone, why: offpeak.EndOwnerReturned, detail: "mpv fills the screen", owner: true},
		"a film nobody minds":             {policy: func(p *Policy) { p.FullScreen = false }, see: func(o *Observation) { o.FullScreen = Read("mpv") }, allow: AllowAll},
		"on battery":                      {see: func(o *Observation) { o.Power = Read(Power{true, 100}) }, allow: AllowNone, why: offpeak.EndOnBattery, detail: "on battery, 100%"},
		"enough of a battery":             {policy: func(p *Policy) { p.OnBattery = Battery{Above: 60} }, see: func(o *Observation) { o.Power = Read(Power{true, 61}) }, allow: AllowAll},
		"not enough of one":               {policy: func(p *Policy) { p.OnBattery = Battery{Above: 60} }, see: func(o *Observation) { o.Power = Read(Power{true, 60}) }, allow: AllowNone, why: offpeak.EndOnBattery},
		"any battery":                     {policy: func(p *Policy) { p.OnBattery = Battery{Always: true} }, see: func(o *Observation) { o.Power = Read(Power{true, 1}) }, allow: AllowAll},
		"no battery":                      {see: func(o *Observation) { o.Power = Lost[Power](ErrAbsent) }, allow: AllowAll},
		"a battery that can't be read":    {see: func(o *Observation) { o.Power = Lost[Power](errBroken) }, allow: AllowNone, why: offpeak.EndOnBattery, unknown: "battery: broke; it counts as in use"},
		"a hot GPU leaves the processor":  {see: gpu(func(d *Device) { d.Temperature = Read(87.0) }), allow: AllowCPU, why: offpeak.EndHot, detail: "RTX has 87 °C"},
		"a GPU that does not tell":        {see: gpu(func(d *Device) { d.Temperature = Lost[float64](errBroken) }), allow: AllowAll, unknown: "heat: RTX broke; counts as cool"},
		"a hot processor":                 {policy: func(p *Policy) { p.MaxCPUTemperature = 90 }, see: func(o *Observation) { o.CPU = Read(90.5) }, allow: AllowNone, why: offpeak.EndHot},
		"others hold the GPU's memory":    {see: gpu(func(d *Device) { d.Others = Read(3 * offpeak.GiB) }), allow: AllowCPU, why: offpeak.EndOwnerReturned, detail: "others hold 3GiB of RTX"},
		"others use the GPU":              {see: gpu(func(d *Device) { d.Use = Read(25) }), allow: AllowCPU, why: offpeak.EndOwnerReturned, detail: "others use 25% of RTX"},
		"GPUs can't be measured":          {see: func(o *Observation) { o.Devices = Lost[[]Device](errHung) }, allow: AllowAll, unknown: "gpu: does not answer"},
		"a metered network":               {see: func(o *Observation) { o.Metered = Read(true) }, allow: AllowNone, why: offpeak.EndMetered},
		"one that nobody minds":           {policy: func(p *Policy) { p.Metered = Always }, see: func(o *Observation) { o.Metered = Read(true) }, allow: AllowAll},
		"a network that nobody knows":     {see: func(o *Observation) { o.Metered = Lost[bool](ErrAbsent) }, allow: AllowAll},
		"sleep comes before all":          {policy: hours("23:00-06:00"), see: func(o *Observation) { o.Asleep = true }, allow: AllowNone, why: offpeak.EndSleeping},
		"hours come before the owner":     {policy: hours("23:00-06:00"), see: func(o *Observation) { o.Input = []Input{idle(0)} }, allow: AllowNone, why: offpeak.EndOutsideSchedule, owner: true},
		"the owner comes before battery":  {see: func(o *Observation) { o.Input = []Input{idle(0)}; o.Power = Read(Power{true, 9}) }, allow: AllowNone, why: offpeak.EndOwnerReturned, owner: true},
		"what is stricter comes first":    {see: func(o *Observation) { gpu(func(d *Device) { d.Temperature = Read(99.0) })(o); o.Metered = Read(true) }, allow: AllowNone, why: offpeak.EndMetered},
		"without hours it is always time": {policy: hours(), allow: AllowAll},
		"within hours":                    {policy: hours("wed 12:00-12:01"), allow: AllowAll},
	} {
		t.Run(name, func(t *testing.T) {
			p, o := DefaultPolicy(), away()
			p.Zone = "UTC"
			if c.policy != nil {
				c.policy(&p)
			}
			if err := p.Validate(); err != nil {
				t.Fatal(err)
			}
			if c.see != nil {
				c.see(&o)
			}
			v := NewDecider(p).Step(at(0), o)
			if v.Allow != c.allow || v.Why != c.why || v.Owner != c.owner || !strings.Contains(v.Detail, c.detail) {
				t.Errorf("verdict: %+v", v)
			}
			if all := strings.Join(v.Unknown, "\n"); !strings.Contains(all, c.unknown) || c.unknown == "" && all != "" {
				t.Errorf("unknown: %q, want %q", all, c.unknown)
			}
		})
	}
}

func hours(list ...string) func(*Policy) {
	return func(p *Policy) {
		p.Hours = nil
		for _, text := range list {
			w, err := offpeak.ParseWindow(text)
			if err != nil {
				panic(err)
			}
			p.Hours = append(p.Hours, w)
		}
	}
}

// TestUntil: a verdict says when it ends by itself.
func TestUntil(t *testing.T) {
	p := DefaultPolicy()
	d := NewDecider(p)
	o := away()
	o.Input = []Input{idle(2 * time.Minute)}
	if v := d.Step(at(0), o); !v.Until.Equal(at(0).Wall.Add(3 * time.Minute)) {
		t.Errorf("the owner is away until %s", v.Until)
	}
	p.Zone = "Europe/Berlin"
	hours("mon-fri 23:00-06:00")(&p)
	d.SetPolicy(p)
	if v := d.Step(at(0), away()); v.Why != offpeak.EndOutsideSchedule || v.Until.UTC().Format(time.DateTime) != "2026-12-02 22:00:00" {
		t.Errorf("opens at %s", v.Until)
	}
	// On Saturday morning Friday's window closes; the next opens on Monday.
	if v := d.Step(Now{Boot: 2 * time.Hour, Wall: time.Date(2026, 12, 5, 5, 0, 0, 0, time.UTC)}, away()); v.Until.UTC().Format(time.DateTime) != "2026-12-07 22:00:00" {
		t.Errorf("opens at %s", v.Until)
	}
	hours("00:00-24:00")(&p)
	d.SetPolicy(p)
	if v := d.Step(at(0), away()); v.Allow != AllowAll || !v.Until.IsZero() {
		t.Errorf("all day: %+v", v)
	}
}

// TestHysteresis: at the edge of each rule nothing moves to and fro.
func TestHysteresis(t *testing.T) {
	p := DefaultPolicy()
	p.OnBattery = Battery{Above: 60}
	power := func(n int) func(*Observation) {
		return func(o *Observation) { o.Power = Read(Power{n <= 100, min(n, 100)}) }
	}
	warm := func(c float64) func(*Observation) {
		return func(o *Observation) {
			o.Devices = Read([]Device{{ID: "gpu0", Name: "RTX", Temperature: Read(c)}})
		}
	}
	held := func(b offpeak.Bytes) func(*Observation) {
		return func(o *Observation) { o.Devices = Read([]Device{{ID: "gpu0", Name: "RTX", Others: Read(b)}}) }
	}
	for name, c := range map[string]struct {
		see  []func(*Observation)
		want string // a letter for each minute: all, cpu, none
	}{
		"battery":     {[]func(*Observation){power(61), power(60), power(61), power(65), power(66), power(61), power(60)}, "annnaan"},
		"plugged in":  {[]func(*Observation){power(50), power(101), power(50)}, "nan"},
		"temperature": {[]func(*Observation){warm(86), warm(87), warm(86), warm(80), warm(79), warm(78), warm(86)}, "acccc" + "aa"},
		"memory":      {[]func(*Observation){held(2 * offpeak.GiB), held(1800 * offpeak.MiB), held(offpeak.GiB), held(1800 * offpeak.MiB)}, "ccaa"},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDecider(p)
			got := ""
			for i, see := range c.see {
				// What is seen goes on for a minute, in which the rule's margin and its
				// lingering have their time.
				var v Verdict
				for s := range 60 {
					o := away()
					see(&o)
					v = d.Step(at(time.Duration(i)*time.Minute+time.Duration(s)*time.Second), o)
				}
				got += string(v.Allow[0])
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestGrace: a source that falls silent is believed for a moment, and no longer.
func TestGrace(t *testing.T) {
	d := NewDecider(DefaultPolicy())
	if v := d.Step(at(0), away()); v.Allow != AllowAll {
		t.Fatal(v)
	}
	silent := away()
	silent.Input = []Input{{Source: "display", Field: Lost[time.Duration](errHung)}}
	silent.Power = Lost[Power](errHung)
	if v := d.Step(at(Grace-time.Second), silent); v.Allow != AllowAll || len(v.Unknown) == 0 {
		t.Errorf("in grace: %+v", v)
	}
	if v := d.Step(at(Grace), silent); v.Allow != AllowNone || v.Why != offpeak.EndOwnerReturned {
		t.Errorf("after grace: %+v", v)
	}
	// The owner who types during it is seen as soon as the source is back.
	back := away()
	back.Input = []Input{idle(0)}
	if v := d.Step(at(Grace+time.Second), back); v.Allow != AllowNone || len(v.Unknown) != 0 {
		t.Errorf("back: %+v", v)
	}
}

// TestWoke: whoever wakes a machine is there, unless it is a server.
func TestWoke(t *testing.T) {
	d := NewDecider(DefaultPolicy())
	d.Step(at(0), away())
	d.Woke(at(8 * time.Hour).Boot)
	if v := d.Step(at(8*time.Hour), away()); v.Allow != AllowNone || v.Why != offpeak.EndOwnerReturned {
		t.Errorf("woken: %+v", v)
	}
	if v := d.Step(at(8*time.Hour+5*time.Minute), away()); v.Allow != AllowAll {
		t.Errorf("left alone: %+v", v)
	}
}

// drawField draws what a source may say: a value, that there is nothing, or why it
// can't tell.
func drawField[T any](t *rapid.T, name string, value *rapid.Generator[T]) Field[T] {
	switch rapid.IntRange(0, 9).Draw(t, name+"?") {
	case 0:
		return Lost[T](ErrAbsent)
	case 1:
		return Lost[T](errHung)
	case 2:
		return Field[T]{}
	}
	return Read(value.Draw(t, name))
}

func drawObservation(t *rapid.T) Observation {
	o := Observation{
		Apps:       drawField(t, "apps", rapid.SliceOfN(rapid.SampledFrom([]string{"steam", "GAME.exe", "bash"}), 0, 2)),
		FullScreen: drawField(t, "full", rapid.SampledFrom([]string{"", "mpv"})),
		Power: drawField(t, "power", rapid.Custom(func(t *rapid.T) Power {
			return Power{rapid.Bool().Draw(t, "battery"), rapid.IntRange(0, 100).Draw(t, "percent")}
		})),
		Metered: drawField(t, "metered", rapid.Bool()),
		CPU:     drawField(t, "cpu", rapid.Float64Range(20, 110)),
		Asleep:  rapid.IntRange(0, 20).Draw(t, "asleep") == 0,
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "inputs") {
		o.Input = append(o.Input, Input{
			Source: fmt.Sprint(i), Hint: rapid.Bool().Draw(t, "hint"),
			Field: drawField(t, "idle", rapid.Custom(func(t *rapid.T) time.Duration {
				return time.Duration(rapid.IntRange(-1, 700).Draw(t, "seconds")) * time.Second
			})),
		})
	}
	o.Devices = drawField(t, "devices", rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Device {
		return Device{
			ID: "gpu", Name: "RTX", Temperature: drawField(t, "°C", rapid.Float64Range(20, 110)),
			Others: drawField(t, "others", rapid.Map(rapid.IntRange(0, 4096), func(n int) offpeak.Bytes { return offpeak.Bytes(n) * offpeak.MiB })),
			Use:    drawField(t, "use", rapid.IntRange(0, 100)),
		}
	}), 0, 1))
	return o
}

func drawPolicy(t *rapid.T) Policy {
	p := Policy{
		IdleAfter:      offpeak.Duration(rapid.IntRange(0, 600).Draw(t, "idle after")) * offpeak.Duration(time.Second),
		IfInputUnknown: rapid.SampledFrom([]string{Present, Away}).Draw(t, "unknown"),
		WhilePresent:   rapid.SampledFrom([]Allow{AllowAll, AllowCPU, AllowNone}).Draw(t, "while present"),
		BusyApps:       rapid.SliceOfN(rapid.SampledFrom([]string{"steam", "game"}), 0, 2).Draw(t, "busy"),
		FullScreen:     rapid.Bool().Draw(t, "full screen"),
		GPUMemory:      offpeak.Bytes(rapid.IntRange(0, 2).Draw(t, "GiB")) * offpeak.GiB, GPUUse: rapid.IntRange(0, 100).Draw(t, "use"),
		OnBattery:      rapid.SampledFrom([]Battery{{Above: 100}, {Above: 60}, {Always: true}}).Draw(t, "on battery"),
		MaxTemperature: rapid.SampledFrom([]int{0, 83}).Draw(t, "max"), MaxCPUTemperature: rapid.SampledFrom([]int{0, 90}).Draw(t, "max cpu"),
		Metered: rapid.SampledFrom([]string{Never, Always}).Draw(t, "metered"),
		Zone:    rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/New_York"}).Draw(t, "zone"),
	}
	hours(rapid.SliceOfN(rapid.SampledFrom([]string{"23:00-06:00", "mon-fri 22:00-03:00", "sun 02:00-03:00", "sat,sun 00:00-24:00"}), 0, 2).Draw(t, "hours")...)(&p)
	return p
}

// forbids is what the rules say of one observation alone, without memory: the
// least that a verdict may not fall short of.
func forbids(p *Policy, now Now, o *Observation) Allow {
	zone, _ := time.LoadLocation(p.Zone)
	wall := now.Wall.In(zone)
	open := len(p.Hours) == 0 || slices.ContainsFunc(p.Hours, func(w offpeak.Window) bool { return w.Open(wall) })
	least := AllowAll
	no := func(a Allow, when bool) {
		if when && a.strictness() > least.strictness() {
			least = a
		}
	}
	no(AllowNone, o.Asleep || !open)
	exact := slices.ContainsFunc(o.Input, func(in Input) bool { return in.Known && !in.Hint })
	for _, in := range o.Input {
		no(p.WhilePresent, in.Known && in.Hint != exact && max(in.Value, 0) < p.IdleAfter.Std())
	}
	no(AllowNone, slices.ContainsFunc(o.Apps.Value, p.busy))
	no(AllowNone, p.FullScreen && o.FullScreen.Value != "")
	no(AllowNone, !p.OnBattery.Always && o.Power.Known && o.Power.Value.Battery && (p.OnBattery.Above == 100 || o.Power.Value.Percent <= p.OnBattery.Above))
	no(AllowNone, p.Metered == Never && o.Metered.Value)
	no(AllowNone, p.MaxCPUTemperature > 0 && o.CPU.Known && o.CPU.Value >= float64(p.MaxCPUTemperature))
	for _, d := range o.Devices.Value {
		no(AllowCPU, p.MaxTemperature > 0 && d.Temperature.Known && d.Temperature.Value >= float64(p.MaxTemperature))
		no(AllowCPU, p.GPUMemory > 0 && d.Others.Known && d.Others.Value >= p.GPUMemory)
		no(AllowCPU, p.GPUUse > 0 && d.Use.Known && d.Use.Value >= p.GPUUse)
	}
	return least
}

// TestNeverAllowsWhatARuleForbids: whatever was seen before, and in whatever order,
// no verdict allows more than the rules do of what is seen now; and whatever is
// not allowed has a reason, in the table of ends, and a rule that says it.
func TestNeverAllowsWhatARuleForbids(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		d := NewDecider(p)
		now := at(time.Duration(rapid.IntRange(0, 7*24*60).Draw(t, "minute")) * time.Minute)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			step := time.Duration(rapid.IntRange(0, 100).Draw(t, "step")) * time.Second
			now.Boot, now.Wall = now.Boot+step, now.Wall.Add(step)
			o := drawObservation(t)
			v := d.Step(now, o)
			if least := forbids(&p, now, &o); v.Allow.strictness() < least.strictness() {
				t.Fatalf("allows %s where the rules allow %s: %+v", v.Allow, least, v)
			}
			end, known := offpeak.EndOf(v.Why)
			if (v.Allow == AllowAll) != (v.Why == "") || v.Why != "" && (!known || end.Fault != offpeak.FaultOwner || v.Detail == "") {
				t.Fatalf("verdict without a reason: %+v", v)
			}
		}
	})
}

// TestMonotoneInTime: where nothing changes but that time passes, work that was
// allowed goes on, until the hours turn; and work that was not begins at the
// latest when everything that lingers is over.
func TestMonotoneInTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		p.Hours = nil
		d := NewDecider(p)
		o := drawObservation(t)
		o.Asleep = false
		before := AllowNone
		for i := range 120 {
			later := time.Duration(i) * 10 * time.Second
			see := o
			see.Input = slices.Clone(o.Input)
			for k := range see.Input {
				see.Input[k].Value += later
			}
			v := d.Step(at(later), see)
			if i > 0 && v.Allow.strictness() > before.strictness() {
				t.Fatalf("after %s %s is not allowed any more: %+v", later, before, v)
			}
			before = v.Allow
		}
	})
}

// TestDoesNotFlap: whatever is seen within a lingering's time, a rule that forbids
// lets work in at most once.
func TestDoesNotFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		p.Hours, p.IdleAfter = nil, 0
		d := NewDecider(p)
		began := 0
		before := AllowAll
		for i := range 30 {
			o := drawObservation(t)
			o.Asleep = false
			v := d.Step(at(time.Duration(i)*time.Second), o)
			if v.Allow.strictness() < before.strictness() {
				began++
			}
			before = v.Allow
		}
		if began > 1 {
			t.Fatalf("work began %d times within %s", began, Linger)
		}
	})
}

// TestHoursOverDaylightSaving steps through the nights on which clocks are moved:
// the verdict follows the clock on the wall, and Until is when it turns.
func TestHoursOverDaylightSaving(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, day := range []string{"2026-03-28", "2026-10-24"} {
		begin, err := time.ParseInLocation(time.DateOnly, day, zone)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"23:00-06:00", "sun 02:00-03:00", "sun 02:30-02:45", "sat 22:00-02:30"} {
			p := DefaultPolicy()
			p.Zone = "Europe/Berlin"
			hours(text)(&p)
			d := NewDecider(p)
			var until time.Time
			before := Allow("")
			for i := range 48 * 60 {
				now := Now{Boot: 24*time.Hour + time.Duration(i)*time.Minute, Wall: begin.Add(time.Duration(i) * time.Minute)}
				v := d.Step(now, away())
				rule := v.Rules[1]
				if want := p.Hours[0].Open(now.Wall); (rule.Allow == AllowAll) != want {
					t.Fatalf("%s at %s: %+v", text, now.Wall, rule)
				}
				if before != "" && (rule.Allow != before) != (!until.IsZero() && !now.Wall.Before(until)) {
					t.Fatalf("%s at %s: turned to %s, but said until %s", text, now.Wall, rule.Allow, until)
				}
				before, until = rule.Allow, rule.Until
			}
		}
	}
}

func TestPolicyFile(t *testing.T) {
	for field, break_ := range map[string]func(*Policy){
		"idle_after": func(p *Policy) { p.IdleAfter = -1 }, "if_input_unknown": func(p *Policy) { p.IfInputUnknown = "" },
		"while_present": func(p *Policy) { p.WhilePresent = "some" }, "busy_apps": func(p *Policy) { p.BusyApps = []string{"a/b"} },
		"gpu_memory_bytes": func(p *Policy) { p.GPUMemory = -1 }, "gpu_use_percent": func(p *Policy) { p.GPUUse = 101 },
		"on_battery": func(p *Policy) { p.OnBattery.Above = 101 }, "max_temperature": func(p *Policy) { p.MaxTemperature = 39 },
		"max_cpu_temperature": func(p *Policy) { p.MaxCPUTemperature = 121 }, "metered": func(p *Policy) { p.Metered = "sometimes" },
		"hours": func(p *Policy) { p.Hours = []offpeak.Window{{}} }, "zone": func(p *Policy) { p.Zone = "Mars/Olympus" },
	} {
		p := DefaultPolicy()
		break_(&p)
		var bad *offpeak.FieldError
		if err := p.Validate(); !errors.As(err, &bad) || bad.Field != field || bad.Rule == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
	p := DefaultPolicy()
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	for in, want := range map[string]Battery{"never": {Above: 100}, "always": {Always: true}, "above=60%": {Above: 60}, "above=5": {Above: 5}} {
		if b, err := ParseBattery(in); err != nil || b != want {
			t.Errorf("%s: %+v, %v", in, b, err)
		}
	}
	for _, in := range []string{"", "above=", "above=0", "above=100%", "60%", "above=-1%", "above=x"} {
		if b, err := ParseBattery(in); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%s: %+v, %v", in, b, err)
		}
	}
}
