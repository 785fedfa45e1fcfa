package offpeak

import (
	"encoding/json"
	"time"
)

// Spec is what a submitter writes: a task, what it needs and its limits. It is
// stored once, under the hash of its canonical JSON, and never changes.
type Spec struct {
	Name         string       `json:"name,omitempty" doc:"for people; up to 128 printable characters"`
	Task         Task         `json:"task"`
	Requirements Requirements `json:"requirements"`
	Limits       Limits       `json:"limits"`
	Retry        *RetryPolicy `json:"retry,omitempty" doc:"caps on retries by class of fault"`
	Priority     int          `json:"priority,omitempty" minimum:"-100" maximum:"100" doc:"higher runs first; default 0"`
	// Policy orders the nodes that fit; "" is the grid's.
	Policy Policy            `json:"policy,omitempty" enum:"cheapest,balanced,fastest" doc:"order of the nodes that fit: cheapest, balanced or fastest; default: as the grid's admin set it"`
	Labels map[string]string `json:"labels,omitempty" doc:"for finding jobs again; up to 32"`
}

// Task says what runs: a driver and what it is given.
type Task struct {
	// Driver is "process" or "wasm".
	Driver string `json:"driver" doc:"process or wasm"`
	// Command is the argument vector. For wasm its first element is the path
	// of the module in the input folder.
	Command []string `json:"command" doc:"argument vector, run without a shell; up to 1024 arguments, 128 KiB in all"`
	// Env is added to the job's small standard environment. Nothing is expanded.
	Env map[string]string `json:"env,omitempty" doc:"up to 256 variables, 128 KiB in all; names beginning with OFFPEAK_ are reserved"`
	// Input is the tree that is laid out in the job's folder before it starts.
	Input Hash `json:"input,omitempty" doc:"hash of a stored tree"`
	// Outputs are paths or patterns (path.Match) relative to the job's folder
	// that are stored when it ends. One that matches nothing fails the job.
	Outputs []string `json:"outputs,omitempty" doc:"paths or patterns in the job's folder, stored at the end; up to 64"`
	// Checkpoint says where checkpoints appear and how often they are stored.
	Checkpoint Checkpointing `json:"checkpoint"`
	// Grace is the time between the notice and the kill. Default 10s.
	Grace Duration `json:"grace,omitempty" doc:"time between notice and kill; default 10s, at most 10m"`
}

// Checkpointing is a task's checkpoint policy.
type Checkpointing struct {
	// Dir is relative to the job's folder. Default "checkpoints".
	Dir string `json:"dir,omitempty" doc:"relative to the job's folder; default checkpoints"`
	// Every is the shortest time between two stored checkpoints. Default 1m.
	Every Duration `json:"every,omitempty" doc:"shortest time between two stored checkpoints; default 1m, at least 100ms"`
}

// Requirements are hard filters: a node that fails one is out.
type Requirements struct {
	// CPU is in thousandths of a core. Default 1000.
	CPU    int64 `json:"cpu_milli,omitempty" doc:"thousandths of a core; default 1000"`
	Memory Bytes `json:"memory_bytes,omitempty" doc:"default 256MiB; also the limit the job is held to"`
	Disk   Bytes `json:"disk_bytes,omitempty" doc:"default 1GiB; also the limit the job's folder is held to"`
	// GPUs asks for that many distinct devices, each fitting its request.
	GPUs []GPURequest `json:"gpus,omitempty" doc:"one entry a device; up to 16"`
	OS   string       `json:"os,omitempty" doc:"as Go names it: linux, windows, darwin"`
	Arch string       `json:"arch,omitempty" doc:"as Go names it: amd64, arm64"`
	// Where are labels the node must have, exactly.
	Where map[string]string `json:"where,omitempty" doc:"labels the node must have"`
	// Match are further conditions on labels, all of which must hold: k (there is
	// such a label), !k (there is none), k=v, k!=v (another value, or none).
	Match []string `json:"match,omitempty" doc:"conditions on the node's labels, all of which hold: k (it has the label), !k (it has not), k=v, k!=v; up to 32"`
	// Nodes, where it names any, are the only nodes that the job runs on, NotNodes
	// those that it does not, NotAccounts whose nodes it does not.
	Nodes       []NodeID    `json:"nodes,omitempty" doc:"ids of the only nodes to run on; none named is all; up to 64"`
	NotNodes    []NodeID    `json:"not_nodes,omitempty" doc:"ids of nodes not to run on; up to 64"`
	NotAccounts []AccountID `json:"not_accounts,omitempty" doc:"ids of accounts on whose nodes not to run; up to 64"`
	// MaxPrice is the bid. Nil is no limit.
	MaxPrice *Price `json:"max_price,omitempty" doc:"most to pay, micro-credits per hour"`
	// NonInterruptible: no higher bid displaces the job, for which it pays the
	// operator's premium on top of the ask.
	NonInterruptible bool `json:"non_interruptible,omitempty" doc:"no higher bid displaces the job; costs a premium on the ask"`
	// Trust is the job's trust floor. Default "any".
	Trust Trust `json:"trust,omitempty" doc:"any, validated or own"`
}

