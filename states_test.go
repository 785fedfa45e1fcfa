package offpeak

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/states.md")

// The expected moves, written down apart from the tables: "from>to to".
var expected = map[string]string{
	"job": `
		blocked    > queued failed cancelled
		queued     > leased failed cancelled
		leased     > running queued failed cancelling cancelled
		running    > succeeded failed queued cancelling
		cancelling > cancelled
		succeeded  >
		failed     >
		cancelled  >`,
	"lease": `
		offered   > preparing failed cancelled preempted lost
		preparing > running finishing failed cancelled preempted lost
		running   > finishing succeeded failed cancelled preempted lost
		finishing > succeeded failed cancelled preempted lost
		succeeded >
		failed    >
		cancelled >
		preempted >
		lost      >`,
	"liveness": `
		online  > late offline
		late    > online offline
		offline > online`,
	"intent": `
		open     > draining closed
		draining > open closed
		closed   > open`,
	"availability": `
		available > in_use
		in_use    > available`,
}

// machine is one of the five, its states as strings.
type machine struct {
	name   string
	states []string
	move   func(from, to string) error
}

func machines() []machine {
	return []machine{
		{"job", names(JobStates()), func(a, b string) error { return JobState(a).To(JobState(b)) }},
		{"lease", names(LeaseStates()), func(a, b string) error { return LeaseState(a).To(LeaseState(b)) }},
		{"liveness", names(Livenesses()), func(a, b string) error { return Liveness(a).To(Liveness(b)) }},
		{"intent", names(Intents()), func(a, b string) error { return Intent(a).To(Intent(b)) }},
		{"availability", names(Availabilities()), func(a, b string) error { return Availability(a).To(Availability(b)) }},
	}
}

func names[S ~string](states []S) []string {
	out := make([]string, len(states))
	for i, s := range states {
		out[i] = string(s)
	}
	return out
}

func TestEveryPairOfStates(t *testing.T) {
	for _, m := range machines() {
		want := map[string][]string{}
		var states []string
		for line := range strings.Lines(strings.TrimSpace(expected[m.name])) {
			from, to, _ := strings.Cut(line, ">")
			from = strings.TrimSpace(from)
			states = append(states, from)
			want[from] = strings.Fields(to)
		}
		if !slices.Equal(states, m.states) {
			t.Errorf("%s has the states %q, want %q", m.name, m.states, states)
		}
		for _, from := range append(m.states, "", "nonsense", strings.ToUpper(m.states[0])) {
			for _, to := range append(m.states, "", "nonsense") {
				err := m.move(from, to)
				if slices.Contains(want[from], to) {
					if err != nil {
						t.Errorf("%s %s → %s: %v", m.name, from, to, err)
					}
					continue
				}
				var illegal *IllegalMoveError
				if !errors.As(err, &illegal) || !errors.Is(err, ErrIllegalMove) {
					t.Errorf("%s %s → %s: %v, want an *IllegalMoveError", m.name, from, to, err)
				} else if *illegal != (IllegalMoveError{m.name, from, to}) {
					t.Errorf("%s %s → %s is called %+v", m.name, from, to, *illegal)
				}
			}
		}
	}
}

func TestWhatStatesMean(t *testing.T) {
	for _, s := range append(JobStates(), "", "nonsense") {
		if got, want := s.Terminal(), slices.Contains([]JobState{JobSucceeded, JobFailed, JobCancelled}, s); got != want {
			t.Errorf("job %q: Terminal = %v", s, got)
		}
		if got, want := s.Live(), slices.Contains([]JobState{JobLeased, JobRunning, JobCancelling}, s); got != want {
			t.Errorf("job %q: Live = %v", s, got)
		}
	}
	for _, s := range append(LeaseStates(), "", "nonsense") {
		if got, want := s.Terminal(), slices.Contains([]LeaseState{LeaseSucceeded, LeaseFailed, LeaseCancelled, LeasePreempted, LeaseLost}, s); got != want {
			t.Errorf("lease %q: Terminal = %v", s, got)
		}
		if got, want := s.Holds(), slices.Contains([]LeaseState{LeaseOffered, LeasePreparing, LeaseRunning}, s); got != want {
			t.Errorf("lease %q: Holds = %v", s, got)
		}
	}
}

func TestListsAreCopies(t *testing.T) {
	JobStates()[0] = "changed"
	Ends()[0].Reason = "changed"
	if JobStates()[0] != JobBlocked || Ends()[0].Reason != EndCompleted {
		t.Error("a caller changed a table")
	}
}

// TestEveryStateLeadsOn: each state is reachable from the first one, and each
// that is not terminal leads to a terminal one.
func TestEveryStateLeadsOn(t *testing.T) {
	for _, m := range machines()[:2] {
		reach := func(from string) []string {
			seen := []string{from}
			for i := 0; i < len(seen); i++ {
				for _, to := range m.states {
					if m.move(seen[i], to) == nil && !slices.Contains(seen, to) {
						seen = append(seen, to)
					}
				}
			}
			return seen
		}
		if got := reach(m.states[0]); len(got) != len(m.states) {
			t.Errorf("%s: only %q are reachable", m.name, got)
		}
		for _, s := range m.states {
			ends := slices.ContainsFunc(reach(s), func(r string) bool {
				return !slices.ContainsFunc(m.states, func(to string) bool { return m.move(r, to) == nil })
			})
			if !ends {
				t.Errorf("%s: %s never ends", m.name, s)
			}
		}
	}
}

func TestStatesDocument(t *testing.T) {
	const file = "docs/states.md"
	want := statesDocument()
	if *update {
		if err := os.MkdirAll("docs", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s does not follow the tables; run go test . -run TestStatesDocument -update", file)
	}
}

func statesDocument() string {
	var b strings.Builder
	b.WriteString("# States\n\n<!-- Generated from the tables in states.go by: go test . -run TestStatesDocument -update -->\n\n" +
		"Every move that is not listed is refused. What each state means stands beside it in `states.go`; " +
		"which end leads where, in the table of ends in `ends.go`.\n")
	titles := map[string]string{
		"job":          "Job",
		"lease":        "Lease",
		"liveness":     "A node's liveness (measured by the hub)",
		"intent":       "A node's intent (ordered by a person)",
		"availability": "A node's availability (said by its agent)",
	}
	for _, m := range machines() {
		fmt.Fprintf(&b, "\n## %s\n\n| from | to |\n|---|---|\n", titles[m.name])
		for _, from := range m.states {
			var to []string
			for _, s := range m.states {
				if m.move(from, s) == nil {
					to = append(to, "`"+s+"`")
				}
			}
			next := strings.Join(to, ", ")
			if next == "" {
				next = "nothing: it is terminal"
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", from, next)
		}
		if m.name == "job" || m.name == "lease" {
			fmt.Fprintf(&b, "\n```mermaid\nstateDiagram-v2\n")
			for _, s := range map[string][]string{"job": {"blocked", "queued"}, "lease": {"offered"}}[m.name] {
				fmt.Fprintf(&b, "    [*] --> %s\n", s)
			}
			for _, from := range m.states {
				terminal := true
				for _, to := range m.states {
					if m.move(from, to) == nil {
						terminal = false
						fmt.Fprintf(&b, "    %s --> %s\n", from, to)
					}
				}
				if terminal {
					fmt.Fprintf(&b, "    %s --> [*]\n", from)
				}
			}
			b.WriteString("```\n")
		}
	}
	return b.String()
}
