package hardware

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

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

// seen is a reading as a table can hold it: 0 is told, -1 is not.
type seen struct {
	Device           offpeak.Device
	Used             offpeak.Bytes
	Heat, Watts, Use float64
	Throttled        string
}

func see(all []found) (out []seen) {
	f := func(p *float64) float64 {
		if p == nil {
			return -1
		}
		return *p
	}
	for _, d := range all {
		s := seen{d.device, -1, f(d.temperature), f(d.power), f(d.utilisation), strings.Join(d.throttled, " ")}
		if d.used != nil {
			s.Used = *d.used
		}
		out = append(out, s)
	}
	return out
}

func nvidias(all []nvidiaGPU) (out []found) {
	for _, d := range all {
		out = append(out, d.found)
	}
	return out
}

const mib = offpeak.MiB

func TestParseNVIDIA(t *testing.T) {
	old := slices.Concat(nvidiaColumns[:4], nvidiaColumns[5:10]) // what 390 knows
	for _, c := range []struct {
		name     string
		columns  []string
		want     []seen
		warnings int
	}{
		{"nvidia-two.csv", nvidiaColumns, []seen{
			{offpeak.Device{ID: "GPU-5f0c5c4e-0d0a-2f6d-9c3b-1a2b3c4d5e6f", Vendor: "nvidia", Model: "NVIDIA GeForce RTX 4090", VRAM: 24564 * mib, Driver: "550.54.14", Compute: "8.9"}, 1210 * mib, 41, 28.35, 3, ""},
			{offpeak.Device{ID: "GPU-aa0c5c4e-0d0a-2f6d-9c3b-1a2b3c4d5e6f", Vendor: "nvidia", Model: "NVIDIA GeForce GTX 1060, 6GB", VRAM: 6144 * mib, Driver: "550.54.14", Compute: "6.1"}, 3 * mib, 83, 118.2, 99, "heat"},
		}, 0},
		{"nvidia-h200.csv", nvidiaColumns, []seen{
			{offpeak.Device{ID: "GPU-11111111-2222-3333-4444-555555555555", Vendor: "nvidia", Model: "NVIDIA H200", VRAM: 143771 * mib, Driver: "560.35.03", Compute: "9.0"}, 1 * mib, 30, 75.94, 0, "power_cap"},
		}, 0},
		{"nvidia-na.csv", nvidiaColumns, []seen{
			{offpeak.Device{ID: "GPU-0a0a0a0a-2222-3333-4444-555555555555", Vendor: "nvidia", Model: "NVIDIA GeForce 210", VRAM: 1024 * mib, Driver: "340.108"}, 212 * mib, 52, -1, -1, ""},
			{offpeak.Device{ID: "GPU-0b0b0b0b-2222-3333-4444-555555555555", Vendor: "nvidia", Model: "NVIDIA GB10", VRAM: 16 * offpeak.GiB, Unified: true, Driver: "580.95.05", Compute: "12.1"}, -1, 44, 4.21, 0, ""},
		}, 2},
		{"nvidia-old.csv", old, []seen{
			{offpeak.Device{ID: "GPU-0d0d0d0d-2222-3333-4444-555555555555", Vendor: "nvidia", Model: "GeForce GTX 1070", VRAM: 8112 * mib, Driver: "390.157"}, 455 * mib, 38, -1, 5, ""},
		}, 0},
		{"nvidia-error.csv", nvidiaColumns, nil, 1},
	} {
		got, warnings := parseNVIDIA(capture(t, c.name), c.columns, 32*offpeak.GiB)
		if diff := cmp.Diff(c.want, see(nvidias(got))); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if len(warnings) != c.warnings {
			t.Errorf("%s: warnings %q", c.name, warnings)
		}
	}
}

