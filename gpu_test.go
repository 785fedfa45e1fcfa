package offpeak

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestUnitsOfCards is what people write for a "24 GB" card against what such
// cards tell of themselves (field fault 27).
func TestUnitsOfCards(t *testing.T) {
	for _, text := range []string{"24GB", "24GiB", "24576MiB", "24000MB", "24564MiB", "25000MB"} {
		want, err := ParseBytes(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, have := range []Bytes{24564 * MiB, 24576 * MiB} {
			r, o := need(GPURequest{VRAM: want}), idle(gpu("A", have))
			if why := r.Fit("acct_me", "process", o); !why.OK() {
				t.Errorf("%s on a card of %s: %s", text, have, why)
			}
			said := r.Tolerated(&o)
			if (said != "") != (have < want) || (said != "" && !strings.Contains(said, "counts as "+want.String())) {
				t.Errorf("%s on a card of %s says %q", text, have, said)
			}
		}
	}
	if _, err := ParseBytes("24"); err == nil {
		t.Error("24 of nothing was taken")
	}
	// The tolerance ends somewhere, and the reason says where.
	r, o := need(GPURequest{VRAM: 24 * GiB}), idle(gpu("A", 23*GiB))
	if why := r.Fit("acct_me", "process", o); why.String() != "vram: wants 24GiB (23.52GiB with the tolerance of 2 %), has 23GiB on RTX A" {
		t.Errorf("%s", why)
	}
	if said := r.Tolerated(&o); said != "" {
		t.Errorf("a card that does not fit: %q", said)
	}
}

// TestSizesMatchExactly: cards of all sizes, above 4 GiB too, serve what they
// have and nothing that they lack by more than the tolerance (field fault 26).
func TestSizesMatchExactly(t *testing.T) {
	for _, gib := range []Bytes{3, 4, 6, 8, 12, 24, 48, 80, 141} {
		for _, off := range []Bytes{-MiB, 0, MiB} {
			have := gib*GiB + off
			for want, fits := range map[Bytes]bool{have: true, have + have/100: true, have + have/40: false, 1: true} {
				if got := need(GPURequest{VRAM: want}).Fit("acct_me", "process", idle(gpu("A", have))).OK(); got != fits {
					t.Errorf("%s of %s: %v", want, have, got)
				}
			}
		}
	}
}

func TestLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(0, int64(TiB))
		a, b := GPURequest{VRAM: Bytes(size.Draw(t, "a"))}, GPURequest{VRAM: Bytes(size.Draw(t, "b"))}
		if a.VRAM <= b.VRAM && a.Least() > b.Least() {
			t.Fatalf("%d needs %d, %d needs %d", a.VRAM, a.Least(), b.VRAM, b.Least())
		}
		if a.Least() > a.VRAM || a.Least() < a.VRAM*98/100 {
			t.Fatalf("%d needs %d", a.VRAM, a.Least())
		}
	})
}

