// Package store is the contract between the hub and what keeps its state, in
// the verbs of the grid.
//
// It owns the meaning of every durable change: which rows one verb writes in
// one transaction, what guards it, and what the caller may conclude from each
// answer. It knows nothing of networks, timers, matching or money rules; the
// next state of a job or lease is decided by the tables and functions of
// package offpeak, inside the verb's transaction.
//
// What holds for every verb:
//
//   - A verb that returns nil is durable: it survives kill -9 of anything and
//     the loss of power. A verb that returns an error that is not
//     ErrUnavailable changed nothing. After ErrUnavailable the outcome is
//     unknown: repeat it with the same operation id, (lease, incarnation,
//     sequence) or other stated key, and it answers as the first time.
//   - Time in decisions is the store's time, never the caller's.
//   - Every change writes the events that describe it in the same transaction,
//     and what a person, an operator or a stranger did leaves an audit row too.
//     A lease's own steps (claimed, accepted, started, ended) are told by their
//     events alone: those name node, lease and time, and there are millions.
//   - An account argument restricts the verb to that account's objects; "" is
//     for the hub and for admins and restricts nothing. Another account's
//     object answers ErrNotFound.
//   - All verbs may be called from any number of goroutines.
//
// Engines: sqlite (one hub, one file) and postgres (any number of hubs). Both pass
// the suite in storetest, which is written against these comments.
package store

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"time"

	"offpeak"
)

// Store is everything the hub keeps.
type Store interface {
	Jobs
	Leases
	Nodes
	Accounts
	Data
	Upkeep
	Hubs
}

// Op identifies one client mutation.
type Op struct {
	// ID is made and kept by the client. "" is refused with a *FieldError.
	ID    offpeak.OpID
	Actor offpeak.Actor
	// Digest is the SHA-256 of the request. The same ID with another digest, or
	// from another account, is ErrOperationConflict; with the same digest the
	// verb returns the first outcome and changes nothing. Kept 7 days.
	Digest [32]byte
}

// Page asks for a part of a list. Lists are in a stable order and complete: an
// object that exists throughout a walk over all pages is seen exactly once.
type Page struct {
	// Cursor is "" for the start, or what the page before returned.
	Cursor string
	// Limit is the most rows, 1 to 1000.
	Limit int
}

// Jobs is what submitters change and everyone reads.
type Jobs interface {
	// Submit stores a job, its spec and the event job.queued, durable before it
	// returns. The spec is valid and has its defaults. It returns ErrQuota when
	// the account's quota of queued jobs is used up, ErrBlobMissing when the
	// input tree is not stored for the account.
	Submit(ctx context.Context, op Op, job NewJob) (offpeak.Job, error)
	// Cancel ends a job that is not leased or only offered at once; a job whose
	// lease was accepted becomes cancelling and its lease is asked to stop.
	// Cancelling a cancelling or cancelled job changes nothing and returns it;
	// a succeeded or failed job is ErrConflict.
	Cancel(ctx context.Context, op Op, account offpeak.AccountID, job offpeak.JobID, detail string) (Change, error)
	// Job returns one job.
	Job(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) (offpeak.Job, error)
	// Jobs lists jobs, newest first. next is "" at the end.
	Jobs(ctx context.Context, filter JobFilter, page Page) (jobs []offpeak.Job, next string, err error)
	// Attempts lists a job's leases, oldest attempt first.
	Attempts(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) ([]offpeak.Lease, error)
	// Checkpoints lists a job's stored checkpoints, newest first.
	Checkpoints(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) ([]offpeak.Checkpoint, error)
	// Queue walks over all queued jobs in the order of matching: priority, then
	// first submitted. It is for a hub that starts, and is streamed.
	Queue(ctx context.Context) iter.Seq2[Queued, error]
	// CountJobs counts jobs by state.
	CountJobs(ctx context.Context, account offpeak.AccountID) (map[offpeak.JobState]int, error)
}

// NewJob is what Submit stores. The id is made by the hub; when the operation
// id was used before, the job that it made then is returned instead.
type NewJob struct {
	ID      offpeak.JobID
	Account offpeak.AccountID
	Spec    offpeak.Spec
	// RetryOf is the ended job of the same account that this one repeats; its
	// stored checkpoints become the new job's as well.
	RetryOf offpeak.JobID
}

