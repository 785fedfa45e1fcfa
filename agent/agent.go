package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"offpeak"
	"offpeak/agent/books"
	"offpeak/agent/hardware"
	"offpeak/agent/link"
	"offpeak/agent/presence"
	"offpeak/agent/state"
	"offpeak/agent/supervisor"
	"offpeak/agent/warm"
	"offpeak/wire"
)

// Agent makes come true what the hub says this node should hold.
type Agent struct {
	cfg    Config
	env    Env
	folder state.Folder
	link   *link.Link
	outbox *link.Outbox
	pool   *warm.Pool
	books  *books.Books
	// watcher tells what the owner's rules allow.
	watcher *presence.Watcher
	// judged is closed when the first verdict is in.
	judged chan struct{}
	// beats asks for a heartbeat at once, waking for a look at the pause's end.
	beats, waking chan struct{}
	// looks asks for a look at the devices at once, surveys for one at the machine.
	looks, surveys chan struct{}
	// ctx is the attempts' life: it outlives the context of Run where jobs are
	// stopped with notice first.
	ctx      context.Context
	attempts sync.WaitGroup

	// mu guards what follows. Effects run under it and never block.
	mu      sync.Mutex
	picture picture
	running map[offpeak.LeaseID]*attempt
	heard   heard
	closing bool
	policy  presence.Policy
	// spoilt says that the policy's file was damaged and none was set since.
	spoilt bool
	// sample is what was last measured of the devices.
	sample hardware.Sample
}

// heard is when the hub last acknowledged this node, and what it granted then.
type heard struct {
	// sent is when the acknowledged heartbeat was sent, on the boot clock; ok
	// is false before there was one.
	sent     time.Duration
	ok       bool
	timeout  time.Duration
	interval time.Duration
	at       time.Time
	// err is why the last call was not answered, nil if it was.
	err error
}

// New returns an agent; it does nothing before Run.
func New(cfg Config, env Env) *Agent {
	cfg.Times = cfg.Times.withDefaults()
	return &Agent{
		cfg: cfg, env: env, outbox: link.NewOutbox(),
		beats: make(chan struct{}, 1), waking: make(chan struct{}, 1), judged: make(chan struct{}),
		looks: make(chan struct{}, 1), surveys: make(chan struct{}, 1), picture: newPicture(), running: map[offpeak.LeaseID]*attempt{},
	}
}

// Run is the agent's whole life: it returns nil after ctx was cancelled and
// everything it owns has stopped, ErrRemoved when the hub does not know the
// node any more, ErrNotEnrolled, ErrIdentityLost or ErrBusy when it can't begin.
func (a *Agent) Run(ctx context.Context) error {
	var err error
	if a.folder, err = state.Open(a.cfg.Data, a.env.Log); err != nil {
		return err
	}
	unlock, err := a.folder.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := a.begin(); err != nil {
		return err
	}
	defer a.link.Close()

	// The loops outlive ctx by the time that stopping jobs takes.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	group, gctx := errgroup.WithContext(life)
	a.ctx = gctx
	if err := a.adopt(gctx); err != nil {
		return err
	}
	control, err := a.listen()
	if err != nil {
		return err
	}
	group.Go(func() error { return a.serveControl(gctx, control) })
	group.Go(func() error { return a.outbox.Run(gctx, a.sendReports, a.pause) })
	group.Go(func() error { return a.pool.Run(gctx, a.pause) })
	group.Go(func() error { return a.watcher.Run(gctx, a.judge) })
	group.Go(func() error { return a.heartbeats(gctx) })
	group.Go(func() error { return a.stream(gctx) })
	group.Go(func() error { return a.devices(gctx) })
	group.Go(func() error { return a.inventory(gctx) })
	group.Go(func() error { return a.wakeUp(gctx) })
	group.Go(func() error { return a.books.Run(gctx) })
	group.Go(func() error {
		select {
		case <-ctx.Done():
			a.stop(gctx)
			return errStopping
		case <-gctx.Done():
			return nil
		}
	})
	err = group.Wait()
	a.attempts.Wait()
	if errors.Is(err, errStopping) {
		return nil
	}
	if errors.Is(err, offpeak.ErrUnknownNode) {
		return ErrRemoved
	}
	return err
}

