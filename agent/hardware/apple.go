package hardware

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"offpeak"
)

// apple asks macOS. Chips of Apple's work in the main memory; it does not tell
// what they do.
type apple struct {
	tool   tool
	memory offpeak.Bytes
}

func (a *apple) look(ctx context.Context, _ forest) ([]found, []string, error) {
	if _, ok := a.tool.there(); !ok {
		return nil, nil, nil
	}
	out, err := a.tool.output(ctx, "SPDisplaysDataType", "-json")
	if err != nil {
		return nil, nil, fmt.Errorf("the GPUs of Apple's are not offered: %w", err)
	}
	return parseApple(out, a.memory)
}

// parseApple reads the JSON of system_profiler SPDisplaysDataType. memory is the
// machine's.
func parseApple(out []byte, memory offpeak.Bytes) (all []found, warnings []string, err error) {
	var said struct {
		GPUs []struct {
			Name   string `json:"_name"`
			Model  string `json:"sppci_model"`
			Vendor string `json:"spdisplays_vendor"`
			Metal  string `json:"spdisplays_mtlgpufamilysupport"`
			VRAM   string `json:"spdisplays_vram"`
			Shared string `json:"spdisplays_vram_shared"`
			Device string `json:"spdisplays_device-id"`
			Kind   string `json:"sppci_device_type"`
		} `json:"SPDisplaysDataType"`
	}
	if err := json.Unmarshal(jsonOf(out), &said); err != nil {
		return nil, nil, fmt.Errorf("the GPUs of Apple's are not offered: system_profiler says what can't be read: %s", printable(err.Error()))
	}
	for i, g := range said.GPUs {
		if len(all) == maxDevices {
			break
		}
		d := found{device: offpeak.Device{ID: offpeak.DeviceID(fmt.Sprintf("metal-%d", i)), Model: printable(g.Model)}}
		if d.device.Model == "" {
			d.device.Model = printable(g.Name)
		}
		vendor := strings.ToLower(g.Vendor)
		for _, v := range []string{"apple", "amd", "intel", "nvidia"} {
			if strings.Contains(vendor, v) {
				d.device.Vendor = v
			}
		}
		if metal := printable(strings.TrimPrefix(g.Metal, "spdisplays_metal")); metal != "" {
			d.device.Compute = metal
		}
		own := appleSize(g.VRAM)
		switch {
		case d.device.Vendor == "apple" || g.Shared != "":
			d.device.Unified, d.device.VRAM = true, memory/2
		case own != nil && *own > 0 && d.device.Vendor != "":
			d.device.VRAM = *own
		default:
			warnings = append(warnings, fmt.Sprintf("%s does not tell its memory; it is not offered", d.device.Model))
			continue
		}
		all = append(all, d)
	}
	return all, warnings, nil
}

// appleSize reads "8 GB", which are GiB, or "1536 MB".
func appleSize(s string) *offpeak.Bytes {
	n, unit, _ := strings.Cut(strings.TrimSpace(s), " ")
	switch unit {
	case "GB":
		return amount(n, offpeak.GiB)
	case "MB":
		return amount(n, offpeak.MiB)
	}
	return nil
}
