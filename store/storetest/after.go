package storetest

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// waiting submits a job that waits for others.
func (g *grid) waiting(after ...offpeak.After) offpeak.Job {
	g.Helper()
	j, err := g.Submit(context.Background(), g.op(), store.NewJob{ID: offpeak.JobID(g.id("job")), Account: g.account, Spec: spec(), After: after})
	if err != nil {
		g.Fatalf("Submit: %v", err)
	}
	return j
}

// run has a queued job run to an end.
func (g *grid) run(n offpeak.Node, j offpeak.JobID, reason offpeak.EndReason) store.Change {
	g.Helper()
	l := g.claim(j, g.job(j).Attempt+1, n.ID)
	g.accept(l)
	return g.ended(l, reason, 0)
}

func (g *grid) stands(j offpeak.JobID, want offpeak.JobState) offpeak.Job {
	g.Helper()
	got := g.job(j)
	if got.State != want {
		g.Errorf("job %s is %s (%s %s), want %s", j, got.State, got.Reason, got.Detail, want)
	}
	return got
}

// freed are the jobs that a change queued and failed beside its own.
func freed(c store.Change) (queued, failed []offpeak.JobID) {
	if c.Freed == nil {
		return nil, nil
	}
	for _, f := range c.Freed.Changes {
		if f.Queued != nil {
			queued = append(queued, f.Queued.Job)
		} else {
			failed = append(failed, f.Job.ID)
		}
	}
	return queued, failed
}

