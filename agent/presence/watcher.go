package presence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Source reads one thing of the machine.
type Source struct {
	Name string
	// Every is the least time between two readings; what costs much to read is
	// read seldom. Zero: with each look.
	Every time.Duration
	// Read reads it, in Bound, for a policy: what that doesn't mind need not be
	// read. ErrAbsent: there is nothing to read.
	Read func(ctx context.Context, p Policy) (Reading, error)
	// Lost says in an observation that it could not be read.
	Lost func(o *Observation, err error)
}

// Reading puts what was read into an observation that is made age later.
type Reading func(o *Observation, age time.Duration)

// Announcer tells of the machine's sleep. It calls asleep with true before the
// machine sleeps, which waits for its return as long as the system lets it, and
// with false after it woke. It returns when ctx is done, or why it can't tell.
type Announcer func(ctx context.Context, asleep func(bool)) error

// Times are a watcher's own durations.
type Times struct {
	// Busy is the time between looks while jobs run, Idle while none do.
	Busy, Idle time.Duration
}

// Watcher watches the machine and says when the verdict changes.
type Watcher struct {
	sources  []Source
	announce Announcer
	clock    func() Now
	times    Times
	log      *slog.Logger
	// wake has the watcher look at once.
	wake chan struct{}
	// step serialises decisions, so that verdicts are told in their order.
	step sync.Mutex

	// mu guards what follows.
	mu      sync.Mutex
	decider *Decider
	policy  Policy
	busy    bool
	asleep  bool
	read    []reading
	last    Verdict
	decided bool
}

// reading is what a source last said, and when on the boot clock.
type reading struct {
	put Reading
	err error
	at  time.Duration
	// asked is when it was last asked, due when it is to be asked again.
	asked, due time.Duration
	// under says that it was asked and has not answered.
	under bool
	done  bool
}

// Config is what a watcher is made of.
type Config struct {
	Policy  Policy
	Sources []Source
	// Announce tells of sleep; nil where nothing does.
	Announce Announcer
	Clock    func() Now
	Times    Times
	Log      *slog.Logger
}

// NewWatcher returns a watcher for a valid policy; it does nothing before Run.
func NewWatcher(c Config) *Watcher {
	if c.Times.Busy <= 0 {
		c.Times.Busy = time.Second
	}
	if c.Times.Idle <= 0 {
		c.Times.Idle = 5 * time.Second
	}
	return &Watcher{
		sources: c.Sources, announce: c.Announce, clock: c.Clock, times: c.Times, log: c.Log, wake: make(chan struct{}, 1),
		decider: NewDecider(c.Policy), policy: c.Policy.Clone(), read: make([]reading, len(c.Sources)),
	}
}

// SetPolicy goes on with another valid policy.
func (w *Watcher) SetPolicy(p Policy) {
	w.mu.Lock()
	w.policy = p.Clone()
	w.decider.SetPolicy(p)
	for i := range w.read {
		w.read[i].due = 0
	}
	w.mu.Unlock()
	w.look()
}

// Busy says whether jobs run: then the machine is looked at more often.
func (w *Watcher) Busy(busy bool) {
	w.mu.Lock()
	changed := w.busy != busy
	w.busy = busy
	w.mu.Unlock()
	if changed && busy {
		w.look()
	}
}

func (w *Watcher) look() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Verdict decides anew by what was read last. ok is false before the first look
// is over.
func (w *Watcher) Verdict() (v Verdict, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.decided {
		return Verdict{}, false
	}
	now := w.clock()
	return w.decider.Step(now, w.observeLocked(now)), true
}

