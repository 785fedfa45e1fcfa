package history_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/history"
	"offpeak/store"
	"offpeak/store/sqlite"
	"offpeak/store/storetest"
)

// A store that keeps its promises, under three hubs whose calls go wrong at
// random, has a right history, and ten thousand calls of it are checked in seconds.
func TestRightHistory(t *testing.T) {
	g := newGrid(t, func(s store.Store) store.Store { return s })
	g.run(10_000)
	began := time.Now()
	for _, v := range g.recorder.Check(time.Minute) {
		t.Error(v)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("checking %d calls took %s", g.recorder.Len(), took)
	}
	t.Logf("%d calls, %d of them lost, checked in %s", g.recorder.Len(), g.lost.Load(), time.Since(began))
	if g.lost.Load() < 100 || g.claimed.Load() < 500 || g.expired.Load() < 20 {
		t.Errorf("too little happened: %d lost, %d claimed, %d expired", g.lost.Load(), g.claimed.Load(), g.expired.Load())
	}
}

// A store that gives nodes more than they have is found out.
func TestOverCommittedNode(t *testing.T) {
	g := newGrid(t, func(s store.Store) store.Store { return &double{Store: s, lost: "enough free"} })
	g.run(1000)
	g.wants("node ")
}

// A store that gives one attempt to two hubs is found out.
func TestDoubleClaim(t *testing.T) {
	g := newGrid(t, func(s store.Store) store.Store { return &double{Store: s, lost: "it is "} })
	g.run(1000)
	g.wants("job ")
}

// double is a store that answers some claims that lost, for a reason, as if they
// had won.
type double struct {
	store.Store
	lost string
	n    atomic.Int64
}

func (s *double) Claim(ctx context.Context, claims []store.Claim) ([]store.Claimed, error) {
	got, err := s.Store.Claim(ctx, claims)
	for i := range got {
		if errors.Is(got[i].Err, offpeak.ErrConflict) && strings.Contains(got[i].Err.Error(), s.lost) && s.n.Add(1)%20 == 1 {
			c := claims[i]
			got[i] = store.Claimed{Change: store.Change{Lease: &offpeak.Lease{ID: c.Lease, Job: c.Job, Node: c.Node, Attempt: c.Attempt, State: offpeak.LeaseOffered}}}
		}
	}
	return got, err
}

// flaky is a hub's way to the store: some calls never arrive, and some answers.
type flaky struct {
	store.Store
	grid *grid
}

func lose[T any](f *flaky, verb func() (T, error)) (T, error) {
	var none T
	switch mathrand.IntN(40) {
	case 0:
		f.grid.lost.Add(1)
		return none, offpeak.ErrUnavailable
	case 1:
		f.grid.lost.Add(1)
		_, _ = verb()
		return none, offpeak.ErrUnavailable
	}
	return verb()
}

func (f *flaky) Claim(ctx context.Context, claims []store.Claim) ([]store.Claimed, error) {
	return lose(f, func() ([]store.Claimed, error) { return f.Store.Claim(ctx, claims) })
}

func (f *flaky) Report(ctx context.Context, r store.Report) (store.Change, error) {
	return lose(f, func() (store.Change, error) { return f.Store.Report(ctx, r) })
}

func (f *flaky) Beat(ctx context.Context, beats []store.Beat) ([]store.BeatResult, error) {
	return lose(f, func() ([]store.BeatResult, error) { return f.Store.Beat(ctx, beats) })
}

func (f *flaky) Expire(ctx context.Context, asOf time.Time, limit int) ([]store.Change, error) {
	return lose(f, func() ([]store.Change, error) { return f.Store.Expire(ctx, asOf, limit) })
}

func (f *flaky) Cancel(ctx context.Context, op store.Op, account offpeak.AccountID, job offpeak.JobID, detail string) (store.Change, error) {
	return lose(f, func() (store.Change, error) { return f.Store.Cancel(ctx, op, account, job, detail) })
}

const (
	account = offpeak.AccountID("acct_1")
	gpu     = offpeak.DeviceID("GPU-0")
)

// grid is three hubs over one store, their agents and the jobs that wait.
type grid struct {
	t        *testing.T
	clock    *storetest.Clock
	recorder *history.Recorder
	hubs     []store.Store
	nodes    []offpeak.NodeID

	n                      atomic.Int64
	lost, claimed, expired atomic.Int64

	mu   sync.Mutex // guards jobs
	jobs map[offpeak.JobID]offpeak.Attempt
}

