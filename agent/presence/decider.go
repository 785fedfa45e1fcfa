package presence

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"offpeak"
)

// The decision's own durations and margins.
const (
	// Bound is how long a source may take to answer.
	Bound = 2 * time.Second
	// Grace is how long the last word of a source that fell silent is believed.
	Grace = 10 * time.Second
	// Linger is how long a rule that forbids goes on forbidding after what it
	// minds is gone, so that what comes and goes moves no job twice.
	Linger = 30 * time.Second
	// chargeMargin is how many percent more than it may leave at a battery must
	// hold, coolMargin how many degrees cooler than too hot a device must be,
	// before work begins again.
	chargeMargin = 5
	coolMargin   = 8
	// shareMargin: others must use less than this part of what is too much.
	shareMargin = 0.8
)

// Now is a moment on two clocks: Boot counts suspended time and is not set by
// anybody, Wall is the owner's.
type Now struct {
	Boot time.Duration
	Wall time.Time
}

// Verdict says whether the node may work, and why not.
type Verdict struct {
	Allow Allow `json:"allow"`
	// Why is the reason for anything but AllowAll, Detail what was seen.
	Why    offpeak.EndReason `json:"why,omitempty"`
	Detail string            `json:"detail,omitempty"`
	// Until is when the rule behind Why ends by itself, as things are now. Zero:
	// nobody can tell. Of outside_schedule it is when the hours open.
	Until time.Time `json:"until,omitzero"`
	// Owner says that the owner is at the machine, whatever Why says.
	Owner bool `json:"owner_present"`
	// Unknown says what could not be read and what counts instead, in order.
	Unknown []string `json:"unknown,omitempty"`
	// Rules are all rules, in the order of precedence.
	Rules []Rule `json:"rules,omitempty"`
}

// Same says that w tells nobody anything new: only Until, details or the rules
// behind a verdict differ.
func (v *Verdict) Same(w *Verdict) bool {
	return v.Allow == w.Allow && v.Why == w.Why && v.Owner == w.Owner && slices.Equal(v.Unknown, w.Unknown) &&
		(v.Why != offpeak.EndOutsideSchedule || v.Until.Equal(w.Until))
}

// Rule is how one rule stands.
type Rule struct {
	Name string `json:"rule"`
	// Allow is what this rule allows.
	Allow Allow `json:"allow"`
	// Seen is what was seen, for people.
	Seen  string            `json:"seen"`
	Until time.Time         `json:"until,omitzero"`
	why   offpeak.EndReason // of anything but AllowAll
	// unknown is what could not be read and what counts instead.
	unknown string
	owner   bool
}

// The names of the rules.
const (
	RuleSleep      = "sleep"
	RuleHours      = "hours"
	RuleInput      = "input"
	RuleApps       = "apps"
	RuleFullScreen = "full screen"
	RuleBattery    = "battery"
	RuleHeat       = "heat"
	RuleNetwork    = "network"
	RuleGPU        = "gpu"
)

// Decider makes verdicts of observations. It remembers what hysteresis needs. The
// zero value is of no policy: make one with NewDecider.
type Decider struct {
	policy Policy
	zone   *time.Location
	now    Now
	// input is when somebody last touched the machine; seen says that it is known.
	input time.Duration
	seen  bool
	// read is when input was last readable.
	read time.Duration
	// holds are rules that forbid, until when they linger.
	holds map[string]hold
	// What was read last, for Grace.
	apps       memory[[]string]
	fullScreen memory[string]
	power      memory[Power]
	metered    memory[bool]
	cpu        memory[float64]
	devices    memory[[]Device]
}

type hold struct {
	until time.Duration
	seen  string
}

// NewDecider returns a decider for a valid policy.
func NewDecider(p Policy) *Decider {
	d := &Decider{holds: map[string]hold{}}
	d.SetPolicy(p)
	return d
}

// SetPolicy goes on with another valid policy. What it forbids no more is free at
// once; the last input is still known.
func (d *Decider) SetPolicy(p Policy) {
	d.policy = p.Clone()
	d.zone, _ = p.zone()
	if d.zone == nil {
		d.zone = time.UTC
	}
	clear(d.holds)
}

// Woke notes that the machine has just woken, most likely by its owner.
func (d *Decider) Woke(boot time.Duration) {
	d.input, d.seen = max(boot, d.input), true
}

// memory is what a field was when it was last known.
type memory[T any] struct {
	field Field[T]
	at    time.Duration
}

