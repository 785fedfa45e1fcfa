package placement_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/placement"
)

const gib = offpeak.GiB

func machine(id string, cpu int64, memory offpeak.Bytes, cards ...offpeak.Bytes) offpeak.Node {
	n := offpeak.Node{
		Ask: &offpeak.Ask{},
		ID:  offpeak.NodeID(id), Name: id, Account: "acct_o",
		Liveness: offpeak.NodeOnline, Intent: offpeak.NodeOpen, Availability: offpeak.NodeAvailable,
		Inventory: offpeak.Inventory{OS: "linux", Arch: "amd64", Drivers: []string{"process", "wasm"}, Shared: []string{"process", "wasm"}},
		Capacity:  offpeak.Resources{CPU: cpu, Memory: memory, Disk: 100 * gib},
	}
	for i, v := range cards {
		d := offpeak.Device{ID: offpeak.DeviceID(fmt.Sprintf("GPU-%s-%d", id, i)), Vendor: "nvidia", Model: "RTX", VRAM: v}
		n.Inventory.Devices = append(n.Inventory.Devices, d)
		n.Capacity.Devices = append(n.Capacity.Devices, d.ID)
	}
	return n
}

func fleetOf(nodes ...offpeak.Node) *placement.Fleet {
	f := placement.NewFleet(placement.DefaultWeights())
	for _, n := range nodes {
		f.Set(n, nil)
	}
	return f
}

func asks(cpu int64, memory offpeak.Bytes, cards ...offpeak.Bytes) *offpeak.Requirements {
	r := &offpeak.Requirements{CPU: cpu, Memory: memory, Disk: gib}
	for _, v := range cards {
		r.GPUs = append(r.GPUs, offpeak.GPURequest{VRAM: v})
	}
	return r
}

func job(r *offpeak.Requirements) placement.Job {
	return placement.Job{ID: "job_1", Account: "acct_s", Attempt: 1, Driver: "process", Requirements: r}
}

func TestBest(t *testing.T) {
	priced := func(n offpeak.Node, p offpeak.Price) offpeak.Node { n.Ask = &offpeak.Ask{GPU: p, CPU: p}; return n }
	late := machine("late", 8000, 32*gib)
	late.Liveness = offpeak.NodeLate
	draining := machine("draining", 8000, 32*gib)
	draining.Intent = offpeak.NodeDraining
	inUse := machine("in-use", 8000, 32*gib)
	inUse.Availability = offpeak.NodeInUse
	bid := offpeak.Price(50)
	withBid := asks(1000, gib)
	withBid.MaxPrice = &bid

	for _, c := range []struct {
		name  string
		nodes []offpeak.Node
		ask   *offpeak.Requirements
		avoid []offpeak.NodeID
		want  offpeak.NodeID // "" for none
	}{
		{"nothing there", nil, asks(1000, gib), nil, ""},
		{"a small job leaves the large card free", []offpeak.Node{machine("big", 8000, 32*gib, 24*gib), machine("small", 8000, 32*gib, 8*gib)}, asks(1000, gib, 4*gib), nil, "small"},
		{"VRAM outweighs CPU and memory", []offpeak.Node{machine("tight-cpu", 1000, gib, 24*gib), machine("tight-vram", 32000, 64*gib, 8*gib)}, asks(1000, gib, 8*gib), nil, "tight-vram"},
		{"lacking VRAM is out whatever else", []offpeak.Node{machine("a", 64000, 512*gib, 8*gib)}, asks(1000, gib, 12*gib), nil, ""},
		{"a CPU job prefers a node without cards", []offpeak.Node{machine("gpu", 1000, gib, 8*gib), machine("cpu", 8000, 32*gib)}, asks(1000, gib), nil, "cpu"},
		{"a CPU job is not stranded", []offpeak.Node{machine("gpu", 8000, 32*gib, 8*gib)}, asks(1000, gib), nil, "gpu"},
		{"the cheaper node wins over the tighter", []offpeak.Node{priced(machine("dear", 1000, gib), 20), priced(machine("cheap", 8000, 32*gib), 10)}, asks(1000, gib), nil, "cheap"},
		{"above the bid is out", []offpeak.Node{priced(machine("dear", 1000, gib), 51)}, withBid, nil, ""},
		{"a retry goes elsewhere, even if that is dearer", []offpeak.Node{machine("failed", 1000, gib), priced(machine("other", 8000, 32*gib), 10)}, asks(1000, gib), []offpeak.NodeID{"failed"}, "other"},
		{"a retry comes back where nothing else fits", []offpeak.Node{machine("failed", 1000, gib)}, asks(1000, gib), []offpeak.NodeID{"failed"}, "failed"},
		{"of the avoided the one that failed longest ago", []offpeak.Node{machine("old", 1000, gib), machine("new", 1000, gib)}, asks(1000, gib), []offpeak.NodeID{"old", "new"}, "old"},
		{"late, draining and used nodes get nothing", []offpeak.Node{late, draining, inUse}, asks(1000, gib), nil, ""},
		{"two cards of different size", []offpeak.Node{machine("a", 8000, 32*gib, 24*gib, 16*gib)}, asks(1000, gib, 16*gib, 24*gib), nil, "a"},
		{"two cards of which one is too small", []offpeak.Node{machine("a", 8000, 32*gib, 24*gib, 16*gib)}, asks(1000, gib, 20*gib, 20*gib), nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := job(c.ask)
			j.Avoid = c.avoid
			got, ok := fleetOf(c.nodes...).Best(j)
			if ok != (c.want != "") || got.Node != c.want {
				t.Fatalf("chose %q (%v), want %q", got.Node, ok, c.want)
			}
		})
	}
}

