package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"offpeak"
	"offpeak/store/sqlstore"

	"github.com/jackc/pgx/v5"
)

// The first statement of a transaction asks for all it needs to know of its time
// and place. A write learns its id, by which its outcome can be asked for and by
// which its events are numbered; a read learns up to where events are complete:
// every transaction below the oldest one that runs has ended.
const (
	writeTime = `SELECT clock_timestamp(), clock_shift, clock_turn, pg_current_xact_id(), event_epoch FROM grid`
	readTime  = `SELECT clock_timestamp(), clock_shift, clock_turn, pg_snapshot_xmin(pg_current_snapshot()), event_epoch FROM grid`
)

// perTransaction is how many events one transaction may write: the lower 16 bits
// of a cursor, so that cursors stay exact in JSON for 2^37 transactions.
const perTransaction = 1 << 16

// tx is one transaction on one connection.
type tx struct {
	ctx   context.Context
	c     *pgx.Conn
	db    *db
	now   time.Time
	xid   int64 // of a read: the oldest that runs
	epoch int64
	// began says that the transaction was opened.
	began bool
	// events counts the cursors that were given.
	events int64
	depth  int
}

// begin opens a transaction and reads its time, in one round trip. A clock that
// jumped is put right first.
func (t *tx) begin(begin, read string) error {
	return t.open(begin, read, nil)
}

// glance is a transaction of one round trip, which begins, runs queries and is over.
func (t *tx) glance(list []sqlstore.Look) error {
	return t.open(beginRead, readTime, list)
}

// open begins a transaction and reads its time; where there are queries, they are all
// it is for.
func (t *tx) open(begin, read string, list []sqlstore.Look) error {
	for range 3 {
		before := t.db.clock.read()
		b := &pgx.Batch{}
		b.Queue(begin)
		b.Queue(read)
		for _, l := range list {
			b.Queue(l.Query, bound(l.Args)...)
		}
		patience := connectFor
		if len(list) > 0 {
			b.Queue("ROLLBACK")
			patience = silentFor
		}
		r, err := t.opened(b, patience)
		if err != nil {
			return err
		}
		jump, stale := t.db.clock.look(r.reading, before)
		if t.db.opts.Now != nil {
			t.now, jump, stale = t.db.opts.Now().UTC().Truncate(time.Microsecond), 0, false
		}
		if jump == 0 && !stale {
			t.began = true
			return r.rest(list)
		}
		if err := r.rest(nil); err != nil {
			return err
		}
		if len(list) == 0 {
			if err := t.end("ROLLBACK"); err != nil {
				return err
			}
		}
		if jump != 0 {
			if err := t.db.correct(t.ctx, t.c, jump, r.turn); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("begin: the database's clock does not go evenly: %w", offpeak.ErrUnavailable)
}

// opening is a transaction that was opened, and what is still to be read of what was
// asked with it.
type opening struct {
	reading
	results pgx.BatchResults
	cancel  context.CancelFunc
}

// opened sends what opens a transaction, and reads its time.
func (t *tx) opened(b *pgx.Batch, patience time.Duration) (*opening, error) {
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	o := &opening{results: t.c.SendBatch(ctx, b), cancel: cancel}
	_, err := o.results.Exec()
	var xid uint64 // grows by one a transaction: 2^47 of them fit a cursor
	if err == nil {
		err = o.results.QueryRow().Scan(&o.at, &o.shift, &o.turn, &xid, &t.epoch)
	}
	if err != nil {
		_ = o.rest(nil)
		return nil, fmt.Errorf("begin: %w", classify(err))
	}
	t.xid, t.now = int64(xid), o.now()
	return o, nil
}

// rest hands over the rows of queries, and leaves out what it is not asked for.
func (o *opening) rest(list []sqlstore.Look) (err error) {
	defer o.cancel()
	for _, l := range list {
		if err = look(o.results, l); err != nil {
			break
		}
	}
	if end := o.results.Close(); err == nil && end != nil {
		err = fmt.Errorf("begin: %w", classify(end))
	}
	return err
}

// end ends the transaction. Nobody's hurry cuts off a COMMIT.
func (t *tx) end(how string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), silentFor)
	defer cancel()
	if t.c.IsClosed() {
		return fmt.Errorf("%s: %w", strings.ToLower(how), lostConnection())
	}
	tag, err := t.c.Exec(ctx, how)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.ToLower(how), classify(err))
	}
	if how == "COMMIT" && tag.String() == "ROLLBACK" {
		return fmt.Errorf("commit: an earlier statement had failed: %w", &sqlstore.RacedError{})
	}
	return nil
}

