package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"offpeak"
	"offpeak/internal/local"
	"offpeak/wire"
)

var update = flag.Bool("update", false, "write golden files")

// TestMain lets the test binary be offpeak itself, for scripts and where
// OFFPEAK_TEST_MAIN is set, so that hubs in tests are real processes.
func TestMain(m *testing.M) {
	if os.Getenv("OFFPEAK_TEST_MAIN") == "1" {
		os.Exit(Main(context.Background(), os.Args[1:], Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Version: "1.2.3-test"}))
	}
	env := Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
	testscript.Main(m, map[string]func(){
		"offpeak": func() { os.Exit(Main(context.Background(), os.Args[1:], env)) },
		// offpeak-login logs in to the hub of the local file as a context.
		"offpeak-login": func() {
			here, err := local.Read(local.Path(os.Getenv))
			if err != nil {
				os.Exit(Report(os.Stderr, err))
			}
			os.Exit(Main(context.Background(), append([]string{"login", "--token", "-", "--context", os.Args[1]}, here.Hubs...), env))
		},
	})
}

func TestScripts(t *testing.T)    { scripts(t, "testdata/client") }
func TestHubScripts(t *testing.T) { scripts(t, "testdata/hub") }

// scripts runs the scripts of a folder against the binary.
func scripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("OFFPEAK_HOME", filepath.Join(e.WorkDir, "home"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// await waits for a file to appear.
			"await": func(ts *testscript.TestScript, _ bool, args []string) {
				for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
					if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
						return
					} else if time.Now().After(deadline) {
						ts.Fatalf("%s never came: %v", args[0], err)
					}
				}
			},
			// big writes a job file of 2 MiB.
			"big": func(ts *testscript.TestScript, _ bool, args []string) {
				text := "task: {command: [x]}\nname: " + strings.Repeat("a", 2<<20) + "\n"
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
			},
			// bad runs a command line that must end with exit code 2, in this
			// process: starting the binary for each would take minutes.
			"bad": func(ts *testscript.TestScript, neg bool, args []string) {
				for i := range args[1:] {
					if args[i] == "-f" && args[i+1] != "-" {
						args[i+1] = ts.MkAbs(args[i+1])
					}
				}
				env := Env{Stdin: strings.NewReader(""), Stdout: ts.Stdout(), Stderr: ts.Stderr(), Getenv: ts.Getenv}
				if code := Main(context.Background(), args, env); code != exitUsage {
					ts.Fatalf("offpeak %s: exit code %d, want 2", strings.Join(args, " "), code)
				}
			},
		},
	})
}

// TestDocs keeps docs/cli.md equal to what --help says.
func TestDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Commands\n\nThis page is written by `go test ./cmd/offpeak/cli -run TestDocs -update` from what\n`offpeak COMMAND --help` prints.\n")
	root := New(Env{Stdin: strings.NewReader(""), Stdout: &b, Stderr: &b, Getenv: func(string) string { return "" }})
	root.InitDefaultHelpCmd()
	document(&b, root)
	path := filepath.FromSlash("../../../docs/cli.md")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), b.String()); diff != "" {
		t.Errorf("docs/cli.md is not what --help says; run with -update (-have +want):\n%s", diff)
	}
}

func document(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	if cmd.HasParent() {
		fmt.Fprintf(b, "\n%s %s\n\n%s.\n", strings.Repeat("#", min(4, strings.Count(cmd.CommandPath(), " ")+1)), cmd.CommandPath(), cmd.Short)
		if cmd.Long != "" {
			fmt.Fprintf(b, "\n%s\n", indentAware(cmd.Long))
		}
		fmt.Fprintf(b, "\n```\n%s\n```\n", cmd.UseLine())
		if cmd.Example != "" {
			fmt.Fprintf(b, "\nExamples:\n\n```sh\n%s\n```\n", strings.ReplaceAll(strings.Trim(cmd.Example, "\n"), "\n  ", "\n")[2:])
		}
		if flags := flagText(cmd); flags != "" {
			fmt.Fprintf(b, "\n```\n%s```\n", flags)
		}
	}
	for _, sub := range cmd.Commands() {
		document(b, sub)
	}
}

