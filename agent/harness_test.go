package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/supervisor"
	"offpeak/agent/warm"
	"offpeak/wire"
)

// TestMain lets the test binary be its own supervisors.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervisor.Main(os.Args[2:]))
	}
	if len(os.Args) == 3 && os.Args[1] == "agent" {
		os.Exit(agentMain(os.Args[2]))
	}
	if len(os.Args) == 4 && os.Args[1] == "hold" {
		os.Exit(hold(os.Args[2], os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

// fakeJob is a running job as its script sees it.
type fakeJob struct {
	folder, work   string
	env            map[string]string
	notice         chan offpeak.EndReason
	killed         chan struct{}
	stdout, stderr *os.File
}

// script is what a job does; its result is how it exits.
type script func(j *fakeJob) supervisor.Exit

// fakeSupervisors runs scripts in this process; like processes, its
// supervisors outlive the agent that started them.
type fakeSupervisors struct {
	t testing.TB

	mu      sync.Mutex
	byDir   map[string]*fakeSupervisor
	scripts map[string]script // by command name
	started int
	// stubborn ones never forget a job, as those of an older binary.
	stubborn bool
}

func newFakeSupervisors(t testing.TB) *fakeSupervisors {
	return &fakeSupervisors{t: t, byDir: map[string]*fakeSupervisor{}, scripts: map[string]script{}}
}

type fakeSupervisor struct {
	pool *fakeSupervisors

	mu      sync.Mutex
	status  supervisor.Status
	updates chan supervisor.Status
	closed  bool
	gone    bool
	job     *fakeJob
	granted supervisor.Lease
	killing sync.Once
}

// client is one connection to a supervisor.
type client struct {
	*fakeSupervisor
	updates chan supervisor.Status
	once    sync.Once
}

func (p *fakeSupervisors) Spawn(_ context.Context, dir string) (warm.Supervisor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &fakeSupervisor{pool: p, status: supervisor.Status{Phase: supervisor.Idle, Fence: "fake"}}
	p.byDir[dir] = s
	return s.connect(), nil
}

func (p *fakeSupervisors) Adopt(_ context.Context, dir string) (warm.Supervisor, error) {
	p.mu.Lock()
	s := p.byDir[dir]
	p.mu.Unlock()
	if s == nil {
		return nil, errNone
	}
	s.mu.Lock()
	gone := s.gone
	s.mu.Unlock()
	if gone {
		return nil, errNone
	}
	return s.connect(), nil
}

func (*fakeSupervisors) Clear(string) error { return nil }

func (s *fakeSupervisor) connect() *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates, s.closed = make(chan supervisor.Status, 16), false
	return &client{fakeSupervisor: s, updates: s.updates}
}

func (c *client) Updates() <-chan supervisor.Status { return c.updates }

func (c *client) Close() error {
	c.once.Do(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.fakeSupervisor.updates == c.updates {
			c.closed = true
		}
		if !c.gone {
			close(c.updates)
		}
	})
	return nil
}

func (s *fakeSupervisor) push() {
	if s.closed || s.gone {
		return
	}
	select {
	case s.updates <- s.status:
	default:
	}
}

// die is a kill -9 of the supervisor.
func (s *fakeSupervisor) die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	s.kill()
	if !s.closed {
		close(s.updates)
	}
}

func (s *fakeSupervisor) kill() {
	if s.job != nil {
		job := s.job
		s.killing.Do(func() { close(job.killed) })
	}
}

func (s *fakeSupervisor) Do(_ context.Context, r supervisor.Request) (supervisor.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return supervisor.Status{}, errNone
	}
	switch {
	case r.Start != nil:
		if s.status.Phase == supervisor.Exited && s.status.Lease == r.Start.Forget && !s.pool.stubborn {
			s.status, s.job, s.killing = supervisor.Status{Phase: supervisor.Idle, Fence: "fake"}, nil, sync.Once{}
		}
		if s.status.Phase != supervisor.Idle {
			return s.status, &supervisor.RefusedError{Why: "not idle"}
		}
		s.start(r.Start)
	case r.Lease != nil:
		s.granted = *r.Lease
	case r.Notice != nil:
		if s.job != nil && s.status.Noticed == "" {
			s.status.Noticed = r.Notice.Reason
			s.job.notice <- r.Notice.Reason
		}
	case r.Kill != nil:
		s.kill()
	}
	return s.status, nil
}

func (c *client) End(context.Context) error {
	c.mu.Lock()
	c.kill()
	c.mu.Unlock()
	err := c.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	return err
}

func (s *fakeSupervisor) start(r *supervisor.Start) {
	stdout, err := os.Create(filepath.Join(r.Folder, "stdout.log"))
	if err != nil {
		s.pool.t.Error(err)
	}
	stderr, err := os.Create(filepath.Join(r.Folder, "stderr.log"))
	if err != nil {
		s.pool.t.Error(err)
	}
	job := &fakeJob{folder: r.Folder, work: r.Command.Dir, env: map[string]string{}, notice: make(chan offpeak.EndReason, 1), killed: make(chan struct{}), stdout: stdout, stderr: stderr}
	for _, kv := range r.Command.Env {
		for i := range kv {
			if kv[i] == '=' {
				job.env[kv[:i]] = kv[i+1:]
				break
			}
		}
	}
	s.granted = r.Deadline
	s.job = job
	s.status = supervisor.Status{Phase: supervisor.Running, Fence: "fake", Lease: r.Lease, PID: 4711}
	s.pool.mu.Lock()
	s.pool.started++
	run := s.pool.scripts[r.Command.Path]
	s.pool.mu.Unlock()
	go func() {
		exit := run(job)
		stdout.Close()
		stderr.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.job != job {
			return
		}
		if s.status.Noticed != "" {
			exit.Reason = s.status.Noticed
		}
		s.status.Phase, s.status.Exit, s.status.Ran = supervisor.Exited, &exit, 10
		data, _ := json.Marshal(s.status)
		if !s.gone {
			_ = os.WriteFile(filepath.Join(r.Folder, "status.json"), data, 0o600)
		}
		s.push()
	}()
}

