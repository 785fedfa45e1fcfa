package hardware

import (
	"fmt"
	"strings"

	"offpeak"
)

// adapter is one display adapter of Windows's registry. Its size is that of 64
// bits: the other that Windows has ends at 4 GiB.
type adapter struct {
	key, name, match, version string
	memory                    uint64
}

// parseAdapters makes devices of adapters. NVIDIA's are asked for by their own
// tool; memory is the machine's.
func parseAdapters(adapters []adapter, memory offpeak.Bytes) (all []found, warnings []string) {
	for _, a := range adapters {
		match := strings.ToLower(a.match)
		d := found{device: offpeak.Device{ID: offpeak.DeviceID("adapter-" + printable(a.key)), Model: printable(a.name), Driver: printable(a.version)}}
		switch {
		case strings.Contains(match, "ven_1002"):
			d.device.Vendor = "amd"
		case strings.Contains(match, "ven_8086"):
			d.device.Vendor = "intel"
		default:
			continue
		}
		switch d.device.VRAM = size(a.memory); {
		case a.memory == 0:
			warnings = append(warnings, fmt.Sprintf("%s does not tell its memory; it is not offered", d.device.Model))
			continue
		case d.device.VRAM < smallAperture:
			d.device.Unified, d.device.VRAM = true, memory/2
		}
		if len(all) < maxDevices {
			all = append(all, d)
		}
	}
	return all, warnings
}
