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

// leased makes a job with an accepted lease on a fresh node.
func (g *grid) leased(sp offpeak.Spec) (offpeak.Node, offpeak.Lease) {
	g.Helper()
	n := g.enrol(0)
	l := g.claim(g.submit(sp).ID, 1, n.ID)
	g.accept(l)
	return n, l
}

func reports(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	g.clock.Advance(time.Second)
	r := g.reportOf(l, store.ReportRunning)
	c := g.report(r)
	if c.Job.State != offpeak.JobRunning || c.Lease.State != offpeak.LeaseRunning || c.Job.StartedAt == nil || c.Node != "" {
		t.Errorf("running = %+v", c)
	}
	if again := g.report(r); again.Job.State != c.Job.State || again.Lease.State != c.Lease.State || again.Lease.Seq != r.Seq {
		t.Errorf("running again = %+v", again)
	}
	g.clock.Advance(10 * time.Second)
	f := g.reportOf(l, store.ReportFinishing)
	f.Ran = 9000
	c = g.report(f)
	if c.Lease.State != offpeak.LeaseFinishing || c.Lease.Metered != 9000 || c.Node != n.ID || c.Job.State != offpeak.JobRunning {
		t.Errorf("finishing = %+v %+v", c, c.Lease)
	}
	if got := g.node(n.ID); got.Reserved.CPU != 0 {
		t.Errorf("a finishing lease still holds %+v", got.Reserved)
	}
	g.clock.Advance(10 * time.Second)
	e := g.reportOf(l, store.ReportEnded)
	e.Reason, e.Ran, e.Output = offpeak.EndCompleted, 19000, hashOf("nowhere")
	_, err := g.Report(ctx, e)
	refused(t, "ended with outputs that are not stored", err, offpeak.ErrBlobMissing)
	e.Output, _ = g.tree(g.account, "out")
	e.LogEnd = map[string]int64{"stdout": 3}
	_, err = g.Report(ctx, e)
	if gap, ok := errors.AsType[*offpeak.LogGapError](err); !ok || gap.Want != 0 || gap.Got != 3 {
		t.Errorf("ended before its log is whole = %v, want a gap", err)
	}
	e.Logs = []store.LogAppend{{Stream: "stdout", Data: []byte("abc")}}
	c = g.report(e)
	if c.Job.State != offpeak.JobSucceeded || c.Lease.Metered != 9000 || c.Job.Output != e.Output {
		t.Errorf("ended = %+v %+v", c.Job, c.Lease)
	}
	again := g.report(e)
	if again.Job.State != c.Job.State || again.Job.Output != c.Job.Output || again.Lease.ID != l.ID || again.Revision != c.Revision {
		t.Errorf("ended again = %+v, want %+v", again, c)
	}
	e.Seq = g.seq(n.ID)
	_, err = g.Report(ctx, e)
	refused(t, "a new report of an ended lease", err, offpeak.ErrStaleLease)
	// A repeat is answered as the first time whatever became of the job since.
	n, l = g.leased(spec())
	e = g.reportOf(l, store.ReportEnded)
	e.Reason, e.Started = offpeak.EndNodeError, true
	first := g.report(e)
	if first.Queued == nil || first.Job.State != offpeak.JobQueued || first.Job.NotBefore == nil {
		t.Fatalf("ended by node_error = %+v", first)
	}
	g.clock.Advance(time.Minute)
	g.beat(n.ID)
	g.claim(l.Job, 2, n.ID)
	again = g.report(e)
	if again.Job.State != offpeak.JobQueued || again.Queued == nil || again.Queued.Attempt != 1 || again.Queued.Requirements == nil || !again.Job.NotBefore.Equal(*first.Job.NotBefore) {
		t.Errorf("ended again after the next claim = %+v, want %+v", again, first)
	}
	for _, bad := range []func(*store.Report){
		func(r *store.Report) { r.Kind = "exploded" },
		func(r *store.Report) { r.Kind, r.Reason = store.ReportEnded, "because" },
		func(r *store.Report) { r.Ran = -1 },
	} {
		r := g.reportOf(l, store.ReportRunning)
		bad(&r)
		_, err := g.Report(ctx, r)
		refused(t, "a report that makes no sense", err, offpeak.ErrInvalid)
	}
}

