package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
)

// 200 jobs are submitted at the same instant to 20 nodes that fit one each: no
// node ever holds two, every job runs exactly once.
func TestTwoHundredAtOnce(t *testing.T) {
	g := gridtest.Start(t, bin)
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
			link := g.Link()
			far := g.StartAgent("far", link.URL())
			id := g.Submit(g.Counter(50, 100*time.Millisecond)).ID
			g.WaitState(id, 20*time.Second, offpeak.JobRunning)
			waitCheckpoints(t, g, id, 1)
			near := g.StartAgent("near", "")
			c.cut(link)
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
			if o := gridtest.Overlap(g.Facts()); o > 0 {
				t.Errorf("two attempts ran at once for %s", o)
			}
			gridtest.Eventually(t, 20*time.Second, "the far node to be back", func() error {
				n, err := g.Client.Node(context.Background(), far.Node)
				if err != nil || n.Liveness != offpeak.NodeOnline {
					return fmt.Errorf("it is %s, %v", n.Liveness, err)
				}
				return nil
			})
		})
	}
}

// A slow link costs nothing: five beats of latency, no job moved.
func TestSlowLink(t *testing.T) {
	g := gridtest.Start(t, bin)
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

// The hub is killed again and again at moments that nothing chooses, under
// submissions, claims, reports and settlements. Whatever it acknowledged holds.
func TestHubKilledAgainAndAgain(t *testing.T) {
	kills := 100
	if testing.Short() {
		kills = 20
	}
	g := gridtest.Start(t, bin)
	for i := range 4 {
		g.StartAgent(fmt.Sprintf("n%d", i), "", "--cpu", "8", "--warm", "6")
	}
	// Twenty-four jobs that run throughout, in four nodes of eight cores.
	var long []offpeak.JobID
	for range 24 {
		long = append(long, g.Submit(g.Counter(1_000_000, time.Second)).ID)
	}
	for _, id := range long {
		g.WaitState(id, 60*time.Second, offpeak.JobRunning)
	}
	short := g.Shell(`n=0; echo "start $OFFPEAK_JOB $OFFPEAK_ATTEMPT $OFFPEAK_LEASE 0 $(date +%s%N)" >>"$REFEREE"`)
	short.Task.Env["REFEREE"] = g.RefereeFile() + ".short"
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Submissions come at a rate of their own, whether the hub is up or not: what
	// it missed while it was away comes all at once.
	const perSecond = 60
	began := time.Now()
	var mu sync.Mutex
	acked := map[offpeak.JobID]bool{}
	var begun, submitted, unknown atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for ctx.Err() == nil {
				<-pace.C
				if n := begun.Add(1); float64(n) > time.Since(began).Seconds()*perSecond {
					begun.Add(-1)
					continue
				}
				op := gridtest.NewOp()
				for ctx.Err() == nil {
					job, err := g.Client.Submit(ctx, op, short)
					if err == nil {
						submitted.Add(1)
						mu.Lock()
						acked[job.ID] = true
						mu.Unlock()
						break
					}
					if !errors.Is(err, offpeak.ErrUnavailable) && ctx.Err() == nil {
						t.Errorf("submit: %v", err)
						return
					}
					unknown.Add(1)
					<-pace.C
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var tally gridtest.Inflight
	for range kills {
		tally.Add(g.KillHubAfter(time.Duration(rng.IntN(400)) * time.Millisecond))
		g.StartHub()
	}
	rate := float64(submitted.Load()) / time.Since(began).Seconds()
	cancel()
	wg.Wait()
	t.Logf("%d kills; %d submissions acknowledged (%.0f/s, the hub's absence included), %d without an answer; the hub was killed inside: %v", kills, submitted.Load(), rate, unknown.Load(), tally)
	if rate < 50 {
		t.Errorf("only %.0f submissions a second were acknowledged: the kills did not meet the load they should", rate)
	}
	for id := range acked {
		g.WaitState(id, 120*time.Second, offpeak.JobSucceeded)
	}
	for _, id := range long {
		job, err := g.Client.Job(context.Background(), id)
		if err != nil || job.Attempt != 1 || job.State != offpeak.JobRunning {
			t.Errorf("job %s is %s, attempt %d, %v: no kill of the hub may cost a node its lease", id, job.State, job.Attempt, err)
		}
	}
	noStepTwice(t, g)
	g.Check()
	for _, id := range long {
		if _, err := g.Client.Cancel(context.Background(), gridtest.NewOp(), id); err != nil {
			t.Errorf("cancel: %v", err)
		}
	}
	for _, id := range long {
		g.WaitState(id, 30*time.Second, offpeak.JobCancelled)
	}
}
