package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"offpeak"
	"offpeak/store"
)

// trialOf reads what is held against a node; "" is nothing.
func trialOf(id offpeak.NodeID, text string) (t offpeak.Trial, err error) {
	if text == "" {
		return t, nil
	}
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return t, fmt.Errorf("read what is held against node %s: %w", id, err)
	}
	return t, nil
}

func trialText(t offpeak.Trial) string {
	if t == (offpeak.Trial{}) {
		return ""
	}
	return string(data(t))
}

// try takes in how a lease has ended, and says whether the node is quarantined now,
// anew or for longer, or no longer.
func (t *verb) try(n *lockedNode, l *lease) (turned bool, q *offpeak.Quarantine) {
	was := n.trial
	next := was.Ended(l.Reason, l.OfferedAt, l.EndedAt.UTC())
	if next == was {
		return false, nil
	}
	t.hold(n, next)
	switch {
	case next.Times > was.Times:
		t.event(offpeak.Event{Type: "node.quarantined", Account: n.account, Job: l.Job, Attempt: l.Attempt, Lease: l.ID, Node: n.id, Reason: next.Reason, Data: data(next)})
		t.audit(byHub(), "node.quarantine", string(n.id), string(next.Reason))
	case was.Times > 0:
		t.trusted(n, "a probe completed")
		t.audit(byHub(), "node.trust", string(n.id), "done")
	default:
		return false, nil // faults that are too few so far, or forgotten
	}
	return true, next.Quarantine()
}

// hold writes what is held against a node.
func (t *verb) hold(n *lockedNode, now offpeak.Trial) {
	n.trial, n.pending.tried = now, true
	t.changeNode(n)
}

func (t *verb) trusted(n *lockedNode, why string) {
	t.event(offpeak.Event{Type: "node.trusted", Account: n.account, Node: n.id, Data: data(map[string]string{"why": why})})
}

// Trust ends what is held against a node.
func (s *Store) Trust(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.NodeID) (offpeak.Node, error) {
	return write(ctx, s, "trust node "+string(id), func(t *verb) (offpeak.Node, error) {
		if err := t.loadNodes(forUpdate, id); err != nil {
			return offpeak.Node{}, err
		}
		out, _, err := once(t, op, "node.trust", string(id), func() (offpeak.Node, error) {
			n, err := t.node(account, id)
			if err != nil {
				return offpeak.Node{}, err
			}
			if locked := t.rows.nodes[id]; locked.trial != (offpeak.Trial{}) {
				t.hold(locked, offpeak.Trial{})
				t.trusted(locked, "an admin said so")
			}
			n.Quarantine = nil
			return n.Node, t.put(s.cfg)
		})
		if err != nil {
			return offpeak.Node{}, err
		}
		// The key is not in the kept outcome.
		err = t.row(`SELECT key FROM nodes WHERE id = $1`, []any{string(out.ID)}, &out.Key)
		return out, err
	})
}

// Proved ends a node's quarantine since a probe lasted.
func (s *Store) Proved(ctx context.Context, id offpeak.NodeID, since time.Time) error {
	_, err := write(ctx, s, "trust node "+string(id), func(t *verb) (struct{}, error) {
		n, err := t.lockedNode(id)
		if errors.Is(err, offpeak.ErrUnknownNode) {
			return struct{}{}, nil
		}
		if err != nil || n.removed || n.trial.Times == 0 || !n.trial.Since.Equal(since) {
			return struct{}{}, err
		}
		t.hold(n, offpeak.Trial{})
		t.trusted(n, "a probe lasted")
		t.audit(byHub(), "node.trust", string(id), "done")
		return struct{}{}, t.put(s.cfg)
	})
	return err
}
