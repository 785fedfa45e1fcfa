package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

func submit(t *testing.T, g *grid) {
	ctx := context.Background()
	_, err := g.Submit(ctx, store.Op{}, store.NewJob{ID: "job_x", Account: g.account, Spec: spec()})
	refused(t, "Submit without an operation id", err, offpeak.ErrInvalid)
	sp := spec()
	sp.Task.Input = hashOf("nowhere")
	_, err = g.Submit(ctx, g.op(), store.NewJob{ID: "job_x", Account: g.account, Spec: sp})
	refused(t, "Submit with an input that is not stored", err, offpeak.ErrBlobMissing)
	sp.Task.Input, _ = g.tree(g.account, "in")
	sp.Labels = map[string]string{"team": "blue"}
	j := g.submit(sp)
	got := g.job(j.ID)
	if got.Spec.Task.Input != sp.Task.Input || got.Spec.Limits.Time != sp.Limits.Time || got.SubmittedBy != "member_1" || got.Group != string(j.ID) {
		t.Errorf("Job = %+v, want what was submitted", got)
	}
	other := g.other()
	_, err = g.Submit(ctx, g.op(), store.NewJob{ID: "job_y", Account: other, Spec: sp})
	refused(t, "Submit with another account's input", err, offpeak.ErrBlobMissing)
	_, err = g.Job(ctx, g.account, "job_x")
	refused(t, "Job that was refused", err, offpeak.ErrNotFound)
	_, err = g.Submit(ctx, g.op(), store.NewJob{ID: "job_z", Account: g.account, Spec: spec(), RetryOf: j.ID})
	refused(t, "Submit as a retry of a job that has not ended", err, offpeak.ErrConflict)
	_, err = g.Submit(ctx, g.op(), store.NewJob{ID: "job_z", Account: g.account, Spec: spec(), RetryOf: "job_none"})
	refused(t, "Submit as a retry of no job", err, offpeak.ErrNotFound)
}

func submitTwice(t *testing.T, g *grid) {
	ctx := context.Background()
	op := g.op()
	ids := make([]offpeak.JobID, 200)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			j, err := g.Submit(ctx, op, store.NewJob{ID: offpeak.JobID(fmt.Sprintf("job_%d", i)), Account: g.account, Spec: spec()})
			if err != nil {
				t.Errorf("Submit %d: %v", i, err)
			}
			ids[i] = j.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || id == "" {
			t.Fatalf("one operation made jobs %s and %s", ids[0], id)
		}
	}
	n := g.enrol(0)
	g.claim(ids[0], 1, n.ID)
	j, err := g.Submit(ctx, op, store.NewJob{ID: "job_again", Account: g.account, Spec: spec()})
	if err != nil || j.ID != ids[0] || j.State != offpeak.JobQueued || j.Attempt != 0 {
		t.Errorf("Submit again = %+v, %v; want the first outcome", j, err)
	}
	counts, err := g.CountJobs(ctx, g.account)
	if err != nil || counts[offpeak.JobLeased] != 1 || len(counts) != 1 {
		t.Errorf("CountJobs = %v, %v; want one leased", counts, err)
	}
	other := op
	other.Digest[0] ^= 1
	_, err = g.Submit(ctx, other, store.NewJob{ID: "job_o", Account: g.account, Spec: spec()})
	refused(t, "Submit with the id of another request", err, offpeak.ErrOperationConflict)
	other = op
	other.Actor.Account = g.other()
	_, err = g.Submit(ctx, other, store.NewJob{ID: "job_o", Account: other.Actor.Account, Spec: spec()})
	refused(t, "Submit with the id of another account's request", err, offpeak.ErrOperationConflict)
}