// adopted: the agent that comes after the one that began a lease says anew how
// far it is, under an incarnation of its own, and moves nothing by it.
func adopted(t *testing.T, g *grid) {
	n, l := g.leased(spec())
	g.clock.Advance(time.Second)
	g.report(g.reportOf(l, store.ReportRunning))
	if _, err := g.OpenSession(context.Background(), store.NewSession{Node: n.ID, Incarnation: "next", Previous: inc, Generation: g.node(n.ID).Generation, Token: g.token(offpeak.TokenID(g.id("sess")), offpeak.RoleNode)}); err != nil {
		t.Fatal(err)
	}
	seq := int64(0)
	say := func(kind store.ReportKind) store.Change {
		t.Helper()
		seq++
		r := g.reportOf(l, kind)
		r.Incarnation, r.Seq = "next", seq
		if kind == store.ReportEnded {
			r.Reason, r.Started = offpeak.EndCompleted, true
		}
		return g.report(r)
	}
	for _, kind := range []store.ReportKind{store.ReportRunning, store.ReportAccepted, store.ReportRunning} {
		g.clock.Advance(time.Second)
		if c := say(kind); c.Lease.State != offpeak.LeaseRunning || c.Job.State != offpeak.JobRunning || c.Node != "" {
			t.Fatalf("%s said again: lease %s, job %s", kind, c.Lease.State, c.Job.State)
		}
		if got := g.node(n.ID); got.Reserved.CPU != l.Resources.CPU {
			t.Fatalf("%s said again: the node holds %d, want %d", kind, got.Reserved.CPU, l.Resources.CPU)
		}
	}
	g.clock.Advance(time.Second)
	say(store.ReportFinishing)
	if c := say(store.ReportRunning); c.Lease.State != offpeak.LeaseFinishing || g.node(n.ID).Reserved.CPU != 0 {
		t.Errorf("running said while it finishes: %s", c.Lease.State)
	}
	if c := say(store.ReportEnded); c.Job.State != offpeak.JobSucceeded {
		t.Errorf("ended = %+v", c.Job)
	}
}

func staleReports(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	second := g.enrol(0)
	for _, c := range []struct {
		what string
		bend func(*store.Report)
	}{
		{"of an unknown lease", func(r *store.Report) { r.Lease = "lease_none" }},
		{"from another node", func(r *store.Report) { r.Node = second.ID }},
		{"of another attempt", func(r *store.Report) { r.Attempt = 2 }},
	} {
		r := g.reportOf(l, store.ReportRunning)
		c.bend(&r)
		_, err := g.Report(ctx, r)
		if _, ok := errors.AsType[*offpeak.StaleLeaseError](err); !ok {
			t.Errorf("report %s = %v, want a *StaleLeaseError", c.what, err)
		}
	}
	if got := g.lease(l.Job, l.ID); got.State != offpeak.LeasePreparing {
		t.Errorf("stale reports moved the lease to %s", got.State)
	}
	// The lease expires; its late reports change nothing.
	g.clock.Advance(timeout + time.Second)
	if out, err := g.Expire(ctx, g.clock.Now(), 10); err != nil || len(out) != 1 {
		t.Fatalf("Expire = %v, %v", out, err)
	}
	r := g.reportOf(l, store.ReportEnded)
	r.Reason, r.Started = offpeak.EndCompleted, true
	_, err := g.Report(ctx, r)
	if stale, ok := errors.AsType[*offpeak.StaleLeaseError](err); !ok || stale.State != offpeak.LeaseLost || stale.Attempt != 1 {
		t.Errorf("report of a lost lease = %v", err)
	}
	if j := g.job(l.Job); j.State != offpeak.JobQueued || j.Output != "" {
		t.Errorf("a late report moved the job to %s", j.State)
	}
	g.clock.Advance(time.Minute)
	g.beat(second.ID)
	l2 := g.claim(l.Job, 2, second.ID)
	_, err = g.AppendLog(ctx, n.ID, l.ID, 1, store.LogAppend{Stream: "stdout", Data: []byte("late")})
	refused(t, "AppendLog of a lost lease", err, offpeak.ErrStaleLease)
	_, err = g.AddCheckpoint(ctx, store.NewCheckpoint{Node: n.ID, Lease: l.ID, Attempt: 1, Tree: hashOf("x")})
	refused(t, "AddCheckpoint of a lost lease", err, offpeak.ErrStaleLease)
	_, _, err = g.LeaseAccount(ctx, n.ID, l.ID)
	refused(t, "LeaseAccount of a lost lease", err, offpeak.ErrStaleLease)
	if a, j, err := g.LeaseAccount(ctx, second.ID, l2.ID); err != nil || a != g.account || j != l.Job {
		t.Errorf("LeaseAccount = %s, %s, %v", a, j, err)
	}
	// An offer that has lapsed can't be accepted even before the monitor sees it.
	g.clock.Advance(15 * time.Second)
	_, err = g.Report(ctx, g.reportOf(l2, store.ReportAccepted))
	refused(t, "accepting a lapsed offer", err, offpeak.ErrStaleLease)
}

