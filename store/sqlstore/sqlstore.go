// Package sqlstore is the body of the store that both SQL engines share: every
// verb of store.Store as statements that SQLite and PostgreSQL accept alike.
//
// It owns what a verb reads and writes within one transaction, and in which order
// it locks. It does not know how transactions are begun, grouped and made durable,
// how files or servers are opened, nor how an engine's errors are told apart: that
// is DB, which packages sqlite and postgres implement.
//
// All of a store's methods may be called at once. SQLite has one writer; in
// PostgreSQL a verb locks the rows it decides on before it reads them: nodes, in
// the order of their ids, then jobs, then accounts. A job with a live lease, and
// that lease, are only changed under the lock of the lease's node, so whoever
// holds it waits for nobody. Every UPDATE is guarded by the state that was read
// all the same.
//
// A verb loads the rows it is about in few statements, decides in memory, and has
// what changed written at its end, by kind (see put): a batch costs about as many
// statements as one. Each member of a batch stands alone, since it changes nothing
// before it has decided, or what it changed in memory is undone. What many ask for
// one by one goes together where the engine does not see to that (see group).
//
// A function handed to DB may run more than once, so it has no effect outside
// its transaction but to set the results of its verb.
//
// It is tested by package storetest, run by each engine.
package sqlstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/store"
)

// DB runs transactions for a Store.
type DB interface {
	// Write runs fn in a transaction and returns when it is durable. When fn
	// returns an error nothing it did remains and the error is returned.
	Write(ctx context.Context, fn func(tx Tx) error) error
	// Read runs fn over one consistent snapshot.
	Read(ctx context.Context, fn func(tx Tx) error) error
	// Glance runs queries over one consistent snapshot, in one round trip where the
	// engine can, and says when it was.
	Glance(ctx context.Context, list ...Look) (Moment, error)
	// Backup writes a consistent copy to path, which must not exist.
	Backup(ctx context.Context, path string) error
	Close() error
}

// Tx is one transaction. Statements are PostgreSQL's, in so far as SQLite takes
// them too after three words were changed: numbered parameters ($1, $2, …), lists
// (= ANY($1), where $1 is a []string) and row locks (FOR NO KEY UPDATE, which an
// engine with one writer leaves out; others may refer to the row meanwhile, as
// after a plain FOR UPDATE they may not). What it returns is classified: ErrStorage
// and ErrUnavailable mean what they mean in package store.
type Tx interface {
	// Now is the store's time.
	Now() time.Time
	// Cursor is the cursor of the transaction's next event, nil where the engine
	// counts them itself.
	Cursor() any
	// Horizon is the cursor up to which every event there will ever be can be read.
	Horizon() int64
	Exec(query string, args ...any) (rows int64, err error)
	// ExecMany runs statements, each once for every list of its arguments, in as few
	// steps and round trips as the engine can, and returns how many rows each
	// statement changed in all.
	ExecMany(list ...Many) (rows []int64, err error)
	Query(query string, args ...any) (Rows, error)
	// QueryMany runs queries in their order, in one round trip where the engine can,
	// and hands over their rows.
	QueryMany(list ...Look) error
	// Lock runs a statement that only locks. An engine with one writer does nothing.
	Lock(query string, args ...any) error
	// Sub runs fn so that an error undoes what fn did and nothing else.
	Sub(fn func() error) error
}

// Moment is when something was read: what Now and Horizon of its transaction were.
type Moment struct {
	Now     time.Time
	Horizon int64
}

// Look is one query, and what takes each of its rows.
type Look struct {
	Query string
	Args  []any
	Row   func(r Rows) error
}

// Rows is what *sql.Rows has.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// Money is how an operator has work paid.
type Money struct {
	// Rules are the figures; the zero value is the default.
	Rules ledger.Rules
	// Price is what a job with some requirements pays where so much is asked. The
	// default is the ask for as many devices as it takes.
	Price func(ask offpeak.Ask, r *offpeak.Requirements) offpeak.Price
}

// Config is what a Store decides with.
type Config struct {
	// Hub is the hub that writes, which its events name.
	Hub offpeak.HubID
	// Rand jitters the pauses between attempts.
	Rand *rand.Rand
	// Together has reports, submissions and reads of assignments that wait done
	// together, for an engine that does not group them itself.
	Together bool
	Money
	// Unguarded has claims lock the job alone and write the node as they read it
	// without. Tests only: it shows what the lock and the guard on the node prevent.
	Unguarded bool
}

