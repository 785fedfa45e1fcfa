// Package underway counts work that is under way, so that somebody can wait for
// all that has begun by now without holding up what begins after.
package underway

import (
	"context"
	"sync"
)

// Work is what is under way. The zero Work has nothing; it is safe for
// concurrent use.
type Work struct {
	mu sync.Mutex
	// since counts what began since the last Wait; nil for nothing.
	since *sync.WaitGroup
}

// Begin notes that a piece of work begins; it is over when end is called, once.
func (w *Work) Begin() (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since == nil {
		w.since = new(sync.WaitGroup)
	}
	w.since.Add(1)
	return w.since.Done
}

// Wait waits until all that had begun is over, or ctx is done. One at a time.
func (w *Work) Wait(ctx context.Context) error {
	w.mu.Lock()
	group := w.since
	w.since = nil
	w.mu.Unlock()
	if group == nil {
		return ctx.Err()
	}
	over := make(chan struct{})
	go func() {
		group.Wait()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