// believe returns the field, or for a while what it was before it fell silent.
func (m *memory[T]) believe(now time.Duration, f Field[T]) Field[T] {
	if !f.Known && !f.Absent && m.field.Known && now-m.at < Grace {
		return m.field
	}
	if f.Known {
		m.field, m.at = f, now
	}
	return f
}

// Step makes the verdict of one observation. Boot must not run backwards; where it
// does it counts as standing still.
func (d *Decider) Step(now Now, o Observation) Verdict {
	now.Boot = max(now.Boot, d.now.Boot)
	d.now = now
	rules := []Rule{
		d.sleep(o), d.hours(), d.inputs(o.Input), d.appsRule(o), d.screen(o), d.battery(o), d.heat(o), d.network(o), d.gpu(o),
	}
	v := Verdict{Allow: AllowAll, Rules: rules}
	for _, r := range rules {
		if r.Allow.strictness() > v.Allow.strictness() {
			v.Allow, v.Why, v.Detail, v.Until = r.Allow, r.why, r.Seen, r.Until
		}
		v.Owner = v.Owner || r.owner
		if r.unknown != "" {
			v.Unknown = append(v.Unknown, r.Name+": "+r.unknown)
		}
	}
	return v
}

func (d *Decider) sleep(o Observation) Rule {
	if o.Asleep {
		return Rule{Name: RuleSleep, Allow: AllowNone, why: offpeak.EndSleeping, Seen: "the machine is going to sleep"}
	}
	return Rule{Name: RuleSleep, Allow: AllowAll, Seen: "awake"}
}

func (d *Decider) hours() Rule {
	r := Rule{Name: RuleHours, Allow: AllowAll, Seen: "at any time"}
	if len(d.policy.Hours) == 0 {
		return r
	}
	wall := d.now.Wall.In(d.zone)
	open := d.open(wall)
	r.Until = d.turn(wall, open)
	if open {
		r.Seen = "open"
		return r
	}
	r.Allow, r.why, r.Seen = AllowNone, offpeak.EndOutsideSchedule, "closed"
	return r
}

func (d *Decider) open(t time.Time) bool {
	return slices.ContainsFunc(d.policy.Hours, func(w offpeak.Window) bool { return w.Open(t) })
}

// turn is when the hours next open or close, zero if they never do: after three
// weeks, in which no clock skips the same hour twice, every time of the week has
// been seen.
func (d *Decider) turn(t time.Time, open bool) time.Time {
	for next, end := offpeak.Turn(t, slices.Values(d.policy.Hours)), t.AddDate(0, 0, 21); next.Before(end); next = offpeak.Turn(next, slices.Values(d.policy.Hours)) {
		if d.open(next) != open {
			return next
		}
	}
	return time.Time{}
}

// inputs is the rule of the owner's return. The latest input counts, whoever saw
// it.
func (d *Decider) inputs(inputs []Input) Rule {
	r := Rule{Name: RuleInput, Allow: AllowAll}
	if d.policy.IdleAfter == 0 {
		r.Seen = "works beside you"
		return r
	}
	if len(inputs) == 0 {
		r.Seen = "nobody looks for it"
		return r
	}
	known, absent := false, true
	var lost []string
	for _, hints := range []bool{false, true} {
		for _, in := range inputs {
			switch {
			case in.Hint != hints || in.Absent:
			case in.Known:
				at := d.now.Boot - max(in.Value, 0)
				if !d.seen || at > d.input {
					d.input, d.seen = at, true
				}
				known, absent, d.read = true, false, d.now.Boot
			default:
				absent = false
				lost = append(lost, in.Source+" "+in.Why)
			}
		}
		if known {
			break
		}
	}
	believed := d.seen && !absent && d.now.Boot-d.read < Grace
	switch {
	case known || believed:
		if len(lost) > 0 {
			r.unknown = strings.Join(lost, "; ") + "; the others count"
			if !known {
				r.unknown = strings.Join(lost, "; ") + "; the last word counts for a moment"
			}
		}
		return d.idle(r)
	case absent:
		r.Seen, r.unknown = "nobody", "there is no display and no session here; you count as away"
		return r
	}
	r.unknown = strings.Join(lost, "; ") + "; you count as " + d.policy.IfInputUnknown
	r.Seen = "can't be read"
	if d.policy.IfInputUnknown == Present {
		r.present(d.policy.WhilePresent)
	}
	return r
}

// idle decides by the last input that is known.
func (d *Decider) idle(r Rule) Rule {
	idle := d.now.Boot - d.input
	r.Seen = "last input " + idle.Truncate(time.Second).String() + " ago"
	if left := d.policy.IdleAfter.Std() - idle; left > 0 {
		r.present(d.policy.WhilePresent)
		r.Until = d.now.Wall.Add(left)
	}
	return r
}

