package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/blob"
	"offpeak/blob/place"
	"offpeak/hub/data"
	"offpeak/internal/local"
	"offpeak/store/moving"
	"offpeak/store/postgres"
	"offpeak/store/sqlite"
)

func newRestore(env Env) *cobra.Command {
	var r restoring
	cmd := &cobra.Command{
		Use:   "restore BACKUP",
		Short: "Make a hub's data folder from a backup",
		Long: `Make the data folder of a hub from a folder that "offpeak backup" wrote. The
data folder must not hold a hub's state yet; move it aside first. Work that went
on after the backup was taken is told to stop when its agents reach the hub, and
its jobs go on from the backup. The hub's key comes back with it, so that agents
and people who pinned it need not be told a new one.

Blobs that lay in the data folder come back into it, or to where --blobs says. A
backup of a hub whose blobs lay elsewhere has none: they are to be there still, as
they were when the backup was taken.

With --db the grid comes back into an empty PostgreSQL database, whichever kind of
database it was in. The data folder still gets its key, and its blobs unless --blobs
says another place. PGPASSWORD and ~/.pgpass are read.`,
		Example: `  offpeak restore /backups/2026-05-01 --data /var/lib/offpeak/hub
  offpeak restore /backups/2026-05-01 --data /var/lib/offpeak/hub --blobs /srv/offpeak
  offpeak restore /backups/2026-05-01 --db postgres://offpeak@db.example.org/offpeak --blobs /srv/offpeak`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return badInput("%s takes one argument: the backup's folder", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := place.Parse(r.blobs); err != nil {
				return badInput("--blobs: %w", err)
			}
			r.backup = args[0]
			if r.db != "" {
				var err error
				if r.target, err = parseHouse("db", r.db); err != nil && strings.HasPrefix(r.db, "postgres") {
					return err
				} else if err != nil || r.target.url == "" {
					return badInput("--db: is the URL of a PostgreSQL database, for example postgres://offpeak@db.example.org/offpeak")
				}
			}
			where, err := r.restore(cmd.Context())
			if err != nil {
				return diskFull(err)
			}
			next := "offpeak hub --data " + r.dir
			if r.db != "" {
				next += " --db '" + r.target.String() + "'"
			}
			note := ""
			if where != "" {
				next += " --blobs '" + where + "'"
			}
			if r.left {
				next += " --blobs-moved"
				note = "Its blobs lie where they were. While the grid that was backed up still runs, copy them and name the copy: each would remove the other's blobs.\n"
			}
			_, err = fmt.Fprintf(env.Stdout, "restored %s to %s\n%snext: %s\n", r.backup, cmp.Or(r.target.String(), r.dir), note, next)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.dir, "data", filepath.Join(local.Home(env.Getenv), "hub"), "the hub's data folder")
	f.StringVar(&r.blobs, "blobs", "", "`place` of the blobs, as the hub will be told it; the data folder if left out")
	f.StringVar(&r.db, "db", "", "`URL` of an empty PostgreSQL database for the grid, as the hub will be told it; a file in the data folder if left out")
	return cmd
}

// restoring is one run of the command.
type restoring struct {
	backup, dir, blobs, db string
	// target is what db names.
	target house
	// left says that the backup has no blobs: they are where the grid had them.
	left bool
}

// restore copies a backup into the data folder, its blobs to where they are to lie
// and, with a database, its rows there. It returns where blobs lie then, "" for the
// data folder. Nothing shows there before all of it is checked: the rows come last.
func (r *restoring) restore(ctx context.Context) (where string, err error) {
	database, backup := filepath.Join(r.dir, data.DatabaseFile), filepath.Join(r.backup, data.DatabaseFile)
	if _, err := os.Lstat(database); err == nil {
		return "", badInput("--data: %s holds a hub's state already: move it aside, or choose another folder", r.dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look at the data folder: %w", err)
	}
	if _, err := os.Stat(backup); err != nil {
		return "", badInput("%s is no backup: %w", r.backup, err)
	}
	if err := sqlite.Examine(backup); err != nil {
		return "", fmt.Errorf("look at the backup: %w", err)
	}
	var target *postgres.Store
	if r.db != "" {
		if target, err = r.target.openEmpty(ctx); err != nil {
			return "", err
		}
		defer target.Close()
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return "", fmt.Errorf("make data folder: %w", err)
	}
	if where, err = r.restoreBlobs(ctx); err != nil {
		return "", err
	}
	if err := data.CopyKey(r.backup, r.dir); err != nil {
		return "", fmt.Errorf("restore: %w", err)
	}
	if target != nil {
		err = r.rows(ctx, backup, target)
	} else {
		err = sqlite.Restore(ctx, backup, database, sqlite.RestoreOptions{Now: time.Now})
	}
	if err != nil {
		return "", fmt.Errorf("restore database: %w", err)
	}
	return where, nil
}

// rows restores a backup beside, as a file, and carries its rows from there.
func (r *restoring) rows(ctx context.Context, backup string, target *postgres.Store) error {
	dir, err := os.MkdirTemp(r.dir, "restore-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, data.DatabaseFile)
	if err := sqlite.Restore(ctx, backup, path, sqlite.RestoreOptions{Now: time.Now}); err != nil {
		return err
	}
	source, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	defer source.Close()
	_, err = moving.ToPostgres(ctx, source, target, nil)
	return err
}

// restoreBlobs copies blobs by their hashes, so that one that rotted in the
// backup is found now and not when somebody needs it. Where the backup only says
// where they were, nothing is copied.
func (r *restoring) restoreBlobs(ctx context.Context) (where string, err error) {
	backup, dir, blobs := r.backup, r.dir, r.blobs
	was, err := os.ReadFile(filepath.Join(backup, data.BlobPlaceFile))
	if err == nil {
		r.left = true
		return cmp.Or(blobs, strings.TrimSpace(string(was))), nil
	}
	from := filepath.Join(backup, data.BlobFolder)
	if _, err := os.Stat(from); err != nil {
		return "", badInput("the backup has no blobs: %w", err)
	}
	source, err := blob.OpenLocal(from)
	if err != nil {
		return "", fmt.Errorf("open the backup's blobs: %w", err)
	}
	defer source.Close()
	target, err := openPlace(ctx, blobs, dir, time.Now)
	if err != nil {
		return "", err
	}
	defer target.Close()
	for hash, err := range source.All() {
		if err == nil {
			err = copyBlob(ctx, source, target.Store, hash)
		}
		if err != nil {
			return "", fmt.Errorf("restore blobs: %w", err)
		}
	}
	return blobs, nil
}

func copyBlob(ctx context.Context, from, to blob.Store, hash offpeak.Hash) error {
	r, _, err := from.Open(ctx, hash)
	if err != nil {
		return fmt.Errorf("open %s: %w", hash, err)
	}
	defer r.Close()
	if _, err := to.Put(ctx, hash, r); err != nil {
		return fmt.Errorf("copy %s: %w", hash, err)
	}
	return nil
}
