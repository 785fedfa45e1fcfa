// Package bench measures what docs/performance.md claims, each figure as a
// ratio to something bare measured in the same run on the same machine: a
// durable commit, a fork and exec, a net/http handler. `make bench` runs it.
package bench

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"offpeak"
	"offpeak/internal/gridtest"
	"offpeak/internal/pgtest"
)

// bin is the binary under test, built once by TestMain.
var bin string

// pg is the PostgreSQL server of those that need one.
var pg pgtest.Shared

func TestMain(m *testing.M) {
	if os.Getenv("OFFPEAK_BENCH_BARE") != "" {
		bare()
		return
	}
	if os.Getenv("OFFPEAK_BENCH_FLEET") != "" {
		runAgents()
		return
	}
	dir, err := os.MkdirTemp("", "offpeak-bench")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	bin = filepath.Join(dir, "offpeak")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin, "offpeak/cmd/offpeak")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := pg.Around(m).Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// commit returns a function that makes one durable commit of one small row, on
// the disk and with the settings the hub uses.
func commit(b *testing.B, dir string) func() {
	b.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "bare.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("CREATE TABLE bare (id INTEGER PRIMARY KEY, at INTEGER, what TEXT)"); err != nil {
		b.Fatal(err)
	}
	insert, err := db.Prepare("INSERT INTO bare (at, what) VALUES (?, ?)")
	if err != nil {
		b.Fatal(err)
	}
	return func() {
		if _, err := insert.Exec(time.Now().UnixMicro(), "a row of an ordinary length, as a job's or a lease's is"); err != nil {
			b.Fatal(err)
		}
	}
}

func median(d []time.Duration) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[len(s)/2]
}

