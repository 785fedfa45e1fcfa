// Package moving carries a grid's rows from one engine to the other: when it moves
// house, and for a backup of a PostgreSQL store, which is a copy in a new SQLite
// file.
//
// It owns the list of tables, the order they are carried in, and the form in which
// rows of both engines compare. A copy is one snapshot of the source and one
// transaction on the target, which must be empty. Before that transaction is
// committed all rows are read back, and their number and checksum compared with
// what was read from the source; so whatever fails, or is interrupted, leaves an
// empty target. Which tables and columns there are is asked of both databases: what
// one has and the other lacks, or the list does not know, is an error and never
// left behind.
//
// Ids and cursors go on behind those that the source has given out. A move is refused
// while hubs are at work on either side; a backup is not. Blobs are for the caller:
// their bytes are elsewhere, only their books are rows.
//
// Functions may be called from any goroutine. They are tested over real servers and
// files, with every table filled, and by comparing both schemas.
package moving

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"offpeak"
	"offpeak/store/postgres"
	"offpeak/store/sqlite"

	"github.com/jackc/pgx/v5"
)

// Table is what was carried of one table.
type Table struct {
	Name string `json:"name"`
	Rows int64  `json:"rows"`
	// Checksum is the SHA-256 of all rows in a form that is the same for both engines.
	Checksum string `json:"checksum"`
	// Mended counts texts that PostgreSQL could not hold, for a zero byte or one
	// that is no UTF-8: U+FFFD stands there now.
	Mended int64 `json:"mended,omitempty"`
}

// Step is how far a copy is.
type Step struct {
	Table string
	// Done of Of rows of the table have been copied or, when Checking, read back.
	Done, Of int64
	Checking bool
}

// Progress is called now and then while rows are copied, at least once a table.
type Progress func(Step)

// NotEmptyError says that rows can't be carried to where there are some.
type NotEmptyError struct{ Table string }

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("the target is not empty: it has rows in table %s", e.Table)
}

// Unwrap makes errors.Is(e, offpeak.ErrConflict) true.
func (e *NotEmptyError) Unwrap() error { return offpeak.ErrConflict }

// stopped is how long a hub must not have been at work to count as stopped. One that
// stops in good order is forgotten at once, one that was killed is not.
const stopped = 10 * time.Second

// AttendedError says that a grid can't be moved while a hub is at work on it.
type AttendedError struct {
	Hub offpeak.HubID
	// Ago is how long ago it said so.
	Ago time.Duration
}

func (e *AttendedError) Error() string {
	return fmt.Sprintf("hub %s is at work on the database, it said so %s ago: stop all its hubs; after one that was killed, wait %s", e.Hub, e.Ago.Round(time.Second), stopped)
}

// Unwrap makes errors.Is(e, offpeak.ErrConflict) true.
func (e *AttendedError) Unwrap() error { return offpeak.ErrConflict }

// unattended refuses a database that hubs are at work on, or have been since a time.
func unattended(ctx context.Context, db *postgres.Store, since time.Time) error {
	now, err := db.Now(ctx)
	if err != nil {
		return err
	}
	hubs, err := db.Hubs(ctx)
	if err != nil {
		return err
	}
	for _, h := range hubs {
		if now.Sub(h.SeenAt) < stopped || h.SeenAt.After(since) {
			return &AttendedError{h.ID, now.Sub(h.SeenAt)}
		}
	}
	return nil
}

// Unattended returns an *AttendedError while hubs are at work on a database.
func Unattended(ctx context.Context, db *postgres.Store) error {
	now, err := db.Now(ctx)
	if err != nil {
		return err
	}
	return unattended(ctx, db, now)
}

// SchemaError says that the two databases do not hold the same.
type SchemaError struct {
	// Where is a table or a column, Why what is wrong with it.
	Where, Why string
}

func (e *SchemaError) Error() string { return e.Where + " " + e.Why }

// DifferentError says that what was read back is not what was written.
type DifferentError struct {
	Table         string
	Source, There Table
}

func (e *DifferentError) Error() string {
	return fmt.Sprintf("table %s was not copied as it is: %d rows, checksum %s became %d rows, checksum %s", e.Table, e.Source.Rows, e.Source.Checksum, e.There.Rows, e.There.Checksum)
}

