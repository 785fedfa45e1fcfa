package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
	"offpeak/wire"
)

// several are the timers of grids of several hubs: what is frozen for ten seconds
// is away for longer than a timeout.
var several = gridtest.Timers{Heartbeat: 500 * time.Millisecond, Timeout: 6 * time.Second, Offer: 5 * time.Second, Tick: 200 * time.Millisecond}

// crowd keeps a grid of several hubs busy: virtual nodes that run what they are
// given and real ones whose jobs count their steps, clients that submit, cancel
// and wait. None of them gives up because hubs or their database are away: what
// had no answer is said again, to the next hub.
//
// Whatever happens to hubs and database meanwhile, settle says what has to hold.
type crowd struct {
	t     *testing.T
	g     *gridtest.Grid
	nodes []*gridtest.Virtual
	began time.Time
	stop  func()
	// long are jobs that run from beginning to end on virtual nodes, steps those
	// that count on real ones.
	long, steps []offpeak.JobID
	// over says that the long jobs may end.
	over atomic.Bool

	begun, unknown, refused atomic.Int64

	mu sync.Mutex
	// acked are the acknowledged submissions; whether they were cancelled too.
	acked map[offpeak.JobID]bool // guarded by mu while the clients run
	// answered is when a client was last answered, silence the longest time
	// between two answers.
	answered time.Time
	silence  time.Duration
}

const (
	crowdNodes  = 50
	crowdAgents = 3
	crowdRate   = 50.0 // submissions a second
)

// gather starts nodes and clients on a grid and returns when all long jobs run.
func gather(t *testing.T, g *gridtest.Grid) *crowd {
	t.Helper()
	c := &crowd{t: t, g: g, acked: map[offpeak.JobID]bool{}}
	for i := range crowdAgents {
		g.StartAgent(fmt.Sprintf("real%d", i), "", "--cpu", "3", "--warm", "2")
	}
	for range 2 * crowdAgents {
		spec := g.Counter(1_000_000, 250*time.Millisecond)
		c.steps = append(c.steps, g.Submit(spec).ID)
	}
	for _, id := range c.steps {
		g.WaitState(id, 60*time.Second, offpeak.JobRunning)
	}
	c.nodes = g.Fleet(crowdNodes)
	ctx, stop := context.WithCancel(context.Background())
	var nodes sync.WaitGroup
	for _, v := range c.nodes {
		nodes.Go(func() { c.serve(ctx, v) })
	}
	t.Cleanup(nodes.Wait)
	t.Cleanup(stop)
	for range crowdNodes {
		spec := g.Shell("true")
		spec.Name, spec.Requirements.CPU = "long", 4000
		c.long = append(c.long, g.Submit(spec).ID)
	}
	for _, id := range c.long {
		g.WaitState(id, 60*time.Second, offpeak.JobRunning)
	}
	c.began = time.Now()
	c.answered = c.began
	ask, hush := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	for i := range clients {
		asking.Go(func() { c.client(ask, i) })
	}
	c.stop = func() { hush(); asking.Wait() }
	t.Cleanup(c.stop)
	return c
}

