package api

import (
	"context"
	"crypto/ed25519"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/blob"
	"offpeak/hub"
	"offpeak/ledger/csvbatch"
	"offpeak/store/sqlite"
	"offpeak/wire"
)

// grid is a real hub on loopback: embedded store, blobs in a folder, its loops
// running, spoken to through wire.Direct as agents and people do.
type grid struct {
	t       testing.TB
	url     string
	handler http.Handler
	api     *api
	hub     *hub.Hub
	admin   *wire.Direct
	home    offpeak.AccountID
	ops     atomic.Int64
}

func newGrid(t testing.TB, opts Options) *grid {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir()
	db, err := sqlite.Open(ctx, filepath.Join(dir, "offpeak.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := blob.OpenLocal(filepath.Join(dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + ln.Addr().String()
	h := hub.New(hub.Config{
		Interval: 5 * time.Second, Timeout: time.Minute, Offer: 5 * time.Second, Tick: 50 * time.Millisecond,
		Hubs: []string{url}, Folder: dir, Version: "test",
	}, hub.Env{Store: db, Blobs: blobs, Payments: csvbatch.Adapter{Own: testKey(), Trusted: testKey().Public().(ed25519.PublicKey)}, Log: log, Now: time.Now, Rand: rand.New(rand.NewPCG(1, 2)), Random: crand.Reader})
	secret, err := h.Access().Bootstrap(ctx)
	if err != nil || secret == "" {
		t.Fatalf("bootstrap: %q, %v", secret, err)
	}
	streams, closeStreams := context.WithCancel(context.Background())
	opts.Log, opts.Version = log, "test"
	if opts.Streams == nil {
		opts.Streams = streams
	}
	handler, a := build(h, opts)
	server := Server(handler, log)
	ended := make(chan error, 2)
	go func() { ended <- h.Run(ctx) }()
	go func() { ended <- server.Serve(ln) }()
	t.Cleanup(func() {
		closeStreams()
		within, stop := context.WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		if err := server.Shutdown(within); err != nil {
			t.Errorf("shut down: %v", err)
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil && !errors.Is(err, http.ErrServerClosed) {
				t.Errorf("ended: %v", err)
			}
		}
		if err := db.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	g := &grid{t: t, url: url, handler: handler, api: a, hub: h}
	g.admin = g.as(secret)
	who, err := g.admin.Whoami(ctx)
	if err != nil {
		t.Fatal(err)
	}
	g.home = who.Account.ID
	return g
}

// as speaks to the hub with a token. Each has connections of its own, closed at
// the end of the test.
func (g *grid) as(token string) *wire.Direct {
	c := wire.Client("")
	g.t.Cleanup(c.CloseIdleConnections)
	return &wire.Direct{Client: c, Base: g.url, Token: token, Agent: "test"}
}

// op is a fresh operation id.
func (g *grid) op() offpeak.OpID { return offpeak.OpID(fmt.Sprintf("op-%d", g.ops.Add(1))) }

func (g *grid) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	g.t.Cleanup(cancel)
	return ctx
}

// account makes an account with one member of each role that people have.
func (g *grid) account(name string) (offpeak.AccountID, map[offpeak.Role]*wire.Direct) {
	g.t.Helper()
	acct, err := g.admin.CreateAccount(g.ctx(), g.op(), wire.NewAccount{Name: name})
	if err != nil {
		g.t.Fatal(err)
	}
	members := map[offpeak.Role]*wire.Direct{}
	for _, role := range []offpeak.Role{offpeak.RoleOwner, offpeak.RoleSubmitter, offpeak.RoleViewer} {
		in, err := g.admin.Invite(g.ctx(), g.op(), acct.ID, wire.NewMember{Name: name + "-" + string(role), Role: role})
		if err != nil {
			g.t.Fatal(err)
		}
		members[role] = g.as(in.Secret)
	}
	return acct.ID, members
}

// agent is a node played by a test.
type agent struct {
	*wire.Direct
	node        offpeak.NodeID
	key         ed25519.PrivateKey
	incarnation offpeak.Incarnation
	seq         int64
}

func inventory() offpeak.Inventory {
	return offpeak.Inventory{Hostname: "test", OS: "linux", Arch: "amd64", CPU: 4000, Memory: 8 * offpeak.GiB, Disk: 100 * offpeak.GiB, Drivers: []string{"process", "wasm"}, Shared: []string{"process", "wasm"}, Version: "test"}
}

// enrol makes a node of the account of by, with a session.
func (g *grid) enrol(by *wire.Direct, name string) *agent {
	g.t.Helper()
	created, err := by.CreateToken(g.ctx(), g.op(), wire.NewToken{Role: offpeak.RoleJoin})
	if err != nil {
		g.t.Fatal(err)
	}
	join, err := wire.DecodeJoinToken(created.Secret)
	if err != nil {
		g.t.Fatal(err)
	}
	pub, key, err := ed25519.GenerateKey(crand.Reader)
	if err != nil {
		g.t.Fatal(err)
	}
	in, err := g.as(join.Token).Enrol(g.ctx(), wire.Enrol{Name: name, Key: pub, Proof: ed25519.Sign(key, wire.EnrolMessage(created.Token.ID)), Inventory: inventory()})
	if err != nil {
		g.t.Fatal(err)
	}
	a := &agent{node: in.Node, key: key, incarnation: offpeak.Incarnation("inc-" + name)}
	public := g.as("")
	challenge, err := public.Challenge(g.ctx())
	if err != nil {
		g.t.Fatal(err)
	}
	session, err := public.OpenSession(g.ctx(), wire.OpenSession{
		Node: a.node, Incarnation: a.incarnation, Challenge: challenge.Challenge,
		Signature: ed25519.Sign(key, wire.SessionMessage(challenge.Challenge, a.node, a.incarnation, 0)),
	})
	if err != nil {
		g.t.Fatal(err)
	}
	a.Direct = g.as(session.Token)
	return a
}

// beat sends a heartbeat that holds leases.
func (a *agent) beat(t testing.TB, ctx context.Context, held ...wire.HeldLease) wire.Sync {
	t.Helper()
	a.seq++
	s, err := a.Heartbeat(ctx, wire.Heartbeat{Incarnation: a.incarnation, Seq: a.seq, Availability: offpeak.NodeAvailable, Held: held})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (a *agent) report(t testing.TB, ctx context.Context, r wire.Report) wire.ReportResult {
	t.Helper()
	a.seq++
	r.Incarnation, r.Seq = a.incarnation, a.seq
	results, err := a.Report(ctx, []wire.Report{r})
	if err != nil {
		t.Fatal(err)
	}
	if results[0].Problem != nil {
		t.Fatalf("report %s: %v", r.Kind, results[0].Problem)
	}
	return results[0]
}

func spec(args ...string) offpeak.Spec {
	return offpeak.Spec{Task: offpeak.Task{Driver: "process", Command: append([]string{"/bin/true"}, args...)}}
}