func TestParseMIG(t *testing.T) {
	gpus, warnings := parseNVIDIA(capture(t, "nvidia-mig.csv"), nvidiaColumns, 0)
	if len(gpus) != 2 || len(warnings) != 0 {
		t.Fatalf("%+v, %q", gpus, warnings)
	}
	got, warnings := parseMIG(gpus, capture(t, "nvidia-mig.list"), capture(t, "nvidia-mig.xml"))
	a100 := func(id, model string, vram offpeak.Bytes) offpeak.Device {
		return offpeak.Device{ID: offpeak.DeviceID(id), Vendor: "nvidia", Model: strings.TrimSpace("NVIDIA A100-SXM4-40GB " + model), VRAM: vram, Driver: "535.129.03", Compute: "8.0"}
	}
	want := []seen{
		{a100("MIG-1fb8b9a1-0000-5a1c-8a1c-000000000001", "MIG 3g.20gb", 19968*mib), 37 * mib, 34, 54.11, -1, ""},
		{a100("MIG-1fb8b9a1-0000-5a1c-8a1c-000000000002", "MIG 1g.5gb", 4864*mib), 12 * mib, 34, 54.11, -1, ""},
		{a100("GPU-d2b1c4e1-0d0a-2f6d-9c3b-1a2b3c4d5e6f", "", 40960*mib), 0, 33, 52.40, 0, ""},
	}
	if diff := cmp.Diff(want, see(nvidias(got))); diff != "" || len(warnings) != 0 {
		t.Errorf("%s, warnings %q", diff, warnings)
	}
	got, warnings = parseMIG(gpus, nil, []byte("<"))
	if len(got) != 1 || len(warnings) != 2 {
		t.Errorf("without a list: %+v, warnings %q", got, warnings)
	}
}

func TestParseNVIDIAProcesses(t *testing.T) {
	b := 8192 * mib
	want := map[offpeak.DeviceID][]Process{"GPU-5f0c5c4e-0d0a-2f6d-9c3b-1a2b3c4d5e6f": {
		{PID: 4711, Name: "/usr/bin/python3", VRAM: &b}, {PID: 4712, Name: `C:\Games\one, two.exe`},
	}}
	if diff := cmp.Diff(want, parseNVIDIAProcesses(capture(t, "nvidia-apps.csv"))); diff != "" {
		t.Error(diff)
	}
}

// Case 26: no size is cut to 32 bits, wherever it comes from.
func TestSizesAreExact(t *testing.T) {
	for _, gib := range []int64{3, 4, 6, 8, 12, 24, 48, 80, 141} {
		for _, off := range []int64{-1, 0, 1} {
			n := gib*1024 + off
			want, mibs, bytes := offpeak.Bytes(n)<<20, strconv.FormatInt(n, 10), strconv.FormatInt(n<<20, 10)
			check := func(source string, all []found, err error) {
				t.Helper()
				if err != nil || len(all) != 1 || all[0].device.VRAM != want || all[0].device.Unified {
					t.Errorf("%s: %d MiB came as %+v, %v", source, n, all, err)
				}
			}
			gpus, _ := parseNVIDIA([]byte("GPU-x, Card, "+mibs+"\n"), nvidiaColumns, 0)
			check("nvidia-smi", nvidias(gpus), nil)
			all, _, err := parseROCm([]byte(`{"card0": {"PCI Bus": "0000:03:00.0", "VRAM Total Memory (B)": "` + bytes + `"}}`))
			check("rocm-smi", all, err)
			all, _, err = parseAMDSMI([]byte(`[{"gpu": 0, "vram": {"size": {"value": `+mibs+`, "unit": "MB"}}}]`), nil)
			check("amd-smi", all, err)
			all, _, err = parseApple([]byte(`{"SPDisplaysDataType": [{"spdisplays_vendor": "sppci_vendor_amd", "spdisplays_vram": "`+mibs+` MB"}]}`), 0)
			check("system_profiler", all, err)
			all, _ = parseAdapters([]adapter{{key: "0000", match: `PCI\VEN_1002&DEV_744C`, memory: uint64(n) << 20}}, 0)
			check("registry", all, nil)
			for _, name := range []string{"lmem_total_bytes", "tile0/physical_vram_size_bytes"} {
				tree := fstest.MapFS{}
				card0(tree, pciIntel, map[string]string{name: bytes})
				cards, _, err := sysfs(tree, 0)
				check(name, kernels(cards), err)
			}
		}
	}
}

