package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"offpeak"
	"offpeak/hub/data"
	"offpeak/internal/gridtest"
)

// Check-then-act on the idempotency key: parallel submits with one key are one
// job, the same key with another body is a conflict, and a retry after a reply
// that never came gets the first job.
func TestOneKeyOneJob(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	op, spec := gridtest.NewOp(), g.Shell("true")
	ids := make([]offpeak.JobID, 200)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			job, err := g.Client.Submit(context.Background(), op, spec)
			if err != nil {
				t.Errorf("submit: %v", err)
			}
			ids[i] = job.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("one key made jobs %s and %s", ids[0], id)
		}
	}
	if _, err := g.Client.Submit(context.Background(), op, g.Shell("false")); !errors.Is(err, offpeak.ErrOperationConflict) {
		t.Errorf("the same key with another body: %v", err)
	}
	// The reply is dropped: the request arrives, its answer does not.
	link := g.Link()
	far := *g.Client
	far.Base = link.URL()
	link.Drop(gridtest.ToAgent)
	op = gridtest.NewOp()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if job, err := far.Submit(ctx, op, spec); err == nil {
		t.Errorf("an answer came over a cut link: %s", job.ID)
	}
	jobs, err := g.Client.Jobs(context.Background(), nil)
	if err != nil || len(jobs.Items) != 2 {
		t.Fatalf("%d jobs, want 2; %v", len(jobs.Items), err)
	}
	link.Heal()
	again, err := far.Submit(context.Background(), op, spec)
	if err != nil || again.ID != jobs.Items[0].ID {
		t.Errorf("the retry made %s (%v), the lost reply was about %s", again.ID, err, jobs.Items[0].ID)
	}
}

// A cancel that races assignment: whenever it comes, the job has exactly one
// end, the node is idle after it, and what never started is not metered.
func TestCancelRacesAssignment(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	a := g.StartAgent("a", "")
	const rounds = 50
	var jobs []offpeak.JobID
	for i := range rounds {
		id := g.Submit(g.Shell("sleep 60")).ID
		// The moment is the fault: 0 to 490 ms after the submit.
		<-time.After(time.Duration(i) * 10 * time.Millisecond)
		if _, err := g.Client.Cancel(context.Background(), gridtest.NewOp(), id); err != nil {
			t.Errorf("cancel: %v", err)
		}
		g.WaitState(id, 20*time.Second, offpeak.JobCancelled)
		jobs = append(jobs, id)
	}
	waitIdle(t, g, a.Node)
	ends := map[offpeak.JobID]int{}
	for _, e := range g.Events() {
		switch e.Type {
		case "job.succeeded", "job.failed", "job.cancelled":
			ends[e.Job]++
		}
	}
	for _, id := range jobs {
		if ends[id] != 1 {
			t.Errorf("job %s has %d ends", id, ends[id])
		}
		list, err := g.Client.Attempts(context.Background(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list.Items {
			if !l.State.Terminal() || (l.StartedAt == nil && l.Metered != 0) {
				t.Errorf("lease %s is %s, metered %d ms, started %v", l.ID, l.State, l.Metered, l.StartedAt)
			}
		}
	}
}

// A state written before the fact: a job on a node that can't be reached is
// cancelling until its lease has expired, not cancelled.
func TestCancelOfUnreachableNodeWaitsForExpiry(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	link := g.Link()
	a := g.StartAgent("far", link.URL())
	id := g.Submit(g.Counter(1000, 100*time.Millisecond)).ID
	running := g.WaitState(id, 20*time.Second, offpeak.JobRunning)
	waitSteps(t, g, 3)
	atWork(t, running.Lease)
	link.Drop(gridtest.ToHub)
	link.Drop(gridtest.ToAgent)
	if _, errs, exit := g.CLI("cancel", string(id)); exit != 0 {
		t.Fatalf("cancel: exit %d: %s", exit, errs)
	}
	job, err := g.Client.Job(context.Background(), id)
	if err != nil || job.State != offpeak.JobCancelling {
		t.Errorf("job is %s right after the cancel, %v", job.State, err)
	}
	job = g.WaitState(id, 30*time.Second, offpeak.JobCancelled)
	list, err := g.Client.Attempts(context.Background(), id)
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("attempts are %+v, %v", list.Items, err)
	}
	if l := list.Items[0]; job.EndedAt == nil || job.EndedAt.Before(l.ExpiresAt) {
		t.Errorf("the job ended at %v, its lease expired at %v", job.EndedAt, l.ExpiresAt)
	}
	for _, f := range g.Facts() {
		if f.At.After(*job.EndedAt) {
			t.Errorf("a step at %s, after the job's end at %s", f.At, job.EndedAt)
		}
	}
	link.Heal()
	waitLiveness(t, g, a.Node, offpeak.NodeOnline)
	waitIdle(t, g, a.Node)
	waitGone(t, list.Items[0].ID)
}

// Output of failures: what a job wrote is there for every way it can end.
func TestOutputOfEveryEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, tail string
		limit      time.Duration
		cancel     bool
		reason     offpeak.EndReason
	}{
		{"exit", "exit 3", 0, false, offpeak.EndExitNonzero},
		{"time", "sleep 60", time.Second, false, offpeak.EndTimeLimit},
		{"cancel", "sleep 60", 0, true, offpeak.EndCancelled},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := gridtest.Start(t, bin)
			g.StartAgent("a", "")
			spec := g.Shell("echo part >part; echo out; echo err >&2; " + c.tail)
			spec.Task.Outputs = []string{"part"}
			spec.Limits.Time = offpeak.Duration(c.limit)
			id := g.Submit(spec).ID
			if c.cancel {
				gridtest.Eventually(t, 20*time.Second, "its output", func() error {
					if g.Log(id, 0, "stdout") != "out\n" {
						return errors.New("nothing yet")
					}
					return nil
				})
				if _, err := g.Client.Cancel(context.Background(), gridtest.NewOp(), id); err != nil {
					t.Fatal(err)
				}
			}
			job := g.WaitState(id, 30*time.Second, offpeak.JobFailed, offpeak.JobCancelled)
			if job.Reason != c.reason {
				t.Errorf("ended as %s: %s", job.Reason, job.Detail)
			}
			if out, errs := g.Log(id, 0, "stdout"), g.Log(id, 0, "stderr"); out != "out\n" || errs != "err\n" {
				t.Errorf("logs are %q and %q", out, errs)
			}
			if c.cancel {
				return
			}
			to := t.TempDir()
			if _, errs, exit := g.CLI("outputs", string(id), "--out", to); exit != 0 {
				t.Errorf("fetch the partial output: exit %d: %s", exit, errs)
			}
			if got, err := os.ReadFile(filepath.Join(to, "part")); err != nil || string(got) != "part\n" {
				t.Errorf("the partial output is %q, %v", got, err)
			}
		})
	}
}

