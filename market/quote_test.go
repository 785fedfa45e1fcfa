package market_test

import (
	"errors"
	"math"
	"math/big"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/market"
)

const hour = offpeak.Duration(time.Hour)

// TestQuoteIsALinearScan: what a quote names and counts is what a scan finds.
func TestQuoteIsALinearScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		book, model := market.NewBook(), map[offpeak.NodeID]offpeak.Offer{}
		for i := range rapid.IntRange(0, 40).Draw(t, "offers") {
			o := drawOffer(t, i)
			if err := book.Put(o); err != nil {
				t.Fatal(err)
			}
			model[o.Node] = o
		}
		a := drawAsked(t)
		q, err := book.Quote(market.Inquiry{Requirements: a.r, Account: a.account, Driver: a.driver, For: hour, Limit: 3}, now)
		if err != nil {
			t.Fatal(err)
		}
		want := scan(model, a)
		if q.Fits != len(want) || len(q.Offers) != min(3, len(want)) || (len(want) > 0) != (q.Start != nil && q.Start.Equal(now) && len(q.Offers) > 0) {
			t.Fatalf("%+v, want %v", q, want)
		}
		for i, o := range q.Offers {
			if p := model[o.Node].Ask.For(a.r); o.Node != want[i] || o.Price != p || o.Total != offpeak.MicroCredits(p) {
				t.Fatalf("%+v, want %s at %s", o, want[i], p)
			}
		}
		open := a
		open.r.MaxPrice = nil
		more := len(scan(model, open)) - len(want)
		for _, alt := range q.Instead {
			if alt.Kind == offpeak.HigherCeiling {
				if more -= alt.More; alt.Price <= *a.r.MaxPrice {
					t.Fatalf("a higher ceiling begins at %s", alt.Price)
				}
			}
		}
		if more != 0 {
			t.Fatalf("%d offers above the ceiling are not told of: %+v", more, q.Instead)
		}
	})
}

func TestQuoteRefuses(t *testing.T) {
	negative := offpeak.Price(-1)
	for _, in := range []market.Inquiry{
		{For: 0, Limit: 1}, {For: -hour, Limit: 1}, {For: offpeak.MaxDuration + 1, Limit: 1}, {For: hour}, {For: hour, Limit: 101},
		{For: hour, Limit: 1, Requirements: offpeak.Requirements{MaxPrice: &negative}},
	} {
		if _, err := market.NewBook().Quote(in, now); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%+v: %v", in, err)
		}
	}
	if got := market.Total(offpeak.MaxPrice, offpeak.MaxDuration); got != 87_600*offpeak.MicroCredits(offpeak.MaxPrice) {
		t.Errorf("the most there can be is %s", got)
	}
}

// alternative is the quote's alternative of a kind, nil without one.
func alternative(q offpeak.Quote, kind offpeak.AlternativeKind) *offpeak.Alternative {
	for i := range q.Instead {
		if q.Instead[i].Kind == kind {
			return &q.Instead[i]
		}
	}
	return nil
}

