package data

import (
	"context"
	"fmt"
	"sync"
	"time"

	"offpeak/store"
)

const (
	// janitorPeriod is the time between two passes when there is little to do.
	janitorPeriod = time.Minute
	// pruneBatch and collectBatch bound one pass, so that it never holds the
	// store for long.
	pruneBatch   = 1000
	collectBatch = 256
)

// Run prunes what retention allows, collects unused blobs and watches the disk,
// in bounded passes, until ctx is done; where there is more to do it goes on
// soon. Beside it, bytes that nobody has are swept.
func (v *Vault) Run(ctx context.Context) error {
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(func() { v.sweep(ctx) })
	said := 0.0 // the worst that the log says since there was enough room
	for {
		said = v.lookAtDisk(said)
		wait := janitorPeriod
		if v.env.Leads == nil || v.env.Leads() {
			wait = v.tidy(ctx)
		}
		if v.share() >= diskAlarm {
			wait = min(wait, 10*time.Second)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// tidy prunes and collects a bounded number, and says when to do so again.
func (v *Vault) tidy(ctx context.Context) time.Duration {
	pruned, err := v.env.Store.Prune(ctx, v.cfg.Retention, pruneBatch)
	if err != nil && ctx.Err() == nil {
		v.env.Log.Warn("prune", "err", err)
	}
	removed, err := v.collect(ctx, collectBatch)
	if err != nil && ctx.Err() == nil {
		v.env.Log.Warn("collect blobs", "err", err)
	}
	v.pruned.Add(float64(pruned))
	v.collected.Add(float64(removed))
	if pruned >= pruneBatch || removed >= collectBatch {
		return time.Second
	}
	return janitorPeriod
}

// collect removes blobs that nothing refers to, a bounded number a pass.
func (v *Vault) collect(ctx context.Context, limit int) (removed int, err error) {
	v.gc.Lock()
	defer v.gc.Unlock()
	refs, err := v.env.Store.Unused(ctx, limit)
	if err != nil {
		return 0, fmt.Errorf("list unused blobs: %w", err)
	}
	for _, ref := range refs {
		if ctx.Err() != nil {
			return removed, nil
		}
		dropped, err := v.collectOne(ctx, ref)
		if err != nil {
			return removed, fmt.Errorf("collect blob %s: %w", ref.Hash, err)
		}
		if dropped {
			removed++
		}
	}
	return removed, nil
}

func (v *Vault) collectOne(ctx context.Context, ref store.BlobRef) (dropped bool, err error) {
	err = v.env.Blobs.Collect(ctx, ref.Hash, func(ctx context.Context) (last bool, err error) {
		dropped, last, err = v.env.Store.DropBlob(ctx, ref)
		return last, err
	})
	return dropped, err
}
