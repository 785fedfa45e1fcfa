package gridtest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	tok, err := g.Client.CreateToken(context.Background(), NewOp(), wire.NewToken{Role: offpeak.RoleJoin, Uses: n})
	if err != nil {
		g.t.Fatalf("make a join token: %v", err)
	}
	join, err := wire.DecodeJoinToken(tok.Secret)
	if err != nil {
		g.t.Fatalf("read the join token: %v", err)
	}
	transport := g.transport()
	nodes := make([]*Virtual, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				v, err := g.enrol(g.round(i, transport), tok.Token.ID, join.Token, fmt.Sprintf("v%05d", i))
				if err != nil {
					g.t.Error(err)
					return
				}
				nodes[i] = v
			}
		})
	}
	wg.Wait()
	if g.t.Failed() {
		g.t.FailNow()
	}
	return nodes
}

func (g *Grid) enrol(d wire.Direct, join offpeak.TokenID, secret, name string) (*Virtual, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	v := &Virtual{Direct: d, inc: offpeak.Incarnation(rand.Text())}
	// What had no answer is asked again: the key makes it the same node.
	for try := 1; ; try++ {
		err := v.enrol(key, wire.Enrol{Name: name, Key: pub, Proof: ed25519.Sign(key, wire.EnrolMessage(join)), Inventory: offpeak.Inventory{
			Hostname: name, OS: "linux", Arch: "amd64", CPU: 8000, Memory: 16 * offpeak.GiB, Disk: 100 * offpeak.GiB, Drivers: []string{"process"}, Version: "gridtest"}}, secret)
		if err == nil || !errors.Is(err, offpeak.ErrUnavailable) || try == 10 {
			return v, err
		}
	}
}

func (v *Virtual) enrol(key ed25519.PrivateKey, as wire.Enrol, secret string) error {
	ctx := context.Background()
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