var errStopping = errors.New("the agent was asked to stop")

// begin reads who and what this node is.
func (a *Agent) begin() error {
	id, key, err := a.folder.Identity()
	if err != nil {
		return err
	}
	incarnation, err := link.NewIncarnation(a.env.Random)
	if err != nil {
		return err
	}
	hubs := a.cfg.Hubs
	if len(hubs) == 0 {
		hubs = id.Hubs
	}
	a.link = link.New(link.Config{
		Key: key, Client: a.env.Client(id.Fingerprint), Agent: "offpeak-agent/" + a.cfg.Version, Hubs: hubs,
		Bound: a.cfg.Times.Call, Boot: a.env.Boot, Log: a.env.Log, Incarnation: incarnation, Identity: id,
		Keep:       a.folder.SaveIdentity,
		Opened:     func() { a.apply(opened{}) },
		Conflicted: a.setConflict,
	})
	a.pool = warm.New(a.folder.At("supervisors"), a.env.Supervisors, a.cfg.Warm, a.cfg.Times.Call, a.env.Log)
	o := a.folder.Orders()
	if o.Paused && !o.Until.IsZero() && !a.env.Now().Before(o.Until) {
		o = state.Orders{}
	}
	a.picture.orders = o
	a.books = books.Open(books.Config{
		Folder: a.folder, Account: id.Account, Boot: a.env.Boot, Now: a.env.Now, Log: a.env.Log,
		Ask: func(ctx context.Context, today time.Time) (got wire.Earnings, err error) {
			err = a.link.Call(ctx, func(ctx context.Context, d *wire.Direct) error { got, err = d.Earned(ctx, today); return err })
			return got, err
		},
	})
	if err := a.beginWatch(); err != nil {
		return err
	}
	a.heard.interval = a.cfg.Times.Interval
	a.env.Log.Info("agent starts", "node", id.Node, "name", id.Name, "hubs", hubs)
	return nil
}

// stop ends the agent as its owner asked: either the jobs go first, with
// notice, or they stay under their supervisors.
func (a *Agent) stop(ctx context.Context) {
	a.mu.Lock()
	a.closing = true
	n := len(a.running)
	a.mu.Unlock()
	switch {
	case n == 0:
	case a.cfg.StopJobs:
		a.env.Log.Info("giving running jobs notice", "jobs", n)
		a.stopJobs(ctx, offpeak.EndDrained)
	default:
		a.env.Log.Info("running jobs go on under their supervisors; the next agent adopts them", "jobs", n)
	}
}

// stopJobs gives every attempt notice and waits until all are reported.
func (a *Agent) stopJobs(ctx context.Context, reason offpeak.EndReason) {
	a.mu.Lock()
	a.perform(a.picture.stopAll(reason))
	a.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		a.attempts.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
	}
}

// apply puts one event to the picture and does what follows from it.
func (a *Agent) apply(event any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.perform(a.picture.step(a.env.Boot(), event))
}

// perform does effects; mu is held, so their order is that of the events.
func (a *Agent) perform(effects []effect) {
	for _, e := range effects {
		h := a.picture.leases[e.lease]
		switch e.do {
		case doAccept, doDecline:
			if a.closing {
				// Left to lapse, or for the next agent.
				delete(a.picture.leases, e.lease)
				continue
			}
			t := a.newAttempt(h.desired)
			t.declined = e.do == doDecline
			a.startLocked(t)
		case doStop:
			if t := a.running[e.lease]; t != nil {
				t.askToStop(e.reason)
			}
		case doDrop:
			if t := a.running[e.lease]; t != nil {
				a.env.Log.Warn("lease is not ours any more; dropping it", "lease", e.lease, "job", t.Job)
				t.cancel(errDropped)
			}
		case doBeat:
			a.beatNow()
		case doOffer:
			a.tellInventory()
		case doSettle:
			a.saveOrders()
			a.env.Log.Info("drained: the last lease has ended and the node is paused")
			a.beatNow()
		}
	}
}

func (a *Agent) startLocked(t *attempt) {
	a.running[t.Lease] = t
	a.watcher.Busy(true)
	a.attempts.Go(func() {
		defer t.cancel(nil)
		t.run()
		a.mu.Lock()
		delete(a.running, t.Lease)
		a.watcher.Busy(len(a.running) > 0)
		a.mu.Unlock()
	})
}

