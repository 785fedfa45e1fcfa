package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"time"

	"offpeak"
	"offpeak/blob"
	"offpeak/store"
	"offpeak/wire"
)

// PutBlob stores a blob for an account. The blob's lock is held from the bytes
// to the book-keeping, so that the janitor can't remove what was just stored.
func (h *Hub) PutBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash, r io.Reader) error {
	if !hash.Valid() {
		return &offpeak.FieldError{Field: "hash", Value: string(hash), Rule: "is the lower-case hex SHA-256 of the bytes"}
	}
	if err := h.disk.full(); err != nil {
		return fmt.Errorf("put blob %s: %w", hash, err)
	}
	unlock := h.env.Blobs.Lock(hash)
	defer unlock()
	size, err := h.env.Blobs.Put(ctx, hash, r)
	if err != nil {
		return fmt.Errorf("put blob %s: %w", hash, err)
	}
	if err := h.env.Store.AddBlob(ctx, account, hash, size); err != nil {
		return fmt.Errorf("put blob %s: %w", hash, errors.Join(err, h.unbooked(ctx, hash, err)))
	}
	return nil
}

// unbooked removes the bytes of a blob that could not be booked for anybody:
// nothing would ever collect them. Where the booking may have been committed
// all the same they stay. The caller holds the blob's lock.
func (h *Hub) unbooked(ctx context.Context, hash offpeak.Hash, cause error) error {
	if errors.Is(cause, offpeak.ErrUnavailable) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := h.env.Store.HasBlob(ctx, "", hash); !errors.Is(err, offpeak.ErrNotFound) {
		return err
	}
	return h.env.Blobs.Remove(ctx, hash)
}

// OpenBlob opens a blob that the account has.
func (h *Hub) OpenBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash) (io.ReadCloser, offpeak.Bytes, error) {
	if !hash.Valid() {
		return nil, 0, fmt.Errorf("blob %q: %w", hash, offpeak.ErrNotFound)
	}
	if err := h.env.Store.HasBlob(ctx, account, hash); err != nil {
		return nil, 0, fmt.Errorf("open blob %s: %w", hash, err)
	}
	r, size, err := h.env.Blobs.Open(ctx, hash)
	if err != nil {
		return nil, 0, fmt.Errorf("open blob %s: %w", hash, err)
	}
	return r, size, nil
}

// CommitTree reads a stored manifest and declares it to be a tree.
func (h *Hub) CommitTree(ctx context.Context, account offpeak.AccountID, tree offpeak.Hash) error {
	r, _, err := h.OpenBlob(ctx, account, tree)
	if errors.Is(err, offpeak.ErrNotFound) {
		return fmt.Errorf("commit tree: the manifest %s: %w", tree, offpeak.ErrBlobMissing)
	}
	if err != nil {
		return fmt.Errorf("commit tree: %w", err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, int64(blob.MaxBlob)+1))
	if err != nil {
		return fmt.Errorf("commit tree %s: %w", tree, err)
	}
	m, err := blob.ParseManifest(data)
	if err != nil {
		return fmt.Errorf("commit tree %s: %w", tree, err)
	}
	seen := make(map[offpeak.Hash]struct{})
	var chunks []offpeak.Hash
	for i := range m.Entries {
		for _, c := range m.Entries[i].Chunks {
			if _, dup := seen[c]; !dup {
				seen[c] = struct{}{}
				chunks = append(chunks, c)
			}
		}
	}
	if err := h.env.Store.AddTree(ctx, account, tree, chunks); err != nil {
		return fmt.Errorf("commit tree %s: %w", tree, err)
	}
	return nil
}

// Check runs the invariants and adds the hub's own warnings (disk, stalls).
func (h *Hub) Check(ctx context.Context) (wire.Checked, error) {
	violations, err := h.env.Store.Check(ctx)
	if err != nil {
		return wire.Checked{}, fmt.Errorf("check: %w", err)
	}
	out := wire.Checked{OK: len(violations) == 0, Violations: make([]wire.Violation, 0, len(violations)), Warnings: h.disk.warnings()}
	for _, v := range violations {
		out.Violations = append(out.Violations, wire.Violation(v))
	}
	if h.stalled.Load() {
		out.Warnings = append(out.Warnings, "The hub could not hear or write for a while; nobody's silence counts until it can.")
	}
	return out, nil
}

