package replay

import (
	"cmp"
	"fmt"
	"time"

	"offpeak"
)

// kinds counts the fields that say what happened.
func (s *Step) kinds() (n int) {
	for _, set := range []bool{s.Join != nil, s.Change != nil, s.Leave != "", s.Submit != nil, s.Cancel != "", s.Quota != nil} {
		if set {
			n++
		}
	}
	return n
}

// check returns an error that names what makes no sense.
func (s *Step) check() error {
	switch {
	case s.kinds() != 1:
		return fmt.Errorf("a step has one of join, change, leave, submit, cancel and quota, this one has %d", s.kinds())
	case s.Join != nil && s.Join.ID == "":
		return fmt.Errorf("join: a node has an id")
	case s.Join != nil:
		if err := cmp.Or(checkStates(s.Join.Liveness, s.Join.Intent, s.Join.Availability), checkNode(&s.Join.Inventory, s.Join.Ask)); err != nil {
			return fmt.Errorf("join of node %s: %w", s.Join.ID, err)
		}
	case s.Change != nil && s.Change.Node == "":
		return fmt.Errorf("change: it names a node")
	case s.Change != nil:
		if _, known := offpeak.EndOf(s.Change.Stop); s.Change.Stop != "" && !known {
			return fmt.Errorf("change of node %s: stop is %q: it stands in the table of ends", s.Change.Node, s.Change.Stop)
		}
		if err := cmp.Or(checkStates(s.Change.Liveness, s.Change.Intent, s.Change.Availability), checkNode(s.Change.Inventory, s.Change.Ask)); err != nil {
			return fmt.Errorf("change of node %s: %w", s.Change.Node, err)
		}
	case s.Submit != nil && s.Submit.ID == "":
		return fmt.Errorf("submit: a job has an id")
	case s.Submit != nil:
		if err := s.Submit.check(); err != nil {
			return fmt.Errorf("submit of job %s: %w", s.Submit.ID, err)
		}
	case s.Quota != nil && s.Quota.Account == "":
		return fmt.Errorf("quota: it names an account")
	case s.Quota != nil && min(s.Quota.Queued, s.Quota.Running, s.Quota.GPUs) < 0:
		return fmt.Errorf("quota of account %s: a bound is 0, for none, or more", s.Quota.Account)
	}
	return nil
}

// Bounds of what is read, beyond which sums would run over, or one line keep a
// machine busy.
const (
	mostSpan    = offpeak.MaxDuration
	mostRecord  = 100 * 365 * 24 * time.Hour
	mostDevices = 1024
	mostGPUs    = 64
	mostCPU     = int64(1) << 40
	mostBytes   = offpeak.Bytes(1) << 60
)

func (j *Job) check() error {
	for _, d := range []struct {
		name string
		span offpeak.Duration
	}{{"limit", j.Limit}, {"prepare", j.Prepare}, {"work", j.Work}, {"keep", j.Keep}} {
		if d.span < 0 || d.span > mostSpan {
			return fmt.Errorf("%s is %s: it is from 0s to %s", d.name, d.span, mostSpan)
		}
	}
	switch {
	case j.Work <= 0:
		return fmt.Errorf("work is above 0s")
	case !j.Policy.Valid():
		return fmt.Errorf("policy %q is not cheapest, balanced or fastest", j.Policy)
	case j.AtOnce < 0 || j.AtOnce > 0 && j.Group == "":
		return fmt.Errorf("at_once is %d: it is above 0, and stands with the group", j.AtOnce)
	}
	return checkAsks(&j.Requirements)
}

func checkAsks(r *offpeak.Requirements) error {
	switch {
	case len(r.GPUs) > mostGPUs:
		return fmt.Errorf("it asks for %d GPUs: at most %d", len(r.GPUs), mostGPUs)
	case r.MaxPrice != nil && *r.MaxPrice < 0:
		return fmt.Errorf("max_price is %d: it is not negative", *r.MaxPrice)
	}
	return checkSizes(r.CPU, r.Memory, r.Disk)
}