// TestLessVRAMByBruteForce: of all smaller sizes there are the quote names the
// largest for which a job that asks for no more has a cheaper offer, and the
// lowest price of one.
func TestLessVRAMByBruteForce(t *testing.T) {
	named := 0
	rapid.Check(t, func(t *rapid.T) {
		book, model := market.NewBook(), map[offpeak.NodeID]offpeak.Offer{}
		sizes := map[offpeak.Bytes]bool{}
		for i := range rapid.IntRange(0, 30).Draw(t, "offers") {
			o := drawOffer(t, i)
			if err := book.Put(o); err != nil {
				t.Fatal(err)
			}
			model[o.Node] = o
			// What a node has to give is told by its largest free device.
			largest := offpeak.Bytes(0)
			for _, d := range o.FreeDevices {
				largest = max(largest, d.VRAM/gib*gib)
			}
			if o.Ready && largest > 0 {
				sizes[min(largest, 256*gib)] = true
			}
		}
		a := drawAsked(t)
		if rapid.Bool().Draw(t, "modest") {
			// So that there usually is something to name.
			a.r = offpeak.Requirements{GPUs: []offpeak.GPURequest{{VRAM: 300 * gib}}}
		}
		q, err := book.Quote(market.Inquiry{Requirements: a.r, Account: a.account, Driver: a.driver, For: 2 * hour, Limit: 1}, now)
		if err != nil {
			t.Fatal(err)
		}
		asked := offpeak.Bytes(0)
		for _, g := range a.r.GPUs {
			asked = max(asked, g.VRAM)
		}
		lowest := offpeak.MaxPrice + 1
		if fit := scan(model, a); len(fit) > 0 {
			lowest = model[fit[0]].Ask.For(a.r)
		}
		var want *offpeak.Alternative
		for vram := range sizes {
			if vram >= asked || (want != nil && vram < want.VRAM) {
				continue
			}
			less := a
			less.r.GPUs = slices.Clone(a.r.GPUs)
			for i := range less.r.GPUs {
				less.r.GPUs[i].VRAM = min(less.r.GPUs[i].VRAM, vram)
			}
			if fit := scan(model, less); len(fit) > 0 && model[fit[0]].Ask.For(less.r) < lowest {
				price := model[fit[0]].Ask.For(less.r)
				want = &offpeak.Alternative{Kind: offpeak.LessVRAM, Price: price, Total: 2 * offpeak.MicroCredits(price), VRAM: vram}
			}
		}
		got := alternative(q, offpeak.LessVRAM)
		if (got == nil) != (want == nil) || (got != nil && *got != *want) {
			t.Fatalf("%+v: %+v, want %+v", a, got, want)
		}
		if got != nil {
			named++
		}
	})
	if named == 0 {
		t.Error("no run had anything to name")
	}
}

// TestAnotherHourByBruteForce: of all nodes that fit but for the price, at all
// full hours of the next day, the quote names the lowest price below what there
// is now and within the job's limit, and the first hour at which it is asked.
func TestAnotherHourByBruteForce(t *testing.T) {
	berlin, named := zone(t, "Europe/Berlin"), 0
	rapid.Check(t, func(t *rapid.T) {
		book, model := market.NewBook(), map[offpeak.NodeID]offpeak.Offer{}
		plans := map[offpeak.NodeID]*market.Plan{}
		// Within the day on which clocks go forward, at odd minutes too.
		at := now.Add(time.Duration(rapid.IntRange(0, 1440).Draw(t, "minute")) * time.Minute)
		for i := range rapid.IntRange(0, 8).Draw(t, "offers") {
			o := drawOffer(t, i)
			if rapid.IntRange(0, 4).Draw(t, "planned") > 0 {
				p := &market.Plan{Zone: berlin, Base: o.Ask, Windows: rapid.SliceOfN(rapid.Custom(drawWindow), 0, 3).Draw(t, "windows")}
				if rapid.IntRange(0, 3).Draw(t, "bounded") == 0 {
					p.From = at.Add(time.Duration(rapid.IntRange(-60, 600).Draw(t, "from")) * time.Minute)
					p.Until = p.From.Add(time.Duration(rapid.IntRange(1, 600).Draw(t, "until")) * time.Minute)
				}
				plans[o.Node] = p
				if s := p.At(at); s.Valid {
					o.Ask = s.Ask
				}
			}
			if err := book.Put(o); err != nil {
				t.Fatal(err)
			}
			model[o.Node] = o
		}
		a := drawAsked(t)
		if rapid.IntRange(0, 3).Draw(t, "easy") > 0 {
			a = asked{offpeak.Requirements{MaxPrice: a.r.MaxPrice}, a.account, a.driver} // many fit
		}
		in := market.Inquiry{Requirements: a.r, Account: a.account, Driver: a.driver, For: hour, Limit: 1, Plan: func(id offpeak.NodeID) *market.Plan { return plans[id] }}
		q, err := book.Quote(in, at)
		if err != nil {
			t.Fatal(err)
		}
		lowest := offpeak.MaxPrice + 1
		if a.r.MaxPrice != nil {
			lowest = *a.r.MaxPrice + 1
		}
		if fit := scan(model, a); len(fit) > 0 {
			lowest = model[fit[0]].Ask.For(a.r)
		}
		open := a
		open.r.MaxPrice = nil
		var first time.Time
		for h := 24; h >= 1; h-- {
			full := at.Truncate(time.Hour).Add(time.Duration(h) * time.Hour)
			for _, id := range scan(model, open) {
				if plans[id] == nil {
					continue
				}
				ask, valid := byHand(plans[id], full)
				if price := ask.For(a.r); valid && (price < lowest || (price == lowest && !first.IsZero())) {
					lowest, first = price, full
				}
			}
		}
		got := alternative(q, offpeak.AnotherHour)
		if (got == nil) != first.IsZero() || (got != nil && (!got.At.Equal(first) || got.Price != lowest || got.Total != offpeak.MicroCredits(lowest))) {
			t.Fatalf("%+v at %s: %+v, want %s at %s", a, at, got, lowest, first)
		}
		if got != nil {
			named++
		}
	})
	if named == 0 {
		t.Error("no run had anything to name")
	}
}

