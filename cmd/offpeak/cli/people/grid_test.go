package people

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/follow"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// grid is a hub of one job whose story is told by the test.
type grid struct {
	t *testing.T
	*httptest.Server

	mu       sync.Mutex // guards what follows
	job      offpeak.Job
	attempts []offpeak.Lease
	logs     []wire.LogRecord
	changed  chan struct{}
	ops      map[string][]string
	explains int
	// sever cuts the answers to this many mutations, after they were done.
	sever int
}

func newGrid(t *testing.T) *grid {
	g := &grid{t: t, changed: make(chan struct{}), ops: map[string][]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/jobs", g.mutation("submit", func(r *http.Request) {
		if g.job.ID != "" {
			return
		}
		if err := json.NewDecoder(r.Body).Decode(&g.job.Spec); err != nil {
			t.Error(err)
		}
		g.job.ID, g.job.State = "job_aaaaaaaaaaaaaaaaaaaaaaaaa1", offpeak.JobQueued
	}))
	mux.HandleFunc("POST /v1/jobs/{job}/cancel", g.mutation("cancel", func(*http.Request) {
		g.job.State, g.job.Reason = offpeak.JobCancelled, offpeak.EndCancelled
	}))
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		_ = json.NewEncoder(w).Encode(wire.List[offpeak.Job]{Items: []offpeak.Job{g.job}})
	})
	mux.HandleFunc("GET /v1/groups", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(wire.List[offpeak.Group]{Items: []offpeak.Group{}})
	})
	mux.HandleFunc("GET /v1/jobs/{job}", func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		_ = json.NewEncoder(w).Encode(g.job)
	})
	mux.HandleFunc("GET /v1/jobs/{job}/attempts", func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		_ = json.NewEncoder(w).Encode(wire.List[offpeak.Lease]{Items: g.attempts})
	})
	mux.HandleFunc("GET /v1/jobs/{job}/checkpoints", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(wire.List[offpeak.Checkpoint]{Items: []offpeak.Checkpoint{{ID: 5, Name: "step-400", Attempt: 1}}})
	})
	mux.HandleFunc("GET /v1/jobs/{job}/explain", func(w http.ResponseWriter, r *http.Request) {
		g.change(func() { g.explains++ })
		_ = json.NewEncoder(w).Encode(wire.Explanation{Summary: "no node has 24GB of VRAM"})
	})
	mux.HandleFunc("GET /v1/nodes/{node}", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(offpeak.Node{Name: strings.TrimPrefix(r.PathValue("node"), "node_")})
	})
	mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
		for cursor := 1; ; cursor++ {
			fmt.Fprintf(w, "id: %d\ndata: {\"cursor\":%d,\"type\":\"job.changed\"}\n\n", cursor, cursor)
			w.(http.Flusher).Flush()
			select {
			case <-g.next():
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("GET /v1/jobs/{job}/log", func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		for sent := 0; ; {
			g.mu.Lock()
			logs, over, next := g.logs, g.job.State.Terminal(), g.changed
			g.mu.Unlock()
			for ; sent < len(logs); sent++ {
				if after := r.URL.Query().Get("after"); after == "" {
					_ = json.NewEncoder(w).Encode(logs[sent])
				}
			}
			w.(http.Flusher).Flush()
			if over {
				return
			}
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	})
	g.Server = httptest.NewServer(mux)
	t.Cleanup(g.Close)
	return g
}

func (g *grid) next() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// change tells the next part of the story.
func (g *grid) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *grid) mutation(name string, f func(*http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		cut := false
		g.change(func() {
			g.ops[name] = append(g.ops[name], r.Header.Get(wire.HeaderOperation))
			f(r)
			if g.sever > 0 {
				g.sever, cut = g.sever-1, true
			}
		})
		if cut {
			panic(http.ErrAbortHandler)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		_ = json.NewEncoder(w).Encode(g.job)
	}
}

// console is where a command under test writes; a test can wait for a line.
type console struct {
	t     *testing.T
	mu    sync.Mutex // guards what follows
	text  bytes.Buffer
	wrote chan struct{}
}

func newConsole(t *testing.T) *console { return &console{t: t, wrote: make(chan struct{})} }

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.wrote)
	c.wrote = make(chan struct{})
	return c.text.Write(p)
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

