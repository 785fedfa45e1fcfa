package agent

import (
	"fmt"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"offpeak"
)

// BenchmarkNoop measures an agent process on a stream of jobs that do nothing,
// two at a time: the rate against a bare fork/exec loop of the same command,
// and the agent's own CPU time for a job.
func BenchmarkNoop(b *testing.B) {
	w := realWorld(b)
	w.hub.with(func() { w.hub.timeout, w.hub.interval = time.Minute, 5*time.Second })
	w.join()
	a := w.process()
	one := func(id offpeak.LeaseID) {
		task := work("/bin/true")
		task.Resources = offpeak.Resources{CPU: 1000, Memory: 64 * offpeak.MiB, Disk: 64 * offpeak.MiB}
		ended := w.hub.ends(id)
		w.hub.offer(id, task)
		<-ended
	}
	one("lease_warm")
	began, cpu := time.Now(), cpuOf(b, a.cmd.Process.Pid)
	n := 0
	for b.Loop() {
		var two sync.WaitGroup
		for lane := range 2 {
			two.Go(func() {
				for i := range 50 {
					one(offpeak.LeaseID(fmt.Sprintf("lease_%d_%d_%d", n, lane, i)))
				}
			})
		}
		two.Wait()
		n++
	}
	jobs := float64(n * 100)
	rate := jobs / time.Since(began).Seconds()
	b.ReportMetric(float64((cpuOf(b, a.cmd.Process.Pid)-cpu).Microseconds())/jobs, "µs-cpu/job")
	b.ReportMetric(rate, "jobs/s")
	b.ReportMetric(100*rate/bareRate(), "%-of-fork/exec")
}

// bareRate is how often a second two loops start the command and wait for it.
func bareRate() float64 {
	const each = 300
	began := time.Now()
	var two sync.WaitGroup
	for range 2 {
		two.Go(func() {
			for range each {
				_ = exec.Command("/bin/true").Run()
			}
		})
	}
	two.Wait()
	return 2 * each / time.Since(began).Seconds()
}

// BenchmarkOfferToFirstLine measures from the offer to the arrival of a
// job's first output at the hub.
func BenchmarkOfferToFirstLine(b *testing.B) {
	w := realWorld(b)
	w.cfg.Times.Log = 0
	first := make(chan struct{}, 1)
	w.hub.with(func() {
		w.hub.timeout, w.hub.interval = time.Minute, 5*time.Second
		w.hub.logged = func(string, []byte) {
			select {
			case first <- struct{}{}:
			default:
			}
		}
	})
	w.join()
	w.run()
	eventually(b, "connected", func() bool { return w.status().Connected })
	n := 0
	var sum time.Duration
	for b.Loop() {
		id := offpeak.LeaseID(fmt.Sprintf("lease_%d", n))
		task := work("/bin/sh")
		task.Task.Command = []string{"/bin/sh", "-c", "echo x; sleep 0.2"}
		ended := w.hub.ends(id)
		began := time.Now()
		w.hub.offer(id, task)
		<-first
		sum += time.Since(began)
		<-ended
		n++
	}
	b.ReportMetric(float64(sum.Microseconds())/1e3/float64(n), "ms-to-first-line")
}

// cpuOf is the processor time a process has used.
func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	// The clock of another process, as clock_getcpuclockid makes it.
	id := int32((^uint32(pid))<<3 | 2)
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
