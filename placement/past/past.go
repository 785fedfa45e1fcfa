// Package past reckons from what nodes did what may be expected of them: whether
// a node lets its leases down, and how long it goes on being available.
//
// It owns what counts for and against a node, and how the past fades. It must not
// know of stores, hubs or clocks: what happened comes with its time, and the time
// of a question is an argument, so the same past always gives the same answer. A
// Book is not safe for concurrent use: its owner holds a lock. It is tested with
// tables and properties: shares lie within 0 and 1, are numbers, and no loss ever
// raises one.
package past

import (
	"math"
	"slices"
	"time"

	"offpeak"
	"offpeak/placement"
)

const (
	// HalfLife is after what time something counts half.
	HalfLife = 7 * 24 * time.Hour
	// Horizon is how far back it is worth looking: what is older counts less than a
	// two-hundredth.
	Horizon = 8 * HalfLife

	// A node of which nothing is known counts as one that kept priorShare of
	// priorLeases, and that was wanted back priorStays times.
	priorShare  = 0.9
	priorLeases = 4
	priorStays  = 2
	// priorReturn is after how long, at the least. One that has been available for
	// longer already is expected to be for as long again.
	priorReturn = 4 * time.Hour

	// enough is how much must be known before anybody is told: three things of today.
	enough = 2.5
)

// Node is what is kept of one node: a few numbers, however much it did. The zero
// value is a node of which nothing is known, and which is not available.
type Node struct {
	// at is the moment of which the weights below are, in µs; what is older weighs
	// less there. 0: there are none.
	at int64
	// kept and lost are leases that the node kept and let down.
	kept, lost float64
	// stays are how often it was available for how long, by powers of two.
	stays [stretches]float32
	// free is what its agent says, gone that it is offline; since is when both last
	// began to let it work, in µs, 0 while they do not.
	free, gone bool
	since      int64
	// last are the newest leases that ended: who tells twice is heard once.
	last [4]offpeak.LeaseID
}

// stretches is how many lengths of stays are told apart: under 4 minutes, under 8,
// and so on to some days.
const (
	stretches = 14
	shortest  = 4 * time.Minute
)

// stretch is the class of a length, middle a length that stands for the class.
func stretch(d time.Duration) int {
	i := 0
	for d >= shortest && i < stretches-1 {
		d /= 2
		i++
	}
	return i
}

func middle(i int) time.Duration { return 3 * (shortest << i) / 4 }

// verdict is what the end of a lease says of its node.
type verdict int

const (
	nothing verdict = iota
	kept
	lost
)

// judge says what an end says of the node: work that came to its own end was kept;
// what the node's fault or its owner cut off after it had begun was let down. What
// people, the market or the grid ended says nothing.
func judge(reason offpeak.EndReason) verdict {
	end, known := offpeak.EndOf(reason)
	switch {
	case !known || end.Counter == offpeak.CountFree:
		return nothing
	case end.Fault == offpeak.FaultNode || end.Fault == offpeak.FaultOwner:
		return lost
	case end.Fault == offpeak.FaultNone:
		return kept
	case end.Fault == offpeak.FaultUser && end.Charge == offpeak.ChargeFull && reason != offpeak.EndCancelled && reason != offpeak.EndGangFailed:
		return kept // the job failed of itself, having run
	}
	return nothing
}

// weight moves the past to a moment and returns what something that happened then
// counts: 1, or less where newer things are known.
func (p *Node) weight(at time.Time) float64 {
	t := at.UnixMicro()
	switch {
	case p.at == 0:
		p.at = t
	case t > p.at:
		f := faded(t - p.at)
		p.kept, p.lost = p.kept*f, p.lost*f
		for i := range p.stays {
			p.stays[i] *= float32(f)
		}
		p.at = t
	}
	return faded(p.at - t)
}

