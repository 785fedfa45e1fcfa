package hardware

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/mem"

	"offpeak"
)

// Reading is one device and what it does now. What a device does not tell is
// nil.
type Reading struct {
	// Device is what it is: Total is all its memory, VRAM what a job of the grid
	// can have of it now, whatever the grid's own jobs hold.
	Device offpeak.Device
	// Used is how much of its memory is in use, by anybody; Foreign by what is
	// not the grid's: the desktop, games, the driver.
	Used    *offpeak.Bytes
	Foreign offpeak.Bytes
	// Ours is what the trees of processes hold that Measure was told of, by the
	// process each begins with. Blind lists those that hold it and whose share
	// the device does not tell.
	Ours  map[int]offpeak.Bytes
	Blind []int
	// Temperature is in degrees Celsius, Power in watts, Utilisation in percent.
	Temperature, Power, Utilisation *float64
	// Throttled says why it runs slower than it could, "" nothing of that: the
	// Throttle words.
	Throttled []string
	// Processes hold its memory, as far as they were looked for: the grid's own,
	// and all of them where the source tells that anyway.
	Processes []Process
}

// The words of Reading.Throttled.
const (
	ThrottleHeat      = "heat"
	ThrottlePowerCap  = "power_cap"
	ThrottlePowerLoss = "power_brake"
	ThrottleHardware  = "hardware"
	ThrottleOther     = "other"
)

// Process is a process that holds a device's memory.
type Process struct {
	PID  int
	Name string
	// VRAM is what it holds; nil where the device does not tell.
	VRAM *offpeak.Bytes
}

// Sample is what one Measure found.
type Sample struct {
	// At is when, zero for none yet.
	At       time.Time
	Readings []Reading
	// Warnings are what the owner should know: a tool that does not answer, a GPU
	// that is missing. They are the same for as long as that lasts.
	Warnings []string
	// Unsure says that a device was not found and is not missing yet: looking again
	// soon tells.
	Unsure bool
}

// Devices are what a node offers.
func (s Sample) Devices() []offpeak.Device {
	out := make([]offpeak.Device, len(s.Readings))
	for i := range s.Readings {
		out[i] = s.Readings[i].Device
	}
	return slices.Clip(out)
}

// found is what a source tells of one device. VRAM in device is all its memory.
type found struct {
	device                          offpeak.Device
	used                            *offpeak.Bytes
	temperature, power, utilisation *float64
	throttled                       []string
	processes                       []Process
}

// source is one way to learn of devices.
type source struct {
	// every is the least time between two looks: what a tool costs.
	every time.Duration
	// look returns what is there now. It fails where it can't tell, which is not
	// the same as that nothing is there.
	look func(ctx context.Context, ours forest) ([]found, []string, error)

	looked time.Time
	had    []found
	warned []string
	err    error
}

// Meter measures the devices of one machine. It remembers what makes its answers
// steady: what they offered, and which of them are missing.
type Meter struct {
	src     Sources
	now     func() time.Time
	fall    time.Duration
	sources []*source

	// measuring is held by one Measure at a time.
	measuring sync.Mutex
	known     map[offpeak.DeviceID]*known // guarded by measuring

	mu   sync.Mutex
	last Sample // guarded by mu
}

// known is what is remembered of a device.
type known struct {
	device  offpeak.Device
	steady  steady
	foreign offpeak.Bytes
	reading Reading
	// since is when a look first did not find it, zero while one does.
	since time.Time
	looks int
}

// A device counts as missing once so many looks over so long did not find it: a
// tool may be slow once, on a busy machine.
const (
	missingLooks = 2
	missingAfter = 5 * time.Second
)

// confirmAfter is the pause before a look is repeated that saw others take
// memory: where use and processes are two questions, a job of the grid's own that
// begins or ends between them looks like a stranger.
const confirmAfter = 250 * time.Millisecond

// NewMeter returns a meter over the sources. Devices without memory of their own
// have a share of the machine's.
func NewMeter(src Sources) *Meter {
	src.Sys, src.Proc = cmp.Or(src.Sys, "/sys"), cmp.Or(src.Proc, "/proc")
	m := &Meter{src: src, now: time.Now, fall: fallAfter, known: map[offpeak.DeviceID]*known{}}
	if src.Fake != "" {
		m.fall = fallAfterFake
	}
	var memory offpeak.Bytes
	if vm, err := mem.VirtualMemory(); err == nil {
		memory = size(vm.Total)
	}
	m.sources = m.all(memory)
	return m
}

