package history

import (
	"slices"

	"github.com/anishathalye/porcupine"

	"offpeak"
	"offpeak/store"
)

// holding is a live lease on its node.
type holding struct {
	lease     offpeak.LeaseID
	resources *offpeak.Resources // nil once they are released
}

// nodeState is a node. It is never changed.
type nodeState struct {
	capacity *offpeak.Resources // nil while it is not known
	held     []holding          // by lease
}

// nodeModel is one node as it should be: it is leased what it has free, and no
// more, and what it is told to hold are its live leases, each of which ends once.
func nodeModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return nodeState{} },
		Step: func(state, input, _ any) (bool, any) {
			next, ok := state.(nodeState).step(input.(step))
			return ok, next
		},
		Equal: func(a, b any) bool {
			n, m := a.(nodeState), b.(nodeState)
			return n.capacity == m.capacity && slices.EqualFunc(n.held, m.held, func(g, h holding) bool {
				return g.lease == h.lease && (g.resources == nil) == (h.resources == nil)
			})
		},
	}
}

func (n nodeState) find(id offpeak.LeaseID) (int, bool) {
	return slices.BinarySearchFunc(n.held, id, func(h holding, id offpeak.LeaseID) int {
		switch {
		case h.lease < id:
			return -1
		case h.lease > id:
			return 1
		}
		return 0
	})
}

func (n nodeState) step(s step) (nodeState, bool) {
	i, has := n.find(s.Lease)
	switch s.Kind {
	case capacity:
		n.capacity = &s.Resources
	case claim:
		if has || !n.fits(s.Resources) {
			return n, false
		}
		n.held = slices.Insert(slices.Clone(n.held), i, holding{s.Lease, &s.Resources})
	case release:
		if has {
			n.held = slices.Clone(n.held)
			n.held[i].resources = nil
		}
	case end:
		if !has {
			return n, false
		}
		n.held = slices.Delete(slices.Clone(n.held), i, i+1)
	case held:
		if len(s.Leases) != len(n.held) {
			return n, false
		}
		for _, id := range s.Leases {
			if _, has := n.find(id); !has {
				return n, false
			}
		}
	}
	return n, true
}

// fits says that a node has this free. What of its capacity is taken away under
// live leases, they keep.
func (n nodeState) fits(want offpeak.Resources) bool {
	if n.capacity == nil {
		return false
	}
	used := want
	free := slices.Clone(n.capacity.Devices)
	for _, h := range n.held {
		if h.resources == nil {
			continue
		}
		used.CPU, used.Memory, used.Disk = used.CPU+h.resources.CPU, used.Memory+h.resources.Memory, used.Disk+h.resources.Disk
		free = slices.DeleteFunc(free, func(d offpeak.DeviceID) bool { return slices.Contains(h.resources.Devices, d) })
	}
	for _, d := range want.Devices {
		if !slices.Contains(free, d) {
			return false
		}
	}
	return (want.CPU == 0 || used.CPU <= n.capacity.CPU) &&
		(want.Memory == 0 || used.Memory <= n.capacity.Memory) &&
		(want.Disk == 0 || used.Disk <= n.capacity.Disk)
}

// attempt is one lease of a job.
type attempt struct {
	lease offpeak.LeaseID
	// accepted says that it is no mere offer any more, live that it has not
	// ended, reported that a report ended it.
	accepted, live, reported bool
	// incarnation and seq are those of the last report that was applied.
	incarnation offpeak.Incarnation
	seq         int64
}

// jobState is a job. It is never changed.
type jobState struct {
	attempts []attempt // of which at most the last is live
	over     bool
}

// jobModel is one job as it should be: attempts count up by one, each begins when
// the one before has ended and the job is not over, and only the newest, live one
// is reported on, but for reports that are said again. A step that may have
// happened does nothing where it can't be done.
func jobModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return jobState{} },
		Step: func(state, input, _ any) (bool, any) {
			j, s := state.(jobState), input.(step)
			next, ok := j.step(s)
			if !ok {
				next = j
			}
			return ok || s.Maybe, next
		},
		Equal: func(a, b any) bool {
			j, k := a.(jobState), b.(jobState)
			return j.over == k.over && slices.Equal(j.attempts, k.attempts)
		},
	}
}

// live returns the job's live attempt; ok is false if it has none.
func (j jobState) live() (attempt, bool) {
	if len(j.attempts) == 0 {
		return attempt{}, false
	}
	a := j.attempts[len(j.attempts)-1]
	return a, a.live
}

// with returns the job with another last attempt.
func (j jobState) with(a attempt) jobState {
	j.attempts = slices.Clone(j.attempts)
	j.attempts[len(j.attempts)-1] = a
	return j
}

// find returns an attempt by its lease.
func (j jobState) find(id offpeak.LeaseID) attempt {
	if i := slices.IndexFunc(j.attempts, func(a attempt) bool { return a.lease == id }); i >= 0 {
		return j.attempts[i]
	}
	return attempt{}
}

func (j jobState) step(s step) (jobState, bool) {
	a, has := j.live()
	mine := has && a.lease == s.Lease
	switch s.Kind {
	case claim:
		if has || j.over || int(s.Attempt) != len(j.attempts)+1 {
			return j, false
		}
		j.attempts = append(slices.Clone(j.attempts), attempt{lease: s.Lease, accepted: s.Accepted, live: true})
	case report:
		return j.report(s)
	case stale:
		// An offer that has lapsed is refused before anybody ends it.
		return j, !mine || !a.accepted
	case end:
		if !mine {
			// The first answer, given again.
			return j, s.Again && j.find(s.Lease).lease != ""
		}
		a.live = false
		j.over = j.over || s.Over
		return j.with(a), true
	case over:
		j.over = !has
		return j, !has
	case live:
		return j, mine
	}
	return j, true
}

// report applies an accepted report, or one that was said before.
func (j jobState) report(s step) (jobState, bool) {
	a := j.find(s.Lease)
	if a.incarnation == s.Incarnation && s.Seq <= a.seq && (a.live || a.reported) {
		return j, true
	}
	if !a.live {
		return j, false
	}
	a.accepted, a.incarnation, a.seq = true, s.Incarnation, s.Seq
	if s.Report == store.ReportEnded {
		a.live, a.reported = false, true
		j.over = j.over || s.Over
	}
	return j.with(a), true
}
