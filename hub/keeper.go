package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/past"
	"offpeak/store"
	"offpeak/wire"
)

// beatBatch is the most heartbeats that share a transaction.
const beatBatch = 512

// beatPace is the least time between the beginnings of two such transactions: the
// beats that come meanwhile share the next one.
const beatPace = 20 * time.Millisecond

// keeper gathers heartbeats that arrive while others are being committed and
// commits them together.
type keeper struct {
	mu      sync.Mutex
	waiting []*beat // guarded by mu
	closed  bool    // guarded by mu
	wake    chan struct{}
}

// beat is one heartbeat on its way through the store.
type beat struct {
	peer    *peer
	arrived time.Time
	in      store.Beat
	result  store.BeatResult
	err     error
	done    chan struct{}
}

// Heartbeat applies one heartbeat; it returns after the extensions are
// committed. A beat that brings no news, from a node that should hold nothing,
// extends nothing: it is answered from memory, and the store is told of many
// such at once that they were heard.
func (h *Hub) Heartbeat(ctx context.Context, node offpeak.NodeID, in wire.Heartbeat) (wire.Sync, error) {
	h.metrics.beats.Inc()
	p := h.peers.get(node)
	now := h.env.Now()
	p.mu.Lock()
	p.arrivedLocked(now, &h.cfg)
	grant := p.grantLocked(&h.cfg)
	if !p.newsLocked(&in, grant) && h.fresh(now) {
		p.seq = in.Seq
		p.heard = now
		revision := p.revision
		p.mu.Unlock()
		return wire.Sync{
			Revision: revision, Interval: offpeak.Duration(h.cfg.Interval),
			Timeout: offpeak.Duration(grant), Leases: h.nothing,
		}, nil
	}
	p.mu.Unlock()
	if err := checkBeat(&in); err != nil {
		return wire.Sync{}, err
	}
	b := &beat{peer: p, arrived: now, done: make(chan struct{}), in: store.Beat{
		Node: node, Incarnation: in.Incarnation, Seq: in.Seq,
		Availability: in.Availability, Why: in.Why, SinceAck: in.SinceAck.Std(), Grant: grant,
	}}
	if len(in.Held) > 0 {
		b.in.Held = make([]store.Held, len(in.Held))
		for i, l := range in.Held {
			b.in.Held[i] = store.Held{Lease: l.Lease, Frozen: l.Frozen, Metered: l.Metered}
		}
	}
	if !h.keeper.submit(b) {
		return wire.Sync{}, fmt.Errorf("heartbeat: hub is stopping: %w", offpeak.ErrUnavailable)
	}
	select {
	case <-ctx.Done():
		return wire.Sync{}, fmt.Errorf("heartbeat: %w", ctx.Err())
	case <-b.done:
	}
	if b.err != nil {
		if errors.Is(b.err, offpeak.ErrUnknownNode) {
			h.forget(node)
		}
		return wire.Sync{}, fmt.Errorf("heartbeat: %w", b.err)
	}
	return h.sync(ctx, &b.in, &b.result, grant)
}

// checkBeat refuses what no agent sends.
func checkBeat(in *wire.Heartbeat) error {
	switch {
	case in.Incarnation == "" || len(in.Incarnation) > 64:
		return &offpeak.FieldError{Field: "incarnation", Rule: "is 1 to 64 bytes drawn when the agent started"}
	case in.Availability != offpeak.NodeAvailable && in.Availability != offpeak.NodeInUse:
		return &offpeak.FieldError{Field: "availability", Value: string(in.Availability), Rule: "is available or in_use"}
	case in.SinceAck < 0:
		return &offpeak.FieldError{Field: "since_ack", Rule: "is not negative"}
	}
	if in.Why != "" {
		if _, known := offpeak.EndOf(in.Why); !known {
			return &offpeak.FieldError{Field: "why", Value: string(in.Why), Rule: "is an end reason"}
		}
	}
	return nil
}

// sync composes the answer to a beat that went through the store.
func (h *Hub) sync(ctx context.Context, in *store.Beat, r *store.BeatResult, grant time.Duration) (wire.Sync, error) {
	out := wire.Sync{
		Revision: r.Revision, Interval: offpeak.Duration(h.cfg.Interval),
		Timeout: offpeak.Duration(grant), Leases: make([]wire.Desired, 0, len(r.Live)),
	}
	for i := range r.Live {
		l := &r.Live[i]
		news := l.State == offpeak.LeasePreparing && !slices.ContainsFunc(in.Held, func(h store.Held) bool { return h.Lease == l.ID })
		if l.State == offpeak.LeaseOffered || news {
			// What is new to the agent comes with its work, which only Assignments has.
			full, err := h.Desired(ctx, in.Node)
			if err != nil {
				return wire.Sync{}, err
			}
			full.Timeout = out.Timeout
			return full, nil
		}
		out.Leases = append(out.Leases, desired(l))
	}
	return out, nil
}

func (k *keeper) submit(b *beat) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	k.waiting = append(k.waiting, b)
	select {
	case k.wake <- struct{}{}:
	default:
	}
	return true
}

func (k *keeper) take() []*beat {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := min(len(k.waiting), beatBatch)
	batch := k.waiting[:n:n]
	k.waiting = k.waiting[n:]
	if len(k.waiting) == 0 {
		k.waiting = nil
	}
	return batch
}

