package storetest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// all waits for the whole of an array.
func all(id offpeak.GroupID) offpeak.After { return offpeak.After{Job: offpeak.JobID(id)} }

// anyhow waits for its end, however it ends.
func anyhow(id offpeak.GroupID) offpeak.After {
	return offpeak.After{Job: offpeak.JobID(id), Any: true}
}

// array submits an array of so many members, which may wait.
func (g *grid) array(members string, after ...offpeak.After) offpeak.GroupID {
	g.Helper()
	return g.submitGroup(store.NewGroup{Array: offpeak.Array{Indexes: indexes(g, members)}, After: after}).Group.ID
}

// tends does what a hub does with unfinished arrays.
func (g *grid) tends() (changes []store.Change) {
	g.Helper()
	ctx := context.Background()
	for {
		list, err := g.UnfinishedGroups(ctx, 100)
		if err != nil {
			g.Fatal(err)
		}
		if len(list) == 0 {
			return changes
		}
		for _, u := range list {
			if u.Fill {
				f, err := g.FillGroup(ctx, u.ID, 512)
				if err != nil {
					g.Fatal(err)
				}
				if f.Freed != nil {
					changes = append(changes, f.Freed.Changes...)
				}
			}
			if u.Cancel {
				c, _, err := g.CancelMembers(ctx, u.ID, 100)
				if err != nil {
					g.Fatal(err)
				}
				changes = append(changes, c...)
			}
		}
	}
}

// A job may wait for a whole array: the last end queues it, or fails it.
func wholes(t *testing.T, g *grid) {
	n := g.enrol(0)
	id := g.array("0-2")
	g.run(n, id.Member(0), offpeak.EndCompleted)
	a, b := g.waiting(all(id)), g.waiting(anyhow(id))
	both := g.waiting(all(id), anyhow(g.array("7")))
	if a.State != offpeak.JobBlocked || a.After[0].Job != offpeak.JobID(id) || g.job(a.ID).After[0].Name != "noop" || g.job(a.ID).After[0].State != offpeak.JobRunning {
		t.Errorf("a job after an array = %+v", g.job(a.ID))
	}
	if c := g.run(n, id.Member(2), offpeak.EndCompleted); c.Freed != nil && len(c.Freed.Changes) > 0 {
		t.Errorf("an end that was not the last freed %+v", c.Freed)
	}
	g.stands(a.ID, offpeak.JobBlocked)
	queued, failed := freed(g.run(n, id.Member(1), offpeak.EndCompleted))
	if slices.Sort(queued); !slices.Equal(queued, []offpeak.JobID{a.ID, b.ID}) || len(failed) > 0 {
		t.Errorf("the last end queued %v and failed %v, want %s and %s", queued, failed, a.ID, b.ID)
	}
	g.stands(both.ID, offpeak.JobBlocked)
	// An array that has ended counts at once.
	g.stands(g.waiting(all(id)).ID, offpeak.JobQueued)

	// One that fails is known at the end: until then others may be repeated.
	bad := g.array("3,5")
	a, b = g.waiting(all(bad)), g.waiting(anyhow(bad))
	member := g.waiting(offpeak.After{Job: bad.Member(3), Any: true})
	if queued, _ := freed(g.run(n, bad.Member(3), offpeak.EndExitNonzero)); !slices.Equal(queued, []offpeak.JobID{member.ID}) {
		t.Errorf("the end of a member queued %v, want who waits for that one", queued)
	}
	g.stands(a.ID, offpeak.JobBlocked)
	queued, failed = freed(g.run(n, bad.Member(5), offpeak.EndCompleted))
	if !slices.Equal(queued, []offpeak.JobID{b.ID}) || !slices.Equal(failed, []offpeak.JobID{a.ID}) {
		t.Errorf("the last end queued %v and failed %v", queued, failed)
	}
	if got := g.stands(a.ID, offpeak.JobFailed); got.Reason != offpeak.EndDependencyFailed || !strings.Contains(got.Detail, string(bad)+" (noop) has failed in 1 of its 2 members") {
		t.Errorf("it failed as %+v", got)
	}
	g.stands(g.waiting(all(bad)).ID, offpeak.JobFailed)
	if _, err := g.Submit(context.Background(), g.op(), store.NewJob{ID: "job_x", Account: g.account, Spec: spec(), After: []offpeak.After{all(g.groupID())}}); err == nil || !strings.Contains(err.Error(), "there is no group_") {
		t.Errorf("Submit after an array that is not there = %v", err)
	}
}