func metering(t *testing.T, g *grid) {
	sp := spec()
	sp.Limits.Time = offpeak.Duration(30 * time.Second)
	for _, c := range []struct {
		name    string
		passes  time.Duration
		ran     offpeak.Millis
		implied bool
		want    offpeak.Millis
	}{
		{"what it ran", 10 * time.Second, 7000, false, 7000},
		{"no more than was seen", 10 * time.Second, 70_000, false, 10_000},
		{"no more than the limit", 50 * time.Second, 50_000, false, 30_000},
		{"told at the end", 10 * time.Second, 4000, true, 4000},
		{"told at the end, no more than was seen", 10 * time.Second, 40_000, true, 10_000},
	} {
		_, l := g.leased(sp)
		if !c.implied {
			g.clock.Advance(time.Second)
			g.report(g.reportOf(l, store.ReportRunning))
		}
		g.clock.Advance(c.passes)
		if got := g.ended(l, offpeak.EndExitNonzero, c.ran); got.Lease.Metered != c.want {
			t.Errorf("%s: metered %d, want %d", c.name, got.Lease.Metered, c.want)
		}
	}
	// A heartbeat meters too, never backwards, and what it said stays when the node is lost.
	n, l := g.leased(sp)
	g.report(g.reportOf(l, store.ReportRunning))
	g.clock.Advance(10 * time.Second)
	g.beat(n.ID, store.Held{Lease: l.ID, Metered: 8000})
	g.beat(n.ID, store.Held{Lease: l.ID, Metered: 5000, Frozen: true})
	if got := g.lease(l.Job, l.ID); got.Metered != 8000 || !got.Frozen {
		t.Errorf("after heartbeats: metered %d, frozen %v", got.Metered, got.Frozen)
	}
	g.clock.Advance(2 * timeout)
	if _, err := g.Expire(context.Background(), g.clock.Now(), 10); err != nil {
		t.Fatal(err)
	}
	if got := g.lease(l.Job, l.ID); got.Metered != 8000 || got.State != offpeak.LeaseLost {
		t.Errorf("after the loss: metered %d, %s", got.Metered, got.State)
	}
}

