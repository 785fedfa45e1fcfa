package agent

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"offpeak"
	"offpeak/agent/books"
	"offpeak/agent/supervisor"
	"offpeak/blob"
	"offpeak/wire"
)

func TestShortJobCostsTwoReports(t *testing.T) {
	w := newWorld(t)
	w.script("hello", func(j *fakeJob) supervisor.Exit {
		fmt.Fprintln(j.stdout, "hello", j.env["OFFPEAK_ATTEMPT"], j.env["OFFPEAK_LEASE"])
		return completed()
	})
	w.cfg.Times.Running = time.Minute
	w.cfg.Times.Log = time.Minute
	w.join()
	w.run()
	w.hub.offer("lease_1", work("hello"))
	got := w.hub.ended("lease_1")
	if got.end.Reason != offpeak.EndCompleted || !got.end.Started || got.end.ExitCode == nil || *got.end.ExitCode != 0 {
		t.Errorf("end = %+v", got.end)
	}
	if log := string(got.logs["stdout"]); log != "hello 1 lease_1\n" {
		t.Errorf("stdout = %q", log)
	}
	if !slices.Equal(got.kinds, []string{kindAccepted, kindEnded}) {
		t.Errorf("reports = %v, want accepted and ended alone", got.kinds)
	}
	w.noLeaseFolders()
}

func TestCheckpointsAndOutputsAreStored(t *testing.T) {
	w := newWorld(t)
	w.script("train", func(j *fakeJob) supervisor.Exit {
		dir := j.env["OFFPEAK_CHECKPOINT_DIR"]
		_ = os.WriteFile(filepath.Join(dir, ".half"), []byte("no"), 0o600)
		_ = os.WriteFile(filepath.Join(dir, "x.tmp"), []byte("step 1"), 0o600)
		_ = os.Rename(filepath.Join(dir, "x.tmp"), filepath.Join(dir, "step-1"))
		_ = os.WriteFile(filepath.Join(j.work, "model.bin"), []byte("weights"), 0o600)
		_ = os.WriteFile(filepath.Join(j.env["OFFPEAK_OUTPUT_DIR"], "note"), []byte("n"), 0o600)
		_ = os.Symlink("/etc/passwd", filepath.Join(j.env["OFFPEAK_OUTPUT_DIR"], "steal"))
		return completed()
	})
	w.join()
	w.run()
	task := work("train")
	task.Task.Outputs = []string{"model.*"}
	w.hub.offer("lease_1", task)
	got := w.hub.ended("lease_1")
	if got.end.Reason != offpeak.EndCompleted {
		t.Fatalf("end = %+v", got.end)
	}
	if len(got.checks) != 1 || got.checks[0].Name != "step-1" {
		t.Fatalf("checkpoints = %+v", got.checks)
	}
	m, err := blob.ParseManifest(w.hub.blobs[got.end.Output])
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, e := range m.Entries {
		files = append(files, e.Path)
	}
	if want := []string{"model.bin", "outputs", "outputs/note"}; !slices.Equal(files, want) {
		t.Errorf("outputs = %q, want %q", files, want)
	}

	// The next attempt begins where this one was, though the newest is damaged.
	w.script("resume", func(j *fakeJob) supervisor.Exit {
		data, _ := os.ReadFile(filepath.Join(j.env["OFFPEAK_CHECKPOINT_DIR"], "step-1"))
		fmt.Fprintf(j.stdout, "%s", data)
		return completed()
	})
	again := work("resume")
	again.Checkpoints = []offpeak.Checkpoint{{ID: 8, Name: "step-2", Tree: blob.Sum([]byte("gone"))}, {ID: 7, Name: "step-1", Tree: got.checks[0].Tree}}
	w.hub.offer("lease_2", again)
	got = w.hub.ended("lease_2")
	if string(got.logs["stdout"]) != "step 1" || got.end.Restored != 7 || len(got.checks) != 0 {
		t.Errorf("resumed with %q from %d, stored %d anew", got.logs["stdout"], got.end.Restored, len(got.checks))
	}

	again.Checkpoints = again.Checkpoints[:1]
	w.hub.offer("lease_3", again)
	if got := w.hub.ended("lease_3"); got.end.Reason != offpeak.EndCheckpointUnusable {
		t.Errorf("end = %+v", got.end)
	}
	w.noLeaseFolders()
}

