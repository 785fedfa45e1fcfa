package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// gang submits a gang of n.
func (g *grid) gang(n int) offpeak.GroupID {
	g.Helper()
	f := g.submitGroup(store.NewGroup{Array: offpeak.Array{Gang: n}})
	if f.Left != 0 || len(f.Queued) != n || f.Queued[0].Gang != f.Group.ID || f.Group.Array.Gang != n {
		g.Fatalf("SubmitGroup = %+v", f)
	}
	return f.Group.ID
}

// gangAsks are claims for members of a gang, each on the node beside it.
func (g *grid) gangAsks(id offpeak.GroupID, attempt offpeak.Attempt, members []int, nodes ...offpeak.NodeID) (out []store.Claim) {
	for i, index := range members {
		c := g.ask(id.Member(index), attempt, nodes[i])
		c.Gang = id
		out = append(out, c)
	}
	return out
}

// claimAll claims a gang and says how many of it hold leases after it.
func (g *grid) claimAll(claims []store.Claim) (leases []offpeak.Lease, err error) {
	g.Helper()
	out, failed := g.Claim(context.Background(), claims)
	if failed != nil {
		g.Fatalf("Claim: %v", failed)
	}
	for i := range out {
		if err = out[i].Err; err == nil {
			leases = append(leases, *out[i].Lease)
		}
	}
	if len(leases) != 0 && len(leases) != len(claims) {
		g.Errorf("%d of %d claims of a gang were made", len(leases), len(claims))
	}
	return leases, err
}

// mended mends a gang until there is nothing left to do.
func (g *grid) mended(id offpeak.GroupID) (changes []store.Change) {
	g.Helper()
	for more := true; more; {
		c, again, err := g.MendGang(context.Background(), id)
		if err != nil {
			g.Fatalf("MendGang: %v", err)
		}
		changes, more = append(changes, c...), again || len(c) > 0
	}
	return changes
}

func (g *grid) unmended(id offpeak.GroupID) bool {
	g.Helper()
	list, err := g.UnfinishedGroups(context.Background(), 100)
	if err != nil {
		g.Fatalf("UnfinishedGroups: %v", err)
	}
	for _, u := range list {
		if u.ID == id {
			return u.Mend
		}
	}
	return false
}

// whole says whether a gang may be claimed, and who of it is queued.
func (g *grid) whole(id offpeak.GroupID) (queued []int, whole bool) {
	g.Helper()
	list, err := g.Gangs(context.Background(), []offpeak.GroupID{id, "group_none"})
	if err != nil {
		g.Fatalf("Gangs: %v", err)
	}
	for _, q := range list[id].Queued {
		_, index, _ := q.Job.Member()
		queued = append(queued, index)
		if q.Gang != id || q.Group != "" {
			g.Errorf("Gangs lists %+v", q)
		}
	}
	return queued, list[id].Whole
}

