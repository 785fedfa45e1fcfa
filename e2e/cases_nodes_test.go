package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
)

// Timers that a suspend made stale: a node that slept far past its timeout goes
// offline once, comes back once, takes work again and does not flap.
func TestTimersAfterSuspend(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	a := g.StartAgent("a", "")
	before := onlineEvents(t, g, a.Node)
	a.Sleep()
	waitLiveness(t, g, a.Node, offpeak.NodeOffline)
	a.Wake()
	waitLiveness(t, g, a.Node, offpeak.NodeOnline)
	g.WaitState(g.Submit(g.Shell("true")).ID, 20*time.Second, offpeak.JobSucceeded)
	steady := time.Now()
	gridtest.Eventually(t, 30*time.Second, "three timeouts to pass", func() error {
		if since := time.Since(steady); since < 3*g.Timers.Timeout {
			return fmt.Errorf("%s so far", since)
		}
		return nil
	})
	after := onlineEvents(t, g, a.Node)
	if off, on := after.offline-before.offline, after.online-before.online; off != 1 || on != 1 {
		t.Errorf("the node went offline %d times and online %d times, want once each", off, on)
	}
}

// A lost completion record: what ended before agent and hub were killed never
// runs again, and its results can still be read.
func TestCompletionOutlivesCrash(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	a := g.StartAgent("a", "", "--cpu", "8")
	spec := g.Shell(`n=0; echo "start $OFFPEAK_JOB $OFFPEAK_ATTEMPT $OFFPEAK_LEASE 0 $(date +%s%N)" >>"$REFEREE"; echo "$OFFPEAK_JOB"`)
	const jobs = 50
	ids := make([]offpeak.JobID, jobs)
	for i := range ids {
		ids[i] = g.Submit(spec).ID
	}
	for _, id := range ids {
		g.WaitState(id, 60*time.Second, offpeak.JobSucceeded)
	}
	a.Kill()
	g.KillHub()
	g.StartHub()
	a.Start()
	waitLiveness(t, g, a.Node, offpeak.NodeOnline)
	// A job of its own shows that matching goes on.
	g.WaitState(g.Submit(g.Shell("true")).ID, 20*time.Second, offpeak.JobSucceeded)
	if ran := len(g.Facts()); ran != jobs {
		t.Errorf("%d jobs ran %d times", jobs, ran)
	}
	for _, id := range ids {
		job, err := g.Client.Job(context.Background(), id)
		if err != nil || job.State != offpeak.JobSucceeded || job.Attempt != 1 {
			t.Errorf("job %s is %s, attempt %d, %v", id, job.State, job.Attempt, err)
		}
		if got := g.Log(id, 0, "stdout"); got != string(id)+"\n" {
			t.Errorf("log of %s is %q", id, got)
		}
	}
}

