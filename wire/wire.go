// Package wire is what hub, agent and clients say to each other: messages,
// error codes, the protocol version, and the Direct client that makes one call
// each.
//
// It owns the JSON forms of the protocol and the one table that maps errors to
// stable codes and HTTP statuses, which serves both ends: errors.Is works
// across the network. It decides nothing, retries nothing and keeps no state;
// loops live with their owners (package agent, package cli).
//
// Every exchange carries the protocol version in the header Offpeak-Protocol.
// Every agent message carries incarnation and sequence; every client mutation
// carries an operation id in the header Idempotency-Key.
package wire

import (
	"time"

	"offpeak"
)

// Protocol is the version of the protocol. A hub serves this and the one before.
const Protocol = 1

// Header names.
const (
	HeaderProtocol  = "Offpeak-Protocol"
	HeaderOperation = "Idempotency-Key"
	// HeaderAgain is on a batch of payouts that had been posted before.
	HeaderAgain = "Offpeak-Again"
)

// Bounds of bodies. MaxBody is for JSON bodies, blobs have blob.MaxBlob.
const (
	MaxBody    = 1 * offpeak.MiB
	MaxReports = 256
	// MaxInlineLog bounds the log bytes that travel inside one report or append.
	MaxInlineLog = 256 * offpeak.KiB
)

// Enrol asks for a node: POST /v1/node/enrol with a join token.
type Enrol struct {
	Name string `json:"name" doc:"for people; the host name by default"`
	// Key is the Ed25519 public key, 32 bytes.
	Key []byte `json:"key"`
	// Proof is the signature of EnrolMessage(join token id) by the key.
	Proof     []byte            `json:"proof"`
	Inventory offpeak.Inventory `json:"inventory"`
}

// EnrolMessage is what an enrolling node signs to prove that it has the key.
func EnrolMessage(join offpeak.TokenID) []byte {
	return []byte("offpeak enrol v1\n" + string(join))
}

// Enrolled answers Enrol.
type Enrolled struct {
	Node    offpeak.NodeID    `json:"node"`
	Account offpeak.AccountID `json:"account"`
	Name    string            `json:"name"`
	// Hubs are addresses of hubs, any of which will do.
	Hubs []string `json:"hubs"`
	// Generation is that of the node's last session, for a node that has its key
	// and has lost the rest; 0 for a new node.
	Generation int64 `json:"generation"`
}

// Challenge answers POST /v1/node/challenge: random bytes to be signed soon.
type Challenge struct {
	Challenge string `json:"challenge"`
}

// OpenSession asks for a session: POST /v1/node/session.
type OpenSession struct {
	Node        offpeak.NodeID      `json:"node"`
	Incarnation offpeak.Incarnation `json:"incarnation"`
	Previous    offpeak.Incarnation `json:"previous,omitempty"`
	Generation  int64               `json:"generation"`
	Challenge   string              `json:"challenge"`
	// Signature is over SessionMessage by the node's key.
	Signature []byte `json:"signature"`
}

// Session answers OpenSession.
type Session struct {
	// Token is a bearer token for the node's routes until ExpiresAt.
	Token      string    `json:"token"`
	ExpiresAt  time.Time `json:"expires_at"`
	Generation int64     `json:"generation"`
	Name       string    `json:"name"`
	// Refresh is how long the agent waits before it opens the next session.
	Refresh offpeak.Duration `json:"refresh"`
}

// Heartbeat is the agent's periodic report of all it holds: POST /v1/node/heartbeat.
type Heartbeat struct {
	Incarnation offpeak.Incarnation `json:"incarnation"`
	// Seq is drawn from one counter for heartbeats and reports of an
	// incarnation, when the message is composed.
	Seq          int64                `json:"seq"`
	Availability offpeak.Availability `json:"availability"`
	Why          offpeak.EndReason    `json:"why,omitempty"`
	Held         []HeldLease          `json:"held,omitempty"`
	// SinceAck is how long ago, on a clock that counts suspended time, the
	// agent sent the last heartbeat that was acknowledged. 0: none yet.
	SinceAck offpeak.Duration `json:"since_ack,omitempty"`
}

