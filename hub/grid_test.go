package hub_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/blob"
	"offpeak/hub"
	"offpeak/store"
	"offpeak/store/postgres"
	"offpeak/store/sqlite"
	"offpeak/wire"
)

// grid is a hub on a real store, with what a test needs to play everyone else.
type grid struct {
	t      testing.TB
	cfg    hub.Config
	folder string
	// db is the PostgreSQL database that several hubs share, each a grid of its
	// own here; "" where the one hub has a file.
	db      string
	store   kept
	blobs   *blob.Local
	hub     *hub.Hub
	account offpeak.AccountID
	admin   offpeak.Token
	ops     atomic.Int64
	stop    func()
	// wrap and now put faults between the hub and its store, and between both
	// and their clock.
	wrap func(store.Store) store.Store
	now  func() time.Time
	disk func() float64
	log  *slog.Logger
}

// kept is a store that counts what it writes.
type kept interface {
	store.Store
	store.Counted
}

func newGrid(t testing.TB, cfg hub.Config) *grid {
	t.Helper()
	return newGridWith(t, cfg, nil, nil)
}

func newGridWith(t testing.TB, cfg hub.Config, wrap func(store.Store) store.Store, now func() time.Time) *grid {
	t.Helper()
	g := &grid{t: t, cfg: cfg, wrap: wrap, now: now}
	g.begin()
	return g
}