// A gang is claimed all or none, whatever keeps one of it back.
func gangs(t *testing.T, g *grid) {
	ctx := context.Background()
	a, b, c := g.enrol(0).ID, g.enrol(0).ID, g.enrol(0).ID
	id := g.gang(3)
	if q, whole := g.whole(id); !whole || len(q) != 3 {
		t.Fatalf("Gang = %v, %v", q, whole)
	}
	none := func(what string, claims []store.Claim, want error) {
		t.Helper()
		leases, err := g.claimAll(claims)
		if refused(t, what, err, want); len(leases) > 0 || g.group(id).Counts[offpeak.JobQueued] != 3 {
			t.Errorf("%s: %d leases, %v", what, len(leases), g.group(id).Counts)
		}
		for _, n := range []offpeak.NodeID{a, b, c} {
			if r := g.node(n).Reserved; r.CPU != 0 {
				t.Errorf("%s: node %s reserves %+v", what, n, r)
			}
		}
	}
	all := []int{0, 1, 2}
	none("a part", g.gangAsks(id, 1, []int{0, 1}, a, b), offpeak.ErrConflict)
	none("one by itself", []store.Claim{g.ask(id.Member(0), 1, a)}, offpeak.ErrConflict)
	none("two on one node", g.gangAsks(id, 1, all, a, b, a), offpeak.ErrConflict)
	none("one member twice", g.gangAsks(id, 1, []int{0, 1, 1}, a, b, c), offpeak.ErrConflict)
	none("a node that is not there", g.gangAsks(id, 1, all, a, b, "node_none"), offpeak.ErrConflict)
	none("another attempt of one", append(g.gangAsks(id, 1, []int{0, 1}, a, b), g.gangAsks(id, 2, []int{2}, c)...), offpeak.ErrConflict)
	used := g.gangAsks(id, 1, all, a, b, c)
	used[2].Lease = used[0].Lease
	none("a lease id twice", used, offpeak.ErrConflict)
	large := g.gangAsks(id, 1, all, a, b, c)
	large[2].Resources.Memory = 9 * offpeak.GiB
	none("more than the last node has", large, offpeak.ErrConflict)
	if _, err := g.SetQuota(ctx, g.op(), g.account, offpeak.Quota{Running: 2}); err != nil {
		t.Fatal(err)
	}
	none("more than the account may", g.gangAsks(id, 1, all, a, b, c), offpeak.ErrQuota)
	if _, err := g.SetQuota(ctx, g.op(), g.account, offpeak.Quota{}); err != nil {
		t.Fatal(err)
	}
	lab, rich := g.account, id
	poor, err := g.CreateAccount(ctx, g.op(), offpeak.Account{ID: "acct_poor", Name: "poor"})
	if err != nil {
		t.Fatal(err)
	}
	g.deposit(poor.ID, 10*offpeak.Credit)
	g.account = poor.ID
	id = g.gang(3)
	dear := g.gangAsks(id, 1, all, a, b, c)
	dear[2].Price = offpeak.MaxPrice
	none("one that the account can't pay", dear, offpeak.ErrFunds)
	g.account, id = lab, rich
	// Others of the batch stand, before and behind one that is lost.
	lone := []offpeak.JobID{g.submit(spec()).ID, g.submit(spec()).ID}
	batch := append([]store.Claim{g.ask(lone[0], 1, a)}, large...)
	batch = append(batch, g.ask(lone[1], 1, c))
	for i := range batch {
		batch[i].Lease = newLease()
	}
	out, err := g.Claim(ctx, batch)
	if err != nil || out[0].Err != nil || out[4].Err != nil || out[1].Err == nil || out[2].Err == nil || out[3].Err == nil {
		t.Fatalf("Claim among others = %+v, %v", out, err)
	}
	g.sound()
	leases, err := g.claimAll(g.gangAsks(id, 1, all, a, b, c))
	if err != nil || len(leases) != 3 {
		t.Fatalf("Claim = %v, %v", leases, err)
	}
	_, held, err := g.Assignments(ctx, b)
	if err != nil || len(held) != 1 || held[0].Member["OFFPEAK_GANG_RANK"] != "1" || held[0].Member["OFFPEAK_GANG_SIZE"] != "3" || held[0].Member["OFFPEAK_ARRAY_INDEX"] != "1" {
		t.Errorf("Assignments = %+v, %v", held, err)
	}
	if q, whole := g.whole(id); whole || len(q) != 0 {
		t.Errorf("Gang once it is claimed = %v, %v", q, whole)
	}
	for _, l := range leases {
		g.accept(l)
		if c := g.ended(l, offpeak.EndCompleted, 0); c.Broken != "" {
			t.Errorf("a member that succeeded broke %s", c.Broken)
		}
	}
	if got := g.group(id); got.State != offpeak.JobSucceeded || g.unmended(id) {
		t.Errorf("Group = %+v", got)
	}
}

