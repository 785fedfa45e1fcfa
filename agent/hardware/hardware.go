// Package hardware finds out what a machine has and what its GPUs do now: CPU,
// memory, disk, and of each GPU its memory, who holds it, heat, power, use and
// throttling.
//
// Each source has a file of its own with a parser that is pure over captured
// output, and a reader that brings that output in bounded time: a driver that
// hangs costs its devices and a warning, never the agent. Sizes are 64-bit
// bytes throughout. The package must not know what the grid does with what it
// finds. Probe keeps no state and may be called from any goroutine; a Meter
// remembers what steadies its answers and may be, too. It is tested over
// captures in testdata and over made-up trees of /sys.
//
// The sources: NVIDIA by nvidia-smi; AMD and Intel by the kernel's tree, and
// rocm-smi or amd-smi where that tells of no AMD; Apple by system_profiler, AMD
// and Intel on Windows by the registry; and for tests and demos, made-up devices
// in a folder (fake.go).
//
// Why not NVML: offpeak is one static binary, and a static binary can't load a
// shared library. Doing so without cgo (purego) links the whole program to the
// system's loader and libc, and a child of the same binary is as static as its
// parent. nvidia-smi reads the same library, comes with every driver, and when
// the library hangs in the kernel it is the tool that hangs and not the agent.
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
	// Proc is where /proc is found; "" is /proc.
	Proc string
	// Tools is a folder in which vendors' tools are looked for instead of PATH.
	Tools string
	// Env is the environment of the tools; nil is the agent's own.
	Env []string
	// Fake is a folder of made-up devices, beside which no other counts; "" is
	// none. For tests and demos.
	Fake string
}

// Probe looks at everything but the devices, which are a Meter's. What can't be
// read is left out and warned of in the inventory's warnings. It fills in the
// machine's part of the inventory: name, system, CPU, memory and disk.
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
	return inv
}

// size bounds what a driver says to what the grid can count.
func size(n uint64) offpeak.Bytes { return offpeak.Bytes(min(n, uint64(offpeak.MaxBytes))) }
