package data

import (
	"context"
	"time"
)

// sweepPeriod is the time between two sweeps: bytes without books come of a
// hub that died, so one at its start finds nearly all there are.
const sweepPeriod = 24 * time.Hour

// sweep removes bytes that no account has, at the start and once a day: a hub
// that died between storing a blob and booking it, or between closing its books
// and removing it, left them to nobody.
func (v *Vault) sweep(ctx context.Context) {
	for {
		wait := sweepPeriod
		removed, err := v.env.Blobs.Sweep(ctx, v.unused)
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