func faded(micros int64) float64 {
	return math.Exp2(-float64(max(micros, 0)) / float64(HalfLife/time.Microsecond))
}

// Ended takes in how a lease on the node ended.
func (p *Node) Ended(lease offpeak.LeaseID, reason offpeak.EndReason, at time.Time) {
	if judge(reason) == nothing || slices.Contains(p.last[:], lease) {
		return
	}
	copy(p.last[1:], p.last[:])
	p.last[0] = lease
	p.Ends(reason, 1, at)
}

// Ends takes in so many ends of one reason, of about one time.
func (p *Node) Ends(reason offpeak.EndReason, leases int64, at time.Time) {
	if leases <= 0 {
		return
	}
	switch judge(reason) {
	case kept:
		p.kept += p.weight(at) * float64(leases)
	case lost:
		p.lost += p.weight(at) * float64(leases)
	}
}

// Stayed takes in that the node was available from one moment to another.
func (p *Node) Stayed(from, to time.Time) {
	if to.After(from) {
		p.stays[stretch(to.Sub(from))] += float32(p.weight(to))
	}
}

// Says takes in what its agent says: whether it may work.
func (p *Node) Says(a offpeak.Availability, at time.Time) {
	p.free = a == offpeak.NodeAvailable
	p.turn(at)
}

// Heard takes in whether it is online; late is.
func (p *Node) Heard(l offpeak.Liveness, at time.Time) {
	p.gone = l == offpeak.NodeOffline
	p.turn(at)
}

// Since corrects since when it has been available, where it is.
func (p *Node) Since(at time.Time) {
	if p.since != 0 {
		p.since = max(at.UnixMicro(), 1)
	}
}

func (p *Node) turn(at time.Time) {
	switch works := p.free && !p.gone; {
	case works && p.since == 0:
		p.since = max(at.UnixMicro(), 1)
	case !works && p.since != 0:
		p.Stayed(time.UnixMicro(p.since), at)
		p.since = 0
	}
}

// Reliability is the share of its leases that the node is expected to keep. known
// says that enough of them ended to tell people.
func (p *Node) Reliability(now time.Time) (share float64, known bool) {
	f := p.fade(now)
	k, l := p.kept*f, p.lost*f
	return (k + priorShare*priorLeases) / (k + l + priorLeases), k+l >= enough
}

// Return is the expected time until the node is wanted back, after it has been
// available for as long as it has: the mean of what was left of stays that were at
// least as long. known says that enough of them are known to tell people.
func (p *Node) Return(now time.Time) (left time.Duration, known bool) {
	var been time.Duration
	if p.since != 0 {
		been = max(now.Sub(time.UnixMicro(p.since)), 0)
	}
	f := p.fade(now)
	n := float64(priorStays)
	sum, seen := n*float64(max(priorReturn, been)), 0.0
	for i, c := range p.stays {
		w := float64(c) * f
		seen += w
		if d := middle(i); d > been {
			sum += w * float64(d-been)
			n += w
		}
	}
	return time.Duration(sum / n), seen >= enough || been >= 6*priorReturn
}

func (p *Node) fade(now time.Time) float64 {
	if p.at == 0 {
		return 0
	}
	return faded(now.UnixMicro() - p.at)
}

// Steps of what placement is handed: small moves change nobody's place, so nodes
// that are about alike stay alike and are moved seldom.
const (
	shareSteps  = 32 // of 1
	returnSteps = 2  // of a doubling
)

// Into puts what is expected of the node into its metrics.
func (p *Node) Into(m placement.Metrics, now time.Time) placement.Metrics {
	share, _ := p.Reliability(now)
	m.Reliability = max(math.Round(share*shareSteps), 1) / shareSteps
	left, _ := p.Return(now)
	steps := math.Round(returnSteps * math.Log2(max(left.Seconds(), 1)))
	m.Return = time.Duration(math.Round(math.Exp2(steps/returnSteps))) * time.Second
	return m
}
