package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"offpeak"
	"offpeak/blob"
)

// Put stores a blob for an account. The blob's lock is held from the bytes
// to the book-keeping, so that the janitor can't remove what was just stored.
func (v *Vault) Put(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash, r io.Reader) error {
	if !hash.Valid() {
		return &offpeak.FieldError{Field: "hash", Value: string(hash), Rule: "is the lower-case hex SHA-256 of the bytes"}
	}
	if err := v.Full(); err != nil {
		return fmt.Errorf("put blob %s: %w", hash, err)
	}
	unlock := v.env.Blobs.Lock(hash)
	defer unlock()
	size, err := v.env.Blobs.Put(ctx, hash, r)
	if err != nil {
		return fmt.Errorf("put blob %s: %w", hash, err)
	}
	if err := v.env.Store.AddBlob(ctx, account, hash, size); err != nil {
		return fmt.Errorf("put blob %s: %w", hash, errors.Join(err, v.unbooked(ctx, hash, err)))
	}
	return nil
}

// unbooked removes the bytes of a blob that could not be booked for anybody:
// nothing would ever collect them. Where the booking may have been committed
// all the same they stay. The caller holds the blob's lock.
func (v *Vault) unbooked(ctx context.Context, hash offpeak.Hash, cause error) error {
	if errors.Is(cause, offpeak.ErrUnavailable) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := v.env.Store.HasBlob(ctx, "", hash); !errors.Is(err, offpeak.ErrNotFound) {
		return err
	}
	return v.env.Blobs.Remove(ctx, hash)
}

// Open opens a blob that the account has.
func (v *Vault) Open(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash) (io.ReadCloser, offpeak.Bytes, error) {
	if !hash.Valid() {
		return nil, 0, fmt.Errorf("blob %q: %w", hash, offpeak.ErrNotFound)
	}
	if err := v.env.Store.HasBlob(ctx, account, hash); err != nil {
		return nil, 0, fmt.Errorf("open blob %s: %w", hash, err)
	}
	r, size, err := v.env.Blobs.Open(ctx, hash)
	if err != nil {
		return nil, 0, fmt.Errorf("open blob %s: %w", hash, err)
	}
	return r, size, nil
}

// CommitTree reads a stored manifest and declares it to be a tree.
func (v *Vault) CommitTree(ctx context.Context, account offpeak.AccountID, tree offpeak.Hash) error {
	r, _, err := v.Open(ctx, account, tree)
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
	if err := v.env.Store.AddTree(ctx, account, tree, chunks); err != nil {
		return fmt.Errorf("commit tree %s: %w", tree, err)
	}
	return nil
}
