package hardware

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"offpeak"
)

func capture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseNVIDIA(t *testing.T) {
	for _, c := range []struct {
		name     string
		want     []offpeak.Device
		warnings int
	}{
		{"nvidia-two.csv", []offpeak.Device{
			{ID: "GPU-5f0c5c4e-0d0a-2f6d-9c3b-1a2b3c4d5e6f", Vendor: "nvidia", Model: "NVIDIA GeForce RTX 4090", VRAM: 24564 * offpeak.MiB, Driver: "550.54.14", Compute: "8.9"},
			{ID: "GPU-aa0c5c4e-0d0a-2f6d-9c3b-1a2b3c4d5e6f", Vendor: "nvidia", Model: "NVIDIA GeForce GTX 1060 6GB", VRAM: 6144 * offpeak.MiB, Driver: "550.54.14", Compute: "6.1"},
		}, 0},
		{"nvidia-h200.csv", []offpeak.Device{
			{ID: "GPU-11111111-2222-3333-4444-555555555555", Vendor: "nvidia", Model: "NVIDIA H200", VRAM: 143771 * offpeak.MiB, Driver: "560.35.03", Compute: "9.0"},
		}, 0},
		{"nvidia-na.csv", []offpeak.Device{
			{ID: "GPU-0a0a0a0a-2222-3333-4444-555555555555", Vendor: "nvidia", Model: "NVIDIA GeForce 210", VRAM: 1024 * offpeak.MiB, Driver: "340.108"},
		}, 2},
		{"nvidia-error.csv", nil, 1},
	} {
		got, warnings := parseNVIDIA(capture(t, c.name))
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if len(warnings) != c.warnings {
			t.Errorf("%s: warnings %q", c.name, warnings)
		}
	}
}

func TestSizesAreExact(t *testing.T) {
	for _, gib := range []int64{3, 4, 6, 8, 12, 24, 48, 80, 141} {
		for _, off := range []int64{-1, 0, 1} {
			mib := gib*1024 + off
			line := "GPU-x, Card, " + strconv.FormatInt(mib, 10) + ", 1, 1\n"
			got, _ := parseNVIDIA([]byte(line))
			if len(got) != 1 || got[0].VRAM != offpeak.Bytes(mib)<<20 {
				t.Errorf("%d MiB came as %+v", mib, got)
			}
		}
	}
}

func FuzzParseNVIDIA(f *testing.F) {
	for _, name := range []string{"nvidia-two.csv", "nvidia-h200.csv", "nvidia-na.csv", "nvidia-error.csv"} {
		f.Add(capture(f, name))
	}
	f.Add([]byte("GPU-a, x, 99999999999999999999, 1, 1\nGPU-b, \"x\x1b[2J, 1, 1, 1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		devices, warnings := parseNVIDIA(data)
		seen := map[offpeak.DeviceID]bool{}
		for _, d := range devices {
			if d.ID == "" || seen[d.ID] || d.VRAM < 0 || d.VRAM > offpeak.MaxBytes {
				t.Errorf("%+v", d)
			}
			seen[d.ID] = true
			if d.Model != printable(d.Model) {
				t.Errorf("model %q", d.Model)
			}
		}
		if len(devices) > maxDevices || len(warnings) > maxDevices+1 {
			t.Errorf("%d devices, %d warnings", len(devices), len(warnings))
		}
	})
}

func tool(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-smi")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTool(t *testing.T) {
	path, err := filepath.Abs("testdata/nvidia-two.csv")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, script string
		devices      int
		warning      string
	}{
		{"answers", "cat " + path, 2, ""},
		{"fails", "echo no driver; exit 9", 0, "no driver"},
		{"hangs", "trap '' TERM; sleep 1000 & sleep 1001", 0, "no answer within 2s"},
		{"floods", "yes GPU-x", 0, ""},
		{"is silent", "", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			inv := Probe(context.Background(), Sources{Tool: tool(t, c.script), Sys: t.TempDir(), Folder: t.TempDir()})
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("took %s", took)
			}
			if len(inv.Devices) != c.devices {
				t.Errorf("devices %+v", inv.Devices)
			}
			if c.warning != "" && !strings.Contains(strings.Join(inv.Warnings, "\n"), c.warning) {
				t.Errorf("warnings %q", inv.Warnings)
			}
			if inv.CPU < 1000 || inv.Memory < offpeak.MiB || inv.Disk <= 0 || inv.OS == "" || inv.Arch == "" {
				t.Errorf("%+v", inv)
			}
		})
	}
}

func TestSysfs(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }
	card := func(m fstest.MapFS, name, vendor, device, slot string, more map[string]string) {
		dir := "class/drm/" + name + "/device/"
		m[dir+"vendor"], m[dir+"device"] = file(vendor), file(device)
		m[dir+"uevent"] = file("DRIVER=drv\nPCI_SLOT_NAME=" + slot)
		for k, v := range more {
			m[dir+k] = file(v)
		}
	}
	m := fstest.MapFS{}
	card(m, "card0", pciAMD, "0x744c", "0000:03:00.0", map[string]string{
		"mem_info_vram_total": "25753026560", "mem_info_gtt_total": "33600000000", "product_name": "Radeon RX 7900 XTX",
	})
	card(m, "card1", pciIntel, "0x46a6", "0000:00:02.0", nil)
	card(m, "card2", pciIntel, "0x56a0", "0000:04:00.0", map[string]string{"lmem_total_bytes": "17179869184"})
	card(m, "card3", pciAMD, "0x1638", "0000:05:00.0", map[string]string{
		"mem_info_vram_total": "536870912", "mem_info_gtt_total": "8000000000",
	})
	card(m, "card4", pciAMD, "0x1638", "0000:06:00.0", nil)
	card(m, "card5", "0x10de", "0x2684", "0000:01:00.0", nil)
	card(m, "card6", "0x1a03", "0x2000", "0000:07:00.0", nil)
	card(m, "card7", pciIntel, "0x1", "../../etc", nil)
	card(m, "card0-HDMI-A-1", pciAMD, "0x744c", "0000:03:00.0", nil)
	got, warnings := sysfs(m, 32*offpeak.GiB)
	want := []offpeak.Device{
		{ID: "pci-0000:03:00.0", Vendor: "amd", Model: "Radeon RX 7900 XTX", VRAM: 25753026560, Driver: "drv"},
		{ID: "pci-0000:00:02.0", Vendor: "intel", Model: "Intel 0x46a6", VRAM: 16 * offpeak.GiB, Unified: true, Driver: "drv"},
		{ID: "pci-0000:04:00.0", Vendor: "intel", Model: "Intel 0x56a0", VRAM: 16 * offpeak.GiB, Driver: "drv"},
		{ID: "pci-0000:05:00.0", Vendor: "amd", Model: "AMD 0x1638", VRAM: 536870912 + 8000000000, Unified: true, Driver: "drv"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(warnings) != 2 {
		t.Errorf("warnings %q", warnings)
	}
	if got, warnings := sysfs(fstest.MapFS{}, offpeak.GiB); got != nil || warnings != nil {
		t.Errorf("no graphics: %v, %v", got, warnings)
	}
}
