package hub_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/blob"
	"offpeak/hub"
	"offpeak/wire"
)

// counting counts the records of a log by message.
type counting struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *counting) Enabled(context.Context, slog.Level) bool { return true }
func (c *counting) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c *counting) WithGroup(string) slog.Handler            { return c }
func (c *counting) Handle(_ context.Context, r slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[r.Message]++
	return nil
}

func (c *counting) count(message string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[message]
}

// put stores bytes as a blob of the account.
func (g *grid) put(data []byte) (offpeak.Hash, error) {
	hash := blob.Sum(data)
	return hash, g.hub.Data().Put(g.t.Context(), g.account, hash, bytes.NewReader(data))
}

// A disk that fills up is told of once, and refuses what would fill it further
// before those that are at work can't finish.
func TestDiskThatFillsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var used atomic.Uint64
		set := func(share float64) {
			used.Store(math.Float64bits(share))
			time.Sleep(61 * time.Second) // the longest between two looks
			synctest.Wait()
		}
		log := &counting{seen: map[string]int{}}
		g := &grid{t: t, cfg: hub.Config{}, log: slog.New(log), disk: func() float64 { return math.Float64frombits(used.Load()) }}
		g.begin()
		const fills, full = "the disk fills up", "the disk is full"
		for _, step := range []struct {
			share                float64
			warns, refuses       bool
			saidFills, saidFulls int
		}{
			{0.80, false, false, 0, 0},
			{0.86, true, false, 1, 0},
			{0.90, true, false, 1, 0},
			{0.98, true, true, 1, 1},
			{0.99, true, true, 1, 1},
			{0.96, true, false, 1, 1},
			{0.50, false, false, 1, 1},
			{0.99, true, true, 2, 2},
			{0.10, false, false, 2, 2},
		} {
			set(step.share)
			c, err := g.hub.Check(t.Context(), false)
			must(t, err)
			if warns := strings.Contains(strings.Join(c.Warnings, " "), "disk"); warns != step.warns || !c.OK {
				t.Errorf("at %v Check says %+v", step.share, c)
			}
			if got := g.metric("offpeak_disk_used_ratio"); math.Abs(got-step.share) > 1e-3 {
				t.Errorf("at %v the metric is %v", step.share, got)
			}
			_, submit := g.hub.Submit(t.Context(), g.op(), g.account, small())
			_, put := g.put([]byte("bytes"))
			for what, err := range map[string]error{"Submit": submit, "PutBlob": put} {
				if step.refuses != errors.Is(err, offpeak.ErrStorage) || !step.refuses && err != nil {
					t.Errorf("at %v %s = %v", step.share, what, err)
				}
				if err != nil && wire.ProblemOf(err).Status != 503 {
					t.Errorf("at %v %s is answered with status %d", step.share, what, wire.ProblemOf(err).Status)
				}
			}
			if a, b := log.count(fills), log.count(full); a != step.saidFills || b != step.saidFulls {
				t.Errorf("at %v it was said %d times that the disk fills up and %d times that it is full, want %d and %d", step.share, a, b, step.saidFills, step.saidFulls)
			}
		}
		g.sound()
		g.stop()
	})
}