// ToPostgres copies all rows of a store in a file into an empty database. It returns
// a *NotEmptyError for one that is not, and an *AttendedError.
func ToPostgres(ctx context.Context, from *sqlite.Store, to *postgres.Store, progress Progress) ([]Table, error) {
	var out []Table
	err := from.Snapshot(ctx, func(source *sql.Conn) error {
		return to.Fill(ctx, func(c *pgx.Conn) error {
			target := &server{c: c}
			if err := target.lock(ctx); err != nil {
				return err
			}
			now, err := to.Now(ctx)
			if err == nil {
				err = unattended(ctx, to, now)
			}
			if err == nil {
				out, err = carry(ctx, &file{c: source}, target, progress)
			}
			return err
		})
	})
	if err != nil {
		// What an interrupt breaks, such as a connection, says nothing of it.
		return nil, fmt.Errorf("copy rows to PostgreSQL: %w", errors.Join(ctx.Err(), err))
	}
	return out, nil
}

// ToSQLite copies all rows of a database, as they are now, into a new store at path,
// for a hub. It returns fs.ErrExist when there is a file, and an *AttendedError.
func ToSQLite(ctx context.Context, from *postgres.Store, path string, progress Progress) ([]Table, error) {
	var out []Table
	err := sqlite.Create(ctx, path, func(c *sql.Conn) error {
		began, err := from.Now(ctx)
		if err == nil {
			err = unattended(ctx, from, began)
		}
		if err == nil {
			err = from.Snapshot(ctx, func(source *pgx.Conn) (err error) {
				out, err = carry(ctx, &server{c: source}, &file{c: c}, progress)
				return err
			})
		}
		if err == nil {
			// What a hub that came meanwhile has written may not be in the copy.
			err = unattended(ctx, from, began)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("copy rows from PostgreSQL: %w", err)
	}
	return out, nil
}

// Backup writes a consistent copy of a database, while hubs go on, into a new file
// that sqlite.Restore takes. It is a postgres.Options.Backup.
func Backup(ctx context.Context, src *postgres.Store, path string) error {
	return sqlite.WriteBackup(ctx, path, func(c *sql.Conn) error {
		return src.Snapshot(ctx, func(source *pgx.Conn) error {
			_, err := carry(ctx, &goingOn{server{c: source}}, &file{c: c}, nil)
			return err
		})
	})
}

// goingOn is a database that gives out more after it was copied.
type goingOn struct{ server }

// counter is beyond what the database will have given out when it is lost. Cursors
// need more than the jump of a restore, since each transaction takes many.
func (g *goingOn) counter(ctx context.Context, t table) (int64, error) {
	n, err := g.server.counter(ctx, t)
	if t.name == events {
		n += postgres.LostCursors
	}
	return n, err
}

// side is one end of a copy, in a transaction.
type side interface {
	// columns lists the tables that hold a grid's rows, each with the kinds of its
	// columns: INTEGER, TEXT or BLOB.
	columns(ctx context.Context) (map[string]columns, error)
	count(ctx context.Context, t table) (int64, error)
	// rows walks over a table in the order of its key. A row is its values: nil,
	// int64, string or []byte.
	rows(ctx context.Context, t table, cols []string) iter.Seq2[[]any, error]
	// counter is at least the greatest number that a table's counter has given out.
	counter(ctx context.Context, t table) (int64, error)
}

// target is a side that takes rows.
type target interface {
	side
	write(ctx context.Context, t table, cols []string, rows iter.Seq2[[]any, error]) error
	// goOn has a table's counter give out numbers beyond last.
	goOn(ctx context.Context, t table, last int64) error
	// mend returns what the side can hold of a text.
	mend(text string) string
	// end is called before the commit.
	end(ctx context.Context) error
}

// columns are the kinds of a table's columns by name.
type columns map[string]string

// carry copies all rows from one side to the other and compares.
func carry(ctx context.Context, from side, to target, progress Progress) ([]Table, error) {
	if progress == nil {
		progress = func(Step) {}
	}
	cols, err := agree(ctx, from, to)
	if err != nil {
		return nil, err
	}
	for _, t := range tables() {
		if n, err := to.count(ctx, t); err != nil {
			return nil, err
		} else if n > 0 {
			return nil, &NotEmptyError{t.name}
		}
	}
	var out []Table
	for _, t := range tables() {
		n, err := from.count(ctx, t)
		if err != nil {
			return nil, err
		}
		sum := newSum(t, cols[t.name], Step{Of: n}, progress)
		if err := to.write(ctx, t, cols[t.name], sum.over(from.rows(ctx, t, cols[t.name]), to.mend)); err != nil {
			return nil, fmt.Errorf("copy table %s: %w", t.name, err)
		}
		if t.counter != "" {
			last, err := from.counter(ctx, t)
			if err == nil {
				err = to.goOn(ctx, t, last)
			}
			if err != nil {
				return nil, fmt.Errorf("go on counting table %s: %w", t.name, err)
			}
		}
		out = append(out, sum.table())
	}
	if err := to.end(ctx); err != nil {
		return nil, err
	}
	for i, t := range tables() {
		sum := newSum(t, cols[t.name], Step{Of: out[i].Rows, Checking: true}, progress)
		for _, err := range sum.over(to.rows(ctx, t, cols[t.name]), nil) {
			if err != nil {
				return nil, fmt.Errorf("read table %s back: %w", t.name, err)
			}
		}
		if there := sum.table(); there.Rows != out[i].Rows || there.Checksum != out[i].Checksum {
			return nil, &DifferentError{t.name, out[i], there}
		}
	}
	return out, nil
}

// agree returns the columns of every table, in an order that is the same for both
// sides, or what one side lacks.
func agree(ctx context.Context, from, to side) (map[string][]string, error) {
	have, err := from.columns(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tables of the source: %w", err)
	}
	want, err := to.columns(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tables of the target: %w", err)
	}
	out := map[string][]string{}
	for _, t := range tables() {
		out[t.name] = slices.Sorted(maps.Keys(have[t.name]))
	}
	for _, c := range []struct {
		a, b map[string]columns
		in   string
	}{{have, want, "target"}, {want, have, "source"}} {
		for name, cols := range c.a {
			if _, known := out[name]; !known {
				return nil, &SchemaError{"table " + name, "is not known to this offpeak: use the newer one"}
			}
			for col, kind := range cols {
				if other := c.b[name][col]; other != kind {
					return nil, &SchemaError{"column " + col + " of table " + name, fmt.Sprintf("is %s here and %q in the %s: use the newer offpeak, or bring both to one version", kind, other, c.in)}
				}
			}
		}
	}
	for name, cols := range out {
		if len(cols) == 0 {
			return nil, &SchemaError{"table " + name, "is in neither database"}
		}
	}
	return out, nil
}

// every is after how many rows progress is told.
const every = 1000

// sum adds up rows as they go by.
type sum struct {
	Table
	hash     hash.Hash
	step     Step
	progress Progress
	buf      []byte
}

func newSum(t table, cols []string, step Step, progress Progress) *sum {
	step.Table = t.name
	s := &sum{Table: Table{Name: t.name}, hash: sha256.New(), step: step, progress: progress}
	s.hash.Write(text(nil, t.name+" "+strings.Join(cols, " ")))
	return s
}

// over passes rows on and adds them up, with their texts mended.
func (s *sum) over(rows iter.Seq2[[]any, error], mend func(string) string) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		for row, err := range rows {
			if err != nil {
				yield(nil, err)
				return
			}
			for i, v := range row {
				if have, ok := v.(string); ok && mend != nil {
					if row[i] = mend(have); row[i] != v {
						s.Mended++
					}
				}
			}
			if err := s.add(row); err != nil {
				yield(nil, err)
				return
			}
			if !yield(row, nil) {
				return
			}
		}
		s.progress(s.step)
	}
}

// add hashes a row: of each value a letter for its kind, of texts and bytes their
// length, and the value.
func (s *sum) add(row []any) error {
	b := s.buf[:0]
	for _, v := range row {
		switch v := v.(type) {
		case nil:
			b = append(b, 'n')
		case int64:
			b = binary.BigEndian.AppendUint64(append(b, 'i'), uint64(v))
		case string:
			b = text(append(b, 't'), v)
		case []byte:
			b = text(append(b, 'b'), string(v))
		default:
			return fmt.Errorf("table %s has a value of type %T", s.Name, v)
		}
	}
	s.hash.Write(b)
	s.buf = b
	s.Rows++
	s.step.Done++
	if s.step.Done%every == 0 {
		s.progress(s.step)
	}
	return nil
}

func text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(s))), s...)
}

func (s *sum) table() Table {
	s.Checksum = hex.EncodeToString(s.hash.Sum(nil))
	return s.Table
}
