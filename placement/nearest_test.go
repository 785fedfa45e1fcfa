package placement_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/placement"
)

var opening = time.Date(2026, 12, 3, 23, 0, 0, 0, time.UTC)

// drawWaiting draws a fleet with nodes outside their hours, and a job with a bid
// and labels of its own.
func drawWaiting(t *rapid.T) (*placement.Fleet, map[offpeak.NodeID]offpeak.Node, placement.Job) {
	f, list := drawFleet(t)
	nodes := make(map[offpeak.NodeID]offpeak.Node)
	for _, n := range list {
		n.Inventory.OS = rapid.SampledFrom([]string{"linux", "linux", "windows"}).Draw(t, "os")
		if rapid.IntRange(0, 3).Draw(t, "shut") == 0 {
			at := opening.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "opens")) * time.Hour)
			n.Availability, n.Why, n.Inventory.Opens = offpeak.NodeInUse, offpeak.EndOutsideSchedule, &at
		}
		nodes[n.ID] = n
		f.Set(n, nil) // claims under way stay
	}
	j := drawJob(t)
	if rapid.Bool().Draw(t, "bids") {
		p := offpeak.Price(rapid.Int64Range(0, 3).Draw(t, "bid"))
		j.Requirements.MaxPrice = &p
	}
	j.Requirements.OS = rapid.SampledFrom([]string{"", "", "linux"}).Draw(t, "asked os")
	j.Requirements.Where = rapid.SampledFrom([]map[string]string{nil, nil, {"rack": "7"}}).Draw(t, "where")
	return f, nodes, j
}

// serves says by trying all ways whether devices serve requests.
func servesAll(want []offpeak.GPURequest, have []offpeak.Device) bool {
	if len(want) == 0 {
		return true
	}
	for i := range have {
		if want[0].Serves(&have[i]) && servesAll(want[1:], slices.Delete(slices.Clone(have), i, i+1)) {
			return true
		}
	}
	return false
}

// What is left after each filter is what a plain loop over plain conditions leaves.
func TestFiltersAreBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, nodes, j := drawWaiting(t)
		r := j.Requirements
		stages := []struct {
			last offpeak.FitCode
			pass func(n *offpeak.Node, o *offpeak.Offer) bool
		}{
			{offpeak.FitDriver, func(n *offpeak.Node, _ *offpeak.Offer) bool {
				return slices.Contains(n.Inventory.Drivers, j.Driver)
			}},
			{offpeak.FitOS, func(n *offpeak.Node, _ *offpeak.Offer) bool { return r.OS == "" || r.OS == n.Inventory.OS }},
			{offpeak.FitNode, func(n *offpeak.Node, _ *offpeak.Offer) bool { return !slices.Contains(r.NotNodes, n.ID) }},
			{offpeak.FitLabel, func(n *offpeak.Node, _ *offpeak.Offer) bool {
				l := n.Inventory.Labels
				for k, v := range r.Where {
					if l[k] != v {
						return false
					}
				}
				for _, m := range r.Match {
					switch m {
					case "!metered":
						if l["metered"] != "" {
							return false
						}
					case "rack=7":
						if l["rack"] != "7" {
							return false
						}
					case "rack!=7":
						if l["rack"] == "7" {
							return false
						}
					}
				}
				return true
			}},
			{offpeak.FitAccount, func(n *offpeak.Node, _ *offpeak.Offer) bool {
				return n.Inventory.Guests == nil || !slices.Contains(n.Inventory.Guests.Deny, j.Account)
			}},
			{offpeak.FitEgress, func(n *offpeak.Node, _ *offpeak.Offer) bool { return len(r.Egress) == 0 || n.Inventory.Egress != nil }},
			{offpeak.FitPrice, func(n *offpeak.Node, _ *offpeak.Offer) bool {
				return r.MaxPrice == nil || n.Ask.For(*r) <= *r.MaxPrice
			}},
			{offpeak.FitGPUDriver, func(n *offpeak.Node, _ *offpeak.Offer) bool { return servesAll(r.GPUs, n.Inventory.Devices) }},
			{offpeak.FitCPU, func(n *offpeak.Node, _ *offpeak.Offer) bool { return n.Capacity.CPU >= r.CPU }},
			{offpeak.FitMemory, func(n *offpeak.Node, _ *offpeak.Offer) bool { return n.Capacity.Memory >= r.Memory }},
			{offpeak.FitOffline, func(n *offpeak.Node, _ *offpeak.Offer) bool { return n.Liveness == offpeak.NodeOnline }},
			{offpeak.FitWindow, func(n *offpeak.Node, _ *offpeak.Offer) bool { return n.Availability == offpeak.NodeAvailable }},
			{offpeak.FitBusyGPU, func(_ *offpeak.Node, o *offpeak.Offer) bool { return servesAll(r.GPUs, o.FreeDevices) }},
			{offpeak.FitBusyCPU, func(_ *offpeak.Node, o *offpeak.Offer) bool { return o.Free.CPU >= r.CPU }},
			{offpeak.FitBusyMemory, func(_ *offpeak.Node, o *offpeak.Offer) bool { return o.Free.Memory >= r.Memory }},
			{offpeak.FitFence, func(n *offpeak.Node, _ *offpeak.Offer) bool { return !fenced(&j, n.ID, j.Now) }},
		}
		e := f.Explain(j, 100)
		codes := offpeak.FitCodes()
		after := func(code offpeak.FitCode) int {
			left := len(nodes)
			for _, step := range e.Filters {
				if slices.Index(codes, step.Code) <= slices.Index(codes, code) {
					left = step.Left
				}
			}
			return left
		}
		left := make(map[offpeak.NodeID]bool)
		for id := range nodes {
			left[id] = true
		}
		for _, s := range stages {
			for id := range left {
				n := nodes[id]
				o, _ := f.Offer(id)
				if !s.pass(&n, &o) {
					delete(left, id)
				}
			}
			if after(s.last) != len(left) {
				t.Fatalf("%d are left after %s, want %d: %+v", after(s.last), s.last, len(left), e.Filters)
			}
		}
		if e.Fits != len(left) {
			t.Fatalf("%d fit, want %d", e.Fits, len(left))
		}
		last := len(nodes)
		for _, step := range e.Filters {
			if last -= step.Failed; last != step.Left || step.Failed <= 0 {
				t.Fatalf("filters are %+v", e.Filters)
			}
		}
	})
}