// Names of what a data folder and a backup of it hold. The key is the hub's
// secret: whoever has it can pose as the hub to those who pin it.
const (
	BackupDatabase = "offpeak.db"
	BackupBlobs    = "blobs"
	BackupKey      = "hub.key"
)

// Backup writes database, blobs and, where the hub has one, its key to a new
// folder. The database is copied first and nothing is collected meanwhile, so
// every blob it names is there.
func (h *Hub) Backup(ctx context.Context, path string) error {
	if !filepath.IsAbs(path) {
		return &offpeak.FieldError{Field: "path", Value: path, Rule: "is an absolute path on the hub's machine that does not exist yet"}
	}
	all, ok := h.env.Blobs.(interface {
		All() iter.Seq2[offpeak.Hash, error]
	})
	if !ok {
		return fmt.Errorf("back up: the blob store can't list its blobs; copy it with its own tools: %w", offpeak.ErrConflict)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return &offpeak.FieldError{Field: "path", Value: path, Rule: "does not exist yet"}
		}
		return fmt.Errorf("back up: %w", errors.Join(offpeak.ErrStorage, err))
	}
	h.gc.Lock()
	defer h.gc.Unlock()
	if err := h.env.Store.Backup(ctx, filepath.Join(path, BackupDatabase)); err != nil {
		return fmt.Errorf("back up database: %w", err)
	}
	target, err := blob.OpenLocal(filepath.Join(path, BackupBlobs))
	if err != nil {
		return fmt.Errorf("back up blobs: %w", err)
	}
	defer target.Close()
	for hash, err := range all.All() {
		if err != nil {
			return fmt.Errorf("back up blobs: %w", err)
		}
		if err := h.copyBlob(ctx, target, hash); err != nil {
			return fmt.Errorf("back up blob %s: %w", hash, err)
		}
	}
	if err := CopyKey(h.cfg.Folder, path); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	return nil
}

// CopyKey copies the hub's key from one folder to another, readable by its owner
// alone. A hub that was only ever on loopback has none, which is no error; a key
// that is there already is never replaced.
func CopyKey(from, to string) error {
	key, err := os.ReadFile(filepath.Join(from, BackupKey))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the hub's key: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(to, BackupKey), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the hub's key: %w", err)
	}
	_, err = f.Write(key)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the hub's key: %w", err)
	}
	return nil
}

func (h *Hub) copyBlob(ctx context.Context, target blob.Store, hash offpeak.Hash) error {
	r, _, err := h.env.Blobs.Open(ctx, hash)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = target.Put(ctx, hash, r)
	return err
}

// collect removes blobs that nothing refers to, a bounded number a pass.
func (h *Hub) collect(ctx context.Context, limit int) (removed int, err error) {
	h.gc.Lock()
	defer h.gc.Unlock()
	refs, err := h.env.Store.Unused(ctx, limit)
	if err != nil {
		return 0, fmt.Errorf("list unused blobs: %w", err)
	}
	for _, ref := range refs {
		if ctx.Err() != nil {
			return removed, nil
		}
		dropped, err := h.collectOne(ctx, ref)
		if err != nil {
			return removed, fmt.Errorf("collect blob %s: %w", ref.Hash, err)
		}
		if dropped {
			removed++
		}
	}
	return removed, nil
}

func (h *Hub) collectOne(ctx context.Context, ref store.BlobRef) (bool, error) {
	unlock := h.env.Blobs.Lock(ref.Hash)
	defer unlock()
	dropped, last, err := h.env.Store.DropBlob(ctx, ref)
	if err != nil || !last {
		return dropped, err
	}
	return dropped, h.env.Blobs.Remove(ctx, ref.Hash)
}
