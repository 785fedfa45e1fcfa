// Package gridtest runs a whole grid of real processes on loopback: a hub or
// several, agents, their supervisors and jobs, each started from the built binary and
// killed, stopped and cut off with real signals and real sockets.
//
// A Grid belongs to one test. Everything it starts is gone and everything it
// wrote is removed when the test ends, and every test ends with the invariants
// checked on the live store. Jobs testify for themselves: a referee job appends
// what it does to a file outside the grid.
package gridtest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/local"
	"offpeak/wire"
)

// Timers are the grid's durations, short enough for tests. At the default
// timeout of two seconds an agent freezes its jobs after one and a half.
type Timers struct {
	Heartbeat, Timeout, Offer, Tick time.Duration
}

// Quick are timers for tests on a busy machine with two cores.
var quick = Timers{Heartbeat: 200 * time.Millisecond, Timeout: 3 * time.Second, Offer: 2 * time.Second, Tick: 100 * time.Millisecond}

// Grid is one hub, or several on one database, and their agents.
type Grid struct {
	t      testing.TB
	bin    string
	Dir    string
	Timers Timers
	// Tools is a folder that agents have first in their PATH, for fakes of the tools
	// that tell what a machine has; "" is none.
	Tools string
	// Hubs are the hub processes; what the grid's own methods do to "the hub"
	// they do to the first.
	Hubs []*Hub
	// Client goes round the hubs: to the next where one does not answer.
	Client *wire.Direct
	// slept says that a machine stood still, so that what it ran may overlap
	// for a moment with what took its place.
	slept bool
	// forgotten are jobs that the hub does not know any more, rightly.
	forgotten map[offpeak.JobID]bool

	mu     sync.Mutex // guards agents
	agents map[string]*Agent
}

// Start starts a hub from the binary at bin. Extra arguments go to `offpeak hub`.
func Start(t testing.TB, bin string, hubArgs ...string) *Grid {
	t.Helper()
	return start(t, bin, "", 1, quick, hubArgs)
}

// StartHubs starts so many hubs on the PostgreSQL database at db, each with a
// folder and a home of its own, as on machines of their own.
func StartHubs(t testing.TB, bin, db string, n int, timers Timers, hubArgs ...string) *Grid {
	t.Helper()
	return start(t, bin, db, n, timers, hubArgs)
}

func start(t testing.TB, bin, db string, n int, timers Timers, hubArgs []string) *Grid {
	t.Helper()
	dir, err := os.MkdirTemp("", "grid")
	if err != nil {
		t.Fatal(err)
	}
	g := &Grid{t: t, bin: bin, Dir: dir, Timers: timers, agents: map[string]*Agent{}, forgotten: map[offpeak.JobID]bool{}}
	t.Cleanup(g.stop)
	for i := range n {
		g.Hubs = append(g.Hubs, newHub(g, i, db, hubArgs))
	}
	for _, h := range g.Hubs {
		h.Start()
	}
	g.login()
	return g
}

// Env is the environment of every process of the grid: a home of its own, so
// that tests neither see nor touch the user's.
func (g *Grid) Env() []string { return g.Hubs[0].env() }

