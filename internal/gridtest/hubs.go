package gridtest

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"offpeak/internal/local"
	"offpeak/wire"
)

// Hub is one hub process of a grid, started and killed by one goroutine at a
// time; its other methods may be called meanwhile.
type Hub struct {
	// Addr is where it listens, also after it was killed and started again.
	Addr string
	grid *Grid
	n    int
	db   string
	args []string

	mu  sync.Mutex
	cmd *exec.Cmd // guarded by mu; nil while there is none
}

func newHub(g *Grid, n int, db string, args []string) *Hub {
	return &Hub{Addr: freeAddr(g.t), grid: g, n: n, db: db, args: args}
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// name is "hub" of the first, "hub1" and so on of the others.
func (h *Hub) name(what string) string {
	if h.n == 0 {
		return what
	}
	return fmt.Sprintf("%s%d", what, h.n)
}

// env is the environment of the hub and of who works beside it.
func (h *Hub) env() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.grid.Dir, "OFFPEAK_HOME=" + h.home(), "LANG=C.UTF-8"}
}

func (h *Hub) home() string { return filepath.Join(h.grid.Dir, h.name("home")) }

func (h *Hub) localFile() string { return filepath.Join(h.home(), "local.json") }

func (h *Hub) log() string { return h.name("hub") + ".log" }

// Dir is the hub's data folder.
func (h *Hub) Dir() string { return filepath.Join(h.grid.Dir, h.name("hub")) }

func (h *Hub) traceFile() string { return filepath.Join(h.grid.Dir, h.name("verbs")) }

// URL is the hub's address.
func (h *Hub) URL() string { return "http://" + h.Addr }

// Start starts the hub, also after it was killed, and waits until it serves.
func (h *Hub) Start() {
	h.grid.t.Helper()
	t, timers := h.grid.t, h.grid.Timers
	args := append([]string{"hub", "--listen", h.Addr, "--data", h.Dir(),
		"--heartbeat", timers.Heartbeat.String(), "--timeout", timers.Timeout.String(),
		"--offer", timers.Offer.String(), "--tick", timers.Tick.String(), "--fence", "500ms", "--log-format", "text", "--trace-verbs", h.traceFile()}, h.args...)
	env := h.env()
	if h.db != "" {
		env = append(env, "OFFPEAK_DB="+h.db)
		args = append(args, "--blobs", filepath.Join(h.grid.Dir, "blobs"))
	}
	cmd := h.grid.command(env, h.log(), args...)
	if err := cmd.Start(); err != nil {
		t.Fatalf("start hub: %v", err)
	}
	h.mu.Lock()
	h.cmd = cmd
	h.mu.Unlock()
	Eventually(t, 30*time.Second, "the hub to serve", func() error {
		resp, err := http.Get(h.URL() + "/v1/health")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("health: %s", resp.Status)
		}
		return nil
	})
	Eventually(t, 10*time.Second, "the hub's local file", func() error {
		l, err := local.Read(h.localFile())
		if err == nil && l.PID != h.PID() {
			err = fmt.Errorf("it is process %d's, want %d's", l.PID, h.PID())
		}
		return err
	})
}

// process is the hub's process, nil where there is none.
func (h *Hub) process() *exec.Cmd {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cmd
}

// Runs says that the hub was started and neither killed nor stopped since.
func (h *Hub) Runs() bool { return h.process() != nil }

// PID is the hub's process, 0 where there is none.
func (h *Hub) PID() int {
	if cmd := h.process(); cmd != nil {
		return cmd.Process.Pid
	}
	return 0
}

// end sends a signal that ends the hub, and waits until it is gone.
func (h *Hub) end(sig syscall.Signal) error {
	cmd := h.process()
	if cmd == nil {
		return nil
	}
	_ = cmd.Process.Signal(sig)
	err := cmd.Wait()
	h.mu.Lock()
	h.cmd = nil
	h.mu.Unlock()
	return err
}

// Kill kills the hub with SIGKILL and waits until it is gone.
func (h *Hub) Kill() { _ = h.end(syscall.SIGKILL) }

// Stop asks the hub to stop and returns its exit error.
func (h *Hub) Stop() error { return h.end(syscall.SIGTERM) }

