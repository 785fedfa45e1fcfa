package placement

import (
	"slices"
	"time"

	"offpeak"
)

// sight is what is known of a node beside its leases: all that an explanation needs.
// Once a snapshot has it, it changes no more.
type sight struct {
	offer offpeak.Offer
	name  string
	hash  uint64
	// set are the free devices, nil where none is free.
	set *deviceSet
	// metrics is nil where none is known.
	metrics *Metrics
	// later is what keeps work off it from offer.Opens on, where that is known.
	later offpeak.FitCode
}

// Snapshot is a fleet as it was at one moment. It does not change with the fleet, so
// who asks about every node needs the fleet's lock to take it and no longer. It is
// used by one goroutine at a time.
type Snapshot struct {
	nodes []*sight
	// picture is what scores and what is known of devices, without nodes.
	picture Fleet
}

// Snapshot takes one: a pointer a node. What is known of a node is copied when it
// changes next.
func (f *Fleet) Snapshot() *Snapshot {
	f.snapshots++
	s := &Snapshot{nodes: make([]*sight, len(f.nodes))}
	for i, n := range f.nodes {
		s.nodes[i] = n.sight
	}
	s.picture.weights, s.picture.measured = f.weights, f.measured
	s.picture.devices.answers, s.picture.devices.question = slices.Clone(f.devices.answers), f.devices.question
	return s
}

// own replaces what a snapshot has of a node by a copy that may be changed.
func (f *Fleet) own(n *node) {
	if n.owned != f.snapshots {
		mine := *n.sight
		n.sight, n.owned = &mine, f.snapshots
	}
}

// Unasked are the nodes whose owners ask nothing now and which take work otherwise, at
// most so many.
func (s *Snapshot) Unasked(most int) (ids []offpeak.NodeID) {
	for _, n := range s.nodes {
		if n.offer.Why == offpeak.FitNoAsk && len(ids) < most {
			ids = append(ids, n.offer.Node)
		}
	}
	return ids
}

// Will notes when a node's owner asks something again, and what. Its fleet stays as it
// is.
func (s *Snapshot) Will(id offpeak.NodeID, at time.Time, ask offpeak.Ask) {
	for i, n := range s.nodes {
		if n.offer.Node == id && n.offer.Why == offpeak.FitNoAsk {
			mine := *n
			mine.offer.Opens, mine.offer.Ask, mine.later = &at, ask, offpeak.FitOK
			s.nodes[i] = &mine
		}
	}
}

// Len counts the nodes.
func (s *Snapshot) Len() int { return len(s.nodes) }

// Weights returns what scored.
func (s *Snapshot) Weights() Weights { return s.picture.weights }

// Offers yields all offers. Nobody may change them.
func (s *Snapshot) Offers(yield func(*offpeak.Offer) bool) {
	for _, n := range s.nodes {
		if !yield(&n.offer) {
			return
		}
	}
}