func quotas(t *testing.T, g *grid) {
	ctx := context.Background()
	if _, err := g.SetQuota(ctx, g.op(), g.account, offpeak.Quota{Storage: 100, Queued: 3, Running: 1}); err != nil {
		t.Fatal(err)
	}
	a, b := g.submit(spec()), g.submit(spec())
	g.submit(spec())
	_, err := g.Submit(ctx, g.op(), store.NewJob{ID: "job_x", Account: g.account, Spec: spec()})
	refused(t, "Submit over the quota", err, offpeak.ErrQuota)
	n := g.enrol(0)
	l := g.claim(a.ID, 1, n.ID)
	out, err := g.Claim(ctx, []store.Claim{g.ask(b.ID, 1, n.ID)})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, "Claim over the quota", out[0].Err, offpeak.ErrQuota)
	g.accept(l)
	g.ended(l, offpeak.EndCompleted, 0)
	g.claim(b.ID, 1, n.ID)
	g.submit(spec())
	if err := g.AddBlob(ctx, g.account, hashOf("a"), 60); err != nil {
		t.Fatal(err)
	}
	refused(t, "AddBlob over the quota", g.AddBlob(ctx, g.account, hashOf("b"), 41), offpeak.ErrQuota)
	if err := g.AddBlob(ctx, g.account, hashOf("a"), 60); err != nil {
		t.Errorf("AddBlob of a blob that is there: %v", err)
	}
	if err := g.AddBlob(ctx, g.account, hashOf("b"), 40); err != nil {
		t.Errorf("AddBlob up to the quota: %v", err)
	}
	if acc, err := g.Account(ctx, g.account); err != nil || acc.Stored != 100 {
		t.Errorf("Account = %+v, %v; want 100 bytes stored", acc, err)
	}
}

func cancel(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(1)
	do := func(j offpeak.JobID) store.Change {
		t.Helper()
		c, err := g.Cancel(ctx, g.op(), g.account, j, "enough")
		if err != nil {
			t.Fatalf("Cancel: %v", err)
		}
		return c
	}
	// Queued: at once.
	j := g.submit(spec())
	if c := do(j.ID); c.Job.State != offpeak.JobCancelled || c.Job.Detail != "enough" || c.Job.EndedAt == nil {
		t.Errorf("Cancel of a queued job = %+v", c.Job)
	}
	if c := do(j.ID); c.Job.State != offpeak.JobCancelled || c.Lease != nil {
		t.Errorf("Cancel of a cancelled job = %+v", c)
	}
	// Offered: at once, and the node is free.
	j = g.submit(spec())
	l := g.claim(j.ID, 1, n.ID, "GPU-0")
	if c := do(j.ID); c.Job.State != offpeak.JobCancelled || c.Lease.State != offpeak.LeaseCancelled || c.Node != n.ID {
		t.Errorf("Cancel of an offered job = %+v", c)
	}
	if free, err := g.FreeDevices(ctx, n.ID); err != nil || len(free) != 1 {
		t.Errorf("FreeDevices = %v, %v; want one", free, err)
	}
	_, err := g.Report(ctx, g.reportOf(l, store.ReportAccepted))
	refused(t, "accepting a cancelled offer", err, offpeak.ErrStaleLease)
	// Accepted: the node confirms.
	j = g.submit(spec())
	l = g.claim(j.ID, 1, n.ID)
	g.accept(l)
	op := g.op()
	c, err := g.Cancel(ctx, op, g.account, j.ID, "enough")
	if err != nil || c.Job.State != offpeak.JobCancelling || c.Lease.Stop != offpeak.EndCancelled || c.Node != n.ID {
		t.Errorf("Cancel of an accepted job = %+v, %v", c, err)
	}
	if c := do(j.ID); c.Job.State != offpeak.JobCancelling {
		t.Errorf("Cancel of a cancelling job = %+v", c)
	}
	// The job may finish first: its result is not accepted.
	if c := g.ended(l, offpeak.EndCompleted, 0); c.Job.State != offpeak.JobCancelled || c.Lease.State == offpeak.LeaseSucceeded {
		t.Errorf("the end of a cancelling job = %+v %+v", c.Job, c.Lease)
	}
	if c, err := g.Cancel(ctx, op, g.account, j.ID, "enough"); err != nil || c.Job.State != offpeak.JobCancelling || c.Job.Spec.Task.Driver == "" {
		t.Errorf("Cancel again with the same operation = %+v, %v; want the first outcome", c.Job, err)
	}
	j = g.submit(spec())
	l = g.claim(j.ID, 1, n.ID)
	g.accept(l)
	g.ended(l, offpeak.EndCompleted, 0)
	_, err = g.Cancel(ctx, g.op(), g.account, j.ID, "")
	refused(t, "Cancel of a succeeded job", err, offpeak.ErrConflict)
	_, err = g.Cancel(ctx, g.op(), g.account, "job_none", "")
	refused(t, "Cancel of no job", err, offpeak.ErrNotFound)
}

