package storetest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// Clock is a store's clock that a test moves by hand.
type Clock struct {
	mu  sync.Mutex
	now time.Time // guarded by mu
}

// NewClock starts at a fixed moment.
func NewClock() *Clock { return &Clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

// Now is the clock's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// grid is a store with what a test needs to talk to it.
type grid struct {
	testing.TB
	store.Store
	clock   *Clock
	account offpeak.AccountID
	n       atomic.Int64
	seqs    sync.Map // node → *atomic.Int64
}

// timeout is what the tests' heartbeats grant.
const timeout = time.Minute

func newGrid(t testing.TB, s store.Store, clock *Clock) *grid {
	g := &grid{TB: t, Store: s, clock: clock, account: "acct_1"}
	made, err := s.Bootstrap(context.Background(), offpeak.Account{ID: g.account, Name: "lab"},
		offpeak.Member{ID: "member_1", Name: "root", Role: offpeak.RoleAdmin}, g.token("tok_admin", offpeak.RoleAdmin))
	if err != nil || !made {
		t.Fatalf("Bootstrap = %v, %v; want true, nil", made, err)
	}
	g.deposit(g.account, 1_000_000*offpeak.Credit)
	return g
}

func (g *grid) id(prefix string) string { return fmt.Sprintf("%s_%06d", prefix, g.n.Add(1)) }

func (g *grid) token(id offpeak.TokenID, role offpeak.Role) offpeak.Token {
	sum := sha256.Sum256([]byte(id))
	return offpeak.Token{ID: id, Account: g.account, Role: role, SecretHash: sum[:], UsesLeft: -1, ExpiresAt: g.clock.Now().Add(24 * time.Hour)}
}

func (g *grid) op() store.Op {
	return store.Op{ID: offpeak.OpID(g.id("op")), Actor: offpeak.Actor{Account: g.account, Member: "member_1"}, Digest: [32]byte{1}}
}

func newLease() offpeak.LeaseID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return offpeak.LeaseID("lease_" + hex.EncodeToString(b[:]))
}

func hashOf(s string) offpeak.Hash {
	sum := sha256.Sum256([]byte(s))
	return offpeak.Hash(hex.EncodeToString(sum[:]))
}

func spec() offpeak.Spec {
	return offpeak.Spec{
		Name:         "noop",
		Task:         offpeak.Task{Driver: "process", Command: []string{"true"}},
		Requirements: offpeak.Requirements{CPU: 1000, Memory: offpeak.GiB, Disk: offpeak.GiB},
	}.WithDefaults()
}

func (g *grid) submit(sp offpeak.Spec) offpeak.Job {
	g.Helper()
	j, err := g.Submit(context.Background(), g.op(), store.NewJob{ID: offpeak.JobID(g.id("job")), Account: g.account, Spec: sp})
	if err != nil {
		g.Fatalf("Submit: %v", err)
	}
	return j
}

func inventory(gpus int) offpeak.Inventory {
	inv := offpeak.Inventory{Hostname: "h", OS: "linux", Arch: "amd64", CPU: 4000, Memory: 8 * offpeak.GiB, Disk: 100 * offpeak.GiB, Drivers: []string{"process"}, Version: "test"}
	for i := range gpus {
		inv.Devices = append(inv.Devices, offpeak.Device{ID: offpeak.DeviceID(fmt.Sprintf("GPU-%d", i)), Vendor: "nvidia", Model: "RTX", VRAM: 24 * offpeak.GiB})
	}
	return inv
}

// inc is the incarnation of the tests' agents.
const inc = offpeak.Incarnation("inc-1")

// enrol makes a node that is online.
func (g *grid) enrol(gpus int) offpeak.Node {
	g.Helper()
	return g.enrolWith(inventory(gpus))
}

func (g *grid) enrolWith(inv offpeak.Inventory) offpeak.Node {
	g.Helper()
	ctx := context.Background()
	join, err := g.CreateToken(ctx, g.op(), g.token(offpeak.TokenID(g.id("join")), offpeak.RoleJoin))
	if err != nil {
		g.Fatalf("CreateToken: %v", err)
	}
	id := offpeak.NodeID(g.id("node"))
	n, err := g.Enrol(ctx, join.ID, store.NewNode{ID: id, Name: string(id), Key: []byte(id), Inventory: inv}, offpeak.Actor{})
	if err != nil {
		g.Fatalf("Enrol: %v", err)
	}
	if n, err = g.OpenSession(ctx, store.NewSession{Node: n.ID, Incarnation: inc, Generation: 0, Token: g.token(offpeak.TokenID(g.id("sess")), offpeak.RoleNode)}); err != nil {
		g.Fatalf("OpenSession: %v", err)
	}
	g.beat(n.ID)
	return n
}

func (g *grid) seq(node offpeak.NodeID) int64 {
	v, _ := g.seqs.LoadOrStore(node, new(atomic.Int64))
	return v.(*atomic.Int64).Add(1)
}