func TestHoldsAreFreedOnce(t *testing.T) {
	f := fleetOf(machine("a", 2000, 4*gib, 8*gib))
	j := job(asks(1000, gib, 4*gib))
	first, ok := f.Best(j)
	if !ok {
		t.Fatal("the idle node does not fit")
	}
	f.Hold("a", "lease_1", first.Resources)
	f.Hold("a", "lease_1", first.Resources)
	if _, ok := f.Best(j); ok {
		t.Fatal("one card went to two leases")
	}
	if _, ok := f.Best(job(asks(1000, gib))); !ok {
		t.Fatal("holding twice took resources twice")
	}
	// A picture from the store that does not know the claim yet keeps it.
	f.Set(machine("a", 2000, 4*gib, 8*gib), nil)
	if _, ok := f.Best(j); ok {
		t.Fatal("a claim under way was dropped")
	}
	f.Confirm("a", "lease_1")
	if !f.Release("a", "lease_1") || f.Release("a", "lease_1") {
		t.Fatal("want released exactly once")
	}
	if _, ok := f.Best(j); !ok {
		t.Fatal("the released card is not free")
	}
	f.Remove("a")
	if _, ok := f.Best(j); ok || f.Len() != 0 {
		t.Fatal("a removed node was chosen")
	}
}

func TestPassedHoldsAreTheSame(t *testing.T) {
	f := fleetOf(machine("a", 2000, 4*gib, 8*gib, 8*gib))
	whole, ok := f.Best(job(asks(2000, 4*gib, 8*gib, 8*gib)))
	if !ok {
		t.Fatal("the idle node does not fit")
	}
	f.Hold("a", "old", whole.Resources)
	small, card := job(asks(1000, gib)), job(asks(1000, gib, 8*gib))
	f.Without("a", "old", func() {
		if _, ok := f.Best(card); !ok {
			t.Error("without its lease the node does not fit")
		}
	})
	if _, ok := f.Best(small); ok {
		t.Fatal("after a look without it the lease is gone")
	}
	more := whole.Resources
	more.CPU++
	other := offpeak.Resources{CPU: 1, Devices: []offpeak.DeviceID{"another"}}
	if f.Pass("a", "old", "next", more) || f.Pass("a", "old", "next", other) || f.Pass("a", "none", "next", whole.Resources) || f.Pass("b", "old", "next", whole.Resources) {
		t.Fatal("passed on what it does not hold")
	}
	part := offpeak.Resources{CPU: 1000, Memory: gib, Devices: whole.Resources.Devices[:1]}
	if !f.Pass("a", "old", "next", part) {
		t.Fatal("not passed on")
	}
	if _, ok := f.Best(small); ok {
		t.Fatal("passing on freed something before the end")
	}
	f.TakeBack("a", "old", "next")
	if f.Release("a", "next") {
		t.Fatal("taken back it still holds")
	}
	if !f.Pass("a", "old", "next", part) || !f.Release("a", "old") {
		t.Fatal("not passed on a second time")
	}
	if _, ok := f.Best(card); !ok {
		t.Fatal("what was not passed on is not free after the end")
	}
	if _, ok := f.Best(job(asks(1000, gib, 8*gib, 8*gib))); ok {
		t.Fatal("what was passed on is free")
	}
	// Too late to take anything back: the old lease has ended.
	f.TakeBack("a", "old", "next")
	if got, ok := f.Best(job(asks(2000, 4*gib, 8*gib, 8*gib))); !ok || got.Node != "a" {
		t.Fatal("the node is not free")
	}
}