func lists(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	var want []offpeak.JobID
	for i := range 7 {
		sp := spec()
		sp.Name = fmt.Sprintf("n%d", i%2)
		sp.Labels = map[string]string{"k": fmt.Sprint(i % 3)}
		want = append([]offpeak.JobID{g.submit(sp).ID}, want...)
	}
	g.claim(want[6], 1, n.ID)
	walk := func(f store.JobFilter, limit int) (ids []offpeak.JobID) {
		t.Helper()
		for cursor := ""; ; {
			jobs, next, err := g.Jobs(ctx, f, store.Page{Cursor: cursor, Limit: limit})
			if err != nil {
				t.Fatalf("Jobs: %v", err)
			}
			for _, j := range jobs {
				ids = append(ids, j.ID)
			}
			if next == "" {
				return ids
			}
			cursor = next
		}
	}
	if got := walk(store.JobFilter{}, 3); !equal(got, want) {
		t.Errorf("Jobs = %v, want %v", got, want)
	}
	if got := walk(store.JobFilter{Account: g.account, Name: "n1"}, 1); !equal(got, []offpeak.JobID{want[1], want[3], want[5]}) {
		t.Errorf("Jobs by name = %v", got)
	}
	if got := walk(store.JobFilter{Label: map[string]string{"k": "0"}}, 2); !equal(got, []offpeak.JobID{want[0], want[3], want[6]}) {
		t.Errorf("Jobs by label = %v", got)
	}
	if got := walk(store.JobFilter{States: []offpeak.JobState{offpeak.JobLeased, offpeak.JobFailed}}, 10); !equal(got, want[6:]) {
		t.Errorf("Jobs by state = %v", got)
	}
	if got := walk(store.JobFilter{Node: n.ID}, 10); !equal(got, want[6:]) {
		t.Errorf("Jobs by node = %v", got)
	}
	if got := walk(store.JobFilter{Account: g.other()}, 10); len(got) != 0 {
		t.Errorf("Jobs of another account = %v", got)
	}
	for _, limit := range []int{0, -1, 1001} {
		_, _, err := g.Jobs(ctx, store.JobFilter{}, store.Page{Limit: limit})
		refused(t, fmt.Sprintf("Jobs with limit %d", limit), err, offpeak.ErrInvalid)
	}
	_, _, err := g.Jobs(ctx, store.JobFilter{}, store.Page{Cursor: "x'", Limit: 1})
	refused(t, "Jobs with a bad cursor", err, offpeak.ErrInvalid)
	second := g.enrol(0)
	nodes, next, err := g.Nodes(ctx, g.account, store.Page{Limit: 1})
	if err != nil || len(nodes) != 1 || nodes[0].ID != n.ID || next == "" {
		t.Errorf("Nodes = %v, %q, %v", nodes, next, err)
	}
	nodes, next, err = g.Nodes(ctx, g.account, store.Page{Limit: 1, Cursor: next})
	if err != nil || len(nodes) != 1 || nodes[0].ID != second.ID || next != "" {
		t.Errorf("Nodes = %v, %q, %v", nodes, next, err)
	}
}