func (g *Grid) command(env []string, logName string, args ...string) *exec.Cmd {
	cmd := exec.Command(g.bin, args...)
	cmd.Env = env
	log, err := os.OpenFile(filepath.Join(g.Dir, logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		g.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	g.t.Cleanup(func() { log.Close() })
	return cmd
}

// CLI runs a command of the binary as a person on the hub's machine would, and
// returns what it printed and how it exited.
func (g *Grid) CLI(args ...string) (stdout, stderr string, exit int) {
	return g.CLIIn(g.Dir, args...)
}

// CLIIn is CLI in another working folder.
func (g *Grid) CLIIn(dir string, args ...string) (stdout, stderr string, exit int) {
	return g.Hubs[0].cli(dir, args...)
}

// Agent is one agent process, with the supervisors and jobs below it.
type Agent struct {
	Name string
	Node offpeak.NodeID
	Dir  string
	grid *Grid
	args []string
	cmd  *exec.Cmd
}

// StartAgent joins a node of its own and runs its agent. Extra arguments go to
// `offpeak agent run`. hub is the address to use, "" for those of all hubs.
func (g *Grid) StartAgent(name, hub string, args ...string) *Agent {
	g.t.Helper()
	if hub == "" {
		hub = strings.Join(g.URLs(), ",")
	}
	a := &Agent{Name: name, Dir: filepath.Join(g.Dir, "agent-"+name), grid: g}
	a.args = append([]string{"agent", "run", "--data", a.Dir, "--name", name, "--hub", hub, "--cpu", "2", "--memory", "2GiB", "--disk", "4GiB", "--gpus", "none", "--presence=false"}, args...)
	a.Start()
	g.mu.Lock()
	g.agents[name] = a
	g.mu.Unlock()
	Eventually(g.t, 20*time.Second, "node "+name+" to be online", func() error {
		nodes, err := g.Client.Nodes(context.Background(), nil)
		if err != nil {
			return err
		}
		for _, n := range nodes.Items {
			if n.Name == name && n.Liveness == offpeak.NodeOnline {
				a.Node = n.ID
				return nil
			}
		}
		return fmt.Errorf("not among %d nodes", len(nodes.Items))
	})
	return a
}

// Agents are the grid's agents, by name.
func (g *Grid) Agents() []*Agent {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := slices.Collect(maps.Values(g.agents))
	slices.SortFunc(out, func(a, b *Agent) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Start starts the agent's process, also after it was killed.
func (a *Agent) Start() {
	a.grid.t.Helper()
	env := a.grid.Env()
	if tools := a.grid.Tools; tools != "" {
		env = append(env, "PATH="+tools+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	a.cmd = a.grid.command(env, "agent-"+a.Name+".log", a.args...)
	if err := a.cmd.Start(); err != nil {
		a.grid.t.Fatalf("start agent %s: %v", a.Name, err)
	}
}

// PID is the agent's process.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Kill kills the agent's process alone; its supervisors and jobs go on.
func (a *Agent) Kill() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}

// Terminate asks the agent to stop and returns its exit error.
func (a *Agent) Terminate() error {
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	return a.cmd.Wait()
}

// Wait waits until the agent's process has ended by itself and returns its exit
// error. It fails the test when that takes too long.
func (a *Agent) Wait(within time.Duration) error {
	a.grid.t.Helper()
	late := time.AfterFunc(within, func() {
		a.grid.t.Errorf("agent %s still ran after %s", a.Name, within)
		_ = a.cmd.Process.Kill()
	})
	defer late.Stop()
	return a.cmd.Wait()
}

// Processes are the agent, its supervisors and all below them, found by the
// agent's folder in their command lines and by parenthood.
func (a *Agent) Processes() []int {
	roots := map[int]bool{}
	parent := map[int]int{}
	for _, pid := range pids() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(cmdline), a.Dir) && strings.HasPrefix(string(cmdline), a.grid.bin) {
			roots[pid] = true
		}
		parent[pid] = ppid(pid)
	}
	var out []int
	for pid := range parent {
		for p := pid; p > 1; p = parent[p] {
			if roots[p] {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// Supervisors are the agent's supervisors, those that wait for a job too.
func (a *Agent) Supervisors() []int {
	return slices.DeleteFunc(a.Processes(), func(pid int) bool {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return !strings.Contains(string(cmdline), "\x00supervise\x00")
	})
}

func pids() []int {
	names, _ := filepath.Glob("/proc/[0-9]*")
	out := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(filepath.Base(n)); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

func ppid(pid int) int {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(data), ") ")
	if !ok {
		return 0
	}
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(fields[1])
	return n
}

// KillNode kills agent, supervisors and jobs together, as a power cut does.
func (a *Agent) KillNode() {
	for range 10 {
		ps := a.Processes()
		for _, pid := range ps {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(ps) == 0 {
			break
		}
		_ = a.cmd.Wait()
	}
}

// Sleep and Wake are a laptop's lid: agent, supervisors and jobs stand still
// together. What woke up may run for a moment before it knows the time.
func (a *Agent) Sleep() {
	a.grid.slept = true
	a.signal(syscall.SIGSTOP)
}

// Wake undoes Sleep.
func (a *Agent) Wake() { a.signal(syscall.SIGCONT) }

// Stop stops the agent's process alone, with SIGSTOP, until Continue; its
// supervisors and jobs go on.
func (a *Agent) Stop() { _ = a.cmd.Process.Signal(syscall.SIGSTOP) }

// Continue undoes Stop.
func (a *Agent) Continue() { _ = a.cmd.Process.Signal(syscall.SIGCONT) }

func (a *Agent) signal(sig syscall.Signal) {
	for _, pid := range a.Processes() {
		_ = syscall.Kill(pid, sig)
	}
}

// Submit submits a job and fails the test if that is refused.
func (g *Grid) Submit(spec offpeak.Spec) offpeak.Job {
	g.t.Helper()
	job, err := g.Client.Submit(context.Background(), NewOp(), spec)
	if err != nil {
		g.t.Fatalf("submit: %v", err)
	}
	return job
}

// WaitState waits until the job is in one of the states.
func (g *Grid) WaitState(id offpeak.JobID, within time.Duration, states ...offpeak.JobState) offpeak.Job {
	g.t.Helper()
	var job offpeak.Job
	Eventually(g.t, within, fmt.Sprintf("job %s to be %v", id, states), func() (err error) {
		job, err = g.Client.Job(context.Background(), id)
		if err != nil {
			return err
		}
		for _, s := range states {
			if job.State == s {
				return nil
			}
		}
		return fmt.Errorf("it is %s (attempt %d, %s %s)", job.State, job.Attempt, job.Reason, job.Detail)
	})
	return job
}

// Log reads a stream of an attempt, 0 for the newest.
func (g *Grid) Log(id offpeak.JobID, attempt offpeak.Attempt, stream string) string {
	g.t.Helper()
	r, err := g.Client.Logs(context.Background(), id, attempt, stream, 0, false)
	if err != nil {
		g.t.Fatalf("logs of %s: %v", id, err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		g.t.Fatalf("logs of %s: %v", id, err)
	}
	return string(data)
}

// Check fails the test if `offpeak check` finds an invariant broken on the live
// store.
func (g *Grid) Check() {
	g.t.Helper()
	if out, errs, exit := g.CLI("check"); exit != 0 {
		g.t.Errorf("offpeak check: exit %d:\n%s%s", exit, out, errs)
	}
}

// stop ends the grid. Whatever the test was about, the store's invariants have
// to hold at its end, and what jobs testified has to agree with the store.
func (g *Grid) stop() {
	defer g.end()
	if g.Client == nil {
		return
	}
	for _, h := range g.Hubs {
		if !h.Runs() {
			h.Start()
		}
	}
	g.Check()
	g.referee()
}

func (g *Grid) end() {
	g.mu.Lock()
	agents := g.agents
	g.mu.Unlock()
	for _, a := range agents {
		a.signal(syscall.SIGCONT)
		a.KillNode()
	}
	for _, h := range g.Hubs {
		h.Kill()
	}
	if g.t.Failed() {
		for _, h := range g.Hubs {
			g.t.Logf("%s:\n%s", h.log(), tail(filepath.Join(g.Dir, h.log()), 6000))
		}
		for _, a := range agents {
			g.t.Logf("agent %s:\n%s", a.Name, tail(filepath.Join(g.Dir, "agent-"+a.Name+".log"), 3000))
		}
	}
	_ = os.RemoveAll(g.Dir)
}

func tail(path string, n int) string {
	data, _ := os.ReadFile(path)
	if len(data) > n {
		data = data[len(data)-n:]
	}
	return string(data)
}

// Eventually waits for a condition, polling it, and fails the test with the
// last error when it does not come in time.
func Eventually(t testing.TB, within time.Duration, what string, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s: %v", within, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// login makes the client: the local file's token, which each start of the hub
// replaces, buys one that lasts.
func (g *Grid) login() {
	g.t.Helper()
	l, err := local.Read(g.Hubs[0].localFile())
	if err != nil {
		g.t.Fatalf("log in: %v", err)
	}
	d := g.round(0, g.transport())
	d.Token = l.Token
	tok, err := d.CreateToken(context.Background(), NewOp(), wire.NewToken{Name: "gridtest", Role: offpeak.RoleAdmin})
	if err != nil {
		g.t.Fatalf("log in: %v", err)
	}
	d.Token = tok.Secret
	g.Client = &d
}