func TestVersionMovesWithEveryChange(t *testing.T) {
	f := fleetOf(machine("a", 2000, 4*gib))
	last := f.Version("a")
	for name, change := range map[string]func(){
		"hold":         func() { f.Hold("a", "l", offpeak.Resources{CPU: 1}) },
		"release":      func() { f.Release("a", "l2") },
		"liveness":     func() { f.SetLiveness("a", offpeak.NodeLate) },
		"intent":       func() { f.SetIntent("a", offpeak.NodeClosed) },
		"availability": func() { f.SetAvailability("a", offpeak.NodeInUse, "") },
	} {
		change()
		if v := f.Version("a"); v <= last {
			t.Errorf("%s left the version at %d", name, v)
		} else {
			last = v
		}
	}
}

func TestTiesReplayAndSpread(t *testing.T) {
	var nodes []offpeak.Node
	for i := range 20 {
		nodes = append(nodes, machine(fmt.Sprintf("n%02d", i), 4000, 8*gib))
	}
	f := fleetOf(nodes...)
	seen := map[offpeak.NodeID]bool{}
	for i := range 60 {
		j := job(asks(1000, gib))
		j.ID = offpeak.JobID(fmt.Sprintf("job_%d", i))
		a, _ := f.Best(j)
		slices.Reverse(nodes)
		b, _ := fleetOf(nodes...).Best(j)
		if a.Node != b.Node {
			t.Fatalf("%s went to %s, replayed to %s", j.ID, a.Node, b.Node)
		}
		seen[a.Node] = true
	}
	if len(seen) < 10 {
		t.Fatalf("60 jobs went to %d of 20 equal nodes", len(seen))
	}
}

// A node outside its owner's hours says when they open; the soonest is nearest.
func TestWindow(t *testing.T) {
	at := time.Date(2026, 12, 3, 23, 0, 0, 0, time.UTC)
	shut := func(id string, opens *time.Time) offpeak.Node {
		n := machine(id, 8000, 32*gib)
		n.Availability, n.Why, n.Inventory.Opens = offpeak.NodeInUse, offpeak.EndOutsideSchedule, opens
		return n
	}
	later := at.Add(time.Hour)
	f := fleetOf(shut("a", nil), shut("b", &later), shut("c", &at))
	e := f.Explain(job(asks(1000, gib)), 10)
	if e.Fits != 0 || e.Could != 3 || len(e.Causes) != 1 || e.Causes[0].Nearest.String() != "window: wants a node that is open now, has opens at 2026-12-03 23:00 UTC" {
		t.Fatalf("explained by %+v", e)
	}
	if e.Nodes[0].Node != "c" || e.Nodes[2].Node != "a" || e.Nodes[2].Reason.Have != "closed by its owner's hours" {
		t.Fatalf("nodes are %+v", e.Nodes)
	}
	f.SetAvailability("c", offpeak.NodeInUse, offpeak.EndOwnerReturned)
	if why := f.Explain(job(asks(1000, gib)), 10); len(why.Causes) != 2 {
		t.Fatalf("after the owner came: %+v", why.Causes)
	}
	f.SetAvailability("c", offpeak.NodeAvailable, "")
	if best, ok := f.Best(job(asks(1000, gib))); !ok || best.Node != "c" {
		t.Fatalf("after the opening: %+v", best)
	}
}

