package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"offpeak"
)

// TestFloodedLog: a job that prints a gibibyte, all of it one line, is not held
// up by the cap of its log nor by a hub that is away, costs no memory, and its
// log says what was left out.
func TestFloodedLog(t *testing.T) {
	t.Parallel()
	const most = 16 * offpeak.MiB
	w := realWorld(t)
	w.hub.with(func() { w.hub.timeout = time.Minute })
	w.join()
	a := w.process()
	task := work("/bin/sh")
	task.Task.Command = []string{"/bin/sh", "-c", `echo begin; head -c 1073741824 /dev/zero; echo; echo finished; touch outputs/done`}
	task.Limits.Log = most
	began := time.Now()
	w.hub.offer("lease_1", task)
	w.hub.wait("its first bytes", func() bool { return len(w.hub.leases["lease_1"].logs["stdout"]) > 0 })
	w.hub.with(func() { w.hub.faults = func(string) fault { return lostAsk } })
	var ofAgent, ofSupervisor offpeak.Bytes
	measure := func() {
		ofAgent = max(ofAgent, rss(a.cmd.Process.Pid))
		for _, pid := range supervisorsOf(w.cfg.Data) {
			ofSupervisor = max(ofSupervisor, rss(pid))
		}
	}
	within(t, time.Minute, "the job's end, with its hub away", func() bool {
		measure()
		_, err := os.Stat(filepath.Join(w.cfg.Data, "leases", "lease_1", "work", "outputs", "done"))
		return err == nil
	})
	took := time.Since(began)
	w.hub.with(func() { w.hub.faults = nil })
	within(t, time.Minute, "the end", func() (ended bool) {
		measure()
		w.hub.with(func() { ended = !w.hub.leases["lease_1"].live })
		return ended
	})
	got := w.hub.ended("lease_1")
	log := got.logs["stdout"]
	if got.end.Reason != offpeak.EndCompleted || !bytes.HasPrefix(log, []byte("begin\n\x00")) || !bytes.HasSuffix(log, []byte("\x00\nfinished\n")) {
		t.Errorf("end = %+v, log of %d bytes ends %q", got.end.Reason, len(log), log[max(len(log)-20, 0):])
	}
	if !bytes.Contains(log, []byte("[offpeak: log capped at 16MiB, ")) || len(log) > int(most)+200 {
		t.Errorf("a log of %d bytes without a mark, or longer than its cap", len(log))
	}
	t.Logf("1 GiB in %s; resident at most: agent %s, supervisor %s", took, ofAgent, ofSupervisor)
	if limit := 64 * offpeak.MiB; !raced && (ofAgent > limit || ofSupervisor > limit) || ofAgent == 0 || ofSupervisor == 0 {
		t.Errorf("agent %s, supervisor %s resident", ofAgent, ofSupervisor)
	}
}

func within(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestLogDelay: a line is at the hub soon after it was printed.
func TestLogDelay(t *testing.T) {
	delays := logDelays(t, 20)
	// Five times what is promised, since other tests run beside this one.
	if worst := slices.Max(delays); worst > time.Second {
		t.Errorf("a line took %s", worst)
	}
}

// BenchmarkLogDelay measures the time from a line's printing to its arrival.
func BenchmarkLogDelay(b *testing.B) {
	var all []time.Duration
	for b.Loop() {
		all = append(all, logDelays(b, 20)...)
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1e3, "ms-median")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1e3, "ms-p99")
}

// logDelays runs a job that prints n times the time, now and then.
func logDelays(t testing.TB, n int) (out []time.Duration) {
	w := realWorld(t)
	w.cfg.Times.Log = 0 // as in real life
	w.hub.with(func() {
		w.hub.logged = func(_ string, data []byte) {
			now := time.Now()
			for line := range strings.Lines(string(data)) {
				if ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil {
					out = append(out, now.Sub(time.Unix(0, ns)))
				}
			}
		}
	})
	w.join()
	r := w.run()
	task := work("/bin/sh")
	task.Task.Command = []string{"/bin/sh", "-c", `i=0; while [ $i -lt ` + strconv.Itoa(n) + ` ]; do date +%s%N; sleep 0.07; i=$((i+1)); done`}
	w.hub.offer("lease_1", task)
	got := w.hub.ended("lease_1")
	if got.end.Reason != offpeak.EndCompleted || len(out) < n-1 {
		t.Fatalf("end = %+v, %d lines timed, log %q", got.end, len(out), got.logs["stdout"])
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	return out
}