// Who cancels an array ends it for those that wait, also where members have no rows.
func wholesCancelled(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	for _, members := range []string{"0-3", "0-599"} {
		id := g.array(members)
		b := g.waiting(anyhow(id))
		a := g.waiting(all(id))
		l := g.claim(id.Member(0), 1, n.ID)
		g.accept(l)
		if _, err := g.CancelGroup(ctx, g.op(), g.account, id, "enough"); err != nil {
			t.Fatal(err)
		}
		g.tends()
		g.stands(a.ID, offpeak.JobBlocked)
		if queued, failed := freed(g.ended(l, offpeak.EndCancelled, 0)); !slices.Equal(queued, []offpeak.JobID{b.ID}) || !slices.Equal(failed, []offpeak.JobID{a.ID}) {
			t.Errorf("%s: the last end queued %v and failed %v", members, queued, failed)
		}
		if got := g.stands(a.ID, offpeak.JobFailed); !strings.Contains(got.Detail, "was cancelled") {
			t.Errorf("it failed as %+v", got)
		}
	}
	// Nobody holds a lease, and not all have rows.
	id := g.array("0-599")
	b, a := g.waiting(anyhow(id)), g.waiting(all(id))
	if _, err := g.CancelGroup(ctx, g.op(), g.account, id, "enough"); err != nil {
		t.Fatal(err)
	}
	g.tends()
	g.stands(a.ID, offpeak.JobFailed)
	g.stands(b.ID, offpeak.JobQueued)
}

// An array may wait: none of its members begins before.
func wholesWait(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	first, second := g.submit(spec()), g.array("0-1")
	op := g.op()
	asked := store.NewGroup{ID: g.groupID(), Account: g.account, Spec: spec(), Array: offpeak.Array{Indexes: indexes(t, "0-99")}, After: []offpeak.After{{Job: first.ID}, anyhow(second)}}
	f, err := g.SubmitGroup(ctx, op, asked)
	if err != nil || len(f.Queued) != 0 || f.Left != 100 || f.Group.State != offpeak.JobBlocked || f.Group.Counts[offpeak.JobBlocked] != 100 || len(f.Group.After) != 2 {
		t.Fatalf("SubmitGroup = %+v, %v", f, err)
	}
	id := f.Group.ID
	again := asked
	again.ID = g.groupID()
	if twice, err := g.SubmitGroup(ctx, op, again); err != nil || twice.Group.ID != id || twice.Group.State != offpeak.JobBlocked {
		t.Errorf("SubmitGroup again = %+v, %v", twice, err)
	}
	if j := g.job(id.Member(42)); j.State != offpeak.JobBlocked || len(j.After) != 2 || j.After[0].Job != first.ID {
		t.Errorf("a member = %+v", j)
	}
	last := g.waiting(all(id))
	if f, err := g.FillGroup(ctx, id, 10); err != nil || len(f.Queued) != 0 || f.Left != 100 {
		t.Errorf("FillGroup = %+v, %v", f, err)
	}
	list, _, err := g.Groups(ctx, store.GroupFilter{States: []offpeak.JobState{offpeak.JobBlocked}}, store.Page{Limit: 10})
	if err != nil || len(list) != 1 || list[0].ID != id {
		t.Errorf("Groups that are blocked = %+v, %v", list, err)
	}
	g.sound()
	// It stays, however long it waits.
	g.clock.Advance(48 * time.Hour)
	if _, err := g.Prune(ctx, store.Retention{Jobs: 24 * time.Hour}, 1000); err != nil {
		t.Fatal(err)
	}
	g.beat(n.ID)
	g.run(n, second.Member(0), offpeak.EndCompleted)
	g.run(n, second.Member(1), offpeak.EndExitNonzero)
	if u, err := g.UnfinishedGroups(ctx, 10); err != nil || len(u) != 0 {
		t.Errorf("UnfinishedGroups = %+v, %v", u, err)
	}
	if c := g.run(n, first.ID, offpeak.EndCompleted); c.Freed == nil || !c.Freed.Fill {
		t.Errorf("the last end freed %+v, want an array to be written", c.Freed)
	}
	g.tends()
	if got := g.group(id); got.State != offpeak.JobQueued || got.Counts[offpeak.JobQueued] != 100 || len(got.After) != 2 || got.After[1].State != offpeak.JobFailed {
		t.Errorf("Group = %+v", got)
	}
	g.run(n, id.Member(42), offpeak.EndCompleted)
	if _, err := g.CancelGroup(ctx, g.op(), g.account, id, ""); err != nil {
		t.Fatal(err)
	}
	g.tends()
	g.stands(last.ID, offpeak.JobFailed)

	// What can't begin any more fails as a whole, and so does what waits for it.
	for _, members := range []string{"0-9", "0-599"} {
		first = g.submit(spec())
		id = g.array(members, offpeak.After{Job: first.ID})
		next := g.array("0-9", all(id))
		a, b := g.waiting(all(next)), g.waiting(anyhow(next))
		g.run(n, first.ID, offpeak.EndExitNonzero)
		if j := g.job(id.Member(3)); j.State != offpeak.JobFailed || j.Reason != offpeak.EndDependencyFailed || j.EndedAt == nil {
			t.Errorf("a member = %+v", j)
		}
		g.tends()
		for _, id := range []offpeak.GroupID{id, next} {
			if got := g.group(id); got.State != offpeak.JobFailed || got.Counts[offpeak.JobFailed] != got.Members || got.CancelledAt != nil {
				t.Errorf("Group = %+v", got)
			}
		}
		if got := g.stands(a.ID, offpeak.JobFailed); !strings.Contains(got.Detail, string(next)) {
			t.Errorf("it failed as %+v", got)
		}
		g.stands(b.ID, offpeak.JobQueued)
		_, err = g.CancelGroup(ctx, g.op(), g.account, id, "")
		refused(t, "CancelGroup of one that has failed", err, offpeak.ErrConflict)
	}
	// It may be cancelled while it waits, and is left alone from then on.
	first = g.submit(spec())
	id = g.array("0-9", offpeak.After{Job: first.ID})
	if _, err := g.CancelGroup(ctx, g.op(), g.account, id, "enough"); err != nil {
		t.Fatal(err)
	}
	g.tends()
	g.run(n, first.ID, offpeak.EndCompleted)
	if got := g.group(id); got.State != offpeak.JobCancelled || got.Counts[offpeak.JobCancelled] != 10 {
		t.Errorf("Group = %+v", got)
	}
	// It may come too late to wait.
	g.stands(g.array("0", offpeak.After{Job: first.ID}).Member(0), offpeak.JobQueued)
	bad := g.submit(spec())
	g.run(n, bad.ID, offpeak.EndExitNonzero)
	id = g.array("0-99", offpeak.After{Job: bad.ID})
	g.tends()
	if got := g.group(id); got.State != offpeak.JobFailed || got.Counts[offpeak.JobFailed] != 100 {
		t.Errorf("Group = %+v", got)
	}
}

