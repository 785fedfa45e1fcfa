package offpeak

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func gpu(id string, vram Bytes) Device {
	return Device{ID: DeviceID(id), Vendor: "nvidia", Model: "RTX " + id, VRAM: vram, Compute: "8.9", Driver: "550.54.14"}
}

// idle is an offer of an idle node that fits most jobs.
func idle(devices ...Device) Offer {
	res := Resources{CPU: 8000, Memory: 32 * GiB, Disk: 100 * GiB}
	return Offer{
		Node: "node_1", Account: "acct_owner", Ask: Ask{GPU: 400_000, CPU: 400_000}, Free: res, FreeDevices: devices, Capacity: res, Devices: devices,
		OS: "linux", Arch: "amd64", Region: "fsn", Drivers: []string{"process", "wasm"}, Shared: []string{"process", "wasm"}, Labels: map[string]string{"rack": "7"}, Ready: true,
	}
}

func need(gpus ...GPURequest) Requirements {
	return Requirements{CPU: 1000, Memory: GiB, Disk: GiB, GPUs: gpus}
}

func price(p Price) *Price { return &p }

func TestFitNamesTheFirstFilter(t *testing.T) {
	card := gpu("A", 24*GiB)
	// Each case breaks one filter; the offer of each is otherwise good.
	cases := []struct {
		code FitCode
		job  func(r *Requirements)
		node func(o *Offer)
		want string
	}{
		{FitDriver, nil, func(o *Offer) { o.Drivers = []string{"wasm"} }, "driver: wants process, has wasm"},
		{FitOS, func(r *Requirements) { r.OS = "windows" }, nil, "os: wants windows, has linux"},
		{FitArch, func(r *Requirements) { r.Arch = "arm64" }, nil, "arch: wants arm64, has amd64"},
		{FitNode, func(r *Requirements) { r.Nodes = []NodeID{"node_2", "node_3"} }, nil, "node: wants node_2, node_3, has node_1"},
		{FitOwner, func(r *Requirements) { r.NotAccounts = []AccountID{"acct_owner"} }, nil, "owner: wants a node of another account, has acct_owner"},
		{FitLabel, func(r *Requirements) { r.Where = map[string]string{"rack": "8"} }, nil, "label: wants rack=8, has rack=7"},
		{FitTrust, func(r *Requirements) { r.Trust = TrustOwn }, nil, "trust: wants own, has another account's node"},
		{FitAccount, nil, func(o *Offer) { o.Guests = &Guests{Deny: []AccountID{"acct_me"}} }, "account: wants a node whose owner takes this account's jobs, has an owner who does not"},
		{FitStranger, nil, func(o *Offer) { o.Shared = []string{"wasm"} }, "stranger: wants a node that takes other accounts' process jobs, has its own account's only"},
		{FitPrice, func(r *Requirements) { r.MaxPrice = price(399_999) }, nil, "price: wants 0.399999/h, has 0.40/h"},
		{FitVRAM, func(r *Requirements) { r.GPUs = []GPURequest{{VRAM: 48 * GiB}} }, nil, "vram: wants 48GiB, has 24GiB on RTX A"},
		{FitGPU, func(r *Requirements) { r.GPUs = []GPURequest{{Vendor: "amd"}} }, nil, "gpu: wants amd, has RTX A"},
		{FitCompute, func(r *Requirements) { r.GPUs = []GPURequest{{Compute: "9.0"}} }, nil, "compute: wants compute capability 9.0, has 8.9 on RTX A"},
		{FitGPUDriver, func(r *Requirements) { r.GPUs = []GPURequest{{Driver: "551"}} }, nil, "gpu_driver: wants GPU driver 551, has 550.54.14 on RTX A"},
		{FitCPU, func(r *Requirements) { r.CPU = 8500 }, nil, "cpu: wants 8.5 cores, has 8 cores"},
		{FitMemory, func(r *Requirements) { r.Memory = 64 * GiB }, nil, "memory: wants 64GiB, has 32GiB"},
		{FitDisk, func(r *Requirements) { r.Disk = TiB }, nil, "disk: wants 1TiB, has 100GiB"},
		{FitInUse, nil, func(o *Offer) { o.Ready, o.Why = false, FitInUse }, "in_use"},
		{FitWindow, nil, func(o *Offer) { o.Ready, o.Why = false, FitWindow }, "window: wants a node that is open now, has closed by its owner's hours"},
		{FitBusyGPU, func(r *Requirements) { r.GPUs = []GPURequest{{VRAM: GiB}} }, func(o *Offer) { o.FreeDevices = nil }, "gpu_busy: wants 1 GPU with 1GiB, has no GPU"},
		{FitBusyCPU, nil, func(o *Offer) { o.Free.CPU = 500 }, "cpu_busy: wants 1 core, has 0.5 cores"},
		{FitBusyMemory, nil, func(o *Offer) { o.Free.Memory = MiB }, "memory_busy: wants 1GiB, has 1MiB"},
		{FitBusyDisk, nil, func(o *Offer) { o.Free.Disk = 0 }, "disk_busy: wants 1GiB, has 0B"},
	}
	apply := func(is ...int) (Requirements, Offer) {
		r, o := need(), idle(card)
		for _, i := range is {
			if cases[i].job != nil {
				cases[i].job(&r)
			}
			if cases[i].node != nil {
				cases[i].node(&o)
			}
		}
		return r, o
	}
	if r, o := apply(); !r.Fit("acct_me", "process", o).OK() {
		t.Fatal("a job that fits does not")
	}
	for i, c := range cases {
		r, o := apply(i)
		got := r.Fit("acct_me", "process", o)
		if got.Code != c.code || got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.code, got, c.want)
		}
		// Of two filters the earlier one is named.
		for k := range i {
			devices := []FitCode{FitVRAM, FitGPU, FitCompute, FitGPUDriver, FitBusyGPU}
			if slices.Contains(devices, cases[k].code) && slices.Contains(devices, c.code) || c.code == FitWindow && cases[k].code == FitInUse {
				continue // both set the same
			}
			r, o := apply(k, i)
			if got := r.Fit("acct_me", "process", o); got.Code != cases[k].code {
				t.Errorf("%s and %s: %s", cases[k].code, c.code, got)
			}
		}
	}
}

