// Package data keeps the bytes of the grid, inputs, outputs, checkpoints and
// logs, and the books that say whose they are.
//
// It owns the order of bytes and books (bytes first; collected, books first),
// what is collected and when, retention, how full the disk may be, and
// what a backup holds. It must not know who may ask (package access and the
// routes), nor what a lease means beyond whose data it reads and writes: fencing
// a log's bytes is the store's, and telling a stale holder is the hub's.
//
// All methods may be called from any number of goroutines. Run is the janitor;
// everything else works without it. Followers of logs wait for bells that the
// hub rings, until they are told that it stopped. It is tested on the real
// embedded store and a folder of blobs, shared by two of it too; logs, which need leases, are tested in
// package hub. DESIGN.md beside this file holds the invariants.
package data

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"offpeak"
	"offpeak/blob"
	"offpeak/hub/bell"
	"offpeak/store"
)

// Config is what an operator may set.
type Config struct {
	// Retention is what the janitor keeps; zero keeps for ever.
	Retention store.Retention
	// Folder is where database, key and, unless they have a place of their own,
	// blobs lie; "" is not known.
	Folder string
}

// Store is the books.
type Store interface {
	store.Data
	Job(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) (offpeak.Job, error)
	Attempts(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) ([]offpeak.Lease, error)
	Prune(ctx context.Context, keep store.Retention, limit int) (removed int, err error)
	Backup(ctx context.Context, path string) error
}

// Env is the outside world, handed in.
type Env struct {
	Store Store
	Blobs blob.Store
	Log   *slog.Logger
	// Disk says how full the disk is, 0 to 1; 0 is not known. Default: the fuller
	// of the file systems of Config.Folder and of a folder that the blobs are in.
	Disk func() float64
	// Bells ring, by a job's or a lease's id, when there is more to read of it;
	// Stopped is closed when they will not ring again.
	Bells   *bell.Bells
	Stopped <-chan struct{}
	// Leads says that of the hubs of the grid this one prunes and collects now: all
	// may, at once, but one is enough. Default: always.
	Leads func() bool
	// Metrics is where this room's metrics are registered.
	Metrics prometheus.Registerer
}

// Vault is one hub's bytes and books.
type Vault struct {
	cfg Config
	env Env
	// gc excludes closing the books of blobs while they are copied to a backup.
	gc sync.Mutex
	// used is how full the disk is, in millionths.
	used atomic.Int64

	pruned, collected, swept prometheus.Counter
}

// New makes a vault; it works before Run does.
func New(cfg Config, env Env) *Vault {
	if env.Disk == nil {
		folders := []string{cfg.Folder}
		if at, ok := env.Blobs.(interface{ Folder() string }); ok {
			folders = append(folders, at.Folder())
		}
		env.Disk = func() float64 { return fullest(folders) }
	}
	v := &Vault{cfg: cfg, env: env}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "offpeak", Name: name, Help: help})
		env.Metrics.MustRegister(c)
		return c
	}
	v.pruned = counter("rows_pruned_total", "Rows removed by retention.")
	v.collected = counter("blobs_collected_total", "Holds on blobs removed because nothing refers to them.")
	v.swept = counter("blobs_swept_total", "Blobs removed that nobody had, left over by a hub that died.")
	env.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "offpeak", Name: "disk_used_ratio", Help: "How full the hub's disk is; 0 where unknown.",
	}, v.share))
	return v
}