func TestExplain(t *testing.T) {
	offline := machine("offline", 8000, 32*gib, 24*gib)
	offline.Liveness = offpeak.NodeOffline
	f := fleetOf(machine("small", 8000, 32*gib, 8*gib), machine("middle", 8000, 32*gib, 16*gib), offline)
	e := f.Explain(job(asks(1000, gib, 24*gib)), 10)
	if e.Fits != 0 || e.Could != 1 || !e.Asleep {
		t.Fatalf("got fits %d, could %d, asleep %v", e.Fits, e.Could, e.Asleep)
	}
	if len(e.Causes) != 2 || e.Causes[0].Code != offpeak.FitVRAM || e.Causes[0].Nodes != 2 || e.Causes[0].Nearest.Have != "16GiB on RTX" {
		t.Fatalf("causes are %+v", e.Causes)
	}
	if e.Nodes[0].Node != "offline" || e.Nodes[1].Node != "middle" || e.Nodes[2].Node != "small" {
		t.Fatalf("the nearest node is not first: %+v", e.Nodes)
	}
	e = f.Explain(job(asks(1000, gib, 8*gib)), 1)
	if e.Fits != 2 || len(e.Nodes) != 1 || e.Nodes[0].Node != "small" || e.Nodes[0].Parts["vram"] != 1 {
		t.Fatalf("got %+v", e)
	}
}

var (
	cards    = rapid.SampledFrom([]offpeak.Bytes{4 * gib, 8 * gib, 12 * gib, 24 * gib})
	policies = []placement.Policy{placement.Cheapest, placement.Balanced, placement.Fastest}
	vendors  = rapid.SampledFrom([]string{"nvidia", "nvidia", "amd"})
)

func drawNode(t *rapid.T, i int) offpeak.Node {
	n := machine(fmt.Sprintf("n%d", i), rapid.Int64Range(0, 16).Draw(t, "cpu")*500,
		offpeak.Bytes(rapid.Int64Range(0, 16).Draw(t, "memory"))*gib,
		rapid.SliceOfN(cards, 0, 4).Draw(t, "cards")...)
	for i := range n.Inventory.Devices {
		d := &n.Inventory.Devices[i]
		d.Vendor = vendors.Draw(t, "vendor")
		d.VRAM -= offpeak.Bytes(rapid.SampledFrom([]int64{0, 0, 12, 500, 2000}).Draw(t, "reserved")) * offpeak.MiB
		d.Unified = rapid.IntRange(0, 4).Draw(t, "unified") == 0
		d.Compute, d.Driver = rapid.SampledFrom([]string{"", "6.1", "8.9"}).Draw(t, "compute"), rapid.SampledFrom([]string{"amdgpu", "470.5", "550.54.14"}).Draw(t, "driver")
	}
	p := offpeak.Price(rapid.Int64Range(0, 2).Draw(t, "ask"))
	n.Ask = &offpeak.Ask{GPU: p, CPU: p}
	n.Inventory.Labels = rapid.SampledFrom([]map[string]string{nil, {"metered": "yes"}, {"rack": "7"}}).Draw(t, "labels")
	n.Inventory.Guests = rapid.SampledFrom([]*offpeak.Guests{nil, nil, {Deny: []offpeak.AccountID{"acct_s"}}}).Draw(t, "guests")
	n.Liveness = rapid.SampledFrom([]offpeak.Liveness{offpeak.NodeOnline, offpeak.NodeOnline, offpeak.NodeOnline, offpeak.NodeLate}).Draw(t, "liveness")
	return n
}

func drawFleet(t *rapid.T) (*placement.Fleet, []offpeak.Node) {
	w := placement.DefaultWeights()
	w.Baseline = rapid.SampledFrom([]int{0, 2, 4, 100}).Draw(t, "baseline")
	f := placement.NewFleet(w)
	var nodes []offpeak.Node
	for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
		n := drawNode(t, i)
		nodes = append(nodes, n)
		f.Set(n, nil)
		if rapid.Bool().Draw(t, "measured") {
			f.SetMetrics(n.ID, drawMetrics(t))
		}
	}
	// Some earlier work.
	for i := range rapid.IntRange(0, 6).Draw(t, "work") {
		j := drawJob(t)
		j.ID = offpeak.JobID(fmt.Sprint("earlier", i))
		if c, ok := f.Best(j); ok {
			f.Hold(c.Node, offpeak.LeaseID(fmt.Sprint("lease", i)), c.Resources)
		}
	}
	return f, nodes
}