// Trust is what a job asks of a node: the trust floor.
type Trust string

// The trust floors.
const (
	TrustAny       Trust = "any"
	TrustValidated Trust = "validated"
	TrustOwn       Trust = "own"
)

// GPURequest is what one device must be.
type GPURequest struct {
	// VRAM is the memory that it must have, of which Tolerance may be missing.
	VRAM   Bytes  `json:"vram_bytes,omitempty" doc:"this much memory that a job can have; a card that tells up to 2 % less counts too"`
	Vendor string `json:"vendor,omitempty" doc:"nvidia, amd, intel or apple"`
	Model  string `json:"model,omitempty" doc:"part of the model's name, case ignored"`
	// Kind says whose memory it may be. Default "discrete", for Apple "unified".
	Kind GPUKind `json:"kind,omitempty" doc:"discrete (memory of its own), unified (shares the main memory) or any; default discrete, for vendor apple unified"`
	// Compute and Driver are the least versions. A device of which no version in
	// numbers is known does not serve.
	Compute string `json:"compute,omitempty" doc:"least compute capability, for example 8.6"`
	Driver  string `json:"driver,omitempty" doc:"least version of its driver, for example 535.0"`
}

// Policy is the order in which nodes that fit a job are preferred.
type Policy string

// The policies. A job that names none is placed by its grid's.
const (
	// PolicyCheapest orders by price, then score.
	PolicyCheapest Policy = "cheapest"
	// PolicyBalanced orders by a score in which the price has a weight.
	PolicyBalanced Policy = "balanced"
	// PolicyFastest orders by measured speed, then price, then score. A node whose
	// speed is not known is the slowest.
	PolicyFastest Policy = "fastest"
)

// Valid says whether there is such a policy; "" is none, and valid.
func (p Policy) Valid() bool {
	return p == "" || p == PolicyCheapest || p == PolicyBalanced || p == PolicyFastest
}

// GPUKind says whose memory a device works in.
type GPUKind string

// The kinds of devices that may be asked for.
const (
	GPUDiscrete GPUKind = "discrete"
	GPUUnified  GPUKind = "unified"
	GPUAny      GPUKind = "any"
)

// Limits bound what an attempt may use beyond its requirements.
type Limits struct {
	// Time is how long an attempt may run. Default 24h.
	Time Duration `json:"time,omitempty" doc:"how long an attempt may run; default 24h"`
	// Prepare is how long fetching inputs and restoring may take, and storing
	// outputs at the end as well. Default 15m.
	Prepare Duration `json:"prepare,omitempty" doc:"how long fetching inputs and restoring may take; default 15m"`
	// Log caps each of stdout and stderr. Default 64MiB.
	Log Bytes `json:"log_bytes,omitempty" doc:"cap on each of stdout and stderr; default 64MiB"`
	// Processes caps processes and threads where the node can. Default 4096.
	Processes int `json:"processes,omitempty" doc:"cap on processes and threads; default 4096"`
	// ReconnectGrace lengthens the lease for a job whose restart costs more than a wait.
	ReconnectGrace Duration `json:"reconnect_grace,omitempty" doc:"wait this much longer for a silent node; default 0s"`
	// Budget is the most that all attempts of the job may cost together. Nil is no
	// limit but the account's balance.
	Budget *MicroCredits `json:"budget,omitempty" doc:"most that all attempts together may cost, micro-credits"`
	// KeepFrozen is how long a frozen job waits for its node to reach a hub. Default 15m.
	KeepFrozen Duration `json:"keep_frozen,omitempty" doc:"how long a job stays frozen while its node can't reach a hub; default 15m"`
}

