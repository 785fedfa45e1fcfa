package hardware

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"offpeak"
)

// The PCI vendor numbers of those who make GPUs. NVIDIA's are asked for by
// their own tool, which knows what the kernel does not tell.
const (
	pciAMD   = "0x1002"
	pciIntel = "0x8086"
)

// smallAperture is the most memory that an AMD chip inside a processor sets
// aside for itself on the machines we know; from there on it is a card.
const smallAperture = 2 * offpeak.GiB

// isCard tells a card from its connectors and render nodes.
func isCard(name string) bool {
	n, ok := strings.CutPrefix(name, "card")
	_, err := strconv.ParseUint(n, 10, 16)
	return ok && err == nil
}

// isSlot tells a PCI address, 0000:03:00.0.
func isSlot(s string) bool {
	if len(s) < len("0000:00:00.0") {
		return false
	}
	for i, c := range []byte(s) {
		if !strings.ContainsRune("0123456789abcdef:.", rune(c)) || i > 16 {
			return false
		}
	}
	return strings.Count(s, ":") == 2 && strings.Count(s, ".") == 1
}

// kernel asks the kernel's tree for AMD's and Intel's devices.
type kernel struct {
	src    *Sources
	memory offpeak.Bytes
	// names are the models by device id, read once.
	names map[offpeak.DeviceID]string
	// amd says that the last look found devices of AMD's.
	amd bool
}

func (k *kernel) look(_ context.Context, ours forest) ([]found, []string, error) {
	all, warnings, err := sysfs(os.DirFS(k.src.Sys), k.memory)
	for i := range all {
		d := &all[i]
		if _, known := k.names[d.device.ID]; !known {
			k.names[d.device.ID] = model(nameFiles, d.pci)
		}
		if name := k.names[d.device.ID]; name != "" && d.unnamed {
			d.device.Model = name
		}
	}
	if len(all) > 0 && len(ours) > 0 {
		drmProcesses(k.src.Proc, os.DirFS(k.src.Sys), all, ours)
	}
	out := make([]found, len(all))
	k.amd = false
	for i := range all {
		out[i] = all[i].found
		k.amd = k.amd || all[i].pci.vendor == pciAMD
	}
	return out, warnings, err
}

// sysfsGPU is one device of the tree.
type sysfsGPU struct {
	found
	slot string
	pci  pciID
	// unnamed says that the kernel tells a number for a name.
	unnamed bool
}

// sysfs lists AMD's and Intel's devices from the kernel's tree. memory is the
// machine's, of which integrated devices have a share.
func sysfs(sys fs.FS, memory offpeak.Bytes) (devices []sysfsGPU, warnings []string, err error) {
	const drm = "class/drm"
	entries, err := fs.ReadDir(sys, drm)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil // no graphics at all
	}
	if err != nil {
		return nil, nil, fmt.Errorf("AMD and Intel GPUs are not offered: %w", err)
	}
	for _, e := range entries {
		if !isCard(e.Name()) || len(devices) == maxDevices {
			continue
		}
		d, warning := card(sys, path.Join(drm, e.Name()), memory)
		if warning != "" {
			warnings = append(warnings, e.Name()+": "+warning)
		}
		if d.device.ID != "" && !slices.ContainsFunc(devices, func(o sysfsGPU) bool { return o.device.ID == d.device.ID }) {
			devices = append(devices, d)
		}
	}
	return devices, warnings, nil
}

