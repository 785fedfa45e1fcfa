package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"offpeak"
	"offpeak/store"
)

// Events lists events after a cursor.
func (s *Store) Events(ctx context.Context, account offpeak.AccountID, after int64, limit int) ([]offpeak.Event, error) {
	q, args := `SELECT cursor, at, type, account, job, attempt, lease, node, reason, data, hub FROM events WHERE cursor > $1`, []any{after, int64(limit)}
	if account != "" {
		q, args = q+` AND account = $3`, append(args, string(account))
	}
	var floor int64
	var out []offpeak.Event
	m, err := s.db.Glance(ctx, Look{selectPruned, nil, func(r Rows) error { return r.Scan(&floor) }}, Look{q + ` ORDER BY cursor LIMIT $2`, args, func(r Rows) error {
		var e offpeak.Event
		var at int64
		var data string
		err := r.Scan(&e.Cursor, &at, &e.Type, &e.Account, &e.Job, &e.Attempt, &e.Lease, &e.Node, &e.Reason, &data, &e.Hub)
		e.At = moment(at)
		if data != "" {
			e.Data = json.RawMessage(data)
		}
		out = append(out, e)
		return err
	}})
	switch {
	case err != nil:
		return nil, fmt.Errorf("list events: %w", err)
	case after < floor:
		return nil, fmt.Errorf("list events: events after %d were pruned up to %d: %w", after, floor, offpeak.ErrNotFound)
	}
	// A transaction that still runs may have events between those beyond the horizon.
	if n := slices.IndexFunc(out, func(e offpeak.Event) bool { return e.Cursor > m.Horizon }); n >= 0 {
		out = out[:n]
	}
	return out, nil
}

// Offered is the newest offer of a job. The index holds offers only, by job.
func (s *Store) Offered(ctx context.Context, job offpeak.JobID) (offpeak.Event, error) {
	return read(ctx, s, fmt.Sprintf("read the offer of job %s", job), func(t *verb) (offpeak.Event, error) {
		e := offpeak.Event{Job: job}
		var at int64
		var data string
		err := t.row(`SELECT cursor, at, type, account, attempt, lease, node, data, hub FROM events
			WHERE job = $1 AND type = 'lease.offered' ORDER BY cursor DESC LIMIT 1`, []any{string(job)},
			&e.Cursor, &at, &e.Type, &e.Account, &e.Attempt, &e.Lease, &e.Node, &data, &e.Hub)
		e.At, e.Data = moment(at), json.RawMessage(data)
		return e, err
	})
}

const selectPruned = `SELECT COALESCE((SELECT CAST(value AS BIGINT) FROM meta WHERE key = 'events_pruned'), 0)`

// pruned is the cursor of the newest event that was pruned.
func (t *verb) pruned() (cursor int64, err error) {
	err = t.row(selectPruned, nil, &cursor)
	return cursor, err
}

// LastEvent is the newest cursor.
func (s *Store) LastEvent(ctx context.Context) (int64, error) {
	return read(ctx, s, "read the newest event", func(t *verb) (int64, error) {
		var last int64
		if err := t.row(`SELECT COALESCE(max(cursor), 0) FROM events WHERE cursor <= $1`, []any{t.Horizon()}, &last); err != nil {
			return 0, err
		}
		floor, err := t.pruned()
		return max(last, floor), err
	})
}

// Pruned is the cursor of the newest event that was pruned.
func (s *Store) Pruned(ctx context.Context) (int64, error) {
	return read(ctx, s, "read what was pruned", func(t *verb) (int64, error) { return t.pruned() })
}

// mostPerStep bounds what one transaction prunes, so that nobody waits long
// behind it.
const mostPerStep = 200

// Prune removes what its retention allows.
func (s *Store) Prune(ctx context.Context, keep store.Retention, limit int) (int, error) {
	total := 0
	for _, kind := range []struct {
		what string
		keep time.Duration
		fn   func(t *verb, before int64, limit int) (int, error)
	}{
		{"logs", keep.Logs, pruneLogs},
		{"jobs", keep.Jobs, pruneJobs},
		{"groups", keep.Jobs, pruneGroups},
		{"events", keep.Events, pruneEvents},
		{"operations", keep.Operations, pruneOperations},
		{"asks", keep.Asks, pruneAsks},
		{"minutes", keep.Minutes, pruneCandles(offpeak.Minutes)},
		{"hours", keep.Hours, pruneCandles(offpeak.Hours)},
		{"segments", keep.Hours, pruneSegments},
	} {
		if kind.keep <= 0 {
			continue
		}
		for done := 0; done < limit; {
			step := min(mostPerStep, limit-done)
			n, err := write(ctx, s, "prune "+kind.what, func(t *verb) (int, error) {
				n, err := kind.fn(t, micros(t.now.Add(-kind.keep)), step)
				if n > 0 {
					t.audit(byHub(), "prune."+kind.what, "", fmt.Sprintf("%d rows", n))
				}
				return n, err
			})
			total += n
			done += n
			if err != nil {
				return total, err
			}
			if n < step {
				break
			}
		}
	}
	return total, nil
}