// Run watches until ctx is done and then returns nil. It tells each verdict that
// says something new, one at a time, the first one when every source was asked
// once and answered or ran out of time. A source that hangs at the end is left to
// itself.
func (w *Watcher) Run(ctx context.Context, tell func(Verdict)) error {
	var running sync.WaitGroup
	asks := make([]chan struct{}, len(w.sources))
	for i := range w.sources {
		asks[i] = make(chan struct{}, 1)
		running.Go(func() { w.serve(ctx, i, asks[i], tell) })
	}
	if w.announce != nil {
		running.Go(func() { w.listen(ctx, tell) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			running.Wait()
			return nil
		case <-timer.C:
		case <-w.wake:
		}
		w.mu.Lock()
		now := w.clock().Boot
		wait := w.times.Idle
		if w.busy {
			wait = w.times.Busy
		}
		for i := range w.read {
			r := &w.read[i]
			// A look that comes a little early is as good as one in time: all are
			// asked on one timer.
			if !r.under && now+wait/4 >= r.due {
				r.under, r.asked, r.due = true, now, now+max(w.sources[i].Every, wait)
				asks[i] <- struct{}{}
			}
		}
		w.mu.Unlock()
		// Time passes for the rules even where no source answers.
		w.decide(tell)
		timer.Reset(wait)
	}
}

// serve asks one source whenever it is its turn.
func (w *Watcher) serve(ctx context.Context, i int, asks <-chan struct{}, tell func(Verdict)) {
	answers := make(chan answer, 1)
	for {
		select {
		case <-asks:
		case <-ctx.Done():
			return
		}
		w.mu.Lock()
		policy := w.policy.Clone()
		w.mu.Unlock()
		bounded, cancel := context.WithTimeout(ctx, Bound)
		go func() {
			defer func() {
				// A broken source must not take the agent with it.
				if p := recover(); p != nil {
					answers <- answer{err: fmt.Errorf("broke: %v", p)}
				}
			}()
			put, err := w.sources[i].Read(bounded, policy)
			answers <- answer{put, err}
		}()
		select {
		case a := <-answers:
			cancel()
			w.take(ctx, i, a, tell)
			continue
		case <-bounded.Done():
			cancel()
		}
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.read[i].put, w.read[i].err, w.read[i].done = nil, errHung, true
		w.mu.Unlock()
		w.log.Debug("a source of presence does not answer", "source", w.sources[i].Name)
		w.decide(tell)
		// It is not asked again before it has come back: what it says then is old.
		select {
		case <-answers:
			w.mu.Lock()
			w.read[i].under = false
			w.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

type answer struct {
	put Reading
	err error
}

var errHung = errors.New("does not answer")

func (w *Watcher) take(ctx context.Context, i int, a answer, tell func(Verdict)) {
	if ctx.Err() != nil {
		return
	}
	if errors.Is(a.err, context.DeadlineExceeded) {
		a.err = errHung
	}
	w.mu.Lock()
	r := &w.read[i]
	r.put, r.err, r.at, r.done, r.under = a.put, a.err, w.clock().Boot, true, false
	w.mu.Unlock()
	w.decide(tell)
}

// observeLocked puts together what the sources said last.
func (w *Watcher) observeLocked(now Now) Observation {
	o := Observation{Asleep: w.asleep}
	for i, r := range w.read {
		switch {
		case r.put != nil && r.err == nil:
			r.put(&o, max(now.Boot-r.at, 0))
		case r.err != nil:
			w.sources[i].Lost(&o, r.err)
		}
	}
	return o
}

// decide makes a verdict and tells it if it says something new.
func (w *Watcher) decide(tell func(Verdict)) {
	w.step.Lock()
	defer w.step.Unlock()
	w.mu.Lock()
	for i := range w.read {
		if !w.read[i].done {
			// The first look is not over.
			w.mu.Unlock()
			return
		}
	}
	now := w.clock()
	v := w.decider.Step(now, w.observeLocked(now))
	news := !w.decided || !v.Same(&w.last)
	w.decided = true
	if news {
		w.last = v
	}
	w.mu.Unlock()
	if news {
		tell(v)
	}
}

// listen keeps listening for announcements of sleep. A system that can't tell is
// asked again now and then: its bus may have restarted.
func (w *Watcher) listen(ctx context.Context, tell func(Verdict)) {
	const again = time.Minute
	for {
		err := w.announce(ctx, func(asleep bool) {
			w.mu.Lock()
			if w.asleep && !asleep {
				w.decider.Woke(w.clock().Boot)
			}
			w.asleep = asleep
			for i := range w.read {
				// What was read before the sleep is old.
				w.read[i].due = 0
			}
			w.mu.Unlock()
			w.decide(tell)
			if !asleep {
				w.look()
			}
		})
		if ctx.Err() != nil {
			return
		}
		w.log.Debug("the machine's sleep is not announced", "error", err)
		w.mu.Lock()
		w.asleep = false
		w.mu.Unlock()
		timer := time.NewTimer(again)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}