// begin makes the hub of a grid of which the outside world is set.
func (g *grid) begin() {
	g.t.Helper()
	if g.folder == "" {
		g.folder = g.t.TempDir()
	}
	if g.wrap == nil {
		g.wrap = func(s store.Store) store.Store { return s }
	}
	if g.now == nil {
		g.now = time.Now
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.cfg.Hubs = []string{"http://127.0.0.1:7070"}
	g.start()
	g.t.Cleanup(func() { g.stop() })
	if g.account != "" {
		return // another hub has made it
	}
	secret, err := g.hub.Access().Bootstrap(g.t.Context())
	must(g.t, err)
	g.admin, err = g.hub.Access().Authenticate(g.t.Context(), secret)
	must(g.t, err)
	g.account = g.admin.Account
}

// start opens store and hub and runs them until stop.
func (g *grid) start() {
	g.t.Helper()
	id, err := hub.NewID(time.Now(), rand.Reader)
	must(g.t, err)
	s, err := g.open(id)
	must(g.t, err)
	blobs, err := blob.OpenLocal(filepath.Join(g.folder, "blobs"))
	must(g.t, err)
	g.store, g.blobs = s, blobs
	g.hub = hub.New(g.cfg, hub.Env{
		ID: id, Store: g.wrap(s), Blobs: blobs, Log: g.log, Now: g.now, Disk: g.disk,
		Rand: mathrand.New(mathrand.NewPCG(1, 2)), Random: rand.Reader,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	h := g.hub
	go func() { done <- h.Run(ctx) }()
	stopped := false
	g.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			g.t.Errorf("hub ended with: %v", err)
		}
		if err := s.Close(); err != nil {
			g.t.Errorf("close store: %v", err)
		}
		_ = blobs.Close()
	}
	<-h.Ready()
}

func (g *grid) open(id offpeak.HubID) (kept, error) {
	if g.db != "" {
		return postgres.Open(context.Background(), g.db, postgres.Options{Hub: id})
	}
	return sqlite.Open(context.Background(), filepath.Join(g.folder, "offpeak.db"), sqlite.Options{Now: g.now})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (g *grid) op() store.Op {
	return store.Op{
		ID:    offpeak.OpID(fmt.Sprintf("op-%d", g.ops.Add(1))),
		Actor: offpeak.Actor{Account: g.account, Member: g.admin.Member, Token: g.admin.ID, Role: offpeak.RoleAdmin},
	}
}

func small() offpeak.Spec {
	return offpeak.Spec{Task: offpeak.Task{Driver: "process", Command: []string{"true"}}}
}

func (g *grid) submit(spec offpeak.Spec) offpeak.JobID {
	g.t.Helper()
	j, err := g.hub.Submit(g.t.Context(), g.op(), g.account, spec)
	must(g.t, err)
	return j.ID
}

func (g *grid) job(id offpeak.JobID) offpeak.Job {
	g.t.Helper()
	j, err := g.store.Job(g.t.Context(), "", id)
	must(g.t, err)
	return j
}

func (g *grid) node(id offpeak.NodeID) offpeak.Node {
	g.t.Helper()
	n, err := g.store.Node(g.t.Context(), "", id)
	must(g.t, err)
	return n
}

// sound fails the test where an invariant is broken.
func (g *grid) sound() {
	g.t.Helper()
	c, err := g.hub.Check(g.t.Context(), false)
	must(g.t, err)
	for _, v := range c.Violations {
		g.t.Errorf("%s broken: %s: %s", v.Invariant, v.Object, v.Detail)
	}
}

// agent is a node played by the test.
type agent struct {
	g          *grid
	id         offpeak.NodeID
	key        ed25519.PrivateKey
	inc        offpeak.Incarnation
	generation int64
	session    string
	seq        int64
	// ack is when the last acknowledged heartbeat was sent.
	ack time.Time
}

// join enrols a node that fits one small job.
func (g *grid) join(name string) *agent {
	g.t.Helper()
	return g.joinWith(name, 1000)
}

func (g *grid) joinWith(name string, cpu int64) *agent {
	g.t.Helper()
	ctx := g.t.Context()
	made, err := g.hub.Access().CreateToken(ctx, g.op(), wire.NewToken{Role: offpeak.RoleJoin})
	must(g.t, err)
	text, err := wire.DecodeJoinToken(made.Secret)
	must(g.t, err)
	join, err := g.hub.Access().Authenticate(ctx, text.Token)
	must(g.t, err)
	public, key, err := ed25519.GenerateKey(rand.Reader)
	must(g.t, err)
	in, err := g.hub.Enrol(ctx, join, wire.Enrol{
		Name: name, Key: public, Proof: ed25519.Sign(key, wire.EnrolMessage(join.ID)),
		Inventory: offpeak.Inventory{
			Hostname: name, OS: "linux", Arch: "amd64", CPU: cpu, Memory: 8 * offpeak.GiB, Disk: 64 * offpeak.GiB,
			Drivers: []string{"process", "wasm"}, Shared: []string{"process", "wasm"},
		},
	}, "test")
	must(g.t, err)
	a := &agent{g: g, id: in.Node, key: key}
	a.open(name + "-1")
	a.beat()
	return a
}

// open opens a session as an agent process that has just started.
func (a *agent) open(inc string) {
	a.g.t.Helper()
	must(a.g.t, a.tryOpen(inc))
}

func (a *agent) tryOpen(inc string) error {
	in := wire.OpenSession{
		Node: a.id, Incarnation: offpeak.Incarnation(inc), Previous: a.inc, Generation: a.generation,
		Challenge: a.g.hub.Access().Challenge().Challenge,
	}
	in.Signature = ed25519.Sign(a.key, wire.SessionMessage(in.Challenge, in.Node, in.Incarnation, in.Generation))
	s, err := a.g.hub.OpenSession(a.g.t.Context(), in, "test")
	if err != nil {
		return err
	}
	if in.Incarnation != a.inc {
		a.seq = 0
	}
	a.inc, a.generation, a.session = in.Incarnation, s.Generation, s.Token
	return nil
}

func (a *agent) heartbeat(held ...offpeak.LeaseID) wire.Heartbeat {
	a.seq++
	in := wire.Heartbeat{Incarnation: a.inc, Seq: a.seq, Availability: offpeak.NodeAvailable}
	if !a.ack.IsZero() {
		in.SinceAck = offpeak.Duration(time.Since(a.ack))
	}
	for _, l := range held {
		in.Held = append(in.Held, wire.HeldLease{Lease: l})
	}
	return in
}

// beat sends a heartbeat and returns the answer.
func (a *agent) beat(held ...offpeak.LeaseID) wire.Sync {
	a.g.t.Helper()
	sent := time.Now()
	s, err := a.g.hub.Heartbeat(a.g.t.Context(), a.id, a.heartbeat(held...))
	must(a.g.t, err)
	a.ack = sent
	return s
}

// keep beats at the interval for a while.
func (a *agent) keep(d time.Duration, held ...offpeak.LeaseID) {
	a.g.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		s := a.beat(held...)
		time.Sleep(s.Interval.Std())
	}
}

// offered waits until the node is offered a lease.
func (a *agent) offered() wire.Desired {
	a.g.t.Helper()
	changed, stop := a.g.hub.Watch(a.id)
	defer stop()
	late := time.After(30 * time.Second)
	for {
		s, err := a.g.hub.Desired(a.g.t.Context(), a.id)
		must(a.g.t, err)
		for _, d := range s.Leases {
			if d.State == offpeak.LeaseOffered {
				return d
			}
		}
		select {
		case <-changed:
		case <-late:
			a.g.t.Fatalf("node %s was offered nothing", a.id)
		}
	}
}

func (a *agent) report(d wire.Desired, kind string, change func(*wire.Report)) (wire.ReportResult, error) {
	a.seq++
	r := wire.Report{Lease: d.Lease, Attempt: d.Attempt, Incarnation: a.inc, Seq: a.seq, Kind: kind}
	if change != nil {
		change(&r)
	}
	res := a.g.hub.Report(a.g.t.Context(), a.id, []wire.Report{r})[0]
	if res.Problem != nil {
		return res, res.Problem
	}
	return res, nil
}

func (a *agent) accept(d wire.Desired) {
	a.g.t.Helper()
	_, err := a.report(d, "accepted", nil)
	must(a.g.t, err)
}

func (a *agent) run(d wire.Desired) {
	a.g.t.Helper()
	_, err := a.report(d, "running", nil)
	must(a.g.t, err)
}

func (a *agent) end(d wire.Desired, reason offpeak.EndReason) {
	a.g.t.Helper()
	_, err := a.report(d, "ended", func(r *wire.Report) {
		r.Reason, r.Started = reason, true
		if reason == offpeak.EndCompleted {
			zero := 0
			r.ExitCode = &zero
		}
	})
	must(a.g.t, err)
}

// eventually waits until something holds.
func (g *grid) eventually(what string, holds func() bool) {
	g.t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(end) {
			g.t.Fatalf("never happened: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
