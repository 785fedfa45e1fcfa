package presence

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"offpeak"
)

// Allow is what may run.
type Allow string

// From everything to nothing.
const (
	AllowAll Allow = "all"
	// AllowCPU: jobs without devices.
	AllowCPU  Allow = "cpu"
	AllowNone Allow = "none"
)

// strictness orders Allow: what allows less is more.
func (a Allow) strictness() int {
	switch a {
	case AllowNone:
		return 2
	case AllowCPU:
		return 1
	}
	return 0
}

// Policy is the owner's rules. The owner sets it; policy.json in the data folder
// keeps it. A field that the file lacks has its default.
type Policy struct {
	// IdleAfter is how long nobody has touched the machine before it may work.
	// Zero: it works beside its owner.
	IdleAfter offpeak.Duration `json:"idle_after"`
	// IfInputUnknown is what the owner counts as where input can't be seen:
	// "present" or "away".
	IfInputUnknown string `json:"if_input_unknown"`
	// WhilePresent is what may run while the owner is at the machine.
	WhilePresent Allow `json:"while_present"`
	// BusyApps are programs that have the machine to themselves while they run, by
	// the name of their process.
	BusyApps []string `json:"busy_apps"`
	// FullScreen says that a program that fills the screen has the machine to itself.
	FullScreen bool `json:"full_screen"`
	// GPUMemory and GPUUse are how much of a GPU's memory, and how many percent of
	// its time, programs other than jobs may use before jobs leave it to them. Zero
	// doesn't look.
	GPUMemory offpeak.Bytes `json:"gpu_memory_bytes"`
	GPUUse    int           `json:"gpu_use_percent"`
	// OnBattery says whether to work on battery.
	OnBattery Battery `json:"on_battery"`
	// MaxTemperature and MaxCPUTemperature, in degrees Celsius, are where GPUs and
	// the processor are too hot. Zero doesn't look.
	MaxTemperature    int `json:"max_temperature"`
	MaxCPUTemperature int `json:"max_cpu_temperature"`
	// Metered says whether to work on a network that is paid by volume: "never" or
	// "always".
	Metered string `json:"metered"`
	// Hours are when the machine may work, by a clock in Zone. None: at any time.
	Hours []offpeak.Window `json:"hours"`
	// Zone is a place of the time zone database; "" is the machine's own zone.
	Zone string `json:"zone,omitempty"`
}

// The words of IfInputUnknown and of Metered.
const (
	Present = "present"
	Away    = "away"
	Never   = "never"
	Always  = "always"
)

// DefaultPolicy is that of an owner who has said nothing.
func DefaultPolicy() Policy {
	return Policy{
		IdleAfter: offpeak.Duration(5 * time.Minute), IfInputUnknown: Present, WhilePresent: AllowNone,
		BusyApps: []string{}, FullScreen: true, GPUMemory: 2 * offpeak.GiB, GPUUse: 25,
		OnBattery: Battery{Above: 100}, MaxTemperature: 87, Metered: Never, Hours: []offpeak.Window{},
	}
}

// Bounds of a policy.
const (
	maxIdle    = offpeak.Duration(24 * time.Hour)
	maxApps    = 64
	maxAppName = 128
	maxHours   = 64
)