// Where a lease of a gang ends so that its member is queued, the others leave their
// nodes; who has succeeded has, and the rest is claimed together.
func gangsBreak(t *testing.T, g *grid) {
	ctx := context.Background()
	var n []offpeak.NodeID
	for range 5 {
		n = append(n, g.enrol(0).ID)
	}
	id := g.gang(5)
	leases, err := g.claimAll(g.gangAsks(id, 1, []int{0, 1, 2, 3, 4}, n...))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases[:4] {
		g.accept(l)
	}
	for _, l := range leases[:3] {
		g.report(g.reportOf(l, store.ReportRunning))
	}
	g.ended(leases[0], offpeak.EndCompleted, 0)
	g.report(g.reportOf(leases[1], store.ReportFinishing))
	g.clock.Advance(time.Second)
	if c := g.ended(leases[2], offpeak.EndOwnerReturned, 1000); c.Broken != id || c.Queued == nil || c.Job.Counts.Interruption != 1 {
		t.Fatalf("the end of one = %+v", c)
	}
	// Whoever starts now finds it: nothing else knows of it.
	if !g.unmended(id) {
		t.Fatal("nobody would mend the gang")
	}
	if q, whole := g.whole(id); whole || len(q) != 1 {
		t.Errorf("Gang = %v, %v", q, whole)
	}
	if _, err := g.claimAll(g.gangAsks(id, 2, []int{2}, n[2])); err == nil {
		t.Error("a part was claimed")
	}
	changes := g.mended(id)
	if len(changes) != 2 || changes[0].Lease.Stop != offpeak.EndGangBroken || changes[1].Queued == nil || changes[1].Lease.Reason != offpeak.EndGangBroken {
		t.Fatalf("MendGang = %+v", changes)
	}
	g.sound()
	if again := g.mended(id); len(again) != 0 {
		t.Errorf("MendGang again = %+v", again)
	}
	g.clock.Advance(time.Second)
	c := g.ended(leases[3], offpeak.EndGangBroken, 0)
	if c.Queued == nil || c.Job.Counts != (offpeak.RetryCounts{}) || c.Job.NotBefore != nil || len(c.Queued.Avoid) != 0 {
		t.Errorf("the end of one that was asked to go = %+v %+v", c.Job, c.Queued)
	}
	// One still has its outputs to send, and is waited for.
	g.mended(id)
	if q, whole := g.whole(id); whole || len(q) != 3 {
		t.Errorf("Gang while one finishes = %v, %v", q, whole)
	}
	if c := g.ended(leases[1], offpeak.EndCompleted, 0); c.Job.State != offpeak.JobSucceeded {
		t.Errorf("one that was finishing = %+v", c.Job)
	}
	g.mended(id)
	if q, whole := g.whole(id); !whole || len(q) != 3 || g.unmended(id) {
		t.Errorf("Gang = %v, %v", q, whole)
	}
	g.clock.Advance(time.Minute)
	for _, node := range n {
		g.beat(node)
	}
	if _, err = g.claimAll(g.gangAsks(id, 2, []int{2, 3, 4}, n[2], n[3], n[4])); err != nil {
		t.Fatal(err)
	}
	// Offers that lapse break it as well; nobody is left to ask.
	g.clock.Advance(time.Minute)
	if ended, err := g.Expire(ctx, g.clock.Now(), 100); err != nil || len(ended) != 3 || ended[0].Broken != id {
		t.Fatalf("Expire = %+v, %v", ended, err)
	}
	if c := g.mended(id); len(c) != 0 || g.unmended(id) {
		t.Errorf("MendGang of one that is all queued = %+v", c)
	}
	for _, node := range n {
		g.beat(node)
	}
	if leases, err = g.claimAll(g.gangAsks(id, 3, []int{2, 3, 4}, n[2], n[3], n[4])); err != nil {
		t.Fatal(err)
	}
	// An agent can't break a gang by itself without end.
	g.accept(leases[0])
	if c := g.ended(leases[0], offpeak.EndGangBroken, 0); c.Lease.Reason != offpeak.EndNodeError {
		t.Errorf("a member that says so unasked ended as %s", c.Lease.Reason)
	}
	g.mended(id)
}

