package hub

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"offpeak"
)

// tailSize is how many of the newest events are kept in memory, so that
// thousands of listeners cost the store one reader.
const tailSize = 4096

// tail is the newest events. One goroutine reads them; listeners look here
// first and go to the store for what is older.
type tail struct {
	wake chan struct{}

	mu     sync.Mutex
	events []offpeak.Event // oldest first, at most 2×tailSize; guarded by mu
	// first is the cursor before the oldest one here; last is the newest.
	first, last int64
	at          time.Time     // when it was last read up to its end
	more        chan struct{} // closed when there are more, then replaced
}

// ring says that there may be new events.
func (t *tail) ring() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// since returns events after a cursor and a channel that is closed when there
// are more. here is false where the tail begins after the cursor.
func (t *tail) since(after int64) (events []offpeak.Event, more <-chan struct{}, here bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if after < t.first {
		return nil, nil, false
	}
	low, high := 0, len(t.events)
	for low < high {
		if mid := (low + high) / 2; t.events[mid].Cursor > after {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return t.events[low:len(t.events):len(t.events)], t.more, true
}

// begin is the cursor after which the tail has everything.
func (t *tail) begin() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first
}

func (t *tail) add(events []offpeak.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, events...)
	if len(t.events) > 2*tailSize {
		cut := len(t.events) - tailSize
		t.first = t.events[cut-1].Cursor
		t.events = append(make([]offpeak.Event, 0, 2*tailSize), t.events[cut:]...)
	}
	t.last = events[len(events)-1].Cursor
	close(t.more)
	t.more = make(chan struct{})
}

// startTail begins the tail at the newest event: listeners that are behind it
// find what they missed in the store, or that it is gone.
func (h *Hub) startTail(ctx context.Context) error {
	last, err := h.env.Store.LastEvent(ctx)
	if err != nil {
		return err
	}
	t := &h.tail
	t.mu.Lock()
	t.first, t.last, t.events = last, last, nil
	close(t.more)
	t.more = make(chan struct{})
	t.mu.Unlock()
	return nil
}

// A busy hub reads the events of many commits at once: the tail waits
// settleEvents after a verb rang, and eventsPace between two reads.
const (
	settleEvents = 5 * time.Millisecond
	eventsPace   = 25 * time.Millisecond
)

// tailEvents reads new events as verbs ring, and once a second in case that
// another hub wrote and could not tell. What others did goes into the picture
// before listeners hear of it.
func (h *Hub) tailEvents(ctx context.Context) error {
	const page = 1000
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	settle := time.NewTimer(0)
	<-settle.C
	var read time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.tail.wake:
			settle.Reset(min(max(settleEvents, eventsPace-h.env.Now().Sub(read)), eventsPace))
			select {
			case <-ctx.Done():
				return nil
			case <-settle.C:
			}
		case <-ticker.C:
			h.lookAnyway()
		}
		read = h.env.Now()
		for full := true; full && ctx.Err() == nil; {
			h.tail.mu.Lock()
			after := h.tail.last
			h.tail.mu.Unlock()
			events, err := h.env.Store.Events(ctx, "", after, page)
			if errors.Is(err, offpeak.ErrNotFound) { // pruned before the tail had read them
				err = h.resync(ctx)
			}
			if err == nil {
				err = h.follow(ctx, events)
			}
			if err != nil {
				if ctx.Err() == nil {
					h.env.Log.Warn("read events", "err", err)
				}
				break
			}
			h.tail.read(h.env.Now())
			if full = len(events) == page; len(events) > 0 {
				h.tail.add(events)
			}
		}
	}
}

// lookAnyway wakes everybody who waits for something of which other hubs may have
// told in vain: while they are not heard, and now and then in any case.
func (h *Hub) lookAnyway() {
	c := &h.circle
	if c.alone.Load() {
		return
	}
	c.mu.Lock()
	c.deaf++
	look := !c.listens || c.deaf >= 5
	if look {
		c.deaf = 0
	}
	c.mu.Unlock()
	if look {
		h.bells.RingAll()
	}
}

// fresh says that the picture is not far behind what other hubs did.
func (h *Hub) fresh(now time.Time) bool {
	if h.circle.alone.Load() {
		return true
	}
	const far = 2 * time.Second
	h.tail.mu.Lock()
	defer h.tail.mu.Unlock()
	return now.Sub(h.tail.at) < far
}

func (t *tail) read(at time.Time) {
	t.mu.Lock()
	t.at = at
	t.mu.Unlock()
}

// Events walks over events as they come, from after a cursor (-1: only those
// after this call), for an account ("" all) and a job ("" all), until ctx is
// done. ErrNotFound: the cursor is older than retention, or newer than any event:
// it is of another store, or of this one before a backup was restored.
func (h *Hub) Events(ctx context.Context, account offpeak.AccountID, after int64, job offpeak.JobID) iter.Seq2[offpeak.Event, error] {
	last, start := h.env.Store.LastEvent(ctx)
	switch {
	case start != nil:
	case after < 0:
		after = last
	case after > last:
		start = fmt.Errorf("the newest event is %d: %w", last, offpeak.ErrNotFound)
	}
	return func(yield func(offpeak.Event, error) bool) {
		if start != nil {
			yield(offpeak.Event{}, fmt.Errorf("read events: %w", start))
			return
		}
		for ctx.Err() == nil {
			events, more, here := h.tail.since(after)
			if !here {
				// Where the tail begins is read before the store is, so that what an
				// empty answer covers is known.
				begin := h.tail.begin()
				var err error
				if events, err = h.env.Store.Events(ctx, account, after, 1000); err != nil {
					if ctx.Err() == nil {
						yield(offpeak.Event{}, fmt.Errorf("read events: %w", err))
					}
					return
				}
				if len(events) == 0 {
					after = max(after, begin)
					continue
				}
			}
			for i := range events {
				e := &events[i]
				after = e.Cursor
				if (account != "" && e.Account != account) || (job != "" && e.Job != job) {
					continue
				}
				if !yield(*e, nil) {
					return
				}
			}
			if !here || len(events) > 0 {
				continue
			}
			select {
			case <-ctx.Done():
			case <-h.stopped:
				return
			case <-more:
			}
		}
	}
}
