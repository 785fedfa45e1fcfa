// Package process runs a task as an ordinary process of the machine: a command
// in the job's folder, with exactly the environment it was given and no shell
// between.
//
// It owns how a command's name is found, and says which network the command is to
// have. It must not start anything: fences and limits are the supervisor's, for all
// drivers alike. It has no state and may be used from any goroutine. It is tested by
// drivertest and by a table of names.
package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/driver/relay"
)

// Driver is the process driver.
type Driver struct {
	// Exe is the binary whose hidden command "relay" is relay.Main. Only tasks with
	// Egress need it.
	Exe string
	// NoNetwork says that tasks have loopback alone, and not the machine's network.
	// A task with Egress never has that.
	NoNetwork bool
	// Alone says why this machine can't give a task a network namespace; nil is that
	// it can.
	Alone error
	// Closed are addresses that no task with Egress may have a way to but through
	// its proxy.
	Closed func() []string
}

// Name is "process".
func (Driver) Name() string { return "process" }

// Available returns nil, since every machine has processes, unless they are to have
// no network and can't be without.
func (d Driver) Available() error {
	if d.NoNetwork {
		return d.Reaches()
	}
	return nil
}

// Reaches returns nil if a task with Egress has no other way out.
func (d Driver) Reaches() error {
	if d.Alone != nil {
		return fmt.Errorf("this machine gives processes no network of their own: %w", d.Alone)
	}
	return nil
}

// Command finds the executable as a shell in the job's folder would: a name
// with a slash is a path from there, any other is looked for in the PATH of
// the job's own environment.
func (d Driver) Command(t driver.Task) (driver.Command, error) {
	if len(t.Command) == 0 || t.Command[0] == "" {
		return driver.Command{}, &driver.StartError{Reason: offpeak.EndCommandNotFound, Detail: "the command is empty"}
	}
	path, err := find(t.Command[0], t.Work, t.Env)
	if err != nil {
		return driver.Command{}, &driver.StartError{Reason: offpeak.EndCommandNotFound, Detail: err.Error()}
	}
	c := driver.Command{Path: path, Args: t.Command, Env: t.Env, Dir: t.Work, NoNetwork: d.NoNetwork}
	if t.Egress != "" {
		var closed []string
		if d.Closed != nil {
			closed = d.Closed()
		}
		c = relay.Wrap(d.Exe, c, t.Egress, closed)
	}
	return c, nil
}

func find(name, work string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(work, path)
		}
		return path, executable(path)
	}
	var paths string
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			paths = v
		}
	}
	var near error
	for _, dir := range filepath.SplitList(paths) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(work, dir)
		}
		path := filepath.Join(dir, name)
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if !os.IsNotExist(err) && near == nil {
			near = err
		}
	}
	if near != nil {
		return "", near
	}
	return "", fmt.Errorf("no %q in PATH (%s)", name, paths)
}

// executable returns nil for a file that may be executed, else why not.
func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a folder", filepath.Base(path))
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not executable; chmod +x it before submitting", filepath.Base(path))
	}
	return nil
}
