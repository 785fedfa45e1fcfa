// Package driver says how a task becomes a process. A driver does not run
// anything itself: it turns a task into a command that the supervisor starts,
// fences, limits, watches and kills in one way for all drivers.
//
// It knows nothing of leases, hubs or checkpoints. Optional abilities are
// one-method interfaces, found by type assertion. Every driver passes the
// suite in drivertest.
package driver

import (
	"offpeak"
)

// Driver turns tasks into commands.
type Driver interface {
	// Name is what a task's driver field says.
	Name() string
	// Available returns nil if the driver works on this machine, else why not.
	Available() error
	// Command returns what to start for a task whose folders are laid out. A
	// module or command that can't be started is a *StartError.
	Command(t Task) (Command, error)
}

// Reacher is a driver that can give a task Egress.
type Reacher interface {
	// Reaches returns nil if tasks have no other way to the network then, else why
	// they can't be given one.
	Reaches() error
}

// Task is what a driver sees of an attempt.
type Task struct {
	offpeak.Task
	// Work is the job's folder, its working directory; absolute.
	Work string
	// Env is the whole environment, "NAME=value".
	Env []string
	// Memory caps the task's memory.
	Memory offpeak.Bytes
	// Cache is a folder that the driver may use across jobs.
	Cache string
	// Egress is the path of a Unix socket on which the agent speaks an HTTP proxy
	// for this job alone; "" is none, and then the job reaches nothing. A driver
	// makes it reachable as http://127.0.0.1:3128 in the job's own network
	// namespace, with a relay in front of the command (agent/driver/relay); the
	// variables that programs look for are in Env already.
	Egress string
}

// Command is a process to start.
type Command struct {
	// Path is the absolute path of the executable.
	Path string
	// Args is the argument vector, with the name first.
	Args []string
	// Env is the process's environment.
	Env []string
	// Dir is the working directory.
	Dir string
	// NoSignal says that the process has no use for SIGTERM: the notice reaches
	// it by the notice file alone.
	NoSignal bool
	// NoNetwork says that the process gets a network namespace of its own, in which
	// there is loopback and nothing else. Where none can be made nothing starts.
	NoNetwork bool
	// Report says that the process is the grid's own and may tell on
	// descriptor 3 why it could not run what it was given: one StartError as
	// JSON. What the task itself runs must have no way to that descriptor.
	Report bool
}

// StartError says that a task can't be started, and whose fault that is.
type StartError struct {
	Reason offpeak.EndReason `json:"reason"`
	Detail string            `json:"detail,omitempty"`
}

func (e *StartError) Error() string { return string(e.Reason) + ": " + e.Detail }