// BenchmarkFirstLine measures an API request to the first line of the child on
// an idle grid, in units of one durable commit and one bare fork/exec of the
// same command measured in turn with it.
func BenchmarkFirstLine(b *testing.B) {
	for _, c := range []struct{ name, warm string }{{"warm", "2"}, {"cold", "0"}} {
		b.Run(c.name, func(b *testing.B) {
			g := gridtest.Start(b, bin)
			g.StartAgent("a", "", "--warm", c.warm)
			fifo := filepath.Join(g.Dir, "first")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				b.Fatal(err)
			}
			pipe, err := os.OpenFile(fifo, os.O_RDWR, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer pipe.Close()
			lines := bufio.NewReader(pipe)
			durable := commit(b, g.Dir)
			script := "echo first >" + fifo
			var ours, bareCommit, bareExec []time.Duration
			for range 20 { // warm everything up, the bare side too
				durable()
			}
			for b.Loop() {
				t0 := time.Now()
				durable()
				bareCommit = append(bareCommit, time.Since(t0))
				t0 = time.Now()
				cmd := exec.Command("/bin/sh", "-c", script)
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				if _, err := lines.ReadString('\n'); err != nil {
					b.Fatal(err)
				}
				bareExec = append(bareExec, time.Since(t0))
				_ = cmd.Wait()
				t0 = time.Now()
				job := g.Submit(g.Shell(script))
				if _, err := lines.ReadString('\n'); err != nil {
					b.Fatal(err)
				}
				ours = append(ours, time.Since(t0))
				g.WaitState(job.ID, 10*time.Second, offpeak.JobSucceeded)
				idle(b, g)
			}
			unit := median(bareCommit) + median(bareExec)
			b.ReportMetric(float64(median(ours))/1e6, "ms/first-line")
			b.ReportMetric(float64(median(bareCommit))/1e6, "ms/commit")
			b.ReportMetric(float64(median(bareExec))/1e6, "ms/exec")
			b.ReportMetric(float64(median(ours))/float64(unit), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// idle waits until nothing moves on the grid: no lease is live and the warm
// supervisors are back.
func idle(b *testing.B, g *gridtest.Grid) {
	b.Helper()
	last, same := int64(-1), 0
	gridtest.Eventually(b, 10*time.Second, "an idle grid", func() error {
		now := g.CPU()
		if now == last {
			same++
		} else {
			same = 0
		}
		last = now
		if same < 2 {
			return fmt.Errorf("still busy")
		}
		return nil
	})
}

// BenchmarkNoop measures no-op jobs from submission to accepted success, two at
// a time on one agent, against a bare fork/exec loop of the same command at the
// same concurrency.
func BenchmarkNoop(b *testing.B) {
	for _, c := range []struct {
		name string
		args []string
	}{{"limits", nil}, {"no-limits", []string{"--no-limits"}}} {
		b.Run(c.name, func(b *testing.B) {
			g := gridtest.Start(b, bin)
			g.StartAgent("a", "", append([]string{"--warm", "4"}, c.args...)...)
			spec := g.Shell("")
			spec.Task.Command = []string{"/bin/true"}
			const batch = 300
			var ours, bareRate []float64
			a := g.Agents()[0]
			var hub, agent, jobs, client, rounds time.Duration
			for b.Loop() {
				bareRate = append(bareRate, bareLoop(b, 2, batch))
				h, m := cpuOf(g.HubPID()), cpuOf(a.PID())
				all, self := g.CPU(), cpuOf(os.Getpid())
				ours = append(ours, noopBatch(b, g, spec, batch))
				hub += cpuOf(g.HubPID()) - h
				agent += cpuOf(a.PID()) - m
				jobs += time.Duration(g.CPU() - all)
				client += cpuOf(os.Getpid()) - self
				rounds++
			}
			// Where the processor time of a job goes; the supervisors' share is
			// without the jobs themselves, which are gone when it is read.
			each := float64(batch*rounds) * 1e6
			b.ReportMetric(float64(hub)/each, "ms-hub/job")
			b.ReportMetric(float64(agent)/each, "ms-agent/job")
			b.ReportMetric(float64(client)/each, "ms-client/job")
			b.ReportMetric(float64(jobs-hub-agent)/each, "ms-supervisors/job")
			slices.Sort(ours)
			slices.Sort(bareRate)
			o, r := ours[len(ours)/2], bareRate[len(bareRate)/2]
			b.ReportMetric(o, "jobs/s")
			b.ReportMetric(r, "bare/s")
			b.ReportMetric(100*o/r, "%bare")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func bareLoop(b *testing.B, workers, n int) float64 {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	t0 := time.Now()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := exec.Command("/bin/true").Run(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(t0).Seconds()
}

// noopBatch submits n jobs and returns their rate from the first submission to
// the last accepted success, as the event stream tells.
func noopBatch(b *testing.B, g *gridtest.Grid, spec offpeak.Spec, n int) float64 {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream, err := g.Client.Events(ctx, "", "")
	if err != nil {
		b.Fatal(err)
	}
	defer stream.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(stream)
		for ended := 0; ended < n && lines.Scan(); {
			switch line := lines.Text(); {
			case strings.Contains(line, `"type":"job.succeeded"`):
				ended++
			case strings.Contains(line, `"type":"job.failed"`):
				b.Error("a job failed")
				ended++
			}
		}
	}()
	t0 := time.Now()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := g.Client.Submit(ctx, gridtest.NewOp(), spec); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	<-done
	if ctx.Err() != nil {
		b.Fatal("not all jobs ended")
	}
	return float64(n) / time.Since(t0).Seconds()
}

// BenchmarkIdle measures what an idle agent and a supervisor cost.
func BenchmarkIdle(b *testing.B) {
	g := gridtest.Start(b, bin, "--heartbeat", "5s", "--timeout", "60s")
	a := g.StartAgent("a", "")
	var sup int
	gridtest.Eventually(b, 10*time.Second, "warm supervisors", func() error {
		for _, pid := range a.Processes() {
			if pid != a.PID() {
				sup = pid
				return nil
			}
		}
		return fmt.Errorf("none")
	})
	for b.Loop() {
		before := cpuOf(a.PID())
		window := time.NewTimer(20 * time.Second)
		t0 := time.Now()
		<-window.C
		used := cpuOf(a.PID()) - before
		b.ReportMetric(100*used.Seconds()/time.Since(t0).Seconds(), "%core")
	}
	b.ReportMetric(float64(memory(b, a.PID(), "Rss:"))/(1<<20), "MiB-agent-rss")
	b.ReportMetric(float64(memory(b, sup, "Private_Clean:")+memory(b, sup, "Private_Dirty:"))/(1<<20), "MiB-supervisor-private")
	b.ReportMetric(0, "ns/op")
}

// memory sums a field of a process's smaps_rollup, in bytes.
func memory(b *testing.B, pid int, field string) int64 {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return kb << 10
		}
	}
	b.Fatalf("no %s for process %d", field, pid)
	return 0
}

// cpuOf is the processor time a process has used, to the clock tick.
func cpuOf(pid int) time.Duration { return gridtest.CPUOf(pid) }