// Members that end at once, and jobs that begin to wait meanwhile: each is told once.
func wholesRace(t *testing.T, g *grid) {
	ctx := context.Background()
	for range 5 {
		id := g.array("0-7")
		early := g.waiting(all(id)).ID
		var reports []store.Report
		for i := range 8 {
			l := g.claim(id.Member(i), 1, g.enrol(0).ID)
			g.accept(l)
			r := g.reportOf(l, store.ReportEnded)
			r.Reason, r.Started = offpeak.EndCompleted, true
			reports = append(reports, r)
		}
		late := g.array("0-7")
		for i := range 8 {
			l := g.claim(late.Member(i), 1, g.enrol(0).ID)
			g.accept(l)
			r := g.reportOf(l, store.ReportEnded)
			r.Reason, r.Started = offpeak.EndCompleted, true
			reports = append(reports, r)
		}
		ids := []offpeak.JobID{early}
		times := map[offpeak.JobID]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, r := range reports {
			wg.Go(func() {
				c, err := g.Report(ctx, r)
				if err != nil {
					t.Errorf("Report: %v", err)
				}
				queued, _ := freed(c)
				mu.Lock()
				defer mu.Unlock()
				for _, id := range queued {
					times[id]++
				}
			})
		}
		for _, of := range []offpeak.GroupID{late, late, id, late} {
			j := offpeak.JobID(g.id("job"))
			ids = append(ids, j)
			wg.Go(func() {
				if _, err := g.Submit(ctx, g.op(), store.NewJob{ID: j, Account: g.account, Spec: spec(), After: []offpeak.After{all(of)}}); err != nil {
					t.Errorf("Submit: %v", err)
				}
			})
		}
		wg.Wait()
		for _, id := range ids {
			if g.stands(id, offpeak.JobQueued); times[id] > 1 {
				t.Errorf("job %s was freed %d times", id, times[id])
			}
		}
		if times[early] != 1 {
			t.Errorf("job %s was freed %d times", early, times[early])
		}
	}
}

