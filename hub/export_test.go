package hub

import (
	"offpeak"
	"offpeak/placement"
)

// SetMetrics has a node measured so. No hub measures speed.
func (h *Hub) SetMetrics(node offpeak.NodeID, m placement.Metrics) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fleet.SetMetrics(node, m)
}
