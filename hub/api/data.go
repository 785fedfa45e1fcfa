package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"offpeak"
	"offpeak/blob"
	"offpeak/wire"
)

// maxHashes bounds one question about missing blobs.
const maxHashes = 10_000

// blobTime bounds how long one blob may take on its way, in either direction.
const blobTime = 5 * time.Minute

func (a *api) missing(ctx context.Context, c *caller, _ *none) (wire.Hashes, error) {
	return a.missingFor(ctx, c.token.Account, c.body)
}

func (a *api) leaseMissing(ctx context.Context, c *caller, in *leasePath) (wire.Hashes, error) {
	account, _, err := a.hub.Store().LeaseAccount(ctx, c.token.Node, in.Lease)
	if err != nil {
		return wire.Hashes{}, err
	}
	return a.missingFor(ctx, account, c.body)
}

func (a *api) missingFor(ctx context.Context, account offpeak.AccountID, body []byte) (wire.Hashes, error) {
	in, err := decode[wire.Hashes](body)
	if err != nil {
		return wire.Hashes{}, err
	}
	if len(in.Hashes) > maxHashes {
		return wire.Hashes{}, wrap(fmt.Sprintf("%d hashes in one request, at most %d", len(in.Hashes), maxHashes), offpeak.ErrTooLarge)
	}
	for i, h := range in.Hashes {
		if err := validHash(fmt.Sprintf("hashes[%d]", i), h); err != nil {
			return wire.Hashes{}, err
		}
	}
	missing, err := a.hub.Store().MissingBlobs(ctx, account, in.Hashes)
	if missing == nil {
		missing = []offpeak.Hash{}
	}
	return wire.Hashes{Hashes: missing}, err
}

func validHash(field string, h offpeak.Hash) error {
	if !h.Valid() {
		return &offpeak.FieldError{Field: field, Value: string(h), Rule: "is a SHA-256 in 64 lower-case hex digits"}
	}
	return nil
}

func (a *api) commit(ctx context.Context, c *caller, _ *none) error {
	return a.commitFor(ctx, c.token.Account, c.body)
}

func (a *api) leaseCommit(ctx context.Context, c *caller, in *leasePath) error {
	account, _, err := a.hub.Store().LeaseAccount(ctx, c.token.Node, in.Lease)
	if err != nil {
		return err
	}
	return a.commitFor(ctx, account, c.body)
}

func (a *api) commitFor(ctx context.Context, account offpeak.AccountID, body []byte) error {
	in, err := decode[wire.Tree](body)
	if err == nil {
		err = validHash("hash", in.Hash)
	}
	if err != nil {
		return err
	}
	return a.data.CommitTree(ctx, account, in.Hash)
}

func (a *api) putBlob(w http.ResponseWriter, r *http.Request, c *caller) error {
	return a.store(w, r, c.token.Account)
}

func (a *api) putLeaseBlob(w http.ResponseWriter, r *http.Request, c *caller) error {
	account, _, err := a.hub.Store().LeaseAccount(r.Context(), c.token.Node, offpeak.LeaseID(r.PathValue("lease")))
	if err != nil {
		return err
	}
	return a.store(w, r, account)
}

func (a *api) store(w http.ResponseWriter, r *http.Request, account offpeak.AccountID) error {
	hash := offpeak.Hash(r.PathValue("hash"))
	if err := validHash("path.hash", hash); err != nil {
		return err
	}
	if r.ContentLength > int64(blob.MaxBlob) {
		return tooLarge(int64(blob.MaxBlob))
	}
	rc := http.NewResponseController(w)
	if err := errors.Join(bound(rc.SetReadDeadline, blobTime), bound(rc.SetWriteDeadline, blobTime+time.Minute)); err != nil {
		return err
	}
	body := &source{r: http.MaxBytesReader(w, r.Body, int64(blob.MaxBlob))}
	if err := a.data.Put(r.Context(), account, hash, body); err != nil {
		// What the client failed to send is the client's, whatever the store
		// makes of it.
		if body.err != nil {
			if tooBig, ok := errors.AsType[*http.MaxBytesError](body.err); ok {
				return tooLarge(tooBig.Limit)
			}
			return cutShort(body.err)
		}
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// source remembers why a body could not be read.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

func (a *api) getBlob(w http.ResponseWriter, r *http.Request, c *caller) error {
	return a.load(w, r, c.account)
}

func (a *api) getLeaseBlob(w http.ResponseWriter, r *http.Request, c *caller) error {
	lease, hash := offpeak.LeaseID(r.PathValue("lease")), offpeak.Hash(r.PathValue("hash"))
	account, _, err := a.hub.Store().LeaseAccount(r.Context(), c.token.Node, lease)
	if err == nil {
		err = a.hub.Store().LeaseReads(r.Context(), c.token.Node, lease, hash)
	}
	if err != nil {
		return err
	}
	return a.load(w, r, account)
}

func (a *api) load(w http.ResponseWriter, r *http.Request, account offpeak.AccountID) error {
	hash := offpeak.Hash(r.PathValue("hash"))
	if err := validHash("path.hash", hash); err != nil {
		return err
	}
	body, size, err := a.data.Open(r.Context(), account, hash)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := bound(http.NewResponseController(w).SetWriteDeadline, blobTime); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment")
	h.Set("Content-Length", strconv.FormatInt(int64(size), 10))
	if _, err := io.Copy(w, body); err != nil {
		return fmt.Errorf("send blob %s: %w", hash, err)
	}
	return nil
}
