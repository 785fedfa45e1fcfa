package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"offpeak"
	"offpeak/internal/gridtest"
)

// losses is how often each kind of loss is brought about.
const losses = 20

// lossy is three hubs with agents and, for looking without asking a hub, their
// database.
type lossy struct {
	*cluster
	db *pgx.Conn
}

func startLossy(b *testing.B, timers gridtest.Timers) *lossy {
	b.Helper()
	ctx := context.Background()
	l := &lossy{cluster: startCluster(b, engine{"postgres", 3}, timers)}
	db, err := pgx.Connect(ctx, l.database)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close(ctx) })
	l.db = db
	return l
}

// micros reads one time in microseconds; ok is false while there is none.
func (l *lossy) micros(query string, args ...any) (at int64, ok bool) {
	l.b.Helper()
	err := l.db.QueryRow(context.Background(), `SELECT COALESCE((`+query+`), 0)`, args...).Scan(&at)
	if err != nil {
		l.b.Fatal(err)
	}
	return at, at != 0
}

// await polls for a time until there is one.
func (l *lossy) await(what, query string, args ...any) (at int64) {
	l.b.Helper()
	gridtest.Eventually(l.b, time.Minute, what, func() error {
		var ok bool
		if at, ok = l.micros(query, args...); !ok {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	return at
}

// BenchmarkLostHub kills one of three hubs and measures how long after that its
// agent is heard again, in heartbeats.
func BenchmarkLostHub(b *testing.B) {
	timers := calm()
	timers.Heartbeat, timers.Timeout = time.Second, 30*time.Second
	l := startLossy(b, timers)
	urls := l.URLs()
	var agents []*gridtest.Agent
	for i := range l.Hubs {
		// Each agent's first hub is another one, and it comes back to that.
		a := l.StartAgent(fmt.Sprintf("a%d", i), urls[i]+","+urls[(i+1)%3]+","+urls[(i+2)%3], "--warm", "0")
		agents = append(agents, a)
		// With a lease its heartbeats show in the database.
		l.Submit(l.Shell("exec sleep 1000"))
	}
	l.await("a job on every node", `SELECT count(*) FROM jobs WHERE state = 'running' HAVING count(*) = 3`)
	for b.Loop() {
		var unheard []time.Duration
		for i := range losses {
			a, h := agents[i%3], l.Hubs[i%3]
			// Killed between two heartbeats, at a moment that moves on.
			time.Sleep(timers.Heartbeat * time.Duration(i) / losses)
			killed := time.Now().UnixMicro()
			h.Kill()
			next := l.await("a heartbeat", `SELECT last_heard FROM nodes WHERE id = $1 AND last_heard > $2`, string(a.Node), time.Now().UnixMicro())
			unheard = append(unheard, time.Duration(next-killed)*time.Microsecond)
			h.Start()
			a.Kill() // so that it begins with its first hub again
			a.Start()
			l.await("the agent", `SELECT last_heard FROM nodes WHERE id = $1 AND last_heard > $2`, string(a.Node), time.Now().UnixMicro())
		}
		s := spreadOf(unheard)
		b.ReportMetric(float64(s.P50)/float64(timers.Heartbeat), "heartbeats-p50")
		b.ReportMetric(float64(s.Max)/float64(timers.Heartbeat), "heartbeats-max")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkLostNode kills a node that runs a job and measures, from what the store
// says, how long after the lease's expiry the job is queued, in ticks, and how long
// after that it runs elsewhere.
func BenchmarkLostNode(b *testing.B) {
	timers := gridtest.Timers{Heartbeat: 200 * time.Millisecond, Timeout: 3 * time.Second, Offer: 2 * time.Second, Tick: 100 * time.Millisecond}
	l := startLossy(b, timers)
	byNode := make(map[offpeak.NodeID]*gridtest.Agent)
	for i := range 4 {
		a := l.StartAgent(fmt.Sprintf("a%d", i), "")
		byNode[a.Node] = a
	}
	for b.Loop() {
		var queued, started []time.Duration
		for range losses {
			job := l.Submit(l.Shell("exec sleep 1000"))
			job = l.WaitState(job.ID, 20*time.Second, offpeak.JobRunning)
			a := byNode[job.Node]
			a.KillNode()
			const event = `SELECT min(at) FROM events WHERE job = $1 AND type = $2 AND attempt = $3`
			again := l.await("the job to be queued", event, string(job.ID), "job.queued", int64(job.Attempt))
			expired, _ := l.micros(`SELECT expires_at FROM leases WHERE id = $1`, string(job.Lease))
			runs := l.await("the job to run elsewhere", event, string(job.ID), "job.running", int64(job.Attempt)+1)
			queued = append(queued, time.Duration(again-expired)*time.Microsecond)
			started = append(started, time.Duration(runs-again)*time.Microsecond)
			if _, err := l.Client.Cancel(context.Background(), gridtest.NewOp(), job.ID); err != nil {
				b.Fatal(err)
			}
			l.WaitState(job.ID, 20*time.Second, offpeak.JobCancelled)
			a.Start()
			l.await("the node", `SELECT last_heard FROM nodes WHERE id = $1 AND liveness = 'online' AND last_heard > $2`, string(a.Node), time.Now().UnixMicro())
		}
		q, s := spreadOf(queued), spreadOf(started)
		b.ReportMetric(float64(q.P50)/float64(timers.Tick), "ticks-to-queued-p50")
		b.ReportMetric(float64(q.Max)/float64(timers.Tick), "ticks-to-queued-max")
		b.ReportMetric(float64(s.P50)/1e6, "ms-to-start-p50")
		b.ReportMetric(float64(s.Max)/1e6, "ms-to-start-max")
	}
	b.ReportMetric(0, "ns/op")
}
