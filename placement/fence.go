package placement

import (
	"slices"
	"time"

	"offpeak"
)

// Fence keeps one job off one node until a moment: an attempt of it failed there.
// It does not depend on how many other nodes fit, so that a job that asks for more
// never has more candidates.
type Fence struct {
	Node  offpeak.NodeID
	Until time.Time
}

// Fenced says until when the job is kept off a node, and false where it is not.
func (j *Job) Fenced(node offpeak.NodeID) (until time.Time, fenced bool) {
	for i := range j.Fences {
		if f := &j.Fences[i]; f.Node == node && f.Until.After(j.Now) {
			return f.Until, true
		}
	}
	return time.Time{}, false
}

// fenced says whether any fence keeps the job off any node.
func (j *Job) fenced() bool {
	return slices.ContainsFunc(j.Fences, func(f Fence) bool { return f.Until.After(j.Now) })
}

// Fit is Requirements.Fit, and what the job's earlier attempts mean for the node.
func (j *Job) Fit(o *offpeak.Offer) offpeak.Reason {
	r := j.Requirements.Fit(j.Account, j.Driver, *o)
	if until, fenced := j.Fenced(o.Node); fenced && r.OK() {
		return behind(until)
	}
	return r
}

// behind puts words to a fence.
func behind(until time.Time) offpeak.Reason {
	return offpeak.Reason{
		Code: offpeak.FitFence, Want: "a node where no attempt of it failed a moment ago",
		Have: "one where it did; it may go there again at " + until.UTC().Format("15:04:05 UTC"),
	}
}