// JobFilter restricts a list of jobs. Zero fields restrict nothing.
type JobFilter struct {
	Account offpeak.AccountID
	States  []offpeak.JobState
	Node    offpeak.NodeID
	Name    string
	Label   map[string]string
}

// Queued is what matching needs of a queued job, and no more.
type Queued struct {
	Job       offpeak.JobID
	Account   offpeak.AccountID
	Attempt   offpeak.Attempt // the newest so far; a claim writes Attempt+1
	Priority  int
	Submitted time.Time
	NotBefore time.Time // zero: now
	Driver    string
	// Requirements may be shared between jobs with equal requirements.
	Requirements *offpeak.Requirements
	// Avoid are nodes on which an attempt ended by the user's or the node's
	// fault or by interruption, the newest last, at most 8.
	Avoid []offpeak.NodeID
}

// Change is what a verb did to one job: what a hub needs to keep its picture
// in memory true without asking again.
type Change struct {
	Job offpeak.Job
	// Lease is the lease that moved; nil where none did.
	Lease *offpeak.Lease
	// Queued is set where the job is queued now.
	Queued *Queued
	// Node is the node whose free resources or desired leases changed, with its
	// revision after the change; "" where none did.
	Node     offpeak.NodeID
	Revision int64
	// NodeClosed says that this ended the last lease of a draining node.
	NodeClosed bool
	// Then is what became of Report.Then; nil where it was not tried.
	Then *Claimed `json:"-"`
}

// Leases is the life of a lease.
type Leases interface {
	// Claim writes leases, many in one transaction. Each claim stands alone: a
	// claim that lost a race has Err set to ErrConflict and the others hold.
	// One claim re-checks that the job is queued with Attempt−1 as its newest
	// attempt and its NotBefore is past, that the node is online, open and
	// available, and that it has the resources free, by a guarded update under a
	// CHECK; then writes the lease as offered, expiring OfferFor from now, moves
	// the job to leased and raises the node's revision. ErrQuota: the account
	// has its quota of live leases.
	Claim(ctx context.Context, claims []Claim) ([]Claimed, error)
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
	// An older or repeated beat changes nothing and is answered all the same.
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
	// ago, so it did; nothing is ended. An asOf to come counts as now.
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

// ExpireWithin is how long after it was known to listen a caller may still end
// leases: far more than a verb waits for the store, and far less than a timeout.
const ExpireWithin = 10 * time.Second

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
}

// Claimed is what became of a claim.
type Claimed struct {
	Change
	Err error
}

