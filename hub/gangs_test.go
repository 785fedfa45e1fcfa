package hub_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/internal/pgtest"
	"offpeak/wire"
)

func (g *grid) gang(n int, change func(*offpeak.Spec)) offpeak.GroupID {
	g.t.Helper()
	spec := small()
	if change != nil {
		change(&spec)
	}
	return g.submitArray(spec, offpeak.Array{Gang: n}).ID
}

// begins accepts and starts what a node is offered, and says what it holds.
func (a *agent) begins() (held []offpeak.LeaseID) {
	a.g.t.Helper()
	for _, d := range a.holds() {
		if d.State == offpeak.LeaseOffered {
			a.accept(d)
			a.run(d)
		}
		held = append(held, d.Lease)
	}
	return held
}

// obeys ends what a node is asked to stop, and says what it still holds.
func (a *agent) obeys() (held []offpeak.LeaseID) {
	a.g.t.Helper()
	for _, d := range a.holds() {
		if d.Stop != "" {
			a.end(d, d.Stop)
		} else {
			held = append(held, d.Lease)
		}
	}
	return held
}

func (g *grid) says(job offpeak.JobID) wire.Explanation {
	g.t.Helper()
	e, err := g.hub.Explain(g.t.Context(), g.account, job)
	must(g.t, err)
	return e
}

// A gang starts on nodes of its own, each member with its rank, once there are enough:
// until then it holds none, and explain counts them.
func TestGangStartsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrid(t, hub.Config{})
		agents := []*agent{g.joinWith("a", 4000), g.joinWith("b", 4000)}
		id := g.gang(3, nil)
		synctest.Wait()
		for _, a := range agents {
			if n := len(a.holds()); n != 0 {
				t.Fatalf("a node holds %d leases of a gang that lacks a node", n)
			}
		}
		e := g.says(id.Member(2))
		if e.Gang == nil || *e.Gang != (wire.Gang{Needs: 3, Queued: 3}) || e.Fits != 2 ||
			!strings.HasPrefix(e.Summary, "Its gang needs 3 nodes at once, one for each member that has not ended: 2 fit now, and of 2 nodes only 2 could ever run one as it is. Submit it with a smaller --gang, or add nodes.") {
			t.Errorf("explained by %+v", e)
		}
		// What needs one node passes it.
		lone := g.submit(small())
		synctest.Wait()
		if j := g.job(lone); j.State != offpeak.JobLeased {
			t.Errorf("a job behind it is %s", j.State)
		}
		agents = append(agents, g.joinWith("c", 4000))
		synctest.Wait()
		ranks := map[string]bool{}
		for _, a := range agents {
			own := 0
			for _, d := range a.holds() {
				if d.Job == lone {
					continue
				}
				own++
				env := d.Work.Task.Env
				ranks[env["OFFPEAK_GANG_RANK"]] = true
				if env["OFFPEAK_GANG_SIZE"] != "3" || env["OFFPEAK_GANG_RANK"] != env["OFFPEAK_ARRAY_INDEX"] {
					t.Errorf("a member has the environment %v", env)
				}
			}
			if own != 1 {
				t.Errorf("a node has %d members", own)
			}
			a.begins()
		}
		if len(ranks) != 3 {
			t.Errorf("the members have the ranks %v", ranks)
		}
		for _, a := range agents {
			for _, d := range a.holds() {
				a.end(d, offpeak.EndCompleted)
			}
		}
		if got := g.group(id); got.State != offpeak.JobSucceeded {
			t.Errorf("Group = %s %v", got.State, got.Counts)
		}
		g.sound()
		g.stop()
	})
}