// Freeze stops the hub with SIGSTOP: it does nothing, and its sockets stay open.
func (h *Hub) Freeze() { h.signal(syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (h *Hub) Thaw() { h.signal(syscall.SIGCONT) }

func (h *Hub) signal(sig syscall.Signal) {
	if cmd := h.process(); cmd != nil {
		_ = cmd.Process.Signal(sig)
	}
}

// CLI runs a command of the binary as a person on this hub's machine would.
func (h *Hub) CLI(args ...string) (stdout, stderr string, exit int) {
	return h.cli(h.grid.Dir, args...)
}

func (h *Hub) cli(dir string, args ...string) (stdout, stderr string, exit int) {
	var out, errs strings.Builder
	cmd := exec.Command(h.grid.bin, args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = h.env(), dir, &out, &errs
	err := cmd.Run()
	var ee *exec.ExitError
	switch {
	case errors.As(err, &ee):
		exit = ee.ExitCode()
	case err != nil:
		exit = -1
	}
	return out.String(), errs.String(), exit
}

// Client speaks to this hub alone.
func (h *Hub) Client() *wire.Direct {
	d := *h.grid.Client
	d.Client, d.Base = wire.Client(""), h.URL()
	return &d
}

// Leader is the hub that was the last to say that it matches, nil where none did.
func (g *Grid) Leader() *Hub {
	var leader *Hub
	newest := int64(0)
	for _, h := range g.Hubs {
		log, err := os.ReadFile(filepath.Join(g.Dir, h.log()))
		if err != nil {
			g.t.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			_, rest, says := strings.Cut(line, "this hub matches now")
			var term int64
			if _, err := fmt.Sscanf(rest, " term=%d", &term); says && err == nil && term >= newest {
				leader, newest = h, term
			}
		}
	}
	return leader
}

// StartHub starts the first hub, also after it was killed, and waits until it
// serves.
func (g *Grid) StartHub() {
	g.t.Helper()
	g.Hubs[0].Start()
}

// KillHub kills the first hub with SIGKILL and waits until it is gone.
func (g *Grid) KillHub() { g.Hubs[0].Kill() }

// StopHub asks the first hub to stop and returns its exit error.
func (g *Grid) StopHub() error { return g.Hubs[0].Stop() }

// HubPID is the first hub's process.
func (g *Grid) HubPID() int { return g.Hubs[0].PID() }

// HubDir is the first hub's data folder.
func (g *Grid) HubDir() string { return g.Hubs[0].Dir() }

// Addr is where the first hub listens.
func (g *Grid) Addr() string { return g.Hubs[0].Addr }

// URLs are the addresses of all hubs.
func (g *Grid) URLs() []string {
	out := make([]string, len(g.Hubs))
	for i, h := range g.Hubs {
		out[i] = h.URL()
	}
	return out
}

// answerWithin is how long a client that goes round waits for a hub to begin
// its answer before it goes to the next.
const answerWithin = 2 * time.Second

// Round is a client like Client, of its own, that begins with the n-th hub.
func (g *Grid) Round(n int) *wire.Direct {
	d := g.round(n, g.transport())
	d.Token = g.Client.Token
	return &d
}

func (g *Grid) round(n int, over *http.Transport) wire.Direct {
	r := &round{at: n, transport: over}
	for _, h := range g.Hubs {
		r.addrs = append(r.addrs, h.Addr)
	}
	return wire.Direct{Client: &http.Client{Transport: r}, Base: g.Hubs[0].URL(), Agent: "gridtest"}
}

func (g *Grid) transport() *http.Transport {
	t := &http.Transport{MaxIdleConnsPerHost: 64}
	if len(g.Hubs) > 1 {
		t.ResponseHeaderTimeout = answerWithin
	}
	return t
}

// round is a transport that stays with one hub until that does not answer, or
// can't. It repeats nothing that may have reached a hub: the caller knows how.
type round struct {
	addrs     []string
	transport *http.Transport

	mu sync.Mutex
	at int // guarded by mu
}

// RoundTrip implements http.RoundTripper.
func (r *round) RoundTrip(req *http.Request) (*http.Response, error) {
	if !slices.Contains(r.addrs, req.URL.Host) {
		return r.transport.RoundTrip(req) // over a link, which is not gone round
	}
	for try := 1; ; try++ {
		r.mu.Lock()
		at := r.at
		r.mu.Unlock()
		out := req.Clone(req.Context())
		out.URL.Host, out.Host = r.addrs[at%len(r.addrs)], ""
		if req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			out.Body = body
		}
		resp, err := r.transport.RoundTrip(out)
		if err == nil && resp.StatusCode != http.StatusServiceUnavailable || req.Context().Err() != nil {
			return resp, err
		}
		r.mu.Lock()
		if r.at == at {
			r.at++
		}
		r.mu.Unlock()
		dial := new(net.OpError)
		if try >= len(r.addrs) || !errors.As(err, &dial) || dial.Op != "dial" || req.Body != nil && req.GetBody == nil {
			return resp, err
		}
	}
}
