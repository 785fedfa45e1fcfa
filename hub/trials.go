package hub

import (
	"context"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/store"
)

// trial is a node's quarantine as this hub knows it, and since when its probe is under
// way. That it is in quarantine is the store's to say; when a probe may go there
// follows, and which lease is the probe is seen.
type trial struct {
	offpeak.Quarantine
	tried bool
	probe offpeak.LeaseID
	since time.Time
}

// held takes in what is held against a node; mu is held.
func (h *Hub) held(node offpeak.NodeID, q *offpeak.Quarantine) {
	t := h.trials[node]
	switch {
	case q == nil:
		h.trust(node)
	case t != nil && !t.Since.Before(q.Since):
		// It is known, or older news.
	case h.proven[node].Equal(q.Since):
		// The store is about to be told that it is over.
	default:
		h.trials[node] = &trial{Quarantine: *q}
		until := q.Ends(h.cfg.Quarantine)
		h.fleet.Bar(node, until)
		h.queue.Freed(node) // it is kept for nobody any more
		h.env.Log.Warn("node is quarantined: its jobs die by its fault", "node", node, "reason", q.Reason, "times", q.Times, "until", until.UTC())
	}
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
		if at := t.Ends(h.cfg.Quarantine); !t.tried && at.After(now) {
			sooner(at)
			continue
		} else if !t.tried {
			t.tried = true
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
			h.proven[id] = t.Since
			h.trust(id)
		default:
			sooner(t.since.Add(placement.Proof))
		}
	}
	return next
}

// proved tells the store of nodes whose probe has lasted, and says whether it could
// not be told of all.
func (h *Hub) proved(ctx context.Context) (untold bool) {
	h.mu.Lock()
	list := make(map[offpeak.NodeID]time.Time, len(h.proven))
	for id, since := range h.proven {
		list[id] = since
	}
	h.mu.Unlock()
	for id, since := range list {
		if err := h.env.Store.Proved(ctx, id, since); err != nil {
			untold = true
			continue
		}
		h.mu.Lock()
		if h.proven[id].Equal(since) {
			delete(h.proven, id)
		}
		h.mu.Unlock()
		h.wrote()
	}
	return untold
}

// Trust ends what is held against a node, since somebody knows that it is well.
func (h *Hub) Trust(ctx context.Context, op store.Op, account offpeak.AccountID, node offpeak.NodeID) (offpeak.Node, error) {
	ctx, done := h.settling(ctx)
	defer done()
	n, err := h.env.Store.Trust(ctx, op, account, node)
	if err != nil {
		return offpeak.Node{}, h.failed(err)
	}
	// A repeated request is answered as the first was; what is so now is read.
	h.distrust(node)
	h.wrote()
	return n, nil
}

// Node returns one node of an account, "" of any.
func (h *Hub) Node(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID) (offpeak.Node, error) {
	n, err := h.env.Store.Node(ctx, account, node)
	h.until(&n)
	h.measure(&n)
	return n, err
}

// Nodes lists nodes by id.
func (h *Hub) Nodes(ctx context.Context, account offpeak.AccountID, page store.Page) ([]offpeak.Node, string, error) {
	list, next, err := h.env.Store.Nodes(ctx, account, page)
	for i := range list {
		h.until(&list[i])
		h.measure(&list[i])
	}
	return list, next, err
}

// until says when a node's quarantine ends, as this hub counts.
func (h *Hub) until(n *offpeak.Node) {
	if q := n.Quarantine; q != nil {
		at := q.Ends(h.cfg.Quarantine).UTC()
		q.Until = &at
	}
}
