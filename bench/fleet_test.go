package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
	"offpeak/wire"
)

// bare is the other side of the ratios, in a process of its own: a net/http
// server that decodes a heartbeat and answers it, and one that holds a stream.
func bare() {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/node/heartbeat", func(w http.ResponseWriter, r *http.Request) {
		var in wire.Heartbeat
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(wire.Sync{Revision: 1, Interval: offpeak.Duration(5 * time.Second), Timeout: offpeak.Duration(time.Minute), Leases: []wire.Desired{}})
	})
	mux.HandleFunc("GET /v1/node/stream", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_ = json.NewEncoder(w).Encode(wire.Sync{Revision: 1, Interval: offpeak.Duration(5 * time.Second), Leases: []wire.Desired{}})
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	l, err := net.Listen("tcp", os.Getenv("OFFPEAK_BENCH_BARE"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = http.Serve(l, mux)
}

type bareServer struct {
	addr string
	pid  int
}

func startBare(b *testing.B) bareServer {
	b.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", gridtest.FreePort(b))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "OFFPEAK_BENCH_BARE="+addr)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	gridtest.Eventually(b, 10*time.Second, "the bare server", func() error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	})
	return bareServer{addr, cmd.Process.Pid}
}

// BenchmarkHeartbeats measures heartbeats answered per second of the hub's
// processor time, against a bare handler of the same JSON.
func BenchmarkHeartbeats(b *testing.B) {
	g := gridtest.Start(b, bin, "--heartbeat", "5s", "--timeout", "60s")
	nodes := g.Fleet(500)
	server := startBare(b)
	bareNode := nodes[0].At("http://" + server.addr)
	var ours, theirs float64
	for b.Loop() {
		theirs = beatsPerCPU(b, server.pid, func(int) *gridtest.Virtual { return bareNode })
		ours = beatsPerCPU(b, g.HubPID(), func(i int) *gridtest.Virtual { return nodes[i%len(nodes)] })
	}
	b.ReportMetric(ours, "beats/cpu-s")
	b.ReportMetric(theirs, "bare/cpu-s")
	b.ReportMetric(100*ours/theirs, "%bare")
	b.ReportMetric(0, "ns/op")
}

func beatsPerCPU(b *testing.B, pid int, node func(int) *gridtest.Virtual) float64 {
	b.Helper()
	const beats, workers = 20_000, 16
	var next atomic.Int64
	before := cpuOf(pid)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			// A worker has nodes of its own, so that a node's beats are in order.
			for i := w; next.Add(1) <= beats; i += workers {
				if _, err := node(i).Beat(context.Background()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return beats / (cpuOf(pid) - before).Seconds()
}

// BenchmarkStreams measures the memory an idle connected node costs the hub at
// 4,000, against a bare handler that holds the same stream.
func BenchmarkStreams(b *testing.B) {
	const n = 4000
	g := gridtest.Start(b, bin, "--heartbeat", "10m", "--timeout", "30m")
	nodes := g.Fleet(n)
	server := startBare(b)
	for b.Loop() {
		theirs := perStream(b, server.pid, n, func(int) *wire.Direct { return &wire.Direct{Base: "http://" + server.addr} })
		ours := perStream(b, g.HubPID(), n, func(i int) *wire.Direct { return &nodes[i].Direct })
		b.ReportMetric(ours, "B/stream")
		b.ReportMetric(theirs, "bare-B/stream")
		b.ReportMetric(1.3*theirs+2048, "bound-B/stream")
	}
	b.ReportMetric(0, "ns/op")
}

func perStream(b *testing.B, pid, n int, of func(int) *wire.Direct) float64 {
	b.Helper()
	collected(b)
	before := settled(b, pid)
	client := &http.Client{Transport: &http.Transport{ReadBufferSize: 1024, WriteBufferSize: 1024}}
	var open []io.Closer
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for i := range n {
		d := *of(i)
		d.Client = client
		body, err := d.Stream(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		open = append(open, body)
		if _, err := bufio.NewReaderSize(body, 256).ReadString('\n'); err != nil {
			b.Fatal(err)
		}
	}
	collected(b)
	return float64(settled(b, pid)-before) / float64(n)
}

// collected waits until the runtime of an idle process has collected what was
// only needed for a moment: it does so every two minutes.
func collected(b *testing.B) {
	b.Helper()
	began := time.Now()
	gridtest.Eventually(b, 3*time.Minute, "a collection of garbage", func() error {
		if waited := time.Since(began); waited < 130*time.Second {
			return fmt.Errorf("%s so far", waited)
		}
		return nil
	})
}

// settled is a process's resident memory once it no longer falls.
func settled(b *testing.B, pid int) int64 {
	b.Helper()
	low := memory(b, pid, "Rss:")
	quiet := time.Now()
	gridtest.Eventually(b, 60*time.Second, "memory to settle", func() error {
		if now := memory(b, pid, "Rss:"); now < low-(256<<10) {
			low, quiet = now, time.Now()
		}
		if time.Since(quiet) < 5*time.Second {
			return fmt.Errorf("still falling")
		}
		return nil
	})
	return memory(b, pid, "Rss:")
}

// BenchmarkQueue measures a hub with 100,000 queued jobs: the memory each costs
// and how long a restart takes until the hub serves.
func BenchmarkQueue(b *testing.B) {
	const n = 100_000
	g := gridtest.Start(b, bin, "--rate", "100000")
	g.KillHub()
	g.StartHub()
	empty := settled(b, g.HubPID())
	spec := g.Shell("true")
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for next.Add(1) <= n {
				if _, err := g.Client.Submit(context.Background(), gridtest.NewOp(), spec); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	full := settled(b, g.HubPID())
	var ups []time.Duration
	for b.Loop() {
		g.KillHub()
		t0 := time.Now()
		g.StartHub()
		ups = append(ups, time.Since(t0))
	}
	slices.Sort(ups)
	b.ReportMetric(ups[len(ups)/2].Seconds(), "s/restart")
	b.ReportMetric(ups[len(ups)-1].Seconds(), "s/restart-most")
	again := settled(b, g.HubPID())
	b.ReportMetric(float64(full-empty)/n, "B/queued-job")
	b.ReportMetric(float64(again-empty)/n, "B/queued-job-after-restart")
	b.ReportMetric(0, "ns/op")
}
