// Package gridtest runs a whole grid of real processes on loopback: a hub, its
// agents, their supervisors and jobs, each started from the built binary and
// killed, stopped and cut off with real signals and real sockets.
//
// A Grid belongs to one test. Everything it starts is gone and everything it
// wrote is removed when the test ends, and every test ends with the invariants
// checked on the live store. Jobs testify for themselves: a referee job appends
// what it does to a file outside the grid.
package gridtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
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

// Grid is one hub and its agents.
type Grid struct {
	t       testing.TB
	bin     string
	Dir     string
	Timers  Timers
	Addr    string
	Client  *wire.Direct
	hub     *exec.Cmd
	hubArgs []string
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
	dir, err := os.MkdirTemp("", "grid")
	if err != nil {
		t.Fatal(err)
	}
	g := &Grid{t: t, bin: bin, Dir: dir, Timers: quick, Addr: freeAddr(t), hubArgs: hubArgs, agents: map[string]*Agent{}, forgotten: map[offpeak.JobID]bool{}}
	t.Cleanup(g.stop)
	g.StartHub()
	return g
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Env is the environment of every process of the grid: a home of its own, so
// that tests neither see nor touch the user's.
func (g *Grid) Env() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.Dir, "OFFPEAK_HOME=" + filepath.Join(g.Dir, "home"), "LANG=C.UTF-8"}
}

// HubDir is the hub's data folder.
func (g *Grid) HubDir() string { return filepath.Join(g.Dir, "hub") }

// StartHub starts the hub, also after it was killed, and waits until it serves.
func (g *Grid) StartHub() {
	g.t.Helper()
	args := append([]string{"hub", "--listen", g.Addr, "--data", g.HubDir(),
		"--heartbeat", g.Timers.Heartbeat.String(), "--timeout", g.Timers.Timeout.String(),
		"--offer", g.Timers.Offer.String(), "--tick", g.Timers.Tick.String(), "--log-format", "text", "--trace-verbs", g.traceFile()}, g.hubArgs...)
	cmd := g.command("hub.log", args...)
	if err := cmd.Start(); err != nil {
		g.t.Fatalf("start hub: %v", err)
	}
	g.hub = cmd
	Eventually(g.t, 20*time.Second, "the hub to serve", func() error {
		resp, err := http.Get("http://" + g.Addr + "/v1/health")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("health: %s", resp.Status)
		}
		return nil
	})
	Eventually(g.t, 10*time.Second, "the hub's local file", func() error {
		l, err := local.Read(g.localFile())
		if err == nil && l.PID != g.HubPID() {
			err = fmt.Errorf("it is process %d's, want %d's", l.PID, g.HubPID())
		}
		return err
	})
	if g.Client == nil {
		g.login()
	}
}

func (g *Grid) localFile() string { return filepath.Join(g.Dir, "home", "local.json") }

func (g *Grid) traceFile() string { return filepath.Join(g.Dir, "verbs") }

// HubPID is the hub's process.
func (g *Grid) HubPID() int { return g.hub.Process.Pid }

// KillHub kills the hub with SIGKILL and waits until it is gone.
func (g *Grid) KillHub() {
	_ = g.hub.Process.Kill()
	_ = g.hub.Wait()
}

// StopHub asks the hub to stop and returns its exit error.
func (g *Grid) StopHub() error {
	_ = g.hub.Process.Signal(syscall.SIGTERM)
	return g.hub.Wait()
}

func (g *Grid) command(logName string, args ...string) *exec.Cmd {
	cmd := exec.Command(g.bin, args...)
	cmd.Env = g.Env()
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
	var out, errs strings.Builder
	cmd := exec.Command(g.bin, args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = g.Env(), dir, &out, &errs
	err := cmd.Run()
	var ee *exec.ExitError
	switch {
	case errors.As(err, &ee):
		exit = ee.ExitCode()
	case err != nil:
		exit = -1
	}
	return out.String(), errs.String(), exit
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
// `offpeak agent run`. hub is the address to use, "" for the hub's own.
func (g *Grid) StartAgent(name, hub string, args ...string) *Agent {
	g.t.Helper()
	if hub == "" {
		hub = "http://" + g.Addr
	}
	a := &Agent{Name: name, Dir: filepath.Join(g.Dir, "agent-"+name), grid: g}
	a.args = append([]string{"agent", "run", "--data", a.Dir, "--name", name, "--hub", hub, "--cpu", "2", "--memory", "2GiB", "--disk", "4GiB", "--gpus", "none"}, args...)
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
	a.cmd = a.grid.command("agent-"+a.Name+".log", a.args...)
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
	if g.hub.ProcessState != nil {
		g.StartHub()
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
	if g.hub != nil {
		g.KillHub()
	}
	if g.t.Failed() {
		for _, name := range []string{"hub.log"} {
			g.t.Logf("%s:\n%s", name, tail(filepath.Join(g.Dir, name), 6000))
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
	l, err := local.Read(g.localFile())
	if err != nil {
		g.t.Fatalf("log in: %v", err)
	}
	d := wire.Direct{Client: wire.Client(""), Base: "http://" + g.Addr, Token: l.Token, Agent: "gridtest"}
	tok, err := d.CreateToken(context.Background(), NewOp(), wire.NewToken{Name: "gridtest", Role: offpeak.RoleAdmin})
	if err != nil {
		g.t.Fatalf("log in: %v", err)
	}
	d.Token = tok.Secret
	g.Client = &d
}