// serve is a virtual node's life: it runs what it is offered for a moment, long
// jobs until they may end, and stops what was cancelled.
func (c *crowd) serve(ctx context.Context, v *gridtest.Virtual) {
	rng := rand.New(rand.NewPCG(1, rand.Uint64()))
	type work struct {
		wire.Desired
		long  bool
		until time.Time
	}
	mine := map[offpeak.LeaseID]*work{}
	pace := time.NewTicker(several.Heartbeat / 2)
	defer pace.Stop()
	for ctx.Err() == nil {
		<-pace.C
		sync, err := v.Beat(ctx)
		if !c.bears(ctx, "heartbeat", err) {
			return
		}
		if err == nil {
			for _, l := range sync.Leases {
				if w := mine[l.Lease]; w != nil {
					w.Stop = l.Stop
				} else if l.State == offpeak.LeaseOffered && l.Stop == "" {
					w = &work{Desired: l, long: l.Work != nil && l.Work.JobName == "long", until: time.Now().Add(time.Duration(rng.Int64N(int64(time.Second))))}
					mine[l.Lease] = w
					if err := v.Run(ctx, l); !errors.Is(err, offpeak.ErrStaleLease) && !c.bears(ctx, "report", err) {
						return
					}
					if !v.Holds(l.Lease) {
						delete(mine, l.Lease) // cancelled or lapsed meanwhile
					}
				}
			}
			for id, w := range mine {
				if !slices.ContainsFunc(sync.Leases, func(l wire.Desired) bool { return l.Lease == id }) {
					if w.long {
						c.t.Errorf("node %s was told to drop lease %s of job %s, which it ran", v.Node, id, w.Job)
					}
					delete(mine, id)
					v.Drop(id)
				}
			}
		}
		if err := v.Flush(ctx); !errors.Is(err, offpeak.ErrStaleLease) && !c.bears(ctx, "report", err) {
			return
		}
		for _, w := range slices.Collect(maps.Values(mine)) {
			reason := w.Stop
			if reason == "" {
				reason = offpeak.EndCompleted
				if w.long && !c.over.Load() || !w.long && time.Now().Before(w.until) {
					continue
				}
			}
			delete(mine, w.Lease)
			if err := v.End(ctx, w.Desired, reason); !errors.Is(err, offpeak.ErrStaleLease) && !c.bears(ctx, "report", err) {
				return
			}
		}
	}
}

// bears says whether to go on after an answer: unavailability is borne, and told
// apart by whether a hub said so or nobody did.
func (c *crowd) bears(ctx context.Context, what string, err error) bool {
	switch {
	case err == nil:
		return true
	case ctx.Err() != nil:
		return false
	case errors.Is(err, offpeak.ErrUnavailable):
		if _, told := errors.AsType[*wire.Problem](err); told {
			c.refused.Add(1)
		} else {
			c.unknown.Add(1)
		}
		return true
	}
	c.t.Errorf("%s: %v", what, err)
	return false
}

// client submits at its share of the crowd's rate and cancels one job in four a
// moment later.
func (c *crowd) client(ctx context.Context, n int) {
	rng := rand.New(rand.NewPCG(2, uint64(n)))
	d := c.g.Round(n)
	spec := c.g.Shell("true")
	spec.Name, spec.Requirements.CPU = "short", 1000
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for ctx.Err() == nil {
		<-pace.C
		if n := c.begun.Add(1); float64(n) > time.Since(c.began).Seconds()*crowdRate {
			c.begun.Add(-1)
			continue
		}
		var job offpeak.Job
		op := gridtest.NewOp()
		if !c.insist(ctx, pace.C, "submit", func() (err error) {
			job, err = d.Submit(ctx, op, spec)
			return err
		}) {
			return
		}
		c.mu.Lock()
		c.acked[job.ID] = false
		c.mu.Unlock()
		if rng.IntN(4) > 0 {
			continue
		}
		for range rng.IntN(50) {
			<-pace.C
		}
		c.mu.Lock()
		c.acked[job.ID] = true // from the first try on, of which nobody may hear
		c.mu.Unlock()
		op = gridtest.NewOp()
		if !c.insist(ctx, pace.C, "cancel", func() error {
			_, err := d.Cancel(ctx, op, job.ID)
			if errors.Is(err, offpeak.ErrConflict) {
				return nil // it had ended
			}
			return err
		}) {
			return
		}
	}
}

// insist makes a call until it is answered, and says whether to go on.
func (c *crowd) insist(ctx context.Context, pace <-chan time.Time, what string, call func() error) bool {
	for {
		err := call()
		if !c.bears(ctx, what, err) {
			return false
		}
		if err == nil {
			c.mu.Lock()
			now := time.Now()
			c.silence = max(c.silence, now.Sub(c.answered))
			c.answered = now
			c.mu.Unlock()
			return true
		}
		<-pace
	}
}

