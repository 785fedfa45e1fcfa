package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"offpeak"
)

// Violation is a part of a history that no order explains.
type Violation struct {
	// Of is the node or job whose part it is.
	Of string
	// Detail says how far an order could be found, and what can't follow.
	Detail string
}

func (v Violation) String() string { return v.Of + ": " + v.Detail }

// Check looks for an order of what happened on each node and to each job, and
// returns those that have none, or for which none was found within the time
// given to each.
func (r *Recorder) Check(within time.Duration) []Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes, jobs := partition(r.calls)
	var out []Violation
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		out = append(out, check("node "+string(id), nodeModel(), nodes[id], within)...)
	}
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		out = append(out, check("job "+string(id), jobModel(), jobs[id], within)...)
	}
	return out
}

func check(of string, m porcupine.Model, ops []porcupine.Operation, within time.Duration) []Violation {
	if porcupine.CheckOperationsTimeout(m, ops, within) == porcupine.Ok {
		return nil
	}
	result, info := porcupine.CheckOperationsVerbose(m, ops, within)
	v := Violation{Of: of, Detail: fmt.Sprintf("no order of %d steps was found within %s", len(ops), within)}
	if result == porcupine.Illegal {
		v.Detail = explain(ops, info.PartialLinearizations()[0])
	}
	return []Violation{v}
}