// More may wait for an array than one transaction tells.
func wholesMany(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	id := g.array("0-1")
	jobs := make([]store.NewJob, 600)
	for i := range jobs {
		jobs[i] = store.NewJob{ID: offpeak.JobID(g.id("job")), Account: g.account, Spec: spec(), After: []offpeak.After{all(id)}, Group: "pipe_many", Index: i}
	}
	if _, err := g.SubmitAll(ctx, g.op(), jobs); err != nil {
		t.Fatal(err)
	}
	g.run(n, id.Member(0), offpeak.EndCompleted)
	c := g.run(n, id.Member(1), offpeak.EndCompleted)
	queued, _ := freed(c)
	if len(queued) == 0 || len(queued) > 300 || !c.Freed.More {
		t.Errorf("the end queued %d, more %v", len(queued), c.Freed.More)
	}
	g.sound()
	for more := true; more; {
		var changes []store.Change
		var err error
		if changes, more, err = g.Free(ctx, 100); err != nil {
			t.Fatal(err)
		}
		for _, f := range changes {
			queued = append(queued, f.Job.ID)
		}
	}
	if slices.Sort(queued); len(slices.Compact(queued)) != 600 {
		t.Errorf("%d were queued, want each once", len(queued))
	}
}

// Who is repeated waits for what the array became, whose members are all to succeed.
func wholesRetried(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	id := g.array("0-3")
	a := g.waiting(offpeak.After{Job: offpeak.JobID(id), Into: "parts"})
	next := g.array("0-1", all(id))
	outputs := map[int]offpeak.Hash{}
	for i, reason := range []offpeak.EndReason{offpeak.EndCompleted, offpeak.EndExitNonzero, offpeak.EndExitNonzero, offpeak.EndCompleted} {
		outputs[i] = g.delivers(n, id.Member(i), reason)
	}
	g.tends()
	g.stands(a.ID, offpeak.JobFailed)
	retry := func() (offpeak.Job, error) {
		return g.Submit(ctx, g.op(), store.NewJob{ID: offpeak.JobID(g.id("job")), Account: g.account, Spec: spec(), RetryOf: a.ID})
	}
	_, err := retry()
	refused(t, "a retry before the array's", err, offpeak.ErrConflict)
	_, err = g.SubmitGroup(ctx, g.op(), store.NewGroup{ID: g.groupID(), Account: g.account, RetryOf: next})
	refused(t, "an array's retry before that of what it waits for", err, offpeak.ErrConflict)
	// A retry of one of those that failed is not enough.
	one := g.submitGroup(store.NewGroup{RetryOf: id, Only: indexes(t, "2")}).Group.ID
	_, err = retry()
	refused(t, "a retry while a member was not repeated", err, offpeak.ErrConflict)
	g.run(n, one.Member(2), offpeak.EndCompleted)
	rest := g.submitGroup(store.NewGroup{RetryOf: id, Failed: true}).Group.ID
	again, err := retry()
	if err != nil || again.State != offpeak.JobBlocked || again.After[0].Job != offpeak.JobID(rest) {
		t.Fatalf("retry = %+v, %v; want it to wait for %s", again, err, rest)
	}
	second := g.submitGroup(store.NewGroup{RetryOf: next})
	if second.Group.State != offpeak.JobBlocked || second.Group.After[0].Job != offpeak.JobID(rest) {
		t.Errorf("the array's retry = %+v", second.Group)
	}
	outputs[1] = g.delivers(n, rest.Member(1), offpeak.EndCompleted)
	outputs[2] = g.delivers(n, rest.Member(2), offpeak.EndCompleted)
	g.tends()
	g.stands(second.Group.ID.Member(1), offpeak.JobQueued)
	// It takes the newest outputs of each.
	l := g.claim(again.ID, 1, n.ID)
	_, held, err := g.Assignments(ctx, n.ID)
	want := []store.Input{{Into: "parts/0", Tree: outputs[0]}, {Into: "parts/1", Tree: outputs[1]}, {Into: "parts/2", Tree: outputs[2]}, {Into: "parts/3", Tree: outputs[3]}, {Into: "parts"}}
	if err != nil || len(held) != 1 || !slices.Equal(held[0].Inputs, want) {
		t.Fatalf("Assignments = %+v, %v; want %v", held, err, want)
	}
	for _, in := range want[:4] {
		if err := g.LeaseReads(ctx, n.ID, l.ID, in.Tree); err != nil {
			t.Errorf("the lease may not read its input: %v", err)
		}
	}
	g.accept(l)
	g.ended(l, offpeak.EndCompleted, 0)
}

