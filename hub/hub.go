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
//   - the janitor (package data) prunes what retention allows and collects blobs.
//
// Several hubs may share a store. Each keeps the whole picture, from the events
// that the others write, and serves any agent and client; one of them matches, and
// that only keeps them from losing claims to each other (circle, follow).
//
// Three rooms stand on their own and are asked directly, with Access, Data and
// Money: who comes in (package access), the bytes of the grid (package data), and
// money that comes in and goes out (package money).
//
// The picture in memory is a guess that the store corrects: a claim re-checks
// everything, and one that loses is matched again on what was read anew. All
// methods may be called from any number of goroutines while Run works. It is
// tested on the real embedded store with agents played by the tests; see
// DESIGN.md beside this file for the invariants.
package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"offpeak"
	"offpeak/blob"
	"offpeak/hub/access"
	"offpeak/hub/bell"
	"offpeak/hub/data"
	"offpeak/hub/money"
	"offpeak/hub/trade"
	"offpeak/hub/tuning"
	"offpeak/hub/underway"
	"offpeak/ledger"
	"offpeak/market"
	"offpeak/placement"
	"offpeak/placement/past"
	"offpeak/placement/queue"
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
	// Quarantine is how long a node where jobs keep dying by its fault gets no work,
	// the first time. Default 1m.
	Quarantine time.Duration
	// Fence is how long a job is kept off a node where an attempt of it failed, the
	// first time. Default 1m, no longer than offpeak.LongestFence; negative: not at all.
	Fence time.Duration
	// Session is how long a node's session token lives. Default 15m.
	Session time.Duration
	// Retention is what the janitor keeps. Defaults: jobs 30 days, logs 14,
	// events and operations 7. Negative keeps for ever.
	Retention store.Retention
	// Hubs are the addresses that join tokens and enrolled nodes are given.
	Hubs []string
	// Fingerprint pins the hub's key in join tokens; "" on plain loopback.
	Fingerprint string
	// Folder is where blobs and the database lie, watched for free space.
	Folder string
	// Version is shown to clients.
	Version string
	// Weights score the nodes that fit. Default placement.DefaultWeights.
	Weights placement.Weights
	// Queue is the order in which jobs are matched. Default queue.DefaultConfig.
	Queue queue.Config
	// Workers is how many claims are under way at once. Default 1: the store
	// commits one at a time, and what arrives meanwhile shares the next one.
	Workers int
	// NoProcessLock switches the first of the two locks off. Tests only.
	NoProcessLock bool
	// AlwaysLead has the hub match without having the lead. Tests only.
	AlwaysLead bool
	// Trade are the operator's rules of the market. Default trade.DefaultConfig.
	Trade trade.Config
	// Holds are the operator's figures for holds, as the store has them. Default
	// ledger.DefaultRules.
	Holds ledger.Rules
	// Blobs says where blobs lie, the same for all hubs of a grid.
	Blobs string
	// BlobsAt is how --blobs names that place; "" for the data folder.
	BlobsAt string
}

func (c Config) withDefaults() Config {
	const day = 24 * time.Hour
	or := func(d *time.Duration, fallback time.Duration) {
		if *d == 0 {
			*d = fallback
		}
	}
	or(&c.Interval, 5*time.Second)
	or(&c.Timeout, time.Minute)
	or(&c.Offer, 15*time.Second)
	or(&c.Tick, time.Second)
	or(&c.Quarantine, time.Minute)
	or(&c.Fence, time.Minute)
	or(&c.Session, 15*time.Minute)
	or(&c.Retention.Jobs, 30*day)
	or(&c.Retention.Logs, 14*day)
	or(&c.Retention.Events, 7*day)
	or(&c.Retention.Operations, 7*day)
	or(&c.Retention.Asks, 90*day)
	or(&c.Retention.Minutes, 7*day)
	or(&c.Retention.Hours, 90*day)
	// The store keeps for ever what has no retention.
	c.Retention.Jobs = max(c.Retention.Jobs, 0)
	c.Retention.Logs = max(c.Retention.Logs, 0)
	c.Retention.Events = max(c.Retention.Events, 0)
	c.Retention.Operations = max(c.Retention.Operations, 0)
	c.Retention.Asks = max(c.Retention.Asks, 0)
	c.Retention.Minutes = max(c.Retention.Minutes, 0)
	c.Retention.Hours = max(c.Retention.Hours, 0)
	if c.Weights == (placement.Weights{}) {
		c.Weights = placement.DefaultWeights()
	}
	if c.Queue == (queue.Config{}) {
		c.Queue = queue.DefaultConfig()
	}
	c.Workers = max(c.Workers, 1)
	if c.Holds == (ledger.Rules{}) {
		c.Holds = ledger.DefaultRules()
	}
	if c.Trade.Auction == (market.Auction{}) {
		c.Trade = trade.DefaultConfig()
	}
	return c
}