// indentAware leaves text as it is: indented blocks are code in Markdown too.
func indentAware(long string) string { return strings.TrimSpace(long) }

func flagText(cmd *cobra.Command) string {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			set.AddFlag(f)
		}
	})
	return set.FlagUsages()
}

// Every command says what it does and shows an example.
func TestEveryCommandHasHelp(t *testing.T) {
	env := Env{Getenv: func(string) string { return "" }}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s: no description or example", cmd.CommandPath())
		}
		for line := range strings.SplitSeq(cmd.Long, "\n") {
			if len([]rune(line)) > 110 {
				t.Errorf("%s: line too long: %s", cmd.CommandPath(), line)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	for _, cmd := range clientCommands(env) {
		walk(cmd)
	}
}

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
func (g *grid) world(t *testing.T) (Env, *console, *console) {
	out, errs := newConsole(t), newConsole(t)
	vars := map[string]string{"OFFPEAK_HUB": g.URL, "OFFPEAK_TOKEN": "secret", "OFFPEAK_HOME": t.TempDir()}
	return Env{Stdin: strings.NewReader(""), Stdout: out, Stderr: errs, Getenv: func(k string) string { return vars[k] }}, out, errs
}

func command(env Env, args ...string) int {
	return Main(context.Background(), args, env)
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

func TestRunInterrupted(t *testing.T) {
	follow := func(t *testing.T) (*grid, *console, chan os.Signal, chan error) {
		g := newGrid(t)
		g.job = offpeak.Job{ID: "job_1", State: offpeak.JobQueued}
		env, _, errs := g.world(t)
		c := &client{env: env, output: "table"}
		if err := c.dial(); err != nil {
			t.Fatal(err)
		}
		signals, ended := make(chan os.Signal), make(chan error, 1)
		go func() {
			job, err := newFollower(c, "job_1", false, false).followOrLeave(context.Background(), signals)
			if err == nil {
				err = exit(job)
			}
			ended <- err
		}()
		errs.await("queued")
		return g, errs, signals, ended
	}
	code := func(t *testing.T, err error, want int) {
		t.Helper()
		exit, ok := errors.AsType[*ExitError](err)
		if !ok || exit.Code != want {
			t.Errorf("ended with %v, want exit code %d", err, want)
		}
	}
	t.Run("twice cancels", func(t *testing.T) {
		g, errs, signals, ended := follow(t)
		signals <- os.Interrupt
		errs.await("the job goes on; interrupt again to cancel it")
		if len(g.ops["cancel"]) != 0 {
			t.Error("the first interrupt cancelled")
		}
		signals <- os.Interrupt
		code(t, <-ended, exitCancelled)
		if len(g.ops["cancel"]) != 1 {
			t.Errorf("cancelled %d times", len(g.ops["cancel"]))
		}
	})
	t.Run("terminated leaves", func(t *testing.T) {
		g, errs, signals, ended := follow(t)
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
		{[]string{"show", "-"}, 2, "", "no job was submitted from here yet"},
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

// The code that the hub gives an error decides the exit code, and its fields
// and next step are shown.
func TestReportOfProblems(t *testing.T) {
	var b bytes.Buffer
	err := fmt.Errorf("submit: %w", &wire.Problem{Code: "invalid", Status: 422, Title: "Invalid", Next: "Change what is named and send it again.",
		Errors: []wire.FieldProblem{{Location: "body.task.driver", Message: "is process or wasm"}, {Location: "name", Message: "bad\x1b[2J"}}})
	if code := Report(&b, err); code != 2 {
		t.Errorf("exit code %d", code)
	}
	want := "error: task.driver: is process or wasm\nerror: name: bad\\x1b[2J\nnext: Change what is named and send it again.\n"
	if b.String() != want {
		t.Errorf("got %q", b.String())
	}
	for _, tt := range []struct {
		err  error
		code int
	}{
		{&wire.Problem{Code: "not_found", Status: 404}, 1},
		{offpeak.ErrTooLarge, 2},
		{&ExitError{Code: 9}, 9},
		{nil, 0},
	} {
		if code := Report(&b, tt.err); code != tt.code {
			t.Errorf("%v: exit code %d, want %d", tt.err, code, tt.code)
		}
	}
}
