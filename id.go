package offpeak

// Ids are opaque strings with a prefix that says what they name. They are made
// at the edges (hub, CLI) and handed in; nothing in this package makes one.
type (
	// AccountID names an account: "acct_…".
	AccountID string
	// MemberID names a person or program that acts for an account: "member_…".
	MemberID string
	// NodeID names a node: "node_…". It is bound to the node's key at enrolment.
	NodeID string
	// DeviceID is a device's UUID as its vendor's tool prints it ("GPU-…"), or
	// a stable PCI path where there is none. It is unique on its node.
	DeviceID string
	// JobID names a job: "job_…".
	JobID string
	// LeaseID is 128 random bits in hex behind "lease_". It is never reused:
	// it is what tells the holder of a lease from one who held an older lease
	// with the same attempt number before a backup was restored.
	LeaseID string
	// HubID names one run of a hub process: "hub_…".
	HubID string
	// TokenID names a token: the public half of it, safe to print.
	TokenID string
	// OpID names one client mutation. The client makes it and keeps it for
	// retries; 1 to 64 bytes of [A-Za-z0-9_-].
	OpID string
	// Hash is the lower-case hex SHA-256 of a blob's bytes (64 characters).
	Hash string
)

// Attempt counts the tries of a job from 1. It is the fencing number: only the
// newest attempt of a job may report, upload or be paid.
type Attempt int

// Incarnation is drawn at random each time an agent process starts, so that a
// hub can tell a restarted agent from a repeated message.
type Incarnation string
