package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// revisionLeap is added to every node's revision by a restore. Agents ignore
// word that is older than what they have applied, and since the backup was
// taken revisions went on by far less than this.
const revisionLeap = 1 << 40

// Restore makes the store at path, where there is none yet, from a file that
// Backup wrote. Agents that reach the restored hub take its word over what they
// heard before: leases that it does not know are dropped. It returns
// fs.ErrExist when there is a store at path, and what Open returns for a file
// that is damaged or not a store's.
func Restore(ctx context.Context, backup, path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("restore to %s: %w", path, fs.ErrExist)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore to %s: %w", path, err)
	}
	part := path + ".part"
	err := restorePart(ctx, backup, part)
	if err == nil {
		err = place(part, path)
	}
	for _, left := range []string{part, part + "-wal", part + "-shm", part + ".lock"} {
		if e := os.Remove(left); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", backup, err)
	}
	return nil
}

// restorePart copies a backup to part and makes it fit to go on from.
func restorePart(ctx context.Context, backup, part string) error {
	if err := examineFile(backup); err != nil {
		return err
	}
	if err := copyFile(backup, part); err != nil {
		return classify(err)
	}
	// Opening checks it and brings an older schema up to date.
	s, err := Open(ctx, part, Options{})
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	pool, err := sql.Open("sqlite", "file:"+part)
	if err != nil {
		return classify(err)
	}
	_, err = pool.ExecContext(ctx, `UPDATE nodes SET revision = revision + ?1`, revisionLeap)
	if err == nil {
		_, err = pool.ExecContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`)
	}
	if err = errors.Join(err, pool.Close()); err != nil {
		return classify(err)
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}
