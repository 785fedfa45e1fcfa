package hardware

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"offpeak"
)

// nvidiaColumns are what nvidia-smi is asked for. Columns that an older or a newer
// driver does not know are left out of the next question.
var nvidiaColumns = []string{
	"uuid", "name", "memory.total", "driver_version", "compute_cap", "memory.used", "memory.free", "temperature.gpu",
	"power.draw", "utilization.gpu", "clocks_throttle_reasons.active", "mig.mode.current",
}

// nvidiaLeast are the columns without which a row tells of no device.
const nvidiaLeast = 3

// nvidia asks nvidia-smi. A machine without it has no NVIDIA devices.
type nvidia struct {
	tool    tool
	columns []string
	memory  offpeak.Bytes
}

func newNVIDIA(src *Sources, memory offpeak.Bytes) *nvidia {
	return &nvidia{tool: tool{name: "nvidia-smi", src: src}, columns: nvidiaColumns, memory: memory}
}

func (n *nvidia) look(ctx context.Context, ours forest) ([]found, []string, error) {
	if _, ok := n.tool.there(); !ok || asleep(n.tool.src.Sys) {
		return nil, nil, nil
	}
	var processes map[offpeak.DeviceID][]Process
	if len(ours) > 0 {
		out, err := n.tool.output(ctx, "--query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name", "--format=csv,noheader,nounits")
		if err == nil {
			processes = parseNVIDIAProcesses(out)
		}
	}
	out, err := n.query(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("NVIDIA GPUs are not offered: %w", err)
	}
	devices, warnings := parseNVIDIA(out, n.columns, n.memory)
	if slices.ContainsFunc(devices, func(d nvidiaGPU) bool { return d.mig }) {
		list, err := n.tool.output(ctx, "-L")
		var all []byte
		if err == nil {
			all, err = n.tool.output(ctx, "-q", "-x")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("MIG devices are not offered: %w", err)
		}
		var w []string
		devices, w = parseMIG(devices, list, all)
		warnings = append(warnings, w...)
	}
	all := make([]found, len(devices))
	for i, d := range devices {
		d.processes = processes[d.device.ID]
		all[i] = d.found
	}
	return all, warnings, nil
}

var unknownColumn = regexp.MustCompile(`Field "([a-z_.]+)" is not a valid field`)

// query asks for all columns, and again without those that are not known.
func (n *nvidia) query(ctx context.Context) ([]byte, error) {
	for {
		out, err := n.tool.output(ctx, "--query-gpu="+strings.Join(n.columns, ","), "--format=csv,noheader,nounits")
		m := unknownColumn.FindSubmatch(out)
		if err == nil || m == nil {
			return out, err
		}
		i := slices.Index(n.columns, string(m[1]))
		if i < nvidiaLeast {
			return nil, err
		}
		n.columns = slices.Concat(n.columns[:i], n.columns[i+1:])
	}
}

// asleep says that all of NVIDIA's devices are powered off by the kernel, as on
// a laptop that works on its other graphics. Asking would wake them, and cost the
// owner's battery.
func asleep(sys string) bool {
	slots, err := filepath.Glob(filepath.Join(sys, "bus/pci/drivers/nvidia/0*"))
	if err != nil || len(slots) == 0 {
		return false
	}
	for _, s := range slots {
		status, err := os.ReadFile(filepath.Join(s, "power/runtime_status"))
		if err != nil || strings.TrimSpace(string(status)) != "suspended" {
			return false
		}
	}
	return true
}

// nvidiaGPU is one row of the answer.
type nvidiaGPU struct {
	found
	mig bool
}

// fields splits a line of nvidia-smi's CSV into n columns: ", " stands between
// them, whatever comma a locale puts into numbers. What is too much belongs to
// the name, which alone may hold it.
func fields(line string, n, name int) []string {
	f := strings.Split(line, ", ")
	if more := len(f) - n; more > 0 {
		f = slices.Concat(f[:name], []string{strings.Join(f[name:name+more+1], ", ")}, f[name+more+1:])
	}
	for i := range f {
		f[i] = printable(f[i])
	}
	return f
}

