// Package history records what several hubs did to leases in one store, and
// checks that it was linearizable: that there is one order of all of it, no verb
// outside the time of its call, in which no node ever holds more than it has and
// no job ever has two live leases or skips an attempt.
//
// A Recorder wraps each hub's store (Watch). A verb whose outcome is unknown may
// or may not have happened, at any time from its call on; a hub that was killed
// in the middle of a verb leaves it so. The history begins with the first job of
// the store, and the stores of all hubs are watched: what is not seen is missed.
// Check is done by porcupine, by node (see nodeModel) and by job (see jobModel).
// A Recorder is safe for concurrent use; Check is called when all verbs are over.
package history

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"offpeak"
	"offpeak/store"
)

// kind is what one step of a history does.
type kind string

const (
	// capacity: a node has Resources from now on.
	capacity kind = "capacity"
	// claim: Lease is attempt Attempt of Job on Node, holding Resources.
	claim kind = "claim"
	// report: an agent's report about Lease was accepted.
	report kind = "report"
	// stale: a report was refused because the lease is not the newest, live one.
	stale kind = "stale"
	// end: Lease ended by other hands than a report's.
	end kind = "end"
	// release: Lease holds no resources any more.
	release kind = "release"
	// over: Job ended without a lease.
	over kind = "over"
	// held: Node's live leases are Leases, and no others.
	held kind = "held"
	// live: Lease is Job's live lease.
	live kind = "live"
	// sweep: any of the leases of Node, Job or Lease may have ended, or of all
	// where none is named. It is never known to have happened.
	sweep kind = "sweep"
)

// step is one thing that happened at one moment of a call, or may have.
type step struct {
	Kind      kind
	Job       offpeak.JobID
	Node      offpeak.NodeID
	Lease     offpeak.LeaseID
	Attempt   offpeak.Attempt
	Resources offpeak.Resources
	// Accepted says that a claim needs no acceptance.
	Accepted bool
	// Report, Incarnation and Seq are a report's.
	Report      store.ReportKind
	Incarnation offpeak.Incarnation
	Seq         int64
	// Over says that the job ended with the lease.
	Over bool
	// Again says that the answer may be that of an earlier call with the same
	// operation id.
	Again  bool
	Leases []offpeak.LeaseID
	// Maybe says that nobody knows whether it happened.
	Maybe bool
}

// never is the end of a call that did not return.
const never = math.MaxInt64

// call is one verb.
type call struct {
	hub       int
	from, til int64
	steps     []step
}

// Recorder is a history.
type Recorder struct {
	now   func() time.Time
	start time.Time

	mu    sync.Mutex // guards what follows
	hubs  int
	calls []*call
}

// New makes an empty history by a clock that never goes back.
func New(now func() time.Time) *Recorder {
	return &Recorder{now: now, start: now()}
}

// Len is how many verbs were recorded.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

// Node notes a node that had been there, holding nothing, before any store was
// watched.
func (r *Recorder) Node(n offpeak.Node) {
	r.begin(0, nil).returned(nil, func() []step { return []step{capacityOf(n.ID, n.Inventory)} })
}

func capacityOf(n offpeak.NodeID, inv offpeak.Inventory) step {
	s := step{Kind: capacity, Node: n, Resources: offpeak.Resources{CPU: inv.CPU, Memory: inv.Memory, Disk: inv.Disk}}
	for _, d := range inv.Devices {
		s.Resources.Devices = append(s.Resources.Devices, d.ID)
	}
	return s
}

// underway is a call that has not returned.
type underway struct {
	recorder *Recorder
	call     *call
}

// begin notes a call. Until it returns, whatever it is to do may have happened.
func (r *Recorder) begin(hub int, maybe []step) underway {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &call{hub: hub, from: int64(r.now().Sub(r.start)), til: never, steps: unsure(maybe)}
	r.calls = append(r.calls, c)
	return underway{r, c}
}

func unsure(steps []step) []step {
	out := make([]step, len(steps))
	for i, s := range steps {
		s.Maybe = true
		out[i] = s
	}
	return out
}

