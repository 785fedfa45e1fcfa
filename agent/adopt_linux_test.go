package agent

import (
	"context"
	"os"
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
	"offpeak/agent/warm"
)

// realSupervisors starts supervisor processes from the test's own binary.
type realSupervisors struct{ exe, fence string }

func (s realSupervisors) Spawn(ctx context.Context, dir string) (warm.Supervisor, error) {
	h, err := supervisor.Spawn(ctx, supervisor.Options{Exe: s.exe, Dir: dir, Fence: s.fence})
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (s realSupervisors) Adopt(ctx context.Context, dir string) (warm.Supervisor, error) {
	h, err := supervisor.Adopt(ctx, dir)
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (realSupervisors) Clear(dir string) error { return supervisor.Remove(dir) }

// realWorld is a world whose jobs are processes.
func realWorld(t testing.TB) *world {
	w := newWorld(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w.env.Supervisors = realSupervisors{exe: exe}
	w.env.Drivers = []driver.Driver{process.Driver{}}
	w.env.Boot = func() time.Duration { return time.Duration(supervisor.BootTime()) }
	w.hub.with(func() { w.hub.timeout = 5 * time.Second })
	t.Cleanup(func() {
		entries, _ := os.ReadDir(filepath.Join(w.cfg.Data, "supervisors"))
		for _, e := range entries {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			if h, err := supervisor.Adopt(ctx, filepath.Join(w.cfg.Data, "supervisors", e.Name())); err == nil {
				_ = h.End(ctx)
			}
			cancel()
		}
	})
	return w
}

func TestRealJobOutlivesItsAgent(t *testing.T) {
	w := realWorld(t)
	w.join()
	first := w.run()
	gate := filepath.Join(t.TempDir(), "go")
	task := work("/bin/sh")
	task.Task.Command = []string{"/bin/sh", "-c", `echo one; while [ ! -e "$GATE" ]; do sleep 0.02; done; echo two; echo result > outputs/r; exit 7`}
	task.Task.Env = map[string]string{"GATE": gate}
	w.hub.offer("lease_1", task)
	w.hub.wait("the first line", func() bool { return string(w.hub.leases["lease_1"].logs["stdout"]) == "one\n" })
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	w.run()
	before := 0
	w.hub.with(func() { before = len(w.hub.beats) })
	w.hub.wait("heartbeats that name the lease", func() bool {
		return len(w.hub.beats) > before+1 && len(w.hub.beats[len(w.hub.beats)-1].Held) == 1
	})
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := w.hub.ended("lease_1")
	if got.end.Reason != offpeak.EndExitNonzero || got.end.ExitCode == nil || *got.end.ExitCode != 7 || string(got.logs["stdout"]) != "one\ntwo\n" || got.end.Output == "" {
		t.Errorf("end = %+v, log %q", got.end, got.logs["stdout"])
	}
	w.noLeaseFolders()
}

func TestRealJobDiesWithItsStaleLease(t *testing.T) {
	w := realWorld(t)
	w.join()
	w.run()
	pidFile := filepath.Join(t.TempDir(), "pid")
	task := work("/bin/sh")
	// A child in a session of its own goes with the rest.
	task.Task.Command = []string{"/bin/sh", "-c", `trap "" TERM; setsid sh -c 'exec 9>"$0"; flock 9 2>/dev/null; echo started >&9; sleep 600' "` + pidFile + `"`}
	w.hub.offer("lease_1", task)
	eventually(t, "the child", func() bool { data, _ := os.ReadFile(pidFile); return strings.Contains(string(data), "started") })
	w.hub.with(func() { w.hub.leases["lease_1"].live = false; w.hub.changedLocked() })
	w.noLeaseFolders()
	// The child's lock on the file is gone with it.
	f, err := os.Open(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	eventually(t, "the child's death", func() bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil })
}

func TestRealSupervisorKilledUnderAJob(t *testing.T) {
	w := realWorld(t)
	w.join()
	a := w.run()
	task := work("/bin/sh")
	task.Task.Command = []string{"/bin/sh", "-c", "echo up; sleep 600"}
	w.hub.offer("lease_1", task)
	w.hub.wait("the first line", func() bool { return string(w.hub.leases["lease_1"].logs["stdout"]) == "up\n" })
	var dir string
	a.mu.Lock()
	dir = a.folder.At("supervisors", a.running["lease_1"].slot.Name)
	a.mu.Unlock()
	killProcessOf(t, dir)
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndSupervisorLost || string(got.logs["stdout"]) != "up\n" {
		t.Errorf("end = %+v, log %q", got.end, got.logs["stdout"])
	}
	w.noLeaseFolders()
}

// killProcessOf kills the supervisor process that was started with dir.
func killProcessOf(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if strings.Contains(string(args), "supervise\x00--dir\x00"+dir+"\x00") {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no supervisor runs in %s", dir)
}
