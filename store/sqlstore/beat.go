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
	return write(ctx, s, "apply heartbeats", func(t *verb) ([]store.BeatResult, error) {
		out := make([]store.BeatResult, len(beats))
		nodes := make([]offpeak.NodeID, len(beats))
		for i, b := range beats {
			nodes[i] = b.Node
		}
		if err := t.lockNodes(nodes...); err != nil {
			return nil, err
		}
		for i, b := range beats {
			events, audits := len(t.events), len(t.audits)
			err := t.Sub(func() (err error) {
				out[i], err = s.beat(t, b)
				return err
			})
			if err == nil {
				continue
			}
			if errors.Is(err, offpeak.ErrStorage) || errors.Is(err, offpeak.ErrUnavailable) {
				return nil, err
			}
			t.events, t.audits = t.events[:events], t.audits[:audits]
			out[i] = store.BeatResult{Err: fmt.Errorf("heartbeat of node %s: %w", b.Node, err)}
		}
		return out, nil
	})
}

// pulse is what a heartbeat needs of its node.
type pulse struct {
	account      offpeak.AccountID
	liveness     offpeak.Liveness
	availability offpeak.Availability
	why          offpeak.EndReason
	incarnation  offpeak.Incarnation
	beat         int64
	timeout      int64
}

func (s *Store) beat(t *verb, b store.Beat) (store.BeatResult, error) {
	var p pulse
	var out store.BeatResult
	err := t.row(`SELECT account, liveness, availability, why, incarnation, beat, timeout, revision FROM nodes WHERE id = $1 AND removed_at = 0`, []any{string(b.Node)},
		&p.account, &p.liveness, &p.availability, &p.why, &p.incarnation, &p.beat, &p.timeout, &out.Revision)
	if errors.Is(err, offpeak.ErrNotFound) {
		return out, offpeak.ErrUnknownNode
	}
	if err != nil {
		return out, err
	}
	if b.Incarnation != p.incarnation {
		return out, offpeak.ErrStaleSession
	}
	live, err := t.leases(`node = $1 AND `+liveLease+` ORDER BY offered_at, id`, string(b.Node))
	if err != nil {
		return out, err
	}
	if b.Seq <= p.beat { // repeated or overtaken: nothing but the answer
		out.Live = plain(live)
		return out, nil
	}
	if b.Availability == "" {
		b.Availability = p.availability
	}
	if b.Availability == offpeak.NodeAvailable {
		b.Why = ""
	}
	if err := t.say(p, b); err != nil {
		return out, err
	}
	out.WokeUp = p.liveness != offpeak.NodeOnline
	// The timeout in force until now judges whether the link works both ways.
	oneWay := b.SinceAck > time.Duration(p.timeout)*time.Microsecond
	held := make(map[offpeak.LeaseID]store.Held, len(b.Held))
	for _, h := range b.Held {
		held[h.Lease] = h
	}
	for _, l := range live {
		h, has := held[l.ID]
		switch {
		case l.State == offpeak.LeaseOffered:
			out.Live = append(out.Live, l.Lease)
		case has:
			if l.unheard() {
				l.acceptedSeq = b.Seq
				if err := t.must(`UPDATE leases SET accepted_seq = $1 WHERE id = $2 AND accepted_seq = $3`, b.Seq, string(l.ID), int64(takenSeq)); err != nil {
					return out, err
				}
			}
			if err := t.extend(l, h, b.Grant, oneWay); err != nil {
				return out, err
			}
			out.Live = append(out.Live, l.Lease)
		case l.acceptedIncarnation != b.Incarnation || b.Seq > l.acceptedSeq:
			reason := offpeak.EndNodeRestarted
			if l.unheard() {
				// Nothing was begun, and nobody is left who could: it lapses here.
				reason, l.ExpiresAt = offpeak.EndOfferLapsed, t.now
			}
			c, err := s.endNow(t, l, ending{reason: reason})
			if err != nil {
				return out, err
			}
			out.Changes, out.Revision = append(out.Changes, c), c.Revision
		default:
			out.Live = append(out.Live, l.Lease)
		}
	}
	return out, nil
}

// say stores what a new heartbeat says of the node itself.
func (t *verb) say(p pulse, b store.Beat) error {
	if b.Availability != p.availability {
		if err := p.availability.To(b.Availability); err != nil {
			return err
		}
	}
	grant := span(b.Grant)
	if grant <= 0 {
		grant = p.timeout
	}
	if err := t.must(`UPDATE nodes SET liveness = 'online', availability = $1, why = $2, beat = $3, timeout = $4, last_heard = $5 WHERE id = $6 AND incarnation = $7 AND beat = $8`,
		string(b.Availability), string(b.Why), b.Seq, grant, micros(t.now), string(b.Node), string(p.incarnation), p.beat); err != nil {
		return err
	}
	if p.liveness != offpeak.NodeOnline {
		t.event(offpeak.Event{Type: "node.online", Account: p.account, Node: b.Node})
		t.audit(byNode(p.account, b.Node), "node.online", string(b.Node), "done")
	}
	if b.Availability == p.availability && b.Why == p.why {
		return nil
	}
	if _, err := t.Exec(`INSERT INTO node_availability (node, at, availability, why) VALUES ($1, $2, $3, $4)`, string(b.Node), micros(t.now), string(b.Availability), string(b.Why)); err != nil {
		return err
	}
	t.event(offpeak.Event{Type: "node." + string(b.Availability), Account: p.account, Node: b.Node, Reason: b.Why})
	t.audit(byNode(p.account, b.Node), "node."+string(b.Availability), string(b.Node), string(b.Why))
	return nil
}

// extend renews a held lease and takes over what the agent says of it.
func (t *verb) extend(l *lease, h store.Held, grant time.Duration, oneWay bool) error {
	metered, expires := l.Metered, l.ExpiresAt
	if l.State == offpeak.LeaseRunning {
		metered = l.observed(t.now, h.Metered)
	}
	if !oneWay {
		// A shorter timeout holds for later grants only: nothing is shortened.
		expires = later(expires, t.now.Add(grant+l.grace).Truncate(time.Microsecond))
	}
	frozen := h.Frozen && l.State == offpeak.LeaseRunning
	if metered == l.Metered && expires.Equal(l.ExpiresAt) && frozen == l.Frozen {
		return nil
	}
	if err := t.must(`UPDATE leases SET expires_at = $1, metered = $2, frozen = $3 WHERE id = $4 AND attempt = $5 AND state = $6`,
		micros(expires), int64(metered), frozen, string(l.ID), int64(l.Attempt), string(l.State)); err != nil {
		return err
	}
	if frozen != l.Frozen {
		what := "lease.thawed"
		if frozen {
			what = "lease.frozen"
		}
		t.event(offpeak.Event{Type: what, Account: l.Account, Job: l.Job, Attempt: l.Attempt, Lease: l.ID, Node: l.Node})
		t.audit(byNode(l.Account, l.Node), what, string(l.ID), "done")
	}
	l.ExpiresAt, l.Metered, l.Frozen = expires, metered, frozen
	return nil
}
