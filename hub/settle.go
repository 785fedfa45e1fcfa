package hub

import (
	"context"
	"sync"
	"time"
)

// writes counts the writes that change the picture too, from before they reach
// the store until the picture shows them. Who reads the store to mend the picture
// waits for those that were under way: what they did would be applied a second
// time when they come to apply it themselves.
type writes struct {
	mu sync.Mutex
	// now counts the writes that began since the last wait; nil before the first.
	now *sync.WaitGroup
}

// begin notes that a write begins; it is over when end is called.
func (w *writes) begin() (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now == nil {
		w.now = new(sync.WaitGroup)
	}
	w.now.Add(1)
	return w.now.Done
}

// wait waits until all writes that had begun are over.
func (w *writes) wait(ctx context.Context) error {
	w.mu.Lock()
	group := w.now
	w.now = nil
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

// settleFor bounds a write that goes on without its caller.
const settleFor = 30 * time.Second

// settling is the context of a write that changes the picture too: it goes on
// when its caller hangs up, since what is committed has to be taken over.
func (h *Hub) settling(ctx context.Context) (context.Context, context.CancelFunc) {
	end := h.writes.begin()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleFor)
	return ctx, func() {
		cancel()
		end()
	}
}