// TestSupervisorThatForgetsNothing: one that an agent of an older version started
// serves no second job, and is no obstacle to it.
func TestSupervisorThatForgetsNothing(t *testing.T) {
	w := newWorld(t)
	w.sups.stubborn = true
	w.script("job", func(*fakeJob) supervisor.Exit { return completed() })
	w.join()
	w.run()
	for _, id := range []offpeak.LeaseID{"lease_1", "lease_2", "lease_3"} {
		w.hub.offer(id, work("job"))
		if got := w.hub.ended(id); got.end.Reason != offpeak.EndCompleted {
			t.Errorf("%s: end = %+v", id, got.end)
		}
		w.noLeaseFolders()
	}
}

// A machine's clock may be set back in the middle of a job, or behind that of the
// machine a checkpoint was restored from: what came after what is stored is the
// newest, whatever the times of the files say.
func TestCheckpointsAfterTheClockWasSetBack(t *testing.T) {
	w := newWorld(t)
	stored := make(chan struct{})
	save := func(j *fakeJob, name string, back time.Duration) {
		dir := j.env["OFFPEAK_CHECKPOINT_DIR"]
		part, at := filepath.Join(dir, name+".part"), time.Now().Add(-back)
		_ = os.WriteFile(part, []byte(name), 0o600)
		_ = os.Chtimes(part, at, at)
		_ = os.Rename(part, filepath.Join(dir, name))
	}
	w.script("train", func(j *fakeJob) supervisor.Exit {
		save(j, "first", 0)
		<-stored
		save(j, "second", time.Hour)
		<-stored
		save(j, "last", 2*time.Hour)
		return completed()
	})
	w.join()
	w.run()
	task := work("train")
	task.Task.Checkpoint.Every = offpeak.Duration(time.Millisecond)
	w.hub.offer("lease_1", task)
	names := []string{"first", "second", "last"}
	for n := 1; n < len(names); n++ {
		w.hub.wait("checkpoint "+names[n-1], func() bool { return len(w.hub.leases["lease_1"].checks) == n })
		stored <- struct{}{}
	}
	var got []string
	for _, c := range w.hub.ended("lease_1").checks {
		got = append(got, c.Name)
	}
	if !slices.Equal(got, names) {
		t.Errorf("stored %q, want %q", got, names)
	}
	w.noLeaseFolders()
}

func TestEndsThatAreNotTheJobsSuccess(t *testing.T) {
	one := 3
	tests := map[string]struct {
		script script
		change func(*wire.Work)
		want   offpeak.EndReason
	}{
		"missing output":  {script: func(*fakeJob) supervisor.Exit { return completed() }, change: func(w *wire.Work) { w.Task.Outputs = []string{"model.bin"} }, want: offpeak.EndOutputsMissing},
		"absent command":  {change: func(w *wire.Work) { w.Task.Command = []string{"absent"} }, want: offpeak.EndCommandNotFound},
		"unknown driver":  {change: func(w *wire.Work) { w.Task.Driver = "wasm" }, want: offpeak.EndNodeError},
		"input gone":      {change: func(w *wire.Work) { w.Task.Input = blob.Sum([]byte("gone")) }, want: offpeak.EndInputUnavailable},
		"too little disk": {change: func(w *wire.Work) { w.Resources.Disk = 2 * offpeak.TiB }, want: offpeak.EndDeclined},
		"exit code":       {script: func(*fakeJob) supervisor.Exit { return supervisor.Exit{Reason: offpeak.EndExitNonzero, Code: &one} }, want: offpeak.EndExitNonzero},
		"link as a log file": {script: func(j *fakeJob) supervisor.Exit {
			_ = os.Remove(filepath.Join(j.folder, "stderr.log"))
			_ = os.Symlink("/etc/passwd", filepath.Join(j.folder, "stderr.log"))
			return completed()
		}, want: offpeak.EndCompleted},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.script("job", tt.script)
			w.join()
			w.run()
			task := work("job")
			if tt.change != nil {
				tt.change(&task)
			}
			w.hub.offer("lease_1", task)
			got := w.hub.ended("lease_1")
			if got.end.Reason != tt.want {
				t.Errorf("end = %+v, want %s", got.end, tt.want)
			}
			if bytes.Contains(got.logs["stderr"], []byte("root:")) {
				t.Error("a host file reached the log")
			}
			w.noLeaseFolders()
		})
	}
}