// An older copy of the store: a hub restored from a backup drops the holders of
// leases it does not know, ends every job it knows, gives no lease id twice and
// breaks no invariant.
func TestRestoredHubDropsStaleHolders(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	a := g.StartAgent("a", "", "--cpu", "8")
	before := g.Submit(g.Counter(60, 100*time.Millisecond)).ID
	g.WaitState(before, 20*time.Second, offpeak.JobRunning)
	waitCheckpoints(t, g, before, 1)
	backup := filepath.Join(g.Dir, "backup")
	if _, errs, exit := g.CLI("backup", backup); exit != 0 {
		t.Fatalf("backup: exit %d: %s", exit, errs)
	}
	after := g.Submit(g.Counter(1000, 100*time.Millisecond)).ID
	stale := g.WaitState(after, 20*time.Second, offpeak.JobRunning)
	atWork(t, stale.Lease)
	leases := map[offpeak.LeaseID]bool{}
	for _, e := range g.Events() {
		if e.Type == "lease.offered" {
			leases[e.Lease] = true
		}
	}
	g.KillHub()
	if err := os.Rename(g.HubDir(), g.HubDir()+".lost"); err != nil {
		t.Fatal(err)
	}
	if _, errs, exit := g.CLI("restore", backup, "--data", g.HubDir()); exit != 0 {
		t.Fatalf("restore: exit %d: %s", exit, errs)
	}
	g.StartHub()
	waitLiveness(t, g, a.Node, offpeak.NodeOnline)
	if _, err := g.Client.Job(context.Background(), after); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("the job that came after the backup: %v", err)
	}
	g.Forget(after)
	waitGone(t, stale.Lease)
	again := g.Submit(g.Shell("true")).ID
	for _, id := range []offpeak.JobID{before, again} {
		g.WaitState(id, 60*time.Second, offpeak.JobSucceeded)
	}
	attempts, err := g.Client.Attempts(context.Background(), again)
	if err != nil || len(attempts.Items) != 1 || leases[attempts.Items[0].ID] {
		t.Errorf("attempts after the restore are %+v, %v", attempts.Items, err)
	}
	waitIdle(t, g, a.Node)
}

// Planted damage: a reservation that no lease holds is found by the check,
// named, and told by the exit code.
func TestCheckFindsPlantedDamage(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	a := g.StartAgent("a", "")
	g.WaitState(g.Submit(g.Shell("true")).ID, 20*time.Second, offpeak.JobSucceeded)
	waitIdle(t, g, a.Node)
	if out, errs, exit := g.CLI("check"); exit != 0 {
		t.Fatalf("check of a sound store: exit %d: %s%s", exit, out, errs)
	}
	a.KillNode()
	plant := func(statement string) {
		t.Helper()
		if err := g.StopHub(); err != nil {
			t.Fatalf("stop hub: %v", err)
		}
		db, err := sql.Open("sqlite", filepath.Join(g.HubDir(), data.DatabaseFile))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("plant damage: %v", err)
		}
	}
	plant("UPDATE nodes SET reserved_cpu = 1000")
	g.StartHub()
	if out, _, exit := g.CLI("check"); exit != 1 || !strings.Contains(out, string(a.Node)) {
		t.Errorf("check of a damaged store: exit %d:\n%s", exit, out)
	}
	plant("UPDATE nodes SET reserved_cpu = 0")
	g.StartHub()
}

func waitIdle(t *testing.T, g *gridtest.Grid, id offpeak.NodeID) {
	t.Helper()
	gridtest.Eventually(t, 20*time.Second, "node "+string(id)+" to be idle", func() error {
		if r := node(t, g, id).Reserved; r.CPU != 0 || r.Memory != 0 || r.Disk != 0 || len(r.Devices) != 0 {
			return fmt.Errorf("it holds %+v", r)
		}
		return nil
	})
}
