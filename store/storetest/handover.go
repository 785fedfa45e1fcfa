package storetest

import (
	"context"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// full is a node of which a lease holds all that there is.
func (g *grid) full() (offpeak.Node, offpeak.Lease) {
	g.Helper()
	n := g.enrol(0)
	ask := g.ask(g.submit(spec()).ID, 1, n.ID)
	ask.Resources.CPU = n.Capacity.CPU
	out, err := g.Claim(context.Background(), []store.Claim{ask})
	if err != nil || out[0].Err != nil {
		g.Fatalf("Claim = %+v, %v", out, err)
	}
	g.accept(*out[0].Lease)
	return n, *out[0].Lease
}

// handover: what an end frees goes to the next job in the same transaction.
func handover(t *testing.T, g *grid) {
	ctx := context.Background()
	end := func(l offpeak.Lease, then store.Claim) store.Report {
		r := g.reportOf(l, store.ReportEnded)
		r.Reason, r.Started, r.Then = offpeak.EndCompleted, true, &then
		return r
	}
	n, l := g.full()
	next := g.submit(spec())

	// Nothing is claimed with a report that is refused, or is no end.
	r := end(l, g.ask(next.ID, 1, n.ID))
	r.LogEnd = map[string]int64{"stdout": 3}
	if _, err := g.Report(ctx, r); err == nil {
		t.Fatal("an end whose log has a gap was taken")
	}
	running := g.reportOf(l, store.ReportRunning)
	ask := g.ask(next.ID, 1, n.ID)
	running.Then = &ask
	if c := g.report(running); c.Then != nil {
		t.Errorf("running claimed %+v", c.Then)
	}
	if j := g.job(next.ID); j.State != offpeak.JobQueued {
		t.Fatalf("the next job is %s before the end", j.State)
	}

	// With the end it is offered, on what the end left.
	r = end(l, g.ask(next.ID, 1, n.ID))
	c := g.report(r)
	if c.Job.State != offpeak.JobSucceeded || c.Then == nil || c.Then.Err != nil || c.Then.Lease.State != offpeak.LeaseOffered || c.Then.Job.ID != next.ID || c.Then.Revision <= c.Revision {
		t.Fatalf("the end = %+v, then %+v", c, c.Then)
	}
	if got := g.node(n.ID); got.Reserved.CPU != 1000 {
		t.Errorf("the node holds %d, want what the next lease asks", got.Reserved.CPU)
	}
	if _, held, err := g.Assignments(ctx, n.ID); err != nil || len(held) != 1 || held[0].Taken || held[0].Lease.ID != c.Then.Lease.ID {
		t.Errorf("Assignments = %+v, %v", held, err)
	}
	// Repeated it is answered as the first time and claims nothing more.
	third := g.submit(spec())
	r.Then.Job, r.Then.Lease = third.ID, newLease()
	if again := g.report(r); again.Job.State != offpeak.JobSucceeded || again.Then != nil {
		t.Errorf("the end again = %+v, then %+v", again, again.Then)
	}
	if j := g.job(third.ID); j.State != offpeak.JobQueued {
		t.Errorf("a repeated end claimed a job: it is %s", j.State)
	}

	// A claim that is lost leaves the end as it is.
	lost := g.ask(next.ID, 1, n.ID)
	l = *c.Then.Lease
	g.accept(l)
	if c = g.report(end(l, lost)); c.Job.State != offpeak.JobSucceeded || c.Then == nil {
		t.Fatalf("the end = %+v, then %+v", c, c.Then)
	}
	refused(t, "a claim for a job that has ended", c.Then.Err, offpeak.ErrConflict)
	if got := g.node(n.ID); got.Reserved.CPU != 0 {
		t.Errorf("the node holds %d after a lost claim", got.Reserved.CPU)
	}
}

// taken: an agent that said that it takes what it is given is not asked.
func taken(t *testing.T, g *grid) {
	ctx := context.Background()
	n, l := g.full()
	hand := func(l offpeak.Lease, by offpeak.Incarnation) offpeak.Lease {
		t.Helper()
		ask := g.ask(g.submit(spec()).ID, 1, n.ID)
		ask.Taken = by
		r := g.reportOf(l, store.ReportEnded)
		r.Reason, r.Started, r.Then = offpeak.EndCompleted, true, &ask
		c := g.report(r)
		if c.Then == nil || c.Then.Err != nil {
			t.Fatalf("then %+v", c.Then)
		}
		return *c.Then.Lease
	}
	shown := func(want bool) {
		t.Helper()
		if _, held, err := g.Assignments(ctx, n.ID); err != nil || len(held) != 1 || held[0].Taken != want {
			t.Fatalf("Assignments = %+v, %v; want taken %t", held, err, want)
		}
	}
	next := hand(l, inc)
	if next.State != offpeak.LeasePreparing || next.ExpiresAt.Before(g.clock.Now().Add(timeout)) {
		t.Fatalf("a lease that was taken is %s until %s", next.State, next.ExpiresAt)
	}
	shown(true)
	// A beat that was composed before the agent heard of it takes nothing away.
	if out := g.beat(n.ID); len(out.Changes) != 0 || len(out.Live) != 1 {
		t.Fatalf("beat = %+v", out)
	}
	// It is not extended either, until the agent holds it.
	if got := g.lease(next.Job, next.ID); !got.ExpiresAt.Equal(next.ExpiresAt) {
		t.Errorf("extended to %s without being held", got.ExpiresAt)
	}
	g.clock.Advance(time.Second)
	g.beat(n.ID, store.Held{Lease: next.ID})
	if got := g.lease(next.Job, next.ID); !got.ExpiresAt.After(next.ExpiresAt) {
		t.Errorf("expires at %s though it is held", got.ExpiresAt)
	}
	// It runs without another word; the agent may hand it back as well.
	if c := g.report(g.reportOf(next, store.ReportRunning)); c.Job.State != offpeak.JobRunning {
		t.Errorf("running = %+v", c.Job)
	}
	shown(false)
	next = hand(next, inc)
	r := g.reportOf(next, store.ReportEnded)
	r.Reason = offpeak.EndDeclined
	if c := g.report(r); c.Job.State != offpeak.JobQueued || c.Lease.State != offpeak.LeasePreempted {
		t.Errorf("declined = %+v %+v", c.Job, c.Lease)
	}

	// An agent that is not the node's any more has taken nothing.
	_, l = n, g.claim(g.submit(spec()).ID, 1, n.ID)
	g.accept(l)
	if next = hand(l, "another"); next.State != offpeak.LeaseOffered {
		t.Errorf("taken by another incarnation it is %s", next.State)
	}
	// Nor does the next agent begin what the last one took.
	g.accept(next)
	next = hand(next, inc)
	if _, err := g.OpenSession(ctx, store.NewSession{Node: n.ID, Incarnation: "next", Previous: inc, Generation: g.node(n.ID).Generation, Token: g.token(offpeak.TokenID(g.id("sess")), offpeak.RoleNode)}); err != nil {
		t.Fatal(err)
	}
	shown(false)
	out := g.beats(store.Beat{Node: n.ID, Incarnation: "next", Seq: 1, Availability: offpeak.NodeAvailable, Grant: timeout})
	if len(out.Changes) != 1 || out.Changes[0].Lease.ID != next.ID || out.Changes[0].Lease.Reason != offpeak.EndNodeRestarted {
		t.Errorf("the first beat of the next agent = %+v", out)
	}
}
