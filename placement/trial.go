package placement

import (
	"time"

	"offpeak"
)

// Trial is what is held against a node whose jobs keep dying by its fault. After
// a few in a row it is barred for a while; then one job at a time, the probe, may
// try it. A probe that completes, or that goes on for long enough, ends the
// matter; one that dies bars the node again, for twice as long. So a broken node
// that ends jobs in seconds sees few of a long queue, and comes back by itself
// when it is well. A Trial belongs to one node; the zero value holds nothing.
type Trial struct {
	last   offpeak.LeaseID
	faults int
	terms  int
	until  time.Time
	// tried says that its bar is over.
	tried bool
}

const (
	// maxFaults is how many jobs in a row may die by a node's fault. A device that
	// vanished is as good as all of them.
	maxFaults = 3
	// maxBar bounds the time for which a node is barred.
	maxBar = time.Hour
	// Proof is how long a probe has to last where it does not complete before.
	Proof = 10 * time.Minute
)

// Ended takes in how a lease on the node ended; the same one twice counts once.
// It says whether the node is to be barred, until when: for first, doubled with
// each time in a row.
func (t *Trial) Ended(lease offpeak.LeaseID, reason offpeak.EndReason, first time.Duration, now time.Time) (until time.Time, barred bool) {
	if lease == t.last {
		return time.Time{}, false
	}
	t.last = lease
	end, _ := offpeak.EndOf(reason)
	switch {
	case reason == offpeak.EndCompleted:
		*t = Trial{last: lease}
	case end.Fault != offpeak.FaultNode || end.Counter != offpeak.CountNode:
		// Says nothing of the node: the job's own failure, its owner's wish, the net.
	case t.faults+1 >= maxFaults, reason == offpeak.EndDeviceLost, t.tried:
		bar := maxBar
		if t.terms < 16 {
			bar = min(first<<t.terms, maxBar)
		}
		t.faults, t.terms, t.tried, t.until = 0, t.terms+1, false, now.Add(bar)
		return t.until, true
	case t.until.After(now):
		// What was running there when it was barred dies too.
	default:
		t.faults++
	}
	return time.Time{}, false
}

// Held says that anything is held against the node.
func (t *Trial) Held() bool { return t.faults > 0 || t.terms > 0 }

// Due returns when the node's bar ends, and false where it is not barred.
func (t *Trial) Due() (time.Time, bool) { return t.until, t.terms > 0 && !t.tried }

// Try notes that the bar is over.
func (t *Trial) Try() { t.tried = true }

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
		n.barred, n.onTrial, n.probe, n.until = false, true, "", nil
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
