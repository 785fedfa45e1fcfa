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

// A pipeline's steps may be arrays: its members are matched as soon as they are written,
// and the whole is shown, cancelled and repeated among the jobs.
func TestPipelineWithAnArray(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		step := func(name string, array int, from ...string) offpeak.Step {
			s := offpeak.Step{Spec: small(), From: from}
			if s.Name = name; array > 0 {
				s.Array = &offpeak.Array{Indexes: upTo(array)}
			}
			return s
		}
		p, err := g.hub.SubmitPipeline(t.Context(), g.op(), g.account, offpeak.Pipeline{Steps: []offpeak.Step{
			step("score", 0, "read"), step("read", 3, "split"), step("split", 0),
		}})
		must(t, err)
		read := offpeak.GroupID(p.Jobs[1].ID)
		if !read.Valid() || p.Jobs[1].Spec.Name != "read" || p.Jobs[1].State != offpeak.JobBlocked || p.Jobs[0].After[0].Job != p.Jobs[1].ID {
			t.Fatalf("the pipeline is %+v", p.Jobs)
		}
		if got := a.does(offpeak.EndCompleted); got != p.Jobs[2].ID {
			t.Fatalf("%s ran, want the first step", got)
		}
		for range 3 {
			reason := offpeak.EndCompleted
			d := a.offered()
			if d.Job == read.Member(1) {
				reason = offpeak.EndExitNonzero
			}
			a.accept(d)
			a.run(d)
			a.end(d, reason)
		}
		p, err = g.hub.Pipeline(t.Context(), g.account, p.ID)
		must(t, err)
		if p.Jobs[1].State != offpeak.JobFailed || p.Jobs[1].Detail != "1 of its 3 members have failed" || p.Jobs[0].Reason != offpeak.EndDependencyFailed {
			t.Errorf("the pipeline ended as %+v", p.Jobs)
		}
		again, err := g.hub.RetryPipeline(t.Context(), g.op(), g.account, p.ID)
		must(t, err)
		if got := a.does(offpeak.EndCompleted); len(again.Jobs) != 2 || got != offpeak.GroupID(again.Jobs[1].ID).Member(1) {
			t.Errorf("%s ran of %+v, want the member that failed", got, again.Jobs)
		}
		if got := a.does(offpeak.EndCompleted); got != again.Jobs[0].ID {
			t.Errorf("%s ran, want the last step", got)
		}
		// Cancelled while it waits, each step is cancelled, rather than failed for another.
		p, err = g.hub.SubmitPipeline(t.Context(), g.op(), g.account, offpeak.Pipeline{Steps: []offpeak.Step{step("a", 2), step("b", 100, "a"), step("c", 0, "b")}})
		must(t, err)
		p, err = g.hub.CancelPipeline(t.Context(), g.op(), g.account, p.ID)
		must(t, err)
		for _, j := range p.Jobs[1:] {
			if j.State != offpeak.JobCancelled {
				t.Errorf("step %s is %s %s", j.Spec.Name, j.State, j.Detail)
			}
		}
	})
}
