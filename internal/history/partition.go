package history

import (
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"

	"offpeak"
	"offpeak/store"
)

// span is the time in which a step happened.
type span struct{ from, til int64 }

// nowhen holds no moment; widen makes it hold some.
func nowhen() span { return span{never, never} }

func (s span) known() bool { return s.from != never }

// widen lets a step happen from an earlier call on, and be over with the first
// that had returned.
func (s span) widen(c *call, sure bool) span {
	s.from = min(s.from, c.from)
	if sure {
		s.til = min(s.til, c.til)
	}
	return s
}

// after returns the span without what lies before a moment.
func (s span) after(moment int64) span {
	s.from = min(max(s.from, moment), s.til)
	return s
}

// evidence is what the whole history says of one lease. A step that was tried
// several times, with answers that were lost, happened once: in the span from the
// first try to the first answer. A search for an order that had to place each try
// would not come to an end.
type evidence struct {
	claim step // the last that was tried
	hub   int
	// made is when the claim happened; claimed counts those that are known to have.
	made    span
	claimed int
	// seen is when the first call had returned that needs the lease to have been
	// there, lived when the last began that found it live, gone when the first
	// had returned that found its node without it.
	seen, lived, gone int64
	// ended is when others than reports ended it, reported when a report did,
	// swept when something may have that does not say what, released when its
	// resources were.
	ended, reported, swept, released span
}

// there says that the lease was made.
func (e *evidence) there() bool { return e.claimed > 0 || e.seen != never }

// end is when the lease ended, if it did; sure says that it must have.
func (e *evidence) end() (at span, sure bool) {
	switch {
	case e.ended.known():
		return e.ended, true
	case e.reported.til != never:
		return e.reported.after(e.lived), true
	}
	at = span{min(e.reported.from, e.swept.from), e.gone}
	if !at.known() {
		return at, false
	}
	return at.after(max(e.lived, e.made.from)), e.gone != never
}

// survey is a history that is taken apart.
type survey struct {
	leases map[offpeak.LeaseID]*evidence
	// newest is the newest attempt of each job that anybody claimed.
	newest map[offpeak.JobID]offpeak.Attempt
	nodes  map[offpeak.NodeID][]porcupine.Operation
	jobs   map[offpeak.JobID][]porcupine.Operation
}

// partition takes the calls apart into one history for each node and job.
func partition(calls []*call) (map[offpeak.NodeID][]porcupine.Operation, map[offpeak.JobID][]porcupine.Operation) {
	v := survey{map[offpeak.LeaseID]*evidence{}, map[offpeak.JobID]offpeak.Attempt{}, map[offpeak.NodeID][]porcupine.Operation{}, map[offpeak.JobID][]porcupine.Operation{}}
	v.each(calls, v.claims)
	v.each(calls, v.note)
	v.gone(calls)
	v.each(calls, v.steps)
	for _, id := range slices.Sorted(maps.Keys(v.leases)) {
		v.lease(id, v.leases[id])
	}
	return v.nodes, v.jobs
}

func (v survey) each(calls []*call, f func(*call, step)) {
	for _, c := range calls {
		for _, s := range c.steps {
			f(c, s)
		}
	}
}

func (v survey) of(id offpeak.LeaseID) *evidence {
	if v.leases[id] == nil {
		v.leases[id] = &evidence{made: nowhen(), seen: never, gone: never, ended: nowhen(), reported: nowhen(), swept: nowhen(), released: nowhen()}
	}
	return v.leases[id]
}

// claims notes who claimed what.
func (v survey) claims(c *call, s step) {
	if s.Kind != claim {
		return
	}
	e := v.of(s.Lease)
	e.claim, e.hub, e.made = s, c.hub, e.made.widen(c, !s.Maybe)
	if !s.Maybe {
		e.claimed++
	}
	v.newest[s.Job] = max(v.newest[s.Job], s.Attempt)
}

// note notes what became of leases.
func (v survey) note(c *call, s step) {
	switch s.Kind {
	case report:
		e := v.of(s.Lease)
		ends := s.Report == store.ReportEnded
		if ends {
			e.reported = e.reported.widen(c, !s.Maybe)
		} else if s.Report == store.ReportFinishing {
			e.released = e.released.widen(c, !s.Maybe)
		}
		if s.Maybe {
			return
		}
		e.seen = min(e.seen, c.til)
		if !ends {
			e.lived = max(e.lived, c.from)
		}
	case live:
		e := v.of(s.Lease)
		e.seen, e.lived = min(e.seen, c.til), max(e.lived, c.from)
	case end:
		e := v.of(s.Lease)
		e.seen, e.ended = min(e.seen, c.til), e.ended.widen(c, true)
	case sweep:
		for _, e := range v.leases {
			if e.claim.Lease != "" && s.reaches(e.claim) {
				e.swept = e.swept.widen(c, false)
			}
		}
	}
}