// card reads one device; without an id it is none of ours.
func card(sys fs.FS, dir string, memory offpeak.Bytes) (d sysfsGPU, warning string) {
	attr := func(name string) string {
		data, err := fs.ReadFile(sys, path.Join(dir, "device", name))
		if err != nil {
			return ""
		}
		return printable(string(data))
	}
	uevent := parseUevent(sys, path.Join(dir, "device/uevent"))
	d.slot = uevent["PCI_SLOT_NAME"]
	d.pci = pciID{attr("vendor"), attr("device"), attr("revision")}
	switch d.pci.vendor {
	case pciAMD:
		d.device = offpeak.Device{Vendor: "amd", Model: attr("product_name")}
		total := amount(attr("mem_info_vram_total"), 1)
		if total == nil {
			return sysfsGPU{}, "its driver does not tell its memory; it is not offered"
		}
		d.device.VRAM, d.used = *total, inUse(*total, amount(attr("mem_info_vram_used"), 1), nil)
		// Inside a processor the aperture is small and the rest is the machine's.
		if gtt := amount(attr("mem_info_gtt_total"), 1); gtt != nil && *total <= smallAperture && *gtt > *total {
			d.device.Unified, d.device.VRAM, d.used = true, min(*total+*gtt, memory/2), nil
		}
		d.utilisation = number(attr("gpu_busy_percent"))
		// The runtime's name for it: what ROCR_VISIBLE_DEVICES takes.
		if id := attr("unique_id"); isHex(id) && strings.Trim(id, "0") != "" {
			d.device.ID = offpeak.DeviceID("GPU-" + id)
		}
	case pciIntel:
		d.device = offpeak.Device{Vendor: "intel"}
		// The kernel tells the local memory of Intel's cards under these names: i915,
		// and xe for each of its tiles.
		if local := amount(attr("lmem_total_bytes"), 1); local != nil && *local > 0 {
			d.device.VRAM = *local
		} else if vram := tiles(attr); vram > 0 {
			d.device.VRAM = vram
		} else {
			d.device.Unified, d.device.VRAM = true, memory/2
		}
		d.throttled = intelThrottle(sys, dir)
	default:
		return sysfsGPU{}, ""
	}
	if d.device.Model == "" {
		d.unnamed = true
		d.device.Model = map[string]string{pciAMD: "AMD ", pciIntel: "Intel "}[d.pci.vendor] + d.pci.device
	}
	d.temperature, d.power = hwmon(sys, path.Join(dir, "device/hwmon"))
	d.device.Driver = uevent["DRIVER"]
	if !isSlot(d.slot) {
		return sysfsGPU{}, "it has no PCI address; it is not offered"
	}
	if d.device.ID == "" {
		d.device.ID = offpeak.DeviceID("pci-" + d.slot)
	}
	return d, ""
}

func isHex(s string) bool {
	_, err := strconv.ParseUint(s, 16, 64)
	return err == nil && len(s) == 16
}

// tiles sums the memory of the tiles of a card under xe.
func tiles(attr func(string) string) (sum offpeak.Bytes) {
	for i := range 8 {
		n, err := strconv.ParseUint(attr(fmt.Sprintf("tile%d/physical_vram_size_bytes", i)), 0, 64)
		if err != nil {
			break
		}
		sum = min(sum+size(n), offpeak.MaxBytes)
	}
	return sum
}

// hwmon reads the hottest of a device's sensors, and what power it takes.
func hwmon(sys fs.FS, dir string) (temperature, power *float64) {
	read := func(name string, scale float64) *float64 {
		data, err := fs.ReadFile(sys, name)
		if err != nil {
			return nil
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return nil
		}
		v := float64(n) / scale
		return &v
	}
	monitors, _ := fs.ReadDir(sys, dir)
	for _, m := range monitors {
		for i := range 4 {
			t := read(path.Join(dir, m.Name(), fmt.Sprintf("temp%d_input", i+1)), 1000)
			if t != nil && (temperature == nil || *t > *temperature) {
				temperature = t
			}
		}
		for _, name := range []string{"power1_average", "power1_input"} {
			if power == nil {
				power = read(path.Join(dir, m.Name(), name), 1e6)
			}
		}
	}
	return temperature, power
}

// intelThrottle reads why a card runs slower than it could: i915 has files
// gt/gt0/throttle_reason_*, xe device/tile0/gt0/freq0/throttle/reason_*.
func intelThrottle(sys fs.FS, dir string) (out []string) {
	for _, at := range []struct{ dir, prefix string }{
		{path.Join(dir, "gt/gt0"), "throttle_reason_"}, {path.Join(dir, "device/tile0/gt0/freq0/throttle"), "reason_"},
	} {
		entries, _ := fs.ReadDir(sys, at.dir)
		for _, e := range entries {
			reason, ok := strings.CutPrefix(e.Name(), at.prefix)
			data, err := fs.ReadFile(sys, path.Join(at.dir, e.Name()))
			if !ok || err != nil || strings.TrimSpace(string(data)) != "1" {
				continue
			}
			word := ThrottleOther
			switch reason {
			case "status":
				continue
			case "pl1", "pl2", "pl4":
				word = ThrottlePowerCap
			case "thermal", "prochot", "ratl", "vr_thermalert":
				word = ThrottleHeat
			}
			if !slices.Contains(out, word) {
				out = append(out, word)
			}
		}
	}
	return out
}

// parseUevent reads the NAME=value lines of a device.
func parseUevent(sys fs.FS, name string) map[string]string {
	data, err := fs.ReadFile(sys, name)
	if err != nil {
		return nil
	}
	out := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			out[k] = printable(v)
		}
	}
	return out
}
