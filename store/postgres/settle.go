package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// What a database that was brought back gives out jumps, so that nothing is given
// out again that the lost one has given out since.
const (
	// LostCursors is by how much event cursors jump: those of a thousand million
	// transactions.
	LostCursors = lostTransactions * perTransaction

	lostTransactions = 1 << 30
	lostIDs          = 1 << 32 // and revisions
)

// floor is where a database that is brought back now goes on at the earliest: later
// ones of one dump begin beyond an earlier one. It stays exact in JSON for 17 years.
func floor(now time.Time) int64 {
	return max(0, now.Unix()-time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Unix()) << 24
}

// settleIn notes in which database the rows are. Where they were in another one
// before, they came by a dump or a copy of the server's files, as old as that is, and
// are a new generation of the store, as after `offpeak restore`.
func (d *db) settleIn(ctx context.Context) error {
	if d.opts.Unguarded {
		if _, err := d.pool.Exec(ctx, `ALTER TABLE nodes DROP CONSTRAINT IF EXISTS nodes_check, DROP CONSTRAINT IF EXISTS nodes_check1, DROP CONSTRAINT IF EXISTS nodes_check2`); err != nil {
			return classify(err)
		}
	}
	err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		var was, is string
		var now time.Time
		// One hub settles in, the others wait and find it done.
		if err := tx.QueryRow(ctx, `SELECT g.system, c.system_identifier || '/' || b.oid, clock_timestamp() + clock_shift * interval '1 microsecond'
			FROM grid g, pg_control_system() c, pg_database b WHERE b.datname = current_database() FOR UPDATE OF g`).Scan(&was, &is, &now); err != nil {
			return err
		}
		if was == is {
			return nil
		}
		if _, err := tx.Exec(ctx, `UPDATE grid SET system = $1`, is); err != nil || was == "" {
			return err
		}
		d.opts.Log.Warn("the rows came here from another database: going on as after a restore", "from", was, "to", is)
		return renew(ctx, tx, now)
	})
	return classify(err)
}

// renew makes the rows a new generation of the store; restore.go of package sqlite
// does the same to a file.
func renew(ctx context.Context, tx pgx.Tx, now time.Time) error {
	for _, s := range []struct {
		query string
		args  []any
	}{
		{`UPDATE grid SET event_epoch = greatest(event_epoch + $1, $2 - xid, (SELECT COALESCE(max(cursor), 0) FROM events) / $3 + 1 - xid + $1,
			(SELECT CAST(value AS BIGINT) FROM meta WHERE key = 'events_pruned') / $3 + 1 - xid + $1)
			FROM CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT) AS xid`, []any{int64(lostTransactions), floor(now) / perTransaction, int64(perTransaction)}},
		{`SELECT setval(pg_get_serial_sequence(t, c), greatest(nextval(pg_get_serial_sequence(t, c)) + $1, $2))
			FROM (VALUES ('jobs', 'seq'), ('checkpoints', 'id'), ('audit', 'id')) AS counters (t, c)`, []any{int64(lostIDs), floor(now)}},
		// An agent ignores a word that is older than one it has followed.
		{`UPDATE nodes SET revision = greatest(revision + $1, $2)`, []any{int64(lostIDs), floor(now)}},
		{`INSERT INTO meta (key, value) VALUES ('generation', '1') ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT)`, nil},
		// It may not be the only copy.
		{`DELETE FROM meta WHERE key = 'grid'`, nil},
		{`INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data)
			SELECT (CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT) + event_epoch) * $2, $1, 'hub.restored', '', '', 0, '', '', '', '' FROM grid`, []any{now.UnixMicro(), int64(perTransaction)}},
		{`INSERT INTO audit (at, account, member, token, node, address, verb, object, outcome) VALUES ($1, '', '', '', '', 'restore', 'hub.restore', '', 'done')`, []any{now.UnixMicro()}},
	} {
		if _, err := tx.Exec(ctx, s.query, s.args...); err != nil {
			return fmt.Errorf("begin a new generation: %w", err)
		}
	}
	return nil
}