// Validate returns a *offpeak.FieldError for the first rule that the policy
// breaks. Fields are named as in the file.
func (p *Policy) Validate() error {
	bad := func(field string, value any, rule string) error {
		return &offpeak.FieldError{Field: field, Value: fmt.Sprint(value), Rule: rule}
	}
	switch {
	case p.IdleAfter < 0 || p.IdleAfter > maxIdle:
		return bad("idle_after", p.IdleAfter, "is from 0s, which is to work beside you, to 24h")
	case p.IfInputUnknown != Present && p.IfInputUnknown != Away:
		return bad("if_input_unknown", p.IfInputUnknown, "is present or away")
	case p.WhilePresent != AllowAll && p.WhilePresent != AllowCPU && p.WhilePresent != AllowNone:
		return bad("while_present", p.WhilePresent, "is none, cpu or all")
	case len(p.BusyApps) > maxApps:
		return bad("busy_apps", len(p.BusyApps), fmt.Sprintf("are at most %d programs", maxApps))
	case p.GPUMemory < 0 || p.GPUMemory > offpeak.MaxBytes:
		return bad("gpu_memory_bytes", int64(p.GPUMemory), "is a size, or 0 not to look")
	case p.GPUUse < 0 || p.GPUUse > 100:
		return bad("gpu_use_percent", p.GPUUse, "is a percentage from 1 to 100, or 0 not to look")
	case p.OnBattery.Above < 0 || p.OnBattery.Above > 100:
		return bad("on_battery", p.OnBattery, batteryRule)
	case p.MaxTemperature != 0 && (p.MaxTemperature < 40 || p.MaxTemperature > 120):
		return bad("max_temperature", p.MaxTemperature, "is from 40 to 120 degrees Celsius, or 0 not to look")
	case p.MaxCPUTemperature != 0 && (p.MaxCPUTemperature < 40 || p.MaxCPUTemperature > 120):
		return bad("max_cpu_temperature", p.MaxCPUTemperature, "is from 40 to 120 degrees Celsius, or 0 not to look")
	case p.Metered != Never && p.Metered != Always:
		return bad("metered", p.Metered, "is never or always")
	case len(p.Hours) > maxHours:
		return bad("hours", len(p.Hours), fmt.Sprintf("are at most %d windows", maxHours))
	}
	for _, app := range p.BusyApps {
		if app == "" || len(app) > maxAppName || strings.ContainsAny(app, `/\`) || strings.ContainsFunc(app, func(r rune) bool { return !strconv.IsPrint(r) }) {
			return bad("busy_apps", app, fmt.Sprintf("is the name of a process, without its folder, up to %d characters", maxAppName))
		}
	}
	for _, w := range p.Hours {
		if !w.Sound() {
			return bad("hours", w, "have days, and begin and end at different times of a day")
		}
	}
	if _, err := p.zone(); err != nil {
		return bad("zone", p.Zone, "is a place of the time zone database, for example Europe/Berlin, or empty for the machine's own zone")
	}
	return nil
}

// zone is where the clock hangs that Hours mean.
func (p *Policy) zone() (*time.Location, error) {
	if p.Zone == "" {
		return time.Local, nil
	}
	return time.LoadLocation(p.Zone)
}

// Clone returns a copy that shares nothing.
func (p Policy) Clone() Policy {
	p.BusyApps = slices.Clone(p.BusyApps)
	p.Hours = slices.Clone(p.Hours)
	return p
}

// Battery says whether to work on battery: while it holds more than Above percent.
// 100 is never, 0 with Always is until it is empty.
type Battery struct {
	Above  int
	Always bool
}

const batteryRule = "is never, always, or above=60%: while the battery holds more than that"

// String prints what ParseBattery reads.
func (b Battery) String() string {
	switch {
	case b.Always:
		return Always
	case b.Above >= 100:
		return Never
	}
	return fmt.Sprintf("above=%d%%", b.Above)
}

// ParseBattery reads "never", "always" or "above=60%". It returns a
// *offpeak.ValueError for anything else.
func ParseBattery(s string) (Battery, error) {
	switch s {
	case Never:
		return Battery{Above: 100}, nil
	case Always:
		return Battery{Always: true}, nil
	}
	text, ok := strings.CutPrefix(s, "above=")
	n, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
	if !ok || err != nil || n < 1 || n > 99 {
		return Battery{}, &offpeak.ValueError{Value: s, Rule: batteryRule}
	}
	return Battery{Above: n}, nil
}

// MarshalText writes what String prints.
func (b Battery) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads what ParseBattery reads.
func (b *Battery) UnmarshalText(text []byte) error {
	v, err := ParseBattery(string(text))
	if err != nil {
		return err
	}
	*b = v
	return nil
}