func TestParseAMD(t *testing.T) {
	got, warnings, err := parseROCm(capture(t, "rocm-smi.json"))
	want := []seen{
		{offpeak.Device{ID: "GPU-3d4595974090853c", Vendor: "amd", Model: "Radeon RX 7900 XTX", VRAM: 25753026560, Driver: "6.8.5"}, 27856896, 58, 17, 1, ""},
		{offpeak.Device{ID: "GPU-09246c0d31da4c02", Vendor: "amd", Model: "AMD 0x73bf", VRAM: 17163091968, Driver: "6.8.5"}, 17453056, 39, -1, 0, ""},
		{offpeak.Device{ID: "pci-0000:c4:00.0", Vendor: "amd", Model: "Phoenix3", VRAM: 536870912, Unified: true, Driver: "6.8.5"}, 467664896, -1, 7.222, -1, ""},
	}
	if diff := cmp.Diff(want, see(got)); diff != "" || len(warnings) != 1 || err != nil {
		t.Errorf("%s, warnings %q, %v", diff, warnings, err)
	}
	got, warnings, err = parseAMDSMI(capture(t, "amd-smi-static.json"), capture(t, "amd-smi-metric.json"))
	want = []seen{{offpeak.Device{ID: "GPU-d6f3a0b91c2e4477", Vendor: "amd", Model: "AMD Radeon PRO W7900", VRAM: 46064 * mib, Driver: "6.8.5"}, 1064 * mib, 51, 61, 12, ""}}
	if diff := cmp.Diff(want, see(got)); diff != "" || len(warnings) != 1 || err != nil {
		t.Errorf("%s, warnings %q, %v", diff, warnings, err)
	}
}

func TestParseApple(t *testing.T) {
	for _, c := range []struct {
		name     string
		want     []seen
		warnings int
	}{
		{"apple-m2.json", []seen{{offpeak.Device{ID: "metal-0", Vendor: "apple", Model: "Apple M2 Max", VRAM: 16 * offpeak.GiB, Unified: true, Compute: "3"}, -1, -1, -1, -1, ""}}, 0},
		{"apple-intel.json", []seen{
			{offpeak.Device{ID: "metal-0", Vendor: "intel", Model: "Intel UHD Graphics 630", VRAM: 16 * offpeak.GiB, Unified: true}, -1, -1, -1, -1, ""},
			{offpeak.Device{ID: "metal-1", Vendor: "amd", Model: "AMD Radeon Pro 5500M", VRAM: 8 * offpeak.GiB}, -1, -1, -1, -1, ""},
		}, 1},
	} {
		got, warnings, err := parseApple(capture(t, c.name), 32*offpeak.GiB)
		if diff := cmp.Diff(c.want, see(got)); diff != "" || err != nil || len(warnings) != c.warnings {
			t.Errorf("%s: %s, warnings %q, %v", c.name, diff, warnings, err)
		}
	}
}

func TestParseAdapters(t *testing.T) {
	got, warnings := parseAdapters([]adapter{
		{"0000", "NVIDIA GeForce RTX 4090", `pci\ven_10de&dev_2684`, "31.0.15.5161", 24 << 30},
		{"0001", "AMD Radeon RX 7900 XTX", `PCI\VEN_1002&DEV_744C&REV_C8`, "31.0.24002.92", 24 << 30},
		{"0002", "Intel(R) UHD Graphics 770", `PCI\VEN_8086&DEV_4680`, "31.0.101.4502", 128 << 20},
		{"0003", "Intel(R) Arc(TM) A770", `PCI\VEN_8086&DEV_56A0`, "31.0.101.4502", 0},
	}, 32*offpeak.GiB)
	want := []seen{
		{offpeak.Device{ID: "adapter-0001", Vendor: "amd", Model: "AMD Radeon RX 7900 XTX", VRAM: 24 * offpeak.GiB, Driver: "31.0.24002.92"}, -1, -1, -1, -1, ""},
		{offpeak.Device{ID: "adapter-0002", Vendor: "intel", Model: "Intel(R) UHD Graphics 770", VRAM: 16 * offpeak.GiB, Unified: true, Driver: "31.0.101.4502"}, -1, -1, -1, -1, ""},
	}
	if diff := cmp.Diff(want, see(got)); diff != "" || len(warnings) != 1 {
		t.Errorf("%s, warnings %q", diff, warnings)
	}
}