func TestLostCallsChangeNothing(t *testing.T) {
	w := newWorld(t)
	var want bytes.Buffer
	for i := range 400 {
		fmt.Fprintf(&want, "line %d of the log\n", i)
	}
	w.script("talk", func(j *fakeJob) supervisor.Exit {
		for line := range bytes.Lines(want.Bytes()) {
			_, _ = j.stdout.Write(line)
			if bytes.Contains(line, []byte("0 of")) {
				time.Sleep(2 * time.Millisecond) // so that the log comes in pieces
			}
		}
		return completed()
	})
	w.cfg.Times.Running = time.Millisecond
	w.join()
	rng := rand.New(rand.NewPCG(1, 2))
	w.hub.with(func() {
		w.hub.faults = func(string) fault { return []fault{lostAnswer, lostAsk, delivered}[rng.IntN(3)] }
	})
	w.run()
	for i := range 4 {
		id := offpeak.LeaseID(fmt.Sprintf("lease_%d", i))
		w.hub.offer(id, work("talk"))
		got := w.hub.ended(id)
		if got.end.Reason != offpeak.EndCompleted || !bytes.Equal(got.logs["stdout"], want.Bytes()) {
			t.Errorf("%s ended %s with %d of %d bytes", id, got.end.Reason, len(got.logs["stdout"]), want.Len())
		}
		seen := map[string]int{}
		for _, k := range got.kinds {
			seen[k]++
		}
		if seen[kindAccepted] != 1 || seen[kindEnded] != 1 || seen[kindRunning] > 1 {
			t.Errorf("reports = %v", got.kinds)
		}
	}
	w.sups.mu.Lock()
	defer w.sups.mu.Unlock()
	if w.sups.started != 4 {
		t.Errorf("%d jobs were started, want 4", w.sups.started)
	}
}

// untilNotice is a job that works until it is told to go.
func untilNotice(j *fakeJob) supervisor.Exit {
	fmt.Fprintln(j.stdout, "working")
	select {
	case reason := <-j.notice:
		fmt.Fprintln(j.stdout, "going:", reason)
		_ = os.WriteFile(filepath.Join(j.env["OFFPEAK_CHECKPOINT_DIR"], "last"), []byte("state"), 0o600)
		return completed()
	case <-j.killed:
		return supervisor.Exit{Reason: offpeak.EndNodeLost}
	}
}

func TestStopsWithNotice(t *testing.T) {
	w := newWorld(t)
	w.script("work", untilNotice)
	w.join()
	w.run()
	for i, reason := range []offpeak.EndReason{offpeak.EndOutbid, offpeak.EndCancelled} {
		id := offpeak.LeaseID(fmt.Sprintf("lease_%d", i))
		w.hub.offer(id, work("work"))
		w.hub.wait("running", func() bool { return w.hub.leases[id].desired.State == offpeak.LeaseRunning })
		w.hub.stop(id, reason)
		got := w.hub.ended(id)
		if got.end.Reason != reason || string(got.logs["stdout"]) != "working\ngoing: "+string(reason)+"\n" {
			t.Errorf("end = %+v, log %q", got.end, got.logs["stdout"])
		}
		if want := reason != offpeak.EndCancelled; (len(got.checks) == 1) != want {
			t.Errorf("%s stored %d checkpoints", reason, len(got.checks))
		}
	}
}

func TestStaleLeaseIsKilledWithoutAWord(t *testing.T) {
	w := newWorld(t)
	killed := make(chan struct{})
	w.script("work", func(j *fakeJob) supervisor.Exit {
		<-j.killed
		close(killed)
		return supervisor.Exit{Reason: offpeak.EndNodeLost}
	})
	w.join()
	w.run()
	w.hub.offer("lease_1", work("work"))
	w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
	w.hub.with(func() { w.hub.leases["lease_1"].live = false; w.hub.changedLocked() })
	<-killed
	w.noLeaseFolders()
	if got := w.hub.ended("lease_1"); slices.Contains(got.kinds, kindEnded) {
		t.Errorf("reports = %v", got.kinds)
	}
}

