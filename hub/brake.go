package hub

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"offpeak"
	"offpeak/store"
)

// brakeNodes is the least number of silent nodes that are taken for a sign of
// trouble on the way to them.
const brakeNodes = 3

// brake is the monitor's: when most nodes fall silent at once, what they have in
// common is more likely broken than they are (a switch, a proxy, the line of a
// lab), and their jobs would have nowhere to go. It holds for one timeout.
type brake struct {
	since time.Time // zero: off; the monitor's alone
	// young is until when this hub takes nothing back, because it has not listened
	// for a whole timeout, and what others heard before they were gone is not known
	// to it; the monitor's alone.
	young time.Time
	on    atomic.Bool
}

// holdBack says whether leases that have run out stay as they are for now: because
// this hub has not listened for long enough, or because more than half of the nodes
// that hold leases have been silent for half a timeout.
func (h *Hub) holdBack(ctx context.Context, asOf time.Time) (bool, error) {
	now := h.env.Now()
	if now.Before(h.brake.young) {
		return true, nil // other hubs do it, if they have listened for longer
	}
	due, holding, err := h.env.Store.Overdue(ctx, asOf, asOf.Add(h.cfg.Timeout/2))
	if err != nil {
		return false, fmt.Errorf("count silent nodes: %w", err)
	}
	b := &h.brake
	defer func() { b.on.Store(!b.since.IsZero()) }()
	switch {
	case due < brakeNodes || 2*due <= holding:
		if !b.since.IsZero() {
			h.env.Log.Info("most nodes are heard again, or their leases are over")
		}
		b.since = time.Time{}
		return false, nil
	case b.since.IsZero():
		b.since = now
		h.env.Log.Warn("most nodes fell silent at once: no lease is taken back yet; look at what they have in common, such as the network between them and the hubs",
			"silent", due, "of", holding, "for_at_most", h.cfg.Timeout)
		h.metrics.brakes.Inc()
		return true, nil
	default:
		return now.Sub(b.since) < h.cfg.Timeout, nil
	}
}

// elsewhereHeard notes when nodes that this hub took for silent were heard by
// another one.
func (h *Hub) elsewhereHeard(ctx context.Context, asked []store.LivenessChange, moved []offpeak.NodeID, now, asOf time.Time) error {
	if h.circle.alone.Load() || len(moved) == len(asked) {
		return nil
	}
	var ids []offpeak.NodeID
	for _, c := range asked {
		if !slices.Contains(moved, c.Node) {
			ids = append(ids, c.Node)
		}
	}
	heard, err := h.env.Store.LastHeard(ctx, ids)
	if err != nil {
		return fmt.Errorf("read who was heard: %w", err)
	}
	for id, at := range heard {
		p := h.peers.get(id)
		p.mu.Lock()
		if mine := now.Add(-max(0, asOf.Sub(at))); mine.After(p.heard) {
			p.heard = mine
			p.flushed = mine // the store knows
		}
		p.mu.Unlock()
	}
	return nil
}
