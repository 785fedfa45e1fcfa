package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/hub/data"
	"offpeak/internal/gridtest"
)

// A stale node and its replacement: a node that is cut off past the timeout has
// stopped before another takes its jobs, what it says late is refused, and both
// the audit and the hub's log tell of it.
func TestStaleNodeIsRefused(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	link := g.Link()
	far := g.StartAgent("far", link.URL())
	long := g.Submit(g.Counter(50, 100*time.Millisecond)).ID
	// This one ends by itself while its node is cut off.
	end := filepath.Join(g.Dir, "end")
	spec := g.Shell(gridtest.Say + `until [ -e "$END" ]; do sleep 0.05; done; echo "$OFFPEAK_ATTEMPT" | tee result; say end`)
	spec.Task.Env["END"], spec.Task.Outputs = end, []string{"result"}
	short := g.Submit(spec).ID
	var old []offpeak.LeaseID
	for _, id := range []offpeak.JobID{long, short} {
		old = append(old, g.WaitState(id, 20*time.Second, offpeak.JobRunning).Lease)
	}
	waitCheckpoints(t, g, long, 1)
	near := g.StartAgent("near", "")
	link.Drop(gridtest.ToHub)
	link.Drop(gridtest.ToAgent)
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gridtest.Eventually(t, 30*time.Second, "the jobs to move", func() error {
		for _, id := range []offpeak.JobID{long, short} {
			job, err := g.Client.Job(context.Background(), id)
			if err != nil || job.Node != near.Node {
				return fmt.Errorf("job %s is %s on %s, %v", id, job.State, job.Node, err)
			}
		}
		return nil
	})
	// Now the far node is heard, but hears nothing: it can't know yet.
	link.Undrop(gridtest.ToHub)
	gridtest.Eventually(t, 40*time.Second, "the hub to tell of the refusals", func() error {
		data, err := os.ReadFile(filepath.Join(g.Dir, "hub.log"))
		if err != nil {
			return err
		}
		told := map[string]bool{}
		for line := range strings.Lines(string(data)) {
			for _, lease := range old {
				if strings.Contains(line, "stale report refused") && strings.Contains(line, string(lease)) && strings.Contains(line, string(far.Node)) && strings.Contains(line, "attempt=1 ") {
					told[string(lease)] = true
				}
			}
		}
		if !told[string(old[1])] {
			return fmt.Errorf("it told of %v", told)
		}
		return nil
	})
	link.Heal()
	waitLiveness(t, g, far.Node, offpeak.NodeOnline)
	for _, id := range []offpeak.JobID{long, short} {
		job := g.WaitState(id, 40*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
		if job.State != offpeak.JobSucceeded || job.Node != near.Node {
			t.Errorf("job %s is %s on %s: %s", id, job.State, job.Node, job.Detail)
		}
		attempts, err := g.Client.Attempts(context.Background(), id)
		if err != nil || len(attempts.Items) < 2 || attempts.Items[0].Reason != offpeak.EndNodeLost {
			t.Errorf("attempts of %s are %+v, %v", id, attempts.Items, err)
		}
	}
	if got, want := g.Log(short, 0, "stdout"), fmt.Sprintln(attemptOf(t, g, short)); got != want {
		t.Errorf("the accepted attempt said %q, want %q", got, want)
	}
	resumed(t, g, long, 50)
	if n := auditRows(t, g, old[1], "stale"); n == 0 {
		t.Error("the audit knows of no refusal")
	}
	waitIdle(t, g, far.Node)
}

func attemptOf(t *testing.T, g *gridtest.Grid, id offpeak.JobID) offpeak.Attempt {
	t.Helper()
	job, err := g.Client.Job(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return job.Attempt
}

// auditRows counts what the store's audit says of a lease.
func auditRows(t *testing.T, g *gridtest.Grid, lease offpeak.LeaseID, outcome string) (n int) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(g.HubDir(), data.DatabaseFile)+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow(`SELECT count(*) FROM audit WHERE object = ? AND outcome = ?`, string(lease), outcome).Scan(&n); err != nil {
		t.Fatalf("read the audit: %v", err)
	}
	return n
}

// A requeue that happens once: of many jobs on three nodes, one of which dies
// and another comes, each succeeds exactly once, and only those the dead node
// held are tried again.
func TestRequeueHappensOnce(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	agents := map[string]*gridtest.Agent{}
	for _, name := range []string{"a", "b", "c"} {
		agents[name] = g.StartAgent(name, "")
	}
	ids := make([]offpeak.JobID, 30)
	for i := range ids {
		ids[i] = g.Submit(g.Shell(gridtest.Say + `sleep 0.7; say end`)).ID
	}
	dead := agents["b"]
	gridtest.Eventually(t, 20*time.Second, "a third of the jobs to have ended, and the node to hold one", func() error {
		ended := 0
		for _, f := range g.Facts() {
			if f.What == "end" {
				ended++
			}
		}
		if held := node(t, g, dead.Node).Reserved.CPU; ended < len(ids)/3 || held == 0 {
			return fmt.Errorf("%d ended, it holds %d", ended, held)
		}
		return nil
	})
	dead.KillNode()
	g.StartAgent("d", "")
	for _, id := range ids {
		g.WaitState(id, 60*time.Second, offpeak.JobSucceeded)
	}
	ends, lost := map[offpeak.JobID]int{}, 0
	for _, f := range g.Facts() {
		if f.What == "end" {
			ends[f.Job]++
		}
	}
	for _, id := range ids {
		list, err := g.Client.Attempts(context.Background(), id)
		if err != nil {
			t.Fatal(err)
		}
		again := slices.ContainsFunc(list.Items, func(l offpeak.Lease) bool { return l.Node == dead.Node && l.State != offpeak.LeaseSucceeded })
		most := 1
		if again {
			most = 2
			lost++
		}
		if len(list.Items) > most {
			t.Errorf("job %s took %d attempts, want at most %d: %+v", id, len(list.Items), most, list.Items)
		}
		// The dead node may have ended one whose report was never heard.
		if ends[id] != 1 && (!again || ends[id] != 2) {
			t.Errorf("job %s ended %d times", id, ends[id])
		}
	}
	if lost == 0 {
		t.Error("the dead node held nothing: the kill met no job")
	}
}

// Eligibility that ignores liveness: jobs submitted the moment a node died are
// offered elsewhere, and an offline node is offered nothing.
func TestNothingIsOfferedToTheOffline(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	a := g.StartAgent("a", "")
	a.KillNode()
	var ids []offpeak.JobID
	for range 4 {
		ids = append(ids, g.Submit(g.Shell("true")).ID)
	}
	b := g.StartAgent("b", "")
	for _, id := range ids {
		// An offer's life, and the time a job takes on a busy machine.
		job := g.WaitState(id, g.Timers.Offer+15*time.Second, offpeak.JobSucceeded)
		if job.Node != b.Node {
			t.Errorf("job %s ran on %s", id, job.Node)
		}
	}
	waitLiveness(t, g, a.Node, offpeak.NodeOffline)
	late := g.Submit(g.Shell("true")).ID
	g.WaitState(late, 20*time.Second, offpeak.JobSucceeded)
	for _, id := range append(ids, late) {
		list, err := g.Client.Attempts(context.Background(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list.Items {
			if l.Node == a.Node && (l.Reason != offpeak.EndOfferLapsed || id == late) {
				t.Errorf("lease %s on the dead node ended as %s", l.ID, l.Reason)
			}
		}
		if job, err := g.Client.Job(context.Background(), id); err != nil || job.Counts != (offpeak.RetryCounts{}) {
			t.Errorf("offers that lapsed cost job %s %+v, %v", id, job.Counts, err)
		}
	}
	unheard := false
	for _, e := range g.Events() {
		switch {
		case e.Node != a.Node:
		case e.Type == "node.late" || e.Type == "node.offline":
			unheard = true
		case e.Type == "node.online":
			unheard = false
		case e.Type == "lease.offered" && unheard:
			t.Errorf("lease %s was offered to a node that was not heard", e.Lease)
		}
	}
}

// A timeout tighter than real networks: latency that varies and connections
// that break again and again cost no job.
func TestBadLinkKillsNothing(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	link := g.Link()
	a := g.StartAgent("far", link.URL())
	ids := []offpeak.JobID{g.Submit(g.Counter(100, 100*time.Millisecond)).ID, g.Submit(g.Counter(100, 100*time.Millisecond)).ID}
	for _, id := range ids {
		g.WaitState(id, 20*time.Second, offpeak.JobRunning)
	}
	link.Jitter(gridtest.ToHub, 150*time.Millisecond, 100*time.Millisecond)
	link.Jitter(gridtest.ToAgent, 150*time.Millisecond, 100*time.Millisecond)
	for range 7 {
		// The moment is the fault: connections live this long.
		<-time.After(1300 * time.Millisecond)
		link.Cut()
		link.Mend()
	}
	link.Heal()
	for _, id := range ids {
		job := g.WaitState(id, 60*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
		if job.State != offpeak.JobSucceeded || job.Attempt != 1 {
			t.Errorf("job %s is %s after attempt %d: %s", id, job.State, job.Attempt, job.Detail)
		}
		wholeLog(t, g, id, 100)
	}
	noStepTwice(t, g)
	if n := onlineEvents(t, g, a.Node); n.offline != 0 {
		t.Errorf("the node was offline %d times", n.offline)
	}
}

// A hub's trouble read as the death of nodes: after three timeouts without a
// hub, ten agents' jobs go on where they were and no node is given up.
func TestHubAwayIsNoNodesDeath(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	const nodes = 10
	var start sync.WaitGroup
	for i := range nodes {
		start.Go(func() { g.StartAgent(fmt.Sprintf("n%d", i), "", "--cpu", "1", "--warm", "1") })
	}
	start.Wait()
	ids := make([]offpeak.JobID, nodes)
	for i := range ids {
		ids[i] = g.Submit(g.Counter(12, 500*time.Millisecond)).ID
	}
	for _, id := range ids {
		g.WaitState(id, 40*time.Second, offpeak.JobRunning)
	}
	g.KillHub()
	gone := time.Now()
	gridtest.Eventually(t, 30*time.Second, "three timeouts to pass", func() error {
		if since := time.Since(gone); since < 3*g.Timers.Timeout {
			return fmt.Errorf("%s so far", since)
		}
		return nil
	})
	g.StartHub()
	for _, id := range ids {
		job := g.WaitState(id, 60*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
		if job.State != offpeak.JobSucceeded || job.Attempt != 1 {
			t.Errorf("job %s is %s after attempt %d: %s", id, job.State, job.Attempt, job.Detail)
		}
	}
	noStepTwice(t, g)
	for _, e := range g.Events() {
		if e.Type == "node.offline" {
			t.Errorf("node %s was given up at %s; the hub was gone at %s", e.Node, e.At, gone)
		}
	}
}