func newGrid(t *testing.T, spoil func(store.Store) store.Store) *grid {
	t.Helper()
	g := &grid{t: t, clock: storetest.NewClock(), recorder: history.New(time.Now), jobs: map[offpeak.JobID]offpeak.Attempt{}}

	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Now: g.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for range 3 {
		g.hubs = append(g.hubs, g.recorder.Watch(&flaky{spoil(s), g}))
	}
	sum := sha256.Sum256(nil)
	token := func(id offpeak.TokenID, role offpeak.Role) offpeak.Token {
		return offpeak.Token{ID: id, Account: account, Role: role, SecretHash: sum[:], UsesLeft: -1}
	}
	g.must(s.Bootstrap(t.Context(), offpeak.Account{ID: account, Name: "lab"}, offpeak.Member{ID: "m", Name: "m", Role: offpeak.RoleAdmin}, token("admin", offpeak.RoleAdmin)))
	g.must(s.CreateToken(t.Context(), g.op(), token("join", offpeak.RoleJoin)))
	for range 8 {
		id := offpeak.NodeID(g.id("node"))
		g.must(g.hubs[0].Enrol(t.Context(), "join", store.NewNode{ID: id, Name: string(id), Key: []byte(id), Inventory: offpeak.Inventory{
			CPU: 4000, Memory: offpeak.GiB, Disk: offpeak.GiB, Devices: []offpeak.Device{{ID: gpu}}}}, offpeak.Actor{}))
		g.must(s.OpenSession(t.Context(), store.NewSession{Node: id, Incarnation: "i", Token: token(offpeak.TokenID(g.id("sess")), offpeak.RoleNode)}))
		g.nodes = append(g.nodes, id)
	}
	return g
}

func (g *grid) must(_ any, err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *grid) id(prefix string) string { return fmt.Sprintf("%s_%06d", prefix, g.n.Add(1)) }

func (g *grid) op() store.Op {
	return store.Op{ID: offpeak.OpID(g.id("op")), Actor: offpeak.Actor{Account: account}}
}

// hub is any of the hubs.
func (g *grid) hub() store.Store { return g.hubs[mathrand.IntN(len(g.hubs))] }

// wants fails the test unless something that begins so is wrong.
func (g *grid) wants(prefix string) {
	g.t.Helper()
	found := g.recorder.Check(10 * time.Second)
	for _, v := range found {
		if strings.HasPrefix(v.Of, prefix) && strings.Contains(v.Detail, "no order explains it") {
			return
		}
	}
	g.t.Errorf("nothing is wrong with any %sof %d calls: %v", prefix, g.recorder.Len(), found)
}

// run has agents, matchers and monitors at work until so many calls were made.
func (g *grid) run(calls int) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.t.Context()))
	var group sync.WaitGroup
	loop := func(turn func()) {
		group.Go(func() {
			for ctx.Err() == nil {
				turn()
				if g.recorder.Len() >= calls {
					cancel()
				}
			}
		})
	}
	for _, id := range g.nodes {
		a := &agent{grid: g, node: id, told: map[offpeak.LeaseID]int{}}
		loop(a.turn)
	}
	for i := range g.hubs {
		loop(func() {
			for range 10 {
				g.match(g.hubs[i])
			}
			g.monitor(g.hubs[i])
		})
	}
	group.Wait()
	cancel()
}

// match has a hub claim, for jobs that others claim as well.
func (g *grid) match(hub store.Store) {
	ctx := context.Background()
	for len(g.waiting(24)) < 24 {
		j, err := hub.Submit(ctx, g.op(), store.NewJob{ID: offpeak.JobID(g.id("job")), Account: account, Spec: offpeak.Spec{Task: offpeak.Task{Driver: "process", Command: []string{"true"}}}.WithDefaults()})
		if err != nil {
			g.t.Error(err)
			return
		}
		g.learn(j)
	}
	var claims []store.Claim
	for _, id := range g.waiting(3) {
		c := store.Claim{Job: id, Attempt: g.attempt(id) + 1, Node: g.nodes[mathrand.IntN(len(g.nodes))], Lease: offpeak.LeaseID("lease_" + rand.Text()),
			Resources: offpeak.Resources{CPU: 1000 * mathrand.Int64N(4)}, OfferFor: 4 * time.Second}
		switch mathrand.IntN(4) {
		case 0:
			c.Resources.Devices = []offpeak.DeviceID{gpu}
		case 1:
			c.Taken = "i"
		}
		claims = append(claims, c)
	}
	got, _ := hub.Claim(ctx, claims)
	for i, c := range got {
		if c.Err == nil {
			g.claimed.Add(1)
		}
		if j, err := hub.Job(ctx, "", claims[i].Job); err == nil {
			g.learn(j)
		}
	}
}

