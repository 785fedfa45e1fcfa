package hardware

import (
	"errors"
	"fmt"
	"io/fs"
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

// sysfs lists AMD's and Intel's devices from the kernel's tree. memory is the
// machine's, of which integrated devices have a share.
func sysfs(sys fs.FS, memory offpeak.Bytes) ([]offpeak.Device, []string) {
	const drm = "class/drm"
	entries, err := fs.ReadDir(sys, drm)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil // no graphics at all
		}
		return nil, []string{fmt.Sprintf("AMD and Intel GPUs are not offered: %v", err)}
	}
	var devices []offpeak.Device
	var warnings []string
	for _, e := range entries {
		if !isCard(e.Name()) || len(devices) == maxDevices {
			continue
		}
		dev := path.Join(drm, e.Name(), "device")
		d, warning := card(sys, dev, memory)
		if warning != "" {
			warnings = append(warnings, e.Name()+": "+warning)
		}
		if d.ID != "" && !slices.ContainsFunc(devices, func(o offpeak.Device) bool { return o.ID == d.ID }) {
			devices = append(devices, d)
		}
	}
	return devices, warnings
}

// card reads one device; without an id it is none of ours.
func card(sys fs.FS, dev string, memory offpeak.Bytes) (d offpeak.Device, warning string) {
	attr := func(name string) string {
		data, err := fs.ReadFile(sys, path.Join(dev, name))
		if err != nil {
			return ""
		}
		return printable(string(data))
	}
	uevent := parseUevent(sys, path.Join(dev, "uevent"))
	slot, number := uevent["PCI_SLOT_NAME"], attr("device")
	switch attr("vendor") {
	case pciAMD:
		d = offpeak.Device{Vendor: "amd", Model: attr("product_name")}
		if d.Model == "" {
			d.Model = "AMD " + number
		}
		vram, err := strconv.ParseUint(attr("mem_info_vram_total"), 10, 64)
		if err != nil {
			return offpeak.Device{}, "its driver does not tell its memory; it is not offered"
		}
		d.VRAM = size(vram)
		// Inside a processor the aperture is small and the rest is the machine's.
		if gtt, err := strconv.ParseUint(attr("mem_info_gtt_total"), 10, 64); err == nil && d.VRAM <= smallAperture && size(gtt) > d.VRAM {
			d.Unified, d.VRAM = true, min(d.VRAM+size(gtt), memory/2)
		}
	case pciIntel:
		d = offpeak.Device{Vendor: "intel", Model: "Intel " + number}
		// The kernel tells the local memory of Intel's cards under this name.
		if local, err := strconv.ParseUint(attr("lmem_total_bytes"), 10, 64); err == nil && local > 0 {
			d.VRAM = size(local)
		} else if vram, err := strconv.ParseUint(attr("tile0/physical_vram_size_bytes"), 0, 64); err == nil && vram > 0 {
			d.VRAM = size(vram)
		} else {
			d.Unified, d.VRAM = true, memory/2
		}
	default:
		return offpeak.Device{}, ""
	}
	d.Driver = uevent["DRIVER"]
	if !isSlot(slot) {
		return offpeak.Device{}, "it has no PCI address; it is not offered"
	}
	d.ID = offpeak.DeviceID("pci-" + slot)
	return d, ""
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