func file(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }

// card puts a device into a tree of /sys; names of more that begin with a slash
// are the card's own files.
func addCard(m fstest.MapFS, name, vendor, device, slot string, more map[string]string) {
	at := "class/drm/" + name
	dir := at + "/device/"
	m[dir+"vendor"], m[dir+"device"] = file(vendor), file(device)
	m[dir+"uevent"] = file("DRIVER=drv\nPCI_SLOT_NAME=" + slot)
	for k, v := range more {
		if strings.HasPrefix(k, "/") {
			m[at+k] = file(v)
		} else {
			m[dir+k] = file(v)
		}
	}
}

func card0(m fstest.MapFS, vendor string, more map[string]string) {
	addCard(m, "card0", vendor, "0x1", "0000:03:00.0", more)
}

func kernels(all []sysfsGPU) (out []found) {
	for _, d := range all {
		out = append(out, d.found)
	}
	return out
}

func TestSysfs(t *testing.T) {
	m := fstest.MapFS{}
	addCard(m, "card0", pciAMD, "0x744c", "0000:03:00.0", map[string]string{
		"mem_info_vram_total": "25753026560", "mem_info_vram_used": "1234567168", "mem_info_gtt_total": "33600000000", "product_name": "Radeon RX 7900 XTX",
		"unique_id": "3d4595974090853c", "gpu_busy_percent": "37",
		"hwmon/hwmon4/temp1_input": "46000", "hwmon/hwmon4/temp2_input": "88500", "hwmon/hwmon4/power1_average": "212000000",
	})
	addCard(m, "card1", pciIntel, "0x46a6", "0000:00:02.0", map[string]string{"/gt/gt0/throttle_reason_status": "1", "/gt/gt0/throttle_reason_pl1": "1", "/gt/gt0/throttle_reason_thermal": "1", "/gt/gt0/throttle_reason_pl2": "0"})
	addCard(m, "card2", pciIntel, "0x56a0", "0000:04:00.0", map[string]string{"lmem_total_bytes": "17179869184", "tile0/gt0/freq0/throttle/reason_vr_tdc": "1"})
	addCard(m, "card3", pciAMD, "0x1638", "0000:05:00.0", map[string]string{
		"mem_info_vram_total": "536870912", "mem_info_gtt_total": "8000000000", "unique_id": "0000000000000000",
	})
	addCard(m, "card4", pciAMD, "0x1638", "0000:06:00.0", nil)
	addCard(m, "card5", "0x10de", "0x2684", "0000:01:00.0", nil)
	addCard(m, "card6", "0x1a03", "0x2000", "0000:07:00.0", nil)
	addCard(m, "card7", pciIntel, "0x1", "../../etc", nil)
	addCard(m, "card8", pciIntel, "0x0bd5", "0000:4d:00.0", map[string]string{"tile0/physical_vram_size_bytes": "0x1000000000", "tile1/physical_vram_size_bytes": "0x1000000000"})
	addCard(m, "card0-HDMI-A-1", pciAMD, "0x744c", "0000:03:00.0", nil)
	got, warnings, err := sysfs(m, 32*offpeak.GiB)
	want := []seen{
		{offpeak.Device{ID: "GPU-3d4595974090853c", Vendor: "amd", Model: "Radeon RX 7900 XTX", VRAM: 25753026560, Driver: "drv"}, 1234567168, 88.5, 212, 37, ""},
		{offpeak.Device{ID: "pci-0000:00:02.0", Vendor: "intel", Model: "Intel 0x46a6", VRAM: 16 * offpeak.GiB, Unified: true, Driver: "drv"}, -1, -1, -1, -1, "power_cap heat"},
		{offpeak.Device{ID: "pci-0000:04:00.0", Vendor: "intel", Model: "Intel 0x56a0", VRAM: 16 * offpeak.GiB, Driver: "drv"}, -1, -1, -1, -1, "other"},
		{offpeak.Device{ID: "pci-0000:05:00.0", Vendor: "amd", Model: "AMD 0x1638", VRAM: 536870912 + 8000000000, Unified: true, Driver: "drv"}, -1, -1, -1, -1, ""},
		{offpeak.Device{ID: "pci-0000:4d:00.0", Vendor: "intel", Model: "Intel 0x0bd5", VRAM: 128 * offpeak.GiB, Driver: "drv"}, -1, -1, -1, -1, ""},
	}
	if diff := cmp.Diff(want, see(kernels(got))); diff != "" {
		t.Error(diff)
	}
	if len(warnings) != 2 || err != nil {
		t.Errorf("warnings %q, %v", warnings, err)
	}
	if got, warnings, err := sysfs(fstest.MapFS{}, offpeak.GiB); got != nil || warnings != nil || err != nil {
		t.Errorf("no graphics: %v, %v, %v", got, warnings, err)
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	ids, amd := filepath.Join(dir, "pci.ids"), filepath.Join(dir, "amdgpu.ids")
	for name, text := range map[string]string{
		amd: "# List of AMDGPU IDs\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n744C,\t0,\tAMD Radeon Pro\n",
		ids: "1002  Advanced Micro Devices, Inc. [AMD/ATI]\n\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]\n\t\t1002 0e3b  RX 7900 XTX\n8086  Intel Corporation\n\t56a0  DG2 [Arc A770]\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		id   pciID
		want string
	}{
		{pciID{"0x1002", "0x744c", "0xc8"}, "AMD Radeon RX 7900 XTX"},
		{pciID{"0x1002", "0x744c", "0x00"}, "AMD Radeon Pro"},
		{pciID{"0x1002", "0x744c", "0xcc"}, "Navi 31 [Radeon RX 7900 XT/7900 XTX]"},
		{pciID{"0x8086", "0x56a0", "0x08"}, "DG2 [Arc A770]"},
		{pciID{"0x8086", "0x744c", "0x08"}, ""},
	} {
		if got := model([]string{amd, ids, filepath.Join(dir, "none")}, c.id); got != c.want {
			t.Errorf("%v is %q, want %q", c.id, got, c.want)
		}
	}
}

func TestParseFDInfo(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want client
		ok   bool
	}{
		"amdgpu": {"pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t12\ndrm-pdev:\t0000:03:00.0\ndrm-memory-vram:\t2097152 KiB\ndrm-memory-gtt: \t4096 KiB\ndrm-memory-cpu: \t0 KiB\n", client{"0000:03:00.0", "12", 2 * offpeak.GiB}, true},
		"newer":  {"drm-client-id:\t7\ndrm-pdev:\t0000:03:00.0\ndrm-total-vram:\t99 MiB\ndrm-resident-vram:\t64 MiB\ndrm-memory-vram:\t65536 KiB\n", client{"0000:03:00.0", "7", 64 * mib}, true},
		"xe":     {"drm-client-id: 3\ndrm-pdev: 0000:04:00.0\ndrm-resident-vram0: 100 KiB\ndrm-resident-vram1: 924 KiB\ndrm-resident-system: 5 GiB\n", client{"0000:04:00.0", "3", mib}, true},
		"i915":   {"drm-client-id: 3\ndrm-pdev: 0000:04:00.0\ndrm-resident-local0: 1048576\n", client{"0000:04:00.0", "3", mib}, true},
		"a file": {"pos:\t10\nflags:\t02\n", client{}, false},
	} {
		if got, ok := parseFDInfo(c.text); got != c.want || ok != c.ok {
			t.Errorf("%s: %+v, %v; want %+v", name, got, ok, c.want)
		}
	}
}