func TestFitEdges(t *testing.T) {
	fits := func(r Requirements, account AccountID, o Offer) FitCode { return r.Fit(account, "process", o).Code }
	r := need()
	r.Trust = TrustOwn
	if c := fits(r, "acct_owner", idle()); c != FitOK {
		t.Errorf("the owner's own node: %s", c)
	}
	r.Trust = TrustValidated
	if c := fits(r, "acct_me", idle()); c != FitTrust {
		t.Errorf("a node that was not validated: %s", c)
	}
	// A node that shares nothing still serves its own account.
	private := idle()
	private.Shared = nil
	if c := fits(need(), "acct_owner", private); c != FitOK {
		t.Errorf("the owner's job on a node that shares nothing: %s", c)
	}
	if c := need().Fit("acct_me", "wasm", private).Code; c != FitStranger {
		t.Errorf("another's job on a node that shares nothing: %s", c)
	}
	r = need()
	r.MaxPrice = price(400_000)
	if c := fits(r, "acct_me", idle()); c != FitOK {
		t.Errorf("a price at the limit: %s", c)
	}
	r.MaxPrice = price(0)
	if c := fits(r, "acct_me", idle()); c != FitPrice {
		t.Errorf("a limit of nothing: %s", c)
	}
	r = need()
	r.Where = map[string]string{"region": "fsn", "rack": "7"}
	if c := fits(r, "acct_me", idle()); c != FitOK {
		t.Errorf("region and rack: %s", c)
	}
	// A node that is not ready never fits, even if it does not say why.
	o := idle()
	o.Ready = false
	if c := fits(need(), "acct_me", o); c != FitOffline {
		t.Errorf("not ready: %q", c)
	}
	// With two labels wrong the same one is named each time.
	r.Where = map[string]string{"a": "1", "b": "1", "c": "1", "d": "1"}
	for range 50 {
		if why := r.Fit("acct_me", "process", idle()); why.Want != "a=1" {
			t.Fatalf("%s", why)
		}
	}
	// Exactly all of the node, and one more of each.
	r = Requirements{CPU: 8000, Memory: 32 * GiB, Disk: 100 * GiB}
	if c := fits(r, "acct_me", idle()); c != FitOK {
		t.Errorf("all of it: %s", c)
	}
}