func after(t *testing.T, g *grid) {
	n := g.enrol(0)
	a, b := g.submit(spec()), g.submit(spec())
	c := g.waiting(offpeak.After{Job: a.ID}, offpeak.After{Job: b.ID, Any: true})
	if c.State != offpeak.JobBlocked || len(c.After) != 2 || c.After[0].State != offpeak.JobQueued || c.After[0].Name != "noop" {
		t.Errorf("Submit = %+v, want it blocked by two", c)
	}
	for q, err := range g.Queue(context.Background()) {
		if err != nil || q.Job == c.ID {
			t.Errorf("the queue has %s, %v", q.Job, err)
		}
	}
	if queued, failed := freed(g.run(n, a.ID, offpeak.EndCompleted)); len(queued)+len(failed) != 0 {
		t.Errorf("the first end freed %v and failed %v", queued, failed)
	}
	g.stands(c.ID, offpeak.JobBlocked)
	ended := g.run(n, b.ID, offpeak.EndExitNonzero)
	if queued, _ := freed(ended); !slices.Equal(queued, []offpeak.JobID{c.ID}) {
		t.Errorf("the last end queued %v, want %s", queued, c.ID)
	}
	if q := ended.Freed.Changes[0].Queued; q.Requirements.CPU != 1000 || q.Driver != "process" || !q.Submitted.Equal(c.SubmittedAt) {
		t.Errorf("queued = %+v, want all that matching needs", q)
	}
	got := g.stands(c.ID, offpeak.JobQueued)
	if len(got.After) != 2 || got.After[0].State != offpeak.JobSucceeded || got.After[1].State != offpeak.JobFailed || !got.After[1].Any {
		t.Errorf("After = %+v", got.After)
	}
	g.run(n, c.ID, offpeak.EndCompleted)
	g.stands(c.ID, offpeak.JobSucceeded)
	// Ended ones count at once.
	if d := g.waiting(offpeak.After{Job: c.ID}, offpeak.After{Job: b.ID, Any: true}); d.State != offpeak.JobQueued {
		t.Errorf("a job after ended ones = %+v, want it queued", d)
	}
	d := g.waiting(offpeak.After{Job: b.ID})
	if d.State != offpeak.JobFailed || d.Reason != offpeak.EndDependencyFailed || !strings.Contains(d.Detail, string(b.ID)) || d.EndedAt == nil {
		t.Errorf("a job after a failed one = %+v, want it failed", d)
	}
	var types []string
	ev, err := g.Events(context.Background(), g.account, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ev {
		if e.Job == c.ID {
			types = append(types, e.Type)
		}
	}
	if len(types) < 2 || types[0] != "job.blocked" || types[1] != "job.queued" {
		t.Errorf("events = %v, want job.blocked, job.queued, …", types)
	}
}

func afterRefused(t *testing.T, g *grid) {
	ctx := context.Background()
	other := g.other()
	op := g.op()
	op.Actor.Account = other
	foreign, err := g.Submit(ctx, op, store.NewJob{ID: "job_foreign", Account: other, Spec: spec()})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []offpeak.JobID{"job_none", foreign.ID} {
		_, err := g.Submit(ctx, g.op(), store.NewJob{ID: "job_x", Account: g.account, Spec: spec(), After: []offpeak.After{{Job: g.submit(spec()).ID}, {Job: id}}})
		var field *offpeak.FieldError
		if !errors.As(err, &field) || field.Field != "after[1].job" || field.Value != string(id) {
			t.Errorf("Submit after %s = %v, want a *FieldError that names it", id, err)
		}
	}
	_, err = g.Job(ctx, g.account, "job_x")
	refused(t, "Job that was refused", err, offpeak.ErrNotFound)
}

// What can't begin any more ends, and so do those that wait for it.
func afterFails(t *testing.T, g *grid) {
	n := g.enrol(0)
	for _, how := range []string{"failed", "cancelled", "lost"} {
		a := g.submit(spec())
		b := g.waiting(offpeak.After{Job: a.ID})
		c := g.waiting(offpeak.After{Job: b.ID})
		last := g.waiting(offpeak.After{Job: c.ID, Any: true}, offpeak.After{Job: a.ID, Any: true})
		apart := g.waiting(offpeak.After{Job: a.ID, Any: true})
		var change store.Change
		switch how {
		case "failed":
			change = g.run(n, a.ID, offpeak.EndExitNonzero)
		case "cancelled":
			var err error
			if change, err = g.Cancel(context.Background(), g.op(), g.account, a.ID, "enough"); err != nil {
				t.Fatal(err)
			}
		case "lost":
			sp := spec()
			sp.Retry = &offpeak.RetryPolicy{}
			a = g.submit(sp)
			b = g.waiting(offpeak.After{Job: a.ID})
			c = g.waiting(offpeak.After{Job: b.ID})
			last = g.waiting(offpeak.After{Job: c.ID, Any: true})
			apart = g.waiting(offpeak.After{Job: a.ID, Any: true})
			g.accept(g.claim(a.ID, 1, n.ID))
			g.clock.Advance(10 * time.Minute)
			changes, err := g.Expire(context.Background(), g.clock.Now(), 10)
			if err != nil || len(changes) != 1 {
				t.Fatalf("Expire = %v, %v", changes, err)
			}
			change = changes[0]
			g.beat(n.ID)
		}
		queued, failed := freed(change)
		slices.Sort(queued)
		if !slices.Equal(queued, []offpeak.JobID{last.ID, apart.ID}) || !slices.Equal(failed, []offpeak.JobID{b.ID, c.ID}) || change.Freed.More {
			t.Errorf("%s: queued %v, failed %v, more %v; want %s and %s queued, %s and %s failed", how, queued, failed, change.Freed.More, last.ID, apart.ID, b.ID, c.ID)
		}
		for _, j := range []offpeak.Job{b, c} {
			if got := g.stands(j.ID, offpeak.JobFailed); got.Reason != offpeak.EndDependencyFailed || got.Attempt != 0 || !strings.Contains(got.Detail, string(got.After[0].Job)) {
				t.Errorf("%s: %+v, want dependency_failed that names %s", how, got, got.After[0].Job)
			}
		}
		g.run(n, last.ID, offpeak.EndCompleted)
		g.run(n, apart.ID, offpeak.EndCompleted)
	}
	// A blocked job may be cancelled, and is left alone from then on.
	a := g.submit(spec())
	b := g.waiting(offpeak.After{Job: a.ID})
	c := g.waiting(offpeak.After{Job: b.ID, Any: true})
	change, err := g.Cancel(context.Background(), g.op(), g.account, b.ID, "")
	if queued, _ := freed(change); err != nil || !slices.Equal(queued, []offpeak.JobID{c.ID}) {
		t.Errorf("Cancel of a blocked job = %+v, %v; want %s queued", change, err, c.ID)
	}
	g.run(n, a.ID, offpeak.EndCompleted)
	g.stands(b.ID, offpeak.JobCancelled)
}

// One end may be that of what a thousand jobs wait for.
func afterMany(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	for _, reason := range []offpeak.EndReason{offpeak.EndCompleted, offpeak.EndExitNonzero} {
		a := g.submit(spec())
		const many = 600
		jobs := make([]store.NewJob, many)
		for i := range jobs {
			jobs[i] = store.NewJob{ID: offpeak.JobID(g.id("job")), Account: g.account, Spec: spec(), After: []offpeak.After{{Job: a.ID}}, Group: g.id("many"), Index: i}
		}
		last := jobs[many-1].ID
		if _, err := g.SubmitAll(ctx, g.op(), jobs); err != nil {
			t.Fatal(err)
		}
		chained := make([]offpeak.JobID, 50)
		for i := range chained {
			chained[i] = g.waiting(offpeak.After{Job: last}).ID
			last = chained[i]
		}
		c := g.run(n, a.ID, reason)
		queued, failed := freed(c)
		if told := len(queued) + len(failed); told == 0 || told > 300 || !c.Freed.More {
			t.Errorf("the end told %d jobs, more %v; want a part of them", told, c.Freed.More)
		}
		g.sound()
		for more := true; more; {
			var changes []store.Change
			var err error
			if changes, more, err = g.Free(ctx, 1000); err != nil {
				t.Fatal(err)
			}
			for _, f := range changes {
				if f.Queued != nil {
					queued = append(queued, f.Job.ID)
				} else {
					failed = append(failed, f.Job.ID)
				}
			}
		}
		if reason == offpeak.EndCompleted {
			if len(queued) != many || len(failed) != 0 {
				t.Errorf("%s: %d queued, %d failed", reason, len(queued), len(failed))
			}
			g.stands(last, offpeak.JobBlocked)
			continue
		}
		if len(failed) != many+len(chained) || len(queued) != 0 {
			t.Errorf("%s: %d queued, %d failed", reason, len(queued), len(failed))
		}
		g.stands(last, offpeak.JobFailed)
	}
}

// Jobs that begin to wait while what they wait for ends are told, one way or the other.
func afterRace(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	for range 10 {
		a := g.submit(spec())
		l := g.claim(a.ID, 1, n.ID)
		g.accept(l)
		r := g.reportOf(l, store.ReportEnded)
		r.Reason, r.Started = offpeak.EndCompleted, true
		ids := make([]offpeak.JobID, 8)
		var all sync.WaitGroup
		for i := range ids {
			ids[i] = offpeak.JobID(g.id("job"))
			all.Go(func() {
				if _, err := g.Submit(ctx, g.op(), store.NewJob{ID: ids[i], Account: g.account, Spec: spec(), After: []offpeak.After{{Job: a.ID}}}); err != nil {
					t.Errorf("Submit: %v", err)
				}
			})
		}
		all.Go(func() {
			if _, err := g.Report(ctx, r); err != nil {
				t.Errorf("Report: %v", err)
			}
		})
		all.Wait()
		for _, id := range ids {
			g.stands(id, offpeak.JobQueued)
		}
	}
}

// Many ends at once free each job that waits for all of them once.
func afterTogether(t *testing.T, g *grid) {
	ctx := context.Background()
	const parents, children = 12, 10
	for range 3 {
		var ends []func() (store.Change, error)
		var list []offpeak.After
		for i := range parents {
			j := g.submit(spec())
			list = append(list, offpeak.After{Job: j.ID, Any: i%2 == 0})
			if i%3 == 0 {
				op := g.op()
				list[i].Any = true
				ends = append(ends, func() (store.Change, error) { return g.Cancel(ctx, op, g.account, j.ID, "") })
				continue
			}
			l := g.claim(j.ID, 1, g.enrol(0).ID)
			g.accept(l)
			r := g.reportOf(l, store.ReportEnded)
			r.Reason, r.Started = offpeak.EndCompleted, true
			ends = append(ends, func() (store.Change, error) { return g.Report(ctx, r) })
		}
		var waits []offpeak.JobID
		for i := range children {
			waits = append(waits, g.waiting(list[i%3:]...).ID)
		}
		var mu sync.Mutex
		times := map[offpeak.JobID]int{}
		var all sync.WaitGroup
		for _, end := range ends {
			all.Go(func() {
				c, err := end()
				if err != nil {
					t.Errorf("end: %v", err)
				}
				queued, failed := freed(c)
				mu.Lock()
				defer mu.Unlock()
				for _, id := range append(queued, failed...) {
					times[id]++
				}
			})
		}
		all.Wait()
		for _, id := range waits {
			if g.stands(id, offpeak.JobQueued); times[id] != 1 {
				t.Errorf("job %s was freed %d times", id, times[id])
			}
		}
	}
}

// Whatever waits for what, and however each ends: every job stands where a look at
// all that it waits for says.
func afterModel(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	for seed := range uint64(6) {
		rng := mathrand.New(mathrand.NewPCG(seed, 7))
		const many = 25
		var jobs []offpeak.JobID
		after := map[offpeak.JobID][]offpeak.After{}
		want := map[offpeak.JobID]offpeak.JobState{}
		stands := func(id offpeak.JobID) offpeak.JobState {
			state := offpeak.JobQueued
			for _, a := range after[id] {
				switch {
				case !want[a.Job].Terminal():
					if state == offpeak.JobQueued {
						state = offpeak.JobBlocked
					}
				case !a.Any && want[a.Job] != offpeak.JobSucceeded:
					state = offpeak.JobFailed
				}
			}
			return state
		}
		settle := func() {
			for _, id := range jobs { // each stands behind those that it waits for
				if want[id] == offpeak.JobBlocked {
					want[id] = stands(id)
				}
			}
		}
		var trail []string
		for step := 0; ; step++ {
			var open []offpeak.JobID
			for _, id := range jobs {
				if !want[id].Terminal() {
					open = append(open, id)
				}
			}
			if len(jobs) == many && len(open) == 0 {
				break
			}
			if len(jobs) < many && (len(open) == 0 || rng.IntN(3) > 0) {
				var list []offpeak.After
				for _, at := range rng.Perm(len(jobs))[:min(len(jobs), rng.IntN(4))] {
					list = append(list, offpeak.After{Job: jobs[at], Any: rng.IntN(2) == 0})
				}
				id := g.waiting(list...).ID
				jobs, after[id] = append(jobs, id), list
				want[id] = stands(id)
				trail = append(trail, fmt.Sprint(id, " after ", list))
			} else {
				id := open[rng.IntN(len(open))]
				how := rng.IntN(3)
				if want[id] == offpeak.JobBlocked {
					how = 2
				}
				switch how {
				case 0:
					g.run(n, id, offpeak.EndCompleted)
					want[id] = offpeak.JobSucceeded
				case 1:
					g.run(n, id, offpeak.EndExitNonzero)
					want[id] = offpeak.JobFailed
				default:
					if _, err := g.Cancel(ctx, g.op(), g.account, id, ""); err != nil {
						t.Fatal(err)
					}
					want[id] = offpeak.JobCancelled
				}
				trail = append(trail, fmt.Sprint(id, " ", want[id]))
				settle()
			}
			for _, id := range jobs {
				if got := g.job(id); got.State != want[id] {
					t.Fatalf("seed %d: job %s is %s, want %s; %s", seed, id, got.State, want[id], strings.Join(trail, "; "))
				}
			}
		}
	}
}

func submitAll(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	step := func(i int, after ...offpeak.After) store.NewJob {
		return store.NewJob{ID: offpeak.JobID(fmt.Sprintf("job_step%d", i)), Account: g.account, Spec: spec(), Group: "pipe_1", Index: i, After: after}
	}
	_, err := g.SubmitAll(ctx, g.op(), []store.NewJob{step(0), step(1, offpeak.After{Job: "job_none"})})
	refused(t, "SubmitAll with one that waits for nobody", err, offpeak.ErrInvalid)
	_, err = g.Job(ctx, "", "job_step0")
	refused(t, "Job of what was refused as a whole", err, offpeak.ErrNotFound)
	op := g.op()
	steps := []store.NewJob{step(0), step(1, offpeak.After{Job: "job_step0"}), step(2, offpeak.After{Job: "job_step1"}, offpeak.After{Job: "job_step0"})}
	made, err := g.SubmitAll(ctx, op, steps)
	if err != nil || len(made) != 3 || made[0].State != offpeak.JobQueued || made[1].State != offpeak.JobBlocked || made[2].Group != "pipe_1" || made[2].Index != 2 {
		t.Fatalf("SubmitAll = %+v, %v", made, err)
	}
	again := slices.Clone(steps)
	for i := range again {
		again[i].ID = offpeak.JobID(g.id("job"))
	}
	if twice, err := g.SubmitAll(ctx, op, again); err != nil || len(twice) != 3 || twice[2].ID != made[2].ID {
		t.Errorf("SubmitAll again = %+v, %v; want the first outcome", twice, err)
	}
	list, _, err := g.Jobs(ctx, store.JobFilter{Group: "pipe_1"}, store.Page{Limit: 10})
	if err != nil || len(list) != 3 || len(list[0].After) != 2 || list[0].Index != 2 {
		t.Errorf("Jobs of the group = %+v, %v", list, err)
	}
	g.run(n, "job_step0", offpeak.EndCompleted)
	g.run(n, "job_step1", offpeak.EndCompleted)
	g.run(n, "job_step2", offpeak.EndCompleted)
	if _, err := g.SetQuota(ctx, g.op(), g.account, offpeak.Quota{Queued: 2}); err != nil {
		t.Fatal(err)
	}
	for i := range again {
		again[i].Group, again[i].After = "pipe_2", nil
	}
	_, err = g.SubmitAll(ctx, g.op(), again)
	refused(t, "SubmitAll over the quota", err, offpeak.ErrQuota)
}

// A job that is submitted again waits for what those that failed became.
func afterRetried(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	good, bad := g.submit(spec()), g.submit(spec())
	c := g.waiting(offpeak.After{Job: good.ID, Into: "good"}, offpeak.After{Job: bad.ID, Into: "bad"})
	g.run(n, good.ID, offpeak.EndCompleted)
	g.run(n, bad.ID, offpeak.EndExitNonzero)
	g.stands(c.ID, offpeak.JobFailed)
	retry := func(of offpeak.JobID) (offpeak.Job, error) {
		return g.Submit(ctx, g.op(), store.NewJob{ID: offpeak.JobID(g.id("job")), Account: g.account, Spec: spec(), RetryOf: of})
	}
	_, err := retry(c.ID)
	refused(t, "a retry before what failed was retried", err, offpeak.ErrConflict)
	if err == nil || !strings.Contains(err.Error(), string(bad.ID)) {
		t.Errorf("%v, want it to name %s", err, bad.ID)
	}
	for range 2 { // the newest retry counts
		if bad, err = retry(bad.ID); err != nil {
			t.Fatal(err)
		}
		if bad.RetryOf == "" || bad.State != offpeak.JobQueued {
			t.Fatalf("retry = %+v", bad)
		}
		if _, err := g.Cancel(ctx, g.op(), g.account, bad.ID, ""); err != nil {
			t.Fatal(err)
		}
	}
	if bad, err = retry(bad.ID); err != nil {
		t.Fatal(err)
	}
	again, err := retry(c.ID)
	if err != nil || again.State != offpeak.JobBlocked || len(again.After) != 2 || again.After[0].Job != good.ID || again.After[1].Job != bad.ID || again.After[1].Into != "bad" {
		t.Fatalf("retry = %+v, %v; want it to wait for %s", again, err, bad.ID)
	}
	g.run(n, bad.ID, offpeak.EndCompleted)
	g.run(n, again.ID, offpeak.EndCompleted)
	g.stands(again.ID, offpeak.JobSucceeded)
}

// The outputs of a job are inputs of one that waits for it, for as long as that is there.
func afterInputs(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	a, none := g.submit(spec()), g.submit(spec())
	b := g.waiting(offpeak.After{Job: a.ID, Into: "data/a"}, offpeak.After{Job: none.ID, Into: "none", Any: true})
	l := g.claim(a.ID, 1, n.ID)
	g.accept(l)
	tree, chunk := g.tree(g.account, "out")
	r := g.reportOf(l, store.ReportEnded)
	r.Reason, r.Started, r.Output = offpeak.EndCompleted, true, tree
	g.report(r)
	g.run(n, none.ID, offpeak.EndExitNonzero)
	late := g.waiting(offpeak.After{Job: a.ID, Into: "late"})
	lease := g.claim(b.ID, 1, n.ID)
	_, held, err := g.Assignments(ctx, n.ID)
	if err != nil || len(held) != 1 || !slices.Equal(held[0].Inputs, []store.Input{{Into: "data/a", Tree: tree}, {Into: "none"}}) {
		t.Fatalf("Assignments = %+v, %v; want the outputs of %s", held, err, a.ID)
	}
	for _, h := range []offpeak.Hash{tree, chunk} {
		if err := g.LeaseReads(ctx, n.ID, lease.ID, h); err != nil {
			t.Errorf("the lease may not read its input: %v", err)
		}
	}
	// The first job goes before those that waited for it.
	g.clock.Advance(25 * time.Hour)
	if _, err := g.Prune(ctx, store.Retention{Jobs: time.Hour}, 100); err != nil {
		t.Fatal(err)
	}
	_, err = g.Job(ctx, "", a.ID)
	refused(t, "a pruned job", err, offpeak.ErrNotFound)
	if got := g.job(b.ID); got.After[0].State != offpeak.JobSucceeded {
		t.Errorf("After = %+v, want it to say how the pruned one ended", got.After)
	}
	for range 2 {
		if refs, err := g.Unused(ctx, 10); err != nil || len(refs) != 0 {
			t.Fatalf("Unused = %v, %v; want nothing", refs, err)
		}
	}
	g.beat(n.ID)
	if _, err := g.Expire(ctx, g.clock.Now(), 10); err != nil {
		t.Fatal(err)
	}
	for _, j := range []offpeak.JobID{b.ID, late.ID} {
		if _, err := g.Cancel(ctx, g.op(), g.account, j, ""); err != nil {
			t.Fatal(err)
		}
	}
	g.clock.Advance(25 * time.Hour)
	if _, err := g.Prune(ctx, store.Retention{Jobs: time.Hour}, 100); err != nil {
		t.Fatal(err)
	}
	if refs, err := g.Unused(ctx, 10); err != nil || len(refs) != 1 || refs[0].Hash != tree {
		t.Errorf("Unused = %v, %v; want the outputs", refs, err)
	}
}