func retries(t *testing.T, g *grid) {
	sp := spec()
	sp.Retry = &offpeak.RetryPolicy{User: 1, Node: 1, Interruption: 1}
	n := g.enrol(0)
	j := g.submit(sp)
	for i, c := range []struct {
		reason offpeak.EndReason
		want   offpeak.JobState
		counts offpeak.RetryCounts
	}{
		{offpeak.EndExitNonzero, offpeak.JobQueued, offpeak.RetryCounts{User: 1}},
		{offpeak.EndDeclined, offpeak.JobQueued, offpeak.RetryCounts{User: 1}},
		{offpeak.EndNodeError, offpeak.JobQueued, offpeak.RetryCounts{User: 1, Node: 1}},
		{offpeak.EndOwnerReturned, offpeak.JobQueued, offpeak.RetryCounts{User: 1, Node: 1, Interruption: 1}},
		{offpeak.EndExitNonzero, offpeak.JobFailed, offpeak.RetryCounts{User: 1, Node: 1, Interruption: 1}},
	} {
		l := g.claim(j.ID, offpeak.Attempt(i+1), n.ID)
		r := g.reportOf(l, store.ReportEnded)
		code := 3
		r.Reason, r.ExitCode, r.Detail = c.reason, &code, "it said so"
		r.Started = c.reason != offpeak.EndDeclined
		got := g.report(r).Job
		if got.State != c.want || got.Counts != c.counts || got.Reason != c.reason || got.Detail != "it said so" || got.ExitCode == nil || *got.ExitCode != 3 {
			t.Errorf("end %d by %s = %+v", i+1, c.reason, got)
		}
		if paused := got.NotBefore != nil; paused != (c.want == offpeak.JobQueued && c.reason != offpeak.EndDeclined) {
			t.Errorf("end %d by %s: not before %v", i+1, c.reason, got.NotBefore)
		}
		if got.NotBefore != nil {
			out, err := g.Claim(context.Background(), []store.Claim{g.ask(j.ID, offpeak.Attempt(i+2), n.ID)})
			if err != nil {
				t.Fatal(err)
			}
			refused(t, "Claim before its time", out[0].Err, offpeak.ErrConflict)
			g.clock.Advance(time.Minute)
			g.beat(n.ID)
		}
	}
	all, err := g.Attempts(context.Background(), g.account, j.ID)
	if err != nil || len(all) != 5 || all[0].Attempt != 1 || all[4].Attempt != 5 || all[0].Reason != offpeak.EndExitNonzero {
		t.Errorf("Attempts = %+v, %v", all, err)
	}
}

