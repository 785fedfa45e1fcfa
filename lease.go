package offpeak

import "time"

// Resources is what a lease holds on a node: a vector, no slots. Whole devices
// are named; a device is in at most one live lease.
type Resources struct {
	CPU     int64      `json:"cpu_milli"`
	Memory  Bytes      `json:"memory_bytes"`
	Disk    Bytes      `json:"disk_bytes"`
	Devices []DeviceID `json:"devices,omitempty"`
}

// Outbid says to whom a lease gives way.
type Outbid struct {
	// Job is the one that bid more.
	Job JobID `json:"job"`
	// Price is what it pays for its first term there.
	Price Price `json:"price"`
}

// Lease is the fenced, expiring right to run one attempt on named resources of
// one node at one locked price.
type Lease struct {
	ID      LeaseID   `json:"id"`
	Job     JobID     `json:"job"`
	Account AccountID `json:"account"`
	Attempt Attempt   `json:"attempt"`
	// Rank tells the members of a gang apart; 0 for a job on one node.
	Rank int    `json:"rank"`
	Node NodeID `json:"node"`
	// State is set by the store only, guarded by attempt, id and the state it moves from.
	State LeaseState `json:"state"`
	// Frozen is what the agent last said.
	Frozen bool `json:"frozen,omitempty"`
	// Stop is set when the hub wants the attempt to go: the agent gives notice
	// with this reason. "" while it may run.
	Stop      EndReason `json:"stop,omitempty"`
	Resources Resources `json:"resources"`
	// Price is locked for the term: at claim, and at each renewal.
	Price Price `json:"price"`
	// Outbid is set where the lease gives way to a job that bid more.
	Outbid *Outbid `json:"outbid,omitempty"`
	// ExpiresAt is when the monitor may take the lease back, in store time.
	ExpiresAt time.Time `json:"expires_at"`
	// Metered is the cumulative metered time the hub accepted.
	Metered Millis `json:"metered_ms"`
	// Seq is the highest report sequence applied.
	Seq int64 `json:"seq"`
	// Reason, Detail, ExitCode, Signal and Output say how it ended.
	Reason   EndReason `json:"reason,omitempty"`
	Detail   string    `json:"detail,omitempty"`
	ExitCode *int      `json:"exit_code,omitempty"`
	Signal   string    `json:"signal,omitempty"`
	Output   Hash      `json:"output,omitempty"`
	// Restored names the checkpoint the attempt resumed from, 0 for none.
	Restored  int64      `json:"restored_checkpoint,omitempty"`
	OfferedAt time.Time  `json:"offered_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}