func checkSizes(cpu int64, memory, disk offpeak.Bytes) error {
	switch {
	case cpu < 0 || cpu > mostCPU:
		return fmt.Errorf("cpu_milli is %d: it is from 0 to %d", cpu, mostCPU)
	case memory < 0 || memory > mostBytes:
		return fmt.Errorf("memory_bytes is %d: it is from 0 to %d", memory, mostBytes)
	case disk < 0 || disk > mostBytes:
		return fmt.Errorf("disk_bytes is %d: it is from 0 to %d", disk, mostBytes)
	}
	return nil
}

// checkStates refuses words that are no states.
func checkStates(l offpeak.Liveness, i offpeak.Intent, a offpeak.Availability) error {
	switch l {
	case "", offpeak.NodeOnline, offpeak.NodeLate, offpeak.NodeOffline:
	default:
		return fmt.Errorf("liveness %q is not online, late or offline", l)
	}
	switch i {
	case "", offpeak.NodeOpen, offpeak.NodeDraining, offpeak.NodeClosed:
	default:
		return fmt.Errorf("intent %q is not open, draining or closed", i)
	}
	switch a {
	case "", offpeak.NodeAvailable, offpeak.NodeInUse:
	default:
		return fmt.Errorf("availability %q is not available or in_use", a)
	}
	return nil
}

// checkNode looks at what a node has and asks; nil is nothing that was said.
func checkNode(inv *offpeak.Inventory, ask *offpeak.Ask) error {
	if inv != nil {
		if err := checkSizes(inv.CPU, inv.Memory, inv.Disk); err != nil {
			return err
		}
		if n := len(inv.Devices); n > mostDevices {
			return fmt.Errorf("it has %d devices: at most %d", n, mostDevices)
		}
		seen := make(map[offpeak.DeviceID]struct{}, len(inv.Devices))
		for i := range inv.Devices {
			d := &inv.Devices[i]
			if _, twice := seen[d.ID]; twice || d.ID == "" {
				return fmt.Errorf("device %q: each has an id of its own", d.ID)
			}
			seen[d.ID] = struct{}{}
			if d.VRAM < 0 || d.VRAM > mostBytes {
				return fmt.Errorf("device %s: vram_bytes is %d: it is from 0 to %d", d.ID, d.VRAM, mostBytes)
			}
		}
	}
	if ask != nil {
		return ask.Validate()
	}
	return nil
}

// Check returns an error that names the first step that makes no sense, or stands
// outside of the recorded time or the order.
func (t *Traffic) Check() error {
	if !t.From.Before(t.Until) {
		return fmt.Errorf("recorded from %s until %s: the end lies after the start", stamp(t.From), stamp(t.Until))
	}
	if span := t.Until.Sub(t.From); span > mostRecord {
		return fmt.Errorf("recorded from %s until %s: that is more than a hundred years", stamp(t.From), stamp(t.Until))
	}
	if t.InForce != nil {
		if err := t.InForce.Validate(); err != nil {
			return fmt.Errorf("in_force: %w", err)
		}
	}
	last := t.From
	jobs := make(map[offpeak.JobID]struct{})
	for i := range t.Steps {
		s := &t.Steps[i]
		if err := s.check(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		if s.At.Before(last) || s.At.After(t.Until) {
			return fmt.Errorf("step %d: its time %s does not lie between %s, the step before, and %s, the end", i+1, stamp(s.At), stamp(last), stamp(t.Until))
		}
		last = s.At
		if s.Submit != nil {
			if _, twice := jobs[s.Submit.ID]; twice {
				return fmt.Errorf("step %d: job %s was submitted before", i+1, s.Submit.ID)
			}
			jobs[s.Submit.ID] = struct{}{}
		}
	}
	return nil
}
