// Package sqlite keeps a store in one SQLite file, for one hub.
//
// It owns the file: the lock that refuses a second hub, the look at its health,
// migrations, pragmas, and one goroutine that writes. Verbs that write wait in
// one queue; all that wait while a commit is under way share the next one, each
// in a savepoint of its own, and are answered after that commit has reached the
// disk (WAL, synchronous=FULL). Reads have connections of their own and never
// wait for writes.
//
// It knows no verb: those are in package sqlstore. Its methods may be called
// from any goroutine; Close ends the writer and waits for it.
//
// It is tested by storetest, by killing a child process that writes, and by
// files that are damaged, full, locked or from the future.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/store/sqlstore"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Options is what a store decides with. Zero fields take the defaults.
type Options struct {
	// Now is the store's clock. Default time.Now.
	Now func() time.Time
	// Rand jitters the pauses between attempts. Default: randomly seeded.
	Rand *rand.Rand
	// Log receives what an operator should know. Default: nothing.
	Log *slog.Logger
	// Money is how work is paid.
	Money sqlstore.Money
}

// Store is a store.Store in one file.
type Store struct {
	*sqlstore.Store
	db *db
}

var (
	_ store.Store   = (*Store)(nil)
	_ store.Counted = (*Store)(nil)
)

// readers is how many reads run at once.
const readers = 4

// Open opens the store at path, making it if there is none. It returns a
// *LockedError while another process has it open, a *CorruptError for a file
// that is damaged or no Offpeak database, a *SchemaError for one that a newer
// Offpeak wrote.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Rand == nil {
		opts.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	lock, err := lockFile(path)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	d, err := open(ctx, path, opts)
	if err != nil {
		lock.unlock()
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	d.lock = lock
	return &Store{Store: sqlstore.New(d, sqlstore.Config{Rand: opts.Rand, Money: opts.Money}), db: d}, nil
}

// Stats implements store.Counted.
func (s *Store) Stats() store.Stats { return s.db.stats() }

// Path is the store's file.
func (s *Store) Path() string { return s.db.path }

func open(ctx context.Context, path string, opts Options) (_ *db, err error) {
	if err := examineFile(path); err != nil {
		return nil, err
	}
	pool, err := sql.Open("sqlite", dsn(path, false))
	if err != nil {
		return nil, err
	}
	d := &db{path: path, opts: opts, pool: pool, queue: make(chan *task), done: make(chan struct{}), idle: make(chan *conn, readers)}
	defer func() {
		if err != nil {
			pool.Close()
		}
	}()
	// A file that was just made is readable by its owner alone.
	if err := touch(path); err != nil {
		return nil, classify(err)
	}
	// Damage is looked for first: a migration would only stumble over it.
	if err := examine(ctx, pool, path); err != nil {
		return nil, err
	}
	if err := migrate(ctx, pool, path); err != nil {
		return nil, err
	}
	if d.writer, err = d.connect(ctx, false); err != nil {
		return nil, err
	}
	for range readers {
		c, err := d.connect(ctx, true)
		if err != nil {
			return nil, err
		}
		d.idle <- c
	}
	go d.run()
	return d, nil
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func dsn(path string, readOnly bool) string {
	q := url.Values{"_pragma": {
		"busy_timeout(5000)",
		"journal_mode(WAL)",
		// FULL: a commit is on the disk before it is answered. NORMAL would lose
		// the last ones with the power.
		"synchronous(FULL)",
		"foreign_keys(ON)",
		"temp_store(MEMORY)",
		"journal_size_limit(67108864)",
		// Pages that many commits write go to the file once a checkpoint.
		"wal_autocheckpoint(10000)",
	}}
	// KiB of pages that a connection keeps to itself. The writer's are worth most;
	// what readers miss, the system still has.
	if readOnly {
		q["_pragma"] = append(q["_pragma"], "query_only(ON)", "cache_size(-2048)")
	} else {
		q["_pragma"] = append(q["_pragma"], "cache_size(-16384)")
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// connect makes a connection of its own for the writer or a reader.
func (d *db) connect(ctx context.Context, readOnly bool) (*conn, error) {
	pool, err := sql.Open("sqlite", dsn(d.path, readOnly))
	if err != nil {
		return nil, classify(err)
	}
	pool.SetMaxOpenConns(1)
	c, err := pool.Conn(ctx)
	if err != nil {
		pool.Close()
		return nil, classify(err)
	}
	return &conn{pool: pool, c: c, now: d.opts.Now, stmts: map[string]*sql.Stmt{}, many: map[many]string{}}, nil
}

// db is a sqlstore.DB over one file.
type db struct {
	path string
	opts Options
	lock *lock
	pool *sql.DB // for migrations, checks and backups

	queue chan *task
	done  chan struct{} // closed when the writer has ended
	idle  chan *conn    // readers that nobody uses

	mu      sync.RWMutex // held for reading while a task is handed over
	closed  bool
	closing sync.Once

	writer *conn // the writer goroutine's alone
	count  counters
}

var _ sqlstore.DB = (*db)(nil)

// errClosed is what verbs get after Close.
func errClosed() error { return fmt.Errorf("the store is closed: %w", offpeak.ErrUnavailable) }

// Read runs fn over a snapshot.
func (d *db) Read(ctx context.Context, fn func(tx sqlstore.Tx) error) error {
	var c *conn
	select {
	case c = <-d.idle:
	case <-d.done:
		return errClosed()
	case <-ctx.Done():
		return fmt.Errorf("wait for a reader: %w", ctx.Err())
	}
	defer func() { d.idle <- c }()
	select {
	case <-d.done:
		return errClosed()
	default:
	}
	if _, err := c.Exec(`BEGIN`); err != nil {
		return err
	}
	err := fn(c)
	if _, end := c.Exec(`ROLLBACK`); end != nil && err == nil {
		err = end
	}
	return err
}

// Glance runs queries over one snapshot.
func (d *db) Glance(ctx context.Context, list ...sqlstore.Look) (m sqlstore.Moment, err error) {
	err = d.Read(ctx, func(tx sqlstore.Tx) error {
		m = sqlstore.Moment{Now: tx.Now(), Horizon: tx.Horizon()}
		return tx.QueryMany(list...)
	})
	return m, err
}

// Backup copies the database as it is now into a new file.
func (d *db) Backup(ctx context.Context, path string) error {
	select {
	case <-d.done:
		return errClosed()
	default:
	}
	err := beside(path, func(part string) error {
		_, err := d.pool.ExecContext(ctx, `VACUUM INTO ?1`, part)
		return classify(err)
	})
	if err != nil {
		return fmt.Errorf("back up to %s: %w", path, err)
	}
	return nil
}

// Close ends the writer after what waits has been written, and lets go of the file.
func (d *db) Close() error {
	var err error
	d.closing.Do(func() {
		d.mu.Lock()
		d.closed = true
		close(d.queue)
		d.mu.Unlock()
		<-d.done
		for range readers {
			c := <-d.idle
			err = errors.Join(err, c.close())
		}
		if d.writer != nil {
			err = errors.Join(err, d.writer.close())
		}
		err = errors.Join(err, d.pool.Close())
		d.lock.unlock()
	})
	return err
}
