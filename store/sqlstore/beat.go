package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"offpeak"
	"offpeak/store"
)

// Beat applies heartbeats.
func (s *Store) Beat(ctx context.Context, beats []store.Beat) ([]store.BeatResult, error) {
	return writeEach(ctx, s, "apply heartbeats", beats, s.beats, func(b store.Beat, err error) store.BeatResult {
		return store.BeatResult{Err: fmt.Errorf("heartbeat of node %s: %w", b.Node, err)}
	})
}

// beats applies heartbeats in one transaction.
func (s *Store) beats(t *verb, beats []store.Beat) ([]store.BeatResult, error) {
	nodes := make([]offpeak.NodeID, len(beats))
	for i, b := range beats {
		nodes[i] = b.Node
	}
	if err := t.loadNodes(forUpdate, nodes...); err != nil {
		return nil, err
	}
	live, err := t.liveLeases(nodes)
	if err != nil {
		return nil, err
	}
	out := make([]store.BeatResult, len(beats))
	for i, b := range beats {
		err := s.beat(t, b, live, &out[i])
		switch {
		case errors.Is(err, offpeak.ErrUnknownNode), errors.Is(err, offpeak.ErrStaleSession):
			out[i] = store.BeatResult{Err: fmt.Errorf("heartbeat of node %s: %w", b.Node, err)}
		case err != nil:
			return nil, err
		}
	}
	return out, nil
}

// liveLeases are the live leases of nodes that are locked.
func (t *verb) liveLeases(nodes []offpeak.NodeID) (map[offpeak.NodeID][]*lease, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	where, arg := oneOf("node", nodes)
	list, err := t.leases(where+` AND `+liveLease+` ORDER BY offered_at, id`, arg)
	out := make(map[offpeak.NodeID][]*lease, len(nodes))
	for _, l := range list {
		out[l.Node] = append(out[l.Node], l)
	}
	return out, err
}

func (s *Store) beat(t *verb, b store.Beat, live map[offpeak.NodeID][]*lease, out *store.BeatResult) error {
	n := t.rows.nodes[b.Node]
	switch {
	case n == nil || n.removed:
		return offpeak.ErrUnknownNode
	case b.Incarnation != n.incarnation:
		return offpeak.ErrStaleSession
	case b.Seq <= n.beat: // repeated or overtaken: nothing but the answer
		out.Revision, out.Live = n.revision, plain(live[b.Node])
		return nil
	}
	if b.Availability == "" {
		b.Availability = n.availability
	}
	if b.Availability == offpeak.NodeAvailable {
		b.Why = ""
	}
	if b.Availability != n.availability {
		if err := n.availability.To(b.Availability); err != nil {
			return err
		}
	}
	out.WokeUp = n.liveness != offpeak.NodeOnline
	// The timeout in force until now judges whether the link works both ways.
	oneWay := b.SinceAck > n.timeout
	t.say(n, b)
	held := make(map[offpeak.LeaseID]store.Held, len(b.Held))
	for _, h := range b.Held {
		held[h.Lease] = h
	}
	var kept []*lease
	for _, l := range live[b.Node] {
		h, has := held[l.ID]
		switch {
		case l.State == offpeak.LeaseOffered:
			kept = append(kept, l)
		case has:
			t.extend(l, h, b, oneWay)
			kept = append(kept, l)
		case l.acceptedIncarnation != b.Incarnation || b.Seq > l.acceptedSeq:
			reason := offpeak.EndNodeRestarted
			if l.unheard() {
				// Nothing was begun, and nobody is left who could: it lapses here.
				reason, l.ExpiresAt = offpeak.EndOfferLapsed, t.now
			}
			c, err := s.endNow(t, l, ending{reason: reason})
			if err != nil {
				return err
			}
			out.Changes = append(out.Changes, c)
		default:
			kept = append(kept, l)
		}
	}
	live[b.Node] = kept
	out.Revision, out.Live = n.revision, plain(kept)
	return nil
}

// say takes over what a new heartbeat says of the node itself.
func (t *verb) say(n *lockedNode, b store.Beat) {
	if n.liveness != offpeak.NodeOnline {
		t.event(offpeak.Event{Type: "node.online", Account: n.account, Node: b.Node})
		t.audit(byNode(n.account, b.Node), "node.online", string(b.Node), "done")
	}
	changed := b.Availability != n.availability || b.Why != n.why
	if changed || n.liveness == offpeak.NodeOffline {
		t.later(addAvailability, string(b.Node), micros(t.now), string(b.Availability), string(b.Why))
	}
	if changed {
		t.event(offpeak.Event{Type: "node." + string(b.Availability), Account: n.account, Node: b.Node, Reason: b.Why})
		t.audit(byNode(n.account, b.Node), "node."+string(b.Availability), string(b.Node), string(b.Why))
	}
	n.liveness, n.availability, n.why, n.beat = offpeak.NodeOnline, b.Availability, b.Why, b.Seq
	if b.Grant > 0 {
		n.timeout = b.Grant.Truncate(time.Microsecond)
	}
	n.pending.said = true
	t.changeNode(n)
}

// extend renews a held lease and takes over what the agent says of it.
func (t *verb) extend(l *lease, h store.Held, b store.Beat, oneWay bool) {
	metered, expires, accepted := l.Metered, l.ExpiresAt, l.acceptedSeq
	if l.unheard() {
		accepted = b.Seq
	}
	if l.State == offpeak.LeaseRunning {
		metered = l.observed(t.now, h.Metered)
	}
	if !oneWay {
		// A shorter timeout holds for later grants only: nothing is shortened.
		expires = later(expires, t.now.Add(b.Grant+l.grace).Truncate(time.Microsecond))
	}
	frozen := h.Frozen && l.State == offpeak.LeaseRunning
	if metered == l.Metered && expires.Equal(l.ExpiresAt) && frozen == l.Frozen && accepted == l.acceptedSeq {
		return
	}
	if frozen != l.Frozen {
		what := "lease.thawed"
		if frozen {
			what = "lease.frozen"
		}
		t.event(offpeak.Event{Type: what, Account: l.Account, Job: l.Job, Attempt: l.Attempt, Lease: l.ID, Node: l.Node})
		t.audit(byNode(l.Account, l.Node), what, string(l.ID), "done")
	}
	l.ExpiresAt, l.Metered, l.Frozen, l.acceptedSeq = expires, metered, frozen, accepted
	t.extendLease(l)
}
