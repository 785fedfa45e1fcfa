package agent

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"offpeak"
	"offpeak/agent/hardware"
	"offpeak/agent/link"
	"offpeak/agent/supervisor"
	"offpeak/agent/warm"
	"offpeak/wire"
)

// unsure is the pause before another look where one did not find a device.
const unsure = 3 * time.Second

// survey looks at the whole machine, as a hub is told of it.
func (e *Env) survey(ctx context.Context) (offpeak.Inventory, error) {
	inv, err := e.Probe(ctx)
	if err == nil && e.Measure != nil {
		equip(&inv, e.Measure(ctx, nil))
	}
	return inv, err
}

// equip puts what was measured of the devices into an inventory.
func equip(inv *offpeak.Inventory, s hardware.Sample) {
	inv.Devices = s.Devices()
	inv.Warnings = slices.Concat(inv.Warnings, s.Warnings)
}

// devices measures the machine's devices: now and then, so that what others take
// of their memory is not offered, and often while a job runs that may have only
// so much of it. A driver that hangs holds up this loop and no other.
func (a *Agent) devices(ctx context.Context) error {
	if a.env.Measure == nil {
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-a.looks:
		case <-ctx.Done():
			return ctx.Err()
		}
		roots, _ := a.roots()
		s := a.env.Measure(ctx, roots)
		a.measured(s)
		wait := a.cfg.Times.Devices
		if _, bounded := a.roots(); bounded {
			wait = a.cfg.Times.Watch
		}
		if s.Unsure {
			wait = min(wait, unsure)
		}
		timer.Reset(wait)
	}
}

// look asks for a look at the devices at once.
func (a *Agent) look() {
	select {
	case a.looks <- struct{}{}:
	default:
	}
}

// roots are the processes with which the trees of jobs that hold devices begin,
// and whether one of those jobs may have only so much of a device's memory.
func (a *Agent) roots() (roots []int, bounded bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.running {
		if root, limits := t.holds(); root != 0 {
			roots = append(roots, root)
			bounded = bounded || len(limits) > 0
		}
	}
	return roots, bounded
}

// measured takes what was found: the inventory follows it, and who took too much
// is ended.
func (a *Agent) measured(s hardware.Sample) {
	a.mu.Lock()
	changed := !reflect.DeepEqual(s.Devices(), a.sample.Devices()) || !slices.Equal(s.Warnings, a.sample.Warnings)
	a.sample = s
	var over []func()
	for _, t := range a.running {
		root, limits := t.holds()
		for _, r := range s.Readings {
			most, held := limits[r.Device.ID], r.Ours[root]
			if most > 0 && held > most {
				over = append(over, func() {
					t.exceeded(fmt.Sprintf("it took %s of the %s that it asked for on %s", held, most, r.Device.Model))
				})
			}
		}
	}
	a.mu.Unlock()
	for _, end := range over {
		end()
	}
	if changed {
		a.tellInventory()
	}
}

func (a *Agent) tellInventory() {
	select {
	case a.surveys <- struct{}{}:
	default:
	}
}

// holds is the process with which the job's tree begins, 0 while it holds no
// devices or does not run, and how much it may have of each, where it said so.
func (t *attempt) holds() (root int, limits map[offpeak.DeviceID]offpeak.Bytes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.root, t.limits
}

// began notes which process the job's tree begins with: its supervisor's.
func (t *attempt) began(s warm.Supervisor) {
	p, ok := s.(interface{ Process() int })
	if !ok || len(t.Work.Resources.Devices) == 0 {
		return
	}
	limits := map[offpeak.DeviceID]offpeak.Bytes{}
	for i, id := range t.Work.Resources.Devices {
		if i < len(t.Work.VRAM) && t.Work.VRAM[i] > 0 {
			limits[id] = t.Work.VRAM[i]
		}
	}
	root := p.Process()
	t.mu.Lock()
	t.root, t.limits = root, limits
	t.mu.Unlock()
	t.a.look()
}

// exceeded ends a job that took more of a device's memory than it asked for.
func (t *attempt) exceeded(detail string) {
	select {
	case t.kills <- supervisor.Kill{Reason: offpeak.EndVRAMLimit, Detail: detail}:
		t.data.Log.Warn("ending a job that takes too much of a GPU's memory", "detail", detail)
	default:
	}
}

// inventory looks at the machine now and then, and tells the hub of changes and,
// less often, of how its devices fare.
func (a *Agent) inventory(ctx context.Context) error {
	if err := a.awaitVerdict(ctx); err != nil {
		return err
	}
	var base, last offpeak.Inventory
	var told []offpeak.Reading
	var looked, read time.Duration
	failures := 0
	for first := true; ; first = false {
		now := a.env.Boot()
		var err error
		if first || now-looked >= a.cfg.Times.Inventory || failures > 0 {
			if base, err = a.env.Probe(ctx); err == nil {
				looked = now
			} else {
				a.env.Log.Warn("look at the machine", "error", err)
			}
		}
		if base.Guests != nil {
			a.books.Block(base.Guests.Deny)
		}
		inv, s := base, a.lastSample()
		ready := a.env.Measure == nil || !s.At.IsZero()
		if a.env.Measure != nil {
			equip(&inv, s)
		}
		inv = a.offered(inv)
		if err == nil && ready && !reflect.DeepEqual(inv, last) {
			if err = a.link.Call(ctx, func(ctx context.Context, d *wire.Direct) error { return d.SetInventory(ctx, inv) }); err == nil {
				last = inv
			}
		}
		if news := hardware.Report(told, s); err == nil && ready && news != nil && (told == nil || now-read >= a.cfg.Times.Readings) {
			if err = a.link.Call(ctx, func(ctx context.Context, d *wire.Direct) error { return d.SetReadings(ctx, news) }); err == nil {
				told, read = news, now
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !link.Refused(err):
			failures++
			if err := a.pause(ctx, failures); err != nil {
				return err
			}
			continue
		case err != nil:
			a.env.Log.Error("the hub refuses this machine's inventory", "error", err)
		}
		failures = 0
		wait := a.cfg.Times.Inventory
		if len(s.Readings) > 0 {
			wait = min(wait, a.cfg.Times.Readings)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-a.surveys:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (a *Agent) lastSample() hardware.Sample {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sample
}