func queue(t *testing.T, g *grid) {
	ctx := context.Background()
	read := func() (out []store.Queued) {
		t.Helper()
		for q, err := range g.Queue(ctx) {
			if err != nil {
				t.Fatalf("Queue: %v", err)
			}
			out = append(out, q)
		}
		return out
	}
	n := g.enrol(0)
	low, high := spec(), spec()
	high.Priority = 5
	a, b, c := g.submit(low), g.submit(high), g.submit(low)
	q := read()
	if len(q) != 3 || q[0].Job != b.ID || q[1].Job != a.ID || q[2].Job != c.ID {
		t.Fatalf("Queue = %+v", q)
	}
	if q[1].Requirements != q[2].Requirements {
		t.Error("equal requirements are not shared")
	}
	if q[0].Driver != "process" || q[0].Priority != 5 || q[0].Requirements.CPU != 1000 || !q[0].Submitted.Equal(b.SubmittedAt) || q[0].Account != g.account {
		t.Errorf("Queue = %+v", q[0])
	}
	l := g.claim(b.ID, 1, n.ID)
	if q := read(); len(q) != 2 {
		t.Errorf("Queue has %d jobs after a claim, want 2", len(q))
	}
	g.accept(l)
	change := g.ended(l, offpeak.EndOwnerReturned, 0)
	q = read()
	if len(q) != 3 || q[0].Job != b.ID || q[0].Attempt != 1 || q[0].NotBefore.IsZero() || !equal(q[0].Avoid, []offpeak.NodeID{n.ID}) {
		t.Fatalf("Queue after a lost attempt = %+v", q)
	}
	if len(q[0].Failed) != 0 {
		t.Errorf("an interrupted attempt fences: %+v", q[0].Failed)
	}
	if change.Queued == nil || change.Queued.Job != b.ID || change.Queued.Attempt != 1 || !change.Queued.NotBefore.Equal(q[0].NotBefore) || !equal(change.Queued.Avoid, q[0].Avoid) {
		t.Errorf("Change.Queued = %+v, want as in the queue %+v", change.Queued, q[0])
	}
	for _, err := range g.Queue(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		break // leaves nothing behind: the next verbs work
	}
	g.submit(low)
}