// Env is the outside world a hub decides with, handed in.
type Env struct {
	// ID is this run of a hub process, drawn anew for each.
	ID    offpeak.HubID
	Store store.Store
	Blobs blob.Store
	// Payments carries batches of deposits and payouts; nil: none are carried.
	Payments ledger.Payments
	Log      *slog.Logger
	// Now is the hub's clock for measuring silence and stalls.
	Now func() time.Time
	// Disk says how full the hub's disk is, 0 to 1; 0 is not known. Default: the
	// file system of Config.Folder.
	Disk func() float64
	// Rand seeds ids and jitter; ids take crypto randomness through Random.
	Rand   *rand.Rand
	Random io.Reader
}

// picture is the fleet and the queue as this hub believes them to be: what
// matching works on.
type picture struct {
	mu    sync.Mutex // guards what follows
	fleet *placement.Fleet
	queue waiting
	// live are the leases that may run out of time.
	live deadlines
	// stale are nodes of which the picture may be wrong, to be read anew before
	// the next match.
	stale map[offpeak.NodeID]struct{}
	// over are leases that this hub saw give up what they held, and when: what
	// another hub wrote of them before may be read after. For shared stores.
	over map[offpeak.LeaseID]time.Time
	// trials are the nodes in quarantine; proven those that left it since a probe
	// lasted, of which the store is to be told.
	trials map[offpeak.NodeID]*trial
	proven map[offpeak.NodeID]time.Time
	// past is what nodes did, of which what is expected of them is reckoned; ends of
	// leases until pastUntil were read with it.
	past      past.Book
	pastUntil time.Time
	// prizes are nodes that jobs have won, by the lease that gives way.
	prizes map[offpeak.LeaseID]prize
	// funded counts news of money: a claim that was refused for want of it while
	// some came in is tried again.
	funded int64
}

// Hub is one hub process.
type Hub struct {
	cfg Config
	env Env

	picture
	// wakeup holds a token when there may be something to match.
	wakeup chan struct{}
	// untended holds a token when there may be groups with work left.
	untended chan struct{}
	// doubt says that the outcome of a write is unknown: the picture and the
	// store may differ.
	doubt atomic.Bool
	// untold counts the monitor's ticks since it looked for jobs that are yet to be told
	// of an end.
	untold atomic.Int64

	circle  circle
	brake   brake
	peers   peers
	keeper  keeper
	access  *access.Control
	data    *data.Vault
	trade   *trade.Floor
	tuning  *tuning.Desk
	money   *money.Till
	bells   bell.Bells
	tail    tail
	metrics *metrics

	// loaded is closed when the queue is in memory, stopped when Run returns.
	loaded, stopped chan struct{}
	// stalled says that the hub was not able to hear or to write for a while.
	stalled atomic.Bool
	// amends says that it is dealing with that.
	amends atomic.Bool
	// writes are those under way that the picture does not show yet. Who reads
	// the store to mend the picture waits for them: what they did would be applied
	// once more when they come to apply it themselves.
	writes underway.Work

	nothing []wire.Desired
}

