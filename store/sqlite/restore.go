package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"offpeak"
)

// restoreStep is how far a restored store's counters jump at least, so that no
// event cursor or checkpoint id that was handed out after the backup is used
// again.
const restoreStep = 1 << 32

// restoreFloor is where the counters of a store restored now go on at the
// earliest: later restores of one backup begin beyond whatever an earlier one
// handed out, at up to 16 million a second. It stays exact in JSON for 17 years.
func restoreFloor(now time.Time) int64 {
	return max(0, now.Unix()-time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Unix()) << 24
}

// RestoreOptions says how to restore.
type RestoreOptions struct {
	// Now is the time of the event that tells readers. Default time.Now.
	Now func() time.Time
	// Force replaces a store that is there already.
	Force bool
}

// Restore verifies the backup and puts a copy of it in place as the store at
// path; the backup itself is not changed. The copy is a new generation of the
// store: its event cursors and checkpoint ids go on far behind those that the
// lost store can have handed out, and an event hub.restored says so. Lease ids
// are random, so holders of leases that the backup does not know are told to
// drop them.
//
// It returns a *LockedError while a hub has the store open, fs.ErrExist when
// there is a store and Force is not set, a *CorruptError or *SchemaError for a
// backup that can't be used. After an error the store at path is as it was.
func Restore(ctx context.Context, backup, path string, opts RestoreOptions) error {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := restore(ctx, backup, path, opts); err != nil {
		return fmt.Errorf("restore %s from %s: %w", path, backup, err)
	}
	return nil
}

func restore(ctx context.Context, backup, path string, opts RestoreOptions) error {
	lock, err := lockFile(path)
	if err != nil {
		return err
	}
	defer lock.unlock()
	if _, err := os.Lstat(path); err == nil && !opts.Force {
		return fs.ErrExist
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := examineFile(backup); err != nil {
		return err
	}
	part := path + ".part"
	defer os.Remove(part)
	if err := copyFile(backup, part); err != nil {
		return err
	}
	if err := renew(ctx, part, opts.Now()); err != nil {
		return err
	}
	// The old store's log must not be replayed over the new one.
	for _, end := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return place(part, path)
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("%w: %w", offpeak.ErrStorage, err)
	}
	if _, err := io.Copy(dst, src); err != nil {
		return errors.Join(fmt.Errorf("%w: %w", offpeak.ErrStorage, err), dst.Close())
	}
	return dst.Close()
}

// renew checks the whole copy and makes it a new generation of the store.
func renew(ctx context.Context, part string, now time.Time) error {
	q := url.Values{"_pragma": {"journal_mode(DELETE)", "synchronous(FULL)"}, "mode": {"rw"}}
	pool, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: part, RawQuery: q.Encode()}).String())
	if err != nil {
		return err
	}
	defer pool.Close()
	var finding string
	if err := pool.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&finding); err != nil {
		return damaged(part, err)
	}
	if finding != "ok" {
		return &CorruptError{Path: part, Finding: finding}
	}
	var ours int
	if err := pool.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('goose_db_version', 'meta', 'jobs', 'events')`).Scan(&ours); err != nil {
		return damaged(part, err)
	}
	if ours != 4 {
		return &CorruptError{Path: part, Finding: "it is no Offpeak store"}
	}
	if err := migrate(ctx, pool, part); err != nil {
		return err
	}
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return classify(err)
	}
	defer tx.Rollback() //nolint:errcheck // a no-op after Commit
	for _, s := range []struct {
		query string
		args  []any
	}{
		{`UPDATE sqlite_sequence SET seq = max(seq + ?1, ?2)`, []any{int64(restoreStep), restoreFloor(now)}},
		// An agent ignores a word that is older than one it has followed.
		{`UPDATE nodes SET revision = max(revision + ?1, ?2)`, []any{int64(restoreStep), restoreFloor(now)}},
		{`INSERT INTO meta (key, value) VALUES ('generation', '1') ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT)`, nil},
		// It may not be the only copy, and its blobs may come back elsewhere.
		{`DELETE FROM meta WHERE key IN ('grid', 'blobs', 'blobs_at')`, nil},
		{`INSERT INTO events (at, type, account, job, attempt, lease, node, reason, data) VALUES (?1, 'hub.restored', '', '', 0, '', '', '', '')`, []any{now.UnixMicro()}},
		{`INSERT INTO audit (at, account, member, token, node, address, verb, object, outcome) VALUES (?1, '', '', '', '', 'restore', 'hub.restore', '', 'done')`, []any{now.UnixMicro()}},
	} {
		if _, err := tx.ExecContext(ctx, s.query, s.args...); err != nil {
			return classify(err)
		}
	}
	return classify(tx.Commit())
}

// Snapshot copies the store at path, which a hub may have open, to a new file. The
// store itself is only read.
func Snapshot(ctx context.Context, path, to string) error {
	if err := examineFile(path); err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	q := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(5000)"}}
	pool, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String())
	if err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	defer pool.Close()
	if _, err := pool.ExecContext(ctx, `VACUUM INTO ?1`, to); err != nil {
		return fmt.Errorf("copy %s: %w", path, classify(err))
	}
	return nil
}