// TestQuoteStart: where nothing fits now, a job begins when the first node that
// would do when idle is free, and never before now.
func TestQuoteStart(t *testing.T) {
	later := 0
	rapid.Check(t, func(t *rapid.T) {
		book, model := market.NewBook(), map[offpeak.NodeID]offpeak.Offer{}
		// All devices taken, and somebody who wants any: so that there usually is
		// something to wait for.
		scarce := rapid.Bool().Draw(t, "scarce")
		for i := range rapid.IntRange(0, 30).Draw(t, "offers") {
			o := drawOffer(t, i)
			if scarce {
				o.FreeDevices, o.FreeAt = nil, now.Add(time.Duration(rapid.IntRange(-2, 20).Draw(t, "free at"))*time.Minute)
			}
			if err := book.Put(o); err != nil {
				t.Fatal(err)
			}
			model[o.Node] = o
		}
		a := drawAsked(t)
		if scarce {
			a.r = offpeak.Requirements{GPUs: []offpeak.GPURequest{{}}}
		}
		q, err := book.Quote(market.Inquiry{Requirements: a.r, Account: a.account, Driver: a.driver, For: hour, Limit: 1}, now)
		if err != nil {
			t.Fatal(err)
		}
		var want *time.Time
		if len(scan(model, a)) > 0 {
			want = &now
		} else {
			for _, o := range model {
				idle := o
				idle.Free, idle.FreeDevices = o.Capacity, o.Devices
				if o.FreeAt.IsZero() || !a.r.Fit(a.account, a.driver, idle).OK() {
					continue
				}
				free := o.FreeAt
				if free.Before(now) {
					free = now
				}
				if want == nil || free.Before(*want) {
					want = &free
				}
			}
			if want != nil {
				later++
			}
		}
		if (q.Start == nil) != (want == nil) || (want != nil && !q.Start.Equal(*want)) {
			t.Fatalf("%+v: starts %v, want %v", a, q.Start, want)
		}
	})
	if later == 0 {
		t.Error("no run had anything to wait for")
	}
}

