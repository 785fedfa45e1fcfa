package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"offpeak"
)

// Leases is the life of a lease.
type Leases interface {
	// Claim writes leases, many in one transaction. Each claim stands alone, and so does
	// each gang: one that lost a race has Err set to ErrConflict and the others hold.
	// Claims of one gang stand together in the list.
	// One claim re-checks that the job is queued with Attempt−1 as its newest
	// attempt and its NotBefore is past, that the node is online, open and
	// available, and that it has the resources free, by a guarded update under a
	// CHECK; then writes the lease as offered, expiring OfferFor from now, moves
	// the job to leased and raises the node's revision. ErrQuota: the account
	// has its quota of live leases. ErrAtOnce: so have the members of its array.
	Claim(ctx context.Context, claims []Claim) ([]Claimed, error)
	// Used sums up what leases that have ended since a moment held, for the order of
	// the queue: to the hour, by account and by when they began and ended. It is for
	// a hub that starts.
	Used(ctx context.Context, since time.Time) ([]Used, error)
	// Assignments returns what a node should hold: its live leases with what an
	// agent needs to run them, and the node's revision that this belongs to.
	Assignments(ctx context.Context, node offpeak.NodeID) (revision int64, held []Assignment, err error)
	// Beat applies heartbeats, many in one transaction. Each stands alone. For
	// a beat that is newer than the last by (incarnation, sequence):
	//   - the node's availability is set, its last-heard time is now, and a late
	//     or offline node becomes online;
	//   - each held lease that is live, newest of its job and on this node is
	//     extended to now + Grant + its reconnect grace, unless the agent says
	//     that it has heard nothing for longer than its timeout (SinceAck), so
	//     that a link that works one way only does not hold a job for ever;
	//     offers are never extended;
	//   - an accepted lease that the agent does not hold although the beat was
	//     composed after it had accepted (other incarnation, or a greater
	//     sequence) ends as node_restarted;
	//   - a Taken lease of another incarnation, which the agent never spoke of,
	//     ends as offer_lapsed.
	// An older or repeated beat changes nothing and is answered all the same. One
	// that can't be applied has Err set, and the others hold.
	Beat(ctx context.Context, beats []Beat) ([]BeatResult, error)
	// Report applies one report of an agent about a lease: see Report for what
	// each kind does. It is idempotent by (lease, incarnation, sequence): a
	// repeated report returns what the first returned. A lease that is not
	// known, not on that node, not the newest attempt, or has ended otherwise is
	// a *StaleLeaseError and changes nothing (but is counted in the audit).
	Report(ctx context.Context, r Report) (Change, error)
	// Stop asks a live lease to go for a reason; its agent learns it with its
	// next assignments. Stopping a stopped lease keeps the first reason.
	Stop(ctx context.Context, lease offpeak.LeaseID, reason offpeak.EndReason) (Change, error)
	// Outbid is Stop for a running lease that gives way to a job that bid more: for
	// whom, and at what price, is kept with it, and the job that gives way notes
	// when. ErrConflict: the lease does not run, or is asked to go already.
	Outbid(ctx context.Context, lease offpeak.LeaseID, to offpeak.Outbid) (Change, error)
	// Abandon ends a finishing lease for a reason, without its agent: it has no
	// process and holds no resources, so whatever its agent still does collides
	// with nothing, and is refused as stale. A lease in an earlier state is
	// ErrConflict, an ended one a *StaleLeaseError.
	Abandon(ctx context.Context, lease offpeak.LeaseID, reason offpeak.EndReason) (Change, error)
	// Expire ends at most limit live leases whose expiry is not after asOf: offers,
	// and Taken leases that the agent never spoke of, as offer_lapsed, others as
	// node_lost. Guarded by state, attempt, id
	// and expiry, so that any number of monitors may call it at once. asOf is a
	// moment of the store's time at which the caller knew that it was listening:
	// leases that ran out later may have done so only because the caller itself
	// stood still on its way here. ErrConflict: asOf is more than ExpireWithin
	// ago, so it did; nothing is ended. An asOf to come counts as now. A lease that
	// can't be ended is left as it is: an *UnendedError names the first, and comes
	// with the changes of the others.
	Expire(ctx context.Context, asOf time.Time, limit int) ([]Change, error)
	// Overdue counts the nodes that hold accepted leases, and those of them that
	// run out by then; both are 0 while nothing has run out by asOf.
	Overdue(ctx context.Context, asOf, by time.Time) (due, holding int, err error)
	// Amnesty moves the expiry of every live lease to at least now + d, and
	// counts every node that is not offline as heard now. A hub
	// calls it when it has not been listening: at its start, after a stall.
	Amnesty(ctx context.Context, d time.Duration) error
	// AddCheckpoint stores a snapshot of a live lease, fenced like a report, and
	// keeps the job's two newest. The tree must be stored (ErrBlobMissing).
	// Repeating the same (lease, tree, name) changes nothing.
	AddCheckpoint(ctx context.Context, c NewCheckpoint) (offpeak.Checkpoint, error)
}

// Used is what leases of an account held from one moment to another, all together.
type Used struct {
	Account  offpeak.AccountID
	From, To time.Time
	// CPU is in thousandths of cores.
	CPU  int64
	GPUs int
}

// ExpireWithin is how long after it was known to listen a caller may still end
// leases: far more than a verb waits for the store, and far less than a timeout.
const ExpireWithin = 10 * time.Second

// UnendedError says that a lease that has run out can't be ended, as where its row
// breaks a rule of the schema. That is for an operator, and no other lease's matter:
// it wraps nothing.
type UnendedError struct {
	Lease offpeak.LeaseID
	Cause error
}

