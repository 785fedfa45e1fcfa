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
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"offpeak"
	"offpeak/store"
)

// DB runs transactions for a Store.
type DB interface {
	// Write runs fn in a transaction and returns when it is durable. When fn
	// returns an error nothing it did remains and the error is returned.
	Write(ctx context.Context, fn func(tx Tx) error) error
	// Read runs fn over one consistent snapshot.
	Read(ctx context.Context, fn func(tx Tx) error) error
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
	// ExecMany runs one statement for each of several lists of arguments, in one
	// round trip where the engine can, and returns how many rows each changed.
	ExecMany(query string, args [][]any) (rows []int64, err error)
	Query(query string, args ...any) (Rows, error)
	// Lock runs a statement that only locks. An engine with one writer does nothing.
	Lock(query string, args ...any) error
	// Sub runs fn so that an error undoes what fn did and nothing else.
	Sub(fn func() error) error
}

// Rows is what *sql.Rows has.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// Config is what a Store decides with.
type Config struct {
	// Hub is the hub that writes, which its events name.
	Hub offpeak.HubID
	// Rand jitters the pauses between attempts.
	Rand *rand.Rand
	// Unguarded leaves the capacity out of the claim's condition. Tests only:
	// it shows that Check finds what the guard prevents.
	Unguarded bool
}

// Store is a store.Store over a DB, but for what hubs know of each other.
type Store struct {
	db  DB
	cfg Config

	mu    sync.Mutex                    // guards rand and specs
	rand  *rand.Rand                    // handed to AfterEnd
	specs map[offpeak.Hash]offpeak.Spec // specs read lately; they never change
}

// New returns a store over db, whose schema is in place.
func New(db DB, cfg Config) *Store {
	return &Store{db: db, cfg: cfg, rand: cfg.Rand, specs: map[offpeak.Hash]offpeak.Spec{}}
}

// Now is the store's time.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	return read(ctx, s, "read the store's time", func(t *verb) (time.Time, error) { return t.now, nil })
}

// Backup writes a consistent copy to path.
func (s *Store) Backup(ctx context.Context, path string) error { return s.db.Backup(ctx, path) }

// Close flushes and closes.
func (s *Store) Close() error { return s.db.Close() }

// write runs one verb: fn's transaction has the store's time and collects the
// events and audit rows of the verb, which are written with it. The result is
// handed over only when the transaction is durable: after an unknown outcome the
// writer may still be at work on it.
func write[T any](ctx context.Context, s *Store, what string, fn func(t *verb) (T, error)) (T, error) {
	var out, none T
	err := s.db.Write(ctx, func(tx Tx) error {
		t := verb{Tx: tx, now: tx.Now()}
		v, err := fn(&t)
		if err != nil {
			return err
		}
		out = v
		return t.flush(string(s.cfg.Hub))
	})
	if err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}
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
	events []offpeak.Event
	audits []audit
	// jobLock ends the reading of a job: a lock once nodes are locked, as what
	// happens to a lease and its job happens under its node's lock.
	jobLock string
}

const forUpdate = ` FOR NO KEY UPDATE`

