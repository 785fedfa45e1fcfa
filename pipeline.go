package offpeak

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxSteps is the most steps that a pipeline has.
const MaxSteps = 256

// Pipeline is jobs that are submitted together, some of which wait for others.
type Pipeline struct {
	Name  string `json:"name,omitempty" doc:"for people; each job has it as its label pipeline"`
	Steps []Step `json:"steps" doc:"1 to 256 jobs"`
}

// Step is one job of a pipeline. Its name is the spec's.
type Step struct {
	Spec
	// After are steps that must succeed before it begins.
	After []string `json:"after,omitempty" doc:"steps that must succeed first"`
	// AfterAny are steps that must have ended, however.
	AfterAny []string `json:"after_any,omitempty" doc:"steps that must have ended first, however"`
	// From are steps that must succeed, unless AfterAny has them too, and whose
	// outputs are laid out in folders that bear their names.
	From []string `json:"from,omitempty" doc:"steps that must succeed first, and whose outputs are laid out in folders of their names; of an array each member's in a folder of its index there"`
	// Array makes an array of it. Who waits for it waits for all its members.
	Array *Array `json:"array,omitempty" doc:"makes an array of the step: who waits for it waits for all its members"`
}

// WithDefaults returns the pipeline with every value filled in that it leaves out.
func (p Pipeline) WithDefaults() Pipeline {
	p.Steps = slices.Clone(p.Steps)
	for i := range p.Steps {
		p.Steps[i].Spec = p.Steps[i].WithDefaults()
	}
	return p
}

// Validate returns nil or every rule that the pipeline breaks, as *FieldError values
// joined into one error. It expects a pipeline WithDefaults.
func (p Pipeline) Validate() error {
	var v validator
	v.text("name", p.Name, maxLabel)
	if n := len(p.Steps); n < 1 || n > MaxSteps {
		v.add("steps", "", fmt.Sprintf("are 1 to %d, and there are %d", MaxSteps, n))
		return errors.Join(v.errs...)
	}
	at := make(map[string]int, len(p.Steps))
	for i, s := range p.Steps {
		field := fmt.Sprintf("steps[%d].name", i)
		first, again := at[s.Name]
		switch {
		case !stepName(s.Name):
			v.add(field, s.Name, "is 1 to 64 characters of A-Z a-z 0-9 . _ -, and begins with none of these three: its outputs may lie in a folder of this name")
		case again:
			v.add(field, s.Name, fmt.Sprintf("is the name of steps[%d] too: each step has its own", first))
		default:
			at[s.Name] = i
		}
	}
	for i, s := range p.Steps {
		field := fmt.Sprintf("steps[%d].", i)
		for _, err := range joined(s.Validate()) {
			if f, ok := errors.AsType[*FieldError](err); ok {
				v.add(field+f.Field, f.Value, f.Rule)
			}
		}
		if s.Array != nil {
			for _, err := range joined(s.Array.Validate()) {
				if f, ok := errors.AsType[*FieldError](err); ok {
					v.add(field+f.Field, f.Value, f.Rule)
				}
			}
		}
		for k, name := range s.From {
			if i, known := at[name]; known && p.Steps[i].Array != nil && p.Steps[i].Array.Members().Len() > MaxParts {
				v.add(fmt.Sprintf("%sfrom[%d]", field, k), name, fmt.Sprintf("is an array of at most %d members: the outputs of more don't fit into one job", MaxParts))
			}
		}
		for _, list := range []struct {
			field string
			names []string
		}{{"after", s.After}, {"after_any", s.AfterAny}, {"from", s.From}} {
			if n := len(list.names); n > MaxAfter {
				v.add(field+list.field, fmt.Sprint(n), fmt.Sprintf("names at most %d steps", MaxAfter))
				continue
			}
			for k, name := range list.names {
				field := fmt.Sprintf("%s%s[%d]", field, list.field, k)
				if _, known := at[name]; !known {
					v.add(field, name, "names a step of the pipeline: there is none of this name")
				} else if slices.Contains(list.names[:k], name) {
					v.add(field, name, "is named once")
				}
			}
		}
		if max(len(s.After), len(s.AfterAny), len(s.From)) > MaxAfter {
			continue
		}
		for k, name := range s.AfterAny {
			if slices.Contains(s.After, name) {
				v.add(fmt.Sprintf("%safter_any[%d]", field, k), name, "is named by after too: it must either succeed or just end")
			}
		}
		if n := len(s.Parents()); n > MaxAfter {
			v.add(field+"after", fmt.Sprint(n), fmt.Sprintf("has, with after_any and from, at most %d steps", MaxAfter))
		}
	}
	if len(v.errs) == 0 {
		if _, cycle := p.Order(); cycle != nil {
			v.add("steps", "", "wait for each other in a circle: "+strings.Join(cycle, " waits for "))
		}
	}
	return errors.Join(v.errs...)
}

// joined are the errors that were joined into one.
func joined(err error) []error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// stepName says that a step may be called so.
func stepName(s string) bool {
	if s == "" || len(s) > 64 || strings.ContainsRune("._-", rune(s[0])) {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("._-", rune(c)) {
			return false
		}
	}
	return true
}

// Parent is a step that another one waits for; as After, by the step's name.
type Parent struct {
	Step string
	Any  bool
	Into string
}

// Parents are the steps that a step waits for, each once.
func (s Step) Parents() []Parent {
	out := make([]Parent, 0, len(s.From)+len(s.After)+len(s.AfterAny))
	add := func(name string, anyEnd bool, into string) {
		if i := slices.IndexFunc(out, func(p Parent) bool { return p.Step == name }); i >= 0 {
			out[i].Any = anyEnd
			return
		}
		out = append(out, Parent{name, anyEnd, into})
	}
	for _, name := range s.From {
		add(name, false, name)
	}
	for _, name := range s.After {
		add(name, false, "")
	}
	for _, name := range s.AfterAny {
		add(name, true, "")
	}
	return out
}

// Order returns the steps' places in an order in which each stands behind those that
// it waits for, otherwise as they were written. Where there is none it names steps of
// which each waits for the next, the last being the first again.
func (p Pipeline) Order() (order []int, cycle []string) {
	at := make(map[string]int, len(p.Steps))
	for i, s := range p.Steps {
		at[s.Name] = i
	}
	parents := make([][]int, len(p.Steps))
	for i, s := range p.Steps {
		for _, parent := range s.Parents() {
			parents[i] = append(parents[i], at[parent.Step])
		}
	}
	placed := make([]bool, len(p.Steps))
	// waits returns the first step that i waits for and that has no place yet.
	waits := func(i int) (next int, waiting bool) {
		for _, k := range parents[i] {
			if !placed[k] {
				return k, true
			}
		}
		return 0, false
	}
	for len(order) < len(p.Steps) {
		before := len(order)
		for i := range p.Steps {
			if _, waiting := waits(i); !placed[i] && !waiting {
				placed[i], order = true, append(order, i)
			}
		}
		if len(order) > before {
			continue
		}
		// Each that is left waits for one that is left: this way leads into a circle.
		i := slices.Index(placed, false)
		seen := map[string]int{}
		for {
			name := p.Steps[i].Name
			if first, again := seen[name]; again {
				return nil, append(cycle[first:], name)
			}
			seen[name], cycle = len(cycle), append(cycle, name)
			i, _ = waits(i)
		}
	}
	return order, nil
}