// Now is the store's time when the transaction began.
func (t *tx) Now() time.Time { return t.now }

// Cursor numbers the transaction's events.
func (t *tx) Cursor() any {
	t.events++
	return (t.xid+t.epoch)*perTransaction + t.events - 1
}

// Horizon is the last cursor below the oldest transaction that runs.
func (t *tx) Horizon() int64 { return (t.xid+t.epoch)*perTransaction - 1 }

func (t *tx) Exec(query string, args ...any) (int64, error) {
	ctx, cancel := context.WithTimeout(t.ctx, silentFor)
	defer cancel()
	tag, err := t.c.Exec(ctx, query, bound(args)...)
	if err != nil {
		return 0, classify(err)
	}
	return tag.RowsAffected(), t.countEvents()
}

// countEvents refuses a transaction that has more events than cursors.
func (t *tx) countEvents() error {
	if t.events > perTransaction {
		return fmt.Errorf("one transaction writes %d events, %d is the most", t.events, perTransaction)
	}
	return nil
}

// Lock runs a statement that only locks.
func (t *tx) Lock(query string, args ...any) error {
	_, err := t.Exec(query, args...)
	return err
}

func (t *tx) Query(query string, args ...any) (sqlstore.Rows, error) {
	ctx, cancel := context.WithCancel(t.ctx)
	silence := time.AfterFunc(silentFor, cancel)
	r, err := t.c.Query(ctx, query, bound(args)...)
	if err != nil {
		silence.Stop()
		cancel()
		return nil, classify(err)
	}
	return rows{classified{r}, silence, cancel}, nil
}

// Sub runs fn in a savepoint.
func (t *tx) Sub(fn func() error) error {
	t.depth++
	defer func() { t.depth-- }()
	name := fmt.Sprintf("s%d", t.depth)
	if _, err := t.Exec(`SAVEPOINT ` + name); err != nil {
		return err
	}
	err := fn()
	if err == nil {
		_, err = t.Exec(`RELEASE SAVEPOINT ` + name)
		return err
	}
	if sqlstore.Broken(err) {
		return err
	}
	if _, undo := t.Exec(`ROLLBACK TO SAVEPOINT ` + name); undo != nil {
		return fmt.Errorf("undo after %w: %w", err, undo)
	}
	return err
}

// bound are arguments as the server takes them: its texts are UTF-8 and hold no
// zero byte. An id that is neither is thus one that nothing has.
func bound(args []any) []any {
	for i, a := range args {
		switch v := a.(type) {
		case string:
			if clean := text(v); clean != v {
				args[i] = clean
			}
		case []string:
			args[i] = cleaned(v)
		}
	}
	return args
}

// text is a text as the server takes it.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// cleaned are texts as the server takes them. The given list is the caller's and
// stays as it is.
func cleaned(list []string) []string {
	out := list
	for i, s := range list {
		clean := text(s)
		if clean == s {
			continue
		}
		if &out[0] == &list[0] {
			out = slices.Clone(list)
		}
		out[i] = clean
	}
	return out
}

// classified are rows of which every error is the contract's.
type classified struct{ pgx.Rows }

func (r classified) Scan(dest ...any) error { return classify(r.Rows.Scan(dest...)) }
func (r classified) Err() error             { return classify(r.Rows.Err()) }
func (r classified) Close() error {
	r.Rows.Close()
	return r.Err()
}

// rows gives up on a server that says nothing.
type rows struct {
	classified
	silence *time.Timer
	cancel  context.CancelFunc
}

func (r rows) Next() bool {
	r.silence.Reset(silentFor)
	return r.classified.Next()
}

func (r rows) Close() error {
	err := r.classified.Close()
	r.silence.Stop()
	r.cancel()
	return err
}
