package offpeak

import (
	"encoding/json"
	"time"
)

// Event is a row written in the transaction that causes it.
type Event struct {
	// Cursor is opaque and strictly growing; it is the stream's event id.
	Cursor int64     `json:"cursor"`
	At     time.Time `json:"at"`
	// Type is "job.queued", "lease.offered", "node.offline", … : the object and
	// the state it reached, or what was done to it.
	Type    string    `json:"type"`
	Account AccountID `json:"account,omitempty"`
	Job     JobID     `json:"job,omitempty"`
	Attempt Attempt   `json:"attempt,omitempty"`
	Lease   LeaseID   `json:"lease,omitempty"`
	Node    NodeID    `json:"node,omitempty"`
	Reason  EndReason `json:"reason,omitempty"`
	// Hub wrote it; "" where there is only one.
	Hub HubID `json:"hub,omitempty"`
	// Data holds what else replay and people need, as a JSON object.
	Data json.RawMessage `json:"data,omitempty"`
}
