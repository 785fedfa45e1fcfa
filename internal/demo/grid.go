package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"offpeak"
	"offpeak/internal/local"
	"offpeak/wire"
)

// module is the job's program in its folder.
const module = "digits.wasm"

// grid is a hub and its agents: real processes with short timers, in a folder.
type grid struct {
	bin, dir string
	out      *stage
	started  []*process
	api      *wire.Direct
}

// process is one that the grid started. done is closed when it has ended.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// The command lines of the binary that the demo uses stand in these functions.

func (g *grid) hubArgs() []string {
	return []string{
		"hub", "--listen", "127.0.0.1:0", "--data", filepath.Join(g.dir, "hub"),
		"--heartbeat", "300ms", "--timeout", "3s", "--tick", "100ms", "--offer", "2s",
	}
}

func (g *grid) agentArgs(name string) []string {
	return []string{"agent", "run", "--data", g.data(name), "--name", name,
		// Whoever watches the demo sits at this machine.
		"--presence=false"}
}

func submitArgs(name string, job ...string) []string {
	args := []string{
		"submit", "--name", name, "--driver", "wasm", "--cpu", "1", "--memory", "512MiB",
		"--input", ".", "--output", "outputs", "--checkpoint-every", "1s", "-o", "json", "--",
	}
	return append(args, job...)
}

func outputsArgs(job offpeak.JobID, to string) []string {
	return []string{"outputs", string(job), "--out", to}
}

func checkArgs() []string { return []string{"check"} }

// data is the data folder of a node.
func (g *grid) data(name string) string { return filepath.Join(g.dir, name) }

// env is the environment of everything the grid starts: one home, so that hub,
// agents and commands find each other through the file in it, and nothing of
// the user's own settings.
func (g *grid) env() []string {
	env := []string{"OFFPEAK_HOME=" + filepath.Join(g.dir, "home")}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "OFFPEAK_") {
			env = append(env, e)
		}
	}
	return env
}

// start starts a process that runs until the end.
func (g *grid) start(name string, args []string) (*process, error) {
	p := &process{name: name, log: filepath.Join(g.dir, name+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(g.bin, args...)
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = g.env(), g.dir, log, log
	// A group of its own: Ctrl-C is for the demo, which then ends the others.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // what it returned is in ProcessState
		close(p.done)
	}()
	g.started = append(g.started, p)
	return p, nil
}

// command runs a command to its end and returns what it printed.
func (g *grid) command(ctx context.Context, dir string, args []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, g.bin, args...)
	cmd.Env, cmd.Dir = g.env(), dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("offpeak %s: %w\n%s%s", args[0], err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

// startHub starts the hub and waits until it answers.
func (g *grid) startHub(ctx context.Context) error {
	hub, err := g.start("hub", g.hubArgs())
	if err != nil {
		return err
	}
	file := local.Path(func(name string) string {
		if name == "OFFPEAK_HOME" {
			return filepath.Join(g.dir, "home")
		}
		return ""
	})
	return poll(ctx, 15*time.Second, "the hub to answer", func() (bool, error) {
		if hub.ended() {
			return false, errors.New("the hub ended at once")
		}
		if _, err := os.Stat(file); err != nil {
			return false, nil //nolint:nilerr // not written yet
		}
		found, err := local.Read(file)
		if err != nil || len(found.Hubs) == 0 {
			return false, err
		}
		g.api = &wire.Direct{Client: &http.Client{}, Base: found.Hubs[0], Token: found.Token, Agent: "offpeak-demo"}
		_, err = g.api.Whoami(ctx)
		return err == nil, nil
	})
}

// startAgents starts an agent for each name and waits until all nodes are online.
func (g *grid) startAgents(ctx context.Context, names []string) (map[offpeak.NodeID]string, error) {
	for _, name := range names {
		if _, err := g.start(name, g.agentArgs(name)); err != nil {
			return nil, err
		}
	}
	var nodes map[offpeak.NodeID]string
	err := poll(ctx, 20*time.Second, "the nodes to come online", func() (bool, error) {
		for _, p := range g.started {
			if p.ended() {
				return false, fmt.Errorf("%s ended at once", p.name)
			}
		}
		list, err := g.api.Nodes(ctx, url.Values{"limit": {"100"}})
		if err != nil {
			return false, err
		}
		nodes = map[offpeak.NodeID]string{}
		for _, n := range list.Items {
			if n.Liveness == offpeak.NodeOnline {
				nodes[n.ID] = n.Name
			}
		}
		return len(nodes) == len(names), nil
	})
	return nodes, err
}

// submit hands a job in with the folder as its input.
func (g *grid) submit(ctx context.Context, folder, name string, job ...string) (offpeak.JobID, error) {
	out, err := g.command(ctx, folder, submitArgs(name, job...))
	if err != nil {
		return "", err
	}
	var j offpeak.Job
	if err := json.Unmarshal(out, &j); err != nil || j.ID == "" {
		return "", fmt.Errorf("offpeak submit printed no job: %q", out)
	}
	return j.ID, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// poll asks until the answer is yes.
func poll(ctx context.Context, most time.Duration, what string, ask func() (bool, error)) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(most)
	defer late.Stop()
	for {
		ok, err := ask()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			return fmt.Errorf("waited %s for %s", most, what)
		case <-tick.C:
		}
	}
}

// tails prints the end of each process's log, for a demo that went wrong.
func (g *grid) tails(w io.Writer) {
	for _, p := range g.started {
		data, err := os.ReadFile(p.log)
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		fmt.Fprintf(w, "\n--- the last lines of %s:\n%s\n", p.name, strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
}

// end ends everything and removes the folder.
func (g *grid) end(keep bool) error {
	// Asked first: agent and hub then tidy up outside the folder as well.
	for i := len(g.started) - 1; i >= 0; i-- {
		if p := g.started[i]; !p.ended() {
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	patience, stop := context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	for _, p := range g.started {
		select {
		case <-p.done:
		case <-patience.Done():
		}
	}
	if _, err := killAll(ctx, g.dir); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	for _, p := range g.started {
		<-p.done
	}
	if keep {
		g.out.text("\nKept: %s", g.dir)
		return nil
	}
	if err := os.RemoveAll(g.dir); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}