// Store is a store.Store over a DB, but for what hubs know of each other.
type Store struct {
	db  DB
	cfg Config

	verbs atomic.Int64
	stale noted

	mu    sync.Mutex                    // guards rand, specs and arrays
	rand  *rand.Rand                    // handed to AfterEnd
	specs map[offpeak.Hash]offpeak.Spec // specs read lately; they never change
	// arrays are those read lately; they never change.
	arrays map[offpeak.GroupID]*array

	reporting  group[store.Report, store.Change]
	submitting group[submission, offpeak.Job]
	assigning  group[offpeak.NodeID, holding]
}

// New returns a store over db, whose schema is in place.
func New(db DB, cfg Config) *Store {
	if cfg.Rules == (ledger.Rules{}) {
		cfg.Rules = ledger.DefaultRules()
	}
	if cfg.Price == nil {
		cfg.Price = func(ask offpeak.Ask, r *offpeak.Requirements) offpeak.Price { return ask.For(*r) }
	}
	s := &Store{db: db, cfg: cfg, rand: cfg.Rand, specs: map[offpeak.Hash]offpeak.Spec{}, arrays: map[offpeak.GroupID]*array{}}
	s.reporting.each, s.reporting.run = !cfg.Together, together(s, s.reports)
	s.submitting.each, s.submitting.run = !cfg.Together, together(s, s.submissions)
	s.assigning.each, s.assigning.run = !cfg.Together, s.assignments
	return s
}

// Now is the store's time.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	return read(ctx, s, "read the store's time", func(t *verb) (time.Time, error) { return t.now, nil })
}

// Backup writes a consistent copy to path.
func (s *Store) Backup(ctx context.Context, path string) error { return s.db.Backup(ctx, path) }

// Close does what waits, flushes and closes.
func (s *Store) Close() error {
	s.reporting.close()
	s.submitting.close()
	s.assigning.close()
	return s.db.Close()
}

// Verbs counts the writing verbs that were done, of which many may have shared a
// transaction.
func (s *Store) Verbs() int64 { return s.verbs.Load() }

// write runs one verb: fn decides, and what it wants written is written after it. The result is
// handed over only when the transaction is durable: after an unknown outcome the
// writer may still be at work on it.
func write[T any](ctx context.Context, s *Store, what string, fn func(t *verb) (T, error)) (T, error) {
	out, err := transact(ctx, s, fn)
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return out, err
}

func transact[T any](ctx context.Context, s *Store, fn func(t *verb) (T, error)) (T, error) {
	var out, none T
	err := s.db.Write(ctx, func(tx Tx) error {
		t := verb{Tx: tx, now: tx.Now(), hub: string(s.cfg.Hub)}
		v, err := fn(&t)
		if err != nil {
			return err
		}
		out = v
		if err := s.free(&t); err != nil {
			return err
		}
		return t.put(s.cfg)
	})
	if err != nil {
		return none, err
	}
	s.verbs.Add(1)
	return out, nil
}

// read runs fn over a snapshot.
func read[T any](ctx context.Context, s *Store, what string, fn func(t *verb) (T, error)) (T, error) {
	var out, none T
	err := s.db.Read(ctx, func(tx Tx) (err error) {
		out, err = fn(&verb{Tx: tx, now: tx.Now()})
		return err
	})
	if err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}
	return out, nil
}

// verb is the transaction of one verb.
type verb struct {
	Tx
	now    time.Time
	hub    string
	rows   rows
	writes writes
	// ended are jobs, and arrays, that ended here and that others wait for.
	ended []*ended
}

// texts are ids as a statement takes a list.
func texts[S ~string](ids []S) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}

// row reads one row; ErrNotFound when there is none.
func (t *verb) row(query string, args []any, dest ...any) error {
	rows, err := t.Query(query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return err
		}
		return offpeak.ErrNotFound
	}
	if err := rows.Scan(dest...); err != nil {
		return err
	}
	return rows.Close()
}

