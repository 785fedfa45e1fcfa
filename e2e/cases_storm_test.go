package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
	"offpeak/wire"
)

// Writers in each other's way: hundreds of jobs are cancelled and hundreds
// finish at one moment, while others are submitted. Nobody is told that the hub
// is busy or broken, and each job comes to the end it was given.
func TestCancelsAndFinishesAtOnce(t *testing.T) {
	t.Parallel()
	const each, perNode, perSecond = 300, 8, 60
	g := gridtest.Start(t, bin, "--timeout", "60s", "--offer", "60s")
	s := storm{finish: map[offpeak.JobID]bool{}, nodes: g.Fleet(2 * each / perNode)}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ids := make([]offpeak.JobID, 2*each)
	parallel(len(ids), func(i int) { ids[i] = g.Submit(g.Shell("true")).ID })
	var agents sync.WaitGroup
	defer agents.Wait()
	defer stop()
	for _, v := range s.nodes {
		agents.Go(func() {
			if err := s.serve(ctx, v); err != nil && ctx.Err() == nil {
				t.Errorf("node %s: %v", v.Node, err)
			}
		})
	}
	gridtest.Eventually(t, 60*time.Second, "all jobs to run", func() error {
		if n := s.running.Load(); n < 2*each {
			return fmt.Errorf("%d so far", n)
		}
		return nil
	})
	submitted := s.submit(ctx, t, g, perSecond)
	var slowest atomic.Int64
	var clients sync.WaitGroup
	clients.Go(func() {
		s.mu.Lock()
		for _, id := range ids[:each] {
			s.finish[id] = true
		}
		s.mu.Unlock()
	})
	clients.Go(func() {
		parallel(each, func(i int) {
			began := time.Now()
			if _, err := g.Client.Cancel(context.Background(), gridtest.NewOp(), ids[each+i]); err != nil {
				t.Errorf("cancel: %v", err)
			}
			took := int64(time.Since(began))
			for now := slowest.Load(); took > now && !slowest.CompareAndSwap(now, took); now = slowest.Load() {
			}
		})
	})
	clients.Wait()
	for i, id := range ids {
		want := offpeak.JobSucceeded
		if i >= each {
			want = offpeak.JobCancelled
		}
		job := g.WaitState(id, 60*time.Second, offpeak.JobSucceeded, offpeak.JobFailed, offpeak.JobCancelled)
		if job.State != want || job.Attempt != 1 {
			t.Errorf("job %s is %s after attempt %d, want %s: %s", id, job.State, job.Attempt, want, job.Detail)
		}
	}
	others := submitted()
	for _, id := range others {
		g.WaitState(id, 60*time.Second, offpeak.JobSucceeded)
	}
	t.Logf("%d submitted meanwhile, the slowest cancel took %s", len(others), time.Duration(slowest.Load()))
	if limit := 10 * time.Second; time.Duration(slowest.Load()) > limit || len(others) == 0 {
		t.Errorf("a cancel took %s, at most %s are allowed; %d were submitted", time.Duration(slowest.Load()), limit, len(others))
	}
	for _, v := range s.nodes {
		waitIdle(t, g, v.Node)
	}
}

