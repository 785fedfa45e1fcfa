package placement

import (
	"slices"
	"time"

	"offpeak"
)

// Job is what placement needs of a queued job.
type Job struct {
	ID      offpeak.JobID
	Account offpeak.AccountID
	// Attempt is the one to be placed; with ID it seeds the last tie.
	Attempt      offpeak.Attempt
	Driver       string
	Requirements *offpeak.Requirements
	// Class, where it is not "", is the same for all jobs of the account and driver
	// that ask for the same: what was counted for one of them serves the next.
	Class string
	// Policy orders the nodes that fit; "" is Cheapest.
	Policy Policy
	// Cached are nodes that have the job's inputs.
	Cached []offpeak.NodeID
	// Avoid are nodes where attempts ended badly, the newest last: they come after
	// all others, the newest at the very end. They stay candidates, so that nobody
	// is stranded, and so that asking for more never makes a node one.
	Avoid []offpeak.NodeID
	// Fences keep the job off nodes where attempts failed, each for as long as it ends
	// after Now.
	Fences []Fence
	Now    time.Time
}

// Candidate is a node that fits.
type Candidate struct {
	Node  offpeak.NodeID
	Price offpeak.Price
	// Score is from 0 to 1, the higher the better.
	Score     float64
	Resources offpeak.Resources
	// Fits is how many nodes fit, at the least. Best counts no further than it must
	// to know whether secondary metrics count: at most to Weights.Baseline, and not
	// at all, 0, where no metric is known.
	Fits int
	// Version is that of the weights that chose.
	Version int64
}

// Best returns the node to claim, or false if none fits now. It is the first that
// Rank would return, found through the index.
func (f *Fleet) Best(job Job) (Candidate, bool) {
	a := f.newAsk(job)
	fits := 0
	if a.wakeable {
		fits = f.enough(&a)
	}
	var lowest offpeak.Price
	if a.balanced {
		cheap := a
		cheap.balanced, cheap.Avoid, cheap.Cached = false, nil, nil // fences stay
		best := f.search(&cheap)
		if best.node == nil {
			return Candidate{}, false
		}
		lowest = a.price(best.node)
	}
	a.settle(fits, lowest)
	best := f.search(&a)
	if best.node == nil {
		return Candidate{}, false
	}
	return a.candidate(best.node, &best.key, fits), true
}

// Rank returns all nodes that fit now, the best first. It looks at every node,
// and is what Best is tested against.
func (f *Fleet) Rank(job Job) []Candidate {
	a := f.newAsk(job)
	var all []found
	for _, n := range f.nodes {
		if a.admit(n) {
			all = append(all, found{node: n})
		}
	}
	f.order(&a, all)
	out := make([]Candidate, len(all))
	for i := range all {
		out[i] = a.candidate(all[i].node, &all[i].key, len(all))
	}
	return out
}

// Fits counts the nodes that fit now, up to a limit: through the index.
func (f *Fleet) Fits(job Job, limit int) int {
	a := f.newAsk(job)
	return f.count(&a, limit)
}

// order sorts all the nodes that fit a job, the best first.
func (f *Fleet) order(a *ask, all []found) {
	if len(all) == 0 {
		return
	}
	lowest := a.price(all[0].node)
	for i := range all {
		lowest = min(lowest, a.price(all[i].node))
	}
	a.settle(len(all), lowest)
	for i := range all {
		vram, _ := f.devices.served(a, all[i].node.set)
		all[i].key = a.key(all[i].node, vram)
	}
	slices.SortFunc(all, func(x, y found) int { return x.key.compare(&y.key) })
}

// Candidate is one node as Best would return it if there were no other, or false
// if it does not fit now.
func (f *Fleet) Candidate(job Job, id offpeak.NodeID) (Candidate, bool) {
	n := f.byID[id]
	if n == nil {
		return Candidate{}, false
	}
	a := f.newAsk(job)
	if !a.admit(n) {
		return Candidate{}, false
	}
	one := []found{{node: n}}
	f.order(&a, one)
	return a.candidate(n, &one[0].key, 1), true
}

// MayFit says whether the job fits the node now, whatever became of earlier
// attempts.
func (f *Fleet) MayFit(job Job, id offpeak.NodeID) bool {
	n := f.byID[id]
	return n != nil && job.Requirements.Fits(job.Account, job.Driver, &n.offer)
}
