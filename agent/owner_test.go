package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"offpeak"
	"offpeak/agent/hardware"
	"offpeak/agent/presence"
	"offpeak/agent/state"
	"offpeak/wire"
)

// gpuWork is an offer of work on a device.
func gpuWork(id offpeak.LeaseID) synced {
	return synced{wire.Sync{Revision: 1, Leases: []wire.Desired{{
		Lease: id, State: offpeak.LeaseOffered, Work: &wire.Work{Resources: offpeak.Resources{Devices: []offpeak.DeviceID{"gpu0"}}},
	}}}}
}

func TestVerdicts(t *testing.T) {
	news := []effect{{do: doBeat}, {do: doOffer}}
	none := verdict{presence.Verdict{Allow: presence.AllowNone, Why: offpeak.EndOnBattery}}
	cpu := verdict{presence.Verdict{Allow: presence.AllowCPU, Why: offpeak.EndHot}}
	type turn struct {
		event any
		want  []effect
		why   offpeak.EndReason
	}
	for name, turns := range map[string][]turn{
		"no new work where the rules allow none": {
			{none, news, offpeak.EndOnBattery},
			{said(1, "+a"), []effect{{doDecline, "a", offpeak.EndDeclined}}, offpeak.EndOnBattery},
			{done{"a"}, nil, offpeak.EndOnBattery},
			{verdict{presence.Verdict{Allow: presence.AllowAll}}, news, ""},
			{said(2, "+b"), []effect{{doAccept, "b", ""}}, ""},
		},
		"only the processor": {
			{cpu, news, ""},
			{gpuWork("a"), []effect{{doDecline, "a", offpeak.EndDeclined}}, ""},
			{said(2, "+b"), []effect{{doAccept, "b", ""}, {doDrop, "a", ""}}, ""},
		},
		"a device that is withheld stays while a lease holds it": {
			{gpuWork("a"), []effect{{doAccept, "a", ""}}, ""},
			{cpu, news, ""},
			{done{"a"}, []effect{{do: doOffer}}, ""},
		},
		"the owner's orders stand above the rules": {
			{none, news, offpeak.EndOnBattery},
			{ordered{state.Orders{Paused: true}}, []effect{{do: doBeat}}, offpeak.EndPaused},
			{ordered{}, []effect{{do: doBeat}}, offpeak.EndOnBattery},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPicture()
			for i, turn := range turns {
				got := p.step(time.Second, turn.event)
				if diff := cmp.Diff(turn.want, got, cmp.AllowUnexported(effect{})); diff != "" {
					t.Fatalf("turn %d (-want +got):\n%s", i, diff)
				}
				if why := p.why(time.Second); why != turn.why {
					t.Fatalf("turn %d: why %q, want %q", i, why, turn.why)
				}
			}
		})
	}
}

func TestWithheldDevices(t *testing.T) {
	p := newPicture()
	all := []offpeak.Device{{ID: "gpu0"}, {ID: "gpu1"}}
	offers := func() (ids []offpeak.DeviceID) {
		for _, d := range p.offers(all) {
			ids = append(ids, d.ID)
		}
		return ids
	}
	p.step(0, gpuWork("a"))
	p.step(0, verdict{presence.Verdict{Allow: presence.AllowCPU, Why: offpeak.EndHot}})
	if ids := offers(); !slices.Equal(ids, []offpeak.DeviceID{"gpu0"}) {
		t.Errorf("while a lease holds it: %v", ids)
	}
	p.step(0, done{"a"})
	if ids := offers(); len(ids) != 0 {
		t.Errorf("afterwards: %v", ids)
	}
	p.step(0, verdict{presence.Verdict{Allow: presence.AllowAll}})
	if ids := offers(); len(ids) != 2 {
		t.Errorf("when all is allowed: %v", ids)
	}
}

// owner is a person at the machine of a test.
type owner struct {
	mu   sync.Mutex
	idle time.Duration
	err  error
}

func (o *owner) is(idle time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.idle, o.err = idle, err
}

// sources are what sees the owner.
func (o *owner) sources() []presence.Source {
	put := func(v *presence.Observation, f presence.Field[time.Duration]) {
		v.Input = append(v.Input, presence.Input{Source: "keyboard", Field: f})
	}
	return []presence.Source{{
		Name: "keyboard",
		Read: func(context.Context, presence.Policy) (presence.Reading, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			idle := o.idle
			return func(v *presence.Observation, age time.Duration) { put(v, presence.Read(idle+age)) }, o.err
		},
		Lost: func(v *presence.Observation, err error) { put(v, presence.Lost[time.Duration](err)) },
	}}
}