// delivers runs a member that leaves outputs.
func (g *grid) delivers(n offpeak.Node, j offpeak.JobID, reason offpeak.EndReason) offpeak.Hash {
	g.Helper()
	l := g.claim(j, 1, n.ID)
	g.accept(l)
	tree, _ := g.tree(g.account, string(j))
	r := g.reportOf(l, store.ReportEnded)
	r.Reason, r.Started, r.Output = reason, true, tree
	g.report(r)
	return tree
}

// Members of an array that waited take outputs too.
func wholesInputs(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	first := g.submit(spec())
	id := g.array("0-1", offpeak.After{Job: first.ID, Into: "in"})
	tree := g.delivers(n, first.ID, offpeak.EndCompleted)
	g.tends()
	l := g.claim(id.Member(1), 1, n.ID)
	_, held, err := g.Assignments(ctx, n.ID)
	if err != nil || len(held) != 1 || !slices.Equal(held[0].Inputs, []store.Input{{Into: "in", Tree: tree}}) {
		t.Errorf("Assignments = %+v, %v", held, err)
	}
	if err := g.LeaseReads(ctx, n.ID, l.ID, tree); err != nil {
		t.Errorf("the lease may not read its input: %v", err)
	}
	big := g.array("0-1000")
	if _, err := g.Submit(ctx, g.op(), store.NewJob{ID: "job_x", Account: g.account, Spec: spec(), After: []offpeak.After{{Job: offpeak.JobID(big), Into: "in"}}}); err == nil || !strings.Contains(err.Error(), "at most 1000 members") {
		t.Errorf("Submit with the outputs of 1001 members = %v", err)
	}
}

// Steps of a pipeline may be arrays, and are repeated by what did not succeed of them.
func wholesSteps(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	first, read, last := offpeak.JobID(g.id("job")), offpeak.JobID(g.groupID()), offpeak.JobID(g.id("job"))
	op := g.op()
	steps := []store.NewJob{
		{ID: first, Account: g.account, Spec: spec(), Group: "pipe_1", Index: 2},
		{ID: read, Account: g.account, Spec: spec(), Array: &offpeak.Array{Indexes: indexes(t, "1-3")}, After: []offpeak.After{{Job: first, Into: "in"}}, Group: "pipe_1"},
		{ID: last, Account: g.account, Spec: spec(), After: []offpeak.After{{Job: read, Into: "read"}}, Group: "pipe_1", Index: 1},
	}
	for range 2 { // the second time it is what it was
		made, err := g.SubmitAll(ctx, op, steps)
		if err != nil || len(made) != 3 || made[1].ID != read || made[1].State != offpeak.JobBlocked || made[1].Group != "pipe_1" || len(made[1].After) != 1 || made[2].State != offpeak.JobBlocked {
			t.Fatalf("SubmitAll = %+v, %v", made, err)
		}
	}
	id := offpeak.GroupID(read)
	list, _, err := g.Groups(ctx, store.GroupFilter{Pipeline: "pipe_1"}, store.Page{Limit: 10})
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Pipeline != "pipe_1" {
		t.Errorf("Groups of the pipeline = %+v, %v", list, err)
	}
	g.delivers(n, first, offpeak.EndCompleted)
	g.tends()
	g.run(n, id.Member(1), offpeak.EndCompleted)
	g.run(n, id.Member(2), offpeak.EndExitNonzero)
	g.run(n, id.Member(3), offpeak.EndCompleted)
	g.stands(last, offpeak.JobFailed)
	again, end := offpeak.JobID(g.groupID()), offpeak.JobID(g.id("job"))
	made, err := g.SubmitAll(ctx, g.op(), []store.NewJob{
		{ID: again, Account: g.account, Spec: spec(), RetryOf: read, Group: "pipe_2"},
		{ID: end, Account: g.account, Spec: spec(), RetryOf: last, Group: "pipe_2", Index: 1},
	})
	if err != nil || made[0].State != offpeak.JobQueued || made[1].State != offpeak.JobBlocked || made[1].After[0].Job != again {
		t.Fatalf("SubmitAll of a retry = %+v, %v", made, err)
	}
	g.tends()
	if got := g.group(offpeak.GroupID(again)); got.Members != 1 || got.Size != 3 || got.RetryOf != id {
		t.Errorf("the repeated array = %+v", got)
	}
	g.run(n, offpeak.GroupID(again).Member(2), offpeak.EndCompleted)
	g.run(n, end, offpeak.EndCompleted)
}