func TestFitDevices(t *testing.T) {
	two := []Device{gpu("A", 24*GiB), gpu("B", 16*GiB)}
	amd := Device{ID: "C", Vendor: "amd", Model: "RX 7900 XTX", VRAM: 24 * GiB}
	v := func(sizes ...Bytes) (out []GPURequest) {
		for _, s := range sizes {
			out = append(out, GPURequest{VRAM: s})
		}
		return out
	}
	for _, c := range []struct {
		name string
		have []Device
		want []GPURequest
		ids  string
		why  string
	}{
		{"2×16", two, v(16*GiB, 16*GiB), "A B", ""},
		{"2×20", two, v(20*GiB, 20*GiB), "", "vram: wants 20GiB, has 16GiB on RTX B"},
		{"24+16", two, v(24*GiB, 16*GiB), "A B", ""},
		{"16+24", two, v(16*GiB, 24*GiB), "B A", ""},
		{"small job, small card", two, v(4 * GiB), "B", ""},
		{"24GB on a 24GiB card", two, v(24 * GB), "A", ""},
		{"24GiB on a card that reports less", []Device{gpu("A", 24564*MiB)}, v(24 * GiB), "A", ""},
		{"24GiB on a card that reports too little", []Device{gpu("A", 24084*MiB)}, v(24 * GiB), "", "vram: wants 24GiB (23.52GiB with the tolerance of 2 %), has 24084MiB on RTX A"},
		{"24GB on a card that reports less", []Device{gpu("A", 24564*MiB)}, v(24 * GB), "A", ""},
		{"three of two", two, v(GiB, GiB, GiB), "", "vram: wants 3 GPUs with 1GiB, has 2 GPUs"},
		{"any of none", nil, []GPURequest{{}}, "", "gpu: wants 1 GPU, has no GPU"},
		{"VRAM in a later request of none", nil, []GPURequest{{}, {VRAM: GiB}}, "", "vram: wants 2 GPUs with 1GiB, has no GPU"},
		{"VRAM before vendor", two, []GPURequest{{VRAM: 48 * GiB, Vendor: "amd"}}, "", "vram: wants 48GiB, has 24GiB on RTX A"},
		{"vendor has too little VRAM", []Device{amd, gpu("B", 8*GiB)}, []GPURequest{{VRAM: 16 * GiB, Vendor: "nvidia"}}, "", "vram: wants 16GiB, has 8GiB on RTX B"},
		{"vendor", two, []GPURequest{{VRAM: GiB, Vendor: "amd"}}, "", "gpu: wants amd, has RTX A"},
		{"model, case ignored", append([]Device{amd}, two...), []GPURequest{{Model: "rx 79"}}, "C", ""},
		{"vendor and model", two, []GPURequest{{Vendor: "nvidia", Model: "H100"}}, "", "gpu: wants nvidia H100, has RTX A"},
		{"names make room", []Device{gpu("A", 8*GiB), amd, gpu("B", 24*GiB)}, []GPURequest{{VRAM: 8 * GiB}, {VRAM: 4 * GiB, Vendor: "nvidia"}, {Vendor: "amd"}}, "B A C", ""},
		{"the unnamed one gives way", []Device{gpu("A", 8*GiB), {ID: "C", Vendor: "amd", VRAM: 12 * GiB}, gpu("B", 24*GiB)}, []GPURequest{{VRAM: 8 * GiB}, {VRAM: 4 * GiB, Vendor: "nvidia"}}, "C A", ""},
	} {
		o := idle(c.have...)
		r := need(c.want...)
		if why := r.Fit("acct_me", "process", o); why.String() != c.why {
			t.Errorf("%s: %q, want %q", c.name, why, c.why)
		}
		res, ok := r.Assign(o)
		if ok != (c.why == "") {
			t.Errorf("%s: Assign says %v", c.name, ok)
		}
		if ids := strings.Trim(fmt.Sprint(res.Devices), "[]"); ok && ids != c.ids {
			t.Errorf("%s: assigned %s, want %s", c.name, ids, c.ids)
		}
	}
	// What is merely taken now is named otherwise.
	o := idle(two...)
	o.FreeDevices = two[1:]
	if why := need(v(20*GiB)...).Fit("acct_me", "process", o); why.String() != "gpu_busy: wants 20GiB, has 16GiB on RTX B" || why.Lasting() {
		t.Errorf("%s", why)
	}
}