// New makes a hub; it does nothing until Run.
func New(cfg Config, env Env) *Hub {
	cfg = cfg.withDefaults()
	h := &Hub{
		cfg: cfg, env: env,
		picture: picture{
			fleet: placement.NewFleet(cfg.Weights), live: newDeadlines(),
			stale: make(map[offpeak.NodeID]struct{}),
			over:  make(map[offpeak.LeaseID]time.Time), trials: make(map[offpeak.NodeID]*trial), proven: make(map[offpeak.NodeID]time.Time), prizes: make(map[offpeak.LeaseID]prize),
		},
		wakeup: make(chan struct{}, 1), untended: make(chan struct{}, 1), loaded: make(chan struct{}), stopped: make(chan struct{}),
		nothing: []wire.Desired{},
		circle:  newCircle(offpeak.Hub{ID: env.ID, Addresses: cfg.Hubs, Version: cfg.Version, Fingerprint: cfg.Fingerprint, Blobs: cfg.Blobs, BlobsAt: cfg.BlobsAt, StartedAt: env.Now().UTC()}),
	}
	h.peers.byID = make(map[offpeak.NodeID]*peer)
	h.keeper.wake = make(chan struct{}, 1)
	h.tail.wake = make(chan struct{}, 1)
	h.tail.more = make(chan struct{})
	h.metrics = newMetrics(h)
	h.access = access.New(access.Config{Session: cfg.Session, Fingerprint: cfg.Fingerprint}, access.Env{
		Store: env.Store, Log: env.Log, Now: env.Now, Random: env.Random, NewID: h.newID, Wrote: h.wrote, Addresses: h.addresses,
		Raised: func(a offpeak.AccountID) { h.fundedNow(a) },
	})
	h.data = data.New(data.Config{Retention: cfg.Retention, Folder: cfg.Folder}, data.Env{
		Store: env.Store, Blobs: env.Blobs, Log: env.Log, Disk: env.Disk,
		Bells: &h.bells, Stopped: h.stopped, Leads: h.leads, Metrics: h.metrics.registry,
	})
	h.trade = trade.New(cfg.Trade, trade.Env{
		Store: env.Store, Log: env.Log, Now: env.Now, Leads: h.leads, Moved: h.moved, Offers: h.offers, Waiting: h.waitingJobs, Wrote: h.wrote,
	})
	h.tuning = tuning.New(tuning.Env{
		Store: env.Store, Log: env.Log, Default: placement.Tuning{Policy: placement.Cheapest, Weights: cfg.Weights}, Apply: h.tune, Wrote: h.wrote,
	})
	h.queue = waiting{
		Queue: queue.New(cfg.Queue, h.fleet, h.trade.Effective), gangs: make(map[offpeak.GroupID]*gang), unread: make(map[offpeak.GroupID]struct{}),
		margin: cfg.Offer + slack(cfg.Offer+24*time.Hour), fence: cfg.Fence,
	}
	h.queue.SetPolicy(placement.Cheapest)
	h.money = money.New(money.Env{Store: env.Store, Payments: env.Payments, Posted: h.posted})
	return h
}

// Run loads the queue and the fleet, grants everyone an amnesty of one timeout,
// and works until ctx is done or the store is lost. It returns the cause, nil
// when ctx was done. A hub runs once.
func (h *Hub) Run(ctx context.Context) error {
	defer close(h.stopped)
	if err := h.Join(ctx); err != nil {
		return done(ctx, err)
	}
	// What other hubs do from here on is followed, so the picture is of later.
	if err := h.startTail(ctx); err != nil {
		return done(ctx, fmt.Errorf("load events: %w", err))
	}
	if err := h.tuning.Load(ctx); err != nil {
		return done(ctx, err)
	}
	if err := h.loadUse(ctx); err != nil {
		return done(ctx, fmt.Errorf("load what accounts used: %w", err))
	}
	if err := h.loadFleet(ctx); err != nil {
		return done(ctx, fmt.Errorf("load fleet: %w", err))
	}
	if err := h.loadPast(ctx); err != nil {
		return done(ctx, fmt.Errorf("load how nodes fared: %w", err))
	}
	if err := h.amnesty(ctx); errors.Is(err, offpeak.ErrStorage) {
		// A full disk is no reason to be away: what can be read is served, and the
		// monitor grants the amnesty, before anybody is expired, when there is room.
		h.env.Log.Warn("grant amnesty", "err", err)
		h.stalled.Store(true)
	} else if err != nil {
		return done(ctx, fmt.Errorf("grant amnesty: %w", err))
	}
	group, ctx := errgroup.WithContext(ctx)
	loops := []func(context.Context) error{h.loadQueue, h.keep, h.monitor, h.flush, h.audit, h.tailEvents, h.attend, h.tellOthers, h.listen, h.access.Run, h.data.Run, h.trade.Run, h.tendGroups}
	for range h.cfg.Workers {
		loops = append(loops, h.dispatch)
	}
	for _, loop := range loops {
		group.Go(func() error { return loop(ctx) })
	}
	err := group.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	h.flushTouches(last)
	if err := h.trade.Flush(last); err != nil {
		h.env.Log.Warn("store what was paid", "err", err)
	}
	return done(ctx, err)
}