func TestPauseDrainResume(t *testing.T) {
	w := newWorld(t)
	w.script("work", untilNotice)
	w.join()
	a := w.run()
	w.hub.offer("lease_1", work("work"))
	w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
	if st, err := Tell(t.Context(), w.cfg.Data, OrderPause, time.Hour); err != nil || st.Why != offpeak.EndPaused {
		t.Fatalf("pause: %+v, %v", st, err)
	}
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndPaused {
		t.Errorf("end = %+v", got.end)
	}
	w.hub.wait("in use", func() bool { b := w.hub.beats[len(w.hub.beats)-1]; return b.Why == offpeak.EndPaused })
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}

	// The pause outlives the agent.
	w.run()
	w.hub.offer("lease_2", work("work"))
	if got := w.hub.ended("lease_2"); got.end.Reason != offpeak.EndDeclined || len(got.kinds) != 1 {
		t.Errorf("end = %+v, reports %v", got.end, got.kinds)
	}
	if _, err := Tell(t.Context(), w.cfg.Data, OrderResume, 0); err != nil {
		t.Fatal(err)
	}
	w.hub.offer("lease_3", work("work"))
	w.hub.wait("running", func() bool { return w.hub.leases["lease_3"].desired.State == offpeak.LeaseRunning })
	if st, err := Tell(t.Context(), w.cfg.Data, OrderDrain, 0); err != nil || !st.Draining || len(st.Leases) != 1 {
		t.Fatalf("drain: %+v, %v", st, err)
	}
	w.hub.offer("lease_4", work("work"))
	if got := w.hub.ended("lease_4"); got.end.Reason != offpeak.EndDeclined {
		t.Errorf("end = %+v", got.end)
	}
	w.hub.stop("lease_3", offpeak.EndOutbid)
	w.hub.ended("lease_3")
	eventually(t, "drained", func() bool { st := w.status(); return st.Why == offpeak.EndPaused && !st.Draining })
}

