package hardware

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"offpeak"
)

// rocm asks AMD's own tools, where the kernel's tree tells nothing of AMD: both
// read that tree, and take a second of a processor's time for it.
type rocm struct {
	tool, newer tool
	kernel      *kernel
}

func (r *rocm) look(ctx context.Context, _ forest) ([]found, []string, error) {
	if r.kernel.amd {
		return nil, nil, nil
	}
	if _, ok := r.tool.there(); ok {
		out, err := r.tool.output(ctx, "--showproductname", "--showuniqueid", "--showbus", "--showdriverversion", "--showmeminfo", "vram",
			"--showtemp", "--showpower", "--showuse", "--json")
		if err != nil {
			return nil, nil, fmt.Errorf("AMD GPUs are not offered: %w", err)
		}
		return parseROCm(out)
	}
	if _, ok := r.newer.there(); !ok {
		return nil, nil, nil
	}
	static, err := r.newer.output(ctx, "static", "--asic", "--bus", "--vram", "--driver", "--json")
	if err != nil {
		return nil, nil, fmt.Errorf("AMD GPUs are not offered: %w", err)
	}
	// Without it the devices are known all the same.
	metric, err := r.newer.output(ctx, "metric", "--mem-usage", "--temperature", "--power", "--usage", "--json")
	if err != nil {
		metric = nil
	}
	return parseAMDSMI(static, metric)
}

// parseROCm reads the JSON of rocm-smi: an object a card, all values texts, whose
// names differ a little from version to version.
func parseROCm(out []byte) (all []found, warnings []string, err error) {
	var cards map[string]map[string]any
	if err := json.Unmarshal(jsonOf(out), &cards); err != nil {
		return nil, nil, fmt.Errorf("AMD GPUs are not offered: rocm-smi says what can't be read: %s", printable(err.Error()))
	}
	driver := ""
	if s, ok := cards["system"]["Driver version"].(string); ok {
		driver = value(printable(s))
	}
	for _, name := range slices.Sorted(maps.Keys(cards)) {
		card := cards[name]
		get := func(names ...string) string {
			for _, n := range names {
				for k, v := range card {
					if s := printable(fmt.Sprint(v)); strings.EqualFold(k, n) && value(s) != "" {
						return s
					}
				}
			}
			return ""
		}
		if !isCard(name) || len(all) == maxDevices {
			continue
		}
		d := found{device: offpeak.Device{Vendor: "amd", Driver: driver, Compute: ""}}
		d.device.Model = get("Card Series", "Device Name", "Card Model")
		if d.device.Model == "" || strings.HasPrefix(d.device.Model, "0x") {
			d.device.Model = strings.TrimSpace("AMD " + d.device.Model)
		}
		slot := strings.ToLower(get("PCI Bus"))
		switch id := strings.TrimPrefix(get("Unique ID"), "0x"); {
		case id != "" && isHex(pad(id)) && strings.Trim(id, "0") != "":
			d.device.ID = offpeak.DeviceID("GPU-" + strings.ToLower(pad(id)))
		case isSlot(slot):
			d.device.ID = offpeak.DeviceID("pci-" + slot)
		default:
			d.device.ID = offpeak.DeviceID("amd-" + name)
		}
		total := amount(get("VRAM Total Memory (B)"), 1)
		if total == nil || *total == 0 {
			warnings = append(warnings, fmt.Sprintf("%s (%s) does not tell its memory; it is not offered", d.device.Model, d.device.ID))
			continue
		}
		if slices.ContainsFunc(all, func(o found) bool { return o.device.ID == d.device.ID }) {
			warnings = append(warnings, fmt.Sprintf("rocm-smi lists %s twice", d.device.ID))
			continue
		}
		// What sets so little aside shares the machine's memory, and rocm-smi does
		// not tell how much of that it may have.
		d.device.VRAM, d.device.Unified = *total, *total < smallAperture
		d.used = inUse(*total, amount(get("VRAM Total Used Memory (B)"), 1), nil)
		for _, sensor := range []string{"edge", "junction", "memory"} {
			if t := number(get("Temperature (Sensor " + sensor + ") (C)")); t != nil && (d.temperature == nil || *t > *d.temperature) {
				d.temperature = t
			}
		}
		d.power = number(get("Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)"))
		d.utilisation = number(get("GPU use (%)"))
		all = append(all, d)
	}
	return all, warnings, nil
}

// jsonOf is the JSON in what a tool said: warnings may stand before it.
func jsonOf(out []byte) []byte {
	if i := strings.IndexAny(string(out), "{["); i > 0 {
		return out[i:]
	}
	return out
}

// pad makes the 16 digits of it that the runtime has.
func pad(id string) string { return strings.Repeat("0", max(16-len(id), 0)) + id }

