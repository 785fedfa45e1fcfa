package hub

import (
	"context"
	"time"

	"offpeak"
	"offpeak/placement/past"
)

// pastPace is how often what is expected of each node is reckoned anew: time alone
// changes it.
const pastPace = time.Minute

// loadPast reads what the store has of how nodes fared, of those that are in the
// picture. It is followed from there on.
func (h *Hub) loadPast(ctx context.Context) error {
	now := h.env.Now()
	since := now.Add(-past.Horizon)
	ends, err := h.env.Store.Ends(ctx, since)
	if err != nil {
		return err
	}
	h.mu.Lock()
	for _, e := range ends {
		if p := h.past.Of(e.Node); p != nil {
			p.Ends(e.Reason, e.Leases, e.At)
		}
		if e.Last.After(h.pastUntil) {
			h.pastUntil = e.Last
		}
	}
	h.mu.Unlock()
	for y, err := range h.env.Store.Stays(ctx, since) {
		if err != nil {
			return err
		}
		h.mu.Lock()
		if p := h.past.Of(y.Node); p != nil && y.To.IsZero() {
			p.Since(y.From)
		} else if p != nil {
			p.Stayed(y.From, y.To)
		}
		h.mu.Unlock()
	}
	h.expectAll(now)
	return nil
}

// remember makes a node's past known when it comes into the picture: it has stood as
// it stands since it was enrolled, unless more is known. mu is held.
func (h *Hub) remember(n *offpeak.Node, now time.Time) {
	since := n.EnrolledAt
	if oldest := now.Add(-past.Horizon); since.Before(oldest) {
		since = oldest
	}
	p := h.past.Open(n.ID, n.Availability, n.Liveness, since)
	p.Heard(n.Liveness, now) // where it was in the book, and news of it was missed
	p.Says(n.Availability, now)
	h.expect(n.ID, now)
}

// fared takes in how a lease ended, for what is expected of its node. mu is held.
func (h *Hub) fared(node offpeak.NodeID, lease offpeak.LeaseID, reason offpeak.EndReason, at, now time.Time) {
	// What the store had when it was read counts already.
	if p := h.past.Of(node); p != nil && at.After(h.pastUntil) {
		p.Ended(lease, reason, at)
		h.expect(node, now)
	}
}

// turned takes in that a node is available from a moment on, or no longer. mu is held.
func (h *Hub) turned(node offpeak.NodeID, now time.Time, how func(*past.Node)) {
	if p := h.past.Of(node); p != nil {
		how(p)
		h.expect(node, now)
	}
}

// followTurn takes in what an event of another hub says of when a node was available.
// mu is held.
func (h *Hub) followTurn(e *offpeak.Event, now time.Time) {
	h.turned(e.Node, now, func(p *past.Node) {
		switch e.Type {
		case "node.available":
			p.Says(offpeak.NodeAvailable, e.At)
		case "node.in_use":
			p.Says(offpeak.NodeInUse, e.At)
		case "node.online":
			p.Heard(offpeak.NodeOnline, e.At)
		case "node.offline":
			p.Heard(offpeak.NodeOffline, e.At)
		}
	})
}

// expect has placement weigh what is expected of a node now. mu is held.
func (h *Hub) expect(node offpeak.NodeID, now time.Time) {
	p := h.past.Of(node)
	if p == nil {
		return
	}
	old := h.fleet.Metrics(node)
	if m := p.Into(old, now); m != old {
		h.fleet.SetMetrics(node, m)
	}
}

// expectAll reckons anew what is expected of all nodes, some at a time.
func (h *Hub) expectAll(now time.Time) {
	h.mu.Lock()
	all := h.past.Nodes()
	h.mu.Unlock()
	const some = 500
	for len(all) > 0 {
		n := min(some, len(all))
		h.mu.Lock()
		for _, id := range all[:n] {
			h.expect(id, now)
		}
		h.mu.Unlock()
		all = all[n:]
	}
}

// measure puts into a node what this hub measured of it.
func (h *Hub) measure(n *offpeak.Node) {
	now := h.env.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.past.Of(n.ID)
	if p == nil {
		return
	}
	m := &offpeak.Measured{}
	if share, known := p.Reliability(now); known {
		m.Reliability = &share
	}
	if left, known := p.Return(now); known && n.Liveness != offpeak.NodeOffline && n.Availability == offpeak.NodeAvailable {
		d := offpeak.Duration(left.Round(time.Minute))
		m.Return = &d
	}
	if *m != (offpeak.Measured{}) {
		n.Measured = m
	}
}