func (k *keeper) close() {
	k.mu.Lock()
	waiting := k.waiting
	k.waiting, k.closed = nil, true
	k.mu.Unlock()
	for _, b := range waiting {
		b.err = fmt.Errorf("hub is stopping: %w", offpeak.ErrUnavailable)
		close(b.done)
	}
}

// keep commits heartbeats until ctx is done. What is being committed then is
// still answered.
func (h *Hub) keep(ctx context.Context) error {
	defer h.keeper.close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.keeper.wake:
		}
		for ctx.Err() == nil {
			batch := h.keeper.take()
			if len(batch) == 0 {
				break
			}
			next := h.env.Now().Add(beatPace)
			h.commitBeats(ctx, batch)
			sleep(ctx, next.Sub(h.env.Now()))
		}
	}
}

func (h *Hub) commitBeats(ctx context.Context, batch []*beat) {
	defer h.writes.Begin()()
	in := make([]store.Beat, len(batch))
	for i, b := range batch {
		in[i] = b.in
	}
	began := h.env.Now()
	results, err := h.env.Store.Beat(ctx, in)
	h.metrics.beatBatch.Observe(float64(len(batch)))
	if err == nil && len(results) != len(batch) {
		err = fmt.Errorf("%d results for %d beats: %w", len(results), len(batch), offpeak.ErrUnavailable)
	}
	if err != nil || h.env.Now().Sub(began) > h.patience() {
		// Agents spoke and were not noted down in time: no one's silence counts.
		h.stalled.Store(true)
	}
	for i, b := range batch {
		if b.err = err; err == nil {
			b.result = results[i]
			b.err = b.result.Err
		}
		switch {
		case b.err == nil:
			h.beaten(b)
		case err == nil && !errors.Is(b.err, offpeak.ErrUnknownNode) && !errors.Is(b.err, offpeak.ErrStaleSession):
			h.env.Log.Warn("a heartbeat can't be applied", "node", b.in.Node, "err", b.err)
		}
		close(b.done)
	}
}

// beaten takes a committed beat into the picture.
func (h *Hub) beaten(b *beat) {
	p, r := b.peer, &b.result
	p.mu.Lock()
	newest := b.in.Incarnation != p.incarnation || b.in.Seq > p.seq
	woke := r.WokeUp || p.liveness != offpeak.NodeOnline
	turned := newest && (b.in.Availability != p.availability || b.in.Why != p.why)
	p.revision = max(p.revision, r.Revision)
	p.settled = r.Revision >= p.revision
	if newest {
		p.incarnation, p.seq = b.in.Incarnation, b.in.Seq
		p.availability, p.why = b.in.Availability, b.in.Why
		p.granted = b.in.Grant
		p.holds = len(r.Live) > 0
		p.liveness = offpeak.NodeOnline
		if b.arrived.After(p.heard) {
			p.heard = b.arrived
		}
		p.flushed = p.heard
	}
	p.mu.Unlock()
	if newest && (woke || turned) {
		now := h.env.Now()
		h.changedNode(p.id, func(f *placement.Fleet) {
			f.SetLiveness(p.id, offpeak.NodeOnline)
			f.SetAvailability(p.id, b.in.Availability, b.in.Why)
			h.turned(p.id, now, func(then *past.Node) {
				then.Says(b.in.Availability, now)
				then.Heard(offpeak.NodeOnline, now)
			})
		})
	}
	h.apply(r.Changes...)
}

// flush tells the store, four times a timeout, which nodes were heard whose
// beats were answered from memory; every tick where other hubs ask it.
func (h *Hub) flush(ctx context.Context) error {
	period := h.cfg.Timeout / 4
	if !h.circle.alone.Load() {
		period = min(period, h.cfg.Tick)
	}
	for sleep(ctx, period) {
		h.flushTouches(ctx)
	}
	return nil
}

func (h *Hub) flushTouches(ctx context.Context) {
	// The store counts by its own time: what is told is how long ago.
	at, err := h.env.Store.Now(ctx)
	now := h.env.Now()
	heard := make(map[offpeak.NodeID]time.Time)
	if err == nil {
		h.peers.all(func(p *peer) {
			if p.liveness == offpeak.NodeOnline && p.heard.After(p.flushed) && p.settled {
				heard[p.id] = at.Add(-max(0, now.Sub(p.heard)))
				p.flushed = p.heard
			}
		})
		if len(heard) == 0 {
			return
		}
		err = h.env.Store.Touch(ctx, heard)
	}
	if err == nil && !h.circle.alone.Load() {
		err = h.compare(ctx, slices.Collect(maps.Keys(heard)))
	}
	if err != nil && ctx.Err() == nil {
		h.env.Log.Warn("note down who was heard", "nodes", len(heard), "err", err)
	}
}

// compare looks whether nodes that were answered from memory stand as it says. Where
// events are late, or the outcome of a write of this hub's own was never known,
// nothing else would tell it: their next heartbeat goes to the store.
func (h *Hub) compare(ctx context.Context, nodes []offpeak.NodeID) error {
	stand, err := h.env.Store.Standing(ctx, nodes)
	if err != nil {
		return err
	}
	for id, st := range stand {
		p := h.peers.get(id)
		p.mu.Lock()
		if st.Revision > p.revision || st.Liveness != offpeak.NodeOnline {
			p.revision = max(p.revision, st.Revision)
			p.settled = false
			p.tellLocked()
		}
		p.mu.Unlock()
	}
	return nil
}