// explain shows the end of the longest order that was found, and what is left of
// the history.
func explain(ops []porcupine.Operation, orders [][]int) string {
	const most = 6
	longest := slices.MaxFunc(append(orders, nil), func(a, b []int) int { return len(a) - len(b) })
	var b strings.Builder
	b.WriteString("no order explains it. After")
	if len(longest) > most {
		fmt.Fprintf(&b, " %d steps and", len(longest)-most)
	}
	for _, i := range longest[max(0, len(longest)-most):] {
		b.WriteString("\n\t" + describe(ops[i]))
	}
	b.WriteString("\nnone of these can be next:")
	var left []porcupine.Operation
	for i, op := range ops {
		if !slices.Contains(longest, i) {
			left = append(left, op)
		}
	}
	slices.SortStableFunc(left, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, op := range left[:min(most, len(left))] {
		b.WriteString("\n\t" + describe(op))
	}
	return b.String()
}

func describe(op porcupine.Operation) string {
	til := "never"
	if op.Return != never {
		til = time.Duration(op.Return).String()
	}
	return fmt.Sprintf("hub %d, %s to %s: %s", op.ClientId, time.Duration(op.Call), til, op.Input.(step))
}

func (s step) String() string {
	var b strings.Builder
	if s.Maybe {
		b.WriteString("perhaps ")
	}
	b.WriteString(string(s.Kind))
	if s.Report != "" {
		fmt.Fprintf(&b, " %s (%s %d)", s.Report, s.Incarnation, s.Seq)
	}
	for _, id := range []string{string(s.Lease), string(s.Job), string(s.Node)} {
		if id != "" {
			b.WriteString(" " + id)
		}
	}
	if s.Attempt != 0 {
		fmt.Fprintf(&b, " attempt %d", s.Attempt)
	}
	switch s.Kind {
	case claim, capacity:
		r := s.Resources
		fmt.Fprintf(&b, " (cpu %d, memory %d, disk %d, devices %v)", r.CPU, r.Memory, r.Disk, r.Devices)
	case held:
		fmt.Fprintf(&b, " %v", s.Leases)
	}
	return b.String()
}

// evidence is what the whole history says of one lease.
type evidence struct {
	claim  step // the last that was tried
	claims int  // how many were
	// seen is when the first call that needs the claim to have happened had
	// returned; never where none does.
	seen int64
	// lived is when the last call began that found the lease live.
	lived int64
	// ended says that some call is known to have ended it.
	ended bool
}

// partition takes the calls apart into one history for each node and job.
func partition(calls []*call) (nodes map[offpeak.NodeID][]porcupine.Operation, jobs map[offpeak.JobID][]porcupine.Operation) {
	nodes, jobs = map[offpeak.NodeID][]porcupine.Operation{}, map[offpeak.JobID][]porcupine.Operation{}
	leases, newest := survey(calls)
	add := func(hub int, from, til int64, s step) {
		op := porcupine.Operation{ClientId: hub, Input: s, Call: from, Return: max(from, til)}
		if s.Node != "" && slices.Contains([]kind{capacity, claim, report, end, held}, s.Kind) {
			nodes[s.Node] = append(nodes[s.Node], op)
		}
		if s.Job != "" && slices.Contains([]kind{claim, report, stale, end, over, live}, s.Kind) {
			jobs[s.Job] = append(jobs[s.Job], op)
		}
	}
	var sweeps []*call
	for _, c := range calls {
		for _, s := range c.steps {
			e := leases[s.Lease]
			switch {
			case s.Kind == sweep:
				if len(sweeps) == 0 || sweeps[len(sweeps)-1] != c {
					sweeps = append(sweeps, c)
				}
			case s.Kind == claim && s.Maybe:
				// One of which nothing was ever seen, and that no later attempt
				// needs, only takes room: if there is an order with it, there is
				// one without.
				if e.seen != never || newest[s.Job] > s.Attempt {
					s.Maybe = e.seen == never || e.claims > 1
					add(c.hub, c.from, e.seen, s)
				}
			case (s.Kind == report || s.Kind == stale) && s.Job == "":
				// Reports name no job: its claim does.
				if e != nil && e.claim.Attempt == s.Attempt && e.claim.Node == s.Node {
					s.Job = e.claim.Job
					add(c.hub, c.from, c.til, s)
				}
			case s.Maybe:
				add(c.hub, c.from, never, s)
			default:
				add(c.hub, c.from, c.til, s)
			}
		}
	}
	// A lease of which no end is known may have been ended by a call of which
	// nobody knows what it ended, once it was last found live.
	for _, id := range slices.Sorted(maps.Keys(leases)) {
		e := leases[id]
		if e.ended || e.claim.Job == "" {
			continue
		}
		for _, c := range sweeps { // in the order of their calls
			if i := slices.IndexFunc(c.steps, func(s step) bool { return s.Kind == sweep && s.reaches(e.claim) }); i >= 0 {
				add(c.hub, max(c.from, e.lived), never, step{Kind: end, Job: e.claim.Job, Node: e.claim.Node, Lease: id, Attempt: e.claim.Attempt, Maybe: true})
				break
			}
		}
	}
	return nodes, jobs
}

// reaches says that a sweep may have ended a lease.
func (s step) reaches(lease step) bool {
	return (s.Node == "" || s.Node == lease.Node) && (s.Job == "" || s.Job == lease.Job) && (s.Lease == "" || s.Lease == lease.Lease)
}

// survey collects what is known of each lease, and the newest attempt of each
// job that anybody claimed.
func survey(calls []*call) (leases map[offpeak.LeaseID]*evidence, newest map[offpeak.JobID]offpeak.Attempt) {
	leases, newest = map[offpeak.LeaseID]*evidence{}, map[offpeak.JobID]offpeak.Attempt{}
	of := func(id offpeak.LeaseID) *evidence {
		if leases[id] == nil {
			leases[id] = &evidence{seen: never}
		}
		return leases[id]
	}
	for _, c := range calls {
		for _, s := range c.steps {
			switch s.Kind {
			case claim:
				e := of(s.Lease)
				e.claim, e.claims = s, e.claims+1
				newest[s.Job] = max(newest[s.Job], s.Attempt)
			case report, live, end:
				if s.Maybe {
					continue
				}
				e := of(s.Lease)
				e.seen = min(e.seen, c.til)
				if s.Kind == end || s.Kind == report && s.Report == "ended" {
					e.ended = true
				} else {
					e.lived = max(e.lived, c.from)
				}
			}
		}
	}
	return leases, newest
}
