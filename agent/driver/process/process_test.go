package process_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/driver/drivertest"
	"offpeak/agent/driver/process"
)

func TestSuite(t *testing.T) {
	program := drivertest.Build(t, "")
	drivertest.Run(t, drivertest.Setup{
		Driver:  process.Driver{},
		Command: func(*testing.T, string) []string { return []string{program} },
		Missing: offpeak.EndCommandNotFound,
	})
}

func TestFind(t *testing.T) {
	work := t.TempDir()
	bin := filepath.Join(work, "bin")
	for _, f := range []struct {
		name string
		mode os.FileMode
	}{{"tool", 0o755}, {"bin/tool", 0o755}, {"bin/plain", 0o644}, {"bin/both", 0o755}, {"both", 0o644}} {
		path := filepath.Join(work, f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, path, want string
	}{
		{"./tool", "", work + "/tool"},
		{"bin/tool", "", bin + "/tool"},
		{bin + "/tool", "", bin + "/tool"},
		{"tool", bin, bin + "/tool"},
		{"tool", "bin", bin + "/tool"},
		{"tool", "/nonexistent:" + bin, bin + "/tool"},
		{"both", work + ":" + bin, bin + "/both"},
		{"tool", "", ""},
		{"tool", "/nonexistent", ""},
		{"plain", bin, ""},
		{"./bin", "", ""},
		{"./none", bin, ""},
		{"", bin, ""},
	} {
		task := driver.Task{Work: work, Env: []string{"PATH=/overridden", "PATH=" + c.path}}
		task.Command = []string{c.name, "arg"}
		got, err := process.Driver{}.Command(task)
		if got.Path != c.want {
			t.Errorf("%q in %q: %q, want %q (%v)", c.name, c.path, got.Path, c.want, err)
		}
		if c.want == "" {
			se, ok := errors.AsType[*driver.StartError](err)
			if !ok || se.Reason != offpeak.EndCommandNotFound || se.Detail == "" {
				t.Errorf("%q in %q: %v", c.name, c.path, err)
			}
		}
	}
}