func (a *Agent) beatNow() {
	select {
	case a.beats <- struct{}{}:
	default:
	}
}

func (a *Agent) saveOrders() {
	if err := a.folder.SaveOrders(a.picture.orders); err != nil {
		a.env.Log.Error("keep the owner's orders", "error", err)
	}
}

func (a *Agent) setConflict(on bool) {
	a.mu.Lock()
	changed := a.picture.conflicted != on
	a.perform(a.picture.step(a.env.Boot(), conflict{on}))
	a.mu.Unlock()
	switch {
	case changed && on:
		a.env.Log.Error("another agent uses this node's identity: taking no new work; stop one of the two, remove its data folder and join it again")
	case changed:
		a.env.Log.Info("the hub accepts this node's identity again")
	}
}

// report composes a report and sends it until it is answered or ctx ends.
func (a *Agent) report(ctx context.Context, r wire.Report) <-chan error {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.Incarnation, r.Seq = a.link.Stamp()
	switch r.Kind {
	case kindAccepted:
		a.picture.step(a.env.Boot(), told{r.Lease})
	case kindEnded:
		a.picture.step(a.env.Boot(), ending{r.Lease})
		r.Takes = !a.closing && a.picture.takes(a.env.Boot())
	}
	return a.outbox.Post(ctx, r)
}

func (a *Agent) sendReports(ctx context.Context, reports []wire.Report) (results []wire.ReportResult, err error) {
	err = a.link.Call(ctx, func(ctx context.Context, d *wire.Direct) (err error) {
		results, err = d.Report(ctx, reports)
		return err
	})
	a.note("send reports", err)
	return results, err
}

// note keeps what went wrong for the status, and says it once.
func (a *Agent) note(what string, err error) {
	a.mu.Lock()
	before := a.heard.err
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	a.heard.err = err
	a.mu.Unlock()
	switch {
	case err == nil || errors.Is(err, context.Canceled):
	case before == nil:
		a.env.Log.Warn("the hub did not take a call; trying again", "error", err)
	default:
		a.env.Log.Debug("the hub did not take a call", "error", err)
	}
}

// pause waits after the nth failure in a row, longer each time, over the upper
// half at random, so that a fleet does not come back as one.
func (a *Agent) pause(ctx context.Context, n int) error {
	t := a.cfg.Times
	d := t.LongestRetry
	if n < 16 {
		d = min(t.Retry<<(n-1), d)
	}
	return sleep(ctx, d/2+rand.N(d/2+1))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// adopt goes on with the leases of the agent before this one.
func (a *Agent) adopt(ctx context.Context) error {
	journals, err := a.folder.Journals()
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	var held []offpeak.LeaseID
	for _, j := range journals {
		wanted[j.Supervisor] = true
		held = append(held, j.Lease)
	}
	if err := a.env.Egress.Clear(held); err != nil {
		return err
	}
	found, err := a.pool.Sweep(ctx, wanted)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, j := range journals {
		d := wire.Desired{Lease: j.Lease, Job: j.Job, Attempt: j.Attempt, State: offpeak.LeaseRunning, Work: &j.Work}
		a.perform(a.picture.step(a.env.Boot(), adopted{d}))
		t := a.newAttempt(d)
		t.restored = j.Restored
		s, ok := found[j.Supervisor]
		t.adopted = &adoption{slot: s, alive: ok}
		if ok {
			// Before the first look at the devices: what it holds is not others'.
			t.began(s.Sup)
		}
		a.env.Log.Info("going on with a lease", "lease", j.Lease, "job", j.Job, "attempt", j.Attempt, "alive", ok)
		a.startLocked(t)
	}
	if a.picture.orders.Paused {
		// Paused while no agent ran.
		a.perform(a.picture.stopAll(offpeak.EndPaused))
	}
	return nil
}

// grant is the deadline that supervisors are handed; mu is held.
func (a *Agent) grantLocked() supervisor.Lease {
	h := a.heard
	if !h.ok {
		// Nothing was heard yet in this life: the supervisors keep what they have.
		return supervisor.Lease{}
	}
	return supervisor.Lease{Granted: int64(h.sent), Timeout: h.timeout}
}