func (e *UnendedError) Error() string {
	return "lease " + string(e.Lease) + " has run out and can't be ended: " + e.Cause.Error()
}

// Claim asks for one lease.
type Claim struct {
	Job       offpeak.JobID
	Attempt   offpeak.Attempt
	Node      offpeak.NodeID
	Lease     offpeak.LeaseID
	Resources offpeak.Resources
	Price     offpeak.Price
	OfferFor  time.Duration
	// Taken is the incarnation of an agent that has said that it takes what it is
	// given now: while it is the node's, the lease begins as preparing, as if the
	// agent had accepted the offer at once. "" offers.
	Taken offpeak.Incarnation
	// Placement is kept with the event, so that the choice can be replayed.
	Placement json.RawMessage
	// Gang is that of which the job is a member. Claims that name the same gang are made
	// all or none, and are lost unless they are for all members that have not ended, each
	// on a node of its own.
	Gang offpeak.GroupID
}

// Claimed is what became of a claim.
type Claimed struct {
	Change
	Err error
	// Room is how many more members of the job's array may be claimed now, where the
	// array has a limit; 0 with ErrAtOnce.
	Room int
}

// ErrInHand refuses a claim whose job or node somebody else changes at the moment:
// nothing is known of it, and it may go through when it is made again.
var ErrInHand = errors.New("somebody has it in hand")

// Assignment is a lease with what an agent needs to run it.
type Assignment struct {
	Lease offpeak.Lease
	Spec  offpeak.Spec
	// Checkpoints are what the attempt may resume from, newest first, at most 2.
	Checkpoints []offpeak.Checkpoint
	// Inputs are the outputs of jobs that the job waited for, and where they go.
	Inputs []Input
	// Taken says that the lease was made as Claim.Taken says, for the agent that
	// the node has now, which has not spoken of it yet.
	Taken bool
	// Member is what a member of an array finds in its environment; nil of others.
	Member map[string]string
	// Left is how long an offer still lived when this was read; 0 of other leases.
	Left time.Duration
}

// Input is a tree that is laid out in a folder of the job's folder.
type Input struct {
	Into string
	// Tree is "" where the job had no outputs: the folder is empty.
	Tree offpeak.Hash
}

// Beat is one heartbeat as the store sees it.
type Beat struct {
	Node         offpeak.NodeID
	Incarnation  offpeak.Incarnation
	Seq          int64
	Availability offpeak.Availability
	Why          offpeak.EndReason
	Held         []Held
	// SinceAck is how long ago the agent sent the last heartbeat that was
	// acknowledged, on its own clock; 0 when it has none yet.
	SinceAck time.Duration
	// Grant is the silence allowed from now on; it becomes the node's timeout.
	Grant time.Duration
}

// Held is one lease an agent holds, as it says.
type Held struct {
	Lease   offpeak.LeaseID
	Frozen  bool
	Metered offpeak.Millis
}

// BeatResult answers one beat.
type BeatResult struct {
	// Revision is the node's revision after the beat.
	Revision int64
	// Live are the leases the node should hold.
	Live []offpeak.Lease
	// Changes are leases that this beat ended, and jobs it sent back.
	Changes []Change
	// WokeUp says that the node was late or offline before.
	WokeUp bool
	// Err is ErrUnknownNode, ErrStaleSession (an older incarnation), what else keeps
	// this beat from being applied, or nil.
	Err error
}

// ReportKind says how far a lease has come.
type ReportKind string

// The kinds of report. They are cumulative: a report implies those before it,
// so that a short job needs only accepted and ended.
const (
	// ReportAccepted: offered → preparing. Refused as stale when the offer has
	// lapsed; the lease is extended by the node's timeout. The agent starts
	// nothing before this is acknowledged.
	ReportAccepted ReportKind = "accepted"
	// ReportRunning: preparing → running. Metering starts.
	ReportRunning ReportKind = "running"
	// ReportFinishing: the process is gone and the devices are free: resources
	// are released, metering stops.
	ReportFinishing ReportKind = "finishing"
	// ReportEnded: the lease ends for Reason, and the job goes where
	// offpeak.AfterEnd says. A completed attempt's outputs are accepted here and
	// nowhere else. When LogEnd is given and the stored log is shorter, the
	// report is refused with a *LogGapError: logs are whole before an end shows.
	ReportEnded ReportKind = "ended"
)

// Report is what an agent says of a lease.
type Report struct {
	Node        offpeak.NodeID
	Lease       offpeak.LeaseID
	Attempt     offpeak.Attempt
	Incarnation offpeak.Incarnation
	Seq         int64
	Kind        ReportKind
	// Ran is how long the process has run by the agent's clock. The store
	// meters at most what it observed itself since the start acknowledgement.
	Ran offpeak.Millis
	// Started says that a process was started, for an ended report that implies
	// a running one.
	Started bool
	// Restored is the checkpoint the attempt resumed from, 0 for none.
	Restored int64
	Logs     []LogAppend

	Reason   offpeak.EndReason
	Detail   string
	ExitCode *int
	Signal   string
	Output   offpeak.Hash
	LogEnd   map[string]int64

	// Then gives what an ended report frees to the next job: it is made as by
	// Claim, after the report and in its transaction, and stands alone. It is not
	// tried for a report of another kind, nor for a refused or repeated one, nor for
	// an end that others wait for: they may go first.
	Then *Claim
}

// NewCheckpoint is what AddCheckpoint stores.
type NewCheckpoint struct {
	Node    offpeak.NodeID
	Lease   offpeak.LeaseID
	Attempt offpeak.Attempt
	Name    string
	Tree    offpeak.Hash
	Metered offpeak.Millis
	Size    offpeak.Bytes
}
