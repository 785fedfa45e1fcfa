package offpeak

import (
	"errors"
	"fmt"
	"testing"
)

func TestValidateAfter(t *testing.T) {
	many := make([]After, MaxAfter+1)
	for i := range many {
		many[i].Job = JobID(fmt.Sprint("job_", i))
	}
	for _, c := range []struct {
		name  string
		list  []After
		field string
	}{
		{"none", nil, ""},
		{"as many as may be", many[:MaxAfter], ""},
		{"too many", many, "after"},
		{"no job", []After{{}}, "after[0].job"},
		{"twice", []After{{Job: "a"}, {Job: "a", Any: true}}, "after[1].job"},
		{"folders", []After{{Job: "a", Into: "in/a"}, {Job: "b", Into: "in/ab"}, {Job: "c"}}, ""},
		{"outside", []After{{Job: "a", Into: "../a"}}, "after[0].into"},
		{"everywhere", []After{{Job: "a", Into: "."}}, "after[0].into"},
		{"the agent's", []After{{Job: "a", Into: ".offpeak/x"}}, "after[0].into"},
		{"one in another", []After{{Job: "a", Into: "in"}, {Job: "b", Into: "in/b"}}, "after[1].into"},
		{"one around another", []After{{Job: "a", Into: "in/a"}, {Job: "b", Into: "in"}}, "after[1].into"},
		{"the same", []After{{Job: "a", Into: "in"}, {Job: "b", Into: "in"}}, "after[1].into"},
	} {
		err := ValidateAfter(c.list)
		f, refused := errors.AsType[*FieldError](err)
		if c.field == "" && err != nil || c.field != "" && (!refused || f.Field != c.field) {
			t.Errorf("%s: %v, want %q refused", c.name, err, c.field)
		}
	}
}
