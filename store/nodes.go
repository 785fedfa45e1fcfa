package store

import (
	"context"
	"iter"
	"time"

	"offpeak"
)

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
	// node_error) and the capacity follows when they end. Offers that no longer fit
	// end at once, as declined, which the changes tell.
	SetInventory(ctx context.Context, node offpeak.NodeID, inv offpeak.Inventory) (offpeak.Node, []Change, error)
	// SetReadings stores what the node's devices do now, in place of what it said
	// before. It is no event and wakes nobody: nothing is decided by it.
	// ErrUnknownNode: there is no such node.
	SetReadings(ctx context.Context, node offpeak.NodeID, readings []offpeak.Reading) error
	// SetIntent orders a node open, draining or closed. stop asks its live
	// leases to go now. A draining node without leases is closed at once.
	SetIntent(ctx context.Context, op Op, account offpeak.AccountID, node offpeak.NodeID, to offpeak.Intent, stop bool) (offpeak.Node, []Change, error)
	// Trust ends what is held against a node: its quarantine, and the faults that
	// would lead to one. Where nothing is, nothing changes.
	Trust(ctx context.Context, op Op, account offpeak.AccountID, node offpeak.NodeID) (offpeak.Node, error)
	// Proved ends a node's quarantine, if it still is that since then: a probe has
	// lasted for long enough.
	Proved(ctx context.Context, node offpeak.NodeID, since time.Time) error
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
	// Ends tells how leases ended since a moment, by node and to the day. It is for a
	// hub that starts.
	Ends(ctx context.Context, since time.Time) ([]Ends, error)
	// Stays walks over the times, by node and from the oldest on, for which nodes were
	// online and available, of those that began since a moment. It is for a hub that
	// starts.
	Stays(ctx context.Context, since time.Time) iter.Seq2[Stay, error]
	// FreeDevices lists the devices of a node that no live lease holds.
	FreeDevices(ctx context.Context, node offpeak.NodeID) ([]offpeak.DeviceID, error)
}

// Ends is how many leases of a node ended for one reason, about when.
type Ends struct {
	Node   offpeak.NodeID
	Reason offpeak.EndReason
	Leases int64
	// At is the mean of their ends, Last the newest.
	At, Last time.Time
}

// Stay is a time for which a node was online and available.
type Stay struct {
	Node offpeak.NodeID
	From time.Time
	// To is zero where it goes on.
	To time.Time
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