// Last is what the last Measure found.
func (m *Meter) Last() Sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// Measure looks at the devices now. ours are the processes with which the trees
// of the grid's own jobs begin. It takes no longer than the slowest tool may. A
// device that is missing is left out and warned of.
func (m *Meter) Measure(ctx context.Context, ours []int) Sample {
	m.measuring.Lock()
	defer m.measuring.Unlock()
	trees := plant(m.src.Proc, ours)
	all, warnings, failed := m.look(ctx, trees, false)
	if m.grew(all, trees) {
		select {
		case <-time.After(confirmAfter):
			again, w, f := m.look(ctx, plant(m.src.Proc, ours), true)
			all, warnings, failed = calmer(all, again, trees), w, f
		case <-ctx.Done():
		}
	}
	s := Sample{At: m.now(), Warnings: warnings}
	seen := map[offpeak.DeviceID]bool{}
	for i := range all {
		d := &all[i]
		if seen[d.device.ID] || len(s.Readings) == maxDevices {
			continue
		}
		seen[d.device.ID] = true
		k := m.known[d.device.ID]
		if k == nil {
			k = &known{}
			m.known[d.device.ID] = k
		}
		k.since, k.looks = time.Time{}, 0
		k.reading = k.read(s.At, m.fall, d, trees)
		s.Readings = append(s.Readings, k.reading)
	}
	for _, id := range slices.Sorted(maps.Keys(m.known)) {
		k := m.known[id]
		if seen[id] {
			continue
		}
		if k.looks++; k.since.IsZero() {
			k.since = s.At
		}
		if k.looks < missingLooks || s.At.Sub(k.since) < missingAfter {
			s.Readings, s.Unsure = append(s.Readings, k.reading), true
			continue
		}
		why := "check its driver and its seat"
		if failed {
			why = "its tool does not answer"
		}
		s.Warnings = append(s.Warnings, fmt.Sprintf("GPU missing: %s (%s) was here before; %s. It is offered again as soon as it is back", k.device.Model, id, why))
	}
	slices.SortStableFunc(s.Readings, func(a, b Reading) int { return cmp.Compare(a.Device.ID, b.Device.ID) })
	m.mu.Lock()
	m.last = s
	m.mu.Unlock()
	return s
}

// look asks the sources that are due, or all of them.
func (m *Meter) look(ctx context.Context, ours forest, again bool) (all []found, warnings []string, failed bool) {
	for _, s := range m.sources {
		now := m.now()
		if s.looked.IsZero() || now.Sub(s.looked) >= s.every || again && s.every == 0 {
			s.had, s.warned, s.err = s.look(ctx, ours)
			if s.looked = now; s.err != nil {
				s.looked = time.Time{}
			}
		}
		all, warnings = append(all, s.had...), append(warnings, s.warned...)
		if s.err != nil {
			failed = true
			warnings = append(warnings, s.err.Error())
		}
	}
	return all, warnings, failed
}

// grew says that others seem to have taken memory of a device since the last look.
func (m *Meter) grew(all []found, ours forest) bool {
	for i := range all {
		if k := m.known[all[i].device.ID]; k != nil && len(ours) > 0 {
			if now, ok := foreign(&all[i], ours); ok && now > k.foreign+step(all[i].device.VRAM) {
				return true
			}
		}
	}
	return false
}

// calmer is the second of two looks, with the lesser use by others of both.
func calmer(first, second []found, ours forest) []found {
	for i := range second {
		j := slices.IndexFunc(first, func(f found) bool { return f.device.ID == second[i].device.ID })
		if j < 0 {
			continue
		}
		a, okA := foreign(&first[j], ours)
		b, okB := foreign(&second[i], ours)
		if okA && okB && a < b {
			second[i] = first[j]
		}
	}
	return second
}

// foreign is what others hold of a device; false where that can't be told.
func foreign(f *found, ours forest) (offpeak.Bytes, bool) {
	if f.used == nil {
		return 0, false
	}
	rest := *f.used
	for _, p := range f.processes {
		if ours.root(p.PID) == 0 {
			continue
		}
		if p.VRAM == nil {
			return 0, false
		}
		rest -= *p.VRAM
	}
	return max(rest, 0), true
}

// read makes a reading of what was found of a device.
func (k *known) read(now time.Time, fall time.Duration, f *found, ours forest) Reading {
	r := Reading{
		Device: f.device, Used: f.used, Temperature: f.temperature, Power: f.power, Utilisation: f.utilisation,
		Throttled: f.throttled, Processes: f.processes,
	}
	for _, p := range f.processes {
		root := ours.root(p.PID)
		switch {
		case root == 0:
		case p.VRAM == nil:
			r.Blind = append(r.Blind, root)
		default:
			if r.Ours == nil {
				r.Ours = map[int]offpeak.Bytes{}
			}
			r.Ours[root] += *p.VRAM
		}
	}
	if f.used != nil {
		// Where a job's own share can't be told, others have what they had.
		if now, ok := foreign(f, ours); ok {
			k.foreign = now
		} else {
			k.foreign = min(k.foreign, *f.used)
		}
		r.Foreign = k.foreign
	}
	r.Device.Total = f.device.VRAM
	if f.used != nil && !f.device.Unified {
		r.Device.VRAM = k.steady.offer(now, fall, f.device.VRAM, r.Foreign)
	}
	k.device = r.Device
	return r
}
