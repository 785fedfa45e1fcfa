package hub_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/internal/pgtest"
	"offpeak/wire"
)

// after submits a job that waits for others.
func (g *grid) after(spec offpeak.Spec, jobs ...offpeak.JobID) offpeak.JobID {
	g.t.Helper()
	var list []offpeak.After
	for _, id := range jobs {
		list = append(list, offpeak.After{Job: id})
	}
	j, err := g.hub.Submit(g.t.Context(), g.op(), g.account, spec, list...)
	must(g.t, err)
	return j.ID
}

// does runs the next offered job to an end and returns it.
func (a *agent) does(reason offpeak.EndReason) offpeak.JobID {
	a.g.t.Helper()
	d := a.offered()
	a.accept(d)
	a.run(d)
	a.end(d, reason)
	return d.Job
}

// A job is offered at the moment the last that it waits for has ended, and not
// before; explain names what it waits for.
func TestJobBeginsAfterOthers(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		spec := small()
		spec.Name = "prepare"
		first := g.submit(spec)
		time.Sleep(time.Millisecond) // of two at the same moment either goes first
		second := g.submit(small())
		child := g.after(small(), first, second)
		e, err := g.hub.Explain(t.Context(), g.account, child)
		must(t, err)
		if want := fmt.Sprintf("It waits for 2 jobs to succeed: %s (prepare) is leased, %s is queued.", first, second); !strings.HasPrefix(e.Summary, want) {
			t.Errorf("explain says %q, want %q…", e.Summary, want)
		}
		a.does(offpeak.EndCompleted)
		if got := g.job(child).State; got != offpeak.JobBlocked {
			t.Fatalf("the job is %s after one of two", got)
		}
		a.does(offpeak.EndCompleted)
		began := time.Now()
		if d := a.offered(); d.Job != child || time.Since(began) > 0 {
			t.Fatalf("offered %s after %s, want %s at once", d.Job, time.Since(began), child)
		}
	})
}

// A hub that starts anew knows what waits; nothing that ended meanwhile is missed.
func TestWaitingJobsSurviveARestart(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		parent := g.submit(small())
		child := g.after(small(), parent)
		grandchild := g.after(small(), child)
		d := a.offered()
		a.accept(d)
		a.run(d)
		g.stop()
		g.start()
		a.beat(d.Lease)
		a.end(d, offpeak.EndCompleted)
		if got := a.does(offpeak.EndExitNonzero); got != child {
			t.Fatalf("%s ran, want %s", got, child)
		}
		j, err := g.hub.WaitJob(t.Context(), g.account, grandchild, time.Minute)
		must(t, err)
		if j.Reason != offpeak.EndDependencyFailed {
			t.Fatalf("the job that waits for a failed one is %+v", j)
		}
		e, err := g.hub.Explain(t.Context(), g.account, grandchild)
		must(t, err)
		if !strings.Contains(e.Summary, string(child)) || !strings.Contains(e.Summary, "offpeak retry") {
			t.Errorf("explain says %q, want it to name %s and what to do", e.Summary, child)
		}
	})
}

// Whoever waits for a job's end hears of it, also where it is one that never began.
func TestWaitersHearOfWhatCannotBegin(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		parent := g.submit(small())
		child := g.after(small(), g.after(small(), parent))
		done := make(chan offpeak.Job)
		go func() {
			j, err := g.hub.WaitJob(t.Context(), g.account, child, time.Minute)
			must(t, err)
			done <- j
		}()
		synctest.Wait()
		began := time.Now()
		_, err := g.hub.Cancel(t.Context(), g.op(), g.account, parent)
		must(t, err)
		if j := <-done; j.State != offpeak.JobFailed || time.Since(began) > 0 {
			t.Errorf("after %s the job is %s, want it failed at once", time.Since(began), j.State)
		}
	})
}

// More jobs than one transaction tells are told within moments, also by a hub that
// did not write the end.
func TestManyWaitForOne(t *testing.T) {
	for _, restart := range []bool{false, true} {
		bubbled := func(t *testing.T, g *grid) {
			a := g.join("one")
			parent := g.submit(small())
			const many = 700
			for range many {
				g.after(small(), parent)
			}
			a.does(offpeak.EndCompleted)
			if restart {
				g.stop()
				g.start()
			}
			time.Sleep(15 * time.Second)
			counts, err := g.store.CountJobs(t.Context(), "")
			must(t, err)
			if counts[offpeak.JobBlocked] != 0 || counts[offpeak.JobQueued]+counts[offpeak.JobLeased] != many {
				t.Errorf("jobs %v, want %d that wait for nobody", counts, many)
			}
		}
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) { bubble(t, hub.Config{}, bubbled) })
	}
}

// The answer to an end is lost after it was stored: what it freed is found.
func TestFreedByALostAnswer(t *testing.T) {
	withFlaky(t, func(t *testing.T, g *grid, f *flaky, _ *atomic.Int64) {
		a := g.join("one")
		parent := g.submit(small())
		child := g.after(small(), parent)
		d := a.offered()
		a.accept(d)
		a.run(d)
		f.loseReport.Store(true)
		end := func() error {
			_, err := a.report(d, "ended", func(r *wire.Report) { r.Reason, r.Started = offpeak.EndCompleted, true })
			return err
		}
		if end() == nil {
			t.Fatal("the answer was not lost")
		}
		a.seq-- // it says the same again
		must(t, end())
		if d := a.offered(); d.Job != child {
			t.Errorf("offered %s, want %s", d.Job, child)
		}
	})
}