func beats(t *testing.T, g *grid) {
	ctx := context.Background()
	sp := spec()
	sp.Limits.ReconnectGrace = offpeak.Duration(30 * time.Second)
	n, l := g.leased(sp)
	g.clock.Advance(time.Second) // a node's leases are listed in the order of their offers
	offer := g.claim(g.submit(spec()).ID, 1, n.ID)
	expiry := func(l offpeak.Lease) time.Time { t.Helper(); return g.lease(l.Job, l.ID).ExpiresAt }
	g.clock.Advance(5 * time.Second)
	out := g.beat(n.ID, store.Held{Lease: l.ID}, store.Held{Lease: offer.ID})
	if want := g.clock.Now().Add(timeout + 30*time.Second); !expiry(l).Equal(want) {
		t.Errorf("a held lease expires %v, want %v", expiry(l), want)
	}
	if !expiry(offer).Equal(offer.ExpiresAt) {
		t.Errorf("a heartbeat extended an offer to %v", expiry(offer))
	}
	if len(out.Live) != 2 || out.Live[0].ID != l.ID || out.Revision != g.node(n.ID).Revision || out.WokeUp {
		t.Errorf("Beat = %+v", out)
	}
	// Older and repeated beats change nothing.
	was := g.node(n.ID)
	leaseWas := expiry(l)
	g.clock.Advance(time.Second)
	again := store.Beat{Node: n.ID, Incarnation: inc, Seq: g.seq(n.ID) - 1, Availability: offpeak.NodeInUse, Why: offpeak.EndHot, Held: []store.Held{{Lease: l.ID}}, Grant: timeout}
	if out := g.beats(again); len(out.Live) != 2 {
		t.Errorf("a repeated beat is answered %+v", out)
	}
	if got := g.node(n.ID); !got.LastHeard.Equal(*was.LastHeard) || got.Availability != offpeak.NodeAvailable || !expiry(l).Equal(leaseWas) {
		t.Errorf("a repeated beat changed %+v to %+v", was, got)
	}
	// A link that works one way only extends nothing.
	one := store.Beat{Node: n.ID, Incarnation: inc, Seq: g.seq(n.ID), Availability: offpeak.NodeAvailable, Held: []store.Held{{Lease: l.ID}}, Grant: timeout, SinceAck: timeout + time.Second}
	g.beats(one)
	if !expiry(l).Equal(leaseWas) || !g.node(n.ID).LastHeard.Equal(g.clock.Now()) {
		t.Errorf("a one-way beat extended the lease to %v, heard %v", expiry(l), g.node(n.ID).LastHeard)
	}
	// Availability is kept as said, and a silent node wakes.
	g.clock.Advance(time.Second)
	if moved, err := g.SetLiveness(ctx, []store.LivenessChange{{Node: n.ID, To: offpeak.NodeOffline, HeardBefore: g.clock.Now()}}); err != nil || len(moved) != 1 {
		t.Fatalf("SetLiveness = %v, %v", moved, err)
	}
	one.Seq, one.SinceAck, one.Availability, one.Why, one.Grant = g.seq(n.ID), 0, offpeak.NodeInUse, offpeak.EndHot, 2*timeout
	if out := g.beats(one); !out.WokeUp {
		t.Error("a beat of an offline node did not wake it")
	}
	if got := g.node(n.ID); got.Liveness != offpeak.NodeOnline || got.Availability != offpeak.NodeInUse || got.Why != offpeak.EndHot || got.Timeout.Std() != 2*timeout {
		t.Errorf("after the beat the node is %+v", got)
	}
	// Each stands alone.
	res, err := g.Beat(ctx, []store.Beat{
		{Node: "node_none", Incarnation: inc, Seq: 1},
		{Node: n.ID, Incarnation: "inc-0", Seq: 1000},
		{Node: n.ID, Incarnation: inc, Seq: g.seq(n.ID), Held: []store.Held{{Lease: l.ID}}, Grant: timeout},
	})
	if err != nil || len(res) != 3 || res[2].Err != nil {
		t.Fatalf("Beat = %+v, %v", res, err)
	}
	refused(t, "beat of an unknown node", res[0].Err, offpeak.ErrUnknownNode)
	refused(t, "beat of an older incarnation", res[1].Err, offpeak.ErrStaleSession)
}

func restarted(t *testing.T, g *grid) {
	n := g.enrol(0)
	l := g.claim(g.submit(spec()).ID, 1, n.ID)
	// The beat was composed before the lease was accepted: its sequence is lower.
	early := g.seq(n.ID)
	g.accept(l)
	out := g.beats(store.Beat{Node: n.ID, Incarnation: inc, Seq: early, Availability: offpeak.NodeAvailable, Grant: timeout})
	if len(out.Changes) != 0 || len(out.Live) != 1 {
		t.Errorf("a beat from before the acceptance ended the lease: %+v", out)
	}
	out = g.beat(n.ID)
	if len(out.Changes) != 1 || len(out.Live) != 0 || out.Changes[0].Job.State != offpeak.JobQueued || out.Changes[0].Lease.Reason != offpeak.EndNodeRestarted || out.Changes[0].Queued == nil {
		t.Fatalf("a beat without an accepted lease = %+v", out)
	}
	if out.Revision != g.node(n.ID).Revision {
		t.Errorf("Beat's revision = %d, the node's %d", out.Revision, g.node(n.ID).Revision)
	}
	// A new incarnation says so at once, whatever its sequence.
	g.clock.Advance(time.Minute)
	g.beat(n.ID)
	l = g.claim(l.Job, 2, n.ID)
	g.accept(l)
	if _, err := g.OpenSession(context.Background(), store.NewSession{Node: n.ID, Incarnation: "inc-2", Previous: inc, Generation: 1, Token: g.token("sess2", offpeak.RoleNode)}); err != nil {
		t.Fatal(err)
	}
	out = g.beats(store.Beat{Node: n.ID, Incarnation: "inc-2", Seq: 1, Availability: offpeak.NodeAvailable, Grant: timeout})
	if len(out.Changes) != 1 {
		t.Errorf("a restarted agent without the lease = %+v", out)
	}
}

