package placement

import (
	"time"

	"offpeak"
)

// Proof is how long a probe has to last where it does not complete before.
const Proof = 10 * time.Minute

// Bar keeps work off a node until a moment, which only words tell: Try ends it.
func (f *Fleet) Bar(id offpeak.NodeID, until time.Time) {
	if n := f.byID[id]; n != nil {
		n.barred, n.onTrial, n.probe, n.until = true, false, "", &until
		f.recount(n)
	}
}

// Try lets one job at a time onto a node that was barred.
func (f *Fleet) Try(id offpeak.NodeID) {
	if n := f.byID[id]; n != nil {
		n.barred, n.onTrial, n.until = false, true, nil
		f.recount(n)
	}
}

// Probing says which lease is the probe of a node that is barred or tried: one that
// was placed there by somebody else, or before a restart.
func (f *Fleet) Probing(id offpeak.NodeID, lease offpeak.LeaseID) {
	n := f.byID[id]
	if n == nil || !n.barred && !n.onTrial || n.probe == lease {
		return
	}
	if _, there := n.holds[lease]; there {
		n.probe = lease
		f.recount(n)
	}
}

// Trust ends what Bar and Try began, and says whether there was anything to end.
func (f *Fleet) Trust(id offpeak.NodeID) bool {
	n := f.byID[id]
	if n == nil || (!n.barred && !n.onTrial) {
		return false
	}
	n.barred, n.onTrial, n.probe, n.until = false, false, "", nil
	f.recount(n)
	return true
}

// Probe returns the lease that is a node's probe, "" for none.
func (f *Fleet) Probe(id offpeak.NodeID) offpeak.LeaseID {
	if n := f.byID[id]; n != nil {
		return n.probe
	}
	return ""
}
