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
	"context"
	"iter"
	"time"

	"offpeak"
)

// Store is everything the hub keeps.
type Store interface {
	Jobs
	Groups
	Leases
	Nodes
	Accounts
	Data
	Upkeep
	Hubs
	Money
	Asks
	Weights
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
	//
	// A job that waits for others which have not all ended is blocked (job.blocked):
	// whoever ends the last of them queues it in the same transaction. Where one that
	// must succeed did not, the job has failed instead, by dependency_failed, and what
	// waits for it fares as it has to. A *FieldError names a job that is not there or is
	// another account's.
	Submit(ctx context.Context, op Op, job NewJob) (offpeak.Job, error)
	// SubmitAll stores jobs all or none, in their order, each as Submit does; one
	// may wait for those before it, and one that repeats another waits for those before
	// it that repeat what that one waited for. The operation id is that of all together.
	SubmitAll(ctx context.Context, op Op, jobs []NewJob) ([]offpeak.Job, error)
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
	// Free tells jobs that others which they wait for have ended, where the
	// transaction of that end had too many to tell; at most about limit of them.
	// more: there are more.
	Free(ctx context.Context, limit int) (changes []Change, more bool, err error)
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
	// It waits for what that one did, where that was retried for its newest retry;
	// ErrConflict: one of those failed, and was not retried.
	RetryOf offpeak.JobID
	// After are the jobs that it waits for; none with RetryOf.
	After []offpeak.After
	// Array makes an array of it, in SubmitAll; ID is a group's id then, as RetryOf is,
	// of which the members are repeated that did not succeed. It is returned as a job
	// with that id; FillGroup writes its members.
	Array *offpeak.Array
	// Group and Index place it among jobs that were submitted together; "" for a
	// job of its own.
	Group string
	Index int
}

// JobFilter restricts a list of jobs. Zero fields restrict nothing.
type JobFilter struct {
	Account offpeak.AccountID
	States  []offpeak.JobState
	Node    offpeak.NodeID
	Name    string
	Label   map[string]string
	// Group: only its members. Alone: only jobs that are members of none.
	Group offpeak.GroupID
	Alone bool
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
	// Policy orders the nodes that fit; "" is the grid's.
	Policy offpeak.Policy
	// Lasts is for how long an attempt may hold a node, as its limits say.
	Lasts time.Duration
	// Avoid are nodes on which an attempt ended by the user's or the node's
	// fault or by interruption, or was declined, the newest last, at most 16. Failed
	// are those of them from which that fences the job for a while.
	Avoid  []offpeak.NodeID
	Failed []offpeak.Failed `json:",omitempty"`
	// Group is the array that it is a member of, if at most AtOnce of that may hold
	// leases at once; "" where there is no such limit.
	Group  offpeak.GroupID
	AtOnce int
	// Gang is the gang that it is a member of, "" of all others: it is claimed with
	// all of those that have not ended.
	Gang offpeak.GroupID
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
	// Tried says that this changed what is held against Node, and Quarantine what it
	// is now, nil where it takes work.
	Tried      bool                `json:"-"`
	Quarantine *offpeak.Quarantine `json:"-"`
	// Begun says that the lease began to run with this, at the price of Lease.
	Begun bool `json:"-"`
	// Paid is what the lease's last price term came to, where this settled one.
	Paid *Paid `json:"-"`
	// Then is what became of Report.Then; nil where it was not tried.
	Then *Claimed `json:"-"`
	// Broken is the gang of which this ended or queued a member, so that the others have
	// to leave their nodes: MendGang sees to that.
	Broken offpeak.GroupID `json:"-"`
	// Freed is what this end meant for jobs that wait; nil where it is no end that
	// any waits for.
	Freed *Freed `json:"-"`
}

// Freed is what the end of a job meant for those that wait for it.
type Freed struct {
	// Changes are of jobs that are queued now, or have failed since a job that they
	// wait for did not succeed; also of those that wait for these.
	Changes []Change
	// More: there are others that are yet to be told, by Free.
	More bool
	// Fill: groups that waited are unfinished now.
	Fill bool
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

// Upkeep is events, retention and proof.
type Upkeep interface {
	// Now is the store's time.
	Now(ctx context.Context) (time.Time, error)
	// Events lists events after a cursor, oldest first, for an account or for
	// all. It never passes a gap that may still commit, so the newest may wait for a
	// transaction that has nothing to do with them. One transaction's events stand
	// together, in its order; those of two, even of one object, may stand in another
	// order than they were committed in: cursors are given before rows are locked.
	// So an event says what was done and that there is something to read, and what
	// is so now is what the object's own verb says. ErrNotFound: events after the
	// cursor have been pruned; begin anew from LastEvent.
	Events(ctx context.Context, account offpeak.AccountID, after int64, limit int) ([]offpeak.Event, error)
	// Offered is the event with which the newest attempt of a job was offered.
	// ErrNotFound: there was none, or it is no longer kept.
	Offered(ctx context.Context, job offpeak.JobID) (offpeak.Event, error)
	// LastEvent is the newest cursor, 0 when there is none.
	LastEvent(ctx context.Context) (int64, error)
	// Pruned is the cursor of the newest event that retention removed, 0 for none:
	// the oldest that is kept comes after it.
	Pruned(ctx context.Context) (int64, error)
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

// Retention is how long each kind is kept after its end. Zero keeps for ever.
type Retention struct {
	Jobs       time.Duration
	Logs       time.Duration
	Events     time.Duration
	Operations time.Duration
	// Asks is how long what a node asked is kept after it asked something else.
	Asks time.Duration
	// Minutes and Hours are how long candles of these are kept.
	Minutes, Hours time.Duration
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