// Where a member fails or is cancelled all others end.
func gangsFail(t *testing.T, g *grid) {
	ctx := context.Background()
	a, b, c := g.enrol(0).ID, g.enrol(0).ID, g.enrol(0).ID
	id := g.gang(3)
	leases, err := g.claimAll(g.gangAsks(id, 1, []int{0, 1, 2}, a, b, c))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases[:2] {
		g.accept(l)
	}
	// One is asked to go first, so that it would be queued again.
	g.ended(leases[0], offpeak.EndOwnerReturned, 0)
	g.mended(id)
	if got := g.job(id.Member(1)); got.State != offpeak.JobLeased {
		t.Fatalf("a member = %+v", got)
	}
	if c := g.ended(leases[1], offpeak.EndExitNonzero, 0); c.Job.State != offpeak.JobFailed || c.Broken != id {
		t.Fatalf("the end of one = %+v", c)
	}
	if _, whole := g.whole(id); whole {
		t.Error("a gang that has failed may be claimed")
	}
	g.mended(id)
	got := g.group(id)
	if got.State != offpeak.JobFailed || got.Counts[offpeak.JobFailed] != 3 || got.Reason != offpeak.EndGangFailed || got.Detail != "member 1 has failed: exit_nonzero" || g.unmended(id) {
		t.Errorf("Group = %+v", got)
	}
	if j := g.job(id.Member(2)); j.Reason != offpeak.EndGangFailed || j.Detail != got.Detail {
		t.Errorf("another member = %+v", j)
	}
	// Those that failed with it run again with it.
	again := g.submitGroup(store.NewGroup{RetryOf: id, Failed: true})
	if again.Group.Members != 3 || again.Group.Array.Gang != 3 || len(again.Queued) != 3 || again.Queued[0].Gang != again.Group.ID {
		t.Errorf("retry of the failed = %+v", again.Group)
	}
	_, err = g.SubmitGroup(ctx, g.op(), store.NewGroup{ID: g.groupID(), Account: g.account, RetryOf: id, Only: indexes(t, "1")})
	refused(t, "retry of one member", err, offpeak.ErrConflict)
	// A member that is cancelled while all run: the others are asked to go.
	id = again.Group.ID
	if leases, err = g.claimAll(g.gangAsks(id, 1, []int{0, 1, 2}, a, b, c)); err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		g.accept(l)
	}
	if _, err := g.Cancel(ctx, g.op(), g.account, id.Member(2), ""); err != nil {
		t.Fatal(err)
	}
	g.ended(leases[2], offpeak.EndCancelled, 0)
	if changes := g.mended(id); len(changes) != 2 || changes[0].Lease.Stop != offpeak.EndGangFailed {
		t.Fatalf("MendGang = %+v", changes)
	}
	for _, l := range leases[:2] {
		if c := g.ended(l, offpeak.EndGangFailed, 0); c.Job.State != offpeak.JobFailed || c.Job.Detail != "member 2 was cancelled" {
			t.Errorf("another member = %+v", c.Job)
		}
	}
	g.mended(id)
	if got := g.group(id); got.State != offpeak.JobFailed || g.unmended(id) {
		t.Errorf("Group = %+v", got)
	}
	// Who cancels the whole cancels each.
	id = g.gang(2)
	if leases, err = g.claimAll(g.gangAsks(id, 1, []int{0, 1}, a, b)); err != nil {
		t.Fatal(err)
	}
	g.accept(leases[0])
	if _, err := g.CancelGroup(ctx, g.op(), g.account, id, ""); err != nil {
		t.Fatal(err)
	}
	for left := true; left; {
		if _, left, err = g.CancelMembers(ctx, id, 10); err != nil {
			t.Fatal(err)
		}
	}
	g.ended(leases[0], offpeak.EndCancelled, 0)
	g.mended(id)
	if got := g.group(id); got.State != offpeak.JobCancelled || got.Reason != "" {
		t.Errorf("Group = %+v", got)
	}
}

// Whoever claims, breaks and mends at once: no gang ever holds part.
func gangsRace(t *testing.T, g *grid) {
	ctx := context.Background()
	var nodes []offpeak.NodeID
	for range 4 {
		nodes = append(nodes, g.enrol(0).ID)
	}
	ids := []offpeak.GroupID{g.gang(3), g.gang(3), g.gang(4)}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for round := range 8 {
				id := ids[(w+round)%len(ids)]
				list, err := g.Gangs(ctx, ids)
				if err != nil {
					t.Errorf("Gangs: %v", err)
				}
				if list[id].Whole {
					var claims []store.Claim
					for i, q := range list[id].Queued {
						c := g.ask(q.Job, q.Attempt+1, nodes[(i+w)%len(nodes)])
						c.Gang = id
						claims = append(claims, c)
					}
					out, err := g.Claim(ctx, claims)
					if err != nil {
						t.Errorf("Claim: %v", err)
						continue
					}
					if out[0].Err == nil {
						// An offer is declined at once.
						r := g.reportOf(*out[w%len(out)].Lease, store.ReportEnded)
						r.Reason = offpeak.EndDeclined
						if _, err := g.Report(ctx, r); err != nil {
							continue // another ended it
						}
					}
				}
				if _, _, err := g.MendGang(ctx, id); err != nil {
					t.Errorf("MendGang: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		g.mended(id)
		if q, whole := g.whole(id); g.unmended(id) || !whole && len(q) > 0 {
			t.Errorf("Gang %s = %v, %v", id, q, whole)
		}
	}
}
