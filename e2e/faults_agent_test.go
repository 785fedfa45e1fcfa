package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
)

// leaseEnds is how long a lease may take to run out on a busy machine.
const leaseEnds = 30 * time.Second

// The agent alone stands still past its timeout and comes back: its supervisor
// has frozen the job before another node took it, so the two never ran at once,
// and what the agent says then changes nothing.
func TestAgentStoppedPastItsTimeout(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	g.Priced(paid)
	a := g.StartAgent("a", "")
	id := g.Submit(g.Counter(50, 100*time.Millisecond)).ID
	old := g.WaitState(id, 20*time.Second, offpeak.JobRunning).Lease
	waitCheckpoints(t, g, id, 1)
	atWork(t, old)
	b := g.StartAgent("b", "")
	a.Stop()
	first := lost(t, g, id, 1)
	waitRunning(t, g, id, 2, b.Node)
	a.Continue()
	waitLiveness(t, g, a.Node, offpeak.NodeOnline)
	waitGone(t, old)
	if job := g.WaitState(id, 40*time.Second, offpeak.JobSucceeded, offpeak.JobFailed); job.Attempt != 2 || job.Node != b.Node {
		t.Errorf("job is %s after attempt %d on %s", job.State, job.Attempt, job.Node)
	}
	resumed(t, g, id, 50)
	first.untouched(t, g)
	waitIdle(t, g, a.Node)
}

// An end that the hub has committed and whose acknowledgement never arrived,
// because the agent or the hub was killed between the two, is told again and
// changes nothing.
func TestEndIsToldAgain(t *testing.T) {
	for _, c := range []struct {
		name string
		kill func(*gridtest.Grid, *gridtest.Agent, *gridtest.Link)
	}{
		{"agent killed", func(_ *gridtest.Grid, a *gridtest.Agent, link *gridtest.Link) {
			a.Kill()
			link.Heal()
			a.Start()
		}},
		{"hub killed", func(g *gridtest.Grid, _ *gridtest.Agent, link *gridtest.Link) {
			g.KillHub()
			link.Heal()
			g.StartHub()
		}},
		{"both killed", func(g *gridtest.Grid, a *gridtest.Agent, link *gridtest.Link) {
			g.KillHub()
			a.Kill()
			link.Heal()
			g.StartHub()
			a.Start()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// Long enough for the job not to freeze while no answer comes.
			g := gridtest.Start(t, bin, "--timeout", "20s")
			g.Priced(paid)
			link := g.Link()
			a := g.StartAgent("far", link.URL())
			spec := g.Shell(gridtest.Say + `echo up; until [ -e "$END" ]; do sleep 0.02; done; say end`)
			spec.Task.Env["END"] = filepath.Join(g.Dir, "end")
			id := g.Submit(spec).ID
			waitLog(t, g, id, "up\n")
			lease := g.WaitState(id, 20*time.Second, offpeak.JobRunning).Lease
			link.Drop(gridtest.ToAgent)
			if err := os.WriteFile(spec.Task.Env["END"], nil, 0o600); err != nil {
				t.Fatal(err)
			}
			g.WaitState(id, 15*time.Second, offpeak.JobSucceeded)
			c.kill(g, a, link)
			waitLiveness(t, g, a.Node, offpeak.NodeOnline)
			gridtest.Eventually(t, 20*time.Second, "the agent to be done with the lease", func() error {
				_, err := os.Stat(filepath.Join(a.Dir, "leases", string(lease)))
				if !os.IsNotExist(err) {
					return fmt.Errorf("its folder is there, %v", err)
				}
				return nil
			})
			g.WaitState(g.Submit(g.Shell("true")).ID, 20*time.Second, offpeak.JobSucceeded)
			ends := 0
			for _, e := range g.Events() {
				if e.Job == id && e.Type == "job.succeeded" {
					ends++
				}
			}
			if job, err := g.Client.Job(context.Background(), id); err != nil || job.Attempt != 1 || ends != 1 {
				t.Errorf("job is %s after attempt %d, succeeded %d times, %v", job.State, job.Attempt, ends, err)
			}
			waitIdle(t, g, a.Node)
		})
	}
}

// A supervisor is killed alone: its job goes with it, the attempt is the node's
// fault, and the job goes on from its checkpoint.
func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	g.Priced(paid)
	a := g.StartAgent("a", "", "--warm", "1")
	id := g.Submit(g.Counter(30, 100*time.Millisecond)).ID
	old := g.WaitState(id, 20*time.Second, offpeak.JobRunning).Lease
	waitCheckpoints(t, g, id, 1)
	atWork(t, old)
	supervisors := a.Supervisors()
	if len(supervisors) == 0 {
		t.Fatal("no supervisor was found: the test tests nothing")
	}
	for _, pid := range supervisors {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	waitGone(t, old)
	g.WaitState(id, 40*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
	resumed(t, g, id, 30)
	list, err := g.Client.Attempts(context.Background(), id)
	if err != nil || len(list.Items) != 2 || list.Items[0].Reason != offpeak.EndSupervisorLost {
		t.Errorf("attempts are %+v, %v", list.Items, err)
	}
	waitIdle(t, g, a.Node)
}

// waitRunning waits until an attempt of the job runs on a node.
func waitRunning(t *testing.T, g *gridtest.Grid, id offpeak.JobID, attempt offpeak.Attempt, node offpeak.NodeID) {
	t.Helper()
	gridtest.Eventually(t, leaseEnds, fmt.Sprintf("attempt %d of %s to run on %s", attempt, id, node), func() error {
		job, err := g.Client.Job(context.Background(), id)
		if err != nil || job.Attempt != attempt || job.Node != node || !slices.Contains([]offpeak.JobState{offpeak.JobRunning, offpeak.JobSucceeded}, job.State) {
			return fmt.Errorf("it is %s, attempt %d on %s, %v", job.State, job.Attempt, job.Node, err)
		}
		return nil
	})
}