// each reads all rows.
func (t *verb) each(query string, args []any, fn func(rows Rows) error) error {
	rows, err := t.Query(query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// exists says whether the query, a SELECT of anything, has a row.
func (t *verb) exists(query string, args ...any) (bool, error) {
	rows, err := t.Query(query, args...)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	return rows.Next(), rows.Err()
}

// must runs an UPDATE that is guarded by what the verb read, and has to hit
// exactly one row.
func (t *verb) must(query string, args ...any) error {
	n, err := t.Exec(query, args...)
	if err != nil {
		return err
	}
	if n != 1 {
		return &RacedError{}
	}
	return nil
}

// RacedError says that what a verb had read was changed under it, so it changed
// nothing and may run again.
type RacedError struct{}

func (*RacedError) Error() string { return "it was changed meanwhile" }

// Unwrap makes errors.Is(e, offpeak.ErrConflict) true.
func (*RacedError) Unwrap() error { return offpeak.ErrConflict }

// once runs a client's mutation by its operation id: the first time fn, whose
// outcome is kept, and the same outcome ever after.
func once[T any](t *verb, op store.Op, what, object string, fn func() (T, error)) (out T, first bool, err error) {
	if err := t.loadOperations(op.ID); err != nil {
		return out, false, err
	}
	return onceLoaded(t, op, what, object, fn)
}

// operation is what a client's mutation was answered.
type operation struct {
	account offpeak.AccountID
	digest  string
	outcome string
}

// loadOperations reads which operations were done before.
func (t *verb) loadOperations(ids ...offpeak.OpID) error {
	where, arg := oneOf("id", ids)
	return t.each(`SELECT id, account, digest, outcome FROM operations WHERE `+where, []any{arg}, func(r Rows) error {
		var id offpeak.OpID
		var o operation
		var digest []byte
		err := r.Scan(&id, &o.account, &digest, &o.outcome)
		o.digest = string(digest)
		keep(&t.rows.done, id, o)
		return err
	})
}

// onceLoaded is once for an operation that has been looked for.
func onceLoaded[T any](t *verb, op store.Op, what, object string, fn func() (T, error)) (out T, first bool, err error) {
	if op.ID == "" {
		return out, false, &offpeak.FieldError{Field: "operation_id", Rule: "is made by the client and kept for retries; it can't be empty"}
	}
	if o, done := t.rows.done[op.ID]; done {
		if o.account != op.Actor.Account || o.digest != string(op.Digest[:]) {
			return out, false, offpeak.ErrOperationConflict
		}
		if err := json.Unmarshal([]byte(o.outcome), &out); err != nil {
			return out, false, fmt.Errorf("read the outcome of operation %s: %w", op.ID, err)
		}
		return out, false, nil
	}
	if out, err = fn(); err != nil {
		// It may have failed because the same operation was done meanwhile.
		if done, again := t.exists(`SELECT 1 FROM operations WHERE id = $1`, string(op.ID)); again == nil && done {
			err = &RacedError{}
		}
		return out, false, err
	}
	kept, err := json.Marshal(out)
	if err != nil {
		return out, false, fmt.Errorf("keep the outcome of operation %s: %w", op.ID, err)
	}
	t.later(addOperation, string(op.ID), string(op.Actor.Account), op.Digest[:], string(kept), micros(t.now))
	keep(&t.rows.done, op.ID, operation{op.Actor.Account, string(op.Digest[:]), string(kept)})
	t.audit(op.Actor, what, object, "done")
	return out, true, nil
}

// spec returns a stored spec. Its maps and slices are shared and read-only.
func (s *Store) spec(t *verb, hash offpeak.Hash) (offpeak.Spec, error) {
	if spec, ok := s.recent(hash); ok {
		return spec, nil
	}
	read, err := s.readSpecs(t, []offpeak.Hash{hash})
	if err != nil {
		return offpeak.Spec{}, err
	}
	spec, ok := read[hash]
	if !ok {
		return spec, fmt.Errorf("read spec %s: %w", hash, offpeak.ErrNotFound)
	}
	return spec, nil
}

func (s *Store) recent(hash offpeak.Hash) (offpeak.Spec, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	spec, ok := s.specs[hash]
	return spec, ok
}

func (s *Store) readSpecs(t *verb, hashes []offpeak.Hash) (map[offpeak.Hash]offpeak.Spec, error) {
	if len(hashes) == 0 {
		return nil, nil
	}
	out := make(map[offpeak.Hash]offpeak.Spec, len(hashes))
	where, arg := oneOf("hash", hashes)
	return out, t.each(`SELECT hash, spec FROM specs WHERE `+where, []any{arg}, func(r Rows) error {
		var hash offpeak.Hash
		var text string
		var spec offpeak.Spec
		if err := r.Scan(&hash, &text); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(text), &spec); err != nil {
			return fmt.Errorf("read spec %s: %w", hash, err)
		}
		out[hash] = spec
		if len(text) <= 4096 {
			s.remember(hash, spec)
		}
		return nil
	})
}

// remember keeps the specs used lately; large ones are read again each time.
func (s *Store) remember(hash offpeak.Hash, spec offpeak.Spec) {
	const most = 512
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.specs) >= most {
		clear(s.specs)
	}
	s.specs[hash] = spec
}

func hashOf(b []byte) offpeak.Hash {
	sum := sha256.Sum256(b)
	return offpeak.Hash(hex.EncodeToString(sum[:]))
}

// micros writes a time; the zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// moment reads a time.
func moment(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// maybe reads a time that may be absent.
func maybe(us int64) *time.Time {
	if us == 0 {
		return nil
	}
	t := moment(us)
	return &t
}

func span(d time.Duration) int64 { return d.Microseconds() }

func unspan(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// data writes what an event holds beside its columns.
func data(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("sqlstore: event data: " + err.Error()) // only plain values are handed in
	}
	return b
}