// Assignment is a lease with what an agent needs to run it.
type Assignment struct {
	Lease offpeak.Lease
	Spec  offpeak.Spec
	// Checkpoints are what the attempt may resume from, newest first, at most 2.
	Checkpoints []offpeak.Checkpoint
	// Taken says that the lease was made as Claim.Taken says, for the agent that
	// the node has now, which has not spoken of it yet.
	Taken bool
	// Left is how long an offer still lived when this was read; 0 of other leases.
	Left time.Duration
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
	// Err is ErrUnknownNode, ErrStaleSession (an older incarnation), or nil.
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
	// tried for a report of another kind, nor for a refused or repeated one.
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

// Nodes is enrolment, what nodes say of themselves, and what people order.
type Nodes interface {
	// Enrol creates a node of the join token's account and burns one use of the
	// token in the same transaction. A key that is enrolled already returns its
	// node again, if it is of the same account, without burning a use: so a
	// lost answer can be asked for again. ErrUnauthenticated: the token is
	// unknown, used up, expired or revoked. ErrConflict: the key belongs to
	// another account's node.
	Enrol(ctx context.Context, join offpeak.TokenID, n NewNode, actor offpeak.Actor) (offpeak.Node, error)
	// OpenSession moves the node's generation from generation to the next,
	// stores the session's token and the incarnation, and replaces older
	// sessions. A retry after a lost answer (generation one behind, and previous
	// or incarnation is the stored one) is answered like the first. Anything
	// else behind is ErrIdentityConflict, and an event says so.
	OpenSession(ctx context.Context, s NewSession) (offpeak.Node, error)
	// SetInventory stores what the node has. Capacity never falls under what
	// live leases hold: those that no longer fit are asked to stop (device_lost,
	// node_error) and the capacity follows when they end.
	SetInventory(ctx context.Context, node offpeak.NodeID, inv offpeak.Inventory) (offpeak.Node, error)
	// SetIntent orders a node open, draining or closed. stop asks its live
	// leases to go now. A draining node without leases is closed at once.
	SetIntent(ctx context.Context, op Op, account offpeak.AccountID, node offpeak.NodeID, to offpeak.Intent, stop bool) (offpeak.Node, []Change, error)
	// RemoveNode forgets a node: its sessions end, its live leases end as
	// node_removed, its id is never used again. Its past attempts stay readable.
	RemoveNode(ctx context.Context, op Op, account offpeak.AccountID, node offpeak.NodeID) ([]Change, error)
	// Node returns one node.
	Node(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID) (offpeak.Node, error)
	// Nodes lists nodes by id.
	Nodes(ctx context.Context, account offpeak.AccountID, page Page) (nodes []offpeak.Node, next string, err error)
	// SetLiveness moves nodes to late or offline, each only if it has still not
	// been heard since HeardBefore. It returns those that moved.
	SetLiveness(ctx context.Context, changes []LivenessChange) ([]offpeak.NodeID, error)
	// LastHeard returns when nodes were last heard, those that are there.
	LastHeard(ctx context.Context, nodes []offpeak.NodeID) (map[offpeak.NodeID]time.Time, error)
	// Standing returns how nodes stand, those that are there.
	Standing(ctx context.Context, nodes []offpeak.NodeID) (map[offpeak.NodeID]Standing, error)
	// Touch sets the last-heard time of nodes that hold nothing and whose
	// heartbeats the hub answered from memory. It never moves time backwards.
	Touch(ctx context.Context, heard map[offpeak.NodeID]time.Time) error
	// FreeDevices lists the devices of a node that no live lease holds.
	FreeDevices(ctx context.Context, node offpeak.NodeID) ([]offpeak.DeviceID, error)
}

// NewNode is what Enrol stores. The id is made by the hub.
type NewNode struct {
	ID        offpeak.NodeID
	Name      string
	Key       []byte
	Inventory offpeak.Inventory
}

// NewSession opens a session of a node.
type NewSession struct {
	Node        offpeak.NodeID
	Incarnation offpeak.Incarnation
	// Previous is the incarnation the agent had written down before it asked.
	Previous   offpeak.Incarnation
	Generation int64
	Token      offpeak.Token
	Address    string
}

// Standing is what a hub that answers a node from memory compares with.
type Standing struct {
	Revision int64
	Liveness offpeak.Liveness
}

// LivenessChange asks to move one node.
type LivenessChange struct {
	Node        offpeak.NodeID
	To          offpeak.Liveness
	HeardBefore time.Time
}

// Accounts is who may do what.
type Accounts interface {
	// Bootstrap makes the first account and its admin member with a token, if
	// there is no account yet; made is false, and nothing changes, otherwise.
	Bootstrap(ctx context.Context, a offpeak.Account, m offpeak.Member, t offpeak.Token) (made bool, err error)
	// CreateAccount stores an account. A name that is taken is ErrConflict.
	CreateAccount(ctx context.Context, op Op, a offpeak.Account) (offpeak.Account, error)
	Account(ctx context.Context, id offpeak.AccountID) (offpeak.Account, error)
	Accounts(ctx context.Context, page Page) (accounts []offpeak.Account, next string, err error)
	SetQuota(ctx context.Context, op Op, account offpeak.AccountID, q offpeak.Quota) (offpeak.Account, error)
	// AddMember stores a member and the token that lets them in.
	AddMember(ctx context.Context, op Op, m offpeak.Member, t offpeak.Token) (offpeak.Member, error)
	Members(ctx context.Context, account offpeak.AccountID) ([]offpeak.Member, error)
	// RemoveMember removes a member and revokes their tokens. ErrConflict: they
	// are the last admin of all, and nobody could let another in.
	RemoveMember(ctx context.Context, op Op, account offpeak.AccountID, m offpeak.MemberID) error
	CreateToken(ctx context.Context, op Op, t offpeak.Token) (offpeak.Token, error)
	// Token looks a token up for authentication: whether it is good is for the
	// caller to say. Sessions of removed nodes are gone.
	Token(ctx context.Context, id offpeak.TokenID) (offpeak.Token, error)
	Tokens(ctx context.Context, account offpeak.AccountID, page Page) (tokens []offpeak.Token, next string, err error)
	RevokeToken(ctx context.Context, op Op, account offpeak.AccountID, id offpeak.TokenID) error
	// TouchTokens sets when tokens were last used.
	TouchTokens(ctx context.Context, used map[offpeak.TokenID]time.Time) error
}

// Data is the book-keeping of blobs, trees and logs. The bytes of blobs are in
// package blob; small log segments are in the store itself.
type Data interface {
	// AddBlob says that the bytes of hash are stored and belong to the account
	// too, and protects them from collection for a day. ErrQuota when the
	// account's storage is used up.
	AddBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash, size offpeak.Bytes) error
	// MissingBlobs returns those hashes that the account does not have, in the
	// order given; those it has are protected from collection for a day.
	MissingBlobs(ctx context.Context, account offpeak.AccountID, hashes []offpeak.Hash) ([]offpeak.Hash, error)
	// AddTree says that tree is a manifest over chunks, all of them the
	// account's (ErrBlobMissing names the first that is not).
	AddTree(ctx context.Context, account offpeak.AccountID, tree offpeak.Hash, chunks []offpeak.Hash) error
	// HasBlob returns nil if the account has the blob, else ErrNotFound.
	HasBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash) error
	// LeaseAccount returns whose job a live lease of this node runs, or a
	// *StaleLeaseError: what a node may read and write under its lease.
	LeaseAccount(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID) (offpeak.AccountID, offpeak.JobID, error)
	// LeaseReads returns nil if hash is part of the input or of a checkpoint
	// that the live lease may restore, else ErrNotFound.
	LeaseReads(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID, hash offpeak.Hash) error
	// Unused lists at most limit (account, blob) pairs that nothing refers to
	// and whose protection is over.
	Unused(ctx context.Context, limit int) ([]BlobRef, error)
	// DropBlob removes the pair if it is still unused, and says whether that was
	// the last account that had the blob, so that its bytes may go.
	DropBlob(ctx context.Context, ref BlobRef) (dropped, last bool, err error)

	// AppendLog stores an immutable segment of a live lease's log, fenced like a
	// report. Bytes before the stored end are cut off (a retry never doubles a
	// byte); a gap is a *LogGapError. It returns the stored end.
	AppendLog(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID, attempt offpeak.Attempt, a LogAppend) (end int64, err error)
	// LogSegments lists segments of a lease's log in the order of arrival,
	// beginning after segment number after.
	LogSegments(ctx context.Context, account offpeak.AccountID, lease offpeak.LeaseID, after int64, limit int) ([]LogSegment, error)
	// LogAt lists segments of one stream from the one that holds offset.
	LogAt(ctx context.Context, account offpeak.AccountID, lease offpeak.LeaseID, stream string, offset int64, limit int) ([]LogSegment, error)
}

