package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// jumped is the least by which a database's clock must be off from what passed
// for a hub, to be taken for set rather than for a slow answer.
const jumped = 2 * time.Second

// clock notices when the database's clock is set. Every transaction compares the
// time it reads with the last one read and with what passed meanwhile by a clock
// that can't be set, before anything is decided by it; what is too much or too
// little is taken off the time of all hubs.
type clock struct {
	elapsed func() time.Duration

	mu sync.Mutex // guards what follows
	// last was read between asked and heard, with shift taken off.
	last         time.Time
	asked, heard time.Duration
	// turn counts how often a jump was taken off, as far as this hub knows.
	turn int64
}

// read is the clock that can't be set; 0 where there is none.
func (c *clock) read() time.Duration {
	if c.elapsed == nil {
		return 0
	}
	return c.elapsed()
}

// reading is one reading of the store's time: the database's clock with what is
// added to it, of which turn counts the changes.
type reading struct {
	at          time.Time
	shift, turn int64
}

// now is the store's time.
func (r reading) now() time.Time {
	return r.at.Add(time.Duration(r.shift) * time.Microsecond).UTC()
}

// look compares what was read between before and now with what was read last, and
// returns by how much the time jumped; else it becomes the last one read.
//
// Where another hub has changed the shift meanwhile, its word is taken, and what
// passed counts anew from here: a hub whose own clock stood still, in a machine that
// was paused, would take that back, and the two would go on so for ever. stale says
// that it was the other way round: the shift was changed after this was read, so it
// is to be read again.
func (c *clock) look(r reading, before time.Duration) (jump time.Duration, stale bool) {
	if c.elapsed == nil {
		return 0, false
	}
	read, after := r.now(), c.elapsed()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case r.turn < c.turn:
		return 0, true
	case r.turn > c.turn:
		c.last, c.turn = time.Time{}, r.turn
	}
	if !c.last.IsZero() {
		passed := read.Sub(c.last)
		if passed > after-c.asked+jumped || passed < before-c.heard-jumped {
			return passed - (after - c.heard), false
		}
	}
	// The next look is as sharp as this answer was quick.
	if c.last.IsZero() || after > c.heard && after-before < jumped/4 {
		c.last, c.asked, c.heard = read, before, after
	}
	return 0, false
}

// correct takes a jump off the time of all hubs, unless another hub has done so.
func (d *db) correct(ctx context.Context, c *pgx.Conn, jump time.Duration, turn int64) error {
	tag, err := c.Exec(ctx, `UPDATE grid SET clock_shift = clock_shift - $1, clock_turn = clock_turn + 1 WHERE clock_turn = $2`, jump.Microseconds(), turn)
	if err != nil {
		return fmt.Errorf("correct the store's time: %w", classify(err))
	}
	if tag.RowsAffected() > 0 {
		d.opts.Log.Warn("the database's clock was set; the grid's time goes on as before", "by", jump)
	}
	return nil
}
