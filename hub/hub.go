// Package hub composes the grid's decisions with its store: it matches jobs to
// nodes, keeps leases alive while their nodes are heard, takes them back when
// they are not, and tells everyone who listens.
//
// It owns the goroutines of a hub process and the picture of fleet and queue in
// memory. It decides nothing about HTTP: package api, below it, turns requests
// into calls of Hub's methods. The four loops stand apart, so that one that is
// slow or stuck does not take the others along:
//
//   - dispatch matches queued jobs with nodes and claims;
//   - the keeper gathers heartbeats and commits their extensions in groups;
//   - the monitor expires leases, marks nodes late and offline;
//   - the janitor prunes what retention allows and collects unused blobs.
package hub

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"time"

	"offpeak"
	"offpeak/blob"
	"offpeak/store"
	"offpeak/wire"
)

// Config is what an operator may set. Zero fields take the defaults.
type Config struct {
	// Interval is the heartbeat interval handed out. Default 5s.
	Interval time.Duration
	// Timeout is the silence that expires a lease. Default 60s. A node's own
	// jitter lengthens it, up to five times.
	Timeout time.Duration
	// Offer is how long an offer lives. Default 15s.
	Offer time.Duration
	// Tick is the monitor's period. Default 1s.
	Tick time.Duration
	// Session is how long a node's session token lives. Default 15m.
	Session time.Duration
	// Retention is what the janitor keeps.
	Retention store.Retention
	// Hubs are the addresses that join tokens and enrolled nodes are given.
	Hubs []string
	// Fingerprint pins the hub's key in join tokens; "" on plain loopback.
	Fingerprint string
	// Folder is where blobs and the database lie, watched for free space.
	Folder string
	// Version is shown to clients.
	Version string
	// NoProcessLock switches the first of the two locks off. Tests only.
	NoProcessLock bool
}

// Env is the outside world a hub decides with, handed in.
type Env struct {
	Store store.Store
	Blobs blob.Store
	Log   *slog.Logger
	// Now is the hub's clock for measuring silence and stalls.
	Now func() time.Time
	// Rand seeds ids and jitter; ids take crypto randomness through Random.
	Rand   *rand.Rand
	Random io.Reader
}

// Hub is one hub process.
type Hub struct {
	cfg Config
	env Env
}

// New makes a hub; it does nothing until Run.
func New(cfg Config, env Env) *Hub { return &Hub{cfg: cfg, env: env} }

// Run loads the queue and the fleet, grants everyone an amnesty of one timeout,
// and works until ctx is done or the store is lost. It returns the cause.
func (h *Hub) Run(ctx context.Context) error { return offpeak.ErrUnavailable }

// Store is for reading what needs no decision.
func (h *Hub) Store() store.Store { return h.env.Store }

// Submit validates, stores and queues a job.
func (h *Hub) Submit(ctx context.Context, op store.Op, account offpeak.AccountID, spec offpeak.Spec) (offpeak.Job, error) {
	return offpeak.Job{}, offpeak.ErrUnavailable
}

// Retry submits an ended job's spec again; ErrConflict while it has not ended.
func (h *Hub) Retry(ctx context.Context, op store.Op, account offpeak.AccountID, job offpeak.JobID) (offpeak.Job, error) {
	return offpeak.Job{}, offpeak.ErrUnavailable
}

// Cancel cancels a job and tells its node at once.
func (h *Hub) Cancel(ctx context.Context, op store.Op, account offpeak.AccountID, job offpeak.JobID) (offpeak.Job, error) {
	return offpeak.Job{}, offpeak.ErrUnavailable
}

// WaitJob returns the job once it has ended, or as it is after wait.
func (h *Hub) WaitJob(ctx context.Context, account offpeak.AccountID, job offpeak.JobID, wait time.Duration) (offpeak.Job, error) {
	return offpeak.Job{}, offpeak.ErrUnavailable
}

// Explain says why a job waits or where it runs.
func (h *Hub) Explain(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) (wire.Explanation, error) {
	return wire.Explanation{}, offpeak.ErrUnavailable
}

// Authenticate returns the good token behind a bearer secret, or
// ErrUnauthenticated. It is cheap: good tokens are remembered for seconds, and
// a revocation through this hub takes effect at once.
func (h *Hub) Authenticate(ctx context.Context, bearer string) (offpeak.Token, error) {
	return offpeak.Token{}, offpeak.ErrUnavailable
}

// CreateToken makes a token for an account; a join token's secret also holds
// the hub's addresses and key.
func (h *Hub) CreateToken(ctx context.Context, op store.Op, in wire.NewToken) (wire.CreatedToken, error) {
	return wire.CreatedToken{}, offpeak.ErrUnavailable
}

// RevokeToken ends a token at once.
func (h *Hub) RevokeToken(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.TokenID) error {
	return offpeak.ErrUnavailable
}

// CreateAccount makes an account.
func (h *Hub) CreateAccount(ctx context.Context, op store.Op, in wire.NewAccount) (offpeak.Account, error) {
	return offpeak.Account{}, offpeak.ErrUnavailable
}

// Invite adds a member with a first token.
func (h *Hub) Invite(ctx context.Context, op store.Op, account offpeak.AccountID, in wire.NewMember) (wire.Invited, error) {
	return wire.Invited{}, offpeak.ErrUnavailable
}

// RemoveMember removes a member and revokes their tokens at once.
func (h *Hub) RemoveMember(ctx context.Context, op store.Op, account offpeak.AccountID, m offpeak.MemberID) error {
	return offpeak.ErrUnavailable
}