func TestReasonLasting(t *testing.T) {
	at := slices.Index(FitCodes(), FitOffline)
	lasting := FitCodes()[:at]
	passing := append([]FitCode{FitOK}, FitCodes()[at:]...)
	all := slices.Concat(lasting, passing)
	var got []string
	for _, c := range all {
		got = append(got, string(c))
		if l := (Reason{Code: c}).Lasting(); l != slices.Contains(lasting, c) {
			t.Errorf("%q: Lasting = %v", c, l)
		}
	}
	want := constants(t, "fit.go", "FitCode")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("this test knows %q, the constants are %q", got, want)
	}
}

// TestAssignByBruteForce: devices are assigned if and only if some assignment
// serves all requests, they are distinct, each serves its request, and of all
// assignments none takes less VRAM.
func TestAssignByBruteForce(t *testing.T) {
	size := rapid.SampledFrom([]Bytes{0, 4 * GiB, 8 * GiB, 12 * GiB, 16 * GiB, 24 * GiB})
	vendor := rapid.SampledFrom([]string{"nvidia", "amd"})
	rapid.Check(t, func(r *rapid.T) {
		var have []Device
		for i := range rapid.IntRange(0, 6).Draw(r, "devices") {
			have = append(have, Device{ID: DeviceID(fmt.Sprint("d", i)), Vendor: vendor.Draw(r, "vendor"), Model: "m", VRAM: size.Draw(r, "vram")})
		}
		var want []GPURequest
		for range rapid.IntRange(0, 4).Draw(r, "requests") {
			w := GPURequest{VRAM: size.Draw(r, "at least")}
			if rapid.Bool().Draw(r, "named") {
				w.Vendor = vendor.Draw(r, "wants")
			}
			want = append(want, w)
		}
		least, found := Bytes(0), false
		var try func(n int, used []bool, sum Bytes)
		try = func(n int, used []bool, sum Bytes) {
			if n == len(want) {
				if !found || sum < least {
					least, found = sum, true
				}
				return
			}
			for i, d := range have {
				if used[i] || d.VRAM < want[n].VRAM || (want[n].Vendor != "" && want[n].Vendor != d.Vendor) {
					continue
				}
				used[i] = true
				try(n+1, used, sum+d.VRAM)
				used[i] = false
			}
		}
		try(0, make([]bool, len(have)), 0)
		o := idle(have...)
		res, ok := need(want...).Assign(o)
		why := need(want...).Fit("acct_me", "process", o)
		if ok != found || why.OK() != found {
			r.Fatalf("Assign says %v, Fit %s, there is one: %v", ok, why, found)
		}
		if !ok {
			if why.Want == "" || why.Have == "" || (why.Code != FitVRAM && why.Code != FitGPU) {
				r.Fatalf("reason %+v", why)
			}
			return
		}
		if len(res.Devices) != len(want) {
			r.Fatalf("%d devices for %d requests", len(res.Devices), len(want))
		}
		var sum Bytes
		seen := map[DeviceID]bool{}
		for i, id := range res.Devices {
			k := slices.IndexFunc(have, func(d Device) bool { return d.ID == id })
			if k < 0 || seen[id] || !want[i].serves(&have[k]) {
				r.Fatalf("request %d got %q", i, id)
			}
			seen[id] = true
			sum += have[k].VRAM
		}
		if sum != least {
			r.Fatalf("took %s where %s would do", sum, least)
		}
	})
}

