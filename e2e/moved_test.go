package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
)

// stale is what is kept of an attempt whose lease is lost. Nothing that its node
// says later may change it.
type stale struct {
	job     offpeak.JobID
	attempt offpeak.Attempt
	log     string
}

// lost waits until the job's attempt is lost and notes what is kept of it.
func lost(t *testing.T, g *gridtest.Grid, id offpeak.JobID, attempt offpeak.Attempt) stale {
	t.Helper()
	gridtest.Eventually(t, leaseEnds, fmt.Sprintf("attempt %d of %s to be lost", attempt, id), func() error {
		list, err := g.Client.Attempts(context.Background(), id)
		if err != nil {
			return err
		}
		for _, l := range list.Items {
			if l.Attempt == attempt && l.State == offpeak.LeaseLost {
				return nil
			}
		}
		return fmt.Errorf("attempts are %+v", list.Items)
	})
	return stale{id, attempt, g.Log(id, attempt, "stdout")}
}

// untouched fails the test if something was added to what was lost.
func (s stale) untouched(t *testing.T, g *gridtest.Grid) {
	t.Helper()
	if now := g.Log(s.job, s.attempt, "stdout"); now != s.log {
		t.Errorf("the log of attempt %d of %s, which is lost, was %q and is %q", s.attempt, s.job, s.log, now)
	}
}

// resumed checks a counter that went on elsewhere: it succeeded, each attempt
// went on from the newest checkpoint that was stored before it, so no more was
// repeated than came after that, and log and output are the last attempt's own.
func resumed(t *testing.T, g *gridtest.Grid, id offpeak.JobID, steps int) {
	t.Helper()
	job, err := g.Client.Job(context.Background(), id)
	if err != nil || job.State != offpeak.JobSucceeded || job.Attempt < 2 {
		t.Errorf("job %s is %s after attempt %d: %s, %v", id, job.State, job.Attempt, job.Detail, err)
		return
	}
	stored, newest := map[offpeak.LeaseID]int{}, 0
	for _, e := range g.Events() {
		switch {
		case e.Job != id:
		case e.Type == "checkpoint.stored":
			var c struct{ Name string }
			if err := json.Unmarshal(e.Data, &c); err != nil {
				t.Fatalf("event %s: %v", e.Data, err)
			}
			if _, err := fmt.Sscan(c.Name, &newest); err != nil {
				t.Fatalf("checkpoint is named %q", c.Name)
			}
		case e.Type == "lease.offered":
			stored[e.Lease] = newest
		}
	}
	from := 0
	for _, f := range starts(g.Facts()) {
		if f.Job != id {
			continue
		}
		if f.Step != stored[f.Lease] {
			t.Errorf("attempt %d of %s began at step %d, checkpoint %d was stored", f.Attempt, id, f.Step, stored[f.Lease])
		}
		if f.Attempt == job.Attempt {
			from = f.Step
		}
	}
	if got, want := g.Log(id, 0, "stdout"), counted(job.Attempt, from, steps); got != want {
		t.Errorf("log of attempt %d of %s is %q, want %q", job.Attempt, id, got, want)
	}
	to := t.TempDir()
	if _, errs, exit := g.CLI("outputs", string(id), "--out", to); exit != 0 {
		t.Errorf("fetch the output: exit %d: %s", exit, errs)
	}
	want := fmt.Sprintf("attempt %d to %d\n", job.Attempt, steps)
	if got, err := os.ReadFile(filepath.Join(to, "result")); err != nil || string(got) != want {
		t.Errorf("the output of %s is %q, want %q; %v", id, got, want, err)
	}
}

// counted is the whole log of a counter's attempt.
func counted(attempt offpeak.Attempt, from, to int) string {
	var log strings.Builder
	fmt.Fprintf(&log, "attempt %d from %d\n", attempt, from)
	for n := from + 1; n <= to; n++ {
		fmt.Fprintf(&log, "step %d\n", n)
	}
	return log.String()
}

// atWork fails the test if a lease's job has no processes: what waits for them to
// be gone would wait for nothing.
func atWork(t *testing.T, lease offpeak.LeaseID) {
	t.Helper()
	if lease == "" || len(gridtest.ProcessesOf(lease)) == 0 {
		t.Fatalf("lease %q has no processes: the test tests nothing", lease)
	}
}

// waitGone waits until nothing is left of a lease's job.
func waitGone(t *testing.T, lease offpeak.LeaseID) {
	t.Helper()
	gridtest.Eventually(t, 30*time.Second, "the job's processes to be gone", func() error {
		if left := gridtest.ProcessesOf(lease); len(left) > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
}
