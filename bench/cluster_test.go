package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
	"offpeak/internal/local"
	"offpeak/internal/pgtest"
	"offpeak/wire"
)

// engine is a store and how many hubs work on it.
type engine struct {
	name string
	hubs int
}

func engines() []engine {
	return []engine{{"sqlite", 1}, {"postgres", 1}, {"postgres", 3}}
}

func (e engine) String() string { return fmt.Sprintf("%s-%d", e.name, e.hubs) }

// cluster is the hubs of one grid, processes of the binary under test, with a
// client that may do everything.
type cluster struct {
	b    *testing.B
	dir  string
	hubs []*hubProcess
	// server is the database's, nil for SQLite; database is its URL.
	server   *pgtest.Server
	database string
	client   *wire.Direct
}

type hubProcess struct {
	addr string
	home string
	args []string
	env  []string
	cmd  *exec.Cmd
}

// startCluster starts hubs on an engine; args go to each.
func startCluster(b *testing.B, e engine, args ...string) *cluster {
	b.Helper()
	c := &cluster{b: b, dir: b.TempDir()}
	if e.name == "postgres" {
		c.server = pgtest.Start(b)
		c.database = c.server.Database(b)
	}
	for i := range e.hubs {
		h := &hubProcess{addr: fmt.Sprintf("127.0.0.1:%d", gridtest.FreePort(b)), home: filepath.Join(c.dir, fmt.Sprintf("home%d", i))}
		h.args = append([]string{"hub", "--listen", h.addr, "--data", filepath.Join(c.dir, fmt.Sprintf("hub%d", i)), "--log-format", "text", "--rate", "1000000"}, args...)
		h.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.home, "OFFPEAK_HOME=" + h.home, "OFFPEAK_DB=" + c.database}
		c.hubs = append(c.hubs, h)
		b.Cleanup(h.kill)
		c.start(h)
	}
	l, err := local.Read(filepath.Join(c.hubs[0].home, "local.json"))
	if err != nil {
		b.Fatal(err)
	}
	c.client = &wire.Direct{Client: wire.Client(""), Base: "http://" + c.hubs[0].addr, Token: l.Token, Agent: "bench"}
	b.Cleanup(func() {
		if b.Failed() {
			for i := range c.hubs {
				log, _ := os.ReadFile(c.hubs[i].home + ".log")
				b.Logf("hub %d:\n%s", i, log[max(0, len(log)-4000):])
			}
			return
		}
		c.check()
	})
	return c
}

func (c *cluster) start(h *hubProcess) {
	c.b.Helper()
	log, err := os.OpenFile(h.home+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.b.Fatal(err)
	}
	defer log.Close()
	h.cmd = exec.Command(bin, h.args...)
	h.cmd.Env, h.cmd.Stdout, h.cmd.Stderr = h.env, log, log
	if err := h.cmd.Start(); err != nil {
		c.b.Fatal(err)
	}
	gridtest.Eventually(c.b, 20*time.Second, "a hub to serve", func() error {
		resp, err := http.Get("http://" + h.addr + "/v1/health")
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
}

func (h *hubProcess) kill() {
	if h.cmd != nil {
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
	}
}

func (c *cluster) bases() []string {
	out := make([]string, len(c.hubs))
	for i, h := range c.hubs {
		out[i] = "http://" + h.addr
	}
	return out
}

// check fails the benchmark if an invariant is broken on the live store.
func (c *cluster) check() {
	c.b.Helper()
	got, err := c.client.Check(context.Background())
	if err != nil || !got.OK {
		c.b.Errorf("check: %v %v", err, got.Violations)
	}
}

func (c *cluster) joinToken(uses int) wire.CreatedToken {
	c.b.Helper()
	tok, err := c.client.CreateToken(context.Background(), gridtest.NewOp(), wire.NewToken{Role: offpeak.RoleJoin, Uses: uses})
	if err != nil {
		c.b.Fatal(err)
	}
	return tok
}

// used is the processor time that hubs and database have used.
func (c *cluster) used() (hubs, database time.Duration) {
	for _, h := range c.hubs {
		hubs += cpuOf(h.cmd.Process.Pid)
	}
	if c.server != nil {
		for _, pid := range c.server.Processes() {
			database += cpuOf(pid)
		}
	}
	return hubs, database
}

// metrics sums the hubs' metrics, without their labels.
func (c *cluster) metrics() map[string]float64 {
	c.b.Helper()
	sums := make(map[string]float64)
	for _, h := range c.hubs {
		d := *c.client
		d.Base = "http://" + h.addr
		resp, err := d.Raw(context.Background(), http.MethodGet, "/metrics", "", nil, "")
		if err != nil {
			c.b.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), " ")
			name, _, _ = strings.Cut(name, "{")
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				sums[strings.TrimPrefix(name, "offpeak_")] += v
			}
		}
		resp.Body.Close()
	}
	return sums
}

// fleet is a process of virtual agents.
type fleet struct {
	b    *testing.B
	cmd  *exec.Cmd
	send *json.Encoder
	hear *json.Decoder
}

func startFleet(b *testing.B) *fleet {
	b.Helper()
	f := &fleet{b: b, cmd: exec.Command(os.Args[0])}
	f.cmd.Env = append(os.Environ(), "OFFPEAK_BENCH_FLEET=1")
	f.cmd.Stderr = os.Stderr
	in, err := f.cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = f.cmd.Process.Kill()
		_ = f.cmd.Wait()
	})
	f.send, f.hear = json.NewEncoder(in), json.NewDecoder(out)
	return f
}

// do has the fleet obey an order.
func (f *fleet) do(o order) done {
	f.b.Helper()
	if err := f.send.Encode(o); err != nil {
		f.b.Fatal(err)
	}
	var d done
	if err := f.hear.Decode(&d); err != nil {
		f.b.Fatal("the fleet's process ended: ", err)
	}
	if d.Err != "" {
		f.b.Fatal("fleet: ", d.Err)
	}
	return d
}