func (c *console) await(want string) {
	c.t.Helper()
	timeout := time.After(10 * time.Second)
	for {
		c.mu.Lock()
		ok, wrote := strings.Contains(c.text.String(), want), c.wrote
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-wrote:
		case <-timeout:
			c.t.Fatalf("%q never came; have:\n%s", want, c.String())
		}
	}
}

// world is a command's world for tests.
func (g *grid) world(t *testing.T) (world.Env, *console, *console) {
	out, errs := newConsole(t), newConsole(t)
	vars := map[string]string{"OFFPEAK_HUB": g.URL, "OFFPEAK_TOKEN": "secret", "OFFPEAK_HOME": t.TempDir()}
	return world.Env{Stdin: strings.NewReader(""), Stdout: out, Stderr: errs, Getenv: func(k string) string { return vars[k] }}, out, errs
}

func command(env world.Env, args ...string) int {
	root := &cobra.Command{Use: "offpeak", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(New(env)...)
	root.SetArgs(args)
	return world.Report(env.Stderr, root.ExecuteContext(context.Background()))
}

func lease(attempt int, node string, state offpeak.LeaseState) offpeak.Lease {
	return offpeak.Lease{ID: offpeak.LeaseID(fmt.Sprintf("lease_%d", attempt)), Attempt: offpeak.Attempt(attempt), Node: offpeak.NodeID("node_" + node), State: state}
}

// A job loses its node, resumes on another one and fails with a code: run shows
// all of it, passes both streams on and exits with the code.
func TestRunFollowsAJobOverALostNode(t *testing.T) {
	g := newGrid(t)
	g.sever = 1
	env, out, errs := g.world(t)
	code := make(chan int, 1)
	go func() { code <- command(env, "run", "--name", "digits", "--", "python3", "train.py", "--epochs", "3") }()

	errs.await("offpeak: queued\n")
	started := time.Now()
	g.change(func() {
		g.job.State, g.job.Attempt = offpeak.JobRunning, 1
		l := lease(1, "tower", offpeak.LeaseRunning)
		l.StartedAt = &started
		g.attempts = []offpeak.Lease{l}
		g.logs = append(g.logs, wire.LogRecord{Attempt: 1, N: 1, Stream: "stdout", Data: []byte("epoch 1\x1b[2J\n")})
	})
	errs.await("attempt 1: running on tower\n")
	out.await("epoch 1")
	g.change(func() {
		g.job.State, g.job.Reason = offpeak.JobQueued, offpeak.EndNodeLost
		g.attempts[0].State, g.attempts[0].Reason = offpeak.LeaseLost, offpeak.EndNodeLost
	})
	errs.await("attempt 1: ended on tower: The node fell silent and the lease expired.\noffpeak: queued again\n")
	errs.await("offpeak: waits: no node has 24GB of VRAM\n")
	three := 3
	g.change(func() {
		g.job.State, g.job.Attempt, g.job.Reason, g.job.ExitCode = offpeak.JobFailed, 2, offpeak.EndExitNonzero, &three
		l := lease(2, "laptop", offpeak.LeaseFailed)
		l.StartedAt, l.Restored, l.Reason, l.ExitCode = &started, 5, offpeak.EndExitNonzero, &three
		g.attempts = append(g.attempts, l)
		g.logs = append(g.logs, wire.LogRecord{Attempt: 2, N: 1, Stream: "stderr", Data: []byte("broken\n")})
	})
	if got := <-code; got != 3 {
		t.Errorf("exit code %d, want the job's 3", got)
	}
	if got := out.String(); got != "epoch 1\x1b[2J\n" {
		t.Errorf("stdout %q: bytes must pass as they are where no terminal is", got)
	}
	errs.await("broken\n")
	errs.await("attempt 2: running on laptop, resumed from checkpoint step-400 of attempt 1\n")
	errs.await("offpeak: failed: The job exited with a code other than 0 (exit code 3).\nnext: ")
	if len(g.ops["submit"]) != 2 || g.ops["submit"][0] != g.ops["submit"][1] {
		t.Errorf("submitted under operations %v: the retry must keep the id", g.ops["submit"])
	}
	want := []string{"python3", "train.py", "--epochs", "3"}
	if diff := cmp.Diff(want, g.job.Spec.Task.Command); diff != "" || g.job.Spec.Name != "digits" {
		t.Errorf("submitted %+v\n%s", g.job.Spec, diff)
	}
}

// followed follows job_1 as run does, with signals in place of the process's. How
// it ended comes over ended.
func followed(t *testing.T, env world.Env) (signals chan os.Signal, ended chan error) {
	t.Helper()
	c := &client{env: env, output: "table"}
	if err := c.dial(); err != nil {
		t.Fatal(err)
	}
	signals, ended = make(chan os.Signal), make(chan error, 1)
	go func() {
		job, err := c.follower("job_1", false, false).OrLeave(context.Background(), signals)
		if err == nil {
			err = follow.Exit(job)
		}
		ended <- err
	}()
	return signals, ended
}

func TestRunInterrupted(t *testing.T) {
	begin := func(t *testing.T) (*grid, *console, chan os.Signal, chan error) {
		g := newGrid(t)
		g.job = offpeak.Job{ID: "job_1", State: offpeak.JobQueued}
		env, _, errs := g.world(t)
		signals, ended := followed(t, env)
		errs.await("queued")
		return g, errs, signals, ended
	}
	code := func(t *testing.T, err error, want int) {
		t.Helper()
		exit, ok := errors.AsType[*world.ExitError](err)
		if !ok || exit.Code != want {
			t.Errorf("ended with %v, want exit code %d", err, want)
		}
	}
	t.Run("twice cancels", func(t *testing.T) {
		g, errs, signals, ended := begin(t)
		signals <- os.Interrupt
		errs.await("the job goes on; interrupt again to cancel it")
		if len(g.ops["cancel"]) != 0 {
			t.Error("the first interrupt cancelled")
		}
		signals <- os.Interrupt
		code(t, <-ended, follow.ExitCancelled)
		if len(g.ops["cancel"]) != 1 {
			t.Errorf("cancelled %d times", len(g.ops["cancel"]))
		}
	})
	t.Run("terminated leaves", func(t *testing.T) {
		g, errs, signals, ended := begin(t)
		signals <- syscall.SIGTERM
		code(t, <-ended, 143)
		errs.await("left running; go on with: offpeak logs -f job_1")
		if len(g.ops["cancel"]) != 0 {
			t.Error("leaving cancelled the job")
		}
	})
}

func TestLogsWaitShowAndJobNames(t *testing.T) {
	g := newGrid(t)
	one := 1
	g.job = offpeak.Job{ID: "job_aaaaaaaaaaaaaaaaaaaaaaaaa1", State: offpeak.JobFailed, Reason: offpeak.EndExitNonzero, ExitCode: &one, Attempt: 1, Spec: offpeak.Spec{Name: "a\x1b[31mb", Task: offpeak.Task{Command: []string{"x"}}}}
	g.attempts = []offpeak.Lease{lease(1, "tower", offpeak.LeaseFailed)}
	g.logs = []wire.LogRecord{
		{Attempt: 1, N: 1, Stream: "stdout", Data: []byte("out\n")},
		{Attempt: 1, N: 2, Stream: "stderr", Data: []byte("err\n")},
	}
	for _, tt := range []struct {
		args     []string
		code     int
		out, err string
	}{
		{[]string{"logs", "aaa1"}, 0, "out\n", "err\n"},
		{[]string{"logs", "-f", "job_aaaaaaaaaaaaaaaaaaaaaaaaa1"}, 1, "out\n", "err\n"},
		{[]string{"logs", "aaa1", "--stream", "stdout"}, 0, "out\n", ""},
		{[]string{"logs", "aaa1", "--attempt", "2"}, 0, "", ""},
		{[]string{"wait", "aaa1"}, 1, "job_aaaaaaaaaaaaaaaaaaaaaaaaa1  failed", ""},
		{[]string{"show", "aaa1"}, 0, `a\x1b[31mb`, ""},
		{[]string{"ps", "--all"}, 0, `a\x1b[31mb`, ""},
		{[]string{"ps", "--all", "-o", "name"}, 0, "job_aaaaaaaaaaaaaaaaaaaaaaaaa1\n", ""},
		{[]string{"show", "zzz"}, 1, "", "error: JOB \"zzz\": not found\nnext: See `offpeak ps --all`.\n"},
		{[]string{"show", "-"}, 2, "", "no job was submitted from here to hub http"},
	} {
		env, out, errs := g.world(t)
		if code := command(env, tt.args...); code != tt.code {
			t.Errorf("%v: exit code %d, want %d\n%s", tt.args, code, tt.code, errs)
		}
		if !strings.Contains(out.String(), tt.out) || !strings.Contains(errs.String(), tt.err) {
			t.Errorf("%v:\n%s\n%s", tt.args, out, errs)
		}
	}
}
