package hub

import (
	"sync"
	"time"

	"offpeak"
	"offpeak/wire"
)

// peers is what the hub remembers of each node's agent.
type peers struct {
	mu   sync.RWMutex
	byID map[offpeak.NodeID]*peer
}

// peer is one node's agent as this hub hears it.
type peer struct {
	id offpeak.NodeID

	mu sync.Mutex // guards what follows
	// incarnation, seq, availability and why are of the newest beat applied.
	incarnation  offpeak.Incarnation
	seq          int64
	availability offpeak.Availability
	why          offpeak.EndReason
	liveness     offpeak.Liveness
	// revision is the newest known; holds says that the node had leases then.
	// settled says that the last beat that went through the store had the newest
	// revision, so that beats without news can be answered from here.
	revision int64
	holds    bool
	settled  bool
	// granted is the timeout that the store has for the node.
	granted time.Duration
	// heard is when the last beat came, by the hub's clock, or when the hub
	// began to listen; flushed is the last such time the store knows.
	heard, flushed time.Time
	// late are the latest beats' delays beyond the interval, a ring.
	late     [16]time.Duration
	lateNext int
	beaten   time.Time

	watchers []chan struct{}
}

// get returns the peer of a node, making it if need be.
func (p *peers) get(id offpeak.NodeID) *peer {
	p.mu.RLock()
	e := p.byID[id]
	p.mu.RUnlock()
	if e != nil {
		return e
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e = p.byID[id]; e == nil {
		e = &peer{id: id, liveness: offpeak.NodeOffline}
		p.byID[id] = e
	}
	return e
}

// all calls visit for each peer.
func (p *peers) all(visit func(*peer)) {
	p.mu.RLock()
	list := make([]*peer, 0, len(p.byID))
	for _, e := range p.byID {
		list = append(list, e)
	}
	p.mu.RUnlock()
	for _, e := range list {
		e.mu.Lock()
		visit(e)
		e.mu.Unlock()
	}
}

// changed says that what a node should hold may have changed, and tells those
// who watch it if it can't know. revision 0 is not known.
func (p *peers) changed(id offpeak.NodeID, revision int64, tell bool) {
	p.mu.RLock()
	e := p.byID[id]
	p.mu.RUnlock()
	if e == nil {
		return
	}
	e.mu.Lock()
	e.revision = max(e.revision, revision)
	e.settled = false
	if tell {
		e.tellLocked()
	}
	e.mu.Unlock()
}

// remove forgets a node that is gone; who watches it learns that something
// changed and finds out.
func (p *peers) remove(id offpeak.NodeID) {
	p.mu.Lock()
	e := p.byID[id]
	delete(p.byID, id)
	p.mu.Unlock()
	if e != nil {
		e.mu.Lock()
		e.settled = false
		e.tellLocked()
		e.mu.Unlock()
	}
}

func (e *peer) tellLocked() {
	for _, w := range e.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// loaded takes over what the store has of a node.
func (e *peer) loaded(n *offpeak.Node, holds bool, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.revision = max(e.revision, n.Revision)
	e.holds = e.holds || holds
	e.settled = false
	e.liveness = n.Liveness
	if e.granted == 0 {
		e.granted = n.Timeout.Std()
	}
	if e.heard.IsZero() {
		e.heard = now
	}
}

// renewed says that the node's agent began anew: the next beat tells the rest.
func (e *peer) renewed() {
	e.mu.Lock()
	e.settled = false
	e.mu.Unlock()
}

// arrived notes when a beat came, for the node's own jitter. A gap as long as a
// timeout was an outage, not jitter.
func (e *peer) arrivedLocked(now time.Time, cfg *Config) {
	gap := now.Sub(e.beaten)
	if !e.beaten.IsZero() && gap < cfg.Timeout {
		e.late[e.lateNext] = max(0, gap-cfg.Interval)
		e.lateNext = (e.lateNext + 1) % len(e.late)
	}
	e.beaten = now
}

// jitter is the largest of the last delays: of 16 the 94th percentile.
func (e *peer) jitterLocked() time.Duration {
	var most time.Duration
	for _, d := range e.late {
		most = max(most, d)
	}
	return most
}

// grantLocked is the silence to allow from the next beat on: the configured
// timeout, lengthened by three times the node's jitter, up to five timeouts.
// Small moves are not worth a write: jitter counts in quarters of an interval.
func (e *peer) grantLocked(cfg *Config) time.Duration {
	grant := min(cfg.Timeout+3*e.jitterLocked().Truncate(cfg.Interval/4), 5*cfg.Timeout)
	if e.granted >= grant && e.granted-grant < cfg.Timeout/4 && e.granted <= 5*cfg.Timeout {
		return e.granted
	}
	return grant
}

// newsLocked says whether a beat brings anything that the store must know.
func (e *peer) newsLocked(in *wire.Heartbeat, grant time.Duration) bool {
	return !e.settled || e.holds || len(in.Held) > 0 || in.Incarnation != e.incarnation || in.Seq <= e.seq ||
		in.Availability != e.availability || in.Why != e.why || e.liveness != offpeak.NodeOnline || grant != e.granted
}

// watch adds a watcher, which is told at once so that it reads the first state.
func (e *peer) watch() chan struct{} {
	w := make(chan struct{}, 1)
	w <- struct{}{}
	e.mu.Lock()
	e.watchers = append(e.watchers, w)
	e.mu.Unlock()
	return w
}

func (e *peer) unwatch(w chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, have := range e.watchers {
		if have == w {
			last := len(e.watchers) - 1
			e.watchers[i] = e.watchers[last]
			e.watchers[last] = nil
			e.watchers = e.watchers[:last]
			return
		}
	}
}
