package agent

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"offpeak"
)

// TestCrashMatrix kills the agent, the supervisor or both at random points
// around a job's exit. Each lease ends by exactly one report; the result is
// lost only with the supervisor that held it; nothing is left behind.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	w.hub.with(func() { w.hub.crashes = true })
	w.join()
	marker := "CRASH=" + t.Name() + filepath.Base(filepath.Dir(w.cfg.Data))
	random := rand.New(rand.NewPCG(7, 7))
	rounds := 60
	if testing.Short() {
		rounds = 12
	}
	a := w.process()
	kept := map[string]int{}
	for i := range rounds {
		id := offpeak.LeaseID(fmt.Sprintf("lease_%d", i))
		task := work("/bin/sh")
		task.Task.Command = []string{"/bin/sh", "-c", `echo up; sleep 0.03; echo result > outputs/r; echo end; exit 3`}
		task.Task.Env = map[string]string{"CRASH": marker[len("CRASH="):]}
		w.hub.offer(id, task)
		w.hub.wait("the first line", func() bool { return len(w.hub.leases[id].logs["stdout"]) > 0 })
		time.Sleep(time.Duration(random.Int64N(int64(90 * time.Millisecond)))) // when to kill, not what to wait for
		victim := []string{"agent", "supervisor", "both", "supervisor, then agent"}[i%4]
		if victim != "agent" {
			for _, pid := range supervisorsOf(w.cfg.Data) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		if i%4 == 3 {
			time.Sleep(time.Duration(random.Int64N(int64(5 * time.Millisecond))))
		}
		if victim != "supervisor" {
			a.kill()
			a = w.process()
		}
		got := w.hub.ended(id)
		ends := 0
		for _, k := range got.kinds {
			if k == kindEnded {
				ends++
			}
		}
		whole := got.end.Reason == offpeak.EndExitNonzero && got.end.ExitCode != nil && *got.end.ExitCode == 3 && string(got.logs["stdout"]) == "up\nend\n"
		if lost := got.end.Reason == offpeak.EndSupervisorLost && victim != "agent"; ends != 1 || !whole && !lost {
			t.Errorf("round %d, %s killed: %d ends, %+v, log %q", i, victim, ends, got.end, got.logs["stdout"])
		}
		if whole {
			kept[victim]++
		}
	}
	t.Logf("of %d rounds the result was kept: %v", rounds, kept)
	w.noLeaseFolders()
	eventually(t, "the jobs' death", func() bool { return len(processes(marker)) == 0 })
	eventually(t, "a connected agent", func() bool { return w.status().Connected })
	a.stop()
	eventually(t, "the supervisors' death", func() bool { return len(supervisorsOf(w.cfg.Data)) == 0 })
	if left, err := os.ReadDir(filepath.Join(w.cfg.Data, "supervisors")); err != nil || len(left) > 0 {
		t.Errorf("supervisors left %v, %v", left, err)
	}
	if left := groupsOf(w.cfg.Data); len(left) > 0 {
		t.Errorf("groups are left: %q", left)
	}
}