// BlobRef is one account's hold on a blob.
type BlobRef struct {
	Account offpeak.AccountID
	Hash    offpeak.Hash
}

// LogAppend is a piece of a log. Exactly one of Data and Blob is set.
type LogAppend struct {
	// Stream is "stdout" or "stderr".
	Stream string
	// Offset is where the piece begins in its stream.
	Offset int64
	Data   []byte
	// Blob holds Length bytes that are stored as a blob of the job's account.
	Blob   offpeak.Hash
	Length int64
}

// LogSegment is a stored piece of a log.
type LogSegment struct {
	// N counts the segments of a lease from 1, in the order of arrival.
	N      int64
	Stream string
	Offset int64
	Length int64
	Data   []byte
	Blob   offpeak.Hash
	At     time.Time
}

// Upkeep is events, retention and proof.
type Upkeep interface {
	// Now is the store's time.
	Now(ctx context.Context) (time.Time, error)
	// Events lists events after a cursor, oldest first, for an account or for
	// all. It never passes a gap that may still commit. ErrNotFound: events
	// after the cursor have been pruned; begin anew from LastEvent.
	Events(ctx context.Context, account offpeak.AccountID, after int64, limit int) ([]offpeak.Event, error)
	// LastEvent is the newest cursor, 0 when there is none.
	LastEvent(ctx context.Context) (int64, error)
	// Prune removes what its retention allows, at most limit rows of each kind,
	// and says how many went. Jobs go with their attempts, logs and checkpoints.
	Prune(ctx context.Context, keep Retention, limit int) (removed int, err error)
	// Check runs the invariants I1 to I10 of the design as queries and returns
	// every row that breaks one.
	Check(ctx context.Context) ([]Violation, error)
	// Backup writes a consistent copy to a new file or folder at path while the
	// store goes on.
	Backup(ctx context.Context, path string) error
	// Close flushes and closes. Verbs after it return ErrUnavailable.
	Close() error
}