// HeldLease is one lease an agent holds.
type HeldLease struct {
	Lease   offpeak.LeaseID `json:"lease"`
	Attempt offpeak.Attempt `json:"attempt"`
	Frozen  bool            `json:"frozen,omitempty"`
	Metered offpeak.Millis  `json:"metered_ms,omitempty"`
}

// Sync is the hub's word on what a node should hold. It answers every
// heartbeat and is pushed on the stream whenever it changes by other than the
// node's own reports. An agent ignores one whose Revision is lower than one it
// has applied from this hub's store.
type Sync struct {
	Revision int64 `json:"revision"`
	// Interval is when to send the next heartbeat, before jitter.
	Interval offpeak.Duration `json:"interval"`
	// Timeout is the silence that expires a lease. Set in heartbeat replies
	// only: it counts from when the acknowledged heartbeat was sent.
	Timeout offpeak.Duration `json:"timeout,omitempty"`
	// Leases are all leases the node should hold. Any other that it holds has
	// ended: it is dropped without a report.
	Leases []Desired `json:"leases"`
}

// Desired is one lease a node should hold.
type Desired struct {
	Lease   offpeak.LeaseID    `json:"lease"`
	Job     offpeak.JobID      `json:"job"`
	Attempt offpeak.Attempt    `json:"attempt"`
	State   offpeak.LeaseState `json:"state"`
	// Stop asks the attempt to go, with notice, for this reason.
	Stop offpeak.EndReason `json:"stop,omitempty"`
	// Offer is how long an offer still lives when this was composed.
	Offer offpeak.Duration `json:"offer,omitempty"`
	// Work is there while the lease is offered, or taken as Report.Takes says, and
	// when an agent asks for it with GET /v1/node/leases/{lease}.
	Work *Work `json:"work,omitempty"`
}

// Work is what an agent needs to run an attempt.
type Work struct {
	JobName   string            `json:"job_name,omitempty"`
	Account   offpeak.AccountID `json:"account"`
	Task      offpeak.Task      `json:"task"`
	Limits    offpeak.Limits    `json:"limits"`
	Resources offpeak.Resources `json:"resources"`
	// VRAM is how much of each of the devices the job may have, in their order; 0
	// or absent is all.
	VRAM        []offpeak.Bytes      `json:"vram_bytes,omitempty"`
	Checkpoints []offpeak.Checkpoint `json:"checkpoints,omitempty"`
	// Egress are the only destinations that the job may reach.
	Egress []string `json:"egress,omitempty"`
	// Inputs are the outputs of jobs that this one waited for.
	Inputs []Input `json:"inputs,omitempty"`
}

// Input is a tree that is laid out in a folder of the job's folder.
type Input struct {
	Into string `json:"into"`
	// Tree is "" for an empty folder.
	Tree offpeak.Hash `json:"tree,omitempty"`
}

// Readings is what a node's devices do now: PUT /v1/node/readings. It is kept in
// place of what was said before, and changes nothing else.
type Readings struct {
	Readings []offpeak.Reading `json:"readings"`
}

// Report is what an agent says of one lease; kinds as in the store's contract:
// accepted, running, finishing, ended, cumulative.
type Report struct {
	Lease       offpeak.LeaseID     `json:"lease"`
	Attempt     offpeak.Attempt     `json:"attempt"`
	Incarnation offpeak.Incarnation `json:"incarnation"`
	Seq         int64               `json:"seq"`
	Kind        string              `json:"kind"`
	Ran         offpeak.Millis      `json:"ran_ms,omitempty"`
	Started     bool                `json:"started,omitempty"`
	Restored    int64               `json:"restored_checkpoint,omitempty"`
	Logs        []LogPiece          `json:"logs,omitempty"`
	Reason      offpeak.EndReason   `json:"reason,omitempty"`
	Detail      string              `json:"detail,omitempty"`
	ExitCode    *int                `json:"exit_code,omitempty"`
	Signal      string              `json:"signal,omitempty"`
	Output      offpeak.Hash        `json:"output,omitempty"`
	LogEnd      map[string]int64    `json:"log_end,omitempty"`
	// Takes says with an end that the agent takes what it is given for it: the
	// hub may lease what is free now as accepted, without an offer. The agent
	// learns of it as of an offer, with a lease in the state preparing that comes
	// with its work.
	Takes bool `json:"takes,omitempty"`
}

