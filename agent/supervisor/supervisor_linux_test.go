package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/supervisor"
	"offpeak/internal/require"
)

// The test binary is its own supervisor.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervisor.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

const patience = time.Minute

// fences are those that work here; the best must be among them for the suite
// to mean anything.
func fences(t *testing.T) []string {
	t.Helper()
	found, err := supervisor.Probe(t.Context(), exe(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return found.Fences
}

func exe(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func spawn(t testing.TB, fence string) *supervisor.Handle {
	t.Helper()
	h, err := supervisor.Spawn(t.Context(), supervisor.Options{Exe: exe(t), Dir: t.TempDir(), Log: os.Stderr, Fence: fence})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := h.End(ctx); err != nil && !errors.Is(err, supervisor.ErrGone) {
			t.Errorf("end: %v", err)
		}
	})
	return h
}

// script is a Start of a shell script in folders of its own.
func script(t testing.TB, text string) supervisor.Start {
	t.Helper()
	folder := t.TempDir()
	work := filepath.Join(folder, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	return supervisor.Start{
		Lease:  "lease_1",
		Forget: "lease_1", // of the test's start before this one
		Folder: folder,
		Command: driver.Command{
			Path: "/bin/sh", Args: []string{"sh", "-c", text}, Dir: work,
			Env: []string{"PATH=/usr/bin:/bin", "OFFPEAK_NOTICE=" + filepath.Join(folder, "notice.json")},
		},
		Grace:      200 * time.Millisecond,
		KeepFrozen: time.Minute,
	}
}

func do(t testing.TB, h *supervisor.Handle, r supervisor.Request) supervisor.Status {
	t.Helper()
	st, err := h.Do(t.Context(), r)
	if err != nil {
		t.Fatalf("do: %v", err)
	}
	return st
}

func start(t testing.TB, h *supervisor.Handle, s supervisor.Start) supervisor.Status {
	t.Helper()
	return do(t, h, supervisor.Request{Start: &s})
}

var ask = supervisor.Request{Status: &struct{}{}}

// await reads updates until one serves.
func await(t testing.TB, h *supervisor.Handle, what string, ok func(supervisor.Status) bool) supervisor.Status {
	t.Helper()
	st := do(t, h, ask)
	limit := time.After(patience)
	for !ok(st) {
		select {
		case next, open := <-h.Updates():
			if !open {
				t.Fatalf("await %s: the supervisor is gone; last %+v", what, st)
			}
			st = next
		case <-limit:
			t.Fatalf("await %s: still %+v (exit %+v)", what, st, st.Exit)
		}
	}
	return st
}

func awaitExit(t testing.TB, h *supervisor.Handle) supervisor.Exit {
	t.Helper()
	st := await(t, h, "exit", func(s supervisor.Status) bool { return s.Phase == supervisor.Exited })
	return *st.Exit
}

func read(t testing.TB, s supervisor.Start, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.Folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// eventually waits for a condition that no status tells.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// marked finds the processes on the whole machine that carry a marker in
// their environment or arguments.
func marked(marker string) []int {
	var out []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		if pid == os.Getpid() {
			continue
		}
		env, _ := os.ReadFile(d + "/environ")
		args, _ := os.ReadFile(d + "/cmdline")
		if strings.Contains(string(env)+string(args), marker) {
			out = append(out, pid)
		}
	}
	return out
}

// escapees leave every way there is: background, own session, double fork,
// own process group, deaf to polite signals.
const escapees = `
trap '' TERM HUP INT
nohup sleep 1000 >/dev/null 2>&1 &
setsid sleep 1001 &
( ( setsid sh -c 'trap "" TERM; (setsid sleep 1002 &) ; sleep 1003' & ) & )
( (sleep 1004 &) & )
sleep 0.1
echo ready
`

func marker(t testing.TB) string {
	return fmt.Sprintf("offpeak_test_%d_%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "_"))
}

func mark(t testing.TB, s *supervisor.Start) string {
	m := marker(t)
	s.Command.Env = append(s.Command.Env, "MARKER="+m)
	return m
}

func TestEveryFenceKillsTheWholeTree(t *testing.T) {
	for _, fence := range fences(t) {
		if fence == supervisor.FenceProcessGroup {
			continue // it does not hold those who leave it
		}
		for _, how := range []string{"kill", "notice", "exit", "quit"} {
			t.Run(fence+"/"+how, func(t *testing.T) {
				t.Parallel()
				h := spawn(t, fence)
				text := escapees + "sleep 1005"
				if how == "exit" {
					text = escapees + "exit 3"
				}
				s := script(t, text)
				m := mark(t, &s)
				if st := start(t, h, s); st.Fence != fence {
					t.Fatalf("fence %q, want %q", st.Fence, fence)
				}
				await(t, h, "ready", func(st supervisor.Status) bool { return st.Stdout >= 6 })
				if how != "exit" && len(marked(m)) < 5 {
					t.Fatalf("only %d processes escaped, the test is void", len(marked(m)))
				}
				switch how {
				case "kill":
					do(t, h, supervisor.Request{Kill: &supervisor.Kill{Reason: offpeak.EndCancelled}})
				case "notice":
					do(t, h, supervisor.Request{Notice: &supervisor.Notice{Reason: offpeak.EndCancelled}})
				case "quit":
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					if err := h.End(ctx); err != nil {
						t.Fatal(err)
					}
				}
				if how != "quit" {
					awaitExit(t, h)
				}
				if left := marked(m); len(left) > 0 {
					t.Errorf("survivors: %v", left)
				}
				if left := leftGroups(h.Dir()); how == "quit" && len(left) > 0 {
					t.Errorf("groups left: %v", left)
				}
			})
		}
	}
}

func TestSupervisorKilledJobGone(t *testing.T) {
	for _, fence := range fences(t) {
		t.Run(fence, func(t *testing.T) {
			h := spawn(t, fence)
			text := "echo ready; exec sleep 1000"
			// Where only the first process dies with the supervisor, that is what is promised.
			if fence == supervisor.FencePIDNamespace {
				text = escapees + "sleep 1005"
			}
			s := script(t, text)
			m := mark(t, &s)
			start(t, h, s)
			st := await(t, h, "ready", func(st supervisor.Status) bool { return st.Stdout >= 6 })
			if fence == supervisor.FencePIDNamespace {
				do(t, h, supervisor.Request{Freeze: &supervisor.Freeze{Frozen: true}})
			}
			if st.PID == 1 {
				st.PID = outerPID(t, h.Dir())
			}
			if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the job dies with its supervisor", func() bool { return len(marked(m)) == 0 })
			eventually(t, "the handle notices", func() bool { return !h.Alive() })
			if err := supervisor.Remove(h.Dir()); err != nil {
				t.Error(err)
			}
			if left := leftGroups(h.Dir()); len(left) > 0 {
				t.Errorf("groups left: %v", left)
			}
		})
	}
}

// outerPID finds the supervisor of a folder as this namespace counts.
func outerPID(t *testing.T, dir string) int {
	t.Helper()
	for _, pid := range marked(dir) {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(args), "supervise\x00--dir\x00"+dir+"\x00") {
			return pid
		}
	}
	t.Fatal("no supervisor found")
	return 0
}

func leftGroups(dir string) []string {
	out, _ := exec.Command("find", "/sys/fs/cgroup", "-name", supervisor.GroupName(dir)).Output()
	return strings.Fields(string(out))
}

func TestExits(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	code := func(n int) *int { return &n }
	for _, c := range []struct {
		text string
		want supervisor.Exit
	}{
		{"exit 0", supervisor.Exit{Reason: offpeak.EndCompleted, Code: code(0)}},
		{"exit 1", supervisor.Exit{Reason: offpeak.EndExitNonzero, Code: code(1)}},
		{"exit 2", supervisor.Exit{Reason: offpeak.EndExitNonzero, Code: code(2)}},
		{"exit 85", supervisor.Exit{Reason: offpeak.EndExitNonzero, Code: code(85)}},
		{"exit 126", supervisor.Exit{Reason: offpeak.EndExitNonzero, Code: code(126)}},
		{"exit 127", supervisor.Exit{Reason: offpeak.EndExitNonzero, Code: code(127)}},
		{"exit 137", supervisor.Exit{Reason: offpeak.EndExitNonzero, Code: code(137)}},
		{"exit 255", supervisor.Exit{Reason: offpeak.EndExitNonzero, Code: code(255)}},
		{"false | true", supervisor.Exit{Reason: offpeak.EndCompleted, Code: code(0)}},
		{"ulimit -c 0; kill -SEGV $$", supervisor.Exit{Reason: offpeak.EndSignalled, Signal: "SIGSEGV"}},
		{"kill -KILL $$", supervisor.Exit{Reason: offpeak.EndSignalled, Signal: "SIGKILL"}},
		{"kill -TERM $$", supervisor.Exit{Reason: offpeak.EndSignalled, Signal: "SIGTERM"}},
	} {
		s := script(t, c.text)
		start(t, h, s)
		got := awaitExit(t, h)
		if got.Reason != c.want.Reason || got.Signal != c.want.Signal ||
			(got.Code == nil) != (c.want.Code == nil) || got.Code != nil && *got.Code != *c.want.Code {
			t.Errorf("%s: %+v", c.text, got)
		}
	}
	for _, path := range []string{"/nonexistent/prog", "/etc/passwd", "/etc"} {
		s := script(t, "")
		s.Command.Path = path
		start(t, h, s)
		if got := awaitExit(t, h); got.Reason != offpeak.EndCommandNotFound || !strings.Contains(got.Detail, path) {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

// TestResultIsWrittenDownWithoutAnAgent: the agent's part while there is one, the
// supervisor's when there is none, whichever ended first.
func TestResultIsWrittenDownWithoutAnAgent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text string }{{"job first", "exit 3"}, {"agent first", "sleep 0.2; exit 3"}} {
		h := spawn(t, "")
		s := script(t, c.text)
		start(t, h, s)
		path := filepath.Join(s.Folder, supervisor.StatusFile)
		if c.name == "job first" {
			awaitExit(t, h)
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("%s: written beside a connected agent: %v", c.name, err)
			}
		}
		h.Close()
		eventually(t, "the status file is written", func() bool {
			data, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(data), string(offpeak.EndExitNonzero))
		})
		next, err := supervisor.Adopt(t.Context(), h.Dir())
		if err != nil {
			t.Fatal(err)
		}
		if e := awaitExit(t, next); e.Reason != offpeak.EndExitNonzero {
			t.Errorf("%s: the next agent hears %+v", c.name, e)
		}
		if err := next.End(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	refused := func(what string, r supervisor.Request) {
		t.Helper()
		if _, err := h.Do(t.Context(), r); err == nil {
			t.Errorf("%s: not refused", what)
		} else if _, ok := errors.AsType[*supervisor.RefusedError](err); !ok {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("lease without a job", supervisor.Request{Lease: &supervisor.Lease{}})
	refused("empty", supervisor.Request{})
	s := script(t, "sleep 1000")
	relative := s
	relative.Command.Path = "sh"
	refused("relative command", supervisor.Request{Start: &relative})
	start(t, h, s)
	refused("second start", supervisor.Request{Start: &s})
	do(t, h, supervisor.Request{Kill: &supervisor.Kill{Reason: offpeak.EndCancelled}})
	awaitExit(t, h)
	next := script(t, "exit 3")
	next.Lease, next.Forget = "lease_2", ""
	refused("start over a result that was not taken", supervisor.Request{Start: &next})
	next.Forget = "lease_3"
	refused("start over another's result", supervisor.Request{Start: &next})
	bad := next
	bad.Forget, bad.Command.Path = "lease_1", "sh"
	refused("start of what can't be", supervisor.Request{Start: &bad})
	if st := do(t, h, ask); st.Lease != "lease_1" || st.Exit == nil || st.Exit.Reason != offpeak.EndCancelled {
		t.Errorf("the refused starts changed the result to %+v", st)
	}
	next.Forget = "lease_1"
	start(t, h, next)
	if e := awaitExit(t, h); e.Code == nil || *e.Code != 3 {
		t.Errorf("exit = %+v", e)
	}
}

func TestWarmRestartsLeaveNothing(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	before := do(t, h, ask)
	var fds int
	pid := outerPID(t, h.Dir())
	count := func() int {
		l, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		return len(l)
	}
	for i := range 100 {
		s := script(t, "echo "+strconv.Itoa(i)+"; (sleep 1000 &)")
		s.Limits = supervisor.Limits{CPU: 1000, Memory: 256 * offpeak.MiB, Processes: 100, Log: offpeak.MiB}
		m := mark(t, &s)
		start(t, h, s)
		if e := awaitExit(t, h); e.Reason != offpeak.EndCompleted {
			t.Fatalf("run %d: %+v", i, e)
		}
		if got := read(t, s, "stdout.log"); got != strconv.Itoa(i)+"\n" {
			t.Fatalf("run %d printed %q", i, got)
		}
		if left := marked(m); len(left) > 0 {
			t.Fatalf("run %d left %v", i, left)
		}
		if i == 10 {
			fds = count()
		}
	}
	if n := count(); n > fds {
		t.Errorf("descriptors grew from %d to %d", fds, n)
	}
	after := do(t, h, ask)
	if after.PID != before.PID || after.Phase != supervisor.Exited {
		t.Errorf("after: %+v", after)
	}
}

func TestNotice(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"leaves", `trap 'cat "$OFFPEAK_NOTICE" >seen; exit 0' TERM; echo ready; while :; do sleep 0.01; done`},
		{"ignores", `trap '' TERM; echo ready; while :; do sleep 0.01; [ -e "$OFFPEAK_NOTICE" ] && [ ! -e seen ] && cp "$OFFPEAK_NOTICE" part && mv part seen; done`},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := spawn(t, "")
			s := script(t, c.text)
			start(t, h, s)
			await(t, h, "ready", func(st supervisor.Status) bool { return st.Stdout > 0 })
			do(t, h, supervisor.Request{Freeze: &supervisor.Freeze{Frozen: true}})
			st := do(t, h, supervisor.Request{Notice: &supervisor.Notice{Reason: offpeak.EndOwnerReturned, Grace: 300 * time.Millisecond}})
			if st.Noticed != offpeak.EndOwnerReturned || st.Frozen {
				t.Errorf("%+v", st)
			}
			e := awaitExit(t, h)
			if e.Reason != offpeak.EndOwnerReturned {
				t.Errorf("exit %+v", e)
			}
			if left := c.name == "leaves"; left != (e.Code != nil && *e.Code == 0) {
				t.Errorf("exit %+v", e)
			}
			seen, err := os.ReadFile(filepath.Join(s.Command.Dir, "seen"))
			if err != nil || !strings.Contains(string(seen), `"seconds_left":0.3`) {
				t.Errorf("notice %q, %v", seen, err)
			}
		})
	}
}

func TestFirstOutputIsPushedAtOnce(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	s := script(t, `echo hello; sleep 1000`)
	start(t, h, s)
	st := await(t, h, "first output", func(st supervisor.Status) bool { return st.Stdout == 6 })
	if st.FirstOutput <= 0 || st.FirstOutput > 5e6 {
		t.Errorf("first output after %d µs", st.FirstOutput)
	}
}

func TestAnotherAgentAdopts(t *testing.T) {
	t.Parallel()
	first := spawn(t, "")
	s := script(t, counter)
	s.Deadline = lease(time.Hour)
	start(t, first, s)
	dir := first.Dir()
	eventually(t, "ticks", func() bool { return ticks(t, s) > 0 })
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	n := ticks(t, s)
	eventually(t, "the job goes on without an agent", func() bool { return ticks(t, s) > n })
	second, err := supervisor.Adopt(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	st := do(t, second, ask)
	if st.Phase != supervisor.Running || st.Lease != "lease_1" {
		t.Errorf("adopted %+v", st)
	}
	do(t, second, supervisor.Request{Kill: &supervisor.Kill{Reason: offpeak.EndDrained}})
	if e := awaitExit(t, second); e.Reason != offpeak.EndDrained {
		t.Errorf("exit %+v", e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := second.End(ctx); err != nil {
		t.Error(err)
	}
	if _, err := supervisor.Adopt(t.Context(), dir); err == nil {
		t.Error("adopted a dead supervisor")
	}
}

func TestDeepFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 20 {
		dir = filepath.Join(dir, "a-rather-long-name")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h, err := supervisor.Spawn(t.Context(), supervisor.Options{Exe: exe(t), Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.End(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSignalsFromTheJobDoNotReachTheSupervisor(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	if !slices.Contains(fences(t), supervisor.FencePIDNamespace) {
		require.Met(t, errors.ErrUnsupported, "PID namespaces")
	}
	s := script(t, `for s in HUP INT QUIT TERM USR1 USR2 ALRM PIPE KILL STOP; do kill -$s 1; done; echo "pid $$"`)
	start(t, h, s)
	if e := awaitExit(t, h); e.Reason != offpeak.EndCompleted {
		t.Errorf("exit %+v", e)
	}
}