// fits counts the nodes that requirements fit, at a moment if there is one.
func fits(f *placement.Fleet, j placement.Job, r *offpeak.Requirements, at *time.Time) (n int) {
	for o := range f.Offers() {
		offer, moment := *o, j.Now
		if at != nil {
			moment = *at
		}
		if at != nil && offer.Why == offpeak.FitWindow && offer.Opens != nil && !offer.Opens.After(*at) {
			offer.Ready, offer.Why = true, offpeak.FitOK
		}
		if !fenced(&j, offer.Node, moment) && r.Fit(j.Account, j.Driver, offer).OK() {
			n++
		}
	}
	return n
}

// Every change that is said to let a job start lets it start, on as many nodes as
// are said; none is left out where one thing would do.
func TestNearestIsVerified(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, nodes, j := drawWaiting(t)
		was := fmt.Sprintf("%+v", *j.Requirements)
		e := f.Explain(j, 100)
		if e.Fits > 0 {
			t.Skip("it starts")
		}
		look := f.Snapshot().Nearest(j, nil)
		if now := fmt.Sprintf("%+v", *j.Requirements); now != was {
			t.Fatalf("the job was changed: %s, now %s", was, now)
		}
		has := map[string]bool{}
		for _, c := range look.Changes {
			if len(c.Parts) < 1 || len(c.Parts) > 2 || c.Nodes == 0 || math.IsNaN(c.Gap) {
				t.Fatalf("a change is %+v", c)
			}
			if got := fits(f, j, &c.Requirements, c.At); got != c.Nodes {
				t.Fatalf("%+v opens %d nodes, %d are said", c.Parts, got, c.Nodes)
			}
			for _, p := range c.Parts {
				if p.Flag != "" && (p.From == p.To || p.From == "") {
					t.Fatalf("%+v changes nothing", p)
				}
			}
			if len(c.Parts) == 1 {
				has[c.Parts[0].Flag] = true
			}
		}
		// Causes are those of every node by itself.
		for _, c := range look.Causes {
			all := 0
			for id := range nodes {
				o, _ := f.Offer(id)
				if named := slices.ContainsFunc(placement.Reasons(j, o), func(r offpeak.Reason) bool { return r.Code == offpeak.FitFence }); named != fenced(&j, id, j.Now) {
					t.Fatalf("the fence on %s is named: %t", id, named)
				}
				if slices.ContainsFunc(placement.Reasons(j, o), func(r offpeak.Reason) bool { return r.Code == c.Code }) {
					all++
				}
			}
			if all != c.All || c.Nodes > c.All {
				t.Fatalf("%s keeps it from %d, %d are said", c.Code, all, c.All)
			}
		}
		for _, c := range e.Causes {
			if !slices.ContainsFunc(look.Causes, func(d placement.Cause) bool { return d.Code == c.Code && d.Nodes == c.Nodes }) {
				t.Fatalf("the cause %+v is not among %+v", c, look.Causes)
			}
		}
		// What a plain search finds is found.
		try := func(flag string, change func(r *offpeak.Requirements, k int) bool) {
			for k := 1; ; k++ {
				r := *j.Requirements
				r.GPUs = slices.Clone(r.GPUs)
				if !change(&r, k) {
					return
				}
				if fits(f, j, &r, nil) > 0 && !has[flag] && len(look.Changes) < 8 {
					t.Fatalf("%s helps, and is not among %+v", flag, look.Changes)
				}
			}
		}
		try("--cpu", func(r *offpeak.Requirements, k int) bool { r.CPU -= int64(k) * 500; return r.CPU > 0 })
		try("--memory", func(r *offpeak.Requirements, k int) bool { r.Memory -= offpeak.Bytes(k) * gib; return r.Memory > 0 })
		try("--vram", func(r *offpeak.Requirements, k int) bool {
			for i := range r.GPUs {
				r.GPUs[i].VRAM = min(r.GPUs[i].VRAM, offpeak.Bytes(25-k)*gib)
			}
			return len(r.GPUs) > 0 && k < 25
		})
		try("--max-price", func(r *offpeak.Requirements, k int) bool {
			p := offpeak.Price(k)
			r.MaxPrice = &p
			return k < 10 && j.Requirements.MaxPrice != nil
		})
	})
}

