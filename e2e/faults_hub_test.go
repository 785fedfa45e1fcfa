package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
)

// The hub is killed again and again at moments that nothing chooses, under
// submissions, claims, reports and settlements. Whatever it acknowledged holds:
// no job is lost, none is made twice, none runs or ends twice, and the jobs that
// run all the while never notice. OFFPEAK_KILLS sets how often, 100 times if unset.
func TestHubKilledAgainAndAgain(t *testing.T) {
	const perSecond, running = 60, 24
	kills := 100
	if text := os.Getenv("OFFPEAK_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n <= 0 {
			t.Fatalf("OFFPEAK_KILLS is %q: it has to be a number above 0", text)
		}
		kills = n
	}
	g := gridtest.Start(t, bin)
	g.Priced(paid)
	for i := range 4 {
		g.StartAgent(fmt.Sprintf("n%d", i), "", "--cpu", "8", "--warm", "6")
	}
	var long []offpeak.JobID
	for range running {
		long = append(long, g.Submit(g.Counter(1_000_000, time.Second)).ID)
	}
	for _, id := range long {
		g.WaitState(id, 60*time.Second, offpeak.JobRunning)
	}
	l := load{g: g, spec: g.Shell(gridtest.Say), acked: map[offpeak.JobID]bool{}}
	l.spec.Task.Env["REFEREE"] = g.RefereeFile() + ".short"
	l.spec.Requirements.CPU = 500
	stop := l.start(t, perSecond)
	defer stop()
	rng := rand.New(rand.NewPCG(1, 2))
	var tally gridtest.Inflight
	for range kills {
		tally.Add(g.KillHubAfter(time.Duration(rng.IntN(400)) * time.Millisecond))
		g.StartHub()
	}
	rate := float64(l.submitted.Load()) / time.Since(l.began).Seconds()
	stop()
	t.Logf("%d kills with %d jobs running; %d submissions acknowledged (%.0f/s, the hub's absence included), %d calls without an answer; kills that fell inside: %v",
		kills, running, l.submitted.Load(), rate, l.unknown.Load(), tally)
	if rate < 50 {
		t.Errorf("only %.0f submissions a second were acknowledged: the kills did not meet the load they should", rate)
	}
	for _, verb := range []string{"submit", "claim", "report", "settlement"} {
		if kills >= 100 && tally[verb] == 0 {
			t.Errorf("of %d kills none fell inside a %s", kills, verb)
		}
	}
	for id := range l.acked {
		if job := g.WaitState(id, 120*time.Second, offpeak.JobSucceeded, offpeak.JobFailed); job.State != offpeak.JobSucceeded {
			t.Errorf("job %s is %s: %s %s", id, job.State, job.Reason, job.Detail)
		}
	}
	l.once(t, long)
	for _, id := range long {
		job, err := g.Client.Job(context.Background(), id)
		if err != nil || job.Attempt != 1 || job.State != offpeak.JobRunning {
			t.Errorf("job %s is %s, attempt %d, %v: no kill of the hub may cost a node its lease", id, job.State, job.Attempt, err)
		}
	}
	noStepTwice(t, g)
	for _, id := range long {
		cancel(t, g, id)
	}
	for _, id := range long {
		g.WaitState(id, 30*time.Second, offpeak.JobCancelled)
	}
}

// load is clients that submit at a rate of their own, whether the hub is up or
// not: what it missed while it was away comes all at once. A submission without
// an answer is repeated under the same operation id until it has one.
type load struct {
	g     *gridtest.Grid
	spec  offpeak.Spec
	began time.Time

	begun, submitted, unknown atomic.Int64

	mu    sync.Mutex
	acked map[offpeak.JobID]bool // guarded by mu while the clients run
}

// clients is how many submit at once.
const clients = 16

func (l *load) start(t *testing.T, perSecond float64) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	l.began = time.Now()
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			pace := time.NewTicker(20 * time.Millisecond)
			defer pace.Stop()
			for ctx.Err() == nil {
				<-pace.C
				if n := l.begun.Add(1); float64(n) > time.Since(l.began).Seconds()*perSecond {
					l.begun.Add(-1)
					continue
				}
				l.submit(ctx, t, pace.C)
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func (l *load) submit(ctx context.Context, t *testing.T, pace <-chan time.Time) {
	op := gridtest.NewOp()
	for ctx.Err() == nil {
		job, err := l.g.Client.Submit(ctx, op, l.spec)
		if err == nil {
			l.submitted.Add(1)
			l.mu.Lock()
			l.acked[job.ID] = true
			l.mu.Unlock()
			return
		}
		if !errors.Is(err, offpeak.ErrUnavailable) && ctx.Err() == nil {
			t.Errorf("submit: %v", err)
			return
		}
		l.unknown.Add(1)
		<-pace
	}
}

// once checks that each submission made one job, which ran once and ended once.
func (l *load) once(t *testing.T, others []offpeak.JobID) {
	t.Helper()
	if int64(len(l.acked)) != l.submitted.Load() {
		t.Errorf("%d submissions were acknowledged with %d jobs", l.submitted.Load(), len(l.acked))
	}
	made, ended, ran := map[offpeak.JobID]bool{}, map[offpeak.JobID]int{}, map[offpeak.JobID]int{}
	for _, e := range l.g.Events() {
		switch e.Type {
		case "job.queued":
			made[e.Job] = true
		case "job.succeeded", "job.failed", "job.cancelled":
			ended[e.Job]++
		}
	}
	for _, f := range l.g.FactsIn(l.spec.Task.Env["REFEREE"]) {
		ran[f.Job]++
	}
	for id := range l.acked {
		if !made[id] || ended[id] != 1 || ran[id] != 1 {
			t.Errorf("job %s: made %v, ran %d times, ended %d times", id, made[id], ran[id], ended[id])
		}
	}
	// The last submission of each client may have gone without an answer.
	if most := len(l.acked) + len(others) + clients; len(made) > most {
		t.Errorf("%d submissions made %d jobs, at most %d are explained", len(l.acked), len(made), most)
	}
}
