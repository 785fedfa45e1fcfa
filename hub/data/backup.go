package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"offpeak"
	"offpeak/blob"
)

// Names of what a data folder and a backup of it hold. The key is the hub's
// secret: whoever has it can pose as the hub to those who pin it.
const (
	DatabaseFile = "offpeak.db"
	BlobFolder   = "blobs"
	KeyFile      = "hub.key"
)

// ErrNoDatabase says that a folder has a grid's blobs or log but no database.
var ErrNoDatabase = errors.New("the database is gone, while its blobs or its log are there")

// CheckFolder returns ErrNoDatabase for a data folder that lost its database: a
// hub that began anew there would take every blob for nobody's and remove it,
// and the database's log, which may hold what was acknowledged last, with it.
// A folder that is new or whole, or is not there, is fine.
func CheckFolder(folder string) error {
	if info, err := os.Stat(filepath.Join(folder, DatabaseFile)); err == nil && info.Size() > 0 {
		return nil
	}
	if info, err := os.Stat(filepath.Join(folder, DatabaseFile+"-wal")); err == nil && info.Size() > 0 {
		return ErrNoDatabase
	}
	err := filepath.WalkDir(filepath.Join(folder, BlobFolder), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			return ErrNoDatabase
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", folder, err)
	}
	return nil
}

// Backup writes database, blobs and, where the hub has one, its key to a new
// folder. The database is copied first and nothing is collected meanwhile, so
// every blob it names is there.
func (v *Vault) Backup(ctx context.Context, path string) error {
	if !filepath.IsAbs(path) {
		return &offpeak.FieldError{Field: "path", Value: path, Rule: "is an absolute path on the hub's machine that does not exist yet"}
	}
	all, ok := v.env.Blobs.(lister)
	if !ok {
		return fmt.Errorf("back up: the blob store can't list its blobs; copy it with its own tools: %w", offpeak.ErrConflict)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return &offpeak.FieldError{Field: "path", Value: path, Rule: "is there already: name a folder that does not exist yet"}
		}
		return fmt.Errorf("back up: %w", errors.Join(offpeak.ErrStorage, err))
	}
	v.gc.Lock()
	defer v.gc.Unlock()
	if err := v.env.Store.Backup(ctx, filepath.Join(path, DatabaseFile)); err != nil {
		return fmt.Errorf("back up database: %w", err)
	}
	target, err := blob.OpenLocal(filepath.Join(path, BlobFolder))
	if err != nil {
		return fmt.Errorf("back up blobs: %w", err)
	}
	defer target.Close()
	for hash, err := range all.All() {
		if err != nil {
			return fmt.Errorf("back up blobs: %w", err)
		}
		if err := v.copyBlob(ctx, target, hash); err != nil {
			return fmt.Errorf("back up blob %s: %w", hash, err)
		}
	}
	if err := CopyKey(v.cfg.Folder, path); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	return nil
}

// CopyKey copies the hub's key from one folder to another, readable by its owner
// alone. A hub that was only ever on loopback has none, which is no error; a key
// that is there already is never replaced.
func CopyKey(from, to string) error {
	key, err := os.ReadFile(filepath.Join(from, KeyFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the hub's key: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(to, KeyFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the hub's key: %w", err)
	}
	_, err = f.Write(key)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the hub's key: %w", err)
	}
	return nil
}

func (v *Vault) copyBlob(ctx context.Context, target blob.Store, hash offpeak.Hash) error {
	r, _, err := v.env.Blobs.Open(ctx, hash)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = target.Put(ctx, hash, r)
	return err
}