// present makes the rule that of an owner who is there.
func (r *Rule) present(allow Allow) {
	r.Allow, r.owner = allow, true
	if allow != AllowAll {
		r.why = offpeak.EndOwnerReturned
	}
}

// hold keeps a rule that forbids in force for Linger after the last time that it
// was told to.
func (d *Decider) hold(r Rule, forbids bool, allow Allow, why offpeak.EndReason) Rule {
	if forbids {
		d.holds[r.Name] = hold{d.now.Boot + Linger, r.Seen}
		r.Allow, r.why = allow, why
		return r
	}
	h, held := d.holds[r.Name]
	if !held || d.now.Boot >= h.until {
		delete(d.holds, r.Name)
		return r
	}
	r.Allow, r.why, r.Seen = allow, why, h.seen+" until a moment ago"
	r.Until = d.now.Wall.Add(h.until - d.now.Boot)
	return r
}

// held says that a rule forbids or lingers, which is when its margin counts.
func (d *Decider) held(rule string) bool {
	h, held := d.holds[rule]
	return held && d.now.Boot < h.until
}

func (d *Decider) appsRule(o Observation) Rule {
	r := Rule{Name: RuleApps, Allow: AllowAll, Seen: "none runs"}
	if len(d.policy.BusyApps) == 0 {
		r.Seen = "none is named"
		return r
	}
	f := d.apps.believe(d.now.Boot, o.Apps)
	r.lost(f.Known, f.Why, "none counts as running")
	// What was read for another policy may name programs that are free now.
	running := slices.DeleteFunc(slices.Clone(f.Value), func(name string) bool { return !d.policy.busy(name) })
	if len(running) > 0 {
		r.Seen = strings.Join(running, ", ") + " runs"
	}
	r = d.hold(r, len(running) > 0, AllowNone, offpeak.EndOwnerReturned)
	r.owner = r.Allow != AllowAll
	return r
}

func (d *Decider) screen(o Observation) Rule {
	r := Rule{Name: RuleFullScreen, Allow: AllowAll, Seen: "none"}
	if !d.policy.FullScreen {
		r.Seen = "not minded"
		return r
	}
	f := d.fullScreen.believe(d.now.Boot, o.FullScreen)
	if !f.Absent {
		r.lost(f.Known, f.Why, "no program counts as filling the screen")
	}
	if f.Value != "" {
		r.Seen = f.Value + " fills the screen"
	}
	r = d.hold(r, f.Value != "", AllowNone, offpeak.EndOwnerReturned)
	r.owner = r.Allow != AllowAll
	return r
}

func (d *Decider) battery(o Observation) Rule {
	r := Rule{Name: RuleBattery, Allow: AllowAll}
	f := d.power.believe(d.now.Boot, o.Power)
	rule := d.policy.OnBattery
	switch {
	case rule.Always:
		r.Seen = "not minded"
		return r
	case f.Absent || !f.Known && f.Why == "":
		// Nothing was found, or nothing looks for it.
		r.Seen = "there is none"
		return d.hold(r, false, AllowNone, offpeak.EndOnBattery)
	case !f.Known:
		r.Seen = "can't be read"
		r.lost(false, f.Why, "it counts as in use")
		return d.hold(r, true, AllowNone, offpeak.EndOnBattery)
	case !f.Value.Battery:
		r.Seen = "on mains"
		return d.hold(r, false, AllowNone, offpeak.EndOnBattery)
	}
	r.Seen = fmt.Sprintf("on battery, %d%%", f.Value.Percent)
	least := rule.Above
	if d.held(RuleBattery) {
		least += chargeMargin
	}
	return d.hold(r, f.Value.Percent <= least || rule.Above >= 100, AllowNone, offpeak.EndOnBattery)
}

