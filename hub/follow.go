package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"offpeak"
)

// follow takes what other hubs did into the picture, from the events that tell of
// it. Like changes of this hub's own, they may come in another order than other
// news of the same objects; the same limits on what each may conclude apply.
func (h *Hub) follow(ctx context.Context, events []offpeak.Event) error {
	if h.circle.alone.Load() {
		return nil
	}
	f := following{refused: make(map[offpeak.JobID]offpeak.Event)}
	now := h.env.Now()
	h.mu.Lock()
	for i := range events {
		if e := &events[i]; e.Hub != h.circle.self.ID {
			f.seen = append(f.seen, e)
			h.followLocked(&f, e, now)
		}
	}
	h.mu.Unlock()
	if len(f.seen) == 0 {
		return nil
	}
	if err := h.followQueued(ctx, &f); err != nil {
		return err
	}
	for _, e := range f.seen {
		h.access.Follow(e)
		h.tuning.Follow(e)
		if e.Type == "node.removed" {
			h.forget(e.Node)
		} else if e.Node != "" {
			h.followPeer(e)
		}
		if e.Job != "" {
			h.bells.Ring(string(e.Job))
			h.memberBell(e.Job)
		}
		if e.Lease != "" {
			h.bells.Ring(string(e.Lease))
		}
	}
	h.wake()
	return nil
}

// following is one page of others' events.
type following struct {
	seen []*offpeak.Event
	// queued are jobs whose newest event here says that they are queued.
	queued []offpeak.JobID
	// refused are ends of leases that their nodes declined or did not answer.
	refused map[offpeak.JobID]offpeak.Event
}

func (h *Hub) followLocked(f *following, e *offpeak.Event, now time.Time) {
	switch e.Type {
	case "job.queued":
		h.queue.endedElsewhere(e)
		f.queued = append(f.queued, e.Job)
		return
	case "group.queued":
		f.queued = append(f.queued, members(e)...)
		return
	case "lease.offered":
		var d struct {
			Resources offpeak.Resources `json:"resources"`
		}
		if json.Unmarshal(e.Data, &d) != nil || h.fleet.Version(e.Node) == 0 {
			h.stale[e.Node] = struct{}{}
			return
		}
		if _, over := h.over[e.Lease]; over {
			return // it ended here, of which this is older news
		}
		h.fleet.Hold(e.Node, e.Lease, d.Resources)
		h.fleet.Confirm(e.Node, e.Lease)
		h.queue.hold(&offpeak.Lease{ID: e.Lease, Account: e.Account, Node: e.Node, Resources: d.Resources, OfferedAt: e.At}, time.Time{}, now)
		return
	case "node.enrolled", "node.inventory", "node.online", "node.late", "node.offline",
		"node.open", "node.draining", "node.closed", "node.available", "node.in_use", "node.ask", "node.quarantined", "node.trusted":
		// This hub may have changed the node since: the store knows.
		h.stale[e.Node] = struct{}{}
		h.followTurn(e, now)
		return
	case "account.quota", "ledger.deposit", "ledger.payout_returned":
		h.funded++
		h.queue.Funded(e.Account)
		return
	}
	object, state, _ := strings.Cut(e.Type, ".")
	switch object {
	case "job":
		h.queue.endedElsewhere(e)
		f.queued = slices.DeleteFunc(f.queued, func(id offpeak.JobID) bool { return id == e.Job })
		if offpeak.JobState(state).Terminal() || h.queue.older(e.Job, e.Attempt) {
			h.queue.remove(e.Job)
		}
	case "lease":
		h.followLease(f, e, offpeak.LeaseState(state), now)
	}
}

func (h *Hub) followLease(f *following, e *offpeak.Event, state offpeak.LeaseState, now time.Time) {
	switch state {
	case "stopping":
		if e.Reason == offpeak.EndOutbid {
			h.stale[e.Node] = struct{}{} // the lease says for whom
		}
		return
	case "frozen", "thawed":
		return // its agent's matter
	}
	if !state.Holds() {
		h.yielded(e.Lease)
	}
	if !state.Holds() {
		h.release(e.Node, e.Lease, now)
		h.queue.Funded(e.Account)
	}
	if !state.Terminal() {
		h.live.note(e, state, now)
		return
	}
	h.fared(e.Node, e.Lease, e.Reason, e.At, now)
	h.live.drop(e.Lease)
	if o, known := h.fleet.Offer(e.Node); known {
		h.queue.Funded(o.Account) // it may have earned something
	}
	if e.Reason == offpeak.EndDeclined || e.Reason == offpeak.EndOfferLapsed {
		f.refused[e.Job] = *e
	}
}

// followQueued adds jobs that other hubs queued, as they are now.
func (h *Hub) followQueued(ctx context.Context, f *following) error {
	if len(f.queued) == 0 {
		return nil
	}
	waiting, err := h.env.Store.Waiting(ctx, f.queued)
	if err != nil {
		return fmt.Errorf("read what other hubs queued: %w", err)
	}
	now := h.env.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range waiting {
		if e, refused := f.refused[q.Job]; refused {
			q = h.elsewhere(q, &offpeak.Lease{Node: e.Node, Reason: e.Reason}, now)
		}
		if _, left := h.queue.taken[q.Job]; !left {
			h.queue.add(q, asksText(q.Requirements), now)
		}
	}
	return nil
}

// followPeer tells a node's agent, if it is connected here, that what it should
// hold may have changed.
func (h *Hub) followPeer(e *offpeak.Event) {
	h.peers.changed(e.Node, 0, true)
}

// resync reads everything anew: events that this hub had not read are gone.
func (h *Hub) resync(ctx context.Context) error {
	if err := h.startTail(ctx); err != nil || h.circle.alone.Load() {
		return err
	}
	h.env.Log.Warn("events were pruned before this hub had read them; reading everything anew")
	h.peers.all(func(p *peer) { h.distrust(p.id) })
	if err := h.tuning.Load(ctx); err != nil {
		return err
	}
	if err := h.loadFleet(ctx); err != nil { // those that are new
		return err
	}
	h.fundedAll()
	h.doubt.Store(true)
	return nil
}