// LogPiece is a piece of one stream of a lease's log.
type LogPiece struct {
	Stream string `json:"stream"`
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`
}

// Reports is the body of POST /v1/node/reports: at most MaxReports.
type Reports struct {
	Reports []Report `json:"reports"`
}

// ReportResults answers Reports, one for one.
type ReportResults struct {
	Results []ReportResult `json:"results"`
}

// ReportResult is what became of one report.
type ReportResult struct {
	// State is the lease's state after the report.
	State offpeak.LeaseState `json:"state,omitempty"`
	// Problem is set when it was refused.
	Problem *Problem `json:"problem,omitempty"`
}

// NewCheckpoint declares a stored tree to be a checkpoint: POST
// /v1/node/leases/{lease}/checkpoints.
type NewCheckpoint struct {
	Attempt offpeak.Attempt `json:"attempt"`
	Name    string          `json:"name"`
	Tree    offpeak.Hash    `json:"tree"`
	Metered offpeak.Millis  `json:"metered_ms"`
	Size    offpeak.Bytes   `json:"size_bytes"`
}

// Hashes is the body of …/blobs/missing and its answer.
type Hashes struct {
	Hashes []offpeak.Hash `json:"hashes"`
}

// Tree is the body of …/trees.
type Tree struct {
	Hash offpeak.Hash `json:"hash"`
}

// LogEnd answers an append: where the stored log ends now.
type LogEnd struct {
	End int64 `json:"end"`
}

// Local is the file with mode 0600 through which hub, agent and CLI on one
// machine find each other.
type Local struct {
	// Hubs are the addresses to try.
	Hubs []string `json:"hubs"`
	// Token is an admin token that the hub made for this file.
	Token string `json:"token"`
	// Fingerprint pins the hub's key, "" on plain loopback HTTP.
	Fingerprint string `json:"fingerprint,omitempty"`
	// PID is the hub's process.
	PID int `json:"pid"`
}

// JoinToken is what the opaque text that an owner copies to a new machine holds.
type JoinToken struct {
	Hubs        []string `json:"h"`
	Fingerprint string   `json:"f,omitempty"`
	Token       string   `json:"t"`
}

// IntentChange orders a node: POST /v1/nodes/{node}/intent.
type IntentChange struct {
	Intent offpeak.Intent `json:"intent" doc:"open, draining or closed"`
	// Stop takes running work off the node now, with notice.
	Stop bool `json:"stop,omitempty"`
}

// Explanation says why a job waits, or where it runs: GET /v1/jobs/{job}/explain. Of a
// job that is not submitted it says what would become of it: POST /v1/explain.
type Explanation struct {
	// Job and State are absent where the job is not submitted.
	Job   offpeak.JobID    `json:"job,omitempty" doc:"absent of a job that is not submitted"`
	State offpeak.JobState `json:"state,omitempty" doc:"absent of a job that is not submitted"`
	// Starts says of a job that is not submitted that nothing would keep it waiting.
	Starts bool `json:"starts,omitempty" doc:"of a job that is not submitted: nothing would keep it waiting"`
	// Summary is one sentence for people, with the next step.
	Summary string `json:"summary"`
	// Fits counts the nodes that fit now, Could those that would if they were idle
	// and took work.
	Fits  int `json:"fits" doc:"nodes that fit now"`
	Could int `json:"could" doc:"nodes that fit if they are idle and take work"`
	// Filters are what each filter leaves; one that no node failed is not listed.
	Filters []Filter `json:"filters,omitempty" doc:"what each filter leaves, in the order in which they are tried; one that no node failed is not listed"`
	// Causes counts, for each filter, the nodes that failed it first, the most nodes
	// first; then those that nodes fail only behind another.
	Causes []Cause `json:"causes,omitempty"`
	// Nearest are the smallest changes that would let it start, while it would wait.
	Nearest []Nearest `json:"nearest,omitempty" doc:"the smallest changes that would let it start, nearest first, while it would wait; each was put to the filters, and to its account's quota and money"`
	// Seen is how many nodes were looked at for Nearest and for causes behind the
	// first, where those are not all.
	Seen int `json:"seen,omitempty" doc:"how many nodes were looked at for nearest and for all of causes; absent where that were all nodes"`
	// Nodes says for each node (at most 100) why not, or its score.
	Nodes []NodeVerdict `json:"nodes,omitempty"`
	// Won says why the first of the nodes that fit comes first.
	Won *Won `json:"won,omitempty" doc:"why the first of the nodes that fit comes first"`
	// Policy is by which order a job that waits is placed, PolicyFrom who named it.
	Policy     string `json:"policy,omitempty" doc:"the order that chooses among the nodes that fit, of a job that waits: cheapest, balanced or fastest"`
	PolicyFrom string `json:"policy_from,omitempty" doc:"who named that order: job or grid"`
	// Placed is what was recorded when the newest attempt was placed.
	Placed *Placed `json:"placed,omitempty" doc:"what was recorded when the newest attempt was placed; absent where there was none, or its event is no longer kept"`
	// After are the jobs that it waits for, while it is blocked.
	After []offpeak.Awaited `json:"after,omitempty"`
	// NotBefore is set while the job pauses after a failure.
	NotBefore *time.Time `json:"not_before,omitempty"`
	// Ahead counts queued jobs that are matched before this one.
	Ahead int `json:"ahead"`
	// Withheld is what the job waits for beside a node.
	Withheld []Withheld `json:"withheld,omitempty" doc:"what of its account's, or its own, it waits for beside a node"`
	// Gang is set of a member of a gang.
	Gang *Gang `json:"gang,omitempty" doc:"of a member of a gang: how many nodes it needs at once, of which fits counts those that there are"`
	// Share is what its account used and holds; absent where use does not count.
	Share *Share `json:"share,omitempty" doc:"what its account used lately and holds, which the order of the queue follows"`
	// Reserved is the node that is kept for the job.
	Reserved *Reservation `json:"reserved,omitempty" doc:"the node that is kept for it, since it waited for long"`
	// StartsBy is when the job starts at the latest.
	StartsBy *time.Time `json:"starts_by,omitempty" doc:"when it starts at the latest, if nodes stay and leases keep to their limits; absent where nothing can be said"`
	// Asleep is how many nodes must fit the job before secondary metrics
	// (reliability, expected return, and what else is measured) weigh; 0 while they do.
	Asleep int `json:"asleep,omitempty" doc:"how many nodes must fit before what is measured of them weighs (reliability, expected return, and what else is known); absent while it does"`
}

// Withheld is one thing that a job waits for beside a node.
type Withheld struct {
	Code     string `json:"code" doc:"turn (of its array), running_jobs, gpus, balance or budget"`
	Sentence string `json:"sentence" doc:"for people, with the next step"`
}

// Share is an account's part of the grid.
type Share struct {
	CoreHours float64 `json:"core_hours" doc:"what it used, as it counts now: what was used a half-life ago counts half, a GPU as several cores"`
	Part      float64 `json:"part" doc:"its part of what everybody used, 0 to 1"`
	Cores     float64 `json:"cores" doc:"what it holds now, GPUs counted as cores"`
}

// Reservation is a node that is kept for a job.
type Reservation struct {
	Node offpeak.NodeID `json:"node"`
	At   time.Time      `json:"at" doc:"when what runs there has reached its time limits"`
	// Nodes counts those that are kept for a gang, of which Node is one.
	Nodes int `json:"nodes,omitempty" doc:"how many nodes are kept for a gang, of which this is one"`
}

// Gang is what a gang that waits needs.
type Gang struct {
	Needs  int `json:"needs" doc:"nodes that it needs at once: one for each member that has not ended"`
	Queued int `json:"queued" doc:"members that are queued: it starts when all that have not ended are"`
}

// Cause counts nodes by the first filter they failed.
type Cause struct {
	Code  offpeak.FitCode `json:"code"`
	Nodes int             `json:"nodes" doc:"nodes that fail it first"`
	// All counts those that fail it at all, also behind another filter.
	All int `json:"all,omitempty" doc:"nodes that fail it at all, also behind another filter; absent where nothing keeps the job waiting"`
	// Example is the nearest node's shortfall.
	Example offpeak.Reason `json:"example"`
}

// Filter is what one filter leaves.
type Filter struct {
	Code   offpeak.FitCode `json:"code"`
	Failed int             `json:"failed" doc:"nodes that passed all filters before it and not this one"`
	Left   int             `json:"left" doc:"nodes that passed it too"`
}

// Nearest is a change that would let a job start.
type Nearest struct {
	// Parts are what changes, one or two.
	Parts []NearestPart `json:"parts" doc:"what changes, one thing or two"`
	Nodes int           `json:"nodes" doc:"nodes that fit then"`
	// At is when, where time is a part.
	At       *time.Time `json:"at,omitempty" doc:"when, where time is a part; otherwise now"`
	Sentence string     `json:"sentence" doc:"for people"`
}

// NearestPart is one thing that changes.
type NearestPart struct {
	Code offpeak.FitCode `json:"code" doc:"a filter that it lifts"`
	Flag string          `json:"flag,omitempty" doc:"the flag of the command line that asks for it; absent for what only time, or money, brings"`
	From string          `json:"from,omitempty" doc:"what it says"`
	To   string          `json:"to,omitempty" doc:"what it would have to say; absent: nothing"`
}

// Won says by what the first node comes before the second.
type Won struct {
	Over     offpeak.NodeID `json:"over,omitempty" doc:"the second; absent where no other fits"`
	By       string         `json:"by,omitempty" doc:"the first thing in the order that differs: fence, speed, price, score or tie"`
	Part     string         `json:"part,omitempty" doc:"of the scores, the part that sets them apart most"`
	Sentence string         `json:"sentence" doc:"for people"`
}

// Placed is how an attempt was placed.
type Placed struct {
	Attempt offpeak.Attempt `json:"attempt"`
	Node    offpeak.NodeID  `json:"node"`
	At      time.Time       `json:"at"`
	Price   offpeak.Price   `json:"price" doc:"what it pays, micro-credits per hour"`
	Policy  string          `json:"policy,omitempty" doc:"the order that chose"`
	// PolicyFrom says who named the order; "" where an older hub did not note it.
	PolicyFrom string  `json:"policy_from,omitempty" doc:"who named that order: job or grid"`
	Weights    int64   `json:"weights" doc:"version of the weights that chose; 0 are the defaults"`
	Score      float64 `json:"score"`
	// Candidates is how many nodes fitted, at the least; 0 where nobody counted.
	Candidates int `json:"candidates,omitempty" doc:"nodes that fitted, at the least; absent where that made no difference"`
}

// NodeVerdict is one node in an explanation.
type NodeVerdict struct {
	Node   offpeak.NodeID `json:"node"`
	Name   string         `json:"name"`
	Fits   bool           `json:"fits"`
	Reason offpeak.Reason `json:"reason"`
	// Also are the filters that it fails behind the first.
	Also []offpeak.Reason `json:"also,omitempty" doc:"filters that it fails behind the first"`
	// Price is what the job would pay an hour, where it fits.
	Price *offpeak.Price     `json:"price,omitempty" doc:"what the job would pay, micro-credits per hour"`
	Score float64            `json:"score"`
	Parts map[string]float64 `json:"parts,omitempty" doc:"the parts of the score, each from 0 to 1"`
	// Shares are what each part adds to the score by its weight.
	Shares map[string]float64 `json:"shares,omitempty" doc:"what each part adds to the score by its weight"`
	// Note says where a GPU of a node that fits tells a little less memory than was
	// asked for.
	Note string `json:"note,omitempty" doc:"where a GPU counts though it tells a little less memory than was asked for"`
}
