package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"offpeak"
	"offpeak/blob"
)

// Names of what a data folder and a backup of it hold. The key is the hub's
// secret: whoever has it can pose as the hub to those who pin it. A backup has
// either the blobs or, where they lie in a place of their own, its name.
const (
	DatabaseFile  = "offpeak.db"
	BlobFolder    = "blobs"
	BlobPlaceFile = "blobs.txt"
	KeyFile       = "hub.key"
)

// lister is the ability of a blob store to walk over what it holds, so that a
// backup can copy it.
type lister interface {
	All() iter.Seq2[offpeak.Hash, error]
}

// placed is the ability of a blob store in a place of its own to say where that
// is, as --blobs names it.
type placed interface {
	Where() string
}

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
// every blob it names is there. Blobs in a place of their own are not copied:
// the backup says where they are.
func (v *Vault) Backup(ctx context.Context, path string) error {
	if !filepath.IsAbs(path) {
		return &offpeak.FieldError{Field: "path", Value: path, Rule: "is an absolute path on the hub's machine that does not exist yet"}
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return &offpeak.FieldError{Field: "path", Rule: path + " is there already: name a folder that does not exist yet"}
		}
		return fmt.Errorf("back up: %w", errors.Join(offpeak.ErrStorage, err))
	}
	v.gc.Lock()
	defer v.gc.Unlock()
	if err := v.env.Store.Backup(ctx, filepath.Join(path, DatabaseFile)); err != nil {
		return fmt.Errorf("back up database: %w", err)
	}
	if err := v.backupBlobs(ctx, path); err != nil {
		return fmt.Errorf("back up blobs: %w", err)
	}
	if err := CopyKey(v.cfg.Folder, path); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	return nil
}

func (v *Vault) backupBlobs(ctx context.Context, path string) error {
	if at, ok := v.env.Blobs.(placed); ok {
		if err := os.WriteFile(filepath.Join(path, BlobPlaceFile), []byte(at.Where()+"\n"), 0o600); err != nil {
			return errors.Join(offpeak.ErrStorage, err)
		}
		return nil
	}
	all, ok := v.env.Blobs.(lister)
	if !ok {
		return fmt.Errorf("the blob store can't list its blobs: %w", offpeak.ErrConflict)
	}
	target, err := blob.OpenLocal(filepath.Join(path, BlobFolder))
	if err != nil {
		return err
	}
	defer target.Close()
	for hash, err := range all.All() {
		if err == nil {
			err = v.copyBlob(ctx, target, hash)
		}
		// What a sweep removes meanwhile the database does not name.
		if err != nil && !errors.Is(err, offpeak.ErrNotFound) {
			return fmt.Errorf("copy %s: %w", hash, err)
		}
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
