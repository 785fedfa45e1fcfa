package store

import (
	"context"
	"encoding/json"
	"time"

	"offpeak"
)

// Asks is what owners ask for their nodes, and what was paid. A plan says what is
// asked when; it is kept as text, since reading it is for the market. So a node's
// ask is changed in two steps: who sets a plan, or a moment that a plan named,
// makes the node's ask due; then a hub says what is asked from now on.
type Asks interface {
	// SetPlan stores what an owner asks for one of their nodes or, with node "", for
	// all nodes of the account that have no plan of their own, also those that
	// enrol later. The ask of each node concerned is due at once, and what it asked
	// before holds until MoveAsks; a node that enrols under an account's plan asks
	// nothing before that. It returns the nodes. An empty plan takes the one that
	// there is back: the node goes by its account's then, or asks nothing of anybody.
	// until is when the plan ends, the zero time for never: one that is over is refused
	// with a *offpeak.FieldError, but not the same operation again, which was in time.
	SetPlan(ctx context.Context, op Op, account offpeak.AccountID, node offpeak.NodeID, plan json.RawMessage, until time.Time) ([]offpeak.NodeID, error)
	// Plan returns the plan that was set for a node or, with node "", for the
	// account: not the account's for a node that has none. ErrNotFound: there is none.
	Plan(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID) (Plan, error)
	// DueAsks returns at most limit nodes whose ask is due, and of nodes those that
	// are there whether due or not; limit 0 returns only these.
	DueAsks(ctx context.Context, limit int, nodes ...offpeak.NodeID) ([]DueAsk, error)
	// MoveAsks sets what nodes ask from now on, each only while its ask has the
	// revision that DueAsks returned, so that of two hubs that look at one node one
	// is heard. It returns the nodes whose ask changed; those get a row of history
	// and an event, node.ask.
	MoveAsks(ctx context.Context, moves []AskMove) ([]offpeak.NodeID, error)
	// AskHistory lists what a node asked, the newest first.
	AskHistory(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID, page Page) (list []AskChange, next string, err error)
	// AddCandles joins candles to those that are stored, as offpeak.Candle.Join does.
	AddCandles(ctx context.Context, candles []offpeak.Candle) error
	// Candles lists candles by segment and then start.
	Candles(ctx context.Context, filter CandleFilter, page Page) (list []offpeak.Candle, next string, err error)
}

// Plan is a stored plan.
type Plan struct {
	Account offpeak.AccountID
	// Node is "" for the account's.
	Node  offpeak.NodeID
	Plan  json.RawMessage
	SetAt time.Time
}

// DueAsk is a node whose ask may change now.
type DueAsk struct {
	Node offpeak.Node
	// Revision is of the node's ask: it grows with every plan and every move.
	Revision int64
	// Plan holds for the node: its own, or else its account's. Empty: none.
	Plan json.RawMessage
	// Due is when the ask is to be looked at; zero: never.
	Due time.Time
	// Now is the store's time.
	Now time.Time
}

// AskMove says what a node asks from now on.
type AskMove struct {
	Node     offpeak.NodeID
	Revision int64
	// Ask is nil where nothing is asked, so that the node is offered to nobody.
	Ask *offpeak.Ask
	// Due is when to look again; zero: never.
	Due time.Time
}

// AskChange is one row of a node's history.
type AskChange struct {
	// From is since when it was asked.
	From time.Time    `json:"from"`
	Ask  *offpeak.Ask `json:"ask" doc:"null: nothing was asked, so the node was offered to nobody"`
}

// CandleFilter restricts a list of candles. Zero fields restrict nothing.
type CandleFilter struct {
	Resolution offpeak.Resolution
	// Model is a part of the model's name, the case of ASCII letters ignored.
	Vendor, Model string
	VRAM          offpeak.Bytes
	// Region is exact.
	Region string
	// Plain restricts to work without devices.
	Plain bool
	// From and Until bound the start, Until excluded.
	From, Until time.Time
}
