package hub_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
)

// A job that waits for an array goes at the end of its last member, and explain says
// how the array stands.
func TestJobBeginsAfterAnArray(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		id := g.submitArray(small(), offpeak.Array{Indexes: upTo(100)}).ID
		child := g.after(small(), offpeak.JobID(id))
		for i := range 100 {
			if got := a.does(offpeak.EndCompleted); got == child {
				t.Fatalf("the job that waits ran after %d of 100 members", i)
			}
			if i == 50 {
				e, err := g.hub.Explain(t.Context(), g.account, child)
				must(t, err)
				if want := fmt.Sprintf("It waits for 1 job to succeed: %s is running.", id); !strings.HasPrefix(e.Summary, want) {
					t.Errorf("explain says %q, want %q…", e.Summary, want)
				}
			}
		}
		began := time.Now()
		if d := a.offered(); d.Job != child || time.Since(began) > 0 {
			t.Fatalf("offered %s after %s, want %s at once", d.Job, time.Since(began), child)
		}
	})
}

// An array that waits is handed out once all that it waits for have ended; a job that
// waits for the array hears of one that can't begin.
func TestArrayBeginsAfterOthers(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		for _, reason := range []offpeak.EndReason{offpeak.EndCompleted, offpeak.EndExitNonzero} {
			first := g.submit(small())
			array, err := g.hub.SubmitGroup(t.Context(), g.op(), g.account, small(), offpeak.Array{Indexes: upTo(600)}, offpeak.After{Job: first})
			must(t, err)
			last := g.after(small(), offpeak.JobID(array.ID))
			e, err := g.hub.Explain(t.Context(), g.account, array.ID.Member(7))
			must(t, err)
			if want := fmt.Sprintf("It waits for 1 job to succeed: %s is ", first); array.State != offpeak.JobBlocked || !strings.HasPrefix(e.Summary, want) {
				t.Errorf("the array is %s and explain says %q, want %q…", array.State, e.Summary, want)
			}
			if _, err := g.hub.Cancel(t.Context(), g.op(), g.account, array.ID.Member(7)); err == nil || !strings.Contains(err.Error(), "cancel the whole") {
				t.Errorf("Cancel of a member of an array that waits = %v", err)
			}
			if got := a.does(reason); got != first {
				t.Fatalf("%s ran, want %s", got, first)
			}
			if reason == offpeak.EndCompleted {
				if got := a.does(offpeak.EndCompleted); got != array.ID.Member(0) {
					t.Fatalf("%s ran, want the first member", got)
				}
				_, err := g.hub.CancelGroup(t.Context(), g.op(), g.account, array.ID)
				must(t, err)
				for _, d := range a.holds() {
					a.end(d, offpeak.EndCancelled)
				}
			}
			whole, err := g.hub.WaitGroup(t.Context(), g.account, array.ID, time.Minute)
			must(t, err)
			want := offpeak.JobFailed
			if reason == offpeak.EndCompleted {
				want = offpeak.JobCancelled
			}
			if whole.State != want {
				t.Errorf("the array is %s, want %s", whole.State, want)
			}
			j, err := g.hub.WaitJob(t.Context(), g.account, last, time.Minute)
			must(t, err)
			if j.Reason != offpeak.EndDependencyFailed || !strings.Contains(j.Detail, string(array.ID)) {
				t.Errorf("the job that waits for the array is %+v", j)
			}
			synctest.Wait()
		}
	})
}
