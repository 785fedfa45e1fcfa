package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
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
