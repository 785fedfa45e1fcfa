package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
)

// 200 jobs are submitted at the same instant to 20 nodes that fit one each: no
// node ever holds two, every job runs exactly once.
func TestTwoHundredAtOnce(t *testing.T) {
	g := gridtest.Start(t, bin)
	g.Priced(paid)
	const nodes, jobs = 20, 200
	var start sync.WaitGroup
	for i := range nodes {
		start.Go(func() { g.StartAgent(fmt.Sprintf("n%02d", i), "", "--cpu", "1", "--warm", "1") })
	}
	start.Wait()
	spec := g.Shell(`n=0; echo "start $OFFPEAK_JOB $OFFPEAK_ATTEMPT $OFFPEAK_LEASE 0 $(date +%s%N)" >>"$REFEREE"`)
	ids := make([]offpeak.JobID, jobs)
	var wg sync.WaitGroup
	for i := range jobs {
		wg.Go(func() {
			job, err := g.Client.Submit(context.Background(), gridtest.NewOp(), spec)
			if err != nil {
				t.Errorf("submit: %v", err)
			}
			ids[i] = job.ID
		})
	}
	wg.Wait()
	ran := map[offpeak.JobID]int{}
	for _, id := range ids {
		job := g.WaitState(id, 90*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
		if job.State != offpeak.JobSucceeded {
			t.Errorf("job %s: %s %s", id, job.Reason, job.Detail)
		}
	}
	for _, f := range g.Facts() {
		ran[f.Job]++
	}
	for _, id := range ids {
		if ran[id] != 1 {
			t.Errorf("job %s ran %d times", id, ran[id])
		}
	}
	// The events tell of every moment: replay what each node held.
	held, most := map[offpeak.NodeID]map[offpeak.LeaseID]bool{}, 0
	for _, e := range g.Events() {
		state, ok := strings.CutPrefix(e.Type, "lease.")
		if !ok {
			continue
		}
		if held[e.Node] == nil {
			held[e.Node] = map[offpeak.LeaseID]bool{}
		}
		switch s := offpeak.LeaseState(state); {
		case s == offpeak.LeaseOffered:
			held[e.Node][e.Lease] = true
		case s == offpeak.LeaseFinishing || s.Terminal():
			delete(held[e.Node], e.Lease)
		}
		most = max(most, len(held[e.Node]))
	}
	if most != 1 {
		t.Errorf("a node held %d leases at once", most)
	}
}

// The link between an agent and the hub is cut in every way it can be: both
// directions, each alone, half-closed. No job is lost, none runs twice at once,
// and no stale result is accepted.
func TestNetworkCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		cut  func(*gridtest.Link)
	}{
		{"both", func(l *gridtest.Link) { l.Drop(gridtest.ToHub); l.Drop(gridtest.ToAgent) }},
		{"to hub", func(l *gridtest.Link) { l.Drop(gridtest.ToHub) }},
		{"to agent", func(l *gridtest.Link) { l.Drop(gridtest.ToAgent) }},
		{"half-closed", func(l *gridtest.Link) { l.HalfClose(gridtest.ToHub, 300); l.HalfClose(gridtest.ToAgent, 100) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := gridtest.Start(t, bin)
			g.Priced(paid)
			link := g.Link()
			far := g.StartAgent("far", link.URL())
			id := g.Submit(g.Counter(50, 100*time.Millisecond)).ID
			g.WaitState(id, 20*time.Second, offpeak.JobRunning)
			waitCheckpoints(t, g, id, 1)
			near := g.StartAgent("near", "")
			c.cut(link)
			first := lost(t, g, id, 1)
			gridtest.Eventually(t, 30*time.Second, "the job to move", func() error {
				job, err := g.Client.Job(context.Background(), id)
				if err != nil || job.Attempt < 2 || job.Node != near.Node {
					return fmt.Errorf("attempt %d on %s is %s, %v", job.Attempt, job.Node, job.State, err)
				}
				return nil
			})
			link.Heal()
			job := g.WaitState(id, 40*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
			if job.State != offpeak.JobSucceeded || job.Node == far.Node {
				t.Errorf("job is %s on %s: %s", job.State, job.Node, job.Detail)
			}
			gridtest.Eventually(t, 20*time.Second, "the far node to be back", func() error {
				n, err := g.Client.Node(context.Background(), far.Node)
				if err != nil || n.Liveness != offpeak.NodeOnline {
					return fmt.Errorf("it is %s, %v", n.Liveness, err)
				}
				return nil
			})
			waitIdle(t, g, far.Node)
			resumed(t, g, id, 50)
			first.untouched(t, g)
		})
	}
}

// A slow link costs nothing: five beats of latency, no job moved.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	g.Priced(paid)
	link := g.Link()
	g.StartAgent("far", link.URL())
	id := g.Submit(g.Counter(60, 100*time.Millisecond)).ID
	g.WaitState(id, 20*time.Second, offpeak.JobRunning)
	link.Delay(gridtest.ToHub, 500*time.Millisecond)
	link.Delay(gridtest.ToAgent, 500*time.Millisecond)
	job := g.WaitState(id, 60*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
	if job.State != offpeak.JobSucceeded || job.Attempt != 1 {
		t.Errorf("job is %s after attempt %d", job.State, job.Attempt)
	}
}
