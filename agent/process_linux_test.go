package agent

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/driver/process"
	"offpeak/agent/supervisor"
)

// agentMain is a whole agent process over a data folder that was enrolled.
func agentMain(data string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	exe, err := os.Executable()
	if err != nil {
		return 1
	}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("AGENT_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	env := Env{
		Boot: func() time.Duration { return time.Duration(supervisor.BootTime()) }, Now: time.Now, Random: rand.Reader,
		Client:      func(string) *http.Client { return &http.Client{Transport: &http.Transport{}} },
		Drivers:     []driver.Driver{process.Driver{}},
		Supervisors: realSupervisors{exe, os.Getenv("AGENT_FENCE")},
		Probe: func(context.Context) (offpeak.Inventory, error) {
			return offpeak.Inventory{Hostname: "desk"}, nil
		},
		Free: freeBytes,
		Log:  log,
	}
	if err := New(testConfig(data), env).Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func freeBytes(path string) (offpeak.Bytes, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	return offpeak.Bytes(st.Bavail) * offpeak.Bytes(st.Bsize), nil
}

// agentProcess is an agent as a process of its own, which can be killed,
// stopped and measured.
type agentProcess struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{}
}

func (w *world) process(change ...func(*exec.Cmd)) *agentProcess {
	w.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	p := &agentProcess{t: w.t, cmd: exec.Command(exe, "agent", w.cfg.Data), done: make(chan struct{})}
	p.cmd.Env = os.Environ()
	if testing.Verbose() {
		p.cmd.Stderr = w.t.Output()
		p.cmd.Env = append(p.cmd.Env, "AGENT_LOG=1")
	}
	for _, f := range change {
		f(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() { defer close(p.done); _ = p.cmd.Wait() }()
	w.t.Cleanup(p.kill)
	return p
}

func (p *agentProcess) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

func (p *agentProcess) kill() { p.signal(unix.SIGKILL); <-p.done }

// stop ends the agent as its owner would.
func (p *agentProcess) stop() {
	p.t.Helper()
	p.signal(unix.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		p.t.Fatal("the agent does not end")
	}
}

// supervisorsOf lists the supervisor processes whose folders lie below data.
func supervisorsOf(data string) []int {
	return processes("supervise\x00--dir\x00" + data + "/")
}

// processes lists those that carry a marker in their arguments or environment.
func processes(marker string) (out []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		if pid == os.Getpid() {
			continue
		}
		args, _ := os.ReadFile(d + "/cmdline")
		env, _ := os.ReadFile(d + "/environ")
		if strings.Contains(string(args), marker) || strings.Contains(string(env), marker) {
			out = append(out, pid)
		}
	}
	return out
}

// groupsOf lists the control groups that supervisors below data left or have.
func groupsOf(data string) (out []string) {
	mounts, _ := filepath.Glob("/sys/fs/cgroup/*")
	mounts = append(mounts, "/sys/fs/cgroup")
	ours := map[string]bool{}
	for n := range 500 {
		sum := sha256.Sum256([]byte(filepath.Join(data, "supervisors", strconv.Itoa(n))))
		ours["offpeak-"+hex.EncodeToString(sum[:8])] = true
	}
	for _, m := range mounts {
		_ = filepath.WalkDir(m, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && ours[d.Name()] {
				out = append(out, path)
			}
			return nil
		})
	}
	return out
}

// rss is the resident memory of a process that no other shares with it.
func rss(pid int) offpeak.Bytes {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "RssAnon:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return offpeak.Bytes(n) * offpeak.KiB
		}
	}
	return 0
}
