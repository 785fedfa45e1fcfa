package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"offpeak"
	"offpeak/store/sqlstore"

	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// conn is one connection with its prepared statements, used by one goroutine
// at a time. It is a sqlstore.Tx while a transaction is open on it.
type conn struct {
	pool  *sql.DB
	c     *sql.Conn
	now   func() time.Time
	stmts map[string]*sql.Stmt
	many  map[many]string // see severalRows
	depth int
}

// many is an INSERT of n rows.
type many struct {
	query string
	n     int
}

// Now is the store's time.
func (c *conn) Now() time.Time { return c.now().UTC().Truncate(time.Microsecond) }

// Cursor leaves counting to the engine.
func (c *conn) Cursor() any { return nil }

// Horizon is beyond every cursor: one writer commits events in their order.
func (c *conn) Horizon() int64 { return math.MaxInt64 }

// translate turns a shared statement into SQLite's. $1 is how PostgreSQL numbers a
// parameter; SQLite would take it for a name. A list comes as JSON (see bound), and
// rows need no locks: there is one writer.
func translate(query string) string {
	query = strings.NewReplacer(" FOR NO KEY UPDATE SKIP LOCKED", "", " FOR NO KEY UPDATE", "", "$", "?").Replace(query)
	for {
		before, rest, found := strings.Cut(query, "= ANY(")
		if !found {
			return query
		}
		list, after, _ := strings.Cut(rest, ")")
		query = before + "IN (SELECT value FROM json_each(" + list + "))" + after
	}
}

// bound are arguments as the driver takes them: a list as JSON.
func bound(args []any) ([]any, error) {
	for i, a := range args {
		if list, ok := a.([]string); ok {
			text, err := json.Marshal(list)
			if err != nil {
				return nil, err
			}
			args[i] = string(text)
		}
	}
	return args, nil
}

// prepared returns the statement for a query. The number of queries in package
// sqlstore is bounded, so the statements are kept until the connection closes.
func (c *conn) prepared(query string) (*sql.Stmt, error) {
	if s, ok := c.stmts[query]; ok {
		return s, nil
	}
	s, err := c.c.PrepareContext(context.Background(), translate(query))
	if err != nil {
		return nil, classify(err)
	}
	c.stmts[query] = s
	return s, nil
}

func (c *conn) Exec(query string, args ...any) (int64, error) {
	s, err := c.prepared(query) //nolint:sqlclosecheck // kept until the connection closes
	if err != nil {
		return 0, err
	}
	if args, err = bound(args); err != nil {
		return 0, err
	}
	r, err := s.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, classify(err)
	}
	return r.RowsAffected()
}

// Lock does nothing: there is one writer.
func (c *conn) Lock(string, ...any) error { return nil }

// ExecMany runs each statement for each list of its arguments: without a network
// between, that is what a batch costs too. Several rows in one INSERT cost much
// less than as many INSERTs.
func (c *conn) ExecMany(list ...sqlstore.Many) ([]int64, error) {
	rows := make([]int64, len(list))
	for i, m := range list {
		for left := m.Args; len(left) > 0; {
			n, query := 1, m.Query
			if strings.Contains(query, "VALUES (") {
				n = chunk(len(left))
				query = c.severalRows(query, n, len(left[0]))
			}
			args := left[0]
			if n > 1 {
				args = slices.Concat(left[:n]...)
			}
			changed, err := c.Exec(query, args...)
			if err != nil {
				return nil, err
			}
			rows[i] += changed
			left = left[n:]
		}
	}
	return rows, nil
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

// severalRows makes an INSERT of one row, of width parameters, one of n rows.
func (c *conn) severalRows(query string, n, width int) string {
	if n == 1 {
		return query
	}
	key := many{query, n}
	if q, ok := c.many[key]; ok {
		return q
	}
	before, rest, _ := strings.Cut(query, "VALUES (")
	row, after, _ := strings.Cut(rest, ")")
	var q strings.Builder
	q.WriteString(before + "VALUES ")
	for i := range n {
		if i > 0 {
			q.WriteString(", ")
		}
		q.WriteString("(" + sqlstore.Parameters(row, func(k int) string { return "$" + strconv.Itoa(k+i*width) }) + ")")
	}
	q.WriteString(after)
	c.many[key] = q.String()
	return c.many[key]
}

func (c *conn) Query(query string, args ...any) (sqlstore.Rows, error) {
	s, err := c.prepared(query) //nolint:sqlclosecheck // kept until the connection closes
	if err != nil {
		return nil, err
	}
	if args, err = bound(args); err != nil {
		return nil, err
	}
	r, err := s.QueryContext(context.Background(), args...) //nolint:rowserrcheck // the caller asks the rows it is given
	if err != nil {
		return nil, classify(err)
	}
	return rows{r}, nil
}

// QueryMany runs one query after the other.
func (c *conn) QueryMany(list ...sqlstore.Look) error {
	for _, l := range list {
		if err := c.look(l); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) look(l sqlstore.Look) error {
	rows, err := c.Query(l.Query, l.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := l.Row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Sub runs fn in a savepoint.
func (c *conn) Sub(fn func() error) error {
	c.depth++
	defer func() { c.depth-- }()
	name := fmt.Sprintf("s%d", c.depth)
	if _, err := c.Exec(`SAVEPOINT ` + name); err != nil {
		return err
	}
	err := fn()
	if err == nil {
		_, err = c.Exec(`RELEASE ` + name)
		return err
	}
	if sqlstore.Broken(err) {
		return err
	}
	if _, undo := c.Exec(`ROLLBACK TO ` + name); undo != nil {
		return fmt.Errorf("undo after %w: %w: %w", err, offpeak.ErrStorage, undo)
	}
	if _, undo := c.Exec(`RELEASE ` + name); undo != nil {
		return fmt.Errorf("undo after %w: %w: %w", err, offpeak.ErrStorage, undo)
	}
	return err
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.c.Close(), c.pool.Close())...)
}

// rows classifies what *sql.Rows returns.
type rows struct{ *sql.Rows }

func (r rows) Err() error   { return classify(r.Rows.Err()) }
func (r rows) Close() error { return classify(r.Rows.Close()) }

// classify turns the engine's errors into those of the contract.
func classify(err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*driver.Error](err)
	if !ok {
		return err
	}
	switch e.Code() & 0xff {
	case lib.SQLITE_FULL:
		// The same to callers as a disk that was found full without the engine.
		return fmt.Errorf("%w: %w: %w", offpeak.ErrStorage, syscall.ENOSPC, err)
	case lib.SQLITE_IOERR, lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB, lib.SQLITE_READONLY, lib.SQLITE_CANTOPEN, lib.SQLITE_PERM:
		return fmt.Errorf("%w: %w", offpeak.ErrStorage, err)
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_INTERRUPT, lib.SQLITE_NOMEM:
		return fmt.Errorf("%w: %w", offpeak.ErrUnavailable, err)
	case lib.SQLITE_CONSTRAINT:
		return fmt.Errorf("%w: %w", offpeak.ErrConflict, err)
	}
	return err
}

func isFull(err error) bool {
	e, ok := errors.AsType[*driver.Error](err)
	return ok && e.Code()&0xff == lib.SQLITE_FULL
}

func isCorrupt(err error) bool {
	e, ok := errors.AsType[*driver.Error](err)
	return ok && (e.Code()&0xff == lib.SQLITE_CORRUPT || e.Code()&0xff == lib.SQLITE_NOTADB)
}
