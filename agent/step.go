package agent

import (
	"maps"
	"slices"
	"time"

	"offpeak"
	"offpeak/agent/presence"
	"offpeak/agent/state"
	"offpeak/wire"
)

// picture is what the agent knows of the leases it holds and of whether it may
// work. It changes in step alone.
type picture struct {
	// revision is the newest of the hub's words that was applied; known is
	// false until one was in this session.
	revision int64
	known    bool
	leases   map[offpeak.LeaseID]*held
	// ended are leases that are done with but that the hub's next word may
	// still list: they are not started again.
	ended map[offpeak.LeaseID]bool
	// orders are the owner's.
	orders state.Orders
	// verdict is what the owner's rules allow; the zero value allows all.
	verdict presence.Verdict
	// conflicted says that another agent uses this node's identity.
	conflicted bool
	// full is when the disk may be tried again, on the boot clock.
	full time.Duration
}

// held is one lease of the picture.
type held struct {
	desired wire.Desired
	// told says that the acceptance was composed: from then on heartbeats name
	// the lease, because the hub ends an accepted lease that one does not.
	told bool
	// ending says that the end was composed: the answer to it says what the
	// hub made of the lease, and that a word without it came first is no news.
	ending bool
	// stop is the reason for which the attempt was asked to go.
	stop offpeak.EndReason
	// devices are those that the lease holds, once that is known.
	devices []offpeak.DeviceID
}

func newHeld(d wire.Desired) *held {
	h := &held{desired: d}
	if d.Work != nil {
		h.devices = d.Work.Resources.Devices
	}
	return h
}

func newPicture() picture {
	return picture{leases: map[offpeak.LeaseID]*held{}, ended: map[offpeak.LeaseID]bool{}}
}

// The events.
type (
	// synced: the hub said what the node should hold.
	synced struct{ sync wire.Sync }
	// opened: a new session; revisions are counted anew.
	opened struct{}
	// adopted: a lease of the agent before this one goes on.
	adopted struct{ desired wire.Desired }
	// told and ending: the acceptance, the end of a lease is on its way.
	told   struct{ lease offpeak.LeaseID }
	ending struct{ lease offpeak.LeaseID }
	// done: an attempt has ended and was reported, or is stale.
	done struct{ lease offpeak.LeaseID }
	// ordered: the owner paused, drained or resumed.
	ordered struct{ orders state.Orders }
	// learned: the hub said, when asked, what a lease is about.
	learned struct {
		lease   offpeak.LeaseID
		devices []offpeak.DeviceID
	}
	// verdict: the owner's rules allow something else than before.
	verdict struct{ presence.Verdict }
	// conflict: another agent uses the identity, or does not any more.
	conflict struct{ on bool }
	// diskFull: no new work until then.
	diskFull struct{ until time.Duration }
)

type action string

// The actions.
const (
	// doAccept: begin an attempt, by accepting its offer if it is one.
	doAccept action = "accept"
	// doDecline: hand an offer back.
	doDecline action = "decline"
	// doStop: give an attempt notice, for the reason.
	doStop action = "stop"
	// doDrop: kill an attempt without a word; its lease is somebody else's.
	doDrop action = "drop"
	// doBeat: the hub should hear of a change at once.
	doBeat action = "beat"
	// doOffer: what the node offers may have changed; the hub should be told.
	doOffer action = "offer"
	// doSettle: the last lease of a draining node is gone: it is paused now.
	doSettle action = "settle"
)

// effect is one thing to do.
type effect struct {
	do     action
	lease  offpeak.LeaseID
	reason offpeak.EndReason
}

// step applies one event and returns what to do, in order.
func (p *picture) step(now time.Duration, event any) []effect {
	switch ev := event.(type) {
	case synced:
		return p.sync(now, ev.sync)
	case opened:
		p.known = false
	case adopted:
		h := newHeld(ev.desired)
		h.told = true
		p.leases[ev.desired.Lease] = h
	case told:
		if h := p.leases[ev.lease]; h != nil {
			h.told = true
		}
	case ending:
		if h := p.leases[ev.lease]; h != nil {
			h.ending = true
		}
	case done:
		var out []effect
		if h := p.leases[ev.lease]; h != nil {
			delete(p.leases, ev.lease)
			p.ended[ev.lease] = true
			if p.forbids(h.devices) {
				out = append(out, effect{do: doOffer})
			}
		}
		return p.settle(out)
	case learned:
		if h := p.leases[ev.lease]; h != nil {
			h.devices = ev.devices
		}
	case verdict:
		// What becomes of the jobs that run is decided here.
		p.verdict = ev.Verdict
		return []effect{{do: doBeat}, {do: doOffer}}
	case ordered:
		p.orders = ev.orders
		var out []effect
		if ev.orders.Paused {
			out = p.stopAll(offpeak.EndPaused)
		}
		return p.settle(append(out, effect{do: doBeat}))
	case conflict:
		p.conflicted = ev.on
	case diskFull:
		p.full = ev.until
		return []effect{{do: doBeat}}
	}
	return nil
}