func TestNextAgentAdopts(t *testing.T) {
	w := newWorld(t)
	w.script("work", untilNotice)
	w.join()
	first := w.run()
	w.hub.offer("lease_1", work("work"))
	w.hub.offer("lease_2", work("work"))
	w.hub.offer("lease_3", work("work"))
	for _, id := range []offpeak.LeaseID{"lease_1", "lease_2", "lease_3"} {
		w.hub.wait("running", func() bool { return w.hub.leases[id].desired.State == offpeak.LeaseRunning })
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	// Meanwhile one job ends and the supervisor of another dies.
	two := w.sups.holding("lease_2")
	two.job.notice <- "elsewhere"
	eventually(t, "exit", func() bool { two.mu.Lock(); defer two.mu.Unlock(); return two.status.Phase == supervisor.Exited })
	w.sups.holding("lease_3").die()
	w.run()
	if got := w.hub.ended("lease_2"); got.end.Reason != offpeak.EndCompleted || string(got.logs["stdout"]) != "working\ngoing: elsewhere\n" {
		t.Errorf("end = %+v, log %q", got.end, got.logs["stdout"])
	}
	if got := w.hub.ended("lease_3"); got.end.Reason != offpeak.EndSupervisorLost {
		t.Errorf("end = %+v", got.end)
	}
	w.hub.stop("lease_1", offpeak.EndOutbid)
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndOutbid || string(got.logs["stdout"]) != "working\ngoing: outbid\n" {
		t.Errorf("end = %+v, log %q", got.end, got.logs["stdout"])
	}
	w.noLeaseFolders()
}

func TestHubAwayAndBack(t *testing.T) {
	w := newWorld(t)
	w.script("work", untilNotice)
	w.join()
	w.run()
	w.hub.offer("lease_1", work("work"))
	w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
	w.hub.with(func() { w.hub.faults = func(string) fault { return lostAsk } })
	w.hub.server.CloseClientConnections()
	eventually(t, "disconnected", func() bool { return !w.status().Connected })
	before := 0
	w.hub.with(func() { w.hub.faults, w.hub.token, before = nil, "", len(w.hub.beats) })
	w.hub.wait("heartbeats again", func() bool { return len(w.hub.beats) > before+2 })
	w.hub.stop("lease_1", offpeak.EndOutbid)
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndOutbid {
		t.Errorf("end = %+v", got.end)
	}
}

func TestGrantCountsFromWhenTheHeartbeatWasSent(t *testing.T) {
	w := newWorld(t)
	w.script("work", untilNotice)
	w.join()
	a := w.run()
	w.hub.offer("lease_1", work("work"))
	w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
	sup := w.sups.holding("lease_1")
	granted := func() supervisor.Lease { sup.mu.Lock(); defer sup.mu.Unlock(); return sup.granted }
	first := granted()
	eventually(t, "a later deadline", func() bool { return granted().Granted > first.Granted })
	if g := granted(); g.Timeout != w.hub.timeout || time.Duration(g.Granted) > a.env.Boot() {
		t.Errorf("granted %+v at %s", g, a.env.Boot())
	}
	// With the hub away the deadline stays.
	w.hub.with(func() { w.hub.faults = func(string) fault { return lostAsk } })
	n := w.hub.calls["heartbeat"]
	w.hub.wait("heartbeats in vain", func() bool { return w.hub.calls["heartbeat"] > n+4 })
	last := granted()
	w.hub.wait("more of them", func() bool { return w.hub.calls["heartbeat"] > n+8 })
	if granted() != last {
		t.Error("a heartbeat without an answer moved the deadline")
	}
	w.hub.with(func() { w.hub.faults = nil })
}

func TestUnknownNodeEndsTheAgent(t *testing.T) {
	w := newWorld(t)
	w.script("work", untilNotice)
	w.join()
	a := w.run()
	w.hub.offer("lease_1", work("work"))
	w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
	w.hub.with(func() { w.hub.removed = true })
	if err := a.wait(); !errors.Is(err, ErrRemoved) {
		t.Errorf("run = %v", err)
	}
	w.sups.waitKilled()
}

func TestIdentityConflictHolds(t *testing.T) {
	w := newWorld(t)
	w.join()
	w.run()
	eventually(t, "connected", func() bool { return w.status().Connected })
	w.hub.with(func() { w.hub.conflict, w.hub.token = true, "" })
	eventually(t, "conflict", func() bool { return w.status().Conflict })
	w.hub.with(func() { w.hub.conflict = false })
	eventually(t, "no conflict", func() bool { return !w.status().Conflict })
}

func TestLeave(t *testing.T) {
	w := newWorld(t)
	w.script("work", untilNotice)
	w.join()
	a := w.run()
	w.hub.offer("lease_1", work("work"))
	w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
	if _, err := Tell(t.Context(), w.cfg.Data, OrderLeave, 0); err != nil {
		t.Fatal(err)
	}
	if err := a.wait(); err != nil {
		t.Fatal(err)
	}
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndNodeRemoved || !w.hub.left {
		t.Errorf("end = %+v, left %v", got.end, w.hub.left)
	}
	if err := Enrolled(w.cfg.Data, w.env.Log); !errors.Is(err, ErrNotEnrolled) {
		t.Errorf("enrolled = %v", err)
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	w := newWorld(t)
	w.join()
	w.run()
	eventually(t, "connected", func() bool { return w.status().Connected })
	if err := w.run().wait(); !errors.Is(err, ErrBusy) {
		t.Errorf("run = %v", err)
	}
}

func TestStopJobs(t *testing.T) {
	w := newWorld(t)
	w.script("work", untilNotice)
	w.cfg.StopJobs = true
	w.join()
	a := w.run()
	w.hub.offer("lease_1", work("work"))
	w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndDrained || len(got.checks) != 1 {
		t.Errorf("end = %+v, %d checkpoints", got.end, len(got.checks))
	}
}

// A status tells the owner for whom the machine works and since when, what it brought,
// and how its jobs ended; the hub's part of it is waited for by nobody.
func TestStatusForTheOwner(t *testing.T) {
	w := newWorld(t)
	w.script("work", untilNotice)
	w.join()
	a := w.run()
	task := work("work")
	task.Account, task.JobName = "acct_them", "render"
	w.hub.offer("lease_1", task)
	w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
	st := w.status()
	if len(st.Leases) != 1 || st.Leases[0].Account != "acct_them" || st.Leases[0].Class != books.ClassOther || st.Leases[0].Name != "render" || st.Leases[0].Since.IsZero() {
		t.Errorf("runs: %+v", st.Leases)
	}
	eventually(t, "earnings", func() bool { e := w.status().Earnings; return e != nil && e.Earnings != nil && e.Total == 3 })
	if _, err := Tell(t.Context(), w.cfg.Data, OrderPause, 0); err != nil {
		t.Fatal(err)
	}
	w.hub.ended("lease_1")
	eventually(t, "the job's end", func() bool { return len(w.status().Ended) == 1 })
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	off, err := Offline(w.cfg.Data)
	if err != nil || len(off.Ended) != 1 || off.Ended[0].Reason != offpeak.EndPaused || off.Ended[0].Name != "render" || off.Ended[0].Job != "job_lease_1" {
		t.Errorf("without an agent: %+v, %v", off.Ended, err)
	}
}
