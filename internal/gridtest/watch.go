package gridtest

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"

	"offpeak"
	"offpeak/internal/inflight"
)

// NewOp makes an operation id.
func NewOp() offpeak.OpID { return offpeak.OpID("test-" + rand.Text()) }

// Events reads all events stored so far. A grid at work goes on making new
// ones: what comes after the call began ends it.
func (g *Grid) Events() []offpeak.Event {
	g.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	body, err := g.Client.Events(ctx, "0", "")
	if err != nil {
		g.t.Fatalf("events: %v", err)
	}
	defer body.Close()
	var out []offpeak.Event
	quiet := time.AfterFunc(2*time.Second, cancel)
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e offpeak.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			g.t.Fatalf("event %q: %v", data, err)
		}
		if e.At.After(began) {
			break
		}
		out = append(out, e)
		quiet.Reset(500 * time.Millisecond)
	}
	return out
}

// ProcessesNamed lists processes whose command line holds the text.
func ProcessesNamed(text string) []int {
	var out []int
	for _, pid := range pids() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(cmdline), text) {
			out = append(out, pid)
		}
	}
	return out
}

// ProcessesOf lists the processes of a lease's job, which carry it in their
// environment.
func ProcessesOf(lease offpeak.LeaseID) []int {
	var out []int
	for _, pid := range pids() {
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if slices.Contains(strings.Split(string(environ), "\x00"), "OFFPEAK_LEASE="+string(lease)) {
			out = append(out, pid)
		}
	}
	return out
}

// Link is a proxy between an agent and the hub that can be cut.
type Link struct {
	t     testing.TB
	proxy *toxiproxy.Proxy
}

// Link makes a link to the hub. Its URL is what an agent dials.
func (g *Grid) Link() *Link {
	g.t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(server, "link", "127.0.0.1:0", g.Addr())
	if err := p.Start(); err != nil {
		g.t.Fatalf("start proxy: %v", err)
	}
	g.t.Cleanup(p.Stop)
	return &Link{t: g.t, proxy: p}
}

// URL is the address that an agent dials.
func (l *Link) URL() string { return "http://" + l.proxy.Listen }

// Direction is a direction of a link.
type Direction string

// The directions.
const (
	ToHub   Direction = "upstream"
	ToAgent Direction = "downstream"
)

// Drop lets bytes of one direction vanish while connections stay open.
func (l *Link) Drop(d Direction) { l.toxic("drop-"+string(d), "timeout", d, &toxics.TimeoutToxic{}) }

// HalfClose closes each connection after some bytes of one direction.
func (l *Link) HalfClose(d Direction, after int64) {
	l.toxic("close-"+string(d), "limit_data", d, &toxics.LimitDataToxic{Bytes: after})
}

// Delay adds latency to one direction.
func (l *Link) Delay(d Direction, by time.Duration) {
	l.toxic("delay-"+string(d), "latency", d, &toxics.LatencyToxic{Latency: by.Milliseconds()})
}

// Rate bounds the bytes a second that each connection carries in one direction.
func (l *Link) Rate(d Direction, perSecond int64) {
	l.toxic("rate-"+string(d), "bandwidth", d, &toxics.BandwidthToxic{Rate: perSecond / 1000})
}

func (l *Link) toxic(name, kind string, d Direction, attributes toxics.Toxic) {
	l.t.Helper()
	body, err := json.Marshal(map[string]any{"name": name, "type": kind, "stream": string(d), "toxicity": 1.0, "attributes": attributes})
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(string(body))); err != nil {
		l.t.Fatalf("cut the link: %v", err)
	}
}

// Jitter adds latency of a different length to each piece of one direction.
func (l *Link) Jitter(d Direction, by, jitter time.Duration) {
	l.toxic("delay-"+string(d), "latency", d, &toxics.LatencyToxic{Latency: by.Milliseconds(), Jitter: jitter.Milliseconds()})
}

// Cut closes all connections and refuses new ones until Mend.
func (l *Link) Cut() { l.proxy.Stop() }

// Mend undoes Cut.
func (l *Link) Mend() {
	l.t.Helper()
	if err := l.proxy.Start(); err != nil {
		l.t.Fatalf("mend the link: %v", err)
	}
}

// Undrop undoes Drop of one direction.
func (l *Link) Undrop(d Direction) {
	l.t.Helper()
	if err := l.proxy.Toxics.RemoveToxic(context.Background(), "drop-"+string(d)); err != nil {
		l.t.Fatalf("mend the link: %v", err)
	}
}

// Heal undoes all that was done to the link.
func (l *Link) Heal() { l.proxy.Toxics.ResetToxics(context.Background()) }

// FreePort finds a free port on loopback.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// CPU is the processor time, in clock ticks, that hub, agents, supervisors and
// jobs have used.
func (g *Grid) CPU() int64 {
	total := int64(CPUOf(g.HubPID()))
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.agents {
		for _, pid := range a.Processes() {
			total += int64(CPUOf(pid))
		}
	}
	return total
}

// CPUOf is the processor time a process has used, as /proc/PID/schedstat tells
// to the nanosecond, over all its threads.
func CPUOf(pid int) time.Duration {
	var total int64
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, t := range tasks {
		data, _ := os.ReadFile(t)
		var ns int64
		_, _ = fmt.Sscan(string(data), &ns)
		total += ns
	}
	return time.Duration(total)
}

// Inflight counts kills of the hub by the verb that they fell inside of.
type Inflight map[string]int

// Add adds another kill's counts.
func (f *Inflight) Add(other Inflight) {
	if *f == nil {
		*f = Inflight{}
	}
	for k, v := range other {
		(*f)[k] += v
	}
}

// KillHubAfter kills the hub after a while and says what it was inside of.
func (g *Grid) KillHubAfter(d time.Duration) Inflight {
	g.t.Helper()
	time.Sleep(d)
	g.KillHub()
	in, err := inflight.Read(g.Hubs[0].traceFile())
	if err != nil {
		g.t.Fatal(err)
	}
	out := Inflight{}
	for verb, n := range in {
		if n > 0 {
			out[verb]++
		}
	}
	return out
}
