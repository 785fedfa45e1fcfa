package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"syscall"

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
	stmts map[string]*sql.Stmt
	depth int
}

// prepared returns the statement for a query. The number of queries in package
// sqlstore is bounded, so the statements are kept until the connection closes.
func (c *conn) prepared(query string) (*sql.Stmt, error) {
	if s, ok := c.stmts[query]; ok {
		return s, nil
	}
	// $1 is how PostgreSQL numbers a parameter; SQLite would take it for a name.
	s, err := c.c.PrepareContext(context.Background(), strings.ReplaceAll(query, "$", "?"))
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
	r, err := s.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, classify(err)
	}
	return r.RowsAffected()
}

func (c *conn) Query(query string, args ...any) (sqlstore.Rows, error) {
	s, err := c.prepared(query) //nolint:sqlclosecheck // kept until the connection closes
	if err != nil {
		return nil, err
	}
	r, err := s.QueryContext(context.Background(), args...) //nolint:rowserrcheck // the caller asks the rows it is given
	if err != nil {
		return nil, classify(err)
	}
	return rows{r}, nil
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
	if broken(err) {
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