// Hubs is what the hubs of one grid know of each other, and how they wake each
// other. In a store of one hub there is nobody else: its hub leads, nobody is told
// and nothing is heard.
type Hubs interface {
	// Attend notes that a hub is at work, and asks for the lead in matching until
	// lead from now: the hub that has it gets it again, others once it has lapsed.
	// lead 0 asks for none. A hub whose blobs lie elsewhere than the grid's, which
	// the first hub says, is refused with a *BlobsElsewhereError.
	Attend(ctx context.Context, hub offpeak.Hub, lead time.Duration) (Attendance, error)
	// MoveBlobs says that the grid's blobs lie in another place from now on, which a
	// person calls at, and to which somebody has copied them. ErrConflict: another
	// hub is at work.
	MoveBlobs(ctx context.Context, hub offpeak.HubID, to, at string) error
	// Place says which grid it is, and where its blobs lie.
	Place(ctx context.Context) (Place, error)
	// Leave says that a hub goes: its lead is free at once.
	Leave(ctx context.Context, hub offpeak.HubID) error
	// Hubs lists the hubs that were at work in the last day, the newest first.
	Hubs(ctx context.Context) ([]offpeak.Hub, error)
	// Tell says a text of at most MostTold bytes to all hubs that listen now. It may
	// be lost: what it says is worth knowing sooner, no more.
	Tell(ctx context.Context, text string) error
	// Listen calls heard with each text that is told, by this hub too, and with ""
	// once it listens. It returns when ctx is done or the connection is lost.
	Listen(ctx context.Context, heard func(text string)) error
	// Waiting returns those of the jobs that are queued: what another hub needs to
	// match them.
	Waiting(ctx context.Context, jobs []offpeak.JobID) ([]Queued, error)
}

// MostTold is the longest text that can be told.
const MostTold = 7000

// AliveFor is how long after it attended a hub counts as being at work.
const AliveFor = 3 * time.Second

// Place is what tells a grid from its copies. All of it is "" before the first hub
// has attended.
type Place struct {
	// Grid is the grid's id. It stays when the rows move to another engine, and a
	// restored copy gets another.
	Grid string
	// Blobs is where its blobs lie, as hubs compare it; BlobsAt is what --blobs says
	// of that, "" for a data folder.
	Blobs, BlobsAt string
}

// Attendance is what a hub learns when it attends.
type Attendance struct {
	// Grid is the grid's id.
	Grid string
	// Alone says that the store is of one hub, which leads for ever.
	Alone bool
	// Others counts the other hubs at work.
	Others int
	// Leads says that the hub has the lead, in term Term, which grows with every
	// change of hands.
	Leads bool
	Term  int64
	// Addresses are those of all hubs at work, this one's first.
	Addresses []string
}

// BlobsElsewhereError says that a hub's blobs are not the grid's.
type BlobsElsewhereError struct {
	// Here and There say where the hub's and the grid's blobs lie, At how a person
	// names the grid's place, if it is known.
	Here, There, At string
}

func (e *BlobsElsewhereError) Error() string {
	return "this hub's blobs lie in " + e.Here + ", the grid's in " + cmp.Or(e.At, e.There) + ": all hubs of a grid use one place, see --blobs"
}

// Unwrap makes errors.Is(e, offpeak.ErrConflict) true.
func (e *BlobsElsewhereError) Unwrap() error { return offpeak.ErrConflict }

// Retention is how long each kind is kept after its end. Zero keeps for ever.
type Retention struct {
	Jobs       time.Duration
	Logs       time.Duration
	Events     time.Duration
	Operations time.Duration
}

// Violation is one row that breaks an invariant.
type Violation struct {
	// Invariant is "I1" … "I10".
	Invariant string `json:"invariant"`
	// Object is the id of what is wrong.
	Object string `json:"object"`
	// Detail says what is and what should be.
	Detail string `json:"detail"`
}

// Counted is an optional ability of a store that groups its commits.
type Counted interface {
	// Stats counts what was written since the store was opened.
	Stats() Stats
}

// Stats is how a store's commits went.
type Stats struct {
	// Commits and Verbs: how many verbs shared a commit on average.
	Commits, Verbs int64
	// Committing is the time spent in COMMIT, which includes the disk's.
	Committing time.Duration
	// Failures counts transactions that failed, after which the writer opened
	// its connection anew.
	Failures int64
}
