// Package postgres keeps a store in a PostgreSQL database, for any number of hubs.
//
// It owns the connections, their time limits, transactions and what is retried,
// the store's time, the cursors of events, migrations, and what hubs know of each
// other. It knows no verb of the grid: those are in package sqlstore, which says
// what they lock.
//
// Transactions are READ COMMITTED: a verb locks the rows it decides on before it
// reads them. (Under REPEATABLE READ it would decide on what was true before it
// waited for the lock.) One that was refused for another's sake, by a deadlock or a
// lock that did not come, runs again; one whose COMMIT was not answered is looked
// for by its events. What can't be settled is ErrUnavailable, and the
// operation id settles it.
//
// Time is the database's clock_timestamp(), plus a shift that all hubs share and
// that changes when the clock is set: see clock. The cursor of an event holds the
// id of its transaction, so that a reader who stays below the oldest running
// transaction passes nothing that may still commit: see tx.Horizon.
//
// Methods may be called from any goroutine. It is tested by storetest and by
// killing, cutting off and setting the clock of a real server.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/store/sqlstore"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Time limits of every connection. A hub that freezes in a transaction holds its
// locks no longer than frozenFor, and nobody waits for a lock longer than lockFor.
const (
	frozenFor    = 3 * time.Second
	lockFor      = 2 * time.Second
	statementFor = 2 * time.Minute
	// silentFor is how long a server may say nothing while a hub waits for it, and
	// its network not acknowledge.
	silentFor = 15 * time.Second
	// writeFor bounds a whole write, tries and all: a caller is answered sooner
	// than its own patience ends.
	writeFor   = 20 * time.Second
	connectFor = 5 * time.Second
	// readFor bounds a read; the longest walks over the whole queue.
	readFor = 5 * time.Minute
)

// mostConns is how many connections a hub has at most, unless the URL says
// pool_max_conns, beside the one that listens.
const mostConns = 12

// Options is what a store decides with. Zero fields take the defaults.
type Options struct {
	// Hub is this run of a hub process, which its events name.
	Hub offpeak.HubID
	// Now replaces the database's time. Tests only.
	Now func() time.Time
	// Elapsed is a clock that can't be set, by which a jump of the database's is
	// noticed. It should count the time a machine sleeps. nil: jumps are not noticed.
	Elapsed func() time.Duration
	// Rand jitters the pauses between attempts. Default: randomly seeded.
	Rand *rand.Rand
	// Log receives what an operator should know. Default: nothing.
	Log *slog.Logger
	// Money is how work is paid.
	Money sqlstore.Money
	// ReadOnly opens what is there to be read: no schema is made or brought up to
	// date, and every verb that writes fails.
	ReadOnly bool
	// Backup writes a copy of the store in src to a file. nil: there is none.
	Backup func(ctx context.Context, src *Store, path string) error
	// Unguarded has claims lock the job alone and drops the schema's CHECKs. Tests
	// only: it shows what the lock and the guard on the node prevent.
	Unguarded bool
}

// Store is a store.Store in a database.
type Store struct {
	*sqlstore.Store
	db *db
}

var (
	_ store.Store   = (*Store)(nil)
	_ store.Counted = (*Store)(nil)
)

// Open opens the store in the database at url, a postgres:// URL or a list of
// key=value, and brings its schema up to date. It returns a *RefusedError for a
// server or schema that this hub can't work with, and ErrUnavailable where there
// is no answer.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	if opts.Rand == nil {
		opts.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	cfg, err := config(url)
	if err != nil {
		return nil, err
	}
	if opts.ReadOnly {
		cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	}
	d := &db{opts: opts, cfg: cfg, clock: clock{elapsed: opts.Elapsed}}
	if err := d.open(ctx); err != nil {
		return nil, fmt.Errorf("open store in %s: %w", d.where(), err)
	}
	s := &Store{Store: sqlstore.New(d, sqlstore.Config{Hub: opts.Hub, Rand: opts.Rand, Money: opts.Money, Together: true, Unguarded: opts.Unguarded}), db: d}
	d.store = s
	return s, nil
}

