// Package hardware finds out what a machine has: CPU, memory, disk and GPUs.
//
// Each source has a file of its own with a parser that is pure over captured
// output, and a reader that brings that output in bounded time: a driver that
// hangs costs its devices and a warning, never the agent. Sizes are 64-bit
// bytes throughout. The package must not know what the grid does with what it
// finds. It keeps no state; Probe may be called from any goroutine. It is
// tested over captures in testdata and over made-up trees of /sys.
package hardware

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/mem"

	"offpeak"
)

// Sources say where to look. The zero value is this machine.
type Sources struct {
	// Folder is where jobs will lie: the disk that counts.
	Folder string
	// Sys is where /sys is found; "" is /sys.
	Sys string
	// Tool is the path of nvidia-smi; "" looks in PATH.
	Tool string
	// Env is the environment of the tool; nil is the agent's own.
	Env []string
}

// Probe looks at everything once. What can't be read is left out and warned of
// in the inventory's warnings. It fills in the machine's part of the
// inventory: name, system, CPU, memory, disk and devices.
func Probe(ctx context.Context, src Sources) offpeak.Inventory {
	inv := offpeak.Inventory{OS: runtime.GOOS, Arch: runtime.GOARCH}
	warn := func(format string, args ...any) { inv.Warnings = append(inv.Warnings, fmt.Sprintf(format, args...)) }
	var err error
	if inv.Hostname, err = os.Hostname(); err != nil {
		warn("hostname: %v", err)
	}
	// What this process may use, which in a container is less than there is.
	inv.CPU = int64(runtime.NumCPU()) * 1000
	if infos, err := cpu.InfoWithContext(ctx); err == nil && len(infos) > 0 {
		inv.CPUModel = strings.TrimSpace(infos[0].ModelName)
	}
	if vm, err := mem.VirtualMemoryWithContext(ctx); err != nil {
		warn("memory: %v", err)
	} else {
		inv.Memory = size(vm.Total)
	}
	if src.Folder != "" {
		if u, err := disk.UsageWithContext(ctx, src.Folder); err != nil {
			warn("disk of %s: %v", src.Folder, err)
		} else {
			inv.Disk = size(u.Free)
		}
	}
	devices, warnings := nvidia(ctx, src)
	inv.Devices = append(inv.Devices, devices...)
	inv.Warnings = append(inv.Warnings, warnings...)
	if src.Sys == "" {
		src.Sys = "/sys"
	}
	devices, warnings = sysfs(os.DirFS(src.Sys), inv.Memory)
	inv.Devices = append(inv.Devices, devices...)
	inv.Warnings = append(inv.Warnings, warnings...)
	return inv
}

// size bounds what a driver says to what the grid can count.
func size(n uint64) offpeak.Bytes { return offpeak.Bytes(min(n, uint64(offpeak.MaxBytes))) }
