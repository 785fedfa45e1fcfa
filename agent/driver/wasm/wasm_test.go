package wasm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/driver/drivertest"
	"offpeak/agent/driver/wasm"
)

// engine builds the process that the driver starts.
func engine(t *testing.T) wasm.Driver {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "engine")
	if text, err := exec.Command("go", "build", "-o", exe, "offpeak/agent/driver/wasm/internal/engine").CombinedOutput(); err != nil {
		t.Fatalf("build the engine: %v\n%s", err, text)
	}
	return wasm.Driver{Exe: exe}
}

type rig struct {
	driver wasm.Driver
	module []byte
	cache  string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	module, err := os.ReadFile(drivertest.Build(t, "wasip1"))
	if err != nil {
		t.Fatal(err)
	}
	return &rig{driver: engine(t), module: module, cache: t.TempDir()}
}

func (r *rig) lay(t *testing.T, work string) []string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(work, "program.wasm"), r.module, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"program.wasm"}
}

func (r *rig) run(t *testing.T, task driver.Task, args ...string) drivertest.Result {
	t.Helper()
	task.Cache = r.cache
	task.Command = append(r.lay(t, task.Work), args...)
	return drivertest.Exec(t, r.driver, task)
}

// cached lets the suite's many runs share one compilation.
type cached struct {
	wasm.Driver
	cache string
}

func (c cached) Command(t driver.Task) (driver.Command, error) {
	t.Cache = c.cache
	return c.Driver.Command(t)
}

func TestSuite(t *testing.T) {
	r := newRig(t)
	drivertest.Run(t, drivertest.Setup{
		Driver: cached{r.driver, r.cache}, Command: r.lay, Missing: offpeak.EndCommandNotFound,
	})
	t.Run("environment holds what the module sees", func(t *testing.T) {
		task := drivertest.NewTask(t, "OFFPEAK_NOTICE=/elsewhere/notice.json", "PWD=/somewhere")
		task.Env = append(task.Env, "A="+task.Work, "B="+task.Work+"/x", "C="+task.Work+"-not")
		got := strings.Split(r.run(t, task, "environ").Stdout, "\x00")
		for _, want := range []string{"A=/", "B=/x", "C=" + task.Work + "-not", "OFFPEAK_CHECKPOINT_DIR=/checkpoints", "HOME=/", "PWD=/"} {
			if !slices.Contains(got, want) {
				t.Errorf("no %q in %q", want, got)
			}
		}
	})
	t.Run("no way out", func(t *testing.T) {
		task := drivertest.NewTask(t)
		outside := filepath.Join(filepath.Dir(task.Work), "secret")
		if err := os.WriteFile(outside, []byte("secret"), 0o644); err != nil {
			t.Fatal(err)
		}
		// Links that the job's input or its own native step may have left.
		for name, target := range map[string]string{"abs": outside, "rel": "../secret", "up": "..", "chain": "rel"} {
			if err := os.Symlink(target, filepath.Join(task.Work, name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range [][]string{
			{"read", "abs"}, {"read", "rel"}, {"read", "chain"}, {"read", "up/secret"}, {"read", "../secret"},
			{"read", outside}, {"read", "/proc/self/environ"}, {"read", "/etc/passwd"},
			{"write", "rel", "owned"}, {"write", "abs", "owned"}, {"write", "up/new", "owned"},
			{"append", "chain", "owned"},
			{"link", "/etc/passwd", "l1"}, {"link", "../secret", "l2"}, {"link", outside, "l3"}, {"link", "../../etc/passwd", "checkpoints/l4"},
		} {
			if got := r.run(t, task, args...); got.Code == 0 || got.Stdout != "" {
				t.Errorf("%v: %+v", args, got)
			}
		}
		if data, err := os.ReadFile(outside); string(data) != "secret" {
			t.Errorf("outside file: %q, %v", data, err)
		}
		if _, err := os.Lstat(filepath.Join(filepath.Dir(task.Work), "new")); err == nil {
			t.Error("a file appeared outside")
		}
		for _, l := range []string{"l1", "l2", "l3", "checkpoints/l4"} {
			if _, err := os.Lstat(filepath.Join(task.Work, l)); err == nil {
				t.Errorf("the link %s was made", l)
			}
		}
		// Links inside are fine.
		if err := os.WriteFile(filepath.Join(task.Work, "plain"), []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := r.run(t, task, "link", "../plain", "checkpoints/ok"); got.Code != 0 || got.Stdout != "text" {
			t.Errorf("link inside: %+v", got)
		}
	})
	t.Run("memory is capped", func(t *testing.T) {
		task := drivertest.NewTask(t)
		if got := r.run(t, task, "grow", "400"); got.Code == 0 || got.Report.Reason != offpeak.EndOutOfMemory {
			t.Errorf("%+v", got)
		}
		if got := r.run(t, task, "grow", "20"); got.Code != 0 {
			t.Errorf("%+v", got)
		}
	})
}

func TestBadModules(t *testing.T) {
	d := engine(t)
	header := "\x00asm\x01\x00\x00\x00"
	for name, c := range map[string]struct {
		module string
		code   int
		reason offpeak.EndReason
	}{
		"text":     {"#!/bin/sh\n", -1, offpeak.EndBadModule},
		"empty":    {"", -1, offpeak.EndBadModule},
		"garbled":  {"\x00asm\xff\xff\xff\xff", 125, offpeak.EndBadModule},
		"no start": {header, 125, offpeak.EndBadModule},
		// (import "env" "f" (func))
		"unknown import": {header + "\x01\x04\x01\x60\x00\x00\x02\x09\x01\x03env\x01f\x00\x00", 125, offpeak.EndBadModule},
		// (func (export "_start") unreachable)
		// (memory 32768) is 2 GiB from the start.
		"too large": {header + "\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x05\x05\x01\x00\x80\x80\x02\x07\x0a\x01\x06_start\x00\x00\x0a\x04\x01\x02\x00\x0b", 125, offpeak.EndOutOfMemory},
		"trap":      {header + "\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x07\x0a\x01\x06_start\x00\x00\x0a\x05\x01\x03\x00\x00\x0b", 134, ""},
	} {
		task := drivertest.NewTask(t)
		if err := os.WriteFile(filepath.Join(task.Work, "m.wasm"), []byte(c.module), 0o644); err != nil {
			t.Fatal(err)
		}
		task.Command = []string{"m.wasm"}
		got := drivertest.Exec(t, d, task)
		if got.Code != c.code || got.Report.Reason != c.reason {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