// parseNVIDIA reads the answer to a question for columns. A row that can't be
// used is warned of and left out; the others count. memory is the machine's.
func parseNVIDIA(out []byte, columns []string, memory offpeak.Bytes) (devices []nvidiaGPU, warnings []string) {
	warn := func(format string, args ...any) {
		if len(warnings) < maxDevices {
			warnings = append(warnings, fmt.Sprintf(format, args...))
		}
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		row := map[string]string{}
		f := fields(line, len(columns), 1)
		if len(f) < nvidiaLeast || !strings.HasPrefix(f[0], "GPU-") || len(f[0]) > 64 {
			warn("nvidia-smi says %q; that GPU is not offered", printable(line))
			continue
		}
		for i, text := range f {
			row[columns[i]] = text
		}
		d := nvidiaGPU{mig: row["mig.mode.current"] == "Enabled"}
		d.device = offpeak.Device{
			ID: offpeak.DeviceID(f[0]), Vendor: "nvidia", Model: value(row["name"]), Driver: value(row["driver_version"]), Compute: value(row["compute_cap"]),
		}
		total := amount(row["memory.total"], offpeak.MiB)
		switch {
		case slices.ContainsFunc(devices, func(o nvidiaGPU) bool { return o.device.ID == d.device.ID }):
			warn("nvidia-smi lists %s twice", d.device.ID)
			continue
		case total == nil && (row["memory.total"] == "[N/A]" || row["memory.total"] == "[Not Supported]") && memory > 0:
			// A chip that shares the machine's memory has none of its own to tell.
			total = new(offpeak.Bytes)
			*total, d.device.Unified = memory/2, true
		case total == nil:
			warn("%s (%s) tells %q MiB of memory; it is not offered", d.device.Model, d.device.ID, row["memory.total"])
			continue
		case len(devices) == maxDevices:
			warn("more than %d GPUs; the rest is not offered", maxDevices)
			return devices, warnings
		}
		d.device.VRAM = *total
		d.used = inUse(*total, amount(row["memory.used"], offpeak.MiB), amount(row["memory.free"], offpeak.MiB))
		d.temperature, d.power, d.utilisation = number(row["temperature.gpu"]), number(row["power.draw"]), number(row["utilization.gpu"])
		d.throttled = nvidiaThrottle(row["clocks_throttle_reasons.active"])
		devices = append(devices, d)
	}
	return devices, warnings
}

// inUse is what programs hold. What a driver keeps for itself beside that is not
// in it where the driver tells it apart: the tolerance for cards that tell a
// little less than their name is for that.
func inUse(total offpeak.Bytes, used, free *offpeak.Bytes) *offpeak.Bytes {
	if used == nil && free != nil {
		rest := max(total-*free, 0)
		used = &rest
	}
	if used != nil && *used > total {
		return &total
	}
	return used
}

// nvidiaThrottle reads the bits of NVML's clocks event reasons. Idle, and clocks
// that somebody has set, are none.
func nvidiaThrottle(s string) (out []string) {
	bits, err := strconv.ParseUint(strings.TrimPrefix(value(s), "0x"), 16, 64)
	if err != nil {
		return nil
	}
	for _, r := range []struct {
		bits uint64
		word string
	}{{0x20 | 0x40, ThrottleHeat}, {0x80, ThrottlePowerLoss}, {0x4, ThrottlePowerCap}} {
		if bits&r.bits != 0 {
			out = append(out, r.word)
		}
	}
	// The hardware's slowdown stands beside its cause; alone it is one of its own.
	if bits&0x8 != 0 && bits&(0x40|0x80) == 0 {
		out = append(out, ThrottleHardware)
	}
	return out
}