// What our own processes hold of AMD's and Intel's devices.
func TestDRMProcesses(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const fd = "drm-client-id: 1\ndrm-pdev: 0000:03:00.0\ndrm-memory-vram: 1048576 KiB\n"
	write("40/stat", "40 (offpeak) S 1 1 1")
	write("41/stat", "41 (a) b) S 40 1 1")
	write("41/comm", "python3\n")
	write("41/fdinfo/3", fd)
	write("41/fdinfo/4", fd)
	write("42/stat", "42 (game) S 1 1 1")
	write("42/fdinfo/3", fd)
	m := fstest.MapFS{
		"class/kfd/kfd/topology/nodes/0/gpu_id": file("0"), "class/kfd/kfd/topology/nodes/1/gpu_id": file("51110"),
		"class/kfd/kfd/topology/nodes/1/properties": file("cpu_cores_count 0\nlocation_id 768\ndomain 0"), "class/kfd/kfd/proc/41/vram_51110": file("3221225472"),
	}
	addCard(m, "card0", pciAMD, "0x744c", "0000:03:00.0", map[string]string{"mem_info_vram_total": "25753026560", "mem_info_vram_used": "5368709120"})
	all, _, err := sysfs(m, 0)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	ours := plant(proc, []int{40})
	drmProcesses(proc, m, all, ours)
	b := 3 * offpeak.GiB
	if diff := cmp.Diff([]Process{{41, "python3", &b}}, all[0].processes); diff != "" {
		t.Error(diff)
	}
	if got, ok := foreign(&all[0].found, ours); !ok || got != 2*offpeak.GiB {
		t.Errorf("others hold %s, %v; want 2GiB", got, ok)
	}
}

