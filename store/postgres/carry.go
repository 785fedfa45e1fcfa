package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"offpeak"

	"github.com/jackc/pgx/v5"
)

// Snapshot runs fn over a connection of its own, without time limits, that reads
// the rows as they are now, while the store goes on.
func (s *Store) Snapshot(ctx context.Context, fn func(c *pgx.Conn) error) error {
	return s.db.alone(ctx, beginRead, "ROLLBACK", fn)
}

// Fill runs fn in one transaction over a connection of its own, without time
// limits but for locks. After an error nothing of it is left.
func (s *Store) Fill(ctx context.Context, fn func(c *pgx.Conn) error) error {
	return s.db.alone(ctx, beginWrite, "COMMIT", fn)
}

// alone runs fn in a transaction on a connection of its own.
func (d *db) alone(ctx context.Context, begin, end string, fn func(c *pgx.Conn) error) error {
	if d.closed.Load() {
		return errClosed()
	}
	if d.newer {
		return &RefusedError{Why: "the schema is newer than this offpeak, which would not know all that is to be carried: use the newer offpeak"}
	}
	cfg := d.cfg.ConnConfig.Copy()
	cfg.RuntimeParams["statement_timeout"] = "0"
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", d.where(), classify(err))
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	if _, err := c.Exec(ctx, begin); err != nil {
		return fmt.Errorf("begin: %w", classify(err))
	}
	if err = fn(c); err == nil {
		// Nobody's hurry cuts off a COMMIT.
		if _, err = c.Exec(context.WithoutCancel(ctx), end); err != nil && c.IsClosed() {
			return fmt.Errorf("%s, outcome unknown: %w: %w", strings.ToLower(end), offpeak.ErrUnavailable, err)
		}
	}
	if _, said := code(err); said || errors.Is(err, context.Canceled) {
		return classify(err)
	}
	return err
}

// LastCursor is beyond all cursors of events that were given out so far. It is
// asked for on a connection in a transaction.
func LastCursor(ctx context.Context, c *pgx.Conn) (int64, error) {
	var next, epoch int64
	if err := c.QueryRow(ctx, `SELECT CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT), event_epoch FROM grid`).Scan(&next, &epoch); err != nil {
		return 0, fmt.Errorf("read the newest cursor: %w", err)
	}
	return (next+epoch)*perTransaction - 1, nil
}

// GoOnAfter has the cursors of events that transactions to come write be beyond
// one that was given out in another store.
func GoOnAfter(ctx context.Context, c *pgx.Conn, cursor int64) error {
	if _, err := c.Exec(ctx, `UPDATE grid SET event_epoch = greatest(event_epoch, CAST($1 AS BIGINT) / $2 + 1 - CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT))`, cursor, int64(perTransaction)); err != nil {
		return fmt.Errorf("have cursors go on after %d: %w", cursor, err)
	}
	return nil
}