// attended is a world with an owner at the machine.
func attended(t *testing.T) (*world, *owner) {
	w, o := newWorld(t), &owner{idle: time.Hour}
	w.env.Presence = o.sources()
	w.cfg.Times.Presence = presence.Times{Busy: 5 * time.Millisecond, Idle: 5 * time.Millisecond}
	return w, o
}

func (w *world) says(why offpeak.EndReason) {
	w.t.Helper()
	w.hub.wait("a heartbeat that says "+string(why), func() bool {
		return len(w.hub.beats) > 0 && w.hub.beats[len(w.hub.beats)-1].Why == why
	})
}

func TestOwnerReturns(t *testing.T) {
	w, o := attended(t)
	w.script("work", untilNotice)
	w.join()
	w.run()
	w.says("")
	o.is(0, nil)
	w.says(offpeak.EndOwnerReturned)
	w.hub.offer("lease_1", work("work"))
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndDeclined {
		t.Errorf("end = %+v", got.end)
	}
	st := w.status()
	if st.Availability != offpeak.NodeInUse || st.Why != offpeak.EndOwnerReturned || st.Presence == nil || !st.Presence.Owner || st.Presence.Until.IsZero() {
		t.Errorf("status = %+v", st)
	}
	// The rules are set while the agent runs, hold at once and for the next.
	p := *st.Policy
	p.IdleAfter = 0
	if _, err := TellPolicy(t.Context(), w.cfg.Data, p); err != nil {
		t.Fatal(err)
	}
	w.says("")
	w.hub.offer("lease_2", work("work"))
	w.hub.wait("running", func() bool { return w.hub.leases["lease_2"].desired.State == offpeak.LeaseRunning })
	if kept, err := Policy(w.cfg.Data); err != nil || kept.IdleAfter != 0 {
		t.Errorf("kept: %+v, %v", kept, err)
	}
	p.Metered = "sometimes"
	if _, err := TellPolicy(t.Context(), w.cfg.Data, p); err == nil || !strings.Contains(err.Error(), "never or always") {
		t.Errorf("junk: %v", err)
	}
	if err := SetPolicy(w.cfg.Data, *st.Policy, w.env.Log); !errors.Is(err, ErrBusy) {
		t.Errorf("beside a running agent: %v", err)
	}
}

// TestNothingIsSaidBeforeTheFirstLook: an agent that starts while its owner is there
// never says that the node is free.
func TestNothingIsSaidBeforeTheFirstLook(t *testing.T) {
	w, o := attended(t)
	o.is(0, nil)
	w.join()
	w.run()
	w.says(offpeak.EndOwnerReturned)
	w.hub.with(func() {
		for _, b := range w.hub.beats {
			if b.Availability != offpeak.NodeInUse {
				t.Errorf("said %+v", b)
			}
		}
	})
}

// TestPresenceThatCantBeRead: the default is in the node's status, on the machine
// and on the hub.
func TestPresenceThatCantBeRead(t *testing.T) {
	const text = "input: keyboard is unplugged; you count as present"
	w, o := attended(t)
	o.is(0, errors.New("is unplugged"))
	w.join()
	w.run()
	w.says(offpeak.EndOwnerReturned)
	if st := w.status(); st.Presence == nil || !slices.Contains(st.Presence.Unknown, text) {
		t.Errorf("status = %+v", st.Presence)
	}
	w.hub.wait("a warning", func() bool {
		n := len(w.hub.surveys)
		return n > 0 && slices.Contains(w.hub.surveys[n-1].Warnings, "presence: "+text)
	})
}

// TestClosedHoursSayWhenTheyOpen, and an offer that comes all the same is declined.
func TestClosedHoursSayWhenTheyOpen(t *testing.T) {
	w, _ := attended(t)
	w.join()
	p := presence.DefaultPolicy()
	p.Zone = "UTC"
	// An hour that is not now.
	now := time.Now().UTC()
	opens := now.Truncate(time.Hour).Add(12 * time.Hour)
	p.Hours = []offpeak.Window{{Days: offpeak.Everyday, From: offpeak.Clock(opens.Hour() * 60), To: offpeak.Clock(opens.Hour()*60 + 30)}}
	if err := SetPolicy(w.cfg.Data, p, w.env.Log); err != nil {
		t.Fatal(err)
	}
	w.run()
	w.says(offpeak.EndOutsideSchedule)
	w.hub.wait("the opening", func() bool {
		n := len(w.hub.surveys)
		return n > 0 && w.hub.surveys[n-1].Opens != nil && w.hub.surveys[n-1].Opens.Equal(opens)
	})
	if _, err := Tell(t.Context(), w.cfg.Data, OrderPause, 0); err != nil {
		t.Fatal(err)
	}
	w.says(offpeak.EndPaused)
}

