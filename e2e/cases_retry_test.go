package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
)

// A retry limit that other causes use up or evade: a job that always fails has
// exactly as many attempts of its own fault as it may, whatever is between them,
// and the pauses after them grow.
func TestRetriesCountEachCauseApart(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	agents := map[offpeak.NodeID]*gridtest.Agent{}
	for _, name := range []string{"a", "b"} {
		a := g.StartAgent(name, "")
		agents[a.Node] = a
	}
	spec := g.Shell(`until [ -e "$FAIL" ]; do sleep 0.02; done; exit 7`)
	fail := filepath.Join(g.Dir, "fail")
	spec.Task.Env["FAIL"] = fail
	spec.Retry = &offpeak.RetryPolicy{User: 2, Node: 3, Interruption: 9}
	id := g.Submit(spec).ID
	running := func(attempt offpeak.Attempt) *gridtest.Agent {
		t.Helper()
		var job offpeak.Job
		gridtest.Eventually(t, 30*time.Second, fmt.Sprintf("attempt %d to run", attempt), func() (err error) {
			job, err = g.Client.Job(context.Background(), id)
			if err != nil || job.State != offpeak.JobRunning || job.Attempt != attempt {
				return fmt.Errorf("it is %s, attempt %d, %v", job.State, job.Attempt, err)
			}
			return nil
		})
		return agents[job.Node]
	}
	// Its own fault once, then a kill, a drain, and its own fault to the end.
	running(1)
	if err := os.WriteFile(fail, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gridtest.Eventually(t, 20*time.Second, "the first failure", func() error {
		if job, err := g.Client.Job(context.Background(), id); err != nil || job.Counts.User != 1 {
			return fmt.Errorf("it counts %+v, %v", job.Counts, err)
		}
		return nil
	})
	// Attempt 2 begins half a second after attempt 1 at the earliest.
	if err := os.Remove(fail); err != nil {
		t.Fatal(err)
	}
	killed := running(2)
	killed.KillNode()
	drained := running(3)
	killed.Start()
	waitLiveness(t, g, killed.Node, offpeak.NodeOnline)
	if _, errs, exit := g.CLI("nodes", "drain", drained.Name, "--stop"); exit != 0 {
		t.Errorf("drain: exit %d: %s", exit, errs)
	}
	if a := running(4); a != killed {
		t.Errorf("attempt 4 runs on %s, which is drained", a.Name)
	}
	if err := os.WriteFile(fail, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	job := g.WaitState(id, 30*time.Second, offpeak.JobFailed)
	if job.Reason != offpeak.EndExitNonzero || job.ExitCode == nil || *job.ExitCode != 7 || job.Counts != (offpeak.RetryCounts{User: 2, Interruption: 2}) {
		t.Errorf("it failed as %s %v, with %+v", job.Reason, job.ExitCode, job.Counts)
	}
	list, err := g.Client.Attempts(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	want := []offpeak.EndReason{offpeak.EndExitNonzero, offpeak.EndNodeLost, offpeak.EndDrained, offpeak.EndExitNonzero, offpeak.EndExitNonzero}
	if len(list.Items) != len(want) {
		t.Fatalf("%d attempts, want %d: %+v", len(list.Items), len(want), list.Items)
	}
	var pauses []time.Duration
	for i, l := range list.Items {
		if l.Reason != want[i] || int(l.Attempt) != i+1 {
			t.Errorf("attempt %d ended as %s, want %s", l.Attempt, l.Reason, want[i])
		}
		if i+1 < len(list.Items) && l.Reason == offpeak.EndExitNonzero {
			pauses = append(pauses, list.Items[i+1].OfferedAt.Sub(*l.EndedAt))
		}
	}
	// A second jittered over its upper half, then two.
	if len(pauses) != 2 || pauses[0] < time.Second/2 || pauses[1] < time.Second || pauses[1] <= pauses[0] {
		t.Errorf("the pauses after its own failures are %v: they have to grow", pauses)
	}
}

// A reservation that leaks: after jobs that ended, failed, were cancelled, timed
// out and were sent back from nodes that were killed, cut off, drained and
// restarted, in an order that a seed chose, nodes hold nothing and all they have
// can be had again.
func TestReservationsDoNotLeak(t *testing.T) {
	t.Parallel()
	const cycles, seed = 60, 21
	rng := rand.New(rand.NewPCG(seed, cycles))
	g := gridtest.Start(t, bin)
	link := g.Link()
	agents := []*gridtest.Agent{g.StartAgent("a", link.URL()), g.StartAgent("b", "")}
	had := map[offpeak.NodeID]offpeak.Resources{}
	for _, a := range agents {
		had[a.Node] = node(t, g, a.Node).Capacity
	}
	var jobs []offpeak.JobID
	submit := func(script string) offpeak.JobID {
		spec := g.Shell(script)
		spec.Requirements.CPU = 250 * (1 + rng.Int64N(8))
		spec.Requirements.Memory = offpeak.MiB * offpeak.Bytes(16+rng.IntN(900))
		spec.Limits.Time = offpeak.Duration(time.Second)
		spec.Limits.KeepFrozen = offpeak.Duration(5 * time.Second)
		spec.Retry = &offpeak.RetryPolicy{User: 1, Node: 8, Interruption: 1000}
		id := g.Submit(spec).ID
		jobs = append(jobs, id)
		return id
	}
	open := func(a *gridtest.Agent) {
		if _, errs, exit := g.CLI("nodes", "open", a.Name); exit != 0 {
			t.Errorf("open %s: exit %d: %s", a.Name, exit, errs)
		}
	}
	did := map[string]int{}
	for range cycles {
		a := agents[rng.IntN(len(agents))]
		submit([]string{"true", "sleep 0.3", "exit 3", "sleep 30", "kill -KILL $$"}[rng.IntN(5)])
		// The moment is the fault.
		<-time.After(time.Duration(rng.IntN(250)) * time.Millisecond)
		what := []string{"cancel", "cancel", "cancel", "kill agent", "kill node", "cut", "drain"}[rng.IntN(7)]
		did[what]++
		switch what {
		case "cancel":
			// It may have ended already.
			recent := jobs[max(0, len(jobs)-5):]
			if _, err := g.Client.Cancel(context.Background(), gridtest.NewOp(), recent[rng.IntN(len(recent))]); err != nil && !errors.Is(err, offpeak.ErrConflict) {
				t.Errorf("cancel: %v", err)
			}
		case "kill agent":
			a.Kill()
			a.Start()
		case "kill node":
			a.KillNode()
			a.Start()
		case "cut":
			link.Cut()
			<-time.After(time.Duration(rng.IntN(4000)) * time.Millisecond)
			link.Mend()
		case "drain":
			args := []string{"nodes", "drain", a.Name, "--stop"}
			if rng.IntN(2) == 0 {
				args = args[:3]
			}
			if _, errs, exit := g.CLI(args...); exit != 0 {
				t.Errorf("drain %s: exit %d: %s", a.Name, exit, errs)
			}
			<-time.After(time.Duration(rng.IntN(250)) * time.Millisecond)
			open(a)
		}
	}
	for _, id := range jobs {
		g.WaitState(id, 90*time.Second, offpeak.JobSucceeded, offpeak.JobFailed, offpeak.JobCancelled)
	}
	t.Logf("seed %d: %v", seed, did)
	for _, a := range agents {
		waitLiveness(t, g, a.Node, offpeak.NodeOnline)
		open(a)
		waitIdle(t, g, a.Node)
		n := node(t, g, a.Node)
		if n.Capacity.CPU != n.Inventory.CPU || n.Capacity.Memory != n.Inventory.Memory || n.Capacity.Disk != n.Inventory.Disk || n.Capacity.CPU != had[a.Node].CPU || n.Capacity.Memory != had[a.Node].Memory {
			t.Errorf("node %s has %+v of its inventory, it had %+v", a.Name, n.Capacity, had[a.Node])
		}
	}
	// All of every node can be had.
	var all []offpeak.JobID
	for _, a := range agents {
		spec := g.Shell("true")
		spec.Requirements.CPU, spec.Requirements.Memory, spec.Requirements.Disk = had[a.Node].CPU, had[a.Node].Memory, offpeak.GiB
		all = append(all, g.Submit(spec).ID)
	}
	for _, id := range all {
		g.WaitState(id, 30*time.Second, offpeak.JobSucceeded)
	}
}
