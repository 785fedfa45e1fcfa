package blob

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"offpeak"
)

// How transfers behave: blobs at once, hashes in one question, tries after
// bytes that arrived torn, rounds after blobs that were collected meanwhile.
const (
	parallel     = 4
	missingBatch = 1000
	tornTries    = 3
	uploadRounds = 3
)

// Upload sends what the remote does not have and commits the tree. While the
// remote is unavailable it tries again, with growing jittered pauses, until ctx
// is done; an upload that was cut off goes on where it was when it is called
// again, since the remote is asked what is missing. progress, if not nil, is
// called one at a time, with bytes the remote had counted as sent.
//
// It returns ErrChanged if a file changed since it was packed, else the
// remote's error.
func Upload(ctx context.Context, remote Remote, p *Packed, progress func(done, total offpeak.Bytes)) (offpeak.Hash, error) {
	// A blob that the remote had when it was asked may be collected as garbage
	// before the tree that refers to it is committed: then ask again.
	for round := 1; ; round++ {
		err := upload(ctx, remote, p, progress)
		if err == nil {
			return p.Tree, nil
		}
		if round == uploadRounds || !errors.Is(err, offpeak.ErrBlobMissing) {
			return "", fmt.Errorf("upload: %w", err)
		}
	}
}

func upload(ctx context.Context, remote Remote, p *Packed, progress func(done, total offpeak.Bytes)) error {
	hashes := append(p.Manifest.Chunks(), p.Tree)
	sizes := make(map[offpeak.Hash]offpeak.Bytes, len(hashes))
	var total offpeak.Bytes
	for _, h := range hashes {
		n := offpeak.Bytes(len(p.encoded))
		if h != p.Tree {
			at := p.place[h]
			n = offpeak.Bytes(p.Manifest.Entries[at.entry].chunkLen(at.chunk))
		}
		sizes[h] = n
		total += n
	}
	bar := &meter{total: total, report: progress}
	for batch := range slices.Chunk(hashes, missingBatch) {
		missing, err := retry(ctx, func() ([]offpeak.Hash, error) { return remote.Missing(ctx, batch) })
		if err != nil {
			return fmt.Errorf("ask what is missing: %w", err)
		}
		send := make(map[offpeak.Hash]bool, len(missing))
		for _, h := range missing {
			send[h] = true
		}
		group, inner := errgroup.WithContext(ctx)
		group.SetLimit(parallel)
		for _, h := range batch {
			if !send[h] {
				bar.add(sizes[h])
				continue
			}
			group.Go(func() error {
				data, err := p.chunk(h)
				if err != nil {
					return err
				}
				if _, err := retry(inner, func() (struct{}, error) { return struct{}{}, remote.Upload(inner, h, data) }); err != nil {
					return fmt.Errorf("send blob %s: %w", h, err)
				}
				bar.add(sizes[h])
				return nil
			})
			if inner.Err() != nil {
				break
			}
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	if _, err := retry(ctx, func() (struct{}, error) { return struct{}{}, remote.Commit(ctx, p.Tree) }); err != nil {
		return fmt.Errorf("commit tree %s: %w", p.Tree, err)
	}
	return nil
}

// Fetch fetches and reads a manifest, so that a caller can look at its size
// before anything else is fetched.
func Fetch(ctx context.Context, remote Remote, tree offpeak.Hash) (Manifest, error) {
	data, err := download(ctx, remote, tree)
	if err != nil {
		return Manifest{}, fmt.Errorf("fetch tree: %w", err)
	}
	m, err := ParseManifest(data)
	if err != nil {
		return Manifest{}, fmt.Errorf("fetch tree %s: %w", tree, err)
	}
	return m, nil
}

// download fetches one blob and checks its hash.
func download(ctx context.Context, remote Remote, h offpeak.Hash) ([]byte, error) {
	data, err := retry(ctx, func() ([]byte, error) {
		data, err := remote.Download(ctx, h)
		if err == nil && Sum(data) != h {
			err = offpeak.ErrHashMismatch
		}
		return data, err
	})
	if err != nil {
		return nil, fmt.Errorf("fetch blob %s: %w", h, err)
	}
	return data, nil
}

// retry calls f until it succeeds, fails for good or ctx is done. Only
// ErrUnavailable passes with time; torn bytes get a few more tries.
func retry[T any](ctx context.Context, f func() (T, error)) (T, error) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval = 100 * time.Millisecond
	pauses.MaxInterval = 10 * time.Second
	torn := 0
	var last error
	out, err := backoff.Retry(ctx, func() (T, error) {
		v, err := f()
		last = err
		switch {
		case err == nil:
			return v, nil
		case errors.Is(err, offpeak.ErrUnavailable):
			return v, err
		case errors.Is(err, offpeak.ErrHashMismatch):
			if torn++; torn < tornTries {
				return v, err
			}
		}
		return v, backoff.Permanent(err)
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	if cause := ctx.Err(); err != nil && cause != nil && last != nil {
		// Say what stood in the way as well as that time ran out.
		return out, errors.Join(cause, last)
	}
	return out, err
}

// meter adds up progress and reports it, one call at a time.
type meter struct {
	total  offpeak.Bytes
	report func(done, total offpeak.Bytes)

	// mu guards done and is held while report runs.
	mu   sync.Mutex
	done offpeak.Bytes
}

func (m *meter) add(n offpeak.Bytes) {
	if m.report == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.report(m.done, m.total)
}
