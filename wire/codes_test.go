package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"offpeak"
)

// Every error keeps its identity on the way through JSON.
func TestProblemsKeepTheirErrors(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range codes {
		if seen[row.code] {
			t.Errorf("code %s stands twice", row.code)
		}
		seen[row.code] = true
		p := ProblemOf(fmt.Errorf("do something: %w", row.err))
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back Problem
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(&back, row.err) || back.Status != row.status || back.Title == "" || back.Detail == "" {
			t.Errorf("%v came back as %+v", row.err, back)
		}
	}
}

func TestProblemsKeepTheirFacts(t *testing.T) {
	p := ProblemOf(errors.Join(&offpeak.FieldError{Field: "name", Rule: "is short"}, fmt.Errorf("more: %w", &offpeak.FieldError{Field: "env", Value: "x", Rule: "is long"})))
	if p.Status != 422 || len(p.Errors) != 2 || p.Errors[0].Location != "name" || p.Errors[1].Location != "env" {
		t.Errorf("two faults became %+v", p)
	}
	gap := ProblemOf(fmt.Errorf("append: %w", &offpeak.LogGapError{Want: 7, Got: 9}))
	data, _ := json.Marshal(gap)
	var back Problem
	_ = json.Unmarshal(data, &back)
	if g, ok := errors.AsType[*offpeak.LogGapError](&back); !ok || g.Want != 7 || !errors.Is(&back, offpeak.ErrConflict) {
		t.Errorf("a gap came back as %+v", back)
	}
}

func TestProblemsTellNothingOfTheInside(t *testing.T) {
	p := ProblemOf(errors.New("open /srv/hub.db: secret"))
	data, _ := json.Marshal(p)
	if p.Status != 500 || p.Detail != "" || p.Code != "internal" {
		t.Errorf("an unknown error became %s", data)
	}
}

func TestAProblemIsTakenAsItIs(t *testing.T) {
	p := &Problem{Title: "Rate limited", Status: 429, Code: "rate_limited"}
	if got := ProblemOf(fmt.Errorf("ask: %w", p)); got != p {
		t.Errorf("got %+v", got)
	}
	if !errors.Is(p, offpeak.ErrUnavailable) {
		t.Error("a caller who is told to slow down must be able to try again")
	}
}