func stop(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	before := g.node(n.ID).Revision
	c, err := g.Stop(ctx, l.ID, offpeak.EndOutbid)
	if err != nil || c.Lease.Stop != offpeak.EndOutbid || c.Node != n.ID || c.Revision != before+1 || c.Job.ID != l.Job {
		t.Errorf("Stop = %+v, %v", c, err)
	}
	if c, err := g.Stop(ctx, l.ID, offpeak.EndDrained); err != nil || c.Lease.Stop != offpeak.EndOutbid {
		t.Errorf("Stop again = %+v, %v; want the first reason", c.Lease, err)
	}
	_, err = g.Stop(ctx, l.ID, "because")
	refused(t, "Stop for no reason of the table", err, offpeak.ErrInvalid)
	_, err = g.Stop(ctx, "lease_none", offpeak.EndDrained)
	refused(t, "Stop of no lease", err, offpeak.ErrNotFound)
	g.ended(l, offpeak.EndOutbid, 0)
	_, err = g.Stop(ctx, l.ID, offpeak.EndDrained)
	refused(t, "Stop of an ended lease", err, offpeak.ErrStaleLease)
}

func abandon(t *testing.T, g *grid) {
	ctx := context.Background()
	_, l := g.leased(spec())
	g.report(g.reportOf(l, store.ReportRunning))
	_, err := g.Abandon(ctx, l.ID, offpeak.EndNodeError)
	refused(t, "Abandon of a running lease", err, offpeak.ErrConflict)
	g.report(g.reportOf(l, store.ReportFinishing))
	_, err = g.Abandon(ctx, l.ID, "because")
	refused(t, "Abandon for no reason of the table", err, offpeak.ErrInvalid)
	_, err = g.Abandon(ctx, "lease_none", offpeak.EndNodeError)
	refused(t, "Abandon of no lease", err, offpeak.ErrNotFound)
	c, err := g.Abandon(ctx, l.ID, offpeak.EndNodeError)
	if err != nil || c.Lease.State != offpeak.LeaseFailed || c.Lease.Reason != offpeak.EndNodeError || c.Job.State != offpeak.JobQueued || c.Queued == nil || c.Job.Counts.Node != 1 {
		t.Fatalf("Abandon = %+v, %v", c, err)
	}
	_, err = g.Abandon(ctx, l.ID, offpeak.EndNodeError)
	refused(t, "Abandon of an ended lease", err, offpeak.ErrStaleLease)
	// The agent's own end comes too late.
	r := g.reportOf(l, store.ReportEnded)
	r.Reason, r.Started = offpeak.EndCompleted, true
	_, err = g.Report(ctx, r)
	refused(t, "the end of an abandoned lease", err, offpeak.ErrStaleLease)
}

func assignments(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	tree, _ := g.tree(g.account, "cp")
	if _, err := g.AddCheckpoint(ctx, store.NewCheckpoint{Node: n.ID, Lease: l.ID, Attempt: 1, Name: "a", Tree: tree}); err != nil {
		t.Fatal(err)
	}
	rev, held, err := g.Assignments(ctx, n.ID)
	if err != nil || rev != g.node(n.ID).Revision || len(held) != 1 || held[0].Lease.ID != l.ID || held[0].Spec.Task.Driver != "process" || len(held[0].Checkpoints) != 1 {
		t.Errorf("Assignments = %d, %+v, %v", rev, held, err)
	}
	_, _, err = g.Assignments(ctx, "node_none")
	refused(t, "Assignments of no node", err, offpeak.ErrUnknownNode)
	g.ended(l, offpeak.EndCompleted, 0)
	if _, held, err := g.Assignments(ctx, n.ID); err != nil || len(held) != 0 {
		t.Errorf("Assignments after the end = %+v, %v", held, err)
	}
	g.claim(g.submit(spec()).ID, 1, n.ID)
	g.clock.Advance(5 * time.Second)
	if _, held, err := g.Assignments(ctx, n.ID); err != nil || len(held) != 1 || held[0].Left != 10*time.Second {
		t.Errorf("Assignments of an offer of 15 s after 5 s = %+v, %v", held, err)
	}
}

