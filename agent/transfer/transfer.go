// Package transfer carries what passes between an attempt's folder and the hub:
// logs by offset, checkpoints and outputs by content.
//
// It owns the order in which things are sent and what is left out of them; the
// bytes are package blob's. It opens nothing that a job could have turned into
// a way out: every file is reached through an os.Root of the job's folder, or
// without following links, and what is neither file nor folder is left out. It
// decides nothing about an attempt's life: a lease that the hub does not know
// any more is told to whoever handed it in. One goroutine at a time uses a Logs
// or a Checkpoints. It is tested with the agent around it, and against jobs that
// swap their files for links.
package transfer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"offpeak"
	"offpeak/agent/link"
	"offpeak/agent/state"
	"offpeak/blob"
	"offpeak/wire"
)

// Lease is the attempt whose data is carried.
type Lease struct {
	ID      offpeak.LeaseID
	Attempt offpeak.Attempt
	// Folder is the lease's folder, Checkpoints the place in the job's own where
	// it puts them.
	Folder      *state.Lease
	Checkpoints string
	Link        *link.Link
	// Bound is how long the transfer of one blob may take.
	Bound time.Duration
	// Boot is the clock that counts suspended time, Ran how long the job has run.
	Boot func() time.Duration
	Ran  func() offpeak.Millis
	// Pause waits after the nth failure in a row.
	Pause func(ctx context.Context, n int) error
	// Note is told of calls that got no answer, Stale that the lease is not the
	// node's any more.
	Note  func(what string, err error)
	Stale func()
	Log   *slog.Logger
}

// skipped warns of what was left out and says it in a sentence, "" if nothing was.
func (l *Lease) skipped(p *blob.Packed) string {
	for _, skip := range p.Skipped {
		l.Log.Warn("not stored", "what", skip.String())
	}
	switch n := len(p.Skipped) + p.MoreSkipped; n {
	case 0:
		return ""
	case 1:
		return p.Skipped[0].String()
	default:
		return fmt.Sprintf("%s and %d more", p.Skipped[0], n-1)
	}
}

// Remote is the hub's blobs as the lease sees them.
func (l *Lease) Remote() blob.Remote { return remote{l} }

// remote is the hub's blobs as one lease sees them.
type remote struct{ lease *Lease }

func (r remote) call(ctx context.Context, f func(context.Context, wire.Blobs) error) error {
	return r.lease.Link.CallFor(ctx, r.lease.Bound, func(ctx context.Context, d *wire.Direct) error {
		return f(ctx, wire.Blobs{Direct: d, Lease: r.lease.ID})
	})
}

// Missing implements blob.Remote.
func (r remote) Missing(ctx context.Context, hashes []offpeak.Hash) (out []offpeak.Hash, err error) {
	err = r.call(ctx, func(ctx context.Context, b wire.Blobs) (err error) {
		out, err = b.Missing(ctx, hashes)
		return err
	})
	return out, err
}

// Upload implements blob.Remote.
func (r remote) Upload(ctx context.Context, hash offpeak.Hash, data []byte) error {
	return r.call(ctx, func(ctx context.Context, b wire.Blobs) error { return b.Upload(ctx, hash, data) })
}

// Commit implements blob.Remote.
func (r remote) Commit(ctx context.Context, tree offpeak.Hash) error {
	return r.call(ctx, func(ctx context.Context, b wire.Blobs) error { return b.Commit(ctx, tree) })
}

// Download implements blob.Remote.
func (r remote) Download(ctx context.Context, hash offpeak.Hash) (out []byte, err error) {
	err = r.call(ctx, func(ctx context.Context, b wire.Blobs) (err error) {
		out, err = b.Download(ctx, hash)
		return err
	})
	return out, err
}

var _ blob.Remote = remote{}