// TestHotGPUIsWithheld: only jobs without devices are taken, and the hub is offered
// no device, until it has cooled.
func TestHotGPUIsWithheld(t *testing.T) {
	w, _ := attended(t)
	var mu sync.Mutex
	heat := 95.0
	w.env.Measure = func(context.Context, []int) hardware.Sample {
		mu.Lock()
		defer mu.Unlock()
		hot := heat
		return hardware.Sample{At: time.Now(), Readings: []hardware.Reading{{
			Device: offpeak.Device{ID: "gpu0", Model: "RTX", Vendor: "nvidia", VRAM: offpeak.GiB}, Temperature: &hot,
		}}}
	}
	w.cfg.Times.Devices = 5 * time.Millisecond
	w.script("work", untilNotice)
	w.join()
	w.run()
	w.hub.wait("an inventory without devices", func() bool { return len(w.hub.surveys) > 0 })
	w.says("")
	if st := w.status(); st.Presence == nil || st.Presence.Allow != presence.AllowCPU || st.Presence.Why != offpeak.EndHot || !strings.Contains(st.Presence.Detail, "RTX has 95 °C") {
		t.Errorf("status = %+v", st.Presence)
	}
	w.hub.with(func() {
		for _, inv := range w.hub.surveys {
			if len(inv.Devices) != 0 {
				t.Errorf("offered %+v", inv.Devices)
			}
		}
	})
	onGPU := work("work")
	onGPU.Resources.Devices = []offpeak.DeviceID{"gpu0"}
	w.hub.offer("lease_1", onGPU)
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndDeclined {
		t.Errorf("end = %+v", got.end)
	}
	w.hub.offer("lease_2", work("work"))
	w.hub.wait("running", func() bool { return w.hub.leases["lease_2"].desired.State == offpeak.LeaseRunning })
	// The owner doesn't mind heat any more, which holds at once.
	p := presence.DefaultPolicy()
	p.MaxTemperature = 0
	if _, err := TellPolicy(t.Context(), w.cfg.Data, p); err != nil {
		t.Fatal(err)
	}
	w.hub.wait("the device", func() bool {
		n := len(w.hub.surveys)
		return len(w.hub.surveys[n-1].Devices) == 1
	})
}

// TestSleepIsToldToTheHub before it comes: the announcer may go on only when a
// heartbeat was acknowledged that says so.
func TestSleepIsToldToTheHub(t *testing.T) {
	w, _ := attended(t)
	sleeps := make(chan bool)
	w.env.Announce = func(ctx context.Context, asleep func(bool)) error {
		for {
			select {
			case before := <-sleeps:
				asleep(before)
				sleeps <- before
			case <-ctx.Done():
				return nil
			}
		}
	}
	w.join()
	a := w.run()
	w.says("")
	sleeps <- true
	<-sleeps
	w.hub.with(func() {
		if b := w.hub.beats[len(w.hub.beats)-1]; b.Why != offpeak.EndSleeping {
			t.Errorf("the machine sleeps, and the hub heard %+v", b)
		}
	})
	sleeps <- false
	<-sleeps
	w.says(offpeak.EndOwnerReturned)
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestSpoiltPolicy: a torn file is set aside, the defaults hold, and status says so
// until the rules are set again, also over restarts.
func TestSpoiltPolicy(t *testing.T) {
	w, _ := attended(t)
	w.join()
	path := filepath.Join(w.cfg.Data, "policy.json")
	if err := os.WriteFile(path, []byte(`{"idle_after": "10m", "hou`), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a := w.run()
		eventually(t, "status", func() bool { return w.status().Running })
		if st := w.status(); st.PolicyProblem == "" || st.Policy.IdleAfter != presence.DefaultPolicy().IdleAfter {
			t.Errorf("status = %+v", st)
		}
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Policy(w.cfg.Data); !errors.Is(err, ErrSpoilt) {
		t.Errorf("policy: %v", err)
	}
	w.run()
	eventually(t, "status", func() bool { return w.status().Running })
	if st, err := TellPolicy(t.Context(), w.cfg.Data, presence.DefaultPolicy()); err != nil || st.PolicyProblem != "" {
		t.Errorf("set again: %+v, %v", st, err)
	}
}