// An unstable identity: however often an agent restarts, it is one node of one
// id, whose capacity counts once.
func TestIdentityOutlivesRestarts(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	a := g.StartAgent("a", "")
	for i := range 10 {
		before := node(t, g, a.Node).Incarnation
		if i%2 == 0 {
			a.Kill()
		} else if err := a.Terminate(); err != nil {
			t.Errorf("stop agent: %v", err)
		}
		a.Start()
		gridtest.Eventually(t, 20*time.Second, "the agent's new session", func() error {
			if n := node(t, g, a.Node); n.Incarnation == before || n.Liveness != offpeak.NodeOnline {
				return fmt.Errorf("node is %s in session %d of %s", n.Liveness, n.Generation, n.Incarnation)
			}
			return nil
		})
	}
	// Installed anew, with nothing left but the key.
	a.Kill()
	entries, err := os.ReadDir(a.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "node.key" {
			if err := os.RemoveAll(filepath.Join(a.Dir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	token, errs, exit := g.CLI("token", "join")
	if exit != 0 {
		t.Fatalf("make a join token: exit %d: %s", exit, errs)
	}
	if _, errs, exit := g.CLI("agent", "--data", a.Dir, "join", strings.TrimSpace(token), "--name", a.Name, "--cpu", "2"); exit != 0 {
		t.Errorf("join again: exit %d: %s", exit, errs)
	}
	before := node(t, g, a.Node).Incarnation
	a.Start()
	gridtest.Eventually(t, 20*time.Second, "the installed agent's session", func() error {
		if n := node(t, g, a.Node); n.Incarnation == before || n.Liveness != offpeak.NodeOnline {
			return fmt.Errorf("node is %s in session %d of %s", n.Liveness, n.Generation, n.Incarnation)
		}
		return nil
	})
	nodes, err := g.Client.Nodes(context.Background(), nil)
	if err != nil || len(nodes.Items) != 1 || nodes.Items[0].ID != a.Node || nodes.Items[0].Capacity.CPU != 2000 {
		t.Errorf("nodes are %+v, %v", nodes.Items, err)
	}
	g.WaitState(g.Submit(g.Shell("true")).ID, 20*time.Second, offpeak.JobSucceeded)
}

// Registration that diverged: an agent whose node was removed, while it ran or
// while it was down, says so and ends; it comes back with a token.
func TestRemovedNodeSaysSoAndJoinsAgain(t *testing.T) {
	for _, up := range []bool{true, false} {
		t.Run(fmt.Sprintf("up=%v", up), func(t *testing.T) {
			t.Parallel()
			g := gridtest.Start(t, bin)
			a := g.StartAgent("a", "")
			if !up {
				a.Kill()
			}
			if err := g.Client.RemoveNode(context.Background(), gridtest.NewOp(), a.Node); err != nil {
				t.Fatal(err)
			}
			if !up {
				a.Start()
			}
			if err := a.Wait(20 * time.Second); err == nil {
				t.Error("the agent ended as if nothing was wrong")
			}
			log, err := os.ReadFile(filepath.Join(g.Dir, "agent-a.log"))
			if err != nil || !strings.Contains(string(log), "the hub removed this node: run") {
				t.Errorf("the agent did not say why it ended, %v:\n%s", err, log)
			}
			token, errs, exit := g.CLI("token", "join")
			if exit != 0 {
				t.Fatalf("make a join token: exit %d: %s", exit, errs)
			}
			if _, errs, exit := g.CLI("agent", "--data", a.Dir, "leave"); exit != 0 {
				t.Errorf("leave: exit %d: %s", exit, errs)
			}
			if _, errs, exit := g.CLI("agent", "--data", a.Dir, "join", strings.TrimSpace(token), "--name", "again", "--cpu", "2"); exit != 0 {
				t.Errorf("join again: exit %d: %s", exit, errs)
			}
			a.Start()
			job := g.WaitState(g.Submit(g.Shell("true")).ID, 20*time.Second, offpeak.JobSucceeded)
			if job.Node == a.Node {
				t.Error("the removed node's id was used again")
			}
		})
	}
}

// A silent loss: the job's processes are killed from outside while the agent
// lives. The end comes within a report, with the signal's name, and a retry is
// an attempt of its own.
func TestProcessTreeKilledFromOutside(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	g.StartAgent("a", "")
	marker := "offpeak-victim-" + filepath.Base(g.Dir)
	spec := g.Shell(`if [ "$OFFPEAK_ATTEMPT" -gt 1 ]; then exit 0; fi; exec sh -c ": ` + marker + `; echo up; sleep 600; true"`)
	spec.Retry = &offpeak.RetryPolicy{User: 1, Node: 8, Interruption: 8}
	id := g.Submit(spec).ID
	g.WaitState(id, 20*time.Second, offpeak.JobRunning)
	var victims []int
	gridtest.Eventually(t, 20*time.Second, "the job's own shell", func() error {
		victims = slices.DeleteFunc(gridtest.ProcessesNamed(": "+marker), func(pid int) bool {
			exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
			return exe == bin
		})
		if g.Log(id, 1, "stdout") != "up\n" || len(victims) == 0 {
			return fmt.Errorf("%d processes", len(victims))
		}
		return nil
	})
	for _, pid := range victims {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	killed := time.Now()
	var attempts []offpeak.Lease
	gridtest.Eventually(t, 10*time.Second, "the first attempt to end", func() error {
		list, err := g.Client.Attempts(context.Background(), id)
		if err != nil || len(list.Items) == 0 || !list.Items[0].State.Terminal() {
			return fmt.Errorf("attempts are %+v, %v", list.Items, err)
		}
		attempts = list.Items
		return nil
	})
	if took := time.Since(killed); took > 2*time.Second {
		t.Errorf("the end came after %s", took)
	}
	if first := attempts[0]; first.Reason != offpeak.EndSignalled || first.Signal != "SIGKILL" {
		t.Errorf("attempt 1 ended as %s, signal %q", first.Reason, first.Signal)
	}
	if job := g.WaitState(id, 20*time.Second, offpeak.JobSucceeded, offpeak.JobFailed); job.State != offpeak.JobSucceeded || job.Attempt != 2 {
		t.Errorf("job is %s after attempt %d", job.State, job.Attempt)
	}
}

func node(t *testing.T, g *gridtest.Grid, id offpeak.NodeID) offpeak.Node {
	t.Helper()
	n, err := g.Client.Node(context.Background(), id)
	if err != nil {
		t.Fatalf("node %s: %v", id, err)
	}
	return n
}

func waitLiveness(t *testing.T, g *gridtest.Grid, id offpeak.NodeID, want offpeak.Liveness) {
	t.Helper()
	gridtest.Eventually(t, 30*time.Second, fmt.Sprintf("node %s to be %s", id, want), func() error {
		if n := node(t, g, id); n.Liveness != want {
			return fmt.Errorf("it is %s", n.Liveness)
		}
		return nil
	})
}
