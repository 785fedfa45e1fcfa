package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
)

// Snapshot runs fn over a connection of its own that reads the rows as they are
// now, while the store goes on.
func (s *Store) Snapshot(ctx context.Context, fn func(c *sql.Conn) error) error {
	select {
	case <-s.db.done:
		return errClosed()
	default:
	}
	c, err := s.db.connect(ctx, true)
	if err != nil {
		return err
	}
	defer c.close()
	if _, err := c.c.ExecContext(ctx, `BEGIN`); err != nil {
		return classify(err)
	}
	return fn(c.c)
}

// Examine returns a *CorruptError for a file that is no database or was cut short,
// without opening it.
func Examine(path string) error { return examineFile(path) }

// Served says whether a hub has had the database at path open where it is now. A
// backup's was not: its place is left by offpeak restore.
func Served(path string) bool {
	_, err := os.Lstat(path + ".lock")
	return err == nil
}

// Create makes a store at path, for a hub, with the rows that fill writes into its
// empty tables. It returns fs.ErrExist when there is a file, and a *LockedError
// while another process has it open. The store shows once it is whole; after an
// error nothing is left of it.
func Create(ctx context.Context, path string, fill func(c *sql.Conn) error) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("create store: %w", err)
	}
	lock, err := lockFile(path)
	if err != nil {
		return fmt.Errorf("create store %s: %w", path, err)
	}
	defer lock.unlock()
	if err := beside(path, func(part string) error { return build(ctx, part, fill) }); err != nil {
		return fmt.Errorf("create store %s: %w", path, err)
	}
	return nil
}

// WriteBackup makes a file such as Backup writes, as Create does a store.
func WriteBackup(ctx context.Context, path string, fill func(c *sql.Conn) error) error {
	if err := beside(path, func(part string) error { return build(ctx, part, fill) }); err != nil {
		return fmt.Errorf("back up to %s: %w", path, err)
	}
	return nil
}

// beside writes a file beside its place and renames it when it is whole, so that
// one that was interrupted is never taken for a whole one.
func beside(path string, write func(part string) error) error {
	if err := absent(path); err != nil {
		return err
	}
	part := path + ".part"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := touch(part); err != nil {
		return classify(err)
	}
	err := write(part)
	if err == nil {
		err = absent(path)
	}
	if err == nil {
		err = place(part, path)
	}
	if err != nil {
		_ = os.Remove(part) // the next try does
	}
	return err
}

// absent returns fs.ErrExist where there is a file.
func absent(path string) error {
	_, err := os.Lstat(path)
	switch {
	case err == nil:
		return fs.ErrExist
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// build lays a new store's tables and has fill write them, in one transaction. The
// file is thrown away unless all went well, so there is no journal; who places it
// makes it durable.
func build(ctx context.Context, part string, fill func(c *sql.Conn) error) error {
	q := url.Values{"_pragma": {"journal_mode(OFF)", "synchronous(OFF)", "foreign_keys(OFF)", "temp_store(MEMORY)", "cache_size(-65536)"}, "mode": {"rw"}}
	pool, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: part, RawQuery: q.Encode()}).String())
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrate(ctx, pool, part); err != nil {
		return err
	}
	c, err := pool.Conn(ctx)
	if err != nil {
		return classify(err)
	}
	defer c.Close()
	if _, err := c.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
		return classify(err)
	}
	if err := fill(c); err != nil {
		return classify(err)
	}
	_, err = c.ExecContext(ctx, `COMMIT`)
	return classify(err)
}