// settle ends the crowd and checks that nothing was lost: each acknowledged
// submission made one job that came to one end, no live node lost a lease, each
// long job runs still and ends well, no step came twice, and every hub says so.
func (c *crowd) settle() {
	c.t.Helper()
	c.stop()
	cancelled := 0
	for _, asked := range c.acked {
		if asked {
			cancelled++
		}
	}
	c.t.Logf("%d submissions acknowledged in %.0f s, %d of them cancelled, %d calls without an answer, %d answered with 503, the longest time without any answer was %s",
		len(c.acked), time.Since(c.began).Seconds(), cancelled, c.unknown.Load(), c.refused.Load(), c.silence.Round(time.Millisecond))
	if len(c.acked) == 0 || cancelled == 0 {
		c.t.Errorf("the crowd did not meet the grid: %d submissions, %d cancellations", len(c.acked), cancelled)
	}
	for _, id := range slices.Concat(c.long, c.steps) {
		job := c.g.WaitState(id, 30*time.Second, offpeak.JobRunning, offpeak.JobSucceeded, offpeak.JobFailed, offpeak.JobCancelled)
		if job.Attempt != 1 || job.State != offpeak.JobRunning {
			c.t.Errorf("job %s is %s, attempt %d: it has to run as it did from the start", id, job.State, job.Attempt)
		}
	}
	c.over.Store(true)
	for _, id := range c.steps {
		cancel(c.t, c.g, id)
	}
	ids := slices.Concat(slices.Collect(maps.Keys(c.acked)), c.long, c.steps)
	for _, id := range ids {
		c.ended(id)
	}
	c.history()
	noStepTwice(c.t, c.g)
	for _, h := range c.g.Hubs {
		if out, errs, exit := h.CLI("check"); exit != 0 {
			c.t.Errorf("offpeak check: exit %d:\n%s%s", exit, out, errs)
		}
	}
}

// ended waits until a job came to the end it was given.
func (c *crowd) ended(id offpeak.JobID) {
	asked, short := c.acked[id]
	deadline := time.Now().Add(60 * time.Second)
	for {
		job, err := c.g.Client.Job(context.Background(), id)
		switch {
		case err == nil && job.State == offpeak.JobSucceeded && !slices.Contains(c.steps, id):
			return
		case err == nil && job.State == offpeak.JobCancelled && (asked || !short):
			return
		case err == nil && job.State.Terminal() || err != nil && !errors.Is(err, offpeak.ErrUnavailable) || time.Now().After(deadline):
			c.t.Errorf("job %s is %s, attempt %d, %s %s, cancelled by its client: %v, %v", id, job.State, job.Attempt, job.Reason, job.Detail, asked, err)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// history checks what the events tell.
func (c *crowd) history() {
	made, ends := map[offpeak.JobID]int{}, map[offpeak.JobID]int{}
	types := map[string]int{}
	for _, e := range c.g.Events() {
		types[e.Type]++
		object, state, _ := strings.Cut(e.Type, ".")
		switch {
		case object == "job" && offpeak.JobState(state).Terminal():
			ends[e.Job]++
		case e.Type == "job.queued":
			made[e.Job]++
		case e.Type == "node.offline":
			c.t.Errorf("node %s was given up at %s", e.Node, e.At)
		case object == "lease" && e.Reason == offpeak.EndNodeLost:
			c.t.Errorf("lease %s of job %s was taken from node %s, which was alive, at %s", e.Lease, e.Job, e.Node, e.At)
		}
	}
	c.t.Logf("%d leases offered, %d lost before they began, %d frozen for a while; nodes were late %d times",
		types["lease.offered"], types["lease.lost"], types["lease.frozen"], types["node.late"])
	for _, id := range slices.Concat(slices.Collect(maps.Keys(c.acked)), c.long, c.steps) {
		if made[id] == 0 || ends[id] != 1 {
			c.t.Errorf("job %s was queued %d times and ended %d times", id, made[id], ends[id])
		}
	}
	// The last submission of each client may have gone without an answer.
	if most := len(c.acked) + len(c.long) + len(c.steps) + clients; len(made) > most {
		c.t.Errorf("%d submissions made %d jobs, at most %d are explained", len(c.acked), len(made), most)
	}
}