// A herd that comes back at once: a hub that restarts under hundreds of nodes
// answers each in time, hands each its interval and gives none up.
func TestHubRestartsUnderManyNodes(t *testing.T) {
	t.Parallel()
	const many, interval, timeout = 300, time.Second, 6 * time.Second
	g := gridtest.Start(t, bin, "--heartbeat", interval.String(), "--timeout", timeout.String())
	nodes := g.Fleet(many)
	ctx, stop := context.WithCancel(context.Background())
	var herd sync.WaitGroup
	defer herd.Wait()
	defer stop()
	var mu sync.Mutex
	heard := map[offpeak.NodeID]time.Time{} // guarded by mu, as the next
	var took []time.Duration
	for i, v := range nodes {
		herd.Go(func() {
			pace := time.NewTimer(interval * time.Duration(i) / many)
			defer pace.Stop()
			for ctx.Err() == nil {
				<-pace.C
				began := time.Now()
				in, err := v.Beat(ctx)
				wait := interval
				switch {
				case ctx.Err() != nil:
					return
				case errors.Is(err, offpeak.ErrUnavailable):
					wait = interval / 4 // all of them ask again and again
				case err != nil || in.Interval.Std() != interval:
					t.Errorf("node %s is handed the interval %s, %v", v.Node, in.Interval.Std(), err)
					return
				default:
					mu.Lock()
					heard[v.Node] = began
					took = append(took, time.Since(began))
					mu.Unlock()
				}
				pace.Reset(wait)
			}
		})
	}
	everyone := func(since time.Time) {
		t.Helper()
		gridtest.Eventually(t, 30*time.Second, "every node to be heard", func() error {
			mu.Lock()
			defer mu.Unlock()
			missing := 0
			for _, v := range nodes {
				if !heard[v.Node].After(since) {
					missing++
				}
			}
			if missing > 0 {
				return fmt.Errorf("%d were not", missing)
			}
			return nil
		})
	}
	everyone(time.Time{})
	g.KillHub()
	gone := time.Now()
	gridtest.Eventually(t, 30*time.Second, "half a timeout to pass", func() error {
		if since := time.Since(gone); since < timeout/2 {
			return fmt.Errorf("%s so far", since)
		}
		return nil
	})
	mu.Lock()
	took = nil
	mu.Unlock()
	g.StartHub()
	everyone(time.Now())
	// The amnesty of the start is over only after a timeout.
	everyone(time.Now().Add(timeout))
	mu.Lock()
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%d heartbeats since the restart, 99 %% of them took less than %s", len(took), p99)
	mu.Unlock()
	if p99 > interval {
		t.Errorf("one heartbeat in a hundred took more than %s", p99)
	}
	for _, e := range g.Events() {
		if e.Type == "node.offline" {
			t.Errorf("node %s was given up at %s; the hub was killed at %s", e.Node, e.At, gone)
		}
	}
}

// storm is a fleet that runs jobs until it is told to finish them.
type storm struct {
	nodes   []*gridtest.Virtual
	running atomic.Int64

	mu     sync.Mutex
	finish map[offpeak.JobID]bool // guarded by mu
}

// serve is a node's life: it accepts what it is offered, and ends what was
// cancelled and what shall finish.
func (s *storm) serve(ctx context.Context, v *gridtest.Virtual) error {
	mine := map[offpeak.LeaseID]wire.Desired{}
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for ctx.Err() == nil {
		<-pace.C
		sync, err := v.Beat(ctx)
		if err != nil {
			return err
		}
		for _, l := range sync.Leases {
			if l.State == offpeak.LeaseOffered {
				// An offer that was cancelled meanwhile is none any more.
				if err := v.Run(ctx, l); err != nil && !errors.Is(err, offpeak.ErrStaleLease) {
					return err
				}
				s.running.Add(1)
			}
			mine[l.Lease] = l
		}
		for _, l := range slices.Collect(maps.Values(mine)) {
			s.mu.Lock()
			done := s.finish[l.Job]
			s.mu.Unlock()
			reason := offpeak.EndCompleted
			if l.Stop != "" {
				reason, done = l.Stop, true
			}
			if !done {
				continue
			}
			delete(mine, l.Lease)
			if err := v.End(ctx, l, reason); err != nil {
				return err
			}
		}
	}
	return nil
}

// submit submits so many jobs a second, to be finished at once, until the
// function that it returns is called, which returns them.
func (s *storm) submit(ctx context.Context, t *testing.T, g *gridtest.Grid, perSecond int) (end func() []offpeak.JobID) {
	ctx, stop := context.WithCancel(ctx)
	var ids []offpeak.JobID
	var wg sync.WaitGroup
	wg.Go(func() {
		pace := time.NewTicker(time.Second / time.Duration(perSecond))
		defer pace.Stop()
		for ctx.Err() == nil {
			<-pace.C
			job, err := g.Client.Submit(context.Background(), gridtest.NewOp(), g.Shell("true"))
			if err != nil {
				t.Errorf("submit: %v", err)
				return
			}
			s.mu.Lock()
			s.finish[job.ID] = true
			s.mu.Unlock()
			ids = append(ids, job.ID)
		}
	})
	return func() []offpeak.JobID {
		stop()
		wg.Wait()
		return ids
	}
}

// parallel calls f for 0 to n−1, many at a time.
func parallel(n int, f func(int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}
