// Package e2e runs whole grids of real processes: the built binary as hub,
// agents and CLI, real jobs, real signals. Each test ends with the invariants
// checked on the live store, and jobs testify to a referee file of their own.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
)

// bin is the binary under test, built once by TestMain.
var bin string

// paid is what nodes ask where money changes hands all the while that things fail:
// what the ledger says in the end is checked with everything else.
const paid = 360_000 // 0.36 credits an hour

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "offpeak-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	bin = filepath.Join(dir, "offpeak")
	build := exec.Command("go", "build", "-o", bin, "offpeak/cmd/offpeak")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// A job runs, its log is whole and exact, its outputs come back.
func TestJobRuns(t *testing.T) {
	g := gridtest.Start(t, bin)
	g.StartAgent("a", "")
	spec := g.Shell(`printf 'out\000\377\n'; echo err >&2; echo result >result`)
	spec.Task.Outputs = []string{"result"}
	job := g.WaitState(g.Submit(spec).ID, 20*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
	if job.State != offpeak.JobSucceeded || job.ExitCode == nil || *job.ExitCode != 0 || job.Output == "" {
		t.Errorf("job ended as %s %s %s, exit %v, output %q", job.State, job.Reason, job.Detail, job.ExitCode, job.Output)
	}
	if got := g.Log(job.ID, 0, "stdout"); got != "out\x00\xff\n" {
		t.Errorf("stdout is %q", got)
	}
	if got := g.Log(job.ID, 0, "stderr"); got != "err\n" {
		t.Errorf("stderr is %q", got)
	}
}

// A node is killed in the middle of a job: the job goes on elsewhere from its
// last stored checkpoint, never before the lease has expired.
func TestNodeKilled(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	agents := map[offpeak.NodeID]*gridtest.Agent{}
	for _, name := range []string{"a", "b"} {
		a := g.StartAgent(name, "")
		agents[a.Node] = a
	}
	id := g.Submit(g.Counter(40, 100*time.Millisecond)).ID
	job := g.WaitState(id, 20*time.Second, offpeak.JobRunning)
	waitCheckpoints(t, g, id, 2)
	dead := agents[job.Node]
	killed := time.Now()
	dead.KillNode()
	stored := newestCheckpoint(t, g, id)
	job = g.WaitState(id, 40*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
	if job.State != offpeak.JobSucceeded || job.Attempt != 2 || job.Node == dead.Node {
		t.Fatalf("job is %s after attempt %d on %s", job.State, job.Attempt, job.Node)
	}
	starts := starts(g.Facts())
	if len(starts) != 2 || starts[1].Attempt != 2 || starts[1].Step < stored {
		t.Fatalf("starts are %v; checkpoint %d was stored before the kill", starts, stored)
	}
	resumed(t, g, id, 40)
	if wait := starts[1].At.Sub(killed); wait < g.Timers.Timeout-2*g.Timers.Heartbeat {
		t.Errorf("attempt 2 began %s after the kill, before the lease could have expired", wait)
	}
	attempts, err := g.Client.Attempts(context.Background(), id)
	if err != nil || len(attempts.Items) != 2 || attempts.Items[0].Reason != offpeak.EndNodeLost {
		t.Errorf("attempts are %+v, %v", attempts.Items, err)
	}
}

// The agent alone is killed: the job goes on under its supervisor and the next
// agent adopts it. No step is repeated.
func TestAgentKilledJobAdopted(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	a := g.StartAgent("a", "")
	id := g.Submit(g.Counter(30, 100*time.Millisecond)).ID
	g.WaitState(id, 20*time.Second, offpeak.JobRunning)
	waitSteps(t, g, 5)
	a.Kill()
	a.Start()
	job := g.WaitState(id, 30*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
	if job.State != offpeak.JobSucceeded || job.Attempt != 1 {
		t.Errorf("job is %s after attempt %d: %s", job.State, job.Attempt, job.Detail)
	}
	noStepTwice(t, g)
	wholeLog(t, g, id, 30)
	// It held its node and was metered to the end, not to the adoption.
	attempts, err := g.Client.Attempts(context.Background(), id)
	if err != nil || len(attempts.Items) != 1 || attempts.Items[0].Metered < 2500 {
		t.Errorf("attempts are %+v, %v; want one, metered for the 3 s it ran", attempts.Items, err)
	}
}

// A laptop's lid is closed past the timeout and opened again: the old attempt
// is dropped, the new one's result counts, and they overlap for two seconds at
// most.
func TestNodeSuspended(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	agents := map[offpeak.NodeID]*gridtest.Agent{}
	for _, name := range []string{"a", "b"} {
		a := g.StartAgent(name, "")
		agents[a.Node] = a
	}
	id := g.Submit(g.Counter(60, 100*time.Millisecond)).ID
	job := g.WaitState(id, 20*time.Second, offpeak.JobRunning)
	waitSteps(t, g, 5)
	slept := agents[job.Node]
	slept.Sleep()
	first := lost(t, g, id, 1)
	gridtest.Eventually(t, 30*time.Second, "attempt 2 to run", func() error {
		j, err := g.Client.Job(context.Background(), id)
		if err != nil || j.Attempt != 2 || j.State != offpeak.JobRunning {
			return fmt.Errorf("job is %s, attempt %d, %v", j.State, j.Attempt, err)
		}
		return nil
	})
	slept.Wake()
	job = g.WaitState(id, 40*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
	if job.State != offpeak.JobSucceeded || job.Attempt != 2 {
		t.Errorf("job is %s after attempt %d", job.State, job.Attempt)
	}
	if o := gridtest.Overlap(g.Facts()); o > 2*time.Second {
		t.Errorf("two attempts ran at once for %s", o)
	}
	resumed(t, g, id, 60)
	first.untouched(t, g)
	// The node is back, once, and works again.
	before := onlineEvents(t, g, slept.Node)
	if before.offline != 1 || before.online < 1 {
		t.Errorf("node went offline %d times and online %d times", before.offline, before.online)
	}
}

// The hub is away for three timeouts: jobs freeze and thaw, nobody is expired,
// no step is repeated.
func TestHubAway(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	for _, name := range []string{"a", "b"} {
		g.StartAgent(name, "")
	}
	ids := []offpeak.JobID{g.Submit(g.Counter(60, 100*time.Millisecond)).ID, g.Submit(g.Counter(60, 100*time.Millisecond)).ID}
	for _, id := range ids {
		g.WaitState(id, 20*time.Second, offpeak.JobRunning)
	}
	waitSteps(t, g, 10)
	g.KillHub()
	gone := time.Now()
	frozenSince := time.Now()
	gridtest.Eventually(t, 30*time.Second, "three timeouts to pass", func() error {
		if facts := g.Facts(); len(facts) > 0 {
			frozenSince = facts[len(facts)-1].At
		}
		if time.Since(gone) < 3*g.Timers.Timeout {
			return fmt.Errorf("%s so far", time.Since(gone))
		}
		return nil
	})
	if since := frozenSince.Sub(gone); since > g.Timers.Timeout {
		t.Errorf("jobs still ran %s after the hub was gone", since)
	}
	g.StartHub()
	for _, id := range ids {
		job := g.WaitState(id, 40*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
		if job.State != offpeak.JobSucceeded || job.Attempt != 1 {
			t.Errorf("job %s is %s after attempt %d: %s", id, job.State, job.Attempt, job.Detail)
		}
		wholeLog(t, g, id, 60)
	}
	noStepTwice(t, g)
}

// Whatever a job forks is gone when it is cancelled.
func TestCancelLeavesNothing(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	g.StartAgent("a", "")
	marker := "offpeak-survivor-" + filepath.Base(g.Dir)
	id := g.Submit(g.Shell(`trap '' TERM; for i in 1 2 3; do (setsid sh -c ": ` + marker + `; trap '' TERM; sleep 600; true" &) ; done; echo up; sleep 600`)).ID
	gridtest.Eventually(t, 20*time.Second, "the job to be up", func() error {
		if !strings.Contains(g.Log(id, 0, "stdout"), "up") {
			return fmt.Errorf("no word yet")
		}
		return nil
	})
	if _, err := g.Client.Cancel(context.Background(), gridtest.NewOp(), id); err != nil {
		t.Fatal(err)
	}
	job := g.WaitState(id, 20*time.Second, offpeak.JobCancelled)
	if job.Reason != offpeak.EndCancelled {
		t.Errorf("reason is %q", job.Reason)
	}
	if left := gridtest.ProcessesNamed(marker); len(left) > 0 {
		t.Errorf("processes left behind: %v", left)
	}
}

// Exit codes and signals come through exactly.
func TestExits(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	g.StartAgent("a", "")
	for _, c := range []struct {
		script string
		reason offpeak.EndReason
		code   int
		signal string
	}{
		{"exit 0", offpeak.EndCompleted, 0, ""},
		{"exit 1", offpeak.EndExitNonzero, 1, ""},
		{"exit 2", offpeak.EndExitNonzero, 2, ""},
		{"exit 85", offpeak.EndExitNonzero, 85, ""},
		{"exit 126", offpeak.EndExitNonzero, 126, ""},
		{"exit 127", offpeak.EndExitNonzero, 127, ""},
		{"exit 137", offpeak.EndExitNonzero, 137, ""},
		{"exit 255", offpeak.EndExitNonzero, 255, ""},
		{"false | true", offpeak.EndCompleted, 0, ""},
		{"kill -SEGV $$", offpeak.EndSignalled, -1, "SIGSEGV"},
		{"kill -KILL $$", offpeak.EndSignalled, -1, "SIGKILL"},
	} {
		job := g.WaitState(g.Submit(g.Shell("echo before; echo err >&2; "+c.script)).ID, 20*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
		if job.Reason != c.reason || job.Signal != c.signal || (c.code >= 0 && (job.ExitCode == nil || *job.ExitCode != c.code)) {
			t.Errorf("%s: ended as %s, code %v, signal %q", c.script, job.Reason, job.ExitCode, job.Signal)
		}
		if out, errs := g.Log(job.ID, 0, "stdout"), g.Log(job.ID, 0, "stderr"); out != "before\n" || errs != "err\n" {
			t.Errorf("%s: logs are %q and %q", c.script, out, errs)
		}
	}
	spec := g.Shell("")
	spec.Task.Command = []string{"./not-there"}
	if job := g.WaitState(g.Submit(spec).ID, 20*time.Second, offpeak.JobFailed); job.Reason != offpeak.EndCommandNotFound {
		t.Errorf("missing command ended as %s", job.Reason)
	}
	spec = g.Shell("true")
	spec.Task.Outputs = []string{"not-written"}
	if job := g.WaitState(g.Submit(spec).ID, 20*time.Second, offpeak.JobFailed); job.Reason != offpeak.EndOutputsMissing {
		t.Errorf("missing output ended as %s", job.Reason)
	}
	spec = g.Shell("sleep 60")
	spec.Limits.Time = offpeak.Duration(time.Second)
	if job := g.WaitState(g.Submit(spec).ID, 20*time.Second, offpeak.JobFailed); job.Reason != offpeak.EndTimeLimit {
		t.Errorf("time limit ended as %s", job.Reason)
	}
}

// Environment and arguments arrive byte for byte.
func TestBytesArrive(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	g.StartAgent("a", "")
	values := []string{"a b", "k=v=w", `"quoted" 'both'`, "$HOME", "`date`", "line\nbreak", "", strings.Repeat("x", 90_000), "名前 🦊 é"}
	spec := g.Shell("")
	spec.Task.Command = []string{"/bin/sh", "-c", `i=0; while [ $i -lt ` + fmt.Sprint(len(values)) + ` ]; do eval "printf '%s\\0' \"\$V$i\""; i=$((i+1)); done; printf '%s\0' "$@"`, "sh", "a b", "$HOME", "", "`x`"}
	want := ""
	for i, v := range values {
		spec.Task.Env[fmt.Sprintf("V%d", i)] = v
		want += v + "\x00"
	}
	want += "a b\x00$HOME\x00\x00`x`\x00"
	job := g.WaitState(g.Submit(spec).ID, 20*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
	if got := g.Log(job.ID, 0, "stdout"); got != want {
		t.Errorf("job %s read %d bytes, want %d", job.State, len(got), len(want))
	}
}

func starts(facts []gridtest.Fact) []gridtest.Fact {
	return slices.DeleteFunc(slices.Clone(facts), func(f gridtest.Fact) bool { return f.What != "start" })
}

func noStepTwice(t *testing.T, g *gridtest.Grid) {
	t.Helper()
	type step struct {
		job offpeak.JobID
		n   int
	}
	seen := map[step]bool{}
	for _, f := range g.Facts() {
		if f.What != "step" {
			continue
		}
		if seen[step{f.Job, f.Step}] {
			t.Errorf("job %s ran step %d twice", f.Job, f.Step)
		}
		seen[step{f.Job, f.Step}] = true
	}
}

func wholeLog(t *testing.T, g *gridtest.Grid, id offpeak.JobID, steps int) {
	t.Helper()
	if got, want := g.Log(id, 1, "stdout"), counted(1, 0, steps); got != want {
		t.Errorf("log of %s is not exact: %d bytes, want %d:\n%s", id, len(got), len(want), got)
	}
}

func waitSteps(t *testing.T, g *gridtest.Grid, n int) {
	t.Helper()
	gridtest.Eventually(t, 20*time.Second, fmt.Sprintf("%d facts", n), func() error {
		if got := len(g.Facts()); got < n {
			return fmt.Errorf("%d so far", got)
		}
		return nil
	})
}

func waitCheckpoints(t *testing.T, g *gridtest.Grid, id offpeak.JobID, n int) {
	t.Helper()
	gridtest.Eventually(t, 20*time.Second, fmt.Sprintf("%d checkpoints", n), func() error {
		list, err := g.Client.Checkpoints(context.Background(), id)
		if err != nil || len(list.Items) < n {
			return fmt.Errorf("%d so far, %v", len(list.Items), err)
		}
		return nil
	})
}

func newestCheckpoint(t *testing.T, g *gridtest.Grid, id offpeak.JobID) (step int) {
	t.Helper()
	list, err := g.Client.Checkpoints(context.Background(), id)
	if err != nil || len(list.Items) == 0 {
		t.Fatalf("checkpoints of %s: %v, %v", id, list.Items, err)
	}
	if _, err := fmt.Sscan(list.Items[0].Name, &step); err != nil {
		t.Fatalf("checkpoint is named %q", list.Items[0].Name)
	}
	return step
}

type turns struct{ offline, online int }

func onlineEvents(t *testing.T, g *gridtest.Grid, node offpeak.NodeID) (n turns) {
	t.Helper()
	for _, e := range g.Events() {
		if e.Node == node && e.Type == "node.offline" {
			n.offline++
		}
		if e.Node == node && e.Type == "node.online" {
			n.online++
		}
	}
	return n
}