// lockNodes locks nodes, before anything of them is read, and has the jobs that
// are read from then on locked too.
func (t *verb) lockNodes(ids ...offpeak.NodeID) error {
	t.jobLock = forUpdate
	return t.Lock(`SELECT 1 FROM nodes WHERE id = ANY($1) ORDER BY id`+forUpdate, texts(ids))
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

func (t *verb) event(e offpeak.Event) { t.events = append(t.events, e) }

// audit is who did what.
type audit struct {
	actor        offpeak.Actor
	verb, object string
	outcome      string
}

func (t *verb) audit(actor offpeak.Actor, verb, object, outcome string) {
	t.audits = append(t.audits, audit{actor: actor, verb: verb, object: object, outcome: outcome})
}

// The grid itself, acting for nobody.
func byHub() offpeak.Actor { return offpeak.Actor{Address: "hub"} }

func byNode(account offpeak.AccountID, node offpeak.NodeID) offpeak.Actor {
	return offpeak.Actor{Account: account, Node: node, Role: offpeak.RoleNode}
}

// flush writes events and audit rows. Several rows in one statement cost much
// less than as many statements.
func (t *verb) flush(hub string) error {
	at := micros(t.now)
	for len(t.events) > 0 {
		n := chunk(len(t.events))
		args := make([]any, 0, 11*n)
		for _, e := range t.events[:n] {
			args = append(args, t.Cursor(), at, e.Type, string(e.Account), string(e.Job), int64(e.Attempt), string(e.Lease), string(e.Node), string(e.Reason), string(e.Data), hub)
		}
		if _, err := t.Exec(insertMany("events", "cursor, at, type, account, job, attempt, lease, node, reason, data, hub", 11, n), args...); err != nil {
			return fmt.Errorf("write events: %w", err)
		}
		t.events = t.events[n:]
	}
	for len(t.audits) > 0 {
		n := chunk(len(t.audits))
		args := make([]any, 0, 9*n)
		for _, a := range t.audits[:n] {
			args = append(args, at, string(a.actor.Account), string(a.actor.Member), string(a.actor.Token), string(a.actor.Node), a.actor.Address, a.verb, a.object, a.outcome)
		}
		if _, err := t.Exec(insertMany("audit", "at, account, member, token, node, address, verb, object, outcome", 9, n), args...); err != nil {
			return fmt.Errorf("write audit: %w", err)
		}
		t.audits = t.audits[n:]
	}
	return nil
}

// chunk keeps the number of distinct statements small.
func chunk(n int) int {
	for _, c := range []int{16, 4, 2} {
		if n >= c {
			return c
		}
	}
	return 1
}

func insertMany(table, columns string, width, n int) string {
	q := make([]byte, 0, 64+n*width*5)
	q = fmt.Appendf(q, "INSERT INTO %s (%s) VALUES ", table, columns)
	for i := range n {
		for j := range width {
			switch {
			case j > 0:
				q = append(q, ',')
			case i > 0:
				q = append(q, ",("...)
			default:
				q = append(q, '(')
			}
			q = fmt.Appendf(q, "$%d", i*width+j+1)
		}
		q = append(q, ')')
	}
	return string(q)
}

// once runs a client's mutation by its operation id: the first time fn, whose
// outcome is kept, and the same outcome ever after.
func once[T any](t *verb, op store.Op, what, object string, fn func() (T, error)) (out T, first bool, err error) {
	if op.ID == "" {
		return out, false, &offpeak.FieldError{Field: "operation_id", Rule: "is made by the client and kept for retries; it can't be empty"}
	}
	var account, outcome string
	var digest []byte
	err = t.row(`SELECT account, digest, outcome FROM operations WHERE id = $1`, []any{string(op.ID)}, &account, &digest, &outcome)
	switch {
	case err == nil:
		if account != string(op.Actor.Account) || string(digest) != string(op.Digest[:]) {
			return out, false, offpeak.ErrOperationConflict
		}
		if err := json.Unmarshal([]byte(outcome), &out); err != nil {
			return out, false, fmt.Errorf("read the outcome of operation %s: %w", op.ID, err)
		}
		return out, false, nil
	case !errors.Is(err, offpeak.ErrNotFound):
		return out, false, err
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
	if _, err := t.Exec(`INSERT INTO operations (id, account, digest, outcome, at) VALUES ($1, $2, $3, $4, $5)`,
		string(op.ID), string(op.Actor.Account), op.Digest[:], string(kept), micros(t.now)); err != nil {
		return out, false, err
	}
	t.audit(op.Actor, what, object, "done")
	return out, true, nil
}

// spec returns a stored spec. Its maps and slices are shared and read-only.
func (s *Store) spec(t *verb, hash offpeak.Hash) (offpeak.Spec, error) {
	s.mu.Lock()
	spec, ok := s.specs[hash]
	s.mu.Unlock()
	if ok {
		return spec, nil
	}
	var text string
	if err := t.row(`SELECT spec FROM specs WHERE hash = $1`, []any{string(hash)}, &text); err != nil {
		return spec, fmt.Errorf("read spec %s: %w", hash, err)
	}
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return spec, fmt.Errorf("read spec %s: %w", hash, err)
	}
	if len(text) <= 4096 {
		s.remember(hash, spec)
	}
	return spec, nil
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

// data writes what an event holds beside its columns.
func data(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("sqlstore: event data: " + err.Error()) // only plain values are handed in
	}
	return b
}