// An end that one hub writes frees a job that another one matches.
func TestFreedByAnotherHub(t *testing.T) {
	hubs := several(t, 2, pgtest.Start(t).Database(t), hub.Config{Timeout: time.Minute, Offer: time.Minute}, nil)
	for i, g := range hubs {
		a := g.join(string(rune('a' + i)))
		for k, at := range hubs {
			parent := g.submit(small())
			child := hubs[1-i].after(small(), parent)
			other := a.at(at)
			if got := other.does(offpeak.EndCompleted); got != parent {
				t.Fatalf("%s ran, want %s", got, parent)
			}
			began := time.Now()
			if got := other.does(offpeak.EndCompleted); got != child {
				t.Fatalf("%s ran, want %s", got, child)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("hub %d, ended at hub %d: the job began %s after the end", i, k, took)
			}
			a.seq = other.seq
		}
		_, err := g.hub.SetIntent(t.Context(), g.op(), g.account, a.id, wire.IntentChange{Intent: offpeak.NodeClosed})
		must(t, err)
	}
	for _, g := range hubs {
		g.sound()
	}
}

func TestPipelineIsOneOperation(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		step := func(name string, after ...string) offpeak.Step {
			s := offpeak.Step{Spec: small(), From: after}
			s.Name = name
			return s
		}
		p := offpeak.Pipeline{Name: "p", Steps: []offpeak.Step{step("last", "middle"), step("middle", "first"), step("first")}}
		op := g.op()
		made, err := g.hub.SubmitPipeline(t.Context(), op, g.account, p)
		must(t, err)
		again, err := g.hub.SubmitPipeline(t.Context(), op, g.account, p)
		must(t, err)
		if again.ID != made.ID || len(again.Jobs) != 3 || made.Jobs[0].Spec.Name != "last" || made.Jobs[0].State != offpeak.JobBlocked || made.Jobs[0].Spec.Labels["pipeline"] != "p" {
			t.Errorf("made %+v, then %+v", made, again)
		}
		_, err = g.hub.SubmitPipeline(t.Context(), g.op(), g.account, offpeak.Pipeline{Steps: []offpeak.Step{step("a", "b"), step("b", "a")}})
		if err == nil || !strings.Contains(err.Error(), "a waits for b waits for a") {
			t.Errorf("a circle: %v", err)
		}
		a := g.join("one")
		a.does(offpeak.EndCompleted)
		a.does(offpeak.EndExitNonzero)
		got, err := g.hub.Pipeline(t.Context(), g.account, made.ID)
		must(t, err)
		for i, want := range []offpeak.JobState{offpeak.JobFailed, offpeak.JobFailed, offpeak.JobSucceeded} {
			if got.Jobs[i].State != want {
				t.Errorf("step %s is %s, want %s", got.Jobs[i].Spec.Name, got.Jobs[i].State, want)
			}
		}
		op = g.op()
		retried, err := g.hub.RetryPipeline(t.Context(), op, g.account, made.ID)
		must(t, err)
		twice, err := g.hub.RetryPipeline(t.Context(), op, g.account, made.ID)
		must(t, err)
		if retried.ID == made.ID || twice.ID != retried.ID || len(retried.Jobs) != 2 || retried.Jobs[0].State != offpeak.JobBlocked {
			t.Errorf("retried %+v", retried)
		}
		a.does(offpeak.EndCompleted)
		d := a.offered()
		if d.Job != retried.Jobs[0].ID || len(d.Work.Inputs) != 1 || d.Work.Inputs[0].Into != "middle" {
			t.Errorf("offered %+v, want the last step with what the middle one made", d)
		}
		cancelled, err := g.hub.CancelPipeline(t.Context(), g.op(), g.account, retried.ID)
		must(t, err)
		if cancelled.Jobs[0].State != offpeak.JobCancelled || cancelled.Jobs[1].State != offpeak.JobSucceeded {
			t.Errorf("cancelled %+v", cancelled)
		}
	})
}

// A pipeline that is cancelled ends so in every step, whatever waits for what.
func TestCancelPipeline(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		var p offpeak.Pipeline
		for i := range 20 {
			s := offpeak.Step{Spec: small()}
			s.Name = fmt.Sprint("s", i)
			if i > 0 {
				s.After = []string{fmt.Sprint("s", (i-1)/2)}
			}
			p.Steps = append(p.Steps, s)
		}
		made, err := g.hub.SubmitPipeline(t.Context(), g.op(), g.account, p)
		must(t, err)
		op := g.op()
		for range 2 {
			got, err := g.hub.CancelPipeline(t.Context(), op, g.account, made.ID)
			must(t, err)
			for _, j := range got.Jobs {
				if j.State != offpeak.JobCancelled {
					t.Errorf("step %s is %s", j.Spec.Name, j.State)
				}
			}
		}
	})
}

// What an end frees may go before the job to which that end would leave the node.
func TestFreedJobGoesBeforeTheNext(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		parent := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		next := g.submit(small())
		urgent := small()
		urgent.Priority = 10
		child := g.after(urgent, parent)
		a.end(d, offpeak.EndCompleted)
		for _, want := range []offpeak.JobID{child, next} {
			if got := a.does(offpeak.EndCompleted); got != want {
				t.Errorf("%s ran, want %s", got, want)
			}
		}
	})
}
