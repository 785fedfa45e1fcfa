// Package doctor says in plain words what a machine can and can't offer a grid, why,
// and what to do about it.
//
// It owns the checks, their order and their words. What they look at is handed in as
// functions, each of which may fail, hang or have nothing to say: one that doesn't
// answer in time costs its own line and no other. It needs no agent that runs and no
// node that has joined, and changes nothing. Examine may be called from any goroutine.
// It is tested on made-up machines.
package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"offpeak"
	"offpeak/agent/books"
	"offpeak/agent/presence"
)

// Level is how well a thing is.
type Level string

// The levels. A machine with a Fail can't work; a Warn is something that it can't
// offer, or that its owner should know.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Line is one finding.
type Line struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Said  string `json:"said"`
	// Next is what to do, "" where nothing is needed.
	Next string `json:"next,omitempty"`
}

// Bound is how long one look at the machine may take. What hangs is left alone.
const Bound = 10 * time.Second

// World is what is looked at. A nil function is not looked at.
type World struct {
	Settings func(ctx context.Context) (Settings, error)
	Folder   func(ctx context.Context) (Folder, error)
	Node     func(ctx context.Context) (Node, error)
	Hub      func(ctx context.Context, address, fingerprint string) (Hub, error)
	Fences   func(ctx context.Context) (Fences, error)
	Drivers  func(ctx context.Context) []Driver
	Machine  func(ctx context.Context) (offpeak.Inventory, error)
	Devices  func(ctx context.Context) (Devices, error)
	// Presence is what the owner's rules make of the machine.
	Presence func(ctx context.Context) (presence.Verdict, error)
	// Egress proves that a job's network is closed but for what is allowed.
	Egress  func(ctx context.Context) error
	Service func(ctx context.Context) ([]string, error)
}

// Settings is what the owner said when the agent was set up.
type Settings struct {
	Root, NoLimits, Presence bool
	// Accept is whose unfenced jobs run: own or any.
	Accept string
	GPUs   string
}

// Folder is the data folder.
type Folder struct {
	Path string
	// Absent: it is not there yet.
	Absent bool
	// Open says that others than its owner may look into it, Foreign that it is
	// another user's.
	Open, Foreign bool
	// Write is why nothing can be written there, nil if something can.
	Write error
	Free  offpeak.Bytes
}

// Node is who this machine is.
type Node struct {
	// Joined is false before it has, Lost is what went wrong since.
	Joined      bool
	Lost        error
	ID          offpeak.NodeID
	Name        string
	Hubs        []string
	Fingerprint string
	// Running is the agent's own word, nil while none runs.
	Running *Running
	// Rules is what is wrong with the owner's rules, "" nothing.
	Rules string
}

// Running is an agent that runs here.
type Running struct {
	PID       int
	Connected bool
	Conflict  bool
	Problem   string
}

// Hub is how one hub was reached.
type Hub struct {
	// Via is the proxy, "" for none; Family is IPv4 or IPv6.
	Via, Family string
	Version     string
	// Ahead is by how much the hub's clock is ahead of this machine's; Told is
	// false where it didn't say.
	Ahead time.Duration
	Told  bool
	Took  time.Duration
}

// Fences is how jobs can be fenced in.
type Fences struct {
	Best     []string
	Limited  bool
	Warnings []string
}

// Driver is a sandbox tier, Err why it does not work here.
type Driver struct {
	Name string
	Err  error
}

// Devices are the GPUs.
type Devices struct {
	List     []books.Device
	Warnings []string
	// Withheld says that the owner offers none.
	Withheld bool
}

// Examine looks at everything and returns what was found, in a fixed order.
func Examine(ctx context.Context, w World) []Line {
	checks := []struct {
		name string
		look func(context.Context, *World) []Line
	}{
		{"settings", settings}, {"data folder", folder}, {"node", node}, {"fences", fences}, {"drivers", drivers}, {"machine", machine},
		{"GPUs", devices}, {"presence", rules}, {"egress", egress}, {"service", service},
	}
	found := make([][]Line, len(checks))
	var all sync.WaitGroup
	for i, c := range checks {
		all.Go(func() { found[i] = bounded(ctx, c.name, func(ctx context.Context) []Line { return c.look(ctx, &w) }) })
	}
	all.Wait()
	var out []Line
	for _, lines := range found {
		out = append(out, lines...)
	}
	return out
}

// bounded is what a look finds, or that it doesn't answer.
func bounded(ctx context.Context, name string, look func(context.Context) []Line) []Line {
	// A look may be made of several that are bounded themselves.
	ctx, cancel := context.WithTimeout(ctx, Bound)
	defer cancel()
	done := make(chan []Line, 1)
	go func() { done <- look(ctx) }()
	late := time.NewTimer(Bound + time.Second)
	defer late.Stop()
	select {
	case lines := <-done:
		return lines
	case <-late.C:
		return []Line{{name, Warn, fmt.Sprintf("no answer within %s", Bound), "see what hangs: a driver, a disk or a network drive"}}
	}
}

// Worst is the worst of the levels.
func Worst(lines []Line) Level {
	worst := OK
	for _, l := range lines {
		if l.Level == Fail || l.Level == Warn && worst == OK {
			worst = l.Level
		}
	}
	return worst
}