// heat minds the processor and each GPU: one that is too hot stays so until it
// has cooled by the margin. A hot GPU leaves the processor to other jobs.
func (d *Decider) heat(o Observation) Rule {
	r := Rule{Name: RuleHeat, Allow: AllowAll, Seen: "cool"}
	var lost []string
	minded := []Rule{}
	mind := func(key, name string, f Field[float64], limit int, allow Allow) {
		key = RuleHeat + " " + key
		if !f.Known && !f.Absent && f.Why != "" {
			lost = append(lost, name+" "+f.Why)
		}
		cool := float64(limit)
		if d.held(key) {
			cool -= coolMargin
		}
		one := Rule{Name: key, Allow: AllowAll, Seen: fmt.Sprintf("%s has %.0f °C", name, f.Value)}
		minded = append(minded, d.hold(one, f.Known && f.Value >= cool, allow, offpeak.EndHot))
	}
	if d.policy.MaxCPUTemperature != 0 {
		mind("cpu", "the processor", d.cpu.believe(d.now.Boot, o.CPU), d.policy.MaxCPUTemperature, AllowNone)
	}
	if d.policy.MaxTemperature != 0 {
		f := d.devices.believe(d.now.Boot, o.Devices)
		if !f.Known && !f.Absent && f.Why != "" {
			lost = append(lost, f.Why)
		}
		for _, dev := range f.Value {
			mind("gpu "+string(dev.ID), dev.Name, dev.Temperature, d.policy.MaxTemperature, AllowCPU)
		}
		// A device that was too hot and is gone lingers as well.
		for key := range d.holds {
			if strings.HasPrefix(key, RuleHeat+" gpu ") && !slices.ContainsFunc(minded, func(r Rule) bool { return r.Name == key }) {
				minded = append(minded, d.hold(Rule{Name: key, Allow: AllowAll}, false, AllowCPU, offpeak.EndHot))
			}
		}
	}
	if len(lost) > 0 {
		r.unknown = strings.Join(lost, "; ") + "; counts as cool"
	}
	var hot []string
	for _, one := range minded {
		if one.Allow == AllowAll {
			continue
		}
		hot = append(hot, one.Seen)
		if one.Allow.strictness() > r.Allow.strictness() {
			r.Allow, r.why = one.Allow, offpeak.EndHot
		}
	}
	if len(hot) > 0 {
		slices.Sort(hot)
		r.Seen = strings.Join(hot, ", ")
	}
	return r
}

func (d *Decider) network(o Observation) Rule {
	r := Rule{Name: RuleNetwork, Allow: AllowAll, Seen: "not metered"}
	if o.Metered.Absent {
		r.Seen = "nobody says whether it is metered; counts as not"
	}
	if d.policy.Metered == Always {
		r.Seen = "not minded"
		return r
	}
	f := d.metered.believe(d.now.Boot, o.Metered)
	if !f.Absent {
		r.lost(f.Known, f.Why, "it counts as not metered")
	}
	if f.Value {
		r.Seen = "metered"
	}
	return d.hold(r, f.Value, AllowNone, offpeak.EndMetered)
}

// gpu minds what others do with the GPUs.
func (d *Decider) gpu(o Observation) Rule {
	r := Rule{Name: RuleGPU, Allow: AllowAll, Seen: "free"}
	if d.policy.GPUMemory == 0 && d.policy.GPUUse == 0 {
		r.Seen = "not minded"
		return r
	}
	f := d.devices.believe(d.now.Boot, o.Devices)
	if f.Absent {
		r.Seen = "there is none"
		return d.hold(r, false, AllowCPU, offpeak.EndOwnerReturned)
	}
	r.lost(f.Known, f.Why, "no other program counts as using it")
	share := 1.0
	if d.held(RuleGPU) {
		share = shareMargin
	}
	var taken []string
	for _, dev := range f.Value {
		if most := d.policy.GPUMemory; most > 0 && dev.Others.Known && float64(dev.Others.Value) >= float64(most)*share {
			taken = append(taken, fmt.Sprintf("others hold %s of %s", dev.Others.Value, dev.Name))
		} else if most := d.policy.GPUUse; most > 0 && dev.Use.Known && float64(dev.Use.Value) >= float64(most)*share {
			taken = append(taken, fmt.Sprintf("others use %d%% of %s", dev.Use.Value, dev.Name))
		}
	}
	if len(taken) > 0 {
		r.Seen = strings.Join(taken, ", ")
	}
	return d.hold(r, len(taken) > 0, AllowCPU, offpeak.EndOwnerReturned)
}

// lost notes what could not be read and what counts instead.
func (r *Rule) lost(known bool, why, instead string) {
	// Without a reason nothing looks for it here.
	if known || why == "" {
		return
	}
	r.unknown = why + "; " + instead
}

// busy says that a process of this name is one of the policy's programs.
func (p *Policy) busy(name string) bool {
	return slices.ContainsFunc(p.BusyApps, func(app string) bool {
		// Linux cuts names short where it can't complete them from the command line.
		const cut = 15
		return bare(app) == bare(name) || len(name) == cut && strings.HasPrefix(strings.ToLower(app), strings.ToLower(name))
	})
}

// bare is a program's name without what differs between systems: its case and the
// ending that Windows gives it, which games for Windows keep on Linux.
func bare(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".exe") }
