package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"offpeak"
)

// TestBytesOfTheEnvironment: arguments and environment reach a job as they were
// given, byte for byte.
func TestBytesOfTheEnvironment(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	w.join()
	w.run()
	task := work("/bin/sh")
	values := []string{
		"two words", "a=b=c", `"quoted" 'and' \slashed\`, "$HOME `id` $(id)", "two\nlines\t", "",
		"emoji 🦀 é", "*?[]{}~!#&|;<>", strings.Repeat("x", 100_000),
	}
	task.Task.Env = map[string]string{}
	var want strings.Builder
	command := `for v in "$@"; do printf '%s\n' "$v"; done`
	for i, v := range values {
		task.Task.Env[fmt.Sprintf("V%d", i)] = v
		command += fmt.Sprintf(`; printf '%%s\n' "$V%d"`, i)
	}
	task.Task.Command = append([]string{"/bin/sh", "-c", command, "sh"}, values...)
	for range 2 {
		want.WriteString(strings.Join(values, "\n") + "\n")
	}
	w.hub.offer("lease_1", task)
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndCompleted || string(got.logs["stdout"]) != want.String() {
		t.Errorf("end = %+v, log %.300q", got.end.Reason, got.logs["stdout"])
	}
}

// TestChildrenAfterAgentsDeath: what a job left in the background is found again
// by the next agent, and goes with the job.
func TestChildrenAfterAgentsDeath(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	w.hub.with(func() { w.hub.crashes = true })
	w.join()
	a := w.process()
	marker := "offpeak_children_" + filepath.Base(filepath.Dir(w.cfg.Data)) + t.Name()
	task := work("/bin/sh")
	task.Task.Command = []string{"/bin/sh", "-c", escapees + "sleep 1005"}
	task.Task.Env = map[string]string{"MARKER": marker}
	task.Task.Grace = offpeak.Duration(50 * time.Millisecond)
	w.hub.offer("lease_1", task)
	w.hub.wait("the first line", func() bool { return len(w.hub.leases["lease_1"].logs["stdout"]) > 0 })
	before := len(processes(marker))
	a.kill()
	// Some may still be on their way when the first are counted; none may go.
	if now := len(processes(marker)); now < before || now < 5 {
		t.Errorf("%d processes, %d before the agent's death", now, before)
	}
	w.process()
	w.hub.wait("the lease again", func() bool { return len(w.hub.beats[len(w.hub.beats)-1].Held) == 1 })
	w.hub.stop("lease_1", offpeak.EndCancelled)
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndCancelled {
		t.Errorf("end = %+v", got.end)
	}
	eventually(t, "the death of all", func() bool { return len(processes(marker)) == 0 })
	w.noLeaseFolders()
}

// TestJobDiesWithoutAgent: with no agent to renew it, a job is frozen when its
// lease is about to end, and killed when it was kept for long enough.
func TestJobDiesWithoutAgent(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	w.hub.with(func() { w.hub.crashes, w.hub.timeout = true, time.Second })
	w.join()
	a := w.process()
	marker := "offpeak_alone_" + filepath.Base(filepath.Dir(w.cfg.Data)) + t.Name()
	task := work("/bin/sh")
	task.Task.Command = []string{"/bin/sh", "-c", escapees + "sleep 1005"}
	task.Task.Env = map[string]string{"MARKER": marker}
	task.Limits.KeepFrozen = offpeak.Duration(100 * time.Millisecond)
	w.hub.offer("lease_1", task)
	w.hub.wait("the first line", func() bool { return len(w.hub.leases["lease_1"].logs["stdout"]) > 0 })
	a.kill()
	eventually(t, "the death of all", func() bool { return len(processes(marker)) == 0 })
}

// TestCancelAtAnyMoment cancels a hundred jobs 0 to 500 ms after their offer:
// each comes to one end and leaves nothing.
func TestCancelAtAnyMoment(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	w.join()
	w.run()
	marker := "offpeak_cancel_" + filepath.Base(filepath.Dir(w.cfg.Data)) + t.Name()
	done := make(chan struct{})
	const jobs = 100
	for i := range jobs {
		id := offpeak.LeaseID(fmt.Sprintf("lease_%d", i))
		task := work("/bin/sh")
		task.Task.Command = []string{"/bin/sh", "-c", "trap '' TERM; setsid sleep 600 & sleep 600"}
		task.Task.Env = map[string]string{"MARKER": marker}
		task.Task.Grace = offpeak.Duration(20 * time.Millisecond)
		w.hub.offer(id, task)
		time.AfterFunc(time.Duration(i)*5*time.Millisecond, func() {
			w.hub.stop(id, offpeak.EndCancelled)
			done <- struct{}{}
		})
		if i%10 == 9 {
			// Ten at a time: this is no test of the machine's memory.
			for range 10 {
				<-done
			}
		}
	}
	for i := range jobs {
		got := w.hub.ended(offpeak.LeaseID(fmt.Sprintf("lease_%d", i)))
		ends := 0
		for _, k := range got.kinds {
			if k == kindEnded {
				ends++
			}
		}
		if ends > 1 || got.end.Reason != offpeak.EndCancelled {
			t.Errorf("cancelled after %d ms: %d ends, %+v", 5*i, ends, got.end)
		}
	}
	w.noLeaseFolders()
	eventually(t, "the death of all", func() bool { return len(processes(marker)) == 0 })
	eventually(t, "an idle node", func() bool { st := w.status(); return st.Connected && len(st.Leases) == 0 })
}

// TestStoppedAgent: an agent that stood still for twenty heartbeats comes back
// with the same session within a few of them, keeps its job, and does not flap.
func TestStoppedAgent(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	w.hub.with(func() { w.hub.timeout = time.Minute })
	w.join()
	a := w.process()
	task := work("/bin/sh")
	gate := filepath.Join(t.TempDir(), "go")
	task.Task.Command = []string{"/bin/sh", "-c", `echo up; while [ ! -e "$GATE" ]; do sleep 0.02; done`}
	task.Task.Env = map[string]string{"GATE": gate}
	w.hub.offer("lease_1", task)
	w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
	a.signal(unix.SIGSTOP)
	time.Sleep(20 * w.hub.interval) // what is tested
	sessions, beats := 0, 0
	w.hub.with(func() { sessions, beats = w.hub.calls["session"], len(w.hub.beats) })
	a.signal(unix.SIGCONT)
	back := time.Now()
	w.hub.wait("heartbeats", func() bool { return len(w.hub.beats) > beats+5 })
	w.hub.with(func() {
		if n := w.hub.calls["session"] - sessions; n > 1 {
			t.Errorf("%d sessions after one stop", n)
		}
		for _, b := range w.hub.beats[beats+1:] {
			if len(b.Held) != 1 {
				t.Errorf("heartbeat %d does not name the lease", b.Seq)
			}
		}
	})
	if took := time.Since(back); took > 40*w.hub.interval {
		t.Errorf("five heartbeats took %s", took)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndCompleted {
		t.Errorf("end = %+v", got.end)
	}
	w.hub.offer("lease_2", work("/bin/true"))
	if got := w.hub.ended("lease_2"); got.end.Reason != offpeak.EndCompleted {
		t.Errorf("a job after it: %+v", got.end)
	}
}
