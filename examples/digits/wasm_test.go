package main

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// sandbox runs the module in folders, each run in a process of its own.
type sandbox struct{ runner, module, cache string }

func newSandbox(t *testing.T) sandbox {
	t.Helper()
	dir := t.TempDir()
	s := sandbox{filepath.Join(dir, "sandbox"), filepath.Join(dir, "digits.wasm"), filepath.Join(dir, "cache")}
	build := func(out, pkg string, env ...string) {
		c := exec.Command("go", "build", "-o", out, pkg)
		c.Env = append(os.Environ(), env...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", pkg, err, out)
		}
	}
	build(s.runner, "./testdata/sandbox")
	build(s.module, ".", "GOOS=wasip1", "GOARCH=wasm")
	return s
}

// run starts the module in dir and hands each line it prints to see, until it
// has ended. It returns what it printed and the exit code.
func (s sandbox) run(t *testing.T, dir, attempt string, see func(line string, p *os.Process)) (string, int) {
	t.Helper()
	c := exec.Command(s.runner, "-dir", dir, "-cache", s.cache, s.module,
		"--steps=1000", "--batch=32", "--rate=0.01")
	c.Env = []string{
		"OFFPEAK_CHECKPOINT_DIR=/checkpoints", "OFFPEAK_NOTICE=/notice.json", "OFFPEAK_ATTEMPT=" + attempt,
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		printed.WriteString(lines.Text() + "\n")
		see(lines.Text(), c.Process)
	}
	err = c.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if stderr.Len() > 0 {
		t.Errorf("attempt %s on stderr: %s", attempt, stderr.String())
	}
	return printed.String(), c.ProcessState.ExitCode()
}

// The module does the same in a sandbox that gives it a folder and no more:
// killed in the middle, then asked to leave, its third attempt ends with the
// model of a run that was left alone.
func TestModuleSurvivesKillAndNotice(t *testing.T) {
	s := newSandbox(t)
	data, err := os.ReadFile("digits.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	folder := func() string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "digits.csv.gz"), data, 0o644); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	ignore := func(string, *os.Process) {}
	on := func(mark string, then func(*os.Process) error) func(string, *os.Process) {
		return func(line string, p *os.Process) {
			if strings.Contains(line, mark) {
				if err := then(p); err != nil {
					t.Error(err)
				}
			}
		}
	}
	begins := func(out, want string) {
		t.Helper()
		if !strings.HasPrefix(out, want) {
			t.Fatalf("the attempt did not begin with %s:\n%s", want, out)
		}
	}

	alone, moved := folder(), folder()
	if out, code := s.run(t, alone, "1", ignore); code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}

	_, code := s.run(t, moved, "1", on(`"checkpoint","attempt":1,"step":200`, (*os.Process).Kill))
	if code != -1 {
		t.Fatalf("exit code %d of a killed run", code)
	}
	kept, err := checkpoints{filepath.Join(moved, "checkpoints")}.names()
	if err != nil || len(kept) == 0 {
		t.Fatalf("checkpoints after the kill: %v, %v", kept, err)
	}

	notice := filepath.Join(moved, "notice.json")
	out, code := s.run(t, moved, "2", on("step 400 of", func(*os.Process) error {
		return os.WriteFile(notice, []byte(`{}`), 0o644)
	}))
	if code != exitMoved {
		t.Fatalf("exit code %d after a notice, want %d\n%s", code, exitMoved, out)
	}
	begins(out, `{"event":"start","attempt":2,"step":`+strings.TrimLeft(strings.TrimPrefix(kept[0], prefix), "0")+`,"from":"`+kept[0]+`"}`)
	if err := os.Remove(notice); err != nil {
		t.Fatal(err)
	}

	kept, err = checkpoints{filepath.Join(moved, "checkpoints")}.names()
	if err != nil || len(kept) == 0 {
		t.Fatalf("checkpoints after the notice: %v, %v", kept, err)
	}
	out, code = s.run(t, moved, "3", ignore)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	begins(out, `{"event":"start","attempt":3,"step":`+strings.TrimLeft(strings.TrimPrefix(kept[0], prefix), "0")+`,"from":"`+kept[0]+`"}`)
	same(t, filepath.Join(alone, "outputs", "model.json"), filepath.Join(moved, "outputs", "model.json"))
	accurate(t, filepath.Join(moved, "outputs", "metrics.json"))
}