func checkpoints(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	g.report(g.reportOf(l, store.ReportRunning))
	add := func(name string, metered offpeak.Millis) offpeak.Checkpoint {
		t.Helper()
		tree, _ := g.tree(g.account, name)
		c, err := g.AddCheckpoint(ctx, store.NewCheckpoint{Node: n.ID, Lease: l.ID, Attempt: 1, Name: name, Tree: tree, Metered: metered, Size: 10})
		if err != nil {
			t.Fatalf("AddCheckpoint: %v", err)
		}
		return c
	}
	_, err := g.AddCheckpoint(ctx, store.NewCheckpoint{Node: n.ID, Lease: l.ID, Attempt: 1, Name: "x", Tree: hashOf("none")})
	refused(t, "AddCheckpoint of a tree that is not stored", err, offpeak.ErrBlobMissing)
	g.clock.Advance(10 * time.Second)
	a := add("a", 9000)
	if again := add("a", 9500); again != a {
		t.Errorf("AddCheckpoint again = %+v, want %+v", again, a)
	}
	g.clock.Advance(time.Second)
	add("b", 1e6)
	add("c", 11_000)
	list, err := g.Checkpoints(ctx, g.account, l.Job)
	if err != nil || len(list) != 2 || list[0].Name != "c" || list[1].Name != "b" || list[0].Attempt != 1 {
		t.Fatalf("Checkpoints = %+v, %v; want c and b", list, err)
	}
	if list[1].Metered != 11_000 {
		t.Errorf("a checkpoint says %d ms of 11000 seen", list[1].Metered)
	}
	// A retry of the ended job inherits them.
	g.ended(l, offpeak.EndExitNonzero, 11_000)
	again, err := g.Submit(ctx, g.op(), store.NewJob{ID: "job_retry", Account: g.account, Spec: spec(), RetryOf: l.Job})
	if err != nil {
		t.Fatal(err)
	}
	copied, err := g.Checkpoints(ctx, g.account, again.ID)
	if err != nil || len(copied) != 2 || copied[0].Tree != list[0].Tree || copied[0].Job != again.ID {
		t.Errorf("Checkpoints of the retry = %+v, %v", copied, err)
	}
}

// Heartbeats and checkpoints of a lease come over connections of their own: what
// one has metered never falls behind what the other keeps.
func checkpointsAmongBeats(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	g.report(g.reportOf(l, store.ReportRunning))
	g.clock.Advance(time.Hour)
	const rounds = 50
	trees := make([]offpeak.Hash, rounds)
	for i := range trees {
		trees[i], _ = g.tree(g.account, fmt.Sprint(i))
	}
	var both sync.WaitGroup
	both.Go(func() {
		for i := range rounds {
			if _, err := g.AddCheckpoint(ctx, store.NewCheckpoint{Node: n.ID, Lease: l.ID, Attempt: 1, Name: fmt.Sprint(i), Tree: trees[i], Metered: offpeak.Millis(10 * i)}); err != nil {
				t.Errorf("AddCheckpoint: %v", err)
			}
		}
	})
	seq := g.seq(n.ID)
	for i := range rounds {
		out, err := g.Beat(ctx, []store.Beat{{Node: n.ID, Incarnation: inc, Seq: seq + int64(i), Availability: offpeak.NodeAvailable, Held: []store.Held{{Lease: l.ID, Metered: offpeak.Millis(10*i - 5)}}, Grant: timeout}})
		if err != nil || out[0].Err != nil {
			t.Errorf("Beat: %v, %+v", err, out)
		}
	}
	both.Wait()
	if got := g.lease(l.Job, l.ID).Metered; got < 10*(rounds-1) {
		t.Errorf("metered %d ms, %d are kept", got, 10*(rounds-1))
	}
}

