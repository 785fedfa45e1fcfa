package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"syscall"
	"time"

	"offpeak"
	"offpeak/store/sqlstore"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// RefusedError says that a hub can't work with a server or its schema.
type RefusedError struct {
	// Why says what it is, and what to do.
	Why string
}

func (e *RefusedError) Error() string { return e.Why }

// Unwrap makes errors.Is(e, offpeak.ErrStorage) true.
func (e *RefusedError) Unwrap() error { return offpeak.ErrStorage }

// againError says that a transaction did nothing and may run again.
type againError struct{ cause error }

func (e *againError) Error() string { return e.cause.Error() }
func (e *againError) Unwrap() error { return e.cause }

// mostTries is how often a transaction runs that others keep from its end.
const mostTries = 6

// again says whether a transaction that failed did nothing and may do better.
func again(err error) bool {
	if _, ok := errors.AsType[*againError](err); ok {
		return true
	}
	if _, raced := errors.AsType[*sqlstore.RacedError](err); raced {
		return true
	}
	switch c, _ := code(err); c {
	case "40001", // serialization_failure
		"40P01", // deadlock_detected
		"55P03", // lock_not_available
		"23505": // unique_violation: somebody wrote the row between the look and the write
		return true
	case "23514": // check_violation: another hub spent what this one counted on
		e, _ := errors.AsType[*pgconn.PgError](err)
		return e.ConstraintName == "balance_covered"
	}
	return false
}

// pause waits before the next try, a little longer each time, and says whether
// there is time for one.
func pause(ctx context.Context, try int) bool {
	d := time.Millisecond << min(try, 10)
	d += rand.N(d)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// code is the SQLSTATE of an error that the server sent.
func code(err error) (string, bool) {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code, true
	}
	return "", false
}

func lostConnection() error { return fmt.Errorf("the connection is lost: %w", offpeak.ErrUnavailable) }

// classify turns what the server and its connection say into the errors of the
// contract. Appendix A of PostgreSQL's manual lists the codes.
func classify(err error) error {
	if err == nil {
		return nil
	}
	if sqlstore.Broken(err) || errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); connecting {
		err = &connectError{err}
	}
	if !ok {
		if _, scan := errors.AsType[pgx.ScanArgError](err); scan {
			return err
		}
		return fmt.Errorf("%w: %w", offpeak.ErrUnavailable, err)
	}
	switch {
	case e.Code == "53100": // disk_full
		return fmt.Errorf("%w: %w: %w", offpeak.ErrStorage, syscall.ENOSPC, err)
	case e.Code == "25006": // read_only_sql_transaction
		return fmt.Errorf("the server takes no writes, it may be a replica now: %w: %w", offpeak.ErrUnavailable, err)
	case e.Code == "57014", // query_canceled: it ran into statement_timeout
		e.Code == "25P03", // idle_in_transaction_session_timeout
		e.Code == "40001", e.Code == "40P01", e.Code == "55P03":
		return fmt.Errorf("%w: %w", offpeak.ErrUnavailable, err)
	case strings.HasPrefix(e.Code, "23"): // integrity constraints
		return fmt.Errorf("%w: %w", offpeak.ErrConflict, err)
	case strings.HasPrefix(e.Code, "08"), strings.HasPrefix(e.Code, "53"), strings.HasPrefix(e.Code, "57"): // connections, resources, operators
		return fmt.Errorf("%w: %w", offpeak.ErrUnavailable, err)
	case strings.HasPrefix(e.Code, "58"), strings.HasPrefix(e.Code, "XX"): // the system, the server itself
		return fmt.Errorf("%w: %w", offpeak.ErrStorage, err)
	}
	return err
}

// connectError is what kept a connection from being made, in one line.
type connectError struct{ cause error }

func (e *connectError) Error() string { return strings.Join(strings.Fields(e.cause.Error()), " ") }
func (e *connectError) Unwrap() error { return e.cause }

// hasPoolSize says whether a URL or list of key=value names the pool's size.
func hasPoolSize(dsn string) bool {
	if u, err := url.Parse(dsn); err == nil && u.Scheme != "" {
		return u.Query().Has("pool_max_conns")
	}
	return strings.Contains(dsn, "pool_max_conns=")
}

// CheckURL says what is wrong with the URL of a database, in a *offpeak.FieldError
// without the URL, which may hold a password.
func CheckURL(text string) error {
	wrong := func(rule string) error { return &offpeak.FieldError{Field: "db", Rule: rule} }
	if !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") {
		return wrong("is a PostgreSQL URL, for example postgres://offpeak@db.example.org/offpeak")
	}
	if _, err := pgxpool.ParseConfig(text); err != nil {
		return wrong("is a PostgreSQL URL: " + misread(err))
	}
	// What the driver lets pass others may read in another way.
	if _, err := url.Parse(text); err != nil {
		return wrong("is a PostgreSQL URL: " + escapes)
	}
	return nil
}

const escapes = "write characters of the user or password that mean something else in a URL percent-encoded (%25 for %, %23 for #, %2F for /, %40 for @)"

// misread is why the driver could not read a URL, without the URL.
func misread(err error) string {
	text := err.Error()
	if _, ok := errors.AsType[*pgconn.ParseConfigError](err); !ok {
		return escapes
	}
	_, why, ok := strings.Cut(text, "`: ")
	if !ok || strings.Contains(why, "`") {
		return escapes
	}
	why = strings.TrimPrefix(why, "failed to parse as URL ")
	if strings.Contains(why, "percent-encoded") || strings.Contains(why, "port") {
		why += "; " + escapes
	}
	return why
}
