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
	"offpeak/store/sqlite"
)

func newRestore(env Env) *cobra.Command {
	var dir, blobs string
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
they were when the backup was taken.`,
		Example: `  offpeak restore /backups/2026-05-01 --data /var/lib/offpeak/hub
  offpeak restore /backups/2026-05-01 --data /var/lib/offpeak/hub --blobs /srv/offpeak`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return badInput("%s takes one argument: the backup's folder", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := place.Parse(blobs); err != nil {
				return badInput("--blobs: %w", err)
			}
			where, err := restore(cmd.Context(), args[0], dir, blobs)
			if err != nil {
				return diskFull(err)
			}
			next := "offpeak hub --data " + dir
			if where != "" {
				next += " --blobs '" + where + "'"
			}
			_, err = fmt.Fprintf(env.Stdout, "restored %s to %s\nnext: %s\n", args[0], dir, next)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "data", filepath.Join(local.Home(env.Getenv), "hub"), "the hub's data folder")
	cmd.Flags().StringVar(&blobs, "blobs", "", "`place` of the blobs, as the hub will be told it; the data folder if left out")
	return cmd
}

// restore copies a backup into the data folder dir, and its blobs to where blobs
// says. It returns where they lie then, "" for dir. Nothing shows there before all
// of it is checked: the database is put in its place last.
func restore(ctx context.Context, backup, dir, blobs string) (where string, err error) {
	database := filepath.Join(dir, data.DatabaseFile)
	if _, err := os.Lstat(database); err == nil {
		return "", badInput("--data: %s holds a hub's state already: move it aside, or choose another folder", dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look at the data folder: %w", err)
	}
	if _, err := os.Stat(filepath.Join(backup, data.DatabaseFile)); err != nil {
		return "", badInput("%s is no backup: %w", backup, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make data folder: %w", err)
	}
	if where, err = restoreBlobs(ctx, backup, dir, blobs); err != nil {
		return "", err
	}
	if err := data.CopyKey(backup, dir); err != nil {
		return "", fmt.Errorf("restore: %w", err)
	}
	if err := sqlite.Restore(ctx, filepath.Join(backup, data.DatabaseFile), database, sqlite.RestoreOptions{Now: time.Now}); err != nil {
		return "", fmt.Errorf("restore database: %w", err)
	}
	return where, nil
}

// restoreBlobs copies blobs by their hashes, so that one that rotted in the
// backup is found now and not when somebody needs it. Where the backup only says
// where they were, nothing is copied.
func restoreBlobs(ctx context.Context, backup, dir, blobs string) (where string, err error) {
	was, err := os.ReadFile(filepath.Join(backup, data.BlobPlaceFile))
	if err == nil {
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
