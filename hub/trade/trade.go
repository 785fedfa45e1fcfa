// Package trade brings the market to the grid: what owners ask and when that
// changes, what is offered, what was paid.
//
// It owns the reading of plans, the moments at which asks change, the book that
// quotes are answered from and the tape of trades. How a price follows from facts
// is the market's (package market), which nodes there are and what is free on them
// the hub's, who gives way to whom is decided where queue and fleet are, in the hub.
// It must not know of HTTP, sessions or matching.
//
// All methods may be called from any number of goroutines. Run moves asks when they
// are due, and stores what was paid; everything else works without it.
package trade

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"offpeak"
	"offpeak/market"
	"offpeak/store"
)

// Config is what an operator may set.
type Config struct {
	// Auction are the rules of bids and premiums.
	Auction market.Auction
	// Rules propose prices.
	Rules []market.Rule
}

// DefaultConfig returns the usual rules.
func DefaultConfig() Config {
	return Config{Auction: market.DefaultAuction(), Rules: market.DefaultRules()}
}

// Store is what is kept of asks and trades.
type Store interface {
	store.Asks
	Node(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID) (offpeak.Node, error)
}

// Env is the outside world, handed in.
type Env struct {
	Store Store
	Log   *slog.Logger
	Now   func() time.Time
	// Leads says whether this hub is the one that moves asks which are due.
	Leads func() bool
	// Wrote is called after each change, which has left an event.
	Wrote func()
	// Moved is called with each ask that changed.
	Moved func(node offpeak.NodeID, ask *offpeak.Ask)
	// Offers returns the offers that changed since the last call, and which nodes
	// are gone.
	Offers func() (changed []offpeak.Offer, gone []offpeak.NodeID)
	// Waiting counts queued jobs, and those of them that name a maximum price.
	Waiting func() (queued, bids int)
}

// Floor is one hub's trading floor.
type Floor struct {
	cfg Config
	env Env

	mu   sync.Mutex // guards what follows
	book *market.Book
	tape market.Tape
	// unsaved are candles that the store refused.
	unsaved []offpeak.Candle
}

// New makes a floor.
func New(cfg Config, env Env) *Floor {
	return &Floor{cfg: cfg, env: env, book: market.NewBook()}
}
