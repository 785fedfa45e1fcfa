package hardware

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"offpeak"
)

// drmProcesses adds which of our processes hold memory of the devices: what each
// open file of a device tells in /proc (the kernel's drm-usage-stats), and for
// AMD's compute queues what the tree tells of a process.
func drmProcesses(proc string, sys fs.FS, all []sysfsGPU, ours forest) {
	kfd := kfdDevices(sys)
	for pid := range ours {
		files, _ := os.ReadDir(filepath.Join(proc, strconv.Itoa(pid), "fdinfo"))
		held := map[string]offpeak.Bytes{}
		seen := map[string]bool{}
		for _, f := range files {
			data, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "fdinfo", f.Name()))
			if err != nil {
				continue
			}
			c, ok := parseFDInfo(string(data))
			// Descriptors that were duplicated are one client.
			if key := c.slot + " " + c.client; ok && !seen[key] {
				seen[key] = true
				held[c.slot] += c.held
			}
		}
		for id, slot := range kfd {
			data, err := fs.ReadFile(sys, path.Join("class/kfd/kfd/proc", strconv.Itoa(pid), "vram_"+id))
			if err != nil {
				continue
			}
			// Newer kernels tell it in both places.
			if b := amount(string(data), 1); b != nil {
				held[slot] = max(held[slot], *b)
			}
		}
		for i := range all {
			if b, ok := held[all[i].slot]; ok && len(all[i].processes) < maxProcesses {
				all[i].processes = append(all[i].processes, Process{PID: pid, Name: nameOf(proc, pid), VRAM: &b})
			}
		}
	}
}

// client is what one open file of a device tells.
type client struct {
	slot, client string
	held         offpeak.Bytes
}

// parseFDInfo reads the keys that the kernel documents: drm-pdev, drm-client-id,
// and memory by region. What is resident in a region of the device's own counts,
// under its newer or its older name.
func parseFDInfo(text string) (c client, ok bool) {
	resident := map[string]offpeak.Bytes{}
	for line := range strings.Lines(text) {
		key, v, found := strings.Cut(strings.TrimSpace(line), ":")
		if !found {
			continue
		}
		v = strings.TrimSpace(v)
		switch key {
		case "drm-pdev":
			c.slot = v
		case "drm-client-id":
			c.client = v
		default:
			region, newer := strings.CutPrefix(key, "drm-resident-")
			if !newer {
				region, found = strings.CutPrefix(key, "drm-memory-")
			}
			if !found || !strings.HasPrefix(region, "vram") && !strings.HasPrefix(region, "local") {
				continue
			}
			unit := offpeak.Bytes(1)
			switch {
			case strings.HasSuffix(v, "KiB"):
				unit = offpeak.KiB
			case strings.HasSuffix(v, "MiB"):
				unit = offpeak.MiB
			}
			if b := amount(v, unit); b != nil {
				resident[region] = max(resident[region], *b)
			}
		}
	}
	for _, b := range resident {
		c.held = min(c.held+b, offpeak.MaxBytes)
	}
	return c, isSlot(c.slot)
}

// kfdDevices are the PCI addresses of AMD's compute devices by the id that the
// kernel's compute driver has for them.
func kfdDevices(sys fs.FS) map[string]string {
	const nodes = "class/kfd/kfd/topology/nodes"
	entries, _ := fs.ReadDir(sys, nodes)
	out := map[string]string{}
	for _, e := range entries {
		id, err := fs.ReadFile(sys, path.Join(nodes, e.Name(), "gpu_id"))
		if err != nil || len(out) == maxDevices {
			continue
		}
		props, _ := fs.ReadFile(sys, path.Join(nodes, e.Name(), "properties"))
		var at, domain uint64
		for line := range strings.Lines(string(props)) {
			k, v, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, err := strconv.ParseUint(v, 10, 32)
			switch {
			case err != nil:
			case k == "location_id":
				at = n
			case k == "domain":
				domain = n
			}
		}
		if s := strings.TrimSpace(string(id)); s != "0" && s != "" {
			out[s] = slot(domain, at)
		}
	}
	return out
}

// slot writes a PCI address as the kernel does, from its location number: bus,
// device and function in one.
func slot(domain, at uint64) string {
	hex := func(n uint64, digits int) string {
		s := strconv.FormatUint(n, 16)
		for len(s) < digits {
			s = "0" + s
		}
		return s
	}
	return hex(domain, 4) + ":" + hex(at>>8&0xff, 2) + ":" + hex(at>>3&0x1f, 2) + "." + hex(at&7, 1)
}
