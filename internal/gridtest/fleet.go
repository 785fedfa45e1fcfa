package gridtest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

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
	join, err := wire.DecodeJoinToken(tok.Secret)
	if err != nil {
		g.t.Fatalf("read the join token: %v", err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
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
				v, err := g.enrol(client, tok.Token.ID, join.Token, fmt.Sprintf("v%05d", i))
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

func (g *Grid) enrol(client *http.Client, join offpeak.TokenID, secret, name string) (*Virtual, error) {
	ctx := context.Background()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	d := wire.Direct{Client: client, Base: "http://" + g.Addr, Token: secret, Agent: "gridtest"}
	in, err := d.Enrol(ctx, wire.Enrol{Name: name, Key: pub, Proof: ed25519.Sign(key, wire.EnrolMessage(join)), Inventory: offpeak.Inventory{
		Hostname: name, OS: "linux", Arch: "amd64", CPU: 8000, Memory: 16 * offpeak.GiB, Disk: 100 * offpeak.GiB, Drivers: []string{"process"}, Version: "gridtest"}})
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

// Run reports that an offered lease was accepted and runs; it is held then.
func (v *Virtual) Run(ctx context.Context, l wire.Desired) error {
	if err := v.report(ctx, l, wire.Report{Kind: "accepted"}, wire.Report{Kind: "running", Started: true}); err != nil {
		return err
	}
	v.held = append(v.held, wire.HeldLease{Lease: l.Lease, Attempt: l.Attempt})
	return nil
}

// End reports the end of a lease.
func (v *Virtual) End(ctx context.Context, l wire.Desired, reason offpeak.EndReason) error {
	end := wire.Report{Kind: "ended", Started: true, Reason: reason}
	if reason == offpeak.EndCompleted {
		end.ExitCode = new(int)
	}
	if err := v.report(ctx, l, end); err != nil {
		return err
	}
	kept := v.held[:0:0]
	for _, h := range v.held {
		if h.Lease != l.Lease {
			kept = append(kept, h)
		}
	}
	v.held = kept
	return nil
}

func (v *Virtual) report(ctx context.Context, l wire.Desired, reports ...wire.Report) error {
	for i := range reports {
		r := &reports[i]
		r.Lease, r.Attempt, r.Incarnation, r.Seq = l.Lease, l.Attempt, v.inc, v.seq.Add(1)
	}
	results, err := v.Direct.Report(ctx, reports)
	if err != nil {
		return err
	}
	for i, r := range results {
		if r.Problem != nil {
			return fmt.Errorf("report %s of %s: %w", reports[i].Kind, l.Lease, r.Problem)
		}
	}
	return nil
}