func TestFitDeviceKinds(t *testing.T) {
	chip := Device{ID: "I", Vendor: "intel", Model: "Intel 0x46a6", VRAM: 57 * GiB, Unified: true, Driver: "i915"}
	apple := Device{ID: "M", Vendor: "apple", Model: "Apple M2 Max", VRAM: 48 * GiB, Unified: true}
	radeon := Device{ID: "R", Vendor: "amd", Model: "RX 7900", VRAM: 24 * GiB, Driver: "amdgpu"}
	old := Device{ID: "O", Vendor: "nvidia", Model: "GTX 1080", VRAM: 8 * GiB, Compute: "6.1", Driver: "470.256.02"}
	card := gpu("A", 8*GiB)
	for _, c := range []struct {
		name string
		have []Device
		want GPURequest
		why  string
	}{
		{"shared memory is not VRAM", []Device{chip, card}, GPURequest{VRAM: 16 * GiB}, "vram: wants 16GiB, has 8GiB on RTX A; 57GiB of main memory on Intel 0x46a6 do not count"},
		{"nor does it do for a GPU of any size", []Device{chip}, GPURequest{}, "unified: wants a GPU with memory of its own, has Intel 0x46a6, which shares the main memory"},
		{"while a game has it", []Device{{ID: "A", Model: "RTX A", VRAM: 13 * GiB, Total: 24 * GiB}}, GPURequest{VRAM: 20 * GiB}, "vram: wants 20GiB, has 13GiB on RTX A while others hold the rest of its 24GiB"},
		{"asked for", []Device{chip, card}, GPURequest{VRAM: 16 * GiB, Kind: GPUUnified}, ""},
		{"either", []Device{chip, card}, GPURequest{VRAM: 16 * GiB, Kind: GPUAny}, ""},
		{"unified where there is none", []Device{card}, GPURequest{Kind: GPUUnified}, "unified: wants a GPU that shares the main memory, has RTX A with memory of its own"},
		{"Apple's are never otherwise, so WithDefaults means that", []Device{apple}, GPURequest{VRAM: 40 * GiB, Vendor: "apple"}, ""},
		{"unless that is insisted on", []Device{apple}, GPURequest{Vendor: "apple", Kind: GPUDiscrete}, "unified: wants a GPU with memory of its own, has Apple M2 Max, which shares the main memory"},
		{"compute capability", []Device{card}, GPURequest{Compute: "8.6"}, ""},
		{"its numbers are not decimals", []Device{{ID: "B", Model: "B200", Compute: "10.0"}}, GPURequest{Compute: "9.0"}, ""},
		{"too low", []Device{old}, GPURequest{Compute: "8.6"}, "compute: wants compute capability 8.6, has 6.1 on GTX 1080"},
		{"unknown", []Device{radeon}, GPURequest{Compute: "8.6"}, "compute: wants compute capability 8.6, has none known on RX 7900"},
		{"not on the one that is large", []Device{gpu("A", 4*GiB), old}, GPURequest{VRAM: 8 * GiB, Compute: "8.6"}, "compute: wants compute capability 8.6, has 6.1 on GTX 1080"},
		{"driver", []Device{card}, GPURequest{Driver: "535.0"}, ""},
		{"the same driver", []Device{card}, GPURequest{Driver: "550.54.14"}, ""},
		{"one newer", []Device{card}, GPURequest{Driver: "550.54.15"}, "gpu_driver: wants GPU driver 550.54.15, has 550.54.14 on RTX A"},
		{"too old", []Device{old}, GPURequest{Driver: "535"}, "gpu_driver: wants GPU driver 535, has 470.256.02 on GTX 1080"},
		{"a driver without numbers", []Device{radeon}, GPURequest{Driver: "1"}, "gpu_driver: wants GPU driver 1, has amdgpu on RX 7900"},
	} {
		r, o := Spec{Requirements: need(c.want)}.WithDefaults().Requirements, idle(c.have...)
		if why := r.Fit("acct_me", "process", o); why.String() != c.why {
			t.Errorf("%s: %q, want %q", c.name, why, c.why)
		}
		if r.Fits("acct_me", "process", &o) != (c.why == "") {
			t.Errorf("%s: Fits differs", c.name)
		}
	}
}

