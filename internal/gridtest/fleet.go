package gridtest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"offpeak"
	"offpeak/wire"
)

// Virtual is a node that is a key and a session, with no machine behind it: it
// says what a test lets it say. One goroutine at a time uses it.
type Virtual struct {
	Node   offpeak.NodeID
	Direct wire.Direct
	inc    offpeak.Incarnation
	seq    atomic.Int64
	held   []virtualLease
	// unsaid are reports of which no hub has said that it has them.
	unsaid []wire.Report
}

// virtualLease is a lease that a virtual node runs.
type virtualLease struct {
	wire.HeldLease
	began time.Time
}

// Fleet enrols n virtual nodes of eight cores over the API.
func (g *Grid) Fleet(n int) []*Virtual {
	g.t.Helper()
	transport := g.transport()
	nodes, err := JoinMany(context.Background(), n, g.JoinToken(n), func(i int) Joining {
		return Joining{Direct: g.round(i, transport), Name: fmt.Sprintf("v%05d", i), CPU: 8000}
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return nodes
}

// JoinToken makes a token with which so many nodes may join.
func (g *Grid) JoinToken(uses int) wire.CreatedToken {
	g.t.Helper()
	tok, err := g.Client.CreateToken(context.Background(), NewOp(), wire.NewToken{Role: offpeak.RoleJoin, Uses: uses})
	if err != nil {
		g.t.Fatalf("make a join token: %v", err)
	}
	return tok
}

// Joining is who joins, and how it speaks to the hubs.
type Joining struct {
	Direct wire.Direct
	Name   string
	// CPU is what it has, in thousandths of a core.
	CPU int64
}

// JoinMany joins n virtual nodes with a join token, sixteen at a time.
func JoinMany(ctx context.Context, n int, token wire.CreatedToken, who func(i int) Joining) ([]*Virtual, error) {
	join, err := wire.DecodeJoinToken(token.Secret)
	if err != nil {
		return nil, fmt.Errorf("read the join token: %w", err)
	}
	nodes := make([]*Virtual, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range nodes {
		group.Go(func() (err error) {
			nodes[i], err = who(i).join(ctx, token.Token.ID, join.Token)
			return err
		})
	}
	return nodes, group.Wait()
}

func (j Joining) join(ctx context.Context, token offpeak.TokenID, secret string) (*Virtual, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	v := &Virtual{Direct: j.Direct, inc: offpeak.Incarnation(rand.Text())}
	as := wire.Enrol{Name: j.Name, Key: pub, Proof: ed25519.Sign(key, wire.EnrolMessage(token)), Inventory: offpeak.Inventory{
		Hostname: j.Name, OS: "linux", Arch: "amd64", CPU: j.CPU, Memory: 16 * offpeak.GiB, Disk: 100 * offpeak.GiB, Drivers: []string{"process"}, Shared: []string{"process"}, Version: "gridtest"}}
	// What had no answer is asked again: the key makes it the same node.
	for try := 1; ; try++ {
		err := v.join(ctx, key, as, secret)
		if err == nil || !errors.Is(err, offpeak.ErrUnavailable) || try == 10 {
			return v, err
		}
	}
}

func (v *Virtual) join(ctx context.Context, key ed25519.PrivateKey, as wire.Enrol, secret string) error {
	v.Direct.Token = secret
	in, err := v.Direct.Enrol(ctx, as)
	if err != nil {
		return err
	}
	v.Node = in.Node
	v.Direct.Token = ""
	c, err := v.Direct.Challenge(ctx)
	if err != nil {
		return err
	}
	s, err := v.Direct.OpenSession(ctx, wire.OpenSession{Node: in.Node, Incarnation: v.inc, Challenge: c.Challenge, Signature: ed25519.Sign(key, wire.SessionMessage(c.Challenge, in.Node, v.inc, 0))})
	if err != nil {
		return err
	}
	v.Direct.Token = s.Token
	return nil
}

// At is the same node, speaking to another address.
func (v *Virtual) At(base string) *Virtual {
	out := &Virtual{Node: v.Node, Direct: v.Direct, inc: v.inc}
	out.Direct.Base = base
	return out
}

// Beat sends a heartbeat that says what was reported as held.
func (v *Virtual) Beat(ctx context.Context) (wire.Sync, error) {
	held := make([]wire.HeldLease, len(v.held))
	for i, l := range v.held {
		l.Metered = offpeak.Millis(time.Since(l.began).Milliseconds())
		held[i] = l.HeldLease
	}
	return v.Direct.Heartbeat(ctx, wire.Heartbeat{Incarnation: v.inc, Seq: v.seq.Add(1), Availability: offpeak.NodeAvailable, Held: held})
}

// Run reports that an offered lease was accepted and runs; it is held then.
func (v *Virtual) Run(ctx context.Context, l wire.Desired) error {
	v.held = append(v.held, virtualLease{wire.HeldLease{Lease: l.Lease, Attempt: l.Attempt}, time.Now()})
	return v.report(ctx, l, wire.Report{Kind: "accepted"}, wire.Report{Kind: "running", Started: true})
}

// End reports the end of a lease.
func (v *Virtual) End(ctx context.Context, l wire.Desired, reason offpeak.EndReason) error {
	end := wire.Report{Kind: "ended", Started: true, Reason: reason}
	if reason == offpeak.EndCompleted {
		end.ExitCode = new(int)
	}
	for _, h := range v.held {
		if h.Lease == l.Lease {
			end.Ran = offpeak.Millis(time.Since(h.began).Milliseconds())
		}
	}
	v.Drop(l.Lease)
	return v.report(ctx, l, end)
}

// Holds says that the node runs a lease.
func (v *Virtual) Holds(lease offpeak.LeaseID) bool {
	return slices.ContainsFunc(v.held, func(h virtualLease) bool { return h.Lease == lease })
}

// Drop has the node hold a lease no longer, and say nothing of it.
func (v *Virtual) Drop(lease offpeak.LeaseID) {
	v.held = slices.DeleteFunc(v.held, func(h virtualLease) bool { return h.Lease == lease })
}

func (v *Virtual) report(ctx context.Context, l wire.Desired, reports ...wire.Report) error {
	for _, r := range reports {
		r.Lease, r.Attempt, r.Incarnation, r.Seq = l.Lease, l.Attempt, v.inc, v.seq.Add(1)
		v.unsaid = append(v.unsaid, r)
	}
	return v.Flush(ctx)
}

// Flush says again what no hub has answered yet. It returns what a hub refused;
// a lease of which something was refused is not held any more.
func (v *Virtual) Flush(ctx context.Context) error {
	if len(v.unsaid) == 0 {
		return nil
	}
	results, err := v.Direct.Report(ctx, v.unsaid)
	if err != nil {
		return err
	}
	said := v.unsaid
	v.unsaid = nil
	var errs []error
	for i, r := range results {
		if r.Problem == nil {
			continue
		}
		problem := fmt.Errorf("report %s of %s: %w", said[i].Kind, said[i].Lease, r.Problem)
		if errors.Is(problem, offpeak.ErrUnavailable) {
			v.unsaid = append(v.unsaid, said[i])
		} else {
			v.Drop(said[i].Lease)
		}
		errs = append(errs, problem)
	}
	return errors.Join(errs...)
}

// Report makes reports of many leases in one request and returns what became of
// each. A lease that is not over is held from then on. Nothing is said again.
func (v *Virtual) Report(ctx context.Context, reports []wire.Report) ([]wire.ReportResult, error) {
	for i := range reports {
		reports[i].Incarnation, reports[i].Seq = v.inc, v.seq.Add(1)
	}
	results, err := v.Direct.Report(ctx, reports)
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		l := wire.HeldLease{Lease: reports[i].Lease, Attempt: reports[i].Attempt}
		switch {
		case r.Problem != nil:
		case r.State.Terminal():
			v.Drop(l.Lease)
		case !slices.ContainsFunc(v.held, func(h virtualLease) bool { return h.Lease == l.Lease }):
			v.held = append(v.held, virtualLease{l, time.Now()})
		}
	}
	return results, nil
}

// Priced has all nodes of the grid's first account, also those that join later, ask
// a price, and gives the account money to pay it: it owes itself.
func (g *Grid) Priced(price offpeak.Price) {
	g.t.Helper()
	ctx := context.Background()
	who, err := g.Client.Whoami(ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := g.Client.Deposit(ctx, NewOp(), wire.NewMovement{External: "gridtest", Account: who.Account.ID, Amount: "1000000"}); err != nil {
		g.t.Fatal(err)
	}
	if _, err := g.Client.SetAccountAsk(ctx, NewOp(), who.Account.ID, wire.AskPlan{Ask: &wire.Prices{GPU: &price}}); err != nil {
		g.t.Fatal(err)
	}
}
