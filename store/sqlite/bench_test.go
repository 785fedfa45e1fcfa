package sqlite_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/store/sqlite"
)

// grid is a store with an account and one large node.
type grid struct {
	*sqlite.Store
	n, seq atomic.Int64
}

const (
	account = offpeak.AccountID("acct_1")
	nodeID  = offpeak.NodeID("node_1")
	inc     = offpeak.Incarnation("inc-1")
)

func newGrid(t testing.TB, s *sqlite.Store) *grid {
	t.Helper()
	ctx := context.Background()
	g := &grid{Store: s}
	sum := sha256.Sum256(nil)
	token := func(id offpeak.TokenID, role offpeak.Role) offpeak.Token {
		return offpeak.Token{ID: id, Account: account, Role: role, SecretHash: sum[:], UsesLeft: -1}
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Bootstrap(ctx, offpeak.Account{ID: account, Name: "lab"}, offpeak.Member{ID: "m", Name: "m", Role: offpeak.RoleAdmin}, token("admin", offpeak.RoleAdmin)))
	must(s.CreateToken(ctx, g.op(), token("join", offpeak.RoleJoin)))
	must(s.Enrol(ctx, "join", store.NewNode{ID: nodeID, Name: "n", Key: []byte("k"), Inventory: offpeak.Inventory{CPU: 1 << 40, Memory: 1 << 50, Disk: 1 << 50}}, offpeak.Actor{}))
	must(s.OpenSession(ctx, store.NewSession{Node: nodeID, Incarnation: inc, Token: token("sess", offpeak.RoleNode)}))
	must(s.Beat(ctx, []store.Beat{{Node: nodeID, Incarnation: inc, Seq: g.seq.Add(1), Availability: offpeak.NodeAvailable, Grant: time.Hour}}))
	return g
}

func (g *grid) op() store.Op {
	return store.Op{ID: offpeak.OpID(fmt.Sprintf("op_%d", g.n.Add(1))), Actor: offpeak.Actor{Account: account}}
}

func spec() offpeak.Spec {
	return offpeak.Spec{Task: offpeak.Task{Driver: "process", Command: []string{"true"}}}.WithDefaults()
}

func (g *grid) submit() (offpeak.Job, error) {
	return g.Submit(context.Background(), g.op(), store.NewJob{ID: offpeak.JobID(fmt.Sprintf("job_%022d", g.n.Add(1))), Account: account, Spec: spec()})
}

func (g *grid) report(l *offpeak.Lease, kind store.ReportKind) error {
	r := store.Report{Node: nodeID, Lease: l.ID, Attempt: l.Attempt, Incarnation: inc, Seq: g.seq.Add(1), Kind: kind}
	if kind == store.ReportEnded {
		r.Reason, r.Started = offpeak.EndCompleted, true
	}
	_, err := g.Report(context.Background(), r)
	return err
}

// cycle takes one job from its submission to its end.
func (g *grid) cycle() error { return g.cycleSaying(func(offpeak.JobID, offpeak.JobState) {}) }

// cycleSaying says what was acknowledged.
func (g *grid) cycleSaying(say func(offpeak.JobID, offpeak.JobState)) error {
	ctx := context.Background()
	j, err := g.submit()
	if err != nil {
		return err
	}
	say(j.ID, offpeak.JobQueued)
	c, err := g.Claim(ctx, []store.Claim{{Job: j.ID, Attempt: 1, Node: nodeID, Lease: offpeak.LeaseID(fmt.Sprintf("lease_%032d", g.n.Add(1))), OfferFor: time.Minute,
		Resources: offpeak.Resources{CPU: 1000, Memory: offpeak.GiB, Disk: offpeak.GiB}}})
	if err != nil {
		return err
	}
	if c[0].Err != nil {
		return c[0].Err
	}
	if err := g.report(c[0].Lease, store.ReportAccepted); err != nil {
		return err
	}
	if err := g.report(c[0].Lease, store.ReportEnded); err != nil {
		return err
	}
	say(j.ID, offpeak.JobSucceeded)
	return nil
}

func bench(b *testing.B) *grid {
	b.Helper()
	return newGrid(b, open(b, filepath.Join(b.TempDir(), "store.db"), sqlite.Options{}))
}

func BenchmarkSubmit(b *testing.B) {
	g := bench(b)
	for b.Loop() {
		if _, err := g.submit(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCycle(b *testing.B) {
	g := bench(b)
	for b.Loop() {
		if err := g.cycle(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCycle64(b *testing.B) {
	g := bench(b)
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := g.cycle(); err != nil {
				b.Error(err)
				return
			}
		}
	})
	st := g.Stats()
	b.ReportMetric(float64(st.Verbs)/float64(st.Commits), "verbs/commit")
	b.ReportMetric(float64(st.Committing.Microseconds())/float64(st.Commits), "µs/commit")
}

// BenchmarkQueue reports what a hub that starts reads and keeps of 100,000 jobs.
func BenchmarkQueue(b *testing.B) {
	g := bench(b)
	const jobs = 100_000
	fill(b, g, jobs)
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		kept := make([]store.Queued, 0, jobs)
		for q, err := range g.Queue(context.Background()) {
			if err != nil {
				b.Fatal(err)
			}
			kept = append(kept, q)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if len(kept) != jobs {
			b.Fatalf("the queue has %d jobs, want %d", len(kept), jobs)
		}
		runtime.KeepAlive(kept)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/jobs, "B/job")
}

// fill submits jobs from many goroutines, so that they share commits.
func fill(t testing.TB, g *grid, jobs int) {
	t.Helper()
	errs := make(chan error, 64)
	for range 64 {
		go func() {
			for range jobs / 64 {
				if _, err := g.submit(); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range jobs % 64 {
		if _, err := g.submit(); err != nil {
			t.Fatal(err)
		}
	}
	for range 64 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}