// A member whose node is lost takes the others along; a hub that starts in between
// finds them in its store. Who has succeeded has, and the rest starts again together.
func TestGangStartsAgainTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrid(t, hub.Config{Timeout: time.Minute})
		a, b, c := g.join("a"), g.join("b"), g.join("c")
		id := g.gang(3, nil)
		synctest.Wait()
		all := map[*agent][]offpeak.LeaseID{}
		for _, n := range []*agent{a, b, c} {
			if all[n] = n.begins(); len(all[n]) != 1 {
				t.Fatalf("a node holds %v", all[n])
			}
		}
		done := c.holds()[0]
		c.end(done, offpeak.EndCompleted)
		for range 300 { // a is silent from here on
			b.beat(b.carries()...)
			c.beat()
			if b.holds()[0].Stop == offpeak.EndGangBroken {
				break
			}
			time.Sleep(time.Second)
		}
		if counts := g.group(id).Counts; counts[offpeak.JobQueued] != 1 || counts[offpeak.JobRunning] != 1 {
			t.Fatalf("after a was lost: %v", counts)
		}
		g.sound()
		// The hub dies with the gang half broken.
		g.stop()
		g.start()
		for range 60 {
			b.beat(b.obeys()...)
			c.beat(c.begins()...)
			b.begins()
			if len(b.holds()) == 1 && len(c.holds()) == 1 && b.holds()[0].Stop == "" {
				break
			}
			time.Sleep(time.Second)
		}
		if len(b.begins()) != 1 || len(c.begins()) != 1 || c.holds()[0].Lease == done.Lease {
			t.Fatalf("b holds %v, c %v: %v", b.holds(), c.holds(), g.group(id).Counts)
		}
		g.sound()
		attempts := map[int]int{}
		for i := range 3 {
			j := g.job(id.Member(i))
			attempts[int(j.Attempt)]++
			if j.Counts.Node != 0 || j.Counts.User != 0 || j.Counts.Interruption > 1 {
				t.Errorf("member %d counts %+v", i, j.Counts)
			}
		}
		if attempts[1] != 1 || attempts[2] != 2 {
			t.Errorf("members by attempts: %v", attempts)
		}
		for _, n := range []*agent{b, c} {
			n.end(n.holds()[0], offpeak.EndCompleted)
		}
		if got := g.group(id); got.State != offpeak.JobSucceeded {
			t.Errorf("Group = %s %v", got.State, got.Counts)
		}
		g.sound()
		g.stop()
	})
}

// A member that fails ends the others, as gang_failed; one retry repeats all of them.
func TestGangFailsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrid(t, hub.Config{})
		a, b, c := g.join("a"), g.join("b"), g.join("c")
		id := g.gang(3, nil)
		synctest.Wait()
		a.begins()
		b.begins() // and c has not answered
		a.end(a.holds()[0], offpeak.EndExitNonzero)
		synctest.Wait()
		if d := b.holds(); len(d) != 1 || d[0].Stop != offpeak.EndGangFailed || len(c.holds()) != 0 {
			t.Fatalf("b holds %+v, c %+v", d, c.holds())
		}
		b.obeys()
		synctest.Wait()
		got := g.group(id)
		if got.State != offpeak.JobFailed || got.Counts[offpeak.JobFailed] != 3 || got.Reason != offpeak.EndGangFailed || !strings.HasSuffix(got.Detail, " has failed: exit_nonzero") {
			t.Errorf("Group = %+v", got)
		}
		again, err := g.hub.RetryGroup(t.Context(), g.op(), g.account, id, true)
		must(t, err)
		synctest.Wait()
		for _, n := range []*agent{a, b, c} {
			n.begins()
			for _, d := range n.holds() {
				n.end(d, offpeak.EndCompleted)
			}
		}
		if got := g.group(again.ID); got.State != offpeak.JobSucceeded || got.Members != 3 {
			t.Errorf("the retry = %+v", got)
		}
		// Who cancels a member cancels the gang.
		id = g.gang(2, nil)
		synctest.Wait()
		_, err = g.hub.Cancel(t.Context(), g.op(), g.account, id.Member(0))
		must(t, err)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := g.group(id); got.State != offpeak.JobFailed || got.Counts[offpeak.JobCancelled] != 1 || got.Detail != "member 0 was cancelled" {
			t.Errorf("Group = %+v", got)
		}
		g.sound()
		g.stop()
	})
}