func logs(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.leased(spec())
	add := func(stream string, at int64, s string) (int64, error) {
		return g.AppendLog(ctx, n.ID, l.ID, 1, store.LogAppend{Stream: stream, Offset: at, Data: []byte(s)})
	}
	for _, c := range []struct {
		stream string
		at     int64
		s      string
		end    int64
		gap    bool
	}{
		{"stdout", 0, "hello", 5, false},
		{"stdout", 0, "hello", 5, false},
		{"stderr", 0, "oh", 2, false},
		{"stdout", 3, "lo world", 11, false},
		{"stdout", 1, "ell", 11, false},
		{"stdout", 12, "gap", 11, true},
		{"stdout", 11, "!", 12, false},
		{"stdout", 12, "", 12, false},
	} {
		end, err := add(c.stream, c.at, c.s)
		gap, isGap := errors.AsType[*offpeak.LogGapError](err)
		if isGap != c.gap || !isGap && (err != nil || end != c.end) || isGap && gap.Want != c.end {
			t.Errorf("AppendLog(%s, %d, %q) = %d, %v", c.stream, c.at, c.s, end, err)
		}
	}
	for _, bad := range []store.LogAppend{
		{Stream: "stdin", Data: []byte("x")},
		{Stream: "stdout", Offset: -1, Data: []byte("x")},
		{Stream: "stdout", Offset: 12, Data: []byte("x"), Blob: hashOf("x"), Length: 1},
	} {
		_, err := g.AppendLog(ctx, n.ID, l.ID, 1, bad)
		refused(t, "AppendLog of nonsense", err, offpeak.ErrInvalid)
	}
	_, err := g.AppendLog(ctx, n.ID, l.ID, 1, store.LogAppend{Stream: "stdout", Offset: 12, Blob: hashOf("seg"), Length: 9})
	refused(t, "AppendLog of a blob that is not stored", err, offpeak.ErrBlobMissing)
	if err := g.AddBlob(ctx, g.account, hashOf("seg"), 9); err != nil {
		t.Fatal(err)
	}
	if end, err := g.AppendLog(ctx, n.ID, l.ID, 1, store.LogAppend{Stream: "stdout", Offset: 12, Blob: hashOf("seg"), Length: 9}); err != nil || end != 21 {
		t.Errorf("AppendLog of a blob = %d, %v", end, err)
	}
	all, err := g.LogSegments(ctx, g.account, l.ID, 0, 100)
	if err != nil || len(all) != 5 {
		t.Fatalf("LogSegments = %d, %v; want 5", len(all), err)
	}
	text := ""
	for i, s := range all {
		if s.N != int64(i+1) {
			t.Errorf("segment %d has number %d", i+1, s.N)
		}
		if s.Stream == "stdout" {
			text += string(s.Data)
		}
	}
	if text != "hello world!" {
		t.Errorf("stdout = %q", text)
	}
	if some, err := g.LogSegments(ctx, g.account, l.ID, 2, 1); err != nil || len(some) != 1 || some[0].N != 3 {
		t.Errorf("LogSegments after 2 = %+v, %v", some, err)
	}
	at, err := g.LogAt(ctx, g.account, l.ID, "stdout", 6, 2)
	if err != nil || len(at) != 2 || at[0].Offset != 5 || at[1].Offset != 11 {
		t.Errorf("LogAt(6) = %+v, %v", at, err)
	}
	if at, err := g.LogAt(ctx, g.account, l.ID, "stdout", 21, 2); err != nil || len(at) != 0 {
		t.Errorf("LogAt the end = %+v, %v", at, err)
	}
}
