package replay

import (
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/past"
)

// expecting is what a record notes of what may be expected of nodes.
type expecting struct {
	// past is what nodes did, metrics what that let expect of them last.
	past    past.Book
	metrics map[offpeak.NodeID]placement.Metrics
}

// expected are the metrics of a node at a moment, of what happened in the record
// until then. Speed and latency are measured by nobody.
func expected(p *past.Node, at time.Time) placement.Metrics {
	return p.Into(placement.Metrics{}, at)
}

// unknown are those of a node of which nothing is known yet.
func unknown(at time.Time) *placement.Metrics {
	m := expected(&past.Node{}, at)
	return &m
}

// turned takes in what an event says of when a node was available.
func (r *recorder) turned(e *offpeak.Event, what string) {
	open := func(a offpeak.Availability, l offpeak.Liveness) *past.Node { return r.past.Open(e.Node, a, l, e.At) }
	switch what {
	case "enrolled":
		open(offpeak.NodeAvailable, offpeak.NodeOffline)
	case string(offpeak.NodeOnline), string(offpeak.NodeOffline):
		// For how long one was available that was there before is not known.
		open(offpeak.NodeAvailable, offpeak.NodeOffline).Heard(offpeak.Liveness(what), e.At)
	case string(offpeak.NodeAvailable), string(offpeak.NodeInUse):
		open(offpeak.NodeInUse, offpeak.NodeOnline).Says(offpeak.Availability(what), e.At)
	default:
		return
	}
	r.expect(e)
}

// fared takes in how a lease ended.
func (r *recorder) fared(e *offpeak.Event) {
	if e.Node == "" {
		return
	}
	r.past.Open(e.Node, offpeak.NodeInUse, offpeak.NodeOnline, e.At).Ended(e.Lease, e.Reason, e.At)
	r.expect(e)
}

// expect notes what is expected of a node, where that changed. A hub reckons it anew
// each minute; here it changes with what happens to the node.
func (r *recorder) expect(e *offpeak.Event) {
	if r.metrics == nil {
		r.metrics = make(map[offpeak.NodeID]placement.Metrics)
	}
	old, known := r.metrics[e.Node]
	if !known {
		old = *unknown(e.At)
	}
	m := expected(r.past.Of(e.Node), e.At)
	if r.metrics[e.Node] = m; m != old {
		r.steps = append(r.steps, Step{At: e.At, Change: &Change{Node: e.Node, Metrics: &m}})
	}
}