// amdValue is a number with its unit, or "N/A".
type amdValue struct {
	Value json.Number `json:"value"`
	Unit  string      `json:"unit"`
}

// UnmarshalJSON takes whatever stands there; what is no number is none.
func (v *amdValue) UnmarshalJSON(data []byte) error {
	type plain amdValue
	if json.Unmarshal(data, (*plain)(v)) != nil {
		*v = amdValue{}
	}
	return nil
}

func (v amdValue) float() *float64 { return number(v.Value.String()) }

func (v amdValue) bytes() *offpeak.Bytes {
	unit := offpeak.MiB // it says MB and means it
	switch strings.ToUpper(v.Unit) {
	case "GB":
		unit = offpeak.GiB
	case "KB":
		unit = offpeak.KiB
	case "B":
		unit = 1
	}
	return amount(v.Value.String(), unit)
}

// amdGPU is what of amd-smi's static and metric counts.
type amdGPU struct {
	GPU  int `json:"gpu"`
	ASIC struct {
		Name    string `json:"market_name"`
		Serial  string `json:"asic_serial"`
		Version string `json:"target_graphics_version"`
	} `json:"asic"`
	Bus struct {
		BDF string `json:"bdf"`
	} `json:"bus"`
	Driver struct {
		Version string `json:"version"`
	} `json:"driver"`
	VRAM struct {
		Size amdValue `json:"size"`
	} `json:"vram"`
	Usage struct {
		Graphics amdValue `json:"gfx_activity"`
	} `json:"usage"`
	Power struct {
		Socket amdValue `json:"socket_power"`
	} `json:"power"`
	Temperature struct {
		Edge    amdValue `json:"edge"`
		Hotspot amdValue `json:"hotspot"`
		Memory  amdValue `json:"mem"`
	} `json:"temperature"`
	Memory struct {
		Total amdValue `json:"total_vram"`
		Used  amdValue `json:"used_vram"`
	} `json:"mem_usage"`
}

// amdList reads a list of GPUs, which newer versions put into an object.
func amdList(out []byte) ([]amdGPU, error) {
	out = jsonOf(out)
	var list []amdGPU
	err := json.Unmarshal(out, &list)
	if err != nil {
		var newer struct {
			GPUs []amdGPU `json:"gpu_data"`
		}
		if json.Unmarshal(out, &newer) == nil {
			return newer.GPUs, nil
		}
	}
	return list, err
}

// parseAMDSMI reads the JSON of amd-smi static and amd-smi metric.
func parseAMDSMI(static, metric []byte) (all []found, warnings []string, err error) {
	list, err := amdList(static)
	if err != nil {
		return nil, nil, fmt.Errorf("AMD GPUs are not offered: amd-smi says what can't be read: %s", printable(err.Error()))
	}
	now, _ := amdList(metric)
	for _, g := range list {
		d := found{device: offpeak.Device{Vendor: "amd", Model: value(printable(g.ASIC.Name)), Driver: value(printable(g.Driver.Version))}}
		if d.device.Model == "" {
			d.device.Model = "AMD"
		}
		slot, id := strings.ToLower(g.Bus.BDF), pad(strings.ToLower(strings.TrimPrefix(g.ASIC.Serial, "0x")))
		switch {
		case isHex(id) && strings.Trim(id, "0") != "":
			d.device.ID = offpeak.DeviceID("GPU-" + id)
		case isSlot(slot):
			d.device.ID = offpeak.DeviceID("pci-" + slot)
		default:
			d.device.ID = offpeak.DeviceID(fmt.Sprintf("amd-%d", g.GPU))
		}
		total := g.VRAM.Size.bytes()
		if total == nil || *total == 0 || len(all) == maxDevices || slices.ContainsFunc(all, func(o found) bool { return o.device.ID == d.device.ID }) {
			if len(warnings) < maxDevices {
				warnings = append(warnings, fmt.Sprintf("%s (%s) does not tell its memory, or is listed twice; it is not offered", d.device.Model, d.device.ID))
			}
			continue
		}
		d.device.VRAM, d.device.Unified = *total, *total < smallAperture
		for _, m := range now {
			if m.GPU != g.GPU {
				continue
			}
			d.used = inUse(*total, m.Memory.Used.bytes(), nil)
			d.power, d.utilisation = m.Power.Socket.float(), m.Usage.Graphics.float()
			for _, t := range []*float64{m.Temperature.Edge.float(), m.Temperature.Hotspot.float(), m.Temperature.Memory.float()} {
				if t != nil && (d.temperature == nil || *t > *d.temperature) {
					d.temperature = t
				}
			}
		}
		all = append(all, d)
	}
	return all, warnings, nil
}
