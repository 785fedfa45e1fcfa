package offpeak

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func step(name string, change func(*Step)) Step {
	s := Step{Spec: Spec{Name: name, Task: Task{Driver: "process", Command: []string{"true"}}}}
	if change != nil {
		change(&s)
	}
	return s
}

func TestPipelineRefuses(t *testing.T) {
	after := func(names ...string) func(*Step) { return func(s *Step) { s.After = names } }
	many := make([]Step, MaxSteps+1)
	for i := range many {
		many[i] = step(fmt.Sprint("s", i), nil)
	}
	var names []string
	for i := range MaxAfter + 1 {
		names = append(names, fmt.Sprint("s", i))
	}
	wide := append(slices.Clone(many[:MaxAfter+1]), step("last", after(names...)))
	for _, c := range []struct {
		name  string
		steps []Step
		field string
		rule  string
	}{
		{"none", nil, "steps", "are 1 to 256"},
		{"too many", many, "steps", "are 1 to 256"},
		{"no name", []Step{step("", nil)}, "steps[0].name", "is 1 to 64 characters"},
		{"a name that is no folder", []Step{step("../x", nil)}, "steps[0].name", "is 1 to 64 characters"},
		{"a name that hides", []Step{step(".offpeak", nil)}, "steps[0].name", "is 1 to 64 characters"},
		{"twice", []Step{step("a", nil), step("b", nil), step("a", nil)}, "steps[2].name", "is the name of steps[0] too"},
		{"unknown", []Step{step("a", after("b"))}, "steps[0].after[0]", "there is none of this name"},
		{"unknown to take from", []Step{step("a", func(s *Step) { s.From = []string{"b"} })}, "steps[0].from[0]", "there is none of this name"},
		{"named twice", []Step{step("a", nil), step("b", after("a", "a"))}, "steps[1].after[1]", "is named once"},
		{"both ways", []Step{step("a", nil), step("b", func(s *Step) { s.After, s.AfterAny = []string{"a"}, []string{"a"} })}, "steps[1].after_any[0]", "is named by after too"},
		{"a bad spec", []Step{step("a", nil), step("b", func(s *Step) { s.Task.Driver = "x" })}, "steps[1].task.driver", "is process or wasm"},
		{"itself", []Step{step("a", after("a"))}, "steps", "a waits for a"},
		{"a circle", []Step{step("z", after("a")), step("a", after("b")), step("b", after("c")), step("c", after("a"))}, "steps", "a waits for b waits for c waits for a"},
		{"too many parents", wide, "steps[65].after", "names at most 64 steps"},
		{"too many parents in all", append(slices.Clone(many[:MaxAfter+1]), step("last", func(s *Step) { s.After, s.From = names[:MaxAfter], names[MaxAfter:] })), "steps[65].after", "at most 64 steps"},
	} {
		err := Pipeline{Steps: c.steps}.WithDefaults().Validate()
		f, ok := errors.AsType[*FieldError](err)
		if !ok || f.Field != c.field || !strings.Contains(f.Rule, c.rule) {
			t.Errorf("%s: %v, want %s: …%s…", c.name, err, c.field, c.rule)
		}
	}
}

func TestStepParents(t *testing.T) {
	s := Step{From: []string{"a", "b"}, After: []string{"a", "c"}, AfterAny: []string{"b", "d"}}
	want := []Parent{{"a", false, "a"}, {"b", true, "b"}, {"c", false, ""}, {"d", true, ""}}
	if got := s.Parents(); !slices.Equal(got, want) {
		t.Errorf("Parents = %v, want %v", got, want)
	}
}

// Whatever waits for what: an order in which nobody stands before whom they wait for,
// or a circle that is one.
func TestPipelineOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "steps")
		p := Pipeline{Steps: make([]Step, n)}
		for i := range p.Steps {
			p.Steps[i] = step(fmt.Sprint("s", i), nil)
			for _, k := range rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 0, 3, rapid.ID).Draw(t, "after") {
				p.Steps[i].After = append(p.Steps[i].After, fmt.Sprint("s", k))
			}
		}
		order, cycle := p.Order()
		if cycle != nil {
			if len(cycle) < 2 || cycle[0] != cycle[len(cycle)-1] {
				t.Fatalf("%v is no circle", cycle)
			}
			for i := range len(cycle) - 1 {
				at := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Name == cycle[i] })
				if !slices.Contains(p.Steps[at].After, cycle[i+1]) {
					t.Fatalf("%s does not wait for %s", cycle[i], cycle[i+1])
				}
			}
			return
		}
		if len(order) != n {
			t.Fatalf("the order %v has not all %d steps", order, n)
		}
		for at, i := range order {
			for _, name := range p.Steps[i].After {
				if !slices.ContainsFunc(order[:at], func(k int) bool { return p.Steps[k].Name == name }) {
					t.Fatalf("%s stands before %s in %v", p.Steps[i].Name, name, order)
				}
			}
		}
	})
}
