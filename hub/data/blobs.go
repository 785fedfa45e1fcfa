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

// Put stores a blob for an account: bytes first, then books, with no collection
// in between.
func (v *Vault) Put(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash, r io.Reader) error {
	if !hash.Valid() {
		return &offpeak.FieldError{Field: "hash", Value: string(hash), Rule: "is the lower-case hex SHA-256 of the bytes"}
	}
	if err := v.Full(); err != nil {
		return fmt.Errorf("put blob %s: %w", hash, err)
	}
	var booking error
	err := v.env.Blobs.Keep(ctx, hash, r, func(ctx context.Context, size offpeak.Bytes) error {
		booking = v.env.Store.AddBlob(ctx, account, hash, size)
		return booking
	})
	if err != nil {
		return fmt.Errorf("put blob %s: %w", hash, errors.Join(err, v.unbooked(ctx, hash, booking)))
	}
	return nil
}

// unbooked removes the bytes of a blob that could not be booked for anybody.
// Where the booking may have been committed all the same they stay.
func (v *Vault) unbooked(ctx context.Context, hash offpeak.Hash, cause error) error {
	if cause == nil || errors.Is(cause, offpeak.ErrUnavailable) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return v.env.Blobs.Collect(ctx, hash, func(ctx context.Context) (bool, error) { return v.unused(ctx, hash) })
}

// unused says that no account has a blob.
func (v *Vault) unused(ctx context.Context, hash offpeak.Hash) (bool, error) {
	err := v.env.Store.HasBlob(ctx, "", hash)
	if errors.Is(err, offpeak.ErrNotFound) {
		return true, nil
	}
	return false, err
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
