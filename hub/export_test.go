package hub

import (
	"offpeak/placement"
	"offpeak/placement/queue"
)

// Picture calls fn with the nodes and jobs that the hub knows, and mu held.
func (h *Hub) Picture(fn func(*placement.Fleet, *queue.Queue)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn(h.fleet, h.queue.Queue)
}