func (p *fakeSupervisors) all() []*fakeSupervisor {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.byDir))
}

// end kills what still runs.
func (p *fakeSupervisors) end() {
	for _, s := range p.all() {
		s.mu.Lock()
		s.kill()
		s.mu.Unlock()
	}
}

// holding returns the supervisor of a lease.
func (p *fakeSupervisors) holding(id offpeak.LeaseID) *fakeSupervisor {
	p.t.Helper()
	for _, s := range p.all() {
		s.mu.Lock()
		found := s.status.Lease == id
		s.mu.Unlock()
		if found {
			return s
		}
	}
	p.t.Fatalf("no supervisor holds %s", id)
	return nil
}

// waitKilled waits until every job that was started is killed.
func (p *fakeSupervisors) waitKilled() {
	for _, s := range p.all() {
		s.mu.Lock()
		job := s.job
		s.mu.Unlock()
		if job != nil {
			<-job.killed
		}
	}
}

// fakeDriver starts the script that its command names.
type fakeDriver struct{}

func (fakeDriver) Name() string     { return "process" }
func (fakeDriver) Available() error { return nil }
func (fakeDriver) Command(t driver.Task) (driver.Command, error) {
	if t.Command[0] == "absent" {
		return driver.Command{}, &driver.StartError{Reason: offpeak.EndCommandNotFound, Detail: "absent is not here"}
	}
	return driver.Command{Path: t.Command[0], Args: t.Command, Env: t.Env, Dir: t.Work}, nil
}

// world is a hub, a machine's supervisors and a data folder, on which agents
// come and go.
type world struct {
	t    testing.TB
	hub  *fakeHub
	sups *fakeSupervisors
	cfg  Config
	env  Env
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, hub: newFakeHub(t), sups: newFakeSupervisors(t)}
	t.Cleanup(w.sups.end)
	start := time.Now()
	w.cfg = testConfig(t.TempDir())
	w.env = Env{
		Boot: func() time.Duration { return time.Since(start) }, Now: time.Now, Random: rand.Reader,
		Client:  func(string) *http.Client { return &http.Client{Transport: &http.Transport{}} },
		Drivers: []driver.Driver{fakeDriver{}}, Supervisors: w.sups,
		Probe: func(context.Context) (offpeak.Inventory, error) { return offpeak.Inventory{Hostname: "desk"}, nil },
		Free:  func(string) (offpeak.Bytes, error) { return offpeak.TiB, nil },
		Log:   slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if testing.Verbose() {
		w.env.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return w
}

func testConfig(data string) Config {
	return Config{Data: data, Warm: 1, Version: "test", Times: Times{
		Call: 2 * time.Second, Retry: 2 * time.Millisecond, LongestRetry: 20 * time.Millisecond, Log: 5 * time.Millisecond,
		Running: 20 * time.Millisecond, Conflict: 20 * time.Millisecond, Interval: 50 * time.Millisecond,
	}}
}

func (w *world) join() {
	w.t.Helper()
	name, err := Join(w.t.Context(), w.cfg, w.env, wire.JoinToken{Hubs: []string{w.hub.server.URL}, Token: "offpeak_j_join1_secret"}, "")
	if err != nil || name != "desk" {
		w.t.Fatalf("join: %q, %v", name, err)
	}
}

// running is an agent's life in a test.
type running struct {
	*Agent
	t      testing.TB
	cancel context.CancelFunc
	done   chan error
}

func (w *world) run() *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Agent: New(w.cfg, w.env), t: w.t, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- r.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.done:
			r.done <- err
			if err != nil {
				w.t.Log("the agent ended:", err)
			}
		case <-time.After(time.Minute):
			w.t.Error("the agent does not stop")
		}
	})
	return r
}

func (r *running) stop() error {
	r.t.Helper()
	r.cancel()
	return r.wait()
}

func (r *running) wait() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(time.Minute):
		r.t.Fatal("the agent does not end")
		return errors.New("no end")
	}
}

func (w *world) script(name string, s script) {
	w.sups.mu.Lock()
	defer w.sups.mu.Unlock()
	w.sups.scripts[name] = s
}

func work(command string) wire.Work {
	spec := offpeak.Spec{Task: offpeak.Task{Driver: "process", Command: []string{command}}}.WithDefaults()
	return wire.Work{Task: spec.Task, Limits: spec.Limits, Resources: offpeak.Resources{CPU: 1000, Memory: offpeak.GiB, Disk: offpeak.GiB}}
}

func completed() supervisor.Exit {
	zero := 0
	return supervisor.Exit{Reason: offpeak.EndCompleted, Code: &zero}
}

// noLeaseFolders waits until nothing is left of ended leases.
func (w *world) noLeaseFolders() {
	w.t.Helper()
	eventually(w.t, "empty lease folder", func() bool {
		entries, err := os.ReadDir(filepath.Join(w.cfg.Data, "leases"))
		return err == nil && len(entries) == 0
	})
}

// status asks the running agent; before it listens it is the zero status.
func (w *world) status() Status {
	st, _ := Tell(w.t.Context(), w.cfg.Data, OrderStatus, 0)
	return st
}
