package data

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"offpeak"
)

// lister is the ability of a blob store to walk over what it holds.
type lister interface {
	All() iter.Seq2[offpeak.Hash, error]
}

// sweepPeriod is the time between two sweeps: bytes without books come of a
// hub that died, so one at its start finds nearly all there are.
const sweepPeriod = 24 * time.Hour

// sweep removes bytes that no account has, at the start and once a day: a hub
// that died between storing a blob and booking it, or between closing its books
// and removing it, left them to nobody. A store that can't list what it holds is
// not swept.
func (v *Vault) sweep(ctx context.Context) {
	all, ok := v.env.Blobs.(lister)
	if !ok {
		return
	}
	for {
		wait := sweepPeriod
		removed, err := v.sweepOnce(ctx, all)
		if err != nil && ctx.Err() == nil {
			v.env.Log.Warn("sweep blobs", "err", err)
			wait = janitorPeriod
		}
		if removed > 0 {
			v.env.Log.Info("removed blobs that were never booked", "blobs", removed)
			v.swept.Add(float64(removed))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (v *Vault) sweepOnce(ctx context.Context, all lister) (removed int, err error) {
	for hash, err := range all.All() {
		if err != nil {
			return removed, err
		}
		// Nearly all are booked, which costs no lock to see.
		err = v.env.Store.HasBlob(ctx, "", hash)
		if errors.Is(err, offpeak.ErrNotFound) {
			var gone bool
			if gone, err = v.sweepOne(ctx, hash); gone {
				removed++
			}
		}
		if err != nil {
			return removed, fmt.Errorf("blob %s: %w", hash, err)
		}
	}
	return removed, nil
}

// sweepOne asks again under the blob's lock, which an upload holds until its
// bytes are booked.
func (v *Vault) sweepOne(ctx context.Context, hash offpeak.Hash) (gone bool, err error) {
	v.gc.Lock()
	defer v.gc.Unlock()
	unlock := v.env.Blobs.Lock(hash)
	defer unlock()
	if err := v.env.Store.HasBlob(ctx, "", hash); !errors.Is(err, offpeak.ErrNotFound) {
		return false, err
	}
	if err := v.env.Blobs.Remove(ctx, hash); err != nil {
		return false, err
	}
	return true, nil
}
