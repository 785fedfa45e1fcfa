package offpeak

import "time"

// Role is what a token may do. Each API route declares the roles it admits.
type Role string

// The roles.
const (
	// RoleAdmin may do everything on every account.
	RoleAdmin Role = "admin"
	// RoleOwner runs the nodes of its account: join tokens, drain, close, remove.
	RoleOwner Role = "owner"
	// RoleSubmitter runs the jobs of its account.
	RoleSubmitter Role = "submitter"
	// RoleViewer reads its account's jobs and nodes.
	RoleViewer Role = "viewer"
	// RoleNode is a node's own session: itself and its leases, nothing else.
	RoleNode Role = "node"
	// RoleJoin enrols one node and can do nothing else.
	RoleJoin Role = "join"
)

// Account is who owns nodes, jobs and money.
type Account struct {
	ID   AccountID `json:"id"`
	Name string    `json:"name" doc:"unique; 1 to 64 characters"`
	// Quota is set by an admin.
	Quota Quota `json:"quota"`
	// Stored is the sum of the sizes of the blobs the account refers to.
	Stored    Bytes     `json:"stored_bytes"`
	CreatedAt time.Time `json:"created_at"`
}

// Quota bounds what one account may use. Zero means no bound.
type Quota struct {
	Storage Bytes `json:"storage_bytes" doc:"bytes of blobs; 0 is no bound"`
	Queued  int   `json:"queued_jobs" doc:"jobs that have not ended; 0 is no bound"`
	Running int   `json:"running_jobs" doc:"live leases; 0 is no bound"`
	GPUs    int   `json:"gpus" doc:"GPUs that live leases hold at once; 0 is no bound"`
}

// Member is a person or program that acts for an account.
type Member struct {
	ID        MemberID  `json:"id"`
	Account   AccountID `json:"account"`
	Name      string    `json:"name"`
	Role      Role      `json:"role"`
	CreatedAt time.Time `json:"created_at"`
}

// Token is what is kept of a token: never the secret, only its hash.
type Token struct {
	ID      TokenID   `json:"id"`
	Account AccountID `json:"account"`
	Member  MemberID  `json:"member,omitempty"`
	// Node is set for node sessions only.
	Node NodeID `json:"node,omitempty"`
	Role Role   `json:"role"`
	// Name says what the token is for.
	Name string `json:"name,omitempty"`
	// SecretHash is the SHA-256 of the secret part.
	SecretHash []byte `json:"-"`
	// UsesLeft counts down for join tokens; -1 is unlimited.
	UsesLeft  int        `json:"uses_left"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt time.Time  `json:"expires_at"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	LastUsed  *time.Time `json:"last_used_at,omitempty"`
}

// Actor is who asks for something: it stands in the audit row of what was done.
type Actor struct {
	Account AccountID `json:"account"`
	Member  MemberID  `json:"member,omitempty"`
	Token   TokenID   `json:"token,omitempty"`
	Node    NodeID    `json:"node,omitempty"`
	Role    Role      `json:"role"`
	// Address is the network address the request came from.
	Address string `json:"address,omitempty"`
}
