// Package wasm runs a task as a WebAssembly module in a process of its own:
// this binary again, as "wasm-run", so that fences, limits and kills are the
// supervisor's as for any other process, and a module that loops needs no help
// from the engine to be stopped.
//
// The module is a WASI command. It sees the job's folder as "/", its arguments
// and environment, clocks and random numbers, and nothing else: no network, no
// other file, no process. Environment values that are paths in the job's
// folder are rewritten to what the module sees.
//
// The package must know nothing of leases and supervisors. The driver has no
// state; Main owns its process. It is tested by drivertest and by modules that
// try to leave.
package wasm

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"offpeak"
	"offpeak/agent/driver"
)

// Command is the hidden command whose body is Main.
const Command = "wasm-run"

// Driver is the wasm driver.
type Driver struct {
	// Exe is the binary whose hidden command "wasm-run" is Main.
	Exe string
}

// Name is "wasm".
func (Driver) Name() string { return "wasm" }

// Available returns nil: the engine is in the binary.
func (Driver) Available() error { return nil }

// Command checks what can be checked without the engine and returns the
// process that runs the module.
func (d Driver) Command(t driver.Task) (driver.Command, error) {
	if len(t.Command) == 0 || t.Command[0] == "" {
		return driver.Command{}, &driver.StartError{Reason: offpeak.EndCommandNotFound, Detail: "the command names no module"}
	}
	if err := checkModule(t.Work, t.Command[0]); err != nil {
		return driver.Command{}, err
	}
	args := []string{
		filepath.Base(d.Exe), Command,
		"--work", t.Work,
		"--cache", t.Cache,
		"--memory", strconv.FormatInt(int64(guestMemory(t.Memory)), 10),
		"--",
	}
	return driver.Command{
		Path: d.Exe, Args: append(args, t.Command...), Env: guestEnv(t.Env, t.Work), Dir: t.Work,
		NoSignal: true, Report: true,
	}, nil
}

// magic begins every binary module.
const magic = "\x00asm"

func checkModule(work, name string) error {
	root, err := os.OpenRoot(work)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.Open(relative(name))
	if err != nil {
		return &driver.StartError{Reason: offpeak.EndCommandNotFound, Detail: err.Error()}
	}
	defer f.Close()
	var head [len(magic)]byte
	if _, err := f.Read(head[:]); err != nil || string(head[:]) != magic {
		return &driver.StartError{Reason: offpeak.EndBadModule, Detail: name + " is not a WebAssembly module; build it with GOOS=wasip1 GOARCH=wasm or another WASI target"}
	}
	return nil
}

// relative takes a path as the module would write it to one in the folder.
func relative(name string) string {
	name = strings.TrimLeft(name, "/")
	if name == "" {
		return "."
	}
	return name
}

// engineMemory is what the process needs beside the module's own memory.
const engineMemory = 64 * offpeak.MiB

// guestMemory divides a task's memory between module and engine; 0 is no limit.
func guestMemory(m offpeak.Bytes) offpeak.Bytes {
	return max(m-engineMemory, m/2)
}

// guestEnv rewrites values that are paths in the job's folder to what the
// module sees.
func guestEnv(env []string, work string) []string {
	out := make([]string, 0, len(env)+1)
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		switch rest, below := strings.CutPrefix(value, work+"/"); {
		case name == "PWD":
			continue
		case value == work:
			e = name + "=/"
		case below:
			e = name + "=/" + rest
		}
		out = append(out, e)
	}
	return append(out, "PWD=/")
}
