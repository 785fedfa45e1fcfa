package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"offpeak"
	"offpeak/agent/state"
	"offpeak/wire"
)

const (
	// maxPush bounds one pushed message.
	maxPush = 16 << 20
	// shortestBound is the least time that a hub has to answer a heartbeat.
	shortestBound = time.Second
)

// heartbeats reports what the node holds, on the hub's interval ± 10 %, and at
// once when something changed that the hub should know.
func (a *Agent) heartbeats(ctx context.Context) error {
	if err := a.awaitVerdict(ctx); err != nil {
		return err
	}
	failures := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-a.beats:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := a.beat(ctx, failures)
		a.note("send heartbeat", err)
		a.mu.Lock()
		wait := a.heard.interval
		a.mu.Unlock()
		wait += rand.N(wait/5+1) - wait/10
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, offpeak.ErrUnknownNode):
			a.removed(ctx)
			return err
		case errors.Is(err, offpeak.ErrIdentityConflict):
			wait = a.cfg.Times.Conflict
		case err != nil:
			failures++
			first := a.cfg.Times.Retry << min(failures-1, 10)
			wait = min(wait, first/2+rand.N(first+1))
		default:
			failures = 0
		}
		timer.Reset(wait)
	}
}

// patience is how long a hub may take to answer a heartbeat. One that hangs is
// left after two intervals where another may answer in time, and is given longer
// when none did: the link may just be slow. Where there is no other, all the time
// there is before jobs freeze is better spent waiting than asking again.
func patience(hubs, failures int, interval, timeout time.Duration) time.Duration {
	longest := max(timeout/2, shortestBound)
	if hubs == 1 {
		return longest
	}
	return min(max(2*interval, shortestBound)<<min(failures/hubs, 10), longest)
}

// beat sends one heartbeat. Its acknowledgement moves the deadline of every
// job, counted from the moment before it was sent.
func (a *Agent) beat(ctx context.Context, failures int) error {
	var sent time.Duration
	var reply wire.Sync
	a.mu.Lock()
	timeout := a.heard.timeout
	if timeout <= 0 {
		timeout = 12 * a.heard.interval
	}
	bound := patience(len(a.link.Hubs()), failures, a.heard.interval, timeout)
	a.mu.Unlock()
	err := a.link.CallFor(ctx, bound, func(ctx context.Context, d *wire.Direct) (err error) {
		// Composed anew for a second try: time has passed.
		var hb wire.Heartbeat
		hb, sent = a.compose()
		reply, err = d.Heartbeat(ctx, hb)
		return err
	})
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard.sent, a.heard.ok, a.heard.at = sent, true, a.env.Now()
	if reply.Interval > 0 {
		a.heard.interval = reply.Interval.Std()
	}
	if reply.Timeout > 0 {
		a.heard.timeout = reply.Timeout.Std()
	}
	if a.heard.timeout <= 0 {
		a.heard.timeout = 12 * a.heard.interval
	}
	a.perform(a.picture.step(a.env.Boot(), synced{reply}))
	grant := a.grantLocked()
	for _, t := range a.running {
		t.granted(grant)
	}
	return nil
}

func (a *Agent) compose() (hb wire.Heartbeat, sent time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sent = a.env.Boot()
	hb = wire.Heartbeat{Availability: offpeak.NodeAvailable}
	hb.Incarnation, hb.Seq = a.link.Stamp()
	if why := a.picture.why(sent); why != "" {
		hb.Availability, hb.Why = offpeak.NodeInUse, why
	}
	if a.heard.ok {
		hb.SinceAck = offpeak.Duration(sent - a.heard.sent)
	}
	for id, h := range a.picture.leases {
		if !h.told {
			continue
		}
		held := wire.HeldLease{Lease: id, Attempt: h.desired.Attempt}
		if t := a.running[id]; t != nil {
			held.Frozen, held.Metered = t.meter(sent)
		}
		hb.Held = append(hb.Held, held)
	}
	return hb, sent
}

// removed stops all jobs: the hub does not know this node, nobody waits for them.
func (a *Agent) removed(ctx context.Context) {
	a.env.Log.Error("the hub does not know this node; stopping its jobs")
	a.mu.Lock()
	for _, t := range a.running {
		t.cancel(errDropped)
	}
	a.mu.Unlock()
}

// stream keeps a stream to the hub open, so that what the node should hold is
// known the moment it changes. The heartbeats would bring it too, only later.
func (a *Agent) stream(ctx context.Context) error {
	for failures := 0; ; {
		came, err := a.listenOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, offpeak.ErrUnknownNode):
			return err
		case came:
			failures = 0
		}
		a.env.Log.Debug("the stream ended; opening it anew", "error", err)
		failures++
		if err := a.pause(ctx, failures); err != nil {
			return err
		}
	}
}

// listenOnce follows one stream to its end. A stream that is silent for too
// long counts as ended, whatever TCP believes.
func (a *Agent) listenOnce(ctx context.Context) (came bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(a.cfg.Times.StreamIdle, func() { cancel(errSilent) })
	defer watch.Stop()
	err = a.link.CallFor(ctx, 0, func(ctx context.Context, d *wire.Direct) error {
		body, err := d.Stream(ctx)
		if err != nil {
			return err
		}
		defer body.Close()
		lines := bufio.NewScanner(body)
		lines.Buffer(nil, maxPush)
		for lines.Scan() {
			came = true
			watch.Reset(a.cfg.Times.StreamIdle)
			if len(bytes.TrimSpace(lines.Bytes())) == 0 {
				continue
			}
			var s wire.Sync
			if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
				return fmt.Errorf("read stream: %w", errors.Join(offpeak.ErrUnavailable, err))
			}
			a.apply(synced{s})
		}
		if err := lines.Err(); err != nil {
			return fmt.Errorf("read stream: %w", errors.Join(offpeak.ErrUnavailable, err))
		}
		return io.EOF
	})
	return came, err
}

var errSilent = errors.New("the stream was silent for too long")

// wakeUp ends a pause that has an end.
func (a *Agent) wakeUp(ctx context.Context) error {
	const look = time.Minute
	for {
		a.mu.Lock()
		wait := look
		if o := a.picture.orders; o.Paused && !o.Until.IsZero() {
			left := o.Until.Sub(a.env.Now())
			if left <= 0 {
				a.orderLocked(state.Orders{})
			}
			// The wall clock may be set: look again before long.
			wait = min(max(left, 0), look)
		}
		a.mu.Unlock()
		timer := time.NewTimer(max(wait, time.Millisecond))
		select {
		case <-timer.C:
		case <-a.waking:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// orderLocked keeps an order of the owner and acts on it; mu is held.
func (a *Agent) orderLocked(o state.Orders) {
	effects := a.picture.step(a.env.Boot(), ordered{o})
	a.saveOrders()
	a.perform(effects)
}