func claims(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(2)
	one := func(c store.Claim) error {
		t.Helper()
		out, err := g.Claim(ctx, []store.Claim{c})
		if err != nil || len(out) != 1 {
			t.Fatalf("Claim = %v, %v", out, err)
		}
		return out[0].Err
	}
	j := g.submit(spec())
	before := g.node(n.ID)
	big := g.ask(j.ID, 1, n.ID)
	big.Resources.CPU = 4001
	greedy := g.ask(j.ID, 1, n.ID)
	greedy.Resources.Memory = 1 << 62
	negative := g.ask(j.ID, 1, n.ID)
	negative.Resources.Disk = -1
	for _, c := range []struct {
		what  string
		claim store.Claim
	}{
		{"with another attempt", g.ask(j.ID, 2, n.ID)},
		{"of no job", g.ask("job_none", 1, n.ID)},
		{"on no node", g.ask(j.ID, 1, "node_none")},
		{"of too many CPUs", big},
		{"of memory that overflows", greedy},
		{"of less than nothing", negative},
		{"of a device that is not there", g.ask(j.ID, 1, n.ID, "GPU-9")},
		{"of one device twice", g.ask(j.ID, 1, n.ID, "GPU-0", "GPU-0")},
	} {
		refused(t, "Claim "+c.what, one(c.claim), offpeak.ErrConflict)
	}
	if got := g.node(n.ID); got.Reserved.CPU != 0 || len(got.Reserved.Devices) != 0 || got.Revision != before.Revision {
		t.Errorf("lost claims left %+v", got.Reserved)
	}
	// Each stands alone: the second of three loses.
	a, b := g.submit(spec()), g.submit(spec())
	first := g.ask(a.ID, 1, n.ID, "GPU-0")
	out, err := g.Claim(ctx, []store.Claim{first, g.ask(j.ID, 1, n.ID, "GPU-0"), g.ask(b.ID, 1, n.ID, "GPU-1")})
	if err != nil || out[0].Err != nil || !errors.Is(out[1].Err, offpeak.ErrConflict) || out[2].Err != nil {
		t.Fatalf("Claim = %+v, %v", out, err)
	}
	if l := out[0].Lease; l.ID != first.Lease || l.State != offpeak.LeaseOffered || l.Price != first.Price || !l.ExpiresAt.Equal(g.clock.Now().Add(first.OfferFor)) {
		t.Errorf("the lease = %+v", l)
	}
	if out[0].Node != n.ID || out[0].Revision != before.Revision+1 || g.node(n.ID).Revision != before.Revision+2 {
		t.Errorf("revisions = %d, %d after %d", out[0].Revision, g.node(n.ID).Revision, before.Revision)
	}
	reused := g.ask(j.ID, 1, n.ID)
	reused.Lease = first.Lease
	refused(t, "Claim with a used lease id", one(reused), offpeak.ErrConflict)
	refused(t, "Claim of a leased job", one(g.ask(a.ID, 2, n.ID)), offpeak.ErrConflict)
	// What the node is must allow it.
	g.beats(store.Beat{Node: n.ID, Incarnation: inc, Seq: g.seq(n.ID), Availability: offpeak.NodeInUse, Why: offpeak.EndOwnerReturned, Grant: timeout})
	refused(t, "Claim on a node in use", one(g.ask(j.ID, 1, n.ID)), offpeak.ErrConflict)
	g.beat(n.ID)
	if _, _, err := g.SetIntent(ctx, g.op(), g.account, n.ID, offpeak.NodeDraining, false); err != nil {
		t.Fatal(err)
	}
	refused(t, "Claim on a draining node", one(g.ask(j.ID, 1, n.ID)), offpeak.ErrConflict)
	if _, _, err := g.SetIntent(ctx, g.op(), g.account, n.ID, offpeak.NodeOpen, false); err != nil {
		t.Fatal(err)
	}
	g.clock.Advance(time.Second)
	if _, err := g.SetLiveness(ctx, []store.LivenessChange{{Node: n.ID, To: offpeak.NodeLate, HeardBefore: g.clock.Now()}}); err != nil {
		t.Fatal(err)
	}
	refused(t, "Claim on a late node", one(g.ask(j.ID, 1, n.ID)), offpeak.ErrConflict)
	g.beat(n.ID)
	if err := one(g.ask(j.ID, 1, n.ID)); err != nil {
		t.Errorf("Claim after all that: %v", err)
	}
}

// claimRace is 200 claims at once for nodes that fit one job each.
func claimRace(t *testing.T, g *grid) {
	ctx := context.Background()
	var nodes []offpeak.NodeID
	for range 10 {
		nodes = append(nodes, g.enrol(1).ID)
	}
	won := make(chan offpeak.NodeID, 200)
	var wg sync.WaitGroup
	for i := range 200 {
		j := g.submit(spec())
		wg.Go(func() {
			out, err := g.Claim(ctx, []store.Claim{g.ask(j.ID, 1, nodes[i%len(nodes)], "GPU-0")})
			switch {
			case err != nil:
				t.Errorf("Claim: %v", err)
			case out[0].Err == nil:
				won <- out[0].Node
			case !errors.Is(out[0].Err, offpeak.ErrConflict):
				t.Errorf("Claim: %v", out[0].Err)
			}
		})
	}
	wg.Wait()
	close(won)
	held := map[offpeak.NodeID]int{}
	for n := range won {
		held[n]++
	}
	for _, n := range nodes {
		if held[n] != 1 {
			t.Errorf("node %s holds %d leases, want 1", n, held[n])
		}
	}
}