// monitor lets time pass and has a hub do what falls due.
func (g *grid) monitor(hub store.Store) {
	ctx := context.Background()
	g.clock.Advance(2 * time.Second)
	changes, _ := hub.Expire(ctx, g.clock.Now(), 10)
	g.expired.Add(int64(len(changes)))
	for _, c := range changes {
		g.learn(c.Job)
	}
	if waiting := g.waiting(1); len(waiting) > 0 && mathrand.IntN(10) == 0 {
		if c, err := hub.Cancel(ctx, g.op(), account, waiting[0], ""); err == nil {
			g.learn(c.Job)
		}
	}
}

// learn notes what became of a job. A lost answer leaves it as it was: its claim
// is tried again.
func (g *grid) learn(j offpeak.Job) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if j.State.Terminal() {
		delete(g.jobs, j.ID)
		return
	}
	g.jobs[j.ID] = max(g.jobs[j.ID], j.Attempt)
}

func (g *grid) attempt(id offpeak.JobID) offpeak.Attempt {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.jobs[id]
}

// waiting are at most n jobs that are not known to be over.
func (g *grid) waiting(n int) (out []offpeak.JobID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range g.jobs {
		if len(out) == n {
			break
		}
		out = append(out, id)
	}
	return out
}

// agent is a node's, which speaks to any hub and says again what was not heard.
type agent struct {
	*grid
	node offpeak.NodeID
	seq  int64
	told map[offpeak.LeaseID]int // how far each lease has come
	live []offpeak.Lease
}

func (a *agent) turn() {
	ctx := context.Background()
	if mathrand.IntN(4) == 0 {
		if _, held, err := a.hub().Assignments(ctx, a.node); err == nil {
			a.live = nil
			for _, h := range held {
				a.live = append(a.live, h.Lease)
			}
		}
	}
	beat := store.Beat{Node: a.node, Incarnation: "i", Seq: a.next(), Availability: offpeak.NodeAvailable, Grant: 20 * time.Second}
	for _, l := range a.live {
		// Some are dropped and some not spoken of, and run out.
		if a.told[l.ID] > 0 && mathrand.IntN(50) > 0 {
			beat.Held = append(beat.Held, store.Held{Lease: l.ID})
		}
	}
	if got, err := a.hub().Beat(ctx, []store.Beat{beat}); err == nil && got[0].Err == nil {
		a.live = got[0].Live
		for _, c := range got[0].Changes {
			a.learn(c.Job)
		}
	}
	for _, l := range a.live {
		if mathrand.IntN(3) > 0 {
			a.report(ctx, l)
		}
	}
}

func (a *agent) next() int64 {
	a.seq++
	return a.seq
}

func (a *agent) report(ctx context.Context, l offpeak.Lease) {
	kinds := []store.ReportKind{store.ReportAccepted, store.ReportRunning, store.ReportFinishing, store.ReportEnded}
	at := a.told[l.ID]
	if at == len(kinds) {
		return
	}
	r := store.Report{Node: a.node, Lease: l.ID, Attempt: l.Attempt, Incarnation: "i", Seq: a.next(), Kind: kinds[at]}
	if r.Kind == store.ReportEnded {
		r.Started, r.Reason = true, offpeak.EndCompleted
		if mathrand.IntN(2) == 0 {
			r.Reason = offpeak.EndNodeError
		}
	}
	for {
		c, err := a.hub().Report(ctx, r)
		if errors.Is(err, offpeak.ErrUnavailable) {
			continue
		}
		if err == nil {
			a.told[l.ID] = at + 1
			a.learn(c.Job)
		}
		return
	}
}