// TestAssignManyDevices: the most requests there may be, on a large node, stay
// cheap even where nothing fits.
func TestAssignManyDevices(t *testing.T) {
	var have []Device
	for i := range 64 {
		have = append(have, Device{ID: DeviceID(fmt.Sprint("d", i)), Vendor: "amd", VRAM: Bytes(i+1) * GiB})
	}
	want := slices.Repeat([]GPURequest{{VRAM: 49 * GiB}}, maxGPUs)
	res, ok := need(want...).Assign(idle(have...))
	if !ok || len(res.Devices) != maxGPUs {
		t.Fatalf("%v, %v", res, ok)
	}
	slices.Sort(res.Devices)
	if res.Devices[0] != "d48" || len(slices.Compact(res.Devices)) != maxGPUs {
		t.Errorf("%v", res.Devices)
	}
	want[0].Vendor = "nvidia"
	if why := need(want...).Fit("acct_me", "process", idle(have...)); why.Code != FitGPU {
		t.Errorf("%s", why)
	}
}

// TestServedIsMatchDevices: the count of devices that Fits makes where all
// requests are alike says what sharing them out one by one says.
func TestServedIsMatchDevices(t *testing.T) {
	size := rapid.SampledFrom([]Bytes{0, 4 * GiB, 8 * GiB, 24 * GiB})
	vendor := rapid.SampledFrom([]string{"nvidia", "NVIDIA", "amd"})
	model := rapid.SampledFrom([]string{"RTX 4090", "rtx 4090", "RTX 3060", "Radeon ẞ"})
	rapid.Check(t, func(t *rapid.T) {
		var have []Device
		for i := range rapid.IntRange(0, 5).Draw(t, "devices") {
			have = append(have, Device{ID: DeviceID(fmt.Sprint("d", i)), Vendor: vendor.Draw(t, "vendor"), Model: model.Draw(t, "model"), VRAM: size.Draw(t, "vram")})
		}
		request := func() GPURequest {
			return GPURequest{
				VRAM: size.Draw(t, "at least"), Vendor: rapid.SampledFrom([]string{"", "", "nvidia", "amd"}).Draw(t, "wants vendor"),
				Model: rapid.SampledFrom([]string{"", "", "4090", "rtx", "ß"}).Draw(t, "wants model"),
			}
		}
		var want []GPURequest
		alike, one := rapid.Bool().Draw(t, "alike"), request()
		for range rapid.IntRange(0, 4).Draw(t, "requests") {
			if !alike {
				one = request()
			}
			want = append(want, one)
		}
		ids, why := matchDevices(want, have)
		if got := served(want, have); got != why.OK() || (got && len(ids) != len(want)) {
			t.Fatalf("%+v of %+v: served says %v, matchDevices %v, %s", want, have, got, ids, why)
		}
		o, r := idle(have...), need(want...)
		if fits := r.Fits("acct_me", "process", &o); fits != r.Fit("acct_me", "process", o).OK() || fits != why.OK() {
			t.Fatalf("%+v of %+v: Fits says %v, Fit %s", want, have, fits, r.Fit("acct_me", "process", o))
		}
	})
}