// TestTwoDifferentCards is field fault 31: what two cards can serve together,
// and which of them is short.
func TestTwoDifferentCards(t *testing.T) {
	o := idle(gpu("A", 24*GiB), gpu("B", 16*GiB))
	for _, c := range []struct {
		want []GPURequest
		why  string
	}{
		{[]GPURequest{{VRAM: 16 * GiB}, {VRAM: 16 * GiB}}, ""},
		{[]GPURequest{{VRAM: 20 * GiB}, {VRAM: 20 * GiB}}, "vram: wants 20GiB, has 16GiB on RTX B"},
		{[]GPURequest{{VRAM: 24 * GiB}, {VRAM: 16 * GiB}}, ""},
		{[]GPURequest{{VRAM: 24 * GB, Vendor: "nvidia", Model: "rtx"}, {VRAM: 16 * GB, Vendor: "amd"}}, "gpu: wants amd, has RTX B"},
	} {
		if why := need(c.want...).Fit("acct_me", "process", o); why.String() != c.why {
			t.Errorf("%+v: %s", c.want, why)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, text := range []string{"", ".", "8.", ".6", "8..6", "8.6.", "a", "8.6a", "-8", "+8", "1e3", "NaN", "1.2.3.4.5", "1234567", "８.6", " 8.6", "8,6"} {
		if v, ok := version(text); ok {
			t.Errorf("%q is %v", text, v)
		}
	}
	for text, want := range map[string][4]uint32{"8": {8}, "8.6": {8, 6}, "31.0.15.3623": {31, 0, 15, 3623}, "535.0": {535}, "08.60": {8, 60}} {
		if v, ok := version(text); !ok || v != want {
			t.Errorf("%q is %v, %v", text, v, ok)
		}
	}
}

// TestFitCodesAreInOrder: the list is the constants, in the order in which they
// stand there.
func TestFitCodesAreInOrder(t *testing.T) {
	var got []string
	for _, c := range FitCodes() {
		got = append(got, string(c))
	}
	if want := constants(t, "fit.go", "FitCode")[1:]; !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// drawNeeds is any job's needs over few values, so that many pairs fit.
func drawNeeds(t *rapid.T) Requirements {
	of := func(label string, values ...string) string { return rapid.SampledFrom(values).Draw(t, label) }
	r := Requirements{
		CPU: rapid.Int64Range(1, 9).Draw(t, "cpu") * 1000, Memory: Bytes(rapid.Int64Range(1, 40).Draw(t, "memory")) * GiB, Disk: Bytes(rapid.Int64Range(0, 3).Draw(t, "disk")) * 40 * GiB,
		OS: of("os", "", "linux"), Arch: of("arch", "", "amd64"), Trust: rapid.SampledFrom([]Trust{TrustAny, TrustAny, TrustOwn}).Draw(t, "trust"),
		Match:    rapid.SliceOfN(rapid.SampledFrom(conditions), 0, 2).Draw(t, "match"),
		Nodes:    rapid.SliceOfN(rapid.SampledFrom([]NodeID{"node_1", "node_2"}), 0, 2).Draw(t, "nodes"),
		NotNodes: rapid.SliceOfN(rapid.SampledFrom([]NodeID{"node_1", "node_2"}), 0, 1).Draw(t, "not nodes"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "gpus") {
		r.GPUs = append(r.GPUs, GPURequest{
			VRAM: Bytes(rapid.Int64Range(0, 26*1024).Draw(t, "vram")) * MiB, Vendor: of("vendor", "", "nvidia"), Model: of("model", "", "rtx"),
			Compute: of("compute", "", "6.1", "8.6"), Driver: of("driver", "", "470", "535.0"), Kind: rapid.SampledFrom([]GPUKind{"", GPUAny, GPUUnified}).Draw(t, "kind"),
		})
	}
	return r
}

// conditions are some that an offer may or may not meet.
var conditions = []string{"rack", "!rack", "rack=7", "rack!=7", "region=fsn", "!metered", "metered!=yes", "region"}

// demand makes requirements ask for more of one thing.
func demand(t *rapid.T, r *Requirements) string {
	r.GPUs, r.Match = slices.Clone(r.GPUs), slices.Clone(r.Match)
	i := 0
	if len(r.GPUs) > 0 {
		i = rapid.IntRange(0, len(r.GPUs)-1).Draw(t, "which")
	}
	kinds := []string{"cpu", "memory", "disk", "match", "not_node", "node", "owner", "trust", "price", "gpu", "where"}
	if len(r.GPUs) > 0 {
		kinds = append(kinds, "vram", "vram", "compute", "driver", "kind", "vendor", "model")
	}
	what := rapid.SampledFrom(kinds).Draw(t, "more")
	switch what {
	case "cpu":
		r.CPU += rapid.Int64Range(0, 4000).Draw(t, "by")
	case "memory":
		r.Memory += Bytes(rapid.Int64Range(0, int64(8*GiB)).Draw(t, "by"))
	case "disk":
		r.Disk += Bytes(rapid.Int64Range(0, int64(80*GiB)).Draw(t, "by"))
	case "match":
		r.Match = append(r.Match, rapid.SampledFrom(conditions).Draw(t, "condition"))
	case "where":
		r.Where = map[string]string{"rack": "7"}
	case "not_node":
		r.NotNodes = append(slices.Clone(r.NotNodes), "node_1")
	case "node":
		if len(r.Nodes) == 0 {
			r.Nodes = []NodeID{"node_2"}
		} else {
			r.Nodes = r.Nodes[:1]
		}
	case "owner":
		r.NotAccounts = []AccountID{"acct_owner"}
	case "trust":
		r.Trust = TrustOwn
	case "price":
		r.MaxPrice = price(300_000)
	case "gpu":
		r.GPUs = append(r.GPUs, GPURequest{})
	case "vram":
		r.GPUs[i].VRAM += Bytes(rapid.Int64Range(0, int64(2*GiB)).Draw(t, "by"))
	case "compute":
		r.GPUs[i].Compute = "9.0"
	case "driver":
		r.GPUs[i].Driver = "600"
	case "kind":
		if r.GPUs[i].Kind == GPUAny {
			r.GPUs[i].Kind = rapid.SampledFrom([]GPUKind{GPUDiscrete, GPUUnified}).Draw(t, "to")
		}
	case "vendor":
		r.GPUs[i].Vendor = "nvidia"
	case "model":
		r.GPUs[i].Model = "rtx 40"
	}
	return what
}

// TestMoreDemandingNeverFitsMore: what fits a job that asks for more fits the
// job that asks for less.
func TestMoreDemandingNeverFitsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawNeeds(t)
		more := r
		what := demand(t, &more)
		var devices []Device
		for i := range rapid.IntRange(0, 4).Draw(t, "devices") {
			devices = append(devices, Device{
				ID: DeviceID(fmt.Sprint("d", i)), VRAM: Bytes(rapid.Int64Range(0, 26*1024).Draw(t, "has vram")) * MiB,
				Vendor: rapid.SampledFrom([]string{"nvidia", "amd"}).Draw(t, "has vendor"), Model: rapid.SampledFrom([]string{"RTX 4090", "RTX 3060", "RX"}).Draw(t, "has model"),
				Compute: rapid.SampledFrom([]string{"", "6.1", "8.9", "9.0"}).Draw(t, "has compute"), Driver: rapid.SampledFrom([]string{"amdgpu", "470.1", "601"}).Draw(t, "has driver"),
				Unified: rapid.IntRange(0, 3).Draw(t, "unified") == 0,
			})
		}
		o := idle(devices...)
		o.Labels = rapid.SampledFrom([]map[string]string{nil, {"rack": "7"}, {"rack": "8", "metered": "yes"}}).Draw(t, "labels")
		for _, account := range []AccountID{"acct_me", "acct_owner"} {
			before, after := r.Fit(account, "process", o), more.Fit(account, "process", o)
			if after.OK() && !before.OK() {
				t.Fatalf("more %s fits, before: %s", what, before)
			}
			if r.Fits(account, "process", &o) != before.OK() {
				t.Fatalf("Fits differs from %s", before)
			}
			if !before.OK() && before.Code != FitLabel && before.Want == "" {
				t.Fatalf("%s says nothing", before.Code)
			}
		}
	})
}
