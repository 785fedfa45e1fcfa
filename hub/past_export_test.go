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

// Weighed is what placement has of a node, known that it has any.
func (h *Hub) Weighed(node offpeak.NodeID) (m placement.Metrics, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m = h.fleet.Metrics(node)
	return m, m != (placement.Metrics{})
}