func FuzzParsers(f *testing.F) {
	names, err := filepath.Glob("testdata/*.*")
	if err != nil || len(names) == 0 {
		f.Fatal(names, err)
	}
	for _, name := range names {
		f.Add(capture(f, filepath.Base(name)))
	}
	f.Add([]byte("GPU-a, x, 99999999999999999999, 1, 1, 1, 1, 1, 1, 1, 1, Enabled\nGPU-b, \"x\x1b[2J, 1, 1, 1"))
	f.Add([]byte(`{"card0": {"Unique ID": "0x1", "VRAM Total Memory (B)": "18446744073709551615"}, "card1": null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		gpus, w1 := parseNVIDIA(data, nvidiaColumns, offpeak.GiB)
		for i := range gpus {
			gpus[i].mig = true
		}
		migs, w2 := parseMIG(gpus, data, data)
		rocm, w3, _ := parseROCm(data)
		amd, w4, _ := parseAMDSMI(data, data)
		apple, w5, _ := parseApple(data, offpeak.GiB)
		parseNVIDIAProcesses(data)
		parseFDInfo(string(data))
		tree := fstest.MapFS{}
		card0(tree, pciAMD, map[string]string{"mem_info_vram_total": string(data), "mem_info_vram_used": string(data), "product_name": string(data), "unique_id": string(data), "hwmon/hwmon0/temp1_input": string(data)})
		cards, w6, _ := sysfs(tree, offpeak.GiB)
		for _, all := range [][]found{nvidias(gpus), nvidias(migs), rocm, amd, apple, kernels(cards)} {
			ids := map[offpeak.DeviceID]bool{}
			for _, d := range all {
				if d.device.ID == "" || len(d.device.ID) > 128 || ids[d.device.ID] || d.device.VRAM < 0 || d.device.VRAM > offpeak.MaxBytes || d.used != nil && (*d.used < 0 || *d.used > d.device.VRAM) {
					t.Errorf("%+v", d)
				}
				ids[d.device.ID] = true
				if d.device.Model != printable(d.device.Model) {
					t.Errorf("model %q", d.device.Model)
				}
			}
			if len(all) > maxDevices {
				t.Errorf("%d devices", len(all))
			}
		}
		for _, w := range [][]string{w1, w2, w3, w4, w5, w6} {
			for _, text := range w {
				if len(text) > 2000 || text != strings.ToValidUTF8(text, "") {
					t.Errorf("warning %q", text)
				}
			}
		}
	})
}
