package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
)

// smi makes an nvidia-smi that prints what stands in a file, and fails as the real one
// does while its driver is not up where there is no such file. It returns a function
// that changes what it prints, "" for no driver.
func smi(t *testing.T, g *gridtest.Grid) func(gpus string) {
	t.Helper()
	g.Tools = filepath.Join(g.Dir, "tools")
	says := filepath.Join(g.Tools, "gpus.csv")
	if err := os.MkdirAll(g.Tools, 0o700); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nexec cat " + says + "\n"
	if err := os.WriteFile(filepath.Join(g.Tools, "nvidia-smi"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return func(gpus string) {
		t.Helper()
		if gpus == "" {
			if err := os.Remove(says); err != nil {
				t.Fatal(err)
			}
			return
		}
		next := says + ".next"
		if err := os.WriteFile(next, []byte(gpus), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, says); err != nil {
			t.Fatal(err)
		}
	}
}

// Transient loss of a device: of two idle GPUs one vanishes, then the driver of both.
// Their node says that they are missing and gets no work for them, other work goes on
// there; when they are back it works for them again by itself, as the node that it was,
// and nothing is held against it.
func TestIdleGPUVanishesAndReturns(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	gpus := smi(t, g)
	const big = "GPU-big, NVIDIA GeForce RTX 4090, 24564, 550.54.14, 8.9\n"
	const small = "GPU-small, NVIDIA GeForce GTX 1060 6GB, 6144, 550.54.14, 6.1\n"
	gpus(big + small)
	a := g.StartAgent("a", "", "--gpus", "all", "--look", "200ms")
	has := func(devices, missing int) {
		t.Helper()
		gridtest.Eventually(t, 30*time.Second, fmt.Sprintf("%d GPUs, and %d missing", devices, missing), func() error {
			n := node(t, g, a.Node)
			if said := strings.Count(strings.Join(n.Inventory.Warnings, "\n"), "GPU missing: NVIDIA"); len(n.Inventory.Devices) != devices || said != missing {
				return fmt.Errorf("it has %+v and warns of %q", n.Inventory.Devices, n.Inventory.Warnings)
			}
			return nil
		})
	}
	needs := func(vram offpeak.Bytes) offpeak.JobID {
		t.Helper()
		spec := g.Shell("true")
		spec.Requirements.GPUs = []offpeak.GPURequest{{VRAM: vram}}
		return g.Submit(spec).ID
	}
	works := func(job offpeak.JobID) {
		t.Helper()
		if j := g.WaitState(job, 20*time.Second, offpeak.JobSucceeded); j.Attempt != 1 {
			t.Errorf("it took %d attempts", j.Attempt)
		}
	}
	waits := func(job offpeak.JobID, code offpeak.FitCode) {
		t.Helper()
		e, err := g.Client.Explain(context.Background(), job)
		if err != nil {
			t.Fatal(err)
		}
		if e.State != offpeak.JobQueued || len(e.Causes) == 0 || e.Causes[0].Code != code {
			t.Errorf("the job is %s, kept off by %+v; want %s", e.State, e.Causes, code)
		}
	}
	has(2, 0)
	works(needs(20 * offpeak.GiB))
	gpus(small)
	has(1, 1)
	if out, _, exit := g.CLI("nodes", "show", "a"); exit != 0 || !strings.Contains(out, "GPU missing: NVIDIA GeForce RTX 4090 (GPU-big)") {
		t.Errorf("nodes show says %s", out)
	}
	first := needs(20 * offpeak.GiB)
	works(needs(4 * offpeak.GiB))
	waits(first, offpeak.FitVRAM)
	gpus("")
	has(0, 2)
	second := needs(4 * offpeak.GiB)
	works(g.Submit(g.Shell("true")).ID)
	waits(first, offpeak.FitVRAM)
	waits(second, offpeak.FitVRAM)
	gpus(big + small)
	works(first)
	works(second)
	has(2, 0)
	if n := node(t, g, a.Node); n.Quarantine != nil {
		t.Errorf("the node is quarantined: %+v", n.Quarantine)
	}
	// One that is gone for good keeps nothing from its node's other GPU.
	gpus(small)
	has(1, 1)
	works(needs(4 * offpeak.GiB))
}
