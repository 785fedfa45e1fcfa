package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"offpeak"
	"offpeak/agent/presence"
	"offpeak/agent/state"
)

// This file is the agent's side of its owner's rules: where they are kept, who
// watches for them, and what a verdict changes in what the node says and offers.

// beginWatch reads the rules and makes who watches.
func (a *Agent) beginWatch() error {
	policy, spoilt, err := readPolicy(a.folder)
	if err != nil {
		return err
	}
	if spoilt {
		a.env.Log.Warn("the owner's rules are lost", "next", state.ErrSpoilt)
	}
	a.policy, a.spoilt = policy, spoilt
	sources := slices.Clone(a.env.Presence)
	if a.env.Measure != nil && len(sources) > 0 {
		sources = append(sources, presence.Devices(a.users))
	}
	a.watcher = presence.NewWatcher(presence.Config{
		Policy: policy, Sources: sources, Announce: a.env.Announce, Times: a.cfg.Times.Presence, Log: a.env.Log,
		Clock: func() presence.Now { return presence.Now{Boot: a.env.Boot(), Wall: a.env.Now()} },
	})
	return nil
}

// users says what the devices were last seen to do, of which the owner's rules mind
// what is not the grid's.
func (a *Agent) users(ctx context.Context) ([]presence.Device, error) {
	s := a.lastSample()
	for s.At.IsZero() {
		// Only at the start: the first measuring is under way.
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
		s = a.lastSample()
	}
	out := make([]presence.Device, len(s.Readings))
	for i, r := range s.Readings {
		d := presence.Device{ID: r.Device.ID, Name: r.Device.Model, Others: presence.Read(r.Foreign)}
		if r.Used == nil {
			d.Others = presence.Lost[offpeak.Bytes](errors.New("does not tell who holds its memory"))
		}
		if r.Temperature != nil {
			d.Temperature = presence.Read(*r.Temperature)
		} else {
			d.Temperature = presence.Lost[float64](errors.New("does not tell its temperature"))
		}
		// How busy a device is by whom, none tells: what keeps it busy while no job
		// has it is somebody else's.
		if r.Utilisation != nil && len(r.Ours) == 0 && len(r.Blind) == 0 && !a.holds(r.Device.ID) {
			d.Use = presence.Read(int(*r.Utilisation))
		}
		out[i] = d
	}
	return out, nil
}

// holds says that a lease has a device.
func (a *Agent) holds(id offpeak.DeviceID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.picture.leases {
		if slices.Contains(h.devices, id) {
			return true
		}
	}
	return false
}

// readPolicy reads the owner's rules. Where none are kept, or what was kept is
// damaged, the defaults hold; only a folder that can't be read is an error.
func readPolicy(f state.Folder) (p presence.Policy, spoilt bool, err error) {
	p = presence.DefaultPolicy()
	err = f.Policy(&p, func() bool { return p.Validate() == nil })
	switch {
	case err == nil:
		return p, false, nil
	case errors.Is(err, state.ErrSpoilt):
		return presence.DefaultPolicy(), true, nil
	case errors.Is(err, fs.ErrNotExist):
		return presence.DefaultPolicy(), false, nil
	}
	return p, false, fmt.Errorf("read the owner's rules: %w", err)
}

// judge takes a verdict. It is called by the watcher, one at a time.
func (a *Agent) judge(v presence.Verdict) {
	a.env.Log.Info("the owner's rules", "allow", v.Allow, "why", v.Why, "detail", v.Detail)
	said := a.env.Boot()
	a.apply(verdict{v})
	select {
	case <-a.judged:
	default:
		close(a.judged)
	}
	if v.Why == offpeak.EndSleeping {
		a.awaitTold(said)
	}
}

// awaitTold has the hub know before the machine sleeps, which waits for it a
// little: the heartbeat that the verdict asked for has been answered. The deadline
// of each job is counted on a clock that goes on in sleep.
func (a *Agent) awaitTold(said time.Duration) {
	ctx, cancel := context.WithTimeout(a.ctx, presence.Bound)
	defer cancel()
	for {
		a.mu.Lock()
		told := a.heard.ok && a.heard.sent >= said
		a.mu.Unlock()
		if told || sleep(ctx, 10*time.Millisecond) != nil {
			return
		}
	}
}

// awaitVerdict waits for the first verdict: what is said before it may be wrong.
func (a *Agent) awaitVerdict(ctx context.Context) error {
	timer := time.NewTimer(2 * presence.Bound)
	defer timer.Stop()
	select {
	case <-a.judged:
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// offered is what was found, less what the owner's rules withhold now, with what the
// hub should know of them.
func (a *Agent) offered(inv offpeak.Inventory) offpeak.Inventory {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.picture.verdict
	inv.Devices = a.picture.offers(inv.Devices)
	if a.picture.why(a.env.Boot()) == offpeak.EndOutsideSchedule && !v.Until.IsZero() {
		opens := v.Until.UTC()
		inv.Opens = &opens
	}
	inv.Warnings = slices.Clone(inv.Warnings)
	for _, text := range v.Unknown {
		inv.Warnings = append(inv.Warnings, "presence: "+text)
	}
	return inv
}

// admits says that a lease of which only now is known which devices it holds may
// have them.
func (a *Agent) admits(lease offpeak.LeaseID, devices []offpeak.DeviceID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.picture.step(a.env.Boot(), learned{lease, devices})
	return !a.picture.forbids(devices)
}

// setPolicy goes on with other rules, once they are kept.
func (a *Agent) setPolicy(p presence.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := a.folder.SavePolicy(p); err != nil {
		return err
	}
	a.mu.Lock()
	a.policy, a.spoilt = p, false
	a.mu.Unlock()
	a.watcher.SetPolicy(p)
	a.env.Log.Info("the owner sets the rules", "policy", p)
	return nil
}

// Policy reads the rules of a data folder on which no agent runs. ErrSpoilt comes
// with the defaults.
func Policy(data string) (presence.Policy, error) {
	p, spoilt, err := readPolicy(state.At(data))
	if err == nil && spoilt {
		err = ErrSpoilt
	}
	return p, err
}

// SetPolicy keeps rules for the next agent. It returns ErrBusy when one runs.
func SetPolicy(data string, p presence.Policy, log *slog.Logger) error {
	if err := p.Validate(); err != nil {
		return err
	}
	f, err := state.Open(data, log)
	if err != nil {
		return err
	}
	unlock, err := f.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	return f.SavePolicy(p)
}
