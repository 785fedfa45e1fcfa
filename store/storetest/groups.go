package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// groupID makes a group's id whose members' ids follow from it.
func (g *grid) groupID() offpeak.GroupID {
	return offpeak.NewGroupID("group_" + fmt.Sprintf("%026d", g.n.Add(1)*10_000))
}

func indexes(t testing.TB, s string) offpeak.Indexes {
	t.Helper()
	x, err := offpeak.ParseIndexes(s)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (g *grid) submitGroup(n store.NewGroup) store.Filled {
	g.Helper()
	if n.ID == "" {
		n.ID = g.groupID()
	}
	n.Account = g.account
	if n.RetryOf == "" {
		n.Spec = spec()
	}
	f, err := g.SubmitGroup(context.Background(), g.op(), n)
	if err != nil {
		g.Fatalf("SubmitGroup: %v", err)
	}
	return f
}

func (g *grid) group(id offpeak.GroupID) offpeak.Group {
	g.Helper()
	out, err := g.Group(context.Background(), "", id)
	if err != nil {
		g.Fatalf("Group: %v", err)
	}
	return out
}

// run runs a member to its end.
func (g *grid) starts(j offpeak.JobID, node offpeak.NodeID, reason offpeak.EndReason) store.Change {
	g.Helper()
	l := g.claim(j, g.job(j).Attempt+1, node)
	g.accept(l)
	return g.ended(l, reason, 0)
}

func groups(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	f := g.submitGroup(store.NewGroup{Array: offpeak.Array{Indexes: indexes(t, "3,7,10-12")}})
	id := f.Group.ID
	if f.Left != 0 || len(f.Queued) != 5 || f.Group.Members != 5 || f.Group.Size != 5 || f.Group.State != offpeak.JobQueued || f.Group.Counts[offpeak.JobQueued] != 5 {
		t.Fatalf("SubmitGroup = %+v", f)
	}
	j := g.job(id.Member(10))
	if j.Group != string(id) || j.Index != 10 || j.State != offpeak.JobQueued || j.Spec.Task.Driver != "process" || j.Params != nil {
		t.Errorf("a member = %+v", j)
	}
	_, err := g.Job(ctx, "", id.Member(9))
	refused(t, "Job of an index that is none", err, offpeak.ErrNotFound)
	var queued []offpeak.JobID
	for q, err := range g.Queue(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		queued = append(queued, q.Job)
	}
	if len(queued) != 5 || queued[0] != id.Member(3) || queued[4] != id.Member(12) {
		t.Errorf("Queue = %v", queued)
	}
	g.starts(id.Member(3), n.ID, offpeak.EndCompleted)
	g.starts(id.Member(7), n.ID, offpeak.EndExitNonzero)
	l := g.claim(id.Member(10), 1, n.ID)
	if _, held, err := g.Assignments(ctx, n.ID); err != nil || len(held) != 1 || held[0].Member["OFFPEAK_ARRAY_INDEX"] != "10" || held[0].Member["OFFPEAK_ARRAY_SIZE"] != "5" || held[0].Member["OFFPEAK_GROUP"] != string(id) {
		t.Errorf("Assignments = %+v, %v", held, err)
	}
	got := g.group(id)
	want := map[offpeak.JobState]int{offpeak.JobSucceeded: 1, offpeak.JobFailed: 1, offpeak.JobLeased: 1, offpeak.JobQueued: 2}
	if len(got.Counts) != len(want) || got.State != offpeak.JobRunning {
		t.Errorf("Group = %+v, want %v", got, want)
	}
	for s, n := range want {
		if got.Counts[s] != n {
			t.Errorf("%d members are %s, want %d", got.Counts[s], s, n)
		}
	}
	_, err = g.Group(ctx, g.other(), id)
	refused(t, "another account's group", err, offpeak.ErrNotFound)
	_, err = g.SubmitGroup(ctx, g.op(), store.NewGroup{ID: g.groupID(), Account: g.account, RetryOf: id})
	refused(t, "retry of all while some are open", err, offpeak.ErrConflict)
	// What failed again, with its index and what it had.
	again := g.submitGroup(store.NewGroup{RetryOf: id, Failed: true})
	if again.Group.Members != 1 || again.Group.Size != 5 || again.Group.RetryOf != id || again.Group.Array.Indexes.String() != "7" || again.Group.Spec.Task.Driver != "process" {
		t.Errorf("retry of the failed = %+v", again.Group)
	}
	if j := g.job(again.Group.ID.Member(7)); j.RetryOf != id.Member(7) || j.Index != 7 {
		t.Errorf("the repeated member = %+v", j)
	}
	_, err = g.SubmitGroup(ctx, g.op(), store.NewGroup{ID: g.groupID(), Account: g.account, RetryOf: again.Group.ID, Failed: true})
	refused(t, "retry of the failed where none has", err, offpeak.ErrConflict)
	one := g.submitGroup(store.NewGroup{RetryOf: id, Only: indexes(t, "3")})
	if j := g.job(one.Group.ID.Member(3)); one.Group.Members != 1 || j.RetryOf != id.Member(3) || j.State != offpeak.JobQueued {
		t.Errorf("retry of one = %+v, %+v", one.Group, j)
	}
	for only, want := range map[string]error{"3,10": offpeak.ErrConflict, "4": offpeak.ErrNotFound} {
		_, err = g.SubmitGroup(ctx, g.op(), store.NewGroup{ID: g.groupID(), Account: g.account, RetryOf: id, Only: indexes(t, only)})
		refused(t, "retry of "+only, err, want)
	}
	g.starts(one.Group.ID.Member(3), n.ID, offpeak.EndCompleted)
	// Lists: by group, alone, and of groups.
	alone := g.submit(spec())
	ids := func(f store.JobFilter) (out []offpeak.JobID) {
		t.Helper()
		jobs, _, err := g.Jobs(ctx, f, store.Page{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			out = append(out, j.ID)
		}
		return out
	}
	if got := ids(store.JobFilter{Group: again.Group.ID}); !equal(got, []offpeak.JobID{again.Group.ID.Member(7)}) {
		t.Errorf("Jobs of a group = %v", got)
	}
	if got := ids(store.JobFilter{Alone: true}); !equal(got, []offpeak.JobID{alone.ID}) {
		t.Errorf("Jobs alone = %v", got)
	}
	list, next, err := g.Groups(ctx, store.GroupFilter{Account: g.account}, store.Page{Limit: 1})
	if err != nil || len(list) != 1 || list[0].ID != one.Group.ID || next == "" {
		t.Errorf("Groups = %+v, %q, %v", list, next, err)
	}
	list, next, err = g.Groups(ctx, store.GroupFilter{States: []offpeak.JobState{offpeak.JobFailed}}, store.Page{Limit: 10})
	if err != nil || len(list) != 1 || list[0].ID != id || next != "" {
		t.Errorf("Groups with a failed member = %+v, %q, %v", list, next, err)
	}
	// Cancel: who waits at once, who has a lease when its node confirms.
	g.accept(l)
	op := g.op()
	cancelled, err := g.CancelGroup(ctx, op, g.account, id, "enough")
	if err != nil || cancelled.CancelledAt == nil {
		t.Fatalf("CancelGroup = %+v, %v", cancelled, err)
	}
	if u, err := g.UnfinishedGroups(ctx, 10); err != nil || len(u) != 1 || u[0] != (store.UnfinishedGroup{ID: id, Cancel: true}) {
		t.Errorf("UnfinishedGroups = %+v, %v", u, err)
	}
	changed := 0
	for left := true; left; {
		var c []store.Change
		if c, left, err = g.CancelMembers(ctx, id, 2); err != nil {
			t.Fatal(err)
		}
		changed += len(c)
	}
	got = g.group(id)
	if changed != 3 || got.Counts[offpeak.JobCancelled] != 2 || got.Counts[offpeak.JobCancelling] != 1 || got.State != offpeak.JobCancelling {
		t.Errorf("after %d changes the group is %+v", changed, got)
	}
	if u, err := g.UnfinishedGroups(ctx, 10); err != nil || len(u) != 0 {
		t.Errorf("UnfinishedGroups = %+v, %v", u, err)
	}
	if _, err := g.CancelGroup(ctx, op, g.account, id, "enough"); err != nil {
		t.Errorf("CancelGroup again: %v", err)
	}
	g.ended(l, offpeak.EndCancelled, 0)
	if got := g.group(id); got.State != offpeak.JobFailed {
		t.Errorf("at the end the group is %s", got.State)
	}
	g.starts(again.Group.ID.Member(7), n.ID, offpeak.EndCompleted)
	_, err = g.CancelGroup(ctx, g.op(), g.account, again.Group.ID, "")
	refused(t, "CancelGroup of an ended group", err, offpeak.ErrConflict)
	_, err = g.CancelGroup(ctx, g.op(), g.other(), id, "")
	refused(t, "CancelGroup of another account's", err, offpeak.ErrNotFound)
	_, err = g.SubmitGroup(ctx, g.op(), store.NewGroup{ID: g.groupID(), Account: g.other(), RetryOf: id})
	refused(t, "retry of another account's", err, offpeak.ErrNotFound)
}

// A large array is accepted before all its rows are written.
func groupsFill(t *testing.T, g *grid) {
	ctx := context.Background()
	op := g.op()
	n := store.NewGroup{ID: g.groupID(), Account: g.account, Spec: spec(), Array: offpeak.Array{Sweep: []offpeak.Parameter{
		{Name: "lr", Values: []string{"0.1", "0.01"}}, {Name: "seed", Values: make([]string, 300)},
	}}}
	for i := range n.Array.Sweep[1].Values {
		n.Array.Sweep[1].Values[i] = fmt.Sprint(i)
	}
	f, err := g.SubmitGroup(ctx, op, n)
	if err != nil || f.Left == 0 || len(f.Queued)+f.Left != 600 || f.Group.Counts[offpeak.JobQueued] != 600 {
		t.Fatalf("SubmitGroup = %d queued, %d left, %v", len(f.Queued), f.Left, err)
	}
	id := f.Group.ID
	last := g.job(id.Member(599))
	if last.State != offpeak.JobQueued || last.Params["lr"] != "0.01" || last.Params["seed"] != "299" || last.Index != 599 {
		t.Errorf("a member without a row = %+v", last)
	}
	if a, err := g.Attempts(ctx, g.account, last.ID); err != nil || len(a) != 0 {
		t.Errorf("its attempts = %v, %v", a, err)
	}
	_, err = g.Attempts(ctx, g.other(), last.ID)
	refused(t, "its attempts for another account", err, offpeak.ErrNotFound)
	_, err = g.Job(ctx, g.account, id.Member(600))
	refused(t, "Job beyond the array", err, offpeak.ErrNotFound)
	again := n
	again.ID = g.groupID()
	twice, err := g.SubmitGroup(ctx, op, again)
	if err != nil || twice.Group.ID != id || len(twice.Queued) != 0 || twice.Left != f.Left {
		t.Errorf("SubmitGroup again = %+v, %v", twice, err)
	}
	if _, err := g.SetQuota(ctx, g.op(), g.account, offpeak.Quota{Queued: 650}); err != nil {
		t.Fatal(err)
	}
	_, err = g.SubmitGroup(ctx, g.op(), store.NewGroup{ID: g.groupID(), Account: g.account, Spec: spec(), Array: offpeak.Array{Indexes: indexes(t, "0-50")}})
	refused(t, "SubmitGroup over the quota, rows that are not written counted", err, offpeak.ErrQuota)
	more, err := g.FillGroup(ctx, id, 100)
	if err != nil || len(more.Queued) != 100 || more.Left != f.Left-100 || more.Queued[0].Job != id.Member(len(f.Queued)) {
		t.Fatalf("FillGroup = %d queued, %d left, %v", len(more.Queued), more.Left, err)
	}
	// Who cancels the whole cancels what has no row yet.
	if _, err := g.CancelGroup(ctx, g.op(), g.account, id, "enough"); err != nil {
		t.Fatal(err)
	}
	if j := g.job(id.Member(599)); j.State != offpeak.JobCancelled || j.EndedAt == nil {
		t.Errorf("a member without a row = %+v", j)
	}
	if more, err = g.FillGroup(ctx, id, 1000); err != nil || len(more.Queued) != 0 || more.Left != 0 {
		t.Errorf("FillGroup = %d queued, %d left, %v", len(more.Queued), more.Left, err)
	}
	for left := true; left; {
		if _, left, err = g.CancelMembers(ctx, id, 100); err != nil {
			t.Fatal(err)
		}
	}
	if got := g.group(id); got.State != offpeak.JobCancelled || got.Counts[offpeak.JobCancelled] != 600 {
		t.Errorf("Group = %s %v", got.State, got.Counts)
	}
	told := 0
	for cursor := int64(0); ; {
		ev, err := g.Events(ctx, g.account, cursor, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range ev {
			if e.Type == "group.queued" || e.Type == "group.cancelled" {
				told++
			}
			cursor = e.Cursor
		}
		if len(ev) < 1000 {
			break
		}
	}
	if told != 3 {
		t.Errorf("%d events tell of the members, want 3", told)
	}
	// They go together, and their group after them.
	g.clock.Advance(48 * time.Hour)
	for range 3 {
		if _, err := g.Prune(ctx, store.Retention{Jobs: 24 * time.Hour}, 1000); err != nil {
			t.Fatal(err)
		}
	}
	_, err = g.Group(ctx, "", id)
	refused(t, "Group after its members were pruned", err, offpeak.ErrNotFound)
}

// At most so many members of an array hold leases at once, whoever claims.
func groupsAtOnce(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	id := g.submitGroup(store.NewGroup{Array: offpeak.Array{Indexes: indexes(t, "0-4"), AtOnce: 2}}).Group.ID
	for q, err := range g.Queue(ctx) {
		if err != nil || q.Group != id || q.AtOnce != 2 {
			t.Fatalf("Queue = %+v, %v", q, err)
		}
	}
	var claims []store.Claim
	for i := range 3 {
		claims = append(claims, g.ask(id.Member(i), 1, n.ID))
	}
	out, err := g.Claim(ctx, claims)
	if err != nil || out[0].Err != nil || out[0].Room != 1 || out[1].Err != nil || out[1].Room != 0 {
		t.Fatalf("Claim = %+v, %v", out, err)
	}
	refused(t, "Claim of a third", out[2].Err, store.ErrAtOnce)
	g.accept(*out[0].Lease)
	// The end of one lets the next go, in the same transaction too.
	r := g.reportOf(*out[0].Lease, store.ReportEnded)
	then := g.ask(id.Member(2), 1, n.ID)
	r.Reason, r.Started, r.Then = offpeak.EndCompleted, true, &then
	if c := g.report(r); c.Then == nil || c.Then.Err != nil {
		t.Errorf("the next with the end of one = %+v", c.Then)
	}
	out, err = g.Claim(ctx, []store.Claim{g.ask(id.Member(3), 1, n.ID)})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, "Claim of another", out[0].Err, store.ErrAtOnce)
}
