// Package steady is clocks that a hub can rely on where the machine's is set.
//
// Counter counts and can't be set. Clock tells the time and is never set back, for
// a hub and its store: their rows hold times to come, such as a lease's expiry, and
// an hour that the machine's clock is set back would keep a dead node's jobs for an
// hour more.
//
// A Clock goes on at its own pace, and with the machine's clock where that is
// further: a correction forwards and the sleep of a suspended machine show as a
// jump, which a hub takes for a time in which it did not listen. Once it was set
// back, the machine's clock is believed again when it has caught up, or by the next
// process.
package steady

import (
	"sync"
	"time"
)

// Clock is such a clock. It is safe for concurrent use.
type Clock struct {
	wall    func() time.Time
	elapsed func() time.Duration

	mu sync.Mutex // guards what follows
	// now is the time last told, at the moment seen by elapsed.
	now  time.Time
	seen time.Duration
}

// New makes a clock of the machine's, which may be set, and of one that counts
// from any moment on and can't be.
func New(wall func() time.Time, elapsed func() time.Duration) *Clock {
	return &Clock{wall: wall, elapsed: elapsed, now: wall().Round(0), seen: elapsed()}
}

// Now is the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.elapsed()
	c.now, c.seen = c.now.Add(at-c.seen), at
	if wall := c.wall().Round(0); wall.After(c.now) {
		c.now = wall
	}
	return c.now
}