// Two gangs of two on three nodes: one runs, the other waits for it with nothing in hand.
func TestGangsOnFewNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrid(t, hub.Config{})
		agents := []*agent{g.join("a"), g.join("b"), g.join("c")}
		ids := []offpeak.GroupID{g.gang(2, nil), g.gang(2, nil)}
		for range 2 {
			synctest.Wait()
			live := map[string]int{}
			for _, a := range agents {
				for _, d := range a.holds() {
					live[g.job(d.Job).Group]++
				}
			}
			if len(live) != 1 || live[string(ids[0])]+live[string(ids[1])] != 2 {
				t.Fatalf("members that hold leases: %v", live)
			}
			held := map[*agent][]wire.Desired{}
			for _, a := range agents {
				a.begins()
				held[a] = a.holds()
			}
			for a, list := range held {
				for _, d := range list {
					a.end(d, offpeak.EndCompleted)
				}
			}
		}
		for _, id := range ids {
			if got := g.group(id); got.State != offpeak.JobSucceeded {
				t.Errorf("Group = %s %v", got.State, got.Counts)
			}
		}
		if n := g.metric("offpeak_claim_conflicts_total"); n != 0 {
			t.Errorf("%v claims were lost", n)
		}
		g.sound()
		g.stop()
	})
}

// What an account may have it may have for all of a gang, or the gang waits; when it may
// have more the gang goes at once.
func TestGangWaitsForQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrid(t, hub.Config{})
		a, b := g.join("a"), g.join("b")
		_, err := g.store.SetQuota(t.Context(), g.op(), g.account, offpeak.Quota{Running: 1})
		must(t, err)
		id := g.gang(2, nil)
		synctest.Wait()
		if len(a.holds())+len(b.holds()) > 0 {
			t.Fatal("part of it was claimed")
		}
		if e := g.says(id.Member(0)); len(e.Withheld) != 1 || e.Withheld[0].Code != "running_jobs" {
			t.Errorf("explained by %+v", e)
		}
		g.quota(func(q *offpeak.Quota) { q.Running = 2 })
		synctest.Wait()
		if len(a.holds()) != 1 || len(b.holds()) != 1 {
			t.Error("it did not start once it might")
		}
		g.sound()
		g.stop()
	})
}

// Two hubs that both claim, and nodes that leave gangs at any time: no gang ever holds
// part while nobody mends it, and all end.
func TestGangsOnTwoHubs(t *testing.T) {
	hubs := several(t, 2, pgtest.Start(t).Database(t), hub.Config{AlwaysLead: true, Timeout: time.Minute, Offer: time.Minute}, nil)
	const nodes, gangs = 5, 12
	var agents []*agent
	for i := range nodes {
		agents = append(agents, hubs[0].join(fmt.Sprint("n", i)))
	}
	var ids []offpeak.GroupID
	for i := range gangs {
		ids = append(ids, hubs[i%2].gang(2+i%3, nil))
	}
	stop := make(chan struct{})
	finished := make(chan struct{})
	for i, a := range agents {
		a = a.at(hubs[i%2])
		go func() {
			defer func() { finished <- struct{}{} }()
			for round := 0; ; round++ {
				select {
				case <-stop:
					return
				default:
				}
				for _, d := range a.beat(a.carries()...).Leases {
					switch {
					case d.Stop != "":
						a.end(d, d.Stop)
					case d.State == offpeak.LeaseOffered && round%7 == i:
						_, _ = a.report(d, "ended", func(r *wire.Report) { r.Reason = offpeak.EndDeclined })
					case d.State == offpeak.LeaseOffered:
						if _, err := a.report(d, "accepted", nil); err == nil {
							_, _ = a.report(d, "running", nil)
						}
					default:
						_, _ = a.report(d, "ended", func(r *wire.Report) {
							zero := 0
							r.Reason, r.Started, r.ExitCode = offpeak.EndCompleted, true, &zero
							if round%11 == i {
								r.Reason, r.ExitCode = offpeak.EndOwnerReturned, nil
							}
						})
					}
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
	hubs[0].eventually("all gangs to end", func() bool {
		open := 0
		for _, id := range ids {
			if !hubs[0].group(id).State.Terminal() {
				open++
			}
		}
		hubs[0].sound()
		return open == 0
	})
	close(stop)
	for range agents {
		<-finished
	}
	for _, id := range ids {
		if got := hubs[0].group(id); got.State != offpeak.JobSucceeded {
			t.Errorf("Group %s = %s %v", id, got.State, got.Counts)
		}
	}
	hubs[0].sound()
}