// Each cause alone, and each two at once: both are named, and the nearest change is
// of just these.
func TestCausesAloneAndInPairs(t *testing.T) {
	bid := offpeak.Price(40)
	causes := []struct {
		code offpeak.FitCode
		node func(n *offpeak.Node)
		job  func(r *offpeak.Requirements)
		hold offpeak.Resources
		// fence: an attempt failed there.
		fence bool
		// says is how it would start; "" where the job can do nothing about it.
		says string
	}{
		{code: offpeak.FitDriver, node: func(n *offpeak.Node) { n.Inventory.Drivers = []string{"wasm"} }},
		{code: offpeak.FitOS, job: func(r *offpeak.Requirements) { r.OS = "windows" }, says: "--os windows→"},
		{code: offpeak.FitArch, job: func(r *offpeak.Requirements) { r.Arch = "arm64" }, says: "--arch arm64→"},
		{code: offpeak.FitNode, job: func(r *offpeak.Requirements) { r.NotNodes = []offpeak.NodeID{"one"} }, says: "--not-node one→"},
		{code: offpeak.FitOwner, job: func(r *offpeak.Requirements) { r.NotAccounts = []offpeak.AccountID{"acct_o"} }, says: "--not-account acct_o→"},
		{code: offpeak.FitLabel, job: func(r *offpeak.Requirements) { r.Where = map[string]string{"rack": "8", "room": "attic"} }, says: "--where rack=8→"},
		{code: offpeak.FitTrust, job: func(r *offpeak.Requirements) { r.Trust = offpeak.TrustOwn }, says: "--trust own→any"},
		{code: offpeak.FitAccount, node: func(n *offpeak.Node) { n.Inventory.Guests = &offpeak.Guests{Deny: []offpeak.AccountID{"acct_s"}} }},
		{code: offpeak.FitStranger, node: func(n *offpeak.Node) { n.Inventory.Shared = []string{"wasm"} }},
		{code: offpeak.FitPrice, job: func(r *offpeak.Requirements) { r.MaxPrice = &bid }, says: "--max-price 0.00004/h→0.00005/h"},
		{code: offpeak.FitVRAM, job: func(r *offpeak.Requirements) { r.GPUs[0].VRAM = 26 * gib }, says: "--vram 26GiB→24GiB"},
		{code: offpeak.FitUnified, job: func(r *offpeak.Requirements) { r.GPUs[0].Kind = offpeak.GPUUnified }, says: "--gpu-kind unified→any"},
		{code: offpeak.FitGPU, job: func(r *offpeak.Requirements) { r.GPUs[0].Model = "H100" }, says: "--gpu-model H100→"},
		{code: offpeak.FitCompute, job: func(r *offpeak.Requirements) { r.GPUs[0].Compute = "9.0" }, says: "--compute-capability 9.0→8.9"},
		{code: offpeak.FitGPUDriver, job: func(r *offpeak.Requirements) { r.GPUs[0].Driver = "550" }, says: "--gpu-driver 550→535.1"},
		{code: offpeak.FitCPU, job: func(r *offpeak.Requirements) { r.CPU = 9000 }, says: "--cpu 9→8"},
		{code: offpeak.FitMemory, job: func(r *offpeak.Requirements) { r.Memory = 33 * gib }, says: "--memory 33GiB→32GiB"},
		{code: offpeak.FitDisk, job: func(r *offpeak.Requirements) { r.Disk = 101 * gib }, says: "--disk 101GiB→100GiB"},
		{code: offpeak.FitOffline, node: func(n *offpeak.Node) { n.Liveness = offpeak.NodeOffline }},
		{code: offpeak.FitDraining, node: func(n *offpeak.Node) { n.Intent = offpeak.NodeDraining }},
		{code: offpeak.FitInUse, node: func(n *offpeak.Node) { n.Availability = offpeak.NodeInUse }},
		{code: offpeak.FitWindow, node: func(n *offpeak.Node) {
			n.Availability, n.Why, n.Inventory.Opens = offpeak.NodeInUse, offpeak.EndOutsideSchedule, &opening
		}, says: " →"},
		{code: offpeak.FitBusyGPU, hold: offpeak.Resources{Devices: []offpeak.DeviceID{"GPU-one-0"}}},
		{code: offpeak.FitBusyCPU, hold: offpeak.Resources{CPU: 7500}, says: "--cpu 1→0.5"},
		{code: offpeak.FitBusyMemory, hold: offpeak.Resources{Memory: 32*gib - gib/2}, says: "--memory 1GiB→512MiB"},
		{code: offpeak.FitBusyDisk, hold: offpeak.Resources{Disk: 100*gib - gib/2}, says: "--disk 1GiB→512MiB"},
		{code: offpeak.FitFence, fence: true, says: " →"},
	}
	// One node, that the job fits but for a cause.
	world := func(of ...int) (*placement.Fleet, placement.Job) {
		n := machine("one", 8000, 32*gib, 24*gib)
		n.Ask = &offpeak.Ask{CPU: 50, GPU: 50}
		n.Inventory.Labels = map[string]string{"room": "attic"}
		d := &n.Inventory.Devices[0]
		d.VRAM, d.Compute, d.Driver = 24564*offpeak.MiB, "8.9", "535.1"
		r := asks(1000, gib, 24*gib)
		var hold offpeak.Resources
		var fences []placement.Fence
		for _, i := range of {
			if c := causes[i]; c.fence {
				fences = []placement.Fence{{Node: "one", Until: opening}}
			} else if c.node != nil {
				c.node(&n)
			} else if c.job != nil {
				c.job(r)
			} else {
				h := c.hold
				hold.CPU, hold.Memory, hold.Disk = hold.CPU+h.CPU, hold.Memory+h.Memory, hold.Disk+h.Disk
				hold.Devices = append(hold.Devices, h.Devices...)
			}
		}
		f := fleetOf(n)
		f.Hold("one", "lease", hold)
		j := job(r)
		j.Fences, j.Now = fences, opening.Add(-time.Minute)
		return f, j
	}
	said := func(c placement.Change) (out []string) {
		for _, p := range c.Parts {
			out = append(out, p.Flag+" "+p.From+"→"+p.To)
		}
		slices.Sort(out)
		return out
	}
	if f, j := world(); f.Explain(j, 1).Fits != 1 {
		t.Fatal("the job does not fit without a cause")
	}
	reasons := func(f *placement.Fleet, j placement.Job) (out []offpeak.FitCode) {
		o, _ := f.Offer("one")
		for _, r := range placement.Reasons(j, o) {
			out = append(out, r.Code)
		}
		return out
	}
	for i, c := range causes {
		f, j := world(i)
		look := f.Snapshot().Nearest(j, nil)
		if got := reasons(f, j); len(got) != 1 || got[0] != c.code || len(look.Causes) != 1 || look.Causes[0].All != 1 {
			t.Errorf("%s is explained as %v, %+v", c.code, got, look.Causes)
		}
		switch {
		case c.says == "" && len(look.Changes) != 0:
			t.Errorf("%s would be lifted by %+v", c.code, look.Changes)
		case c.says != "" && (len(look.Changes) == 0 || strings.Join(said(look.Changes[0]), ", ") != c.says):
			t.Errorf("%s would be lifted by %+v, want %s", c.code, look.Changes, c.says)
		case c.says == " →" && (!look.Changes[0].At.Equal(opening) || look.Changes[0].First != "one"):
			t.Errorf("%s ends at %v on %s", c.code, look.Changes[0].At, look.Changes[0].First)
		}
		for k := i + 1; k < len(causes); k++ {
			d := causes[k]
			name := fmt.Sprintf("%s and %s", c.code, d.code)
			notReady := func(code offpeak.FitCode) bool {
				return slices.Contains([]offpeak.FitCode{offpeak.FitOffline, offpeak.FitDraining, offpeak.FitInUse, offpeak.FitWindow}, code)
			}
			same := func(a, b offpeak.FitCode) bool { return c.code == a && d.code == b }
			switch {
			case notReady(c.code) && notReady(d.code):
				continue // a node says one
			case same(offpeak.FitCPU, offpeak.FitBusyCPU), same(offpeak.FitMemory, offpeak.FitBusyMemory), same(offpeak.FitDisk, offpeak.FitBusyDisk):
				continue // of what is not there nothing is free either
			}
			f, j := world(i, k)
			got := reasons(f, j)
			if len(got) != 2 || !slices.Contains(got, c.code) || !slices.Contains(got, d.code) {
				t.Errorf("%s are explained as %v", name, got)
			}
			look := f.Snapshot().Nearest(j, nil)
			if len(look.Causes) != 2 {
				t.Errorf("%s are the causes %+v", name, look.Causes)
			}
			want := []string{c.says, d.says}
			if c.says == d.says {
				want = want[:1] // time is one thing
			}
			slices.Sort(want)
			if c.says == "" || d.says == "" {
				if len(look.Changes) != 0 {
					t.Errorf("%s would be lifted by %+v", name, look.Changes)
				}
			} else if len(look.Changes) == 0 || !slices.Equal(said(look.Changes[0]), want) {
				t.Errorf("%s would be lifted by %+v, want %v", name, look.Changes, want)
			}
		}
	}
}

