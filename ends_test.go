package offpeak

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// constants returns the values of the string constants of a type in a file.
func constants(t *testing.T, file, typ string) []string {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range tree.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != token.CONST {
			continue
		}
		for _, s := range gen.Specs {
			spec := s.(*ast.ValueSpec)
			if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != typ {
				continue
			}
			for _, v := range spec.Values {
				text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, text)
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("no constants of type %s in %s", typ, file)
	}
	return out
}

func TestTableOfEnds(t *testing.T) {
	var rows []string
	for _, e := range Ends() {
		rows = append(rows, string(e.Reason))
		if got, known := EndOf(e.Reason); !known || got != e {
			t.Errorf("EndOf(%s) = %+v, %v", e.Reason, got, known)
		}
		if !strings.HasSuffix(e.Sentence, ".") || len(e.Sentence) < 10 || strings.TrimSpace(e.Sentence) != e.Sentence {
			t.Errorf("%s: sentence %q", e.Reason, e.Sentence)
		}
		if !e.Lease.Terminal() {
			t.Errorf("%s ends a lease as %s, which is not an end", e.Reason, e.Lease)
		}
		if e.Fault == FaultUser && e.Lease == LeaseFailed && e.Next == "" {
			t.Errorf("%s does not say what the submitter can do", e.Reason)
		}
		if !slices.Contains(constants(t, "ends.go", "Fault"), string(e.Fault)) ||
			!slices.Contains(constants(t, "ends.go", "Counter"), string(e.Counter)) ||
			!slices.Contains(constants(t, "ends.go", "Charge"), string(e.Charge)) {
			t.Errorf("%s: unknown fault, counter or charge: %+v", e.Reason, e)
		}
		// Whatever a live lease is doing, it can end so; only success needs a run.
		for _, from := range []LeaseState{LeaseOffered, LeasePreparing, LeaseRunning, LeaseFinishing} {
			early := e.Lease == LeaseSucceeded && (from == LeaseOffered || from == LeasePreparing)
			if err := from.To(e.Lease); (err != nil) != early {
				t.Errorf("%s of a lease that is %s: %v", e.Reason, from, err)
			}
		}
		// Nobody pays for work that was lost.
		if e.Charge == ChargeFull && (e.Fault == FaultNode || e.Fault == FaultOwner || e.Fault == FaultGrid) {
			t.Errorf("%s is the %s's fault and charged in full", e.Reason, e.Fault)
		}
		// An end that is nobody's doing but the user's uses up no one else's retries.
		if e.Fault == FaultUser && (e.Counter == CountNode || e.Counter == CountInterruption || e.Counter == CountFree) {
			t.Errorf("%s is the user's fault and counts as %s", e.Reason, e.Counter)
		}
		if e.Counter == CountUser && e.Fault != FaultUser {
			t.Errorf("%s counts against the user and is the %s's fault", e.Reason, e.Fault)
		}
		if e.Counter == CountFree && e.Reason != EndGangBroken && e.Charge != ChargeNothing {
			t.Errorf("%s never started and is charged", e.Reason)
		}
	}
	want := constants(t, "ends.go", "EndReason")
	slices.Sort(rows)
	slices.Sort(want)
	if !slices.Equal(rows, want) {
		t.Errorf("the table has %q,\nthe constants are %q", rows, want)
	}
	if _, known := EndOf("nonsense"); known {
		t.Error("a reason that is not there is known")
	}
}

// next is what should become of a job, written down apart from AfterEnd.
func next(from JobState, e End, p RetryPolicy, c RetryCounts) (state JobState, n, limit int) {
	switch {
	case from == JobCancelling, e.Reason == EndCancelled:
		return JobCancelled, 0, 0
	case e.Reason == EndCompleted:
		return JobSucceeded, 0, 0
	}
	switch e.Counter {
	case CountUser:
		n, limit = c.User, p.User
	case CountNode:
		n, limit = c.Node, p.Node
	case CountInterruption:
		n, limit = c.Interruption, p.Interruption
	case CountFree:
		return JobQueued, 0, 1
	case CountNever:
		return JobFailed, 0, 0
	}
	if n < limit {
		return JobQueued, n, limit
	}
	return JobFailed, n, limit
}

