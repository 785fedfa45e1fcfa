package market_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/market"
)

const gib = offpeak.GiB

// now is the present of the tests.
var now = time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)

var (
	accounts = rapid.SampledFrom([]offpeak.AccountID{"acct_a", "acct_b", "acct_c"})
	drivers  = rapid.SampledFrom([]string{"process", "wasm"})
	systems  = rapid.SampledFrom([]string{"linux", "linux", "windows", "darwin", "plan9"})
	arches   = rapid.SampledFrom([]string{"amd64", "amd64", "arm64", "riscv64"})
	regions  = rapid.SampledFrom([]string{"", "eu", "us"})
	racks    = rapid.SampledFrom([]string{"", "1", "2"})
	vendors  = rapid.SampledFrom([]string{"nvidia", "nvidia", "amd", "NVIDIA"})
	models   = rapid.SampledFrom([]string{"RTX 3060", "RTX 4090", "rtx 4090", "Radeon ẞ", "Arc"})
	wanted   = rapid.SampledFrom([]string{"", "", "4090", "rtx", "RTX 3060", "ß"})
)

func drawDevices(t *rapid.T, node int) []offpeak.Device {
	var out []offpeak.Device
	for i := range rapid.IntRange(0, 3).Draw(t, "devices") {
		out = append(out, offpeak.Device{
			ID: offpeak.DeviceID(fmt.Sprint("GPU-", node, "-", i)), Vendor: vendors.Draw(t, "vendor"), Model: models.Draw(t, "model"),
			VRAM:    offpeak.Bytes(rapid.SampledFrom([]int64{4, 8, 24, 300}).Draw(t, "vram"))*gib - offpeak.Bytes(rapid.SampledFrom([]int64{0, 1, 12 << 20, 500 << 20}).Draw(t, "short")),
			Unified: rapid.IntRange(0, 4).Draw(t, "unified") == 0,
			Compute: rapid.SampledFrom([]string{"", "6.1", "8.9"}).Draw(t, "compute"), Driver: rapid.SampledFrom([]string{"amdgpu", "550.54.14"}).Draw(t, "gpu-driver"),
		})
	}
	if len(out) > 1 && rapid.Bool().Draw(t, "alike") {
		for i := range out {
			out[i].Vendor, out[i].Model, out[i].VRAM = out[0].Vendor, out[0].Model, out[0].VRAM
		}
	}
	return out
}

func drawOffer(t *rapid.T, i int) offpeak.Offer {
	price := rapid.Int64Range(0, 5)
	capacity := offpeak.Resources{
		CPU:    rapid.Int64Range(0, 20).Draw(t, "cpu") * 500,
		Memory: offpeak.Bytes(rapid.Int64Range(0, 16).Draw(t, "memory")) * gib,
		Disk:   offpeak.Bytes(rapid.Int64Range(0, 3).Draw(t, "disk")) * 100 * gib,
	}
	o := offpeak.Offer{
		Node: offpeak.NodeID(fmt.Sprintf("node_%03d", i)), Account: accounts.Draw(t, "owner"),
		Ask:      offpeak.Ask{GPU: offpeak.Price(price.Draw(t, "gpu")), CPU: offpeak.Price(price.Draw(t, "plain"))},
		Capacity: capacity, Free: capacity, Devices: drawDevices(t, i),
		OS: systems.Draw(t, "os"), Arch: arches.Draw(t, "arch"), Region: regions.Draw(t, "region"),
		Drivers: rapid.SliceOfDistinct(drivers, rapid.ID[string]).Draw(t, "drivers"),
		Shared:  rapid.SliceOfDistinct(drivers, rapid.ID[string]).Draw(t, "shared"),
		Labels:  map[string]string{"rack": racks.Draw(t, "rack")}, Ready: rapid.IntRange(0, 9).Draw(t, "ready") > 0,
	}
	if rapid.Bool().Draw(t, "metered") {
		o.Labels["metered"] = "yes"
	}
	o.Guests = rapid.SampledFrom([]*offpeak.Guests{nil, nil, {Deny: []offpeak.AccountID{"acct_a"}}, {Allow: []offpeak.AccountID{"acct_a"}}}).Draw(t, "guests")
	o.FreeDevices = o.Devices
	if rapid.IntRange(0, 3).Draw(t, "busy") == 0 {
		o.FreeDevices = o.Devices[:len(o.Devices)/2]
		o.Free.CPU, o.Free.Memory = o.Free.CPU/2, o.Free.Memory/2
		o.FreeAt = now.Add(time.Duration(rapid.IntRange(-2, 20).Draw(t, "until")) * time.Minute)
	}
	return o
}

// asked is a job as the market sees it.
type asked struct {
	r       offpeak.Requirements
	account offpeak.AccountID
	driver  string
}

