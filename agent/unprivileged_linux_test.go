package agent

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"offpeak"
	"offpeak/agent/supervisor"
)

// nobody is who an agent is that its owner did not start as root.
const nobody = 65534

// escapees leave every way there is: background, own session, double fork,
// deaf to polite signals.
const escapees = `trap '' TERM HUP INT
nohup sleep 1000 >/dev/null 2>&1 &
setsid sleep 1001 &
( ( setsid sh -c 'trap "" TERM; (setsid sleep 1002 &) ; sleep 1003' & ) & )
( (sleep 1004 &) & )
sleep 0.1
echo user $(id -u)
`

// TestUnprivilegedAgent runs a whole agent as an ordinary user: with namespaces
// where the machine lets users have them, and with the subreaper's fence alone.
func TestUnprivilegedAgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the suite runs as an ordinary user: all of it is this test")
	}
	for _, fence := range []string{"", supervisor.FenceSubreaper} {
		t.Run("fence "+fence, func(t *testing.T) {
			t.Parallel()
			w := realWorld(t)
			// Test folders are root's alone.
			base, err := os.MkdirTemp("", "offpeak-nobody-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(base) })
			w.cfg.Data = filepath.Join(base, "data")
			exe := filepath.Join(base, "agent")
			copySelf(t, exe)
			w.join()
			for _, err := range []error{os.Chmod(base, 0o755), chown(w.cfg.Data)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			a := w.process(func(c *exec.Cmd) {
				c.Path = exe
				c.Env = append(c.Env, "AGENT_FENCE="+fence)
				c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			})
			marker := "offpeak_nobody_" + filepath.Base(base)
			for _, how := range []string{"exits", "is cancelled"} {
				id := offpeak.LeaseID("lease_" + how[:2])
				task := work("/bin/sh")
				end := "echo result > outputs/r; exit 3"
				if how == "is cancelled" {
					end = "sleep 1005"
				}
				task.Task.Command = []string{"/bin/sh", "-c", escapees + end}
				task.Task.Env = map[string]string{"MARKER": marker}
				task.Task.Grace = offpeak.Duration(100e6)
				w.hub.offer(id, task)
				if how == "is cancelled" {
					w.hub.wait("its output", func() bool { return len(w.hub.leases[id].logs["stdout"]) > 0 })
					w.hub.stop(id, offpeak.EndCancelled)
				}
				got := w.hub.ended(id)
				want := map[string]offpeak.EndReason{"exits": offpeak.EndExitNonzero, "is cancelled": offpeak.EndCancelled}[how]
				if got.end.Reason != want || string(got.logs["stdout"]) != "user 65534\n" || how == "exits" && got.end.Output == "" {
					t.Errorf("a job that %s: %+v, log %q, %q", how, got.end, got.logs["stdout"], got.logs["stderr"])
				}
				eventually(t, "the death of what left the job", func() bool { return len(processes(marker)) == 0 })
			}
			w.noLeaseFolders()
			a.stop()
			eventually(t, "the supervisors' death", func() bool { return len(supervisorsOf(w.cfg.Data)) == 0 })
		})
	}
}

func copySelf(t *testing.T, to string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(dst, src); err != nil {
		t.Fatal(err)
	}
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
}

// chown gives a folder and all that is in it to nobody.
func chown(dir string) error {
	return filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
}