func TestClasses(t *testing.T) {
	book := market.NewBook()
	device := func(id, model string, vram offpeak.Bytes) offpeak.Device {
		return offpeak.Device{ID: offpeak.DeviceID(id), Vendor: "nvidia", Model: model, VRAM: vram}
	}
	if got := book.Classes(); len(got) != 0 {
		t.Errorf("an empty book has %+v", got)
	}
	put := func(node string, ask offpeak.Price, ready bool, free int, devices ...offpeak.Device) {
		t.Helper()
		o := offpeak.Offer{Node: offpeak.NodeID(node), Ask: offpeak.Ask{GPU: ask, CPU: ask / 10}, Devices: devices, FreeDevices: devices[:free], Ready: ready}
		o.Free.CPU = int64(free) * 1000 // a core for each
		if err := book.Put(o); err != nil {
			t.Fatal(err)
		}
	}
	put("node_1", 40, true, 2, device("1", "RTX 3060", 12*gib), device("2", "RTX 3060", 12*gib))
	put("node_2", 30, true, 1, device("3", "RTX 3060", 12*gib), device("4", "RTX 4090", 24*gib))
	put("node_3", 50, true, 1, device("5", "RTX 3060", 12*gib))
	put("node_4", 10, false, 1, device("6", "RTX 3060", 12*gib)) // takes no work
	put("node_5", 90, true, 1, device("7", "RTX 3060", 8*gib))   // another card of the same name
	put("node_6", 0, true, 1, device("8", "Arc", 12*gib))
	put("node_7", 70, true, 0)
	want := []offpeak.GPUClass{
		{Vendor: "nvidia", Model: "RTX 4090", VRAM: 24 * gib, Devices: 1},
		{Vendor: "nvidia", Model: "Arc", VRAM: 12 * gib, Devices: 1, Free: 1, Lowest: priced(0), Median: priced(0), Highest: priced(0)},
		{Vendor: "nvidia", Model: "RTX 3060", VRAM: 12 * gib, Devices: 4, Free: 4, Lowest: priced(30), Median: priced(40), Highest: priced(50)},
		{Vendor: "nvidia", Model: "RTX 3060", VRAM: 8 * gib, Devices: 1, Free: 1, Lowest: priced(90), Median: priced(90), Highest: priced(90)},
		{Devices: 6, Free: 5, Lowest: priced(0), Median: priced(4), Highest: priced(9)},
	}
	if got := book.Classes(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, c := range []struct {
		of             offpeak.Segment
		devices, taken int
	}{
		{offpeak.Segment{}, 6, 1},
		{offpeak.Segment{Kind: offpeak.Kind{Vendor: "nvidia", Model: "RTX 4090", VRAM: 24 * gib}}, 1, 1},
		{offpeak.Segment{Kind: offpeak.Kind{Vendor: "nvidia", Model: "RTX 3060", VRAM: 12 * gib}}, 4, 0},
		{offpeak.Segment{Region: "elsewhere"}, 0, 0},
	} {
		if devices, taken := book.Use(c.of); devices != c.devices || taken != c.taken {
			t.Errorf("%+v: %d devices, %d taken; want %d, %d", c.of, devices, taken, c.devices, c.taken)
		}
	}
}

// TestTotal: a total is the exact product, rounded up.
func TestTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, d := drawPrice(t, "price"), offpeak.Duration(rapid.Int64Range(0, int64(offpeak.MaxDuration)).Draw(t, "for"))
		exact := new(big.Rat).Mul(big.NewRat(int64(p), 1), big.NewRat(int64(d), int64(hour)))
		over := new(big.Rat).Sub(new(big.Rat).SetInt64(int64(market.Total(p, d))), exact)
		if over.Sign() < 0 || over.Cmp(big.NewRat(1, 1)) >= 0 {
			t.Fatalf("%s for %s is %s, which is off by %s", p, d, market.Total(p, d), over)
		}
	})
	if got := market.Total(-1, hour); got != 0 {
		t.Errorf("a negative price comes to %s", got)
	}
	if got := market.Total(1, -1); got != 0 {
		t.Errorf("a negative time comes to %s", got)
	}
	if got := market.Total(math.MaxInt64, math.MaxInt64); got != market.Total(offpeak.MaxPrice, offpeak.MaxDuration) {
		t.Errorf("more than there can be comes to %s", got)
	}
}

// TestQuoteLater pins what random markets seldom show.
func TestQuoteLater(t *testing.T) {
	book := market.NewBook()
	capacity := offpeak.Resources{CPU: 4000}
	o := offpeak.Offer{Node: "node_1", Ask: offpeak.Ask{CPU: 9}, Capacity: capacity, Drivers: []string{"wasm"}, Shared: []string{"wasm"}, Ready: true, FreeAt: now.Add(-time.Minute)}
	if err := book.Put(o); err != nil {
		t.Fatal(err)
	}
	in := market.Inquiry{Requirements: offpeak.Requirements{CPU: 1000}, Driver: "wasm", For: hour, Limit: 1}
	if q, err := book.Quote(in, now); err != nil || q.Start == nil || !q.Start.Equal(now) {
		t.Errorf("leases that should have ended: %+v, %v", q, err)
	}
	// Two nodes come to ask the same, the one that is found second earlier.
	plans := map[offpeak.NodeID]*market.Plan{}
	for id, opens := range map[offpeak.NodeID]market.Clock{"node_1": 20 * 60, "node_2": 15 * 60} {
		o.Node, o.Free, o.FreeAt = id, capacity, time.Time{}
		if err := book.Put(o); err != nil {
			t.Fatal(err)
		}
		plans[id] = &market.Plan{Base: o.Ask, Windows: []market.Window{{Days: market.Everyday, From: opens, To: opens + 60, Ask: offpeak.Ask{CPU: 3}}}}
	}
	in.Plan = func(id offpeak.NodeID) *market.Plan { return plans[id] }
	q, err := book.Quote(in, now)
	if err != nil {
		t.Fatal(err)
	}
	if a := alternative(q, offpeak.AnotherHour); a == nil || a.Price != 3 || !a.At.Equal(now.Add(3*time.Hour)) {
		t.Errorf("%+v", a)
	}
}
