package gridtest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"

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
	held   []wire.HeldLease
}

// Fleet enrols n virtual nodes of eight cores over the API.
func (g *Grid) Fleet(n int) []*Virtual {
	g.t.Helper()
	tok, err := g.Client.CreateToken(context.Background(), NewOp(), wire.NewToken{Role: offpeak.RoleJoin, Uses: n})
	if err != nil {
		g.t.Fatalf("make a join token: %v", err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	nodes, err := JoinMany(context.Background(), n, func(i int) Joining {
		return Joining{Client: client, Base: "http://" + g.Addr, Token: tok, Name: fmt.Sprintf("v%05d", i), CPU: 8000}
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return nodes
}

// Joining is what a virtual node joins with.
type Joining struct {
	Client *http.Client
	// Base is the hub's address.
	Base  string
	Token wire.CreatedToken
	Name  string
	// CPU is what it has, in thousandths of a core.
	CPU int64
}

// JoinMany joins n virtual nodes, sixteen at a time.
func JoinMany(ctx context.Context, n int, with func(i int) Joining) ([]*Virtual, error) {
	nodes := make([]*Virtual, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range nodes {
		group.Go(func() (err error) {
			nodes[i], err = with(i).join(ctx)
			return err
		})
	}
	return nodes, group.Wait()
}

func (j Joining) join(ctx context.Context) (*Virtual, error) {
	secret, err := wire.DecodeJoinToken(j.Token.Secret)
	if err != nil {
		return nil, fmt.Errorf("read the join token: %w", err)
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	d := wire.Direct{Client: j.Client, Base: j.Base, Token: secret.Token, Agent: "gridtest"}
	in, err := d.Enrol(ctx, wire.Enrol{Name: j.Name, Key: pub, Proof: ed25519.Sign(key, wire.EnrolMessage(j.Token.Token.ID)), Inventory: offpeak.Inventory{
		Hostname: j.Name, OS: "linux", Arch: "amd64", CPU: j.CPU, Memory: 16 * offpeak.GiB, Disk: 100 * offpeak.GiB, Drivers: []string{"process"}, Version: "gridtest"}})
	if err != nil {
		return nil, err
	}
	v := &Virtual{Node: in.Node, inc: offpeak.Incarnation(rand.Text())}
	d.Token = ""
	c, err := d.Challenge(ctx)
	if err != nil {
		return nil, err
	}
	s, err := d.OpenSession(ctx, wire.OpenSession{Node: in.Node, Incarnation: v.inc, Challenge: c.Challenge, Signature: ed25519.Sign(key, wire.SessionMessage(c.Challenge, in.Node, v.inc, 0))})
	if err != nil {
		return nil, err
	}
	d.Token = s.Token
	v.Direct = d
	return v, nil
}

// At is the same node, speaking to another address.
func (v *Virtual) At(base string) *Virtual {
	out := &Virtual{Node: v.Node, Direct: v.Direct, inc: v.inc}
	out.Direct.Base = base
	return out
}

// Beat sends a heartbeat that says what was reported as held.
func (v *Virtual) Beat(ctx context.Context) (wire.Sync, error) {
	return v.Direct.Heartbeat(ctx, wire.Heartbeat{Incarnation: v.inc, Seq: v.seq.Add(1), Availability: offpeak.NodeAvailable, Held: v.held})
}

// Holds is how many leases were reported as held.
func (v *Virtual) Holds() int { return len(v.held) }

// Run reports that an offered lease was accepted and runs; it is held then.
func (v *Virtual) Run(ctx context.Context, l wire.Desired) error {
	return v.report(ctx, About(l, wire.Report{Kind: "accepted"}), About(l, wire.Report{Kind: "running", Started: true}))
}

// End reports the end of a lease.
func (v *Virtual) End(ctx context.Context, l wire.Desired, reason offpeak.EndReason) error {
	end := wire.Report{Kind: "ended", Started: true, Reason: reason}
	if reason == offpeak.EndCompleted {
		end.ExitCode = new(int)
	}
	return v.report(ctx, About(l, end))
}

// About is a report of a lease.
func About(l wire.Desired, r wire.Report) wire.Report {
	r.Lease, r.Attempt = l.Lease, l.Attempt
	return r
}

func (v *Virtual) report(ctx context.Context, reports ...wire.Report) error {
	results, err := v.Report(ctx, reports)
	if err != nil {
		return err
	}
	for i, r := range results {
		if r.Problem != nil {
			return fmt.Errorf("report %s of %s: %w", reports[i].Kind, reports[i].Lease, r.Problem)
		}
	}
	return nil
}

// Report makes reports in one request, and holds from then on what they say.
func (v *Virtual) Report(ctx context.Context, reports []wire.Report) ([]wire.ReportResult, error) {
	for i := range reports {
		reports[i].Incarnation, reports[i].Seq = v.inc, v.seq.Add(1)
	}
	results, err := v.Direct.Report(ctx, reports)
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		of := func(h wire.HeldLease) bool { return h.Lease == reports[i].Lease }
		switch holds := slices.ContainsFunc(v.held, of); {
		case r.Problem != nil:
		case r.State.Terminal():
			v.held = slices.DeleteFunc(v.held, of)
		case !holds:
			v.held = append(v.held, wire.HeldLease{Lease: reports[i].Lease, Attempt: reports[i].Attempt})
		}
	}
	return results, nil
}