// drawMetrics draws measures, some of which are none.
func drawMetrics(t *rapid.T) placement.Metrics {
	number := rapid.SampledFrom([]float64{0, 0.5, 1, 3, -1, math.NaN(), math.Inf(1)})
	span := rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Hour, -time.Hour})
	return placement.Metrics{
		Reliability: number.Draw(t, "reliability"), Return: span.Draw(t, "return"),
		GPUSpeed: number.Draw(t, "gpu speed"), CPUSpeed: number.Draw(t, "cpu speed"), Latency: span.Draw(t, "latency"),
	}
}

func drawJob(t *rapid.T) placement.Job {
	r := asks(rapid.Int64Range(1, 12).Draw(t, "cpu")*500, offpeak.Bytes(rapid.Int64Range(1, 12).Draw(t, "memory"))*gib,
		rapid.SliceOfN(cards, 0, 3).Draw(t, "cards")...)
	for i := range r.GPUs {
		g := &r.GPUs[i]
		g.Vendor = rapid.SampledFrom([]string{"", "", "nvidia", "amd"}).Draw(t, "vendor")
		g.Kind = rapid.SampledFrom([]offpeak.GPUKind{"", "", offpeak.GPUAny, offpeak.GPUUnified}).Draw(t, "kind")
		g.Compute, g.Driver = rapid.SampledFrom([]string{"", "", "8.6"}).Draw(t, "compute"), rapid.SampledFrom([]string{"", "", "535"}).Draw(t, "driver")
	}
	r.Match = rapid.SampledFrom([][]string{nil, nil, {"!metered"}, {"rack=7"}, {"rack!=7", "!metered"}}).Draw(t, "match")
	r.NotNodes = rapid.SampledFrom([][]offpeak.NodeID{nil, {"n0"}, {"n1", "n2"}}).Draw(t, "not nodes")
	j := job(r)
	j.Policy = rapid.SampledFrom(policies).Draw(t, "policy")
	j.Cached = rapid.SampledFrom([][]offpeak.NodeID{nil, {"n1"}, {"n2", "n3"}}).Draw(t, "cached")
	j.Avoid = rapid.SliceOfNDistinct(rapid.SampledFrom([]offpeak.NodeID{"n0", "n1", "n2", "n3"}), 0, 3, rapid.ID).Draw(t, "avoid")
	j.Now = opening.Add(-time.Hour)
	for _, id := range rapid.SliceOfN(rapid.SampledFrom([]offpeak.NodeID{"n0", "n1", "n2", "n4"}), 0, 2).Draw(t, "fences") {
		until := j.Now.Add(time.Duration(rapid.IntRange(-1, 2).Draw(t, "fence ends")) * time.Hour)
		j.Fences = append(j.Fences, placement.Fence{Node: id, Until: until})
	}
	return j
}

// fenced says whether a job may not go to a node yet.
func fenced(j *placement.Job, id offpeak.NodeID, at time.Time) bool {
	return slices.ContainsFunc(j.Fences, func(f placement.Fence) bool { return f.Node == id && f.Until.After(at) })
}

// The node that Best chooses is the first of those that Rank orders, and those
// are exactly the nodes that Explain, which prunes nothing, finds to fit.
func TestBestIsBruteForceBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, _ := drawFleet(t)
		j := drawJob(t)
		ranked := f.Rank(j)
		e := f.Explain(j, 1000)
		if len(ranked) != e.Fits {
			t.Fatalf("rank admits %d nodes, the predicate %d", len(ranked), e.Fits)
		}
		for i, c := range ranked {
			if e.Nodes[i].Node != c.Node {
				t.Fatalf("place %d: rank says %s, explain %s", i, c.Node, e.Nodes[i].Node)
			}
			if math.IsNaN(c.Score) || c.Score < 0 || c.Score > 1 {
				t.Fatalf("score of %s is %v", c.Node, c.Score)
			}
		}
		best, ok := f.Best(j)
		if ok != (len(ranked) > 0) || (ok && best.Node != ranked[0].Node) {
			t.Fatalf("best is %v (%v), ranked %v", best, ok, ranked)
		}
		// Brute force over the order's own definition, pair by pair.
		for _, c := range ranked {
			a, b := slices.Index(j.Avoid, best.Node), slices.Index(j.Avoid, c.Node)
			speed := func(id offpeak.NodeID) float64 {
				m := f.Metrics(id)
				if len(j.Requirements.GPUs) > 0 {
					return m.GPUSpeed
				}
				return m.CPUSpeed
			}
			worse := map[placement.Policy]int{
				placement.Cheapest: cmp.Or(cmp.Compare(best.Price, c.Price), cmp.Compare(c.Score, best.Score)),
				placement.Balanced: cmp.Compare(c.Score, best.Score),
				placement.Fastest:  cmp.Or(cmp.Compare(speed(c.Node), speed(best.Node)), cmp.Compare(best.Price, c.Price), cmp.Compare(c.Score, best.Score)),
			}
			if cmp.Or(cmp.Compare(a, b), worse[j.Policy]) > 0 {
				t.Fatalf("%+v was chosen before %+v", best, c)
			}
		}
		for _, v := range e.Nodes {
			may := f.MayFit(j, v.Node)
			if v.Reason.OK() != (may && !fenced(&j, v.Node, j.Now)) {
				t.Fatalf("%s: %s, but it may fit: %t", v.Node, v.Reason, may)
			}
			if may != (v.Reason.OK() || v.Reason.Code == offpeak.FitFence) {
				t.Fatalf("%s: %s, but it may fit: %t", v.Node, v.Reason, may)
			}
		}
	})
}