// returned notes a call's outcome: what it did, where that is known.
func (u underway) returned(err error, did func() []step) {
	if unknown(err) {
		return
	}
	var steps []step
	if err == nil {
		steps = did()
	}
	u.did(steps)
}

func (u underway) did(steps []step) {
	u.recorder.mu.Lock()
	defer u.recorder.mu.Unlock()
	u.call.til, u.call.steps = int64(u.recorder.now().Sub(u.recorder.start)), steps
}

// unknown says that a verb that returned err may have happened.
func unknown(err error) bool {
	return errors.Is(err, offpeak.ErrUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Store is one hub's store, watched.
type Store struct {
	store.Store
	recorder *Recorder
	hub      int
}

// Watch records what is done through s, which is one hub's.
func (r *Recorder) Watch(s store.Store) *Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hubs++
	return &Store{Store: s, recorder: r, hub: r.hubs}
}

// ended are the steps of changes that ended leases or jobs.
func ended(again bool, changes ...store.Change) []step {
	var out []step
	for _, c := range changes {
		switch {
		case c.Lease != nil && c.Lease.State.Terminal():
			out = append(out, step{Kind: end, Job: c.Lease.Job, Node: c.Lease.Node, Lease: c.Lease.ID, Attempt: c.Lease.Attempt, Over: c.Job.State.Terminal(), Again: again})
		case c.Lease == nil && c.Job.State.Terminal():
			out = append(out, step{Kind: over, Job: c.Job.ID})
		}
	}
	return out
}

func claimOf(c store.Claim) step {
	return step{Kind: claim, Job: c.Job, Node: c.Node, Lease: c.Lease, Attempt: c.Attempt, Resources: c.Resources}
}

// claimed are the steps of one answered claim.
func claimed(c store.Claim, got store.Claimed) []step {
	s := claimOf(c)
	switch {
	case unknown(got.Err):
		s.Maybe = true
	case got.Err != nil:
		return nil
	default:
		s.Accepted = got.Lease != nil && got.Lease.State != offpeak.LeaseOffered
	}
	return []step{s}
}

// Claim implements store.Leases.
func (s *Store) Claim(ctx context.Context, claims []store.Claim) ([]store.Claimed, error) {
	var maybe []step
	for _, c := range claims {
		maybe = append(maybe, claimOf(c))
	}
	u := s.recorder.begin(s.hub, maybe)
	got, err := s.Store.Claim(ctx, claims)
	u.returned(err, func() (did []step) {
		for i, g := range got {
			did = append(did, claimed(claims[i], g)...)
		}
		return did
	})
	return got, err
}

// Report implements store.Leases.
func (s *Store) Report(ctx context.Context, r store.Report) (store.Change, error) {
	it := step{Kind: report, Node: r.Node, Lease: r.Lease, Attempt: r.Attempt, Report: r.Kind, Incarnation: r.Incarnation, Seq: r.Seq}
	maybe := []step{it}
	if r.Then != nil {
		maybe = append(maybe, claimOf(*r.Then))
	}
	u := s.recorder.begin(s.hub, maybe)
	c, err := s.Store.Report(ctx, r)
	if errors.Is(err, offpeak.ErrStaleLease) && !unknown(err) {
		it.Kind = stale
		u.did([]step{it})
		return c, err
	}
	u.returned(err, func() []step {
		it.Job, it.Over = c.Job.ID, c.Job.State.Terminal()
		did := []step{it}
		if r.Then != nil && c.Then != nil {
			did = append(did, claimed(*r.Then, *c.Then)...)
		}
		return did
	})
	return c, err
}

// Beat implements store.Leases.
func (s *Store) Beat(ctx context.Context, beats []store.Beat) ([]store.BeatResult, error) {
	var maybe []step
	for _, b := range beats {
		maybe = append(maybe, step{Kind: sweep, Node: b.Node})
	}
	u := s.recorder.begin(s.hub, maybe)
	got, err := s.Store.Beat(ctx, beats)
	u.returned(err, func() (did []step) {
		for i, g := range got {
			did = append(did, ended(false, g.Changes...)...)
			switch {
			case unknown(g.Err):
				did = append(did, unsure(maybe[i:i+1])...)
			case g.Err == nil:
				did = append(did, seen(beats[i].Node, g.Live)...)
			}
		}
		return did
	})
	return got, err
}

// seen are the steps of a look at what a node should hold.
func seen(n offpeak.NodeID, leases []offpeak.Lease) []step {
	all := step{Kind: held, Node: n}
	var out []step
	for _, l := range leases {
		all.Leases = append(all.Leases, l.ID)
		out = append(out, step{Kind: live, Job: l.Job, Node: n, Lease: l.ID, Attempt: l.Attempt})
	}
	return append(out, all)
}

// Assignments implements store.Leases.
func (s *Store) Assignments(ctx context.Context, node offpeak.NodeID) (int64, []store.Assignment, error) {
	u := s.recorder.begin(s.hub, nil)
	revision, got, err := s.Store.Assignments(ctx, node)
	u.returned(err, func() []step {
		var leases []offpeak.Lease
		for _, a := range got {
			leases = append(leases, a.Lease)
		}
		return seen(node, leases)
	})
	return revision, got, err
}

// Expire implements store.Leases.
func (s *Store) Expire(ctx context.Context, asOf time.Time, limit int) ([]store.Change, error) {
	u := s.recorder.begin(s.hub, []step{{Kind: sweep}})
	got, err := s.Store.Expire(ctx, asOf, limit)
	u.returned(err, func() []step { return ended(false, got...) })
	return got, err
}

// Abandon implements store.Leases.
func (s *Store) Abandon(ctx context.Context, lease offpeak.LeaseID, reason offpeak.EndReason) (store.Change, error) {
	u := s.recorder.begin(s.hub, []step{{Kind: sweep, Lease: lease}})
	c, err := s.Store.Abandon(ctx, lease, reason)
	u.returned(err, func() []step { return ended(false, c) })
	return c, err
}

// Cancel implements store.Jobs.
func (s *Store) Cancel(ctx context.Context, op store.Op, account offpeak.AccountID, job offpeak.JobID, detail string) (store.Change, error) {
	u := s.recorder.begin(s.hub, []step{{Kind: sweep, Job: job}, {Kind: over, Job: job}})
	c, err := s.Store.Cancel(ctx, op, account, job, detail)
	u.returned(err, func() []step { return ended(true, c) })
	return c, err
}

// Enrol implements store.Nodes.
func (s *Store) Enrol(ctx context.Context, join offpeak.TokenID, n store.NewNode, actor offpeak.Actor) (offpeak.Node, error) {
	u := s.recorder.begin(s.hub, []step{capacityOf(n.ID, n.Inventory)})
	node, err := s.Store.Enrol(ctx, join, n, actor)
	u.returned(err, func() []step { return []step{capacityOf(node.ID, node.Inventory)} })
	return node, err
}

// SetInventory implements store.Nodes.
func (s *Store) SetInventory(ctx context.Context, node offpeak.NodeID, inv offpeak.Inventory) (offpeak.Node, []store.Change, error) {
	u := s.recorder.begin(s.hub, []step{capacityOf(node, inv)})
	n, changes, err := s.Store.SetInventory(ctx, node, inv)
	u.returned(err, func() []step { return append([]step{capacityOf(node, inv)}, ended(true, changes...)...) })
	return n, changes, err
}

// RemoveNode implements store.Nodes.
func (s *Store) RemoveNode(ctx context.Context, op store.Op, account offpeak.AccountID, node offpeak.NodeID) ([]store.Change, error) {
	u := s.recorder.begin(s.hub, []step{{Kind: sweep, Node: node}})
	got, err := s.Store.RemoveNode(ctx, op, account, node)
	u.returned(err, func() []step { return ended(true, got...) })
	return got, err
}