func pruneLogs(t *verb, before int64, limit int) (int, error) {
	n, err := t.Exec(`DELETE FROM log_segments WHERE (lease, n) IN (SELECT g.lease, g.n FROM log_segments g JOIN leases l ON l.id = g.lease
		WHERE g.at < $1 AND l.ended_at <> 0 AND l.ended_at < $1 ORDER BY g.at LIMIT $2)`, before, int64(limit))
	return int(n), err
}

func pruneJobs(t *verb, before int64, limit int) (int, error) {
	type old struct {
		seq      int64
		id, spec string
	}
	var jobs []old
	if err := t.each(`SELECT seq, id, spec FROM jobs WHERE ended_at <> 0 AND ended_at < $1 AND awaited = 0 AND (grp = id OR NOT EXISTS (SELECT 1 FROM jobs o WHERE o.grp <> o.id AND o.grp = jobs.grp AND (o.ended_at = 0 OR o.ended_at >= $1))) ORDER BY ended_at LIMIT $2`, []any{before, int64(limit)}, func(rows Rows) error {
		var o old
		err := rows.Scan(&o.seq, &o.id, &o.spec)
		jobs = append(jobs, o)
		return err
	}); err != nil {
		return 0, err
	}
	for _, j := range jobs {
		for _, q := range []string{
			`DELETE FROM log_segments WHERE lease IN (SELECT id FROM leases WHERE job = $1)`,
			`DELETE FROM lease_terms WHERE lease IN (SELECT id FROM leases WHERE job = $1)`,
			`DELETE FROM lease_devices WHERE lease IN (SELECT id FROM leases WHERE job = $1)`,
			`DELETE FROM checkpoints WHERE job = $1`,
			`DELETE FROM leases WHERE job = $1`,
			`DELETE FROM job_after WHERE job = $1`,
			`DELETE FROM job_labels WHERE job = (SELECT seq FROM jobs WHERE id = $1)`,
			`DELETE FROM jobs WHERE id = $1`,
		} {
			if _, err := t.Exec(q, j.id); err != nil {
				return 0, err
			}
		}
		if _, err := t.Exec(`DELETE FROM specs WHERE hash = $1 AND NOT EXISTS (SELECT 1 FROM jobs WHERE spec = $1) AND NOT EXISTS (SELECT 1 FROM job_groups WHERE spec = $1)`, j.spec); err != nil {
			return 0, err
		}
	}
	return len(jobs), nil
}

func pruneEvents(t *verb, before int64, limit int) (int, error) {
	// Cursors and times grow together but for a clock that was set back: the
	// first event that is young enough keeps all behind it.
	var upTo int64
	if err := t.row(`SELECT COALESCE(max(cursor), 0) FROM (SELECT cursor, at FROM events ORDER BY cursor LIMIT $2) AS oldest WHERE at < $1
		AND cursor < COALESCE((SELECT min(cursor) FROM (SELECT cursor, at FROM events ORDER BY cursor LIMIT $2) AS young WHERE at >= $1), cursor + 1)`, []any{before, int64(limit)}, &upTo); err != nil || upTo == 0 {
		return 0, err
	}
	n, err := t.Exec(`DELETE FROM events WHERE cursor <= $1`, upTo)
	if err != nil {
		return 0, err
	}
	_, err = t.Exec(`INSERT INTO meta (key, value) VALUES ('events_pruned', $1) ON CONFLICT (key) DO UPDATE SET value = excluded.value
		WHERE CAST(meta.value AS BIGINT) < CAST(excluded.value AS BIGINT)`, strconv.FormatInt(upTo, 10))
	return int(n), err
}

func pruneOperations(t *verb, before int64, limit int) (int, error) {
	n, err := t.Exec(`DELETE FROM operations WHERE id IN (SELECT id FROM operations WHERE at < $1 ORDER BY at LIMIT $2)`, before, int64(limit))
	return int(n), err
}
