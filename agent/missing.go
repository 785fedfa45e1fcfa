package agent

import (
	"fmt"
	"maps"
	"slices"

	"offpeak"
)

// missed notes which GPUs are there and warns of those that were and are not. Nothing
// else is made of it: what the inventory leaves out gets no work, and comes back with
// it.
func missed(seen map[offpeak.DeviceID]offpeak.Device, there []offpeak.Device) (warnings []string) {
	now := make(map[offpeak.DeviceID]bool, len(there))
	for _, d := range there {
		seen[d.ID], now[d.ID] = d, true
	}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		if !now[id] {
			warnings = append(warnings, fmt.Sprintf("GPU missing: %s (%s) was there since the agent began; it gets no work, and is offered again by itself when it is back", seen[id].Model, id))
		}
	}
	return warnings
}