// Why the first comes first is the first thing in which the order tells it from the
// second, and shares make the score.
func TestWon(t *testing.T) {
	dear := machine("dear", 1000, gib)
	dear.Ask = &offpeak.Ask{CPU: 5}
	for _, c := range []struct {
		nodes []offpeak.Node
		avoid []offpeak.NodeID
		want  *placement.Won
	}{
		{nil, nil, nil},
		{[]offpeak.Node{machine("a", 1000, gib)}, nil, &placement.Won{}},
		{[]offpeak.Node{machine("a", 1000, gib), dear}, nil, &placement.Won{Over: "dear", By: "price"}},
		{[]offpeak.Node{machine("a", 1000, gib), dear}, []offpeak.NodeID{"a"}, &placement.Won{Over: "a", By: "fence"}},
		{[]offpeak.Node{machine("a", 1000, gib), machine("b", 4000, gib)}, nil, &placement.Won{Over: "b", By: "score", Part: "cpu"}},
	} {
		j := job(asks(1000, gib))
		j.Avoid = c.avoid
		got := fleetOf(c.nodes...).Explain(j, 10)
		if (got.Won == nil) != (c.want == nil) || got.Won != nil && *got.Won != *c.want {
			t.Errorf("%+v won, want %+v", got.Won, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		f, _ := drawFleet(t)
		j := drawJob(t)
		e := f.Explain(j, 100)
		for _, v := range e.Nodes[:e.Fits] {
			sum := 0.0
			for _, s := range v.Shares {
				sum += s
			}
			if math.Abs(sum-v.Score) > 1e-9 {
				t.Fatalf("shares %v make %v, the score is %v", v.Shares, sum, v.Score)
			}
		}
		if (e.Won != nil) != (e.Fits > 0) || e.Fits > 1 && e.Won.Over != e.Nodes[1].Node {
			t.Fatalf("%+v won among %+v", e.Won, e.Nodes)
		}
	})
}

// What a question costs where nothing fits: the snapshot is taken under the hub's
// lock, the rest is not. A change after it copies what it changes.
func BenchmarkNearest(b *testing.B) {
	w := newWorld(1, 100_000, 1000)
	w.fill()
	p := offpeak.Price(1)
	r := asks(900_000, gib, 24*gib, 24*gib)
	r.MaxPrice, r.Match = &p, []string{"rack=8", "!metered"}
	j := job(r)
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			w.fleet.Snapshot()
		}
	})
	b.Run("explain", func(b *testing.B) {
		s := w.fleet.Snapshot()
		for b.Loop() {
			s.Explain(j, 100)
		}
	})
	b.Run("fitting", func(b *testing.B) {
		s, easy := w.fleet.Snapshot(), job(asks(1000, gib))
		for b.Loop() {
			if e := s.Explain(easy, 100); e.Fits == 0 {
				b.Fatal("it fits nowhere")
			}
		}
	})
	b.Run("nearest", func(b *testing.B) {
		s := w.fleet.Snapshot()
		for b.Loop() {
			s.Nearest(j, nil)
		}
	})
}