// done turns the end of ctx into a clean return.
func done(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Ready is closed once the queue is in memory and matching has begun.
func (h *Hub) Ready() <-chan struct{} { return h.loaded }

// Access is who comes in. Enrolling a node and opening its session move the
// fleet too: for those ask the hub.
func (h *Hub) Access() *access.Control { return h.access }

// Trade is asked for what owners ask, what is offered and what was paid.
func (h *Hub) Trade() *trade.Floor { return h.trade }

// Data is the bytes of the grid. A log's bytes come through AppendLog and
// Report, which are fenced.
func (h *Hub) Data() *data.Vault { return h.data }

// Tuning is what placement weighs.
func (h *Hub) Tuning() *tuning.Desk { return h.tuning }

// tune has matching weigh otherwise from now on.
func (h *Hub) tune(t placement.Tuning) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.fleet.SetWeights(t.Weights); err != nil {
		h.env.Log.Error("weights can't be taken up", "version", t.Version, "err", err)
		return
	}
	h.queue.SetPolicy(t.Policy)
}

// Money is what comes in and goes out, and who has what.
func (h *Hub) Money() *money.Till { return h.money }

// Store is for reading what needs no decision.
func (h *Hub) Store() store.Store { return h.env.Store }

// Check runs the invariants, or those of the ledger alone, and adds the hub's own
// warnings (disk, stalls).
func (h *Hub) Check(ctx context.Context, ledgerOnly bool) (wire.Checked, error) {
	check := h.env.Store.Check
	if ledgerOnly {
		check = h.env.Store.CheckLedger
	}
	violations, err := check(ctx)
	if err != nil {
		return wire.Checked{}, fmt.Errorf("check: %w", err)
	}
	out := wire.Checked{OK: len(violations) == 0, Violations: make([]wire.Violation, 0, len(violations)), Warnings: h.data.Warnings()}
	for _, v := range violations {
		out.Violations = append(out.Violations, wire.Violation(v))
	}
	if h.brake.on.Load() {
		out.Warnings = append(out.Warnings, "Most nodes fell silent at once: their leases are held for up to a timeout longer. Look at what they have in common.")
	}
	if h.stalled.Load() {
		out.Warnings = append(out.Warnings, "The hub could not hear or write for a while; nobody's silence counts until it can.")
	}
	return out, nil
}

// failed notes an error of a write: after ErrUnavailable its outcome is
// unknown, so memory is compared with the store soon.
func (h *Hub) failed(err error) error {
	if errors.Is(err, offpeak.ErrUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		h.doubt.Store(true)
	}
	return err
}

// settleFor bounds a write that goes on without its caller.
const settleFor = 30 * time.Second

// settling is the context of a write that changes the picture too: it goes on
// when its caller hangs up, since what is committed has to be taken over.
func (h *Hub) settling(ctx context.Context) (context.Context, context.CancelFunc) {
	end := h.writes.Begin()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleFor)
	return ctx, func() {
		cancel()
		end()
	}
}

// sleep waits for d and says whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