// why returns the reason why the node may take no new work, "" if it may.
func (p *picture) why(now time.Duration) offpeak.EndReason {
	switch {
	case p.orders.Paused:
		return offpeak.EndPaused
	case p.orders.Draining:
		return offpeak.EndDrained
	case p.verdict.Allow == presence.AllowNone:
		return p.verdict.Why
	case now < p.full:
		return offpeak.EndNodeDiskFull
	}
	return ""
}

// forbids says that the owner's rules allow no work on devices, and this is.
func (p *picture) forbids(devices []offpeak.DeviceID) bool {
	return p.verdict.Allow == presence.AllowCPU && len(devices) > 0
}

// offers are the devices of the node that the hub may know of. Those that the
// owner's rules withhold stay while a lease holds them: it would be asked to stop
// because they are lost.
func (p *picture) offers(all []offpeak.Device) []offpeak.Device {
	if p.verdict.Allow != presence.AllowCPU {
		return all
	}
	var out []offpeak.Device
	for _, d := range all {
		for _, h := range p.leases {
			if slices.Contains(h.devices, d.ID) {
				out = append(out, d)
				break
			}
		}
	}
	return out
}

func (p *picture) sync(now time.Duration, s wire.Sync) (out []effect) {
	if p.known && s.Revision < p.revision {
		return nil
	}
	p.revision, p.known = s.Revision, true
	listed := map[offpeak.LeaseID]bool{}
	for _, d := range s.Leases {
		listed[d.Lease] = true
		h := p.leases[d.Lease]
		switch {
		case h != nil:
			h.desired.State, h.desired.Stop = d.State, d.Stop
			if d.Stop != "" && h.stop == "" {
				h.stop = d.Stop
				out = append(out, effect{doStop, d.Lease, d.Stop})
			}
		case p.ended[d.Lease] || !begins(&d) || d.Stop != "" || p.conflicted || !state.ValidID(d.Lease):
			// Done with, or accepted by an agent before this one that kept no
			// trace of it: the next heartbeat tells the hub that it is not held.
		case p.why(now) != "" || d.Work != nil && p.forbids(d.Work.Resources.Devices):
			p.ended[d.Lease] = true
			p.leases[d.Lease] = &held{desired: d, stop: offpeak.EndDeclined}
			out = append(out, effect{doDecline, d.Lease, offpeak.EndDeclined})
		default:
			h := newHeld(d)
			h.told = d.State != offpeak.LeaseOffered
			p.leases[d.Lease] = h
			out = append(out, effect{doAccept, d.Lease, ""})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.leases)) {
		if h := p.leases[id]; !listed[id] && !h.ending {
			delete(p.leases, id)
			out = append(out, effect{doDrop, id, ""})
			if p.forbids(h.devices) {
				out = append(out, effect{do: doOffer})
			}
		}
	}
	maps.DeleteFunc(p.ended, func(id offpeak.LeaseID, _ bool) bool { return !listed[id] })
	return p.settle(out)
}

// begins says that a lease which the agent does not hold is its to begin: it is
// offered, or was taken ahead with an end that this agent reported.
func begins(d *wire.Desired) bool {
	return d.State == offpeak.LeaseOffered || d.State == offpeak.LeasePreparing && d.Work != nil
}

// takes says that the node takes what it is given now, without being asked.
func (p *picture) takes(now time.Duration) bool { return p.why(now) == "" && !p.conflicted }

func (p *picture) stopAll(reason offpeak.EndReason) (out []effect) {
	for _, id := range slices.Sorted(maps.Keys(p.leases)) {
		if h := p.leases[id]; h.stop == "" {
			h.stop = reason
			out = append(out, effect{doStop, id, reason})
		}
	}
	return out
}

func (p *picture) settle(out []effect) []effect {
	if p.orders.Draining && !p.orders.Paused && len(p.leases) == 0 {
		p.orders = state.Orders{Paused: true}
		return append(out, effect{do: doSettle})
	}
	return out
}