func TestAfterEndExhaustively(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	counts := []int{0, 1, 2, 3, 19, 20, 21, 63, 64, 65, 1000}
	for _, from := range []JobState{JobLeased, JobRunning, JobCancelling} {
		for _, e := range Ends() {
			for _, n := range counts {
				for _, limit := range counts {
					c := RetryCounts{User: n, Node: n, Interruption: n}
					p := RetryPolicy{User: limit, Node: limit, Interruption: limit}
					v := AfterEnd(from, e.Reason, p, c, rng)
					name := fmt.Sprintf("%s, %s, %d of %d", from, e.Reason, n, limit)
					state, _, _ := next(from, e, p, c)
					if v.State != state {
						t.Fatalf("%s: %s, want %s", name, v.State, state)
					}
					counted := v.State == JobQueued && e.Counter != CountFree
					want := c
					if counted {
						switch e.Counter {
						case CountUser:
							want.User++
						case CountNode:
							want.Node++
						case CountInterruption:
							want.Interruption++
						}
					}
					if v.Counts != want {
						t.Fatalf("%s: counts %+v, want %+v", name, v.Counts, want)
					}
					if v.Pause < 0 || v.Pause > longestPause || (v.Pause != 0) != counted {
						t.Fatalf("%s: pause %s", name, v.Pause)
					}
					// A result of a job that never started and a cancellation that
					// nobody ordered are for the store to refuse, by these tables.
					impossible := from == JobLeased && e.Reason == EndCompleted || from == JobRunning && e.Reason == EndCancelled
					if err := from.To(v.State); (err != nil) != impossible {
						t.Fatalf("%s: %v", name, err)
					}
				}
			}
		}
	}
}

// TestCapsAreExact: a policy of n retries gives n+1 attempts, whatever else
// went wrong in between.
func TestCapsAreExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, e := range Ends() {
		for _, limit := range []int{0, 1, 2, 8} {
			p := RetryPolicy{User: limit, Node: limit, Interruption: limit}
			var c RetryCounts
			attempts := 0
			for state := JobQueued; state == JobQueued && attempts < 50; {
				attempts++
				v := AfterEnd(JobRunning, e.Reason, p, c, rng)
				state, c = v.State, v.Counts
			}
			want := limit + 1
			switch e.Counter {
			case CountNever:
				want = 1
			case CountFree:
				want = 50
			}
			if attempts != want {
				t.Errorf("%s with a cap of %d: %d attempts, want %d", e.Reason, limit, attempts, want)
			}
		}
	}
	// Classes are counted apart.
	p := RetryPolicy{User: 1, Node: 1, Interruption: 1}
	var c RetryCounts
	for _, r := range []EndReason{EndExitNonzero, EndNodeError, EndNodeLost} {
		v := AfterEnd(JobRunning, r, p, c, rng)
		if v.State != JobQueued {
			t.Fatalf("%s used up another class's retries", r)
		}
		c = v.Counts
	}
	for _, r := range []EndReason{EndExitNonzero, EndNodeError, EndNodeLost} {
		if v := AfterEnd(JobRunning, r, p, c, rng); v.State != JobFailed {
			t.Errorf("%s: %s after its cap", r, v.State)
		}
	}
}

func TestPausesGrowAndAreJittered(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	p := RetryPolicy{User: 1000, Node: 1000, Interruption: 1000}
	for _, c := range []struct {
		reason EndReason
		first  time.Duration
		count  func(n int) RetryCounts
	}{
		{EndExitNonzero, time.Second, func(n int) RetryCounts { return RetryCounts{User: n} }},
		{EndNodeError, time.Second, func(n int) RetryCounts { return RetryCounts{Node: n} }},
		{EndNodeLost, 50 * time.Millisecond, func(n int) RetryCounts { return RetryCounts{Interruption: n} }},
	} {
		whole := c.first
		for n := range 100 {
			low, high := longestPause, time.Duration(0)
			for range 200 {
				pause := AfterEnd(JobRunning, c.reason, p, c.count(n), rng).Pause
				low, high = min(low, pause), max(high, pause)
			}
			if low < whole/2 || high > whole {
				t.Fatalf("%s, retry %d: from %s to %s, want within %s to %s", c.reason, n, low, high, whole/2, whole)
			}
			if high-low < whole/4 {
				t.Fatalf("%s, retry %d: from %s to %s is no jitter", c.reason, n, low, high)
			}
			whole = min(2*whole, 5*time.Minute)
		}
	}
	// The same seed gives the same pause: placement replays.
	a := AfterEnd(JobRunning, EndNodeLost, p, RetryCounts{}, rand.New(rand.NewPCG(7, 8)))
	b := AfterEnd(JobRunning, EndNodeLost, p, RetryCounts{}, rand.New(rand.NewPCG(7, 8)))
	if a != b {
		t.Errorf("%+v and %+v", a, b)
	}
}

func TestAfterEndPanicsOnUnknownReason(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	AfterEnd(JobRunning, "nonsense", RetryPolicy{}, RetryCounts{}, rand.New(rand.NewPCG(1, 1)))
}