// config is how to connect. Nothing of it shows in an error: the URL may hold a
// password.
func config(url string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, &offpeak.FieldError{Field: "db", Rule: "is a PostgreSQL URL: " + misread(err)}
	}
	if !hasPoolSize(url) {
		cfg.MaxConns = mostConns
	}
	c := cfg.ConnConfig
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectFor
	}
	for k, v := range map[string]string{
		"application_name":                    "offpeak",
		"default_transaction_isolation":       "read committed",
		"synchronous_commit":                  "on",
		"lock_timeout":                        millis(lockFor),
		"statement_timeout":                   millis(statementFor),
		"idle_in_transaction_session_timeout": millis(frozenFor),
		"timezone":                            "UTC",
		// Every verb reaches its rows by an index. Of tables that grew since they were
		// last analysed the server believes that reading and hashing all of them is
		// cheaper than a few looks; it would also compile such plans.
		"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off",
	} {
		if _, set := c.RuntimeParams[k]; !set || k != "application_name" {
			c.RuntimeParams[k] = v
		}
	}
	dialer := &net.Dialer{Control: giveUp, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}}
	c.DialFunc = dialer.DialContext
	cfg.AfterConnect = noticeGone
	return cfg, nil
}

// noticeGone has a server notice that a hub is gone while it waits for a lock, and let
// go of what it has. Servers whose system can't tell them (Windows) refuse that, and
// keep such locks until statementFor has passed.
func noticeGone(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, `SELECT set_config('client_connection_check_interval', $1, FALSE)`, millis(time.Second))
	if which, _ := code(err); which == "22023" { // invalid_parameter_value
		return nil
	}
	return err
}

func millis(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

// db is a sqlstore.DB over one database.
type db struct {
	opts  Options
	cfg   *pgxpool.Config
	pool  *pgxpool.Pool
	clock clock
	store *Store

	// newer says that the schema is newer than this hub. Set when opening.
	newer  bool
	closed atomic.Bool
	// away says that the last try to connect failed.
	away  atomic.Bool
	count counters
	// spread are statements over many rows, by what they were made of: see overMany.
	spread sync.Map
}

var _ sqlstore.DB = (*db)(nil)

type counters struct{ commits, committing, failures atomic.Int64 }

// Stats implements store.Counted. Commits are those of transactions; that some share
// a write to the disk inside the server does not show.
func (s *Store) Stats() store.Stats {
	c := &s.db.count
	return store.Stats{Commits: c.commits.Load(), Verbs: s.Verbs(), Committing: time.Duration(c.committing.Load()), Failures: c.failures.Load()}
}

// where names the database without what is secret.
func (d *db) where() string {
	c := d.cfg.ConnConfig
	return fmt.Sprintf("database %s on %s", c.Database, net.JoinHostPort(c.Host, fmt.Sprint(c.Port)))
}

// errClosed is what verbs get after Close.
func errClosed() error { return fmt.Errorf("the store is closed: %w", offpeak.ErrUnavailable) }

// Backup writes a copy.
func (d *db) Backup(ctx context.Context, path string) error {
	switch {
	case d.closed.Load():
		return errClosed()
	case d.opts.Backup == nil:
		return fmt.Errorf("back up %s: %w", d.where(), errors.ErrUnsupported)
	}
	return d.opts.Backup(ctx, d.store, path)
}

// Close ends all connections, once what is under way is done.
func (d *db) Close() error {
	if !d.closed.Swap(true) {
		d.pool.Close()
	}
	return nil
}

// acquire takes a connection of the pool.
func (d *db) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	if d.closed.Load() {
		return nil, errClosed()
	}
	c, err := d.pool.Acquire(ctx)
	if err != nil {
		if d.closed.Load() {
			return nil, errClosed()
		}
		// Callers may show it to anybody: where the database is goes to the log, once
		// an outage.
		if !d.away.Swap(true) {
			d.opts.Log.Warn("the database does not answer", "database", d.where(), "err", classify(err))
		}
		return nil, fmt.Errorf("the database does not answer: %w", offpeak.ErrUnavailable)
	}
	if d.away.Swap(false) {
		d.opts.Log.Info("the database answers again")
	}
	return c, nil
}

// Read runs fn over a snapshot.
func (d *db) Read(ctx context.Context, fn func(tx sqlstore.Tx) error) error {
	return d.reading(ctx, func(c *pgx.Conn) (bool, error) { return d.read(ctx, c, fn) })
}

