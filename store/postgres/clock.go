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
	shift        int64
}

// read is the clock that can't be set; 0 where there is none.
func (c *clock) read() time.Duration {
	if c.elapsed == nil {
		return 0
	}
	return c.elapsed()
}

// look compares a time that was read between before and now, and returns by how
// much it jumped; else it becomes the last one read.
//
// Where another hub has changed the shift meanwhile, its word is taken, and what
// passed counts anew from here: a hub whose own clock stood still, in a machine that
// was paused, would take that back, and the two would go on so for ever.
func (c *clock) look(read time.Time, shift int64, before time.Duration) time.Duration {
	if c.elapsed == nil {
		return 0
	}
	after := c.elapsed()
	c.mu.Lock()
	defer c.mu.Unlock()
	if shift != c.shift {
		c.last, c.shift = time.Time{}, shift
	}
	if !c.last.IsZero() {
		passed := read.Sub(c.last)
		if passed > after-c.asked+jumped || passed < before-c.heard-jumped {
			return passed - (after - c.heard)
		}
	}
	// The next look is as sharp as this answer was quick.
	if c.last.IsZero() || after > c.heard && after-before < jumped/4 {
		c.last, c.asked, c.heard = read, before, after
	}
	return 0
}

// correct takes a jump off the time of all hubs, unless another hub has done so.
func (d *db) correct(ctx context.Context, c *pgx.Conn, jump time.Duration, shift int64) error {
	tag, err := c.Exec(ctx, `UPDATE grid SET clock_shift = clock_shift - $1 WHERE clock_shift = $2`, jump.Microseconds(), shift)
	if err != nil {
		return fmt.Errorf("correct the store's time: %w", classify(err))
	}
	if tag.RowsAffected() > 0 {
		d.opts.Log.Warn("the database's clock was set; the grid's time goes on as before", "by", jump)
	}
	return nil
}