func TestMoreDemandingJobNeverHasMoreCandidates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, _ := drawFleet(t)
		j := drawJob(t)
		base := f.Rank(j)
		more := *j.Requirements
		more.GPUs = slices.Clone(more.GPUs)
		more.CPU += rapid.Int64Range(0, 4000).Draw(t, "more cpu")
		more.Memory += offpeak.Bytes(rapid.Int64Range(0, 8).Draw(t, "more memory")) * gib
		if len(more.GPUs) > 0 && rapid.Bool().Draw(t, "more vram") {
			more.GPUs[0].VRAM += 8 * gib
		}
		if rapid.Bool().Draw(t, "another card") {
			more.GPUs = append(more.GPUs, offpeak.GPURequest{})
		}
		for i := range more.GPUs {
			switch rapid.IntRange(0, 4).Draw(t, "more of the card") {
			case 0:
				more.GPUs[i].Compute = "8.9"
			case 1:
				more.GPUs[i].Driver = "550.54.14"
			}
		}
		more.Match = append(slices.Clone(more.Match), rapid.SampledFrom([]string{"rack", "!rack", "metered!=yes"}).Draw(t, "condition"))
		more.NotNodes = append(slices.Clone(more.NotNodes), "n3")
		j.Requirements = &more
		for _, c := range f.Rank(j) {
			if !slices.ContainsFunc(base, func(b placement.Candidate) bool { return b.Node == c.Node }) {
				t.Fatalf("%s fits the more demanding job only", c.Node)
			}
		}
	})
}

func BenchmarkBest(b *testing.B) {
	for _, size := range []int{1000, 4000} {
		f := placement.NewFleet(placement.DefaultWeights())
		for i := range size {
			f.Set(machine(fmt.Sprintf("node_%06d", i), 16000, 64*gib, 24*gib), nil)
		}
		for name, r := range map[string]*offpeak.Requirements{
			"cpu": asks(1000, gib), "gpu": asks(1000, gib, 16*gib), "none": asks(1000, gib, 48*gib),
		} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					f.Best(job(r))
				}
			})
		}
	}
}

// A node takes strangers' jobs only for the drivers that it shares.
func TestStrangersGetWhatIsShared(t *testing.T) {
	n := machine("n", 8000, 32*gib)
	n.Inventory.Shared = []string{"wasm"}
	f := fleetOf(n)
	for _, c := range []struct {
		account offpeak.AccountID
		driver  string
		want    offpeak.FitCode
	}{
		{"acct_o", "process", offpeak.FitOK},
		{"acct_s", "wasm", offpeak.FitOK},
		{"acct_s", "process", offpeak.FitStranger},
	} {
		j := job(asks(1000, gib))
		j.Account, j.Driver = c.account, c.driver
		if got := f.Explain(j, 1).Nodes[0].Reason.Code; got != c.want {
			t.Errorf("%s's %s job: %q, want %q", c.account, c.driver, got, c.want)
		}
		if _, ok := f.Best(j); ok != (c.want == offpeak.FitOK) {
			t.Errorf("%s's %s job: placed %v", c.account, c.driver, ok)
		}
	}
}
