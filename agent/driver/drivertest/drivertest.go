// Package drivertest is the one suite that every driver passes: a program
// comes through it with its arguments, environment, folder, output and exit
// code unharmed, and what can't be started says whose fault that is.
package drivertest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"offpeak"
	"offpeak/agent/driver"
)

// Setup is what the suite needs to know of a driver.
type Setup struct {
	Driver driver.Driver
	// Command lays the program out in a job's folder if need be, and returns
	// how a task names it.
	Command func(t *testing.T, work string) []string
	// Missing is the reason expected for a command that is not there.
	Missing offpeak.EndReason
}

// Build builds the suite's program, for goos if it is not "", and returns its path.
func Build(t *testing.T, goos string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-o", out, "offpeak/agent/driver/drivertest/program")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if goos == "wasip1" {
		cmd.Env = append(cmd.Env, "GOOS=wasip1", "GOARCH=wasm")
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, text)
	}
	return out
}

// Result is what became of one run.
type Result struct {
	Stdout, Stderr string
	Code           int
	// Report is what the driver's process said of why it could not run the task.
	Report driver.StartError
}

// NewTask makes a task in a fresh folder with the environment that agents give.
func NewTask(t *testing.T, env ...string) driver.Task {
	t.Helper()
	work := filepath.Join(t.TempDir(), "work")
	if err := os.MkdirAll(filepath.Join(work, "checkpoints"), 0o755); err != nil {
		t.Fatal(err)
	}
	return driver.Task{
		Work: work, Cache: t.TempDir(), Memory: 256 * offpeak.MiB,
		Env: append([]string{
			"PATH=/usr/bin:/bin", "HOME=" + work,
			"OFFPEAK_CHECKPOINT_DIR=" + filepath.Join(work, "checkpoints"),
		}, env...),
	}
}

// Exec runs a task to its end as a supervisor would, without fences. A task
// that the driver refuses comes back as its *driver.StartError in Report.
func Exec(t *testing.T, d driver.Driver, task driver.Task) Result {
	t.Helper()
	c, err := d.Command(task)
	if se, ok := errors.AsType[*driver.StartError](err); ok {
		return Result{Code: -1, Report: *se}
	}
	if err != nil {
		t.Fatalf("command: %v", err)
	}
	cmd := &exec.Cmd{Path: c.Path, Args: c.Args, Env: c.Env, Dir: c.Dir}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if c.Report {
		cmd.ExtraFiles = []*os.File{w}
	}
	err = cmd.Run()
	w.Close()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatalf("run: %v", err)
	}
	res := Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
	if data, _ := io.ReadAll(r); len(data) > 0 {
		if err := json.Unmarshal(data, &res.Report); err != nil {
			t.Errorf("report %q: %v", data, err)
		}
	}
	return res
}

// Run runs the suite.
func Run(t *testing.T, s Setup) {
	if err := s.Driver.Available(); err != nil {
		t.Fatalf("available: %v", err)
	}
	run := func(t *testing.T, task driver.Task, args ...string) Result {
		t.Helper()
		task.Command = append(s.Command(t, task.Work), args...)
		return Exec(t, s.Driver, task)
	}
	ok := func(t *testing.T, task driver.Task, args ...string) string {
		t.Helper()
		r := run(t, task, args...)
		if r.Code != 0 {
			t.Fatalf("%v: exit %d, stderr %q, report %+v", args, r.Code, r.Stderr, r.Report)
		}
		return r.Stdout
	}
	nasty := []string{
		"two words", "a=b=c", `"quoted" 'and' \slashed\`, "$HOME `id` $(id)", "two\nlines\t", "",
		"emoji 🦀 é 名前", "*?[]{}~!#&|;<>", strings.Repeat("x", 100_000),
	}
	t.Run("arguments", func(t *testing.T) {
		if got, want := ok(t, NewTask(t), append([]string{"args"}, nasty...)...), strings.Join(nasty, "\x00"); got != want {
			t.Errorf("arguments came as %.200q", got)
		}
	})
	t.Run("environment", func(t *testing.T) {
		for _, v := range nasty {
			if got := ok(t, NewTask(t, "VALUE="+v), "env", "VALUE"); got != v {
				t.Errorf("%.80q came as %.80q", v, got)
			}
		}
		t.Setenv("OF_THE_AGENT", "secret")
		if got := ok(t, NewTask(t), "environ"); strings.Contains(got, "OF_THE_AGENT") {
			t.Errorf("the agent's environment leaks: %q", got)
		}
	})
	t.Run("output", func(t *testing.T) {
		if r := run(t, NewTask(t), "both"); r.Stdout != "to stdout" || r.Stderr != "to stderr" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("input is empty", func(t *testing.T) {
		if got := ok(t, NewTask(t), "stdin"); got != "0 EOF" {
			t.Errorf("stdin: %q", got)
		}
	})
	t.Run("exit codes", func(t *testing.T) {
		for _, code := range []int{0, 1, 2, 85, 126, 127, 137, 255} {
			if r := run(t, NewTask(t), "exit", itoa(code)); r.Code != code || r.Report.Reason != "" {
				t.Errorf("exit %d: %+v", code, r)
			}
		}
	})
	t.Run("folder", func(t *testing.T) {
		task := NewTask(t)
		ok(t, task, "write", "out.txt", "text")
		ok(t, task, "append", "out.txt", " and more")
		if data, err := os.ReadFile(filepath.Join(task.Work, "out.txt")); string(data) != "text and more" {
			t.Errorf("%q, %v", data, err)
		}
		if got := ok(t, task, "read", "out.txt"); got != "text and more" {
			t.Errorf("read back %q", got)
		}
		ok(t, task, "tree")
		if r := run(t, task, "read", "absent"); r.Code != 3 || !strings.Contains(r.Stderr, "absent") {
			t.Errorf("absent file: %+v", r)
		}
	})
	t.Run("checkpoint", func(t *testing.T) {
		task := NewTask(t)
		if got := ok(t, task, "checkpoint", "state"); got != "whole false\n" {
			t.Errorf("listing %q", got)
		}
		if data, err := os.ReadFile(filepath.Join(task.Work, "checkpoints", "whole")); string(data) != "state" {
			t.Errorf("%q, %v", data, err)
		}
	})
	t.Run("missing", func(t *testing.T) {
		task := NewTask(t)
		task.Command = []string{"./no-such-thing"}
		if r := Exec(t, s.Driver, task); r.Report.Reason != s.Missing || !strings.Contains(r.Report.Detail, "no-such-thing") {
			t.Errorf("%+v", r)
		}
	})
}

func itoa(n int) string {
	data, _ := json.Marshal(n)
	return string(data)
}
