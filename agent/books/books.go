// Package books is what an agent keeps for its owner's eyes alone: whose jobs ended
// and how, what the node brought, and how its devices fare.
//
// It owns the list of ended jobs in the data folder and what the hub last said of
// earnings. It decides nothing: nobody else reads what it keeps, and an agent without
// it would do the same. The hub is asked while somebody looks, and never by who looks:
// a status waits for nothing. All methods may be called from any number of goroutines;
// Run is one loop that its caller owns. It is tested with a hub of functions.
package books

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"offpeak"
	"offpeak/agent/hardware"
	"offpeak/agent/state"
	"offpeak/wire"
)

// Kept is how many ended jobs are remembered.
const Kept = 20

// How old what the hub said of earnings may be before it is asked again, and how long
// it is left alone after it gave no answer.
const (
	fresh = time.Minute
	retry = 10 * time.Second
)

// What an account is to the node's owner, where nobody said a finer word.
const (
	ClassSelf  = "self"
	ClassOther = "other"
)

// Device is one GPU and what it does now. What it doesn't tell is nil.
type Device struct {
	ID    offpeak.DeviceID `json:"id"`
	Model string           `json:"model"`
	// Total is all its memory, Offered what a job can have now, Foreign what others
	// than jobs hold.
	Total       offpeak.Bytes  `json:"total_bytes"`
	Offered     offpeak.Bytes  `json:"offered_bytes"`
	Used        *offpeak.Bytes `json:"used_bytes,omitempty"`
	Foreign     offpeak.Bytes  `json:"foreign_bytes"`
	Temperature *float64       `json:"temperature,omitempty"`
	Power       *float64       `json:"power_watts,omitempty"`
	Use         *float64       `json:"use_percent,omitempty"`
	Throttled   []string       `json:"throttled,omitempty"`
}

// Devices are those of a sample.
func Devices(s hardware.Sample) []Device {
	out := make([]Device, len(s.Readings))
	for i, r := range s.Readings {
		out[i] = Device{
			ID: r.Device.ID, Model: r.Device.Model, Total: r.Device.Total, Offered: r.Device.VRAM, Used: r.Used, Foreign: r.Foreign,
			Temperature: r.Temperature, Power: r.Power, Use: r.Utilisation, Throttled: r.Throttled,
		}
	}
	return out
}

// Ended is an attempt that is over.
type Ended struct {
	Job     offpeak.JobID     `json:"job"`
	Name    string            `json:"name,omitempty"`
	Attempt offpeak.Attempt   `json:"attempt"`
	Account offpeak.AccountID `json:"account"`
	Class   string            `json:"class"`
	At      time.Time         `json:"ended_at"`
	Ran     offpeak.Millis    `json:"ran_ms"`
	Reason  offpeak.EndReason `json:"reason"`
	Detail  string            `json:"detail,omitempty"`
}

// Earnings is what the hub last said that this node brought, nil figures before it
// said anything.
type Earnings struct {
	*wire.Earnings
	// Heard is when it said so, by this machine's clock.
	Heard time.Time `json:"heard_at,omitzero"`
	// Problem is why it is not said anew.
	Problem string `json:"problem,omitempty"`
}

// Yields is how long the owner waited for jobs to leave the machine.
type Yields struct {
	Count int            `json:"count"`
	P50   offpeak.Millis `json:"p50_ms"`
	P99   offpeak.Millis `json:"p99_ms"`
}

// Config is what books are made of.
type Config struct {
	Folder state.Folder
	// Account is the node's owner.
	Account offpeak.AccountID
	// Boot is the clock that nobody sets, Now the owner's.
	Boot func() time.Duration
	Now  func() time.Time
	// Ask asks the hub what the node brought; today is when the owner's day began.
	Ask func(ctx context.Context, today time.Time) (wire.Earnings, error)
	Log *slog.Logger
}

// Books is what one agent keeps.
type Books struct {
	cfg Config
	// asks has the hub asked.
	asks chan struct{}
	// saving is held while the list is changed and written, so that the file has
	// the newest.
	saving sync.Mutex

	mu       sync.Mutex // guards what follows
	ended    []Ended    // the newest first
	earnings Earnings
	// due is when the hub is to be asked again, on the boot clock.
	due     time.Duration
	blocked []offpeak.AccountID
}

// Open goes on with what the agent before this one kept.
func Open(cfg Config) *Books {
	return &Books{cfg: cfg, asks: make(chan struct{}, 1), ended: Read(cfg.Folder)}
}

// Read is the list of ended jobs that a data folder holds. A damaged one is lost:
// what is only for show is nothing to stop for.
func Read(f state.Folder) (list []Ended) {
	if err := f.Ended(&list); err != nil {
		return nil
	}
	return list[:min(len(list), Kept)]
}

// Block notes whose jobs the owner turns away.
func (b *Books) Block(accounts []offpeak.AccountID) {
	b.mu.Lock()
	b.blocked = slices.Clone(accounts)
	b.mu.Unlock()
}

// Class is what an account is to the node's owner.
func (b *Books) Class(account offpeak.AccountID) string {
	if account == b.cfg.Account {
		return ClassSelf
	}
	return ClassOther
}

// Add notes an attempt that has ended now.
func (b *Books) Add(e Ended) {
	e.At, e.Class = b.cfg.Now().UTC(), b.Class(e.Account)
	b.saving.Lock()
	defer b.saving.Unlock()
	b.mu.Lock()
	list := slices.Insert(slices.Clone(b.ended), 0, e)
	list = list[:min(len(list), Kept)]
	b.ended = list
	if e.Class != ClassSelf {
		// It may have brought something.
		b.due = 0
	}
	b.mu.Unlock()
	if err := b.cfg.Folder.SaveEnded(list); err != nil {
		b.cfg.Log.Warn("keep the list of ended jobs", "error", err)
	}
}

// Run asks the hub whenever somebody looked at what is old, until ctx is done.
func (b *Books) Run(ctx context.Context) error {
	for {
		select {
		case <-b.asks:
		case <-ctx.Done():
			return ctx.Err()
		}
		now := b.cfg.Now()
		got, err := b.cfg.Ask(ctx, time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location()))
		b.mu.Lock()
		b.due = b.cfg.Boot() + retry
		switch {
		case err == nil:
			b.earnings = Earnings{Earnings: &got, Heard: now.UTC()}
			b.due = b.cfg.Boot() + fresh
		case errors.Is(err, offpeak.ErrNotFound):
			b.earnings.Problem = "this hub does not tell: it is of an older version"
		default:
			b.earnings.Problem = err.Error()
		}
		b.mu.Unlock()
	}
}

// Shown is what a status says of the books.
type Shown struct {
	Account  offpeak.AccountID
	Blocked  []offpeak.AccountID
	Earnings Earnings
	Ended    []Ended
}

// Show returns what is known, and has the hub asked for what is old.
func (b *Books) Show() Shown {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.cfg.Boot(); now >= b.due {
		select {
		case b.asks <- struct{}{}:
			// Who looks meanwhile asks no second time.
			b.due = now + retry
		default:
		}
	}
	return Shown{b.cfg.Account, slices.Clone(b.blocked), b.earnings, slices.Clone(b.ended)}
}