// reaches says that a sweep may have ended a lease.
func (s step) reaches(lease step) bool {
	return (s.Node == "" || s.Node == lease.Node) && (s.Job == "" || s.Job == lease.Job) && (s.Lease == "" || s.Lease == lease.Lease)
}

// gone notes when each lease was first missed on its node, or followed by the
// next attempt of its job.
func (v survey) gone(calls []*call) {
	on := map[offpeak.NodeID][]*evidence{}
	of := map[offpeak.JobID][]*evidence{}
	for _, e := range v.leases {
		if e.there() {
			e.made.til = min(e.made.til, e.seen)
			on[e.claim.Node] = append(on[e.claim.Node], e)
			of[e.claim.Job] = append(of[e.claim.Job], e)
		}
	}
	v.each(calls, func(c *call, s step) {
		switch {
		case s.Kind == held:
			for _, e := range on[s.Node] {
				if e.made.til < c.from && !slices.Contains(s.Leases, e.claim.Lease) {
					e.gone = min(e.gone, c.til)
				}
			}
		case s.Kind == claim && !s.Maybe:
			for _, e := range of[s.Job] {
				if e.claim.Attempt < s.Attempt {
					e.gone = min(e.gone, c.til)
				}
			}
		}
	})
}

func (v survey) node(id offpeak.NodeID, hub int, at span, s step) {
	v.nodes[id] = append(v.nodes[id], porcupine.Operation{ClientId: hub, Input: s, Call: at.from, Return: at.til})
}

func (v survey) job(id offpeak.JobID, hub int, at span, s step) {
	v.jobs[id] = append(v.jobs[id], porcupine.Operation{ClientId: hub, Input: s, Call: at.from, Return: at.til})
}

// steps takes over the steps that stand for themselves.
func (v survey) steps(c *call, s step) {
	at := span{c.from, c.til}
	switch s.Kind {
	case capacity, held:
		v.node(s.Node, c.hub, at, s)
	case claim:
		if !s.Maybe {
			v.node(s.Node, c.hub, at, s)
			v.job(s.Job, c.hub, at, s)
		}
	case report:
		if s.Maybe {
			return
		}
		if e := v.leases[s.Lease]; s.Report == store.ReportEnded && c.til == e.reported.til {
			at = e.reported.after(e.lived)
		}
		v.job(s.Job, c.hub, at, s)
	case end:
		if e := v.leases[s.Lease]; s.Again && e.swept.known() {
			// An answer that was lost may have been the first.
			at.from = min(at.from, max(e.swept.from, e.lived))
		}
		v.job(s.Job, c.hub, at, s)
	case live, over:
		v.job(s.Job, c.hub, at, s)
	case stale:
		// It names no job: the lease's claim does.
		if e := v.leases[s.Lease]; e != nil && e.claim.Attempt == s.Attempt && e.claim.Node == s.Node {
			v.job(e.claim.Job, c.hub, at, s)
		}
	}
}

// lease takes over what is put together from all that is known of a lease.
func (v survey) lease(id offpeak.LeaseID, e *evidence) {
	if e.claim.Lease == "" {
		return // never claimed by anybody: who found it live has no order
	}
	ends, ended := e.end()
	it := step{Kind: end, Job: e.claim.Job, Node: e.claim.Node, Lease: id, Attempt: e.claim.Attempt, Maybe: !ended}
	if !e.there() {
		// It only took room, and if there is an order in which it did, there is
		// one in which it did not, unless a later attempt came after it.
		if v.newest[e.claim.Job] > e.claim.Attempt {
			v.job(it.Job, e.hub, e.made, e.claim)
			if ends.known() {
				v.job(it.Job, e.hub, span{ends.from, never}, it)
			}
		}
		return
	}
	if e.claimed == 0 {
		made := e.claim
		made.Maybe = false
		v.node(it.Node, e.hub, e.made, made)
		v.job(it.Job, e.hub, e.made, made)
	}
	if e.released.known() {
		v.node(it.Node, e.hub, span{e.released.from, min(e.released.til, max(ends.til, e.released.from))}, step{Kind: release, Node: it.Node, Lease: id})
	}
	if !ends.known() {
		return
	}
	v.node(it.Node, e.hub, ends, it)
	if !e.ended.known() && e.reported.til == never {
		v.job(it.Job, e.hub, ends, it)
	}
}