func drawAsked(t *rapid.T) asked {
	r := offpeak.Requirements{
		CPU:    rapid.Int64Range(0, 10).Draw(t, "want-cpu") * 500,
		Memory: offpeak.Bytes(rapid.Int64Range(0, 8).Draw(t, "want-memory")) * gib,
		Disk:   offpeak.Bytes(rapid.Int64Range(0, 2).Draw(t, "want-disk")) * 80 * gib,
		OS:     rapid.SampledFrom([]string{"", "", "linux", "windows"}).Draw(t, "want-os"),
		Arch:   rapid.SampledFrom([]string{"", "", "amd64", "arm64"}).Draw(t, "want-arch"),
		Trust:  rapid.SampledFrom([]offpeak.Trust{offpeak.TrustAny, offpeak.TrustAny, offpeak.TrustOwn, offpeak.TrustValidated}).Draw(t, "trust"),
	}
	for range rapid.SampledFrom([]int{0, 0, 1, 1, 2}).Draw(t, "want-devices") {
		r.GPUs = append(r.GPUs, offpeak.GPURequest{
			VRAM:   offpeak.Bytes(rapid.SampledFrom([]int64{0, 4, 8, 300}).Draw(t, "want-vram")) * gib,
			Vendor: rapid.SampledFrom([]string{"", "", "nvidia", "amd"}).Draw(t, "want-vendor"), Model: wanted.Draw(t, "want-model"),
			Kind:    rapid.SampledFrom([]offpeak.GPUKind{"", "", offpeak.GPUAny, offpeak.GPUUnified}).Draw(t, "want-kind"),
			Compute: rapid.SampledFrom([]string{"", "", "8.6"}).Draw(t, "want-compute"), Driver: rapid.SampledFrom([]string{"", "", "535"}).Draw(t, "want-driver"),
		})
	}
	if rapid.Bool().Draw(t, "capped") {
		p := offpeak.Price(rapid.Int64Range(0, 8).Draw(t, "most"))
		r.MaxPrice = &p
	}
	switch rapid.IntRange(0, 3).Draw(t, "where") {
	case 0:
		r.Where = map[string]string{"rack": racks.Draw(t, "want-rack")}
	case 1:
		r.Where = map[string]string{"region": regions.Draw(t, "want-region")}
	}
	r.Match = rapid.SampledFrom([][]string{nil, nil, nil, {"!metered"}, {"metered", "region=eu"}, {"rack=1", "region!=us"}}).Draw(t, "match")
	r.NotNodes = rapid.SampledFrom([][]offpeak.NodeID{nil, nil, {"node_001", "node_007"}}).Draw(t, "not-nodes")
	r.NotAccounts = rapid.SampledFrom([][]offpeak.AccountID{nil, nil, {"acct_b"}}).Draw(t, "not-accounts")
	if rapid.IntRange(0, 9).Draw(t, "named") == 0 {
		r.Nodes = []offpeak.NodeID{"node_002", "node_005"}
	}
	return asked{r, accounts.Draw(t, "account"), drivers.Draw(t, "driver")}
}

// scan is the model: every offer that fits, by price and node.
func scan(offers map[offpeak.NodeID]offpeak.Offer, a asked) []offpeak.NodeID {
	var fit []offpeak.Offer
	for _, o := range offers {
		if a.r.Fit(a.account, a.driver, o).OK() {
			fit = append(fit, o)
		}
	}
	slices.SortFunc(fit, func(x, y offpeak.Offer) int {
		return cmp.Or(cmp.Compare(x.Ask.For(a.r), y.Ask.For(a.r)), cmp.Compare(x.Node, y.Node))
	})
	var out []offpeak.NodeID
	for _, o := range fit {
		out = append(out, o.Node)
	}
	return out
}

// TestBookIsALinearScan: whatever is put and removed, the book answers as a
// scan over all offers would.
func TestBookIsALinearScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		book, model := market.NewBook(), map[offpeak.NodeID]offpeak.Offer{}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "offers") {
					o := drawOffer(t, rapid.IntRange(0, 60).Draw(t, "node"))
					if err := book.Put(o); err != nil {
						t.Fatal(err)
					}
					model[o.Node] = o
				}
			},
			"remove": func(t *rapid.T) {
				id := offpeak.NodeID(fmt.Sprintf("node_%03d", rapid.IntRange(0, 60).Draw(t, "node")))
				_, there := model[id]
				if book.Remove(id) != there {
					t.Fatalf("remove %s: it was there: %v", id, there)
				}
				delete(model, id)
			},
			"ask": func(t *rapid.T) {
				id := offpeak.NodeID(fmt.Sprintf("node_%03d", rapid.IntRange(0, 60).Draw(t, "node")))
				ask := offpeak.Ask{GPU: offpeak.Price(rapid.Int64Range(0, 5).Draw(t, "gpu")), CPU: offpeak.Price(rapid.Int64Range(0, 5).Draw(t, "plain"))}
				o, there := model[id]
				if found, err := book.SetAsk(id, ask); found != there || err != nil {
					t.Fatalf("set the ask of %s: %v, %v", id, found, err)
				}
				if o.Ask = ask; there {
					model[id] = o
				}
			},
			"": func(t *rapid.T) {
				if book.Len() != len(model) {
					t.Fatalf("%d offers, want %d", book.Len(), len(model))
				}
				a := drawAsked(t)
				want := scan(model, a)
				var got []offpeak.NodeID
				for o := range book.Ascending(a.r, a.account, a.driver) {
					got = append(got, o.Node)
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%+v\n got %v\nwant %v", a, got, want)
				}
				o, ok := book.Cheapest(a.r, a.account, a.driver)
				if ok != (len(want) > 0) || (ok && o.Node != want[0]) {
					t.Fatalf("cheapest %s, %v, want %v", o.Node, ok, want)
				}
			},
		})
	})
}

func TestBookRefusesPrices(t *testing.T) {
	book := market.NewBook()
	for _, ask := range []offpeak.Ask{{GPU: -1}, {CPU: -1}, {GPU: offpeak.MaxPrice + 1}, {CPU: offpeak.MaxPrice + 1}} {
		if err := book.Put(offpeak.Offer{Node: "node_1", Ask: ask}); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%+v: %v", ask, err)
		}
	}
	if book.Len() != 0 {
		t.Errorf("%d offers", book.Len())
	}
}
