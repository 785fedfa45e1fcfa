package hub

import (
	"time"

	"offpeak"
	"offpeak/placement"
)

// trial is what is held against a node, and since when its probe is under way.
type trial struct {
	placement.Trial
	probe offpeak.LeaseID
	since time.Time
}

// blame takes in how a lease ended: a node where jobs keep dying by its fault gets
// no work for a while. mu is held.
func (h *Hub) blame(node offpeak.NodeID, lease offpeak.LeaseID, reason offpeak.EndReason, now time.Time) {
	t := h.trials[node]
	if t == nil {
		t = &trial{}
	}
	until, barred := t.Ended(lease, reason, h.cfg.Quarantine, now)
	switch {
	case barred:
		h.fleet.Bar(node, until)
		h.queue.Freed(node) // it is kept for nobody any more
		h.env.Log.Warn("node is quarantined: its jobs die by its fault", "node", node, "reason", reason, "until", until.UTC())
	case !t.Held():
		h.trust(node)
		return
	}
	h.trials[node] = t
}

// trust ends what is held against a node. mu is held.
func (h *Hub) trust(node offpeak.NodeID) {
	delete(h.trials, node)
	if h.fleet.Trust(node) {
		h.queue.Freed(node)
		h.env.Log.Info("node left quarantine", "node", node)
	}
}

// probation lets nodes be tried whose time has come, trusts those whose probe has
// lasted, and returns when the next of either is due. mu is held.
func (h *Hub) probation(now time.Time) (next time.Time) {
	sooner := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for id, t := range h.trials {
		if at, barred := t.Due(); barred && at.After(now) {
			sooner(at)
			continue
		} else if barred {
			t.Try()
			h.fleet.Try(id)
			h.queue.Freed(id)
		}
		switch probe := h.fleet.Probe(id); {
		case probe == "":
			t.probe = ""
		case probe != t.probe:
			t.probe, t.since = probe, now
			sooner(now.Add(placement.Proof))
		case !now.Before(t.since.Add(placement.Proof)):
			h.trust(id)
		default:
			sooner(t.since.Add(placement.Proof))
		}
	}
	return next
}