// Bootstrap makes the first account and admin and returns the admin's secret,
// "" when there is an account already.
func (h *Hub) Bootstrap(ctx context.Context) (secret string, err error) {
	return "", offpeak.ErrUnavailable
}

// LocalToken makes an admin token for the local file; it replaces the last one.
func (h *Hub) LocalToken(ctx context.Context) (secret string, err error) {
	return "", offpeak.ErrUnavailable
}

// Enrol turns a join token into a node.
func (h *Hub) Enrol(ctx context.Context, join offpeak.Token, in wire.Enrol, address string) (wire.Enrolled, error) {
	return wire.Enrolled{}, offpeak.ErrUnavailable
}

// Challenge returns something to sign, good for a minute; the hub keeps no state of it.
func (h *Hub) Challenge() wire.Challenge { return wire.Challenge{} }

// OpenSession checks the signature and opens a node's session.
func (h *Hub) OpenSession(ctx context.Context, in wire.OpenSession, address string) (wire.Session, error) {
	return wire.Session{}, offpeak.ErrUnavailable
}

// Heartbeat applies one heartbeat; it returns after the extensions are committed.
func (h *Hub) Heartbeat(ctx context.Context, node offpeak.NodeID, in wire.Heartbeat) (wire.Sync, error) {
	return wire.Sync{}, offpeak.ErrUnavailable
}

// Watch returns a channel that holds a token whenever what the node should hold
// may have changed, and a function that ends the watch.
func (h *Hub) Watch(node offpeak.NodeID) (changed <-chan struct{}, stop func()) { return nil, nil }

// Desired is what a node should hold now.
func (h *Hub) Desired(ctx context.Context, node offpeak.NodeID) (wire.Sync, error) {
	return wire.Sync{}, offpeak.ErrUnavailable
}

// Work is one lease with what is needed to run it.
func (h *Hub) Work(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID) (wire.Desired, error) {
	return wire.Desired{}, offpeak.ErrUnavailable
}

// Report applies reports, each for itself.
func (h *Hub) Report(ctx context.Context, node offpeak.NodeID, in []wire.Report) []wire.ReportResult {
	return nil
}

// AppendLog stores a piece of a log and wakes its followers.
func (h *Hub) AppendLog(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID, attempt offpeak.Attempt, stream string, offset int64, data []byte) (end int64, err error) {
	return 0, offpeak.ErrUnavailable
}

// FollowLog walks over the log of all attempts and both streams in the order
// of arrival, from after ("" or "attempt.n"). With follow it waits for more
// until the job has ended.
func (h *Hub) FollowLog(ctx context.Context, account offpeak.AccountID, job offpeak.JobID, after string, follow bool) iter.Seq2[wire.LogRecord, error] {
	return nil
}

// ReadLog walks over the bytes of one stream of one attempt (0: the newest).
func (h *Hub) ReadLog(ctx context.Context, account offpeak.AccountID, job offpeak.JobID, attempt offpeak.Attempt, stream string, offset int64, follow bool) iter.Seq2[[]byte, error] {
	return nil
}

// AddCheckpoint declares a stored tree to be a checkpoint.
func (h *Hub) AddCheckpoint(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID, in wire.NewCheckpoint) (offpeak.Checkpoint, error) {
	return offpeak.Checkpoint{}, offpeak.ErrUnavailable
}

// SetInventory says what a node has.
func (h *Hub) SetInventory(ctx context.Context, node offpeak.NodeID, inv offpeak.Inventory) error {
	return offpeak.ErrUnavailable
}

// SetIntent orders a node open, draining or closed.
func (h *Hub) SetIntent(ctx context.Context, op store.Op, account offpeak.AccountID, node offpeak.NodeID, in wire.IntentChange) (offpeak.Node, error) {
	return offpeak.Node{}, offpeak.ErrUnavailable
}

// RemoveNode forgets a node.
func (h *Hub) RemoveNode(ctx context.Context, op store.Op, account offpeak.AccountID, node offpeak.NodeID) error {
	return offpeak.ErrUnavailable
}

// Events walks over events as they come, from after a cursor (-1: only new
// ones), for an account ("" all) and a job ("" all), until ctx is done.
// ErrNotFound: the cursor is older than retention.
func (h *Hub) Events(ctx context.Context, account offpeak.AccountID, after int64, job offpeak.JobID) iter.Seq2[offpeak.Event, error] {
	return nil
}

// PutBlob stores a blob for an account.
func (h *Hub) PutBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash, r io.Reader) error {
	return offpeak.ErrUnavailable
}

// OpenBlob opens a blob that the account has.
func (h *Hub) OpenBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash) (io.ReadCloser, offpeak.Bytes, error) {
	return nil, 0, offpeak.ErrUnavailable
}

// CommitTree reads a stored manifest and declares it to be a tree.
func (h *Hub) CommitTree(ctx context.Context, account offpeak.AccountID, tree offpeak.Hash) error {
	return offpeak.ErrUnavailable
}

// Check runs the invariants and adds the hub's own warnings (disk, stalls).
func (h *Hub) Check(ctx context.Context) (wire.Checked, error) {
	return wire.Checked{}, offpeak.ErrUnavailable
}

// Backup writes database and blobs to a new folder.
func (h *Hub) Backup(ctx context.Context, path string) error { return offpeak.ErrUnavailable }