// Lasts is for how long an attempt may hold a node at the most: while it is
// prepared and while it runs.
func (l Limits) Lasts() time.Duration { return l.Prepare.Std() + l.Time.Std() }

// Job is a submitted spec and how it fares.
type Job struct {
	ID      JobID     `json:"id"`
	Account AccountID `json:"account"`
	// Group and Index place the job in an array; a job of its own is index 0 of
	// a group that bears its id.
	Group string `json:"group,omitempty"`
	Index int    `json:"index"`
	// Params are the values that a sweep gives this member.
	Params map[string]string `json:"params,omitempty"`
	Spec   Spec              `json:"spec"`
	// State is set by the store only, guarded by the state it moves from.
	State JobState `json:"state"`
	// Attempt is the newest attempt, 0 before the first claim. Set by the claim.
	Attempt Attempt `json:"attempt"`
	// Lease is the newest attempt's lease while it is live, "" otherwise.
	Lease LeaseID `json:"lease,omitempty"`
	// Node is the newest attempt's node, "" before the first claim.
	Node NodeID `json:"node,omitempty"`
	// Reason, Detail, ExitCode and Signal say how the newest ended attempt
	// ended, or why the job did. Set with the move that ends it.
	Reason   EndReason `json:"reason,omitempty"`
	Detail   string    `json:"detail,omitempty"`
	ExitCode *int      `json:"exit_code,omitempty"`
	Signal   string    `json:"signal,omitempty"`
	// Output is the tree of the accepted attempt's outputs.
	Output Hash        `json:"output,omitempty"`
	Counts RetryCounts `json:"retries"`
	// OutbidAt is when the job last gave way to a higher bid.
	OutbidAt *time.Time `json:"outbid_at,omitempty"`
	// NotBefore is the earliest moment of the next claim. Set by a requeue.
	NotBefore *time.Time `json:"not_before,omitempty"`
	// RetryOf is the job this one repeats.
	RetryOf JobID `json:"retry_of,omitempty"`
	// After are the jobs that it waits for, or waited for.
	After       []Awaited  `json:"after,omitempty"`
	SubmittedBy MemberID   `json:"submitted_by,omitempty"`
	SubmittedAt time.Time  `json:"submitted_at"`
	StartedAt   *time.Time `json:"started_at,omitempty" doc:"start of the first attempt that ran"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
}

// Checkpoint is a stored snapshot of a job.
type Checkpoint struct {
	ID  int64 `json:"id"`
	Job JobID `json:"job"`
	// Attempt is the attempt that wrote it.
	Attempt Attempt `json:"attempt"`
	// Name is the entry's name in the checkpoint folder.
	Name string `json:"name"`
	// Tree is what to restore: the entry, as a tree with one root entry.
	Tree Hash `json:"tree"`
	// Metered is the lease's metered milliseconds when the snapshot was taken.
	Metered Millis    `json:"metered_ms"`
	Size    Bytes     `json:"size_bytes"`
	At      time.Time `json:"at"`
}

// Millis counts metered milliseconds.
type Millis int64

// Notice is what a job finds in the file $OFFPEAK_NOTICE when it must go. The
// file is renamed into place, so it is either absent or whole.
type Notice struct {
	Reason EndReason `json:"reason"`
	// Deadline is when what is left of the job is killed, by the node's clock.
	Deadline time.Time `json:"deadline"`
	// SecondsLeft is the same as a length, for those who do not trust clocks.
	SecondsLeft float64 `json:"seconds_left"`
}

// Canonical returns the JSON under whose hash the spec is stored.
func (s Spec) Canonical() ([]byte, error) { return json.Marshal(s) }