// Glance runs queries over a snapshot.
func (d *db) Glance(ctx context.Context, list ...sqlstore.Look) (m sqlstore.Moment, err error) {
	err = d.reading(ctx, func(c *pgx.Conn) (bool, error) {
		t := &tx{ctx: ctx, c: c, db: d}
		err := t.glance(list)
		m = sqlstore.Moment{Now: t.now, Horizon: t.Horizon()}
		return t.began, err
	})
	return m, err
}

// reading has something read on a connection, which says whether it had begun.
func (d *db) reading(ctx context.Context, fn func(c *pgx.Conn) (began bool, err error)) error {
	for try := 0; ; try++ {
		c, err := d.acquire(ctx)
		if err != nil {
			return err
		}
		began, err := fn(c.Conn())
		c.Release()
		// A connection that had died before it was used is no reason to fail.
		if err == nil || began || try > 0 || ctx.Err() != nil || !errors.Is(err, offpeak.ErrUnavailable) {
			return err
		}
	}
}

func (d *db) read(ctx context.Context, c *pgx.Conn, fn func(tx sqlstore.Tx) error) (began bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	t := &tx{ctx: ctx, c: c, db: d}
	if err := t.begin(beginRead, readTime); err != nil {
		return false, err
	}
	err = fn(t)
	if end := t.end("ROLLBACK"); end != nil && err == nil {
		err = end
	}
	return true, err
}

const (
	beginRead  = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`
	beginWrite = `BEGIN`
)

// Write runs fn in a transaction.
func (d *db) Write(ctx context.Context, fn func(tx sqlstore.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeFor)
	defer cancel()
	for try := 1; ; try++ {
		err := d.write(ctx, fn)
		if err == nil {
			return nil
		}
		if !again(err) || try == mostTries {
			if errors.Is(err, offpeak.ErrUnavailable) || errors.Is(err, offpeak.ErrStorage) {
				d.count.failures.Add(1)
				d.opts.Log.Debug("store transaction failed", "err", err)
			}
			return err
		}
		if !pause(ctx, try) {
			return err
		}
	}
}

func (d *db) write(ctx context.Context, fn func(tx sqlstore.Tx) error) error {
	c, err := d.acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	t := &tx{ctx: ctx, c: c.Conn(), db: d}
	if err := t.begin(beginWrite, writeTime); err != nil {
		return &againError{err} // nothing was done
	}
	if err := fn(t); err != nil {
		if end := t.end("ROLLBACK"); end != nil {
			d.opts.Log.Debug("roll back", "err", end)
		}
		return err
	}
	began := d.clock.read()
	if err := t.end("COMMIT"); err != nil {
		return d.settle(ctx, t, err)
	}
	d.count.committing.Add(int64(d.clock.read() - began))
	d.count.commits.Add(1)
	return nil
}

// settle finds out what became of a transaction whose COMMIT failed: whether its
// first event is there. The server's word on its id would not do: a server that
// crashed gives ids anew that it had not written down, and an event of whoever has
// the id now is of another hub or time. A transaction without events stays unknown.
func (d *db) settle(ctx context.Context, t *tx, cause error) error {
	if _, known := code(cause); known && !errors.Is(cause, offpeak.ErrUnavailable) {
		return cause // the server said that it did not commit
	}
	for try := 1; try < mostTries && t.events > 0; try++ {
		there, over, err := d.lookFor(ctx, t)
		switch {
		case err == nil && there:
			return nil
		case err == nil && over:
			return &againError{cause}
		}
		if !pause(ctx, try+3) {
			break
		}
	}
	return fmt.Errorf("commit, outcome unknown: %w: %w", offpeak.ErrUnavailable, cause)
}

// lookFor says whether a transaction's events are there, and whether the
// transaction is over: a backend may not have noticed yet that its hub is gone.
func (d *db) lookFor(ctx context.Context, t *tx) (there, over bool, err error) {
	c, err := pgx.ConnectConfig(ctx, d.cfg.ConnConfig)
	if err != nil {
		return false, false, err
	}
	defer func() { _ = c.Close(ctx) }()
	// Over first: what is over then shows in the look that follows.
	var oldest int64
	if err := c.QueryRow(ctx, `SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT)`).Scan(&oldest); err != nil {
		return false, false, err
	}
	err = c.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM events WHERE cursor >= $1 AND cursor < $1 + 65536 AND hub = $2 AND at = $3)`,
		(t.xid+t.epoch)*perTransaction, string(d.opts.Hub), t.now.UnixMicro()).Scan(&there)
	return there, t.xid < oldest, err
}
