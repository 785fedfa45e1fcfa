package hub

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"offpeak"
)

const (
	// janitorPeriod is the time between two passes when there is little to do.
	janitorPeriod = time.Minute
	// pruneBatch and collectBatch bound one pass, so that it never holds the
	// store for long.
	pruneBatch   = 1000
	collectBatch = 256
	// diskAlarm warns, diskFull refuses what would fill the disk further.
	diskAlarm = 0.85
	diskFull  = 0.97
)

// diskGauge is how full the hub's disk is, in millionths; negative: unknown.
type diskGauge struct{ used atomic.Int64 }

func (d *diskGauge) set(share float64) { d.used.Store(int64(share * 1e6)) }

func (d *diskGauge) share() float64 { return float64(d.used.Load()) / 1e6 }

// full returns ErrStorage while so little is left that what is accepted
// already may not be able to finish.
func (d *diskGauge) full() error {
	if s := d.share(); s >= diskFull {
		return fmt.Errorf("the hub's disk is %.0f %% full: %w", s*100, offpeak.ErrStorage)
	}
	return nil
}

func (d *diskGauge) warnings() []string {
	s := d.share()
	switch {
	case s >= diskFull:
		return []string{fmt.Sprintf("The hub's disk is %.1f %% full: uploads and submissions are refused until space is freed.", s*100)}
	case s >= diskAlarm:
		return []string{fmt.Sprintf("The hub's disk is %.1f %% full: free space or shorten the retention; at 97 %% uploads and submissions are refused.", s*100)}
	}
	return nil
}

// lookAtDisk reads how full the disk is and logs each threshold that it passed
// once, until there is enough room again. said and what it returns are the
// highest threshold that was logged.
func (h *Hub) lookAtDisk(said float64) float64 {
	share := h.env.Disk()
	h.disk.set(share)
	used := fmt.Sprintf("%.1f %%", share*100)
	switch {
	case share < diskAlarm:
		return 0
	case share >= diskFull && said < diskFull:
		if said < diskAlarm {
			h.env.Log.Warn("the disk fills up", "folder", h.cfg.Folder, "used", used)
		}
		h.env.Log.Error("the disk is full", "folder", h.cfg.Folder, "used", used)
		return diskFull
	case said < diskAlarm:
		h.env.Log.Warn("the disk fills up", "folder", h.cfg.Folder, "used", used)
		return diskAlarm
	}
	return said
}

// janitor prunes what retention allows, collects unused blobs and watches the
// disk, in bounded passes; where there is more to do it goes on soon.
func (h *Hub) janitor(ctx context.Context) error {
	said := 0.0 // the worst that the log says since there was enough room
	for {
		said = h.lookAtDisk(said)
		wait := janitorPeriod
		pruned, err := h.env.Store.Prune(ctx, h.cfg.Retention, pruneBatch)
		if err != nil && ctx.Err() == nil {
			h.env.Log.Warn("prune", "err", err)
		}
		removed, err := h.collect(ctx, collectBatch)
		if err != nil && ctx.Err() == nil {
			h.env.Log.Warn("collect blobs", "err", err)
		}
		h.metrics.pruned.Add(float64(pruned))
		h.metrics.collected.Add(float64(removed))
		if pruned >= pruneBatch || removed >= collectBatch {
			wait = time.Second
		}
		if h.disk.share() >= diskAlarm {
			wait = min(wait, 10*time.Second)
		}
		if !sleep(ctx, wait) {
			return nil
		}
	}
}
