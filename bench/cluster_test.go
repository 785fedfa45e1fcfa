package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"offpeak/internal/gridtest"
	"offpeak/internal/pgtest"
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

// cluster is the hubs of one grid on an engine.
type cluster struct {
	*gridtest.Grid
	b *testing.B
	// server is the database's, nil for SQLite; database is its URL.
	server   *pgtest.Server
	database string
}

// startCluster starts hubs on an engine; args go to each.
func startCluster(b *testing.B, e engine, timers gridtest.Timers, args ...string) *cluster {
	b.Helper()
	c := &cluster{b: b}
	args = append(args, "--rate", "1000000")
	if e.name == "sqlite" {
		args = append(args, "--heartbeat", timers.Heartbeat.String(), "--timeout", timers.Timeout.String(), "--offer", timers.Offer.String(), "--tick", timers.Tick.String())
		c.Grid = gridtest.Start(b, bin, args...)
		return c
	}
	c.server = pgtest.Start(b)
	c.database = c.server.Database(b)
	c.Grid = gridtest.StartHubs(b, bin, c.database, e.hubs, timers, args...)
	return c
}

// used is the processor time that hubs and database have used.
func (c *cluster) used() (hubs, database time.Duration) {
	for _, h := range c.Hubs {
		hubs += cpuOf(h.PID())
	}
	if c.server != nil {
		for _, pid := range c.server.Processes() {
			database += cpuOf(pid)
		}
	}
	return hubs, database
}

// metrics sums the hubs' metrics, over their labels too.
func (c *cluster) metrics() map[string]float64 {
	c.b.Helper()
	sums := make(map[string]float64)
	for _, h := range c.Hubs {
		resp, err := h.Client().Raw(context.Background(), http.MethodGet, "/metrics", "", nil, "")
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
	f.tell(o)
	return f.hearDone()
}

func (f *fleet) tell(o order) {
	f.b.Helper()
	if err := f.send.Encode(o); err != nil {
		f.b.Fatal(err)
	}
}

func (f *fleet) hearDone() done {
	f.b.Helper()
	var d done
	if err := f.hear.Decode(&d); err != nil {
		f.b.Fatal("the fleet's process ended: ", err)
	}
	if d.Err != "" {
		f.b.Fatal("fleet: ", d.Err)
	}
	return d
}