// parseNVIDIAProcesses reads which processes compute on which device.
func parseNVIDIAProcesses(out []byte) map[offpeak.DeviceID][]Process {
	all := map[offpeak.DeviceID][]Process{}
	for line := range strings.Lines(string(out)) {
		f := fields(strings.TrimSpace(line), 4, 3)
		if len(f) != 4 {
			continue
		}
		pid, err := strconv.Atoi(f[1])
		id := offpeak.DeviceID(f[0])
		if err != nil || pid <= 0 || len(all[id]) == maxProcesses || len(all) == maxDevices && all[id] == nil {
			continue
		}
		all[id] = append(all[id], Process{PID: pid, VRAM: amount(f[2], offpeak.MiB), Name: value(f[3])})
	}
	return all
}

var (
	listedGPU = regexp.MustCompile(`^GPU \d+: .* \(UUID: (GPU-[0-9a-f-]{1,64})\)`)
	listedMIG = regexp.MustCompile(`^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[0-9a-f-]{1,64})\)`)
)

// migXML is what of `nvidia-smi -q -x` tells the memory of MIG devices.
type migXML struct {
	GPUs []struct {
		UUID string `xml:"uuid"`
		MIGs []struct {
			Index  string `xml:"index"`
			Memory struct {
				Total string `xml:"total"`
				Used  string `xml:"used"`
				Free  string `xml:"free"`
			} `xml:"fb_memory_usage"`
		} `xml:"mig_devices>mig_device"`
	} `xml:"gpu"`
}

// parseMIG puts the MIG devices of GPUs that are divided in their place: list is
// `nvidia-smi -L`, which alone tells their UUIDs, and all is `nvidia-smi -q -x`,
// which alone tells their memory.
func parseMIG(gpus []nvidiaGPU, list, all []byte) (devices []nvidiaGPU, warnings []string) {
	var tree migXML
	d := xml.NewDecoder(bytes.NewReader(all))
	// The document names a type definition that nobody has.
	d.Strict = false
	if err := d.Decode(&tree); err != nil {
		warnings = append(warnings, fmt.Sprintf("nvidia-smi -q -x can't be read: %s", printable(err.Error())))
	}
	type part struct{ profile, index, id string }
	parts := map[string][]part{}
	gpu := ""
	for line := range strings.Lines(string(list)) {
		if m := listedGPU.FindStringSubmatch(line); m != nil {
			gpu = m[1]
		} else if m := listedMIG.FindStringSubmatch(line); m != nil && len(parts[gpu]) < maxDevices {
			parts[gpu] = append(parts[gpu], part{printable(m[1]), m[2], m[3]})
		}
	}
	seen := map[string]bool{}
	for _, g := range gpus {
		if !g.mig {
			devices = append(devices, g)
			continue
		}
		if len(parts[string(g.device.ID)]) == 0 {
			warnings = append(warnings, fmt.Sprintf("%s (%s) is set to be divided (MIG) and is not; it is not offered", g.device.Model, g.device.ID))
		}
		for _, p := range parts[string(g.device.ID)] {
			var total, used, free *offpeak.Bytes
			for _, x := range tree.GPUs {
				for _, m := range x.MIGs {
					if strings.TrimSpace(x.UUID) == string(g.device.ID) && strings.TrimSpace(m.Index) == p.index {
						total, used, free = amount(m.Memory.Total, offpeak.MiB), amount(m.Memory.Used, offpeak.MiB), amount(m.Memory.Free, offpeak.MiB)
					}
				}
			}
			if total == nil || seen[p.id] || len(devices) >= maxDevices {
				warnings = append(warnings, fmt.Sprintf("MIG device %s does not tell its memory; it is not offered", p.id))
				continue
			}
			seen[p.id] = true
			// Heat and power are those of the whole; use is not told.
			part := nvidiaGPU{found: found{device: g.device, used: inUse(*total, used, free), temperature: g.temperature, power: g.power, throttled: g.throttled}}
			part.device.ID, part.device.VRAM = offpeak.DeviceID(p.id), *total
			part.device.Model = strings.TrimSpace(g.device.Model + " MIG " + p.profile)
			devices = append(devices, part)
		}
	}
	if len(warnings) > maxDevices {
		warnings = warnings[:maxDevices]
	}
	return devices, warnings
}