// beat sends a heartbeat that holds leases.
func (g *grid) beat(node offpeak.NodeID, held ...store.Held) store.BeatResult {
	g.Helper()
	return g.beats(store.Beat{Node: node, Incarnation: inc, Seq: g.seq(node), Availability: offpeak.NodeAvailable, Held: held, Grant: timeout})
}

func (g *grid) beats(b store.Beat) store.BeatResult {
	g.Helper()
	out, err := g.Beat(context.Background(), []store.Beat{b})
	if err != nil || len(out) != 1 || out[0].Err != nil {
		g.Fatalf("Beat = %+v, %v", out, err)
	}
	return out[0]
}

func (g *grid) ask(j offpeak.JobID, attempt offpeak.Attempt, node offpeak.NodeID, devices ...offpeak.DeviceID) store.Claim {
	return store.Claim{
		Job: j, Attempt: attempt, Node: node, Lease: newLease(), Price: 400_000, OfferFor: 15 * time.Second,
		Resources: offpeak.Resources{CPU: 1000, Memory: offpeak.GiB, Disk: offpeak.GiB, Devices: devices},
	}
}

// claim claims and fails the test if the claim is lost.
func (g *grid) claim(j offpeak.JobID, attempt offpeak.Attempt, node offpeak.NodeID, devices ...offpeak.DeviceID) offpeak.Lease {
	g.Helper()
	out, err := g.Claim(context.Background(), []store.Claim{g.ask(j, attempt, node, devices...)})
	if err != nil || out[0].Err != nil {
		g.Fatalf("Claim = %+v, %v", out, err)
	}
	return *out[0].Lease
}

func (g *grid) reportOf(l offpeak.Lease, kind store.ReportKind) store.Report {
	return store.Report{Node: l.Node, Lease: l.ID, Attempt: l.Attempt, Incarnation: inc, Seq: g.seq(l.Node), Kind: kind}
}

func (g *grid) report(r store.Report) store.Change {
	g.Helper()
	c, err := g.Report(context.Background(), r)
	if err != nil {
		g.Fatalf("Report %s: %v", r.Kind, err)
	}
	return c
}

func (g *grid) accept(l offpeak.Lease) store.Change {
	g.Helper()
	return g.report(g.reportOf(l, store.ReportAccepted))
}

// ended ends a lease whose process was started.
func (g *grid) ended(l offpeak.Lease, reason offpeak.EndReason, ran offpeak.Millis) store.Change {
	g.Helper()
	r := g.reportOf(l, store.ReportEnded)
	r.Reason, r.Started, r.Ran = reason, true, ran
	return g.report(r)
}

func (g *grid) job(id offpeak.JobID) offpeak.Job {
	g.Helper()
	j, err := g.Job(context.Background(), "", id)
	if err != nil {
		g.Fatalf("Job: %v", err)
	}
	return j
}

func (g *grid) node(id offpeak.NodeID) offpeak.Node {
	g.Helper()
	n, err := g.Node(context.Background(), "", id)
	if err != nil {
		g.Fatalf("Node: %v", err)
	}
	return n
}

// lease finds a job's lease by id.
func (g *grid) lease(job offpeak.JobID, id offpeak.LeaseID) offpeak.Lease {
	g.Helper()
	all, err := g.Attempts(context.Background(), "", job)
	if err != nil {
		g.Fatalf("Attempts: %v", err)
	}
	for _, l := range all {
		if l.ID == id {
			return l
		}
	}
	g.Fatalf("Attempts of %s lack lease %s", job, id)
	return offpeak.Lease{}
}

// tree stores a tree of one chunk for an account.
func (g *grid) tree(account offpeak.AccountID, name string) (tree, chunk offpeak.Hash) {
	g.Helper()
	ctx := context.Background()
	tree, chunk = hashOf("tree "+name), hashOf("chunk "+name)
	for _, h := range []offpeak.Hash{tree, chunk} {
		if err := g.AddBlob(ctx, account, h, 10); err != nil {
			g.Fatalf("AddBlob: %v", err)
		}
	}
	if err := g.AddTree(ctx, account, tree, []offpeak.Hash{chunk}); err != nil {
		g.Fatalf("AddTree: %v", err)
	}
	return tree, chunk
}

// other makes a second account.
func (g *grid) other() offpeak.AccountID {
	g.Helper()
	id := offpeak.AccountID(g.id("acct"))
	if _, err := g.CreateAccount(context.Background(), g.op(), offpeak.Account{ID: id, Name: string(id)}); err != nil {
		g.Fatalf("CreateAccount: %v", err)
	}
	g.deposit(id, 1_000_000*offpeak.Credit)
	return id
}

// sound fails the test if an invariant is broken.
func (g *grid) sound() {
	g.Helper()
	bad, err := g.Check(context.Background())
	if err != nil {
		g.Fatalf("Check: %v", err)
	}
	for _, v := range bad {
		g.Errorf("Check: %s %s %s", v.Invariant, v.Object, v.Detail)
	}
}
