package placement_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/placement"
)

func TestPolicies(t *testing.T) {
	priced := func(n offpeak.Node, p offpeak.Price) offpeak.Node {
		n.Ask = &offpeak.Ask{GPU: p * 1000, CPU: p * 1000}
		return n
	}
	// The cheapest has far more memory than asked for, the fastest is dear.
	nodes := []offpeak.Node{
		priced(machine("cheap", 16_000, 64*gib, 80*gib), 100), priced(machine("tight", 2000, 2*gib, 24*gib), 110),
		priced(machine("fast", 16_000, 64*gib, 80*gib), 300), priced(machine("dear", 1000, gib, 24*gib), 900),
	}
	f := fleetOf(nodes...)
	for id, speed := range map[offpeak.NodeID]float64{"cheap": 1, "tight": 0.5, "fast": 3, "dear": 3} {
		f.SetMetrics(id, placement.Metrics{GPUSpeed: speed})
	}
	for policy, want := range map[placement.Policy][]offpeak.NodeID{
		"":                 {"cheap", "tight", "fast", "dear"},
		placement.Cheapest: {"cheap", "tight", "fast", "dear"},
		placement.Balanced: {"tight", "dear", "cheap", "fast"},
		placement.Fastest:  {"fast", "dear", "cheap", "tight"},
	} {
		j := job(asks(1000, gib, 24*gib))
		j.Policy = policy
		var got []offpeak.NodeID
		for _, c := range f.Rank(j) {
			got = append(got, c.Node)
		}
		best, _ := f.Best(j)
		if !slices.Equal(got, want) || best.Node != want[0] || !policy.Valid() {
			t.Errorf("%q orders %v and chooses %s, want %v", policy, got, best.Node, want)
		}
	}
	if placement.Policy("dearest").Valid() {
		t.Error("a policy was made up")
	}
}

// A job without devices prefers nodes without any, then those whose devices are
// all held, then the rest, however tightly it would fit there; but it waits for
// none of that.
func TestCPUJobsSpareIdleGPUs(t *testing.T) {
	f := fleetOf(machine("none", 64_000, 512*gib), machine("busy", 16_000, 64*gib, 24*gib), machine("idle", 1000, gib, 24*gib))
	f.Hold("busy", "lease", offpeak.Resources{Devices: []offpeak.DeviceID{"GPU-busy-0"}})
	j := job(asks(1000, gib))
	for _, want := range []offpeak.NodeID{"none", "busy", "idle"} {
		c, ok := f.Best(j)
		if !ok || c.Node != want {
			t.Fatalf("chose %q, want %q", c.Node, want)
		}
		f.SetAvailability(want, offpeak.NodeInUse)
	}
}

// Metrics weigh nothing until enough nodes fit, and then they decide between
// nodes that are alike otherwise; the explanation says which.
func TestMetricsSleepUntilTheBaseline(t *testing.T) {
	good := map[string]placement.Metrics{
		"reliability": {Reliability: 1}, "return": {Return: 8 * time.Hour}, "speed": {CPUSpeed: 2}, "latency": {Latency: time.Millisecond}, "cached": {},
	}
	for name, m := range good {
		t.Run(name, func(t *testing.T) {
			w := placement.DefaultWeights()
			w.Baseline = 10
			f := placement.NewFleet(w)
			chosen := map[offpeak.NodeID]bool{}
			choose := func(n int) placement.Explanation {
				clear(chosen)
				for i := range 40 {
					j := job(asks(1000, gib))
					j.ID = offpeak.JobID(fmt.Sprint("job_", i))
					if name == "cached" {
						j.Cached = []offpeak.NodeID{"n3"}
					}
					c, _ := f.Best(j)
					if all := f.Rank(j); all[0].Node != c.Node || all[0].Score != c.Score {
						t.Fatalf("chose %+v, the best is %+v", c, all[0])
					}
					if c.Fits != n {
						t.Fatalf("%d fit, want %d", c.Fits, n)
					}
					chosen[c.Node] = true
				}
				return f.Explain(job(asks(1000, gib)), 100)
			}
			for i := range 9 {
				f.Set(machine(fmt.Sprint("n", i), 4000, 8*gib), nil)
			}
			f.SetMetrics("n3", m)
			if e := choose(9); len(chosen) < 5 || !e.Asleep || e.Nodes[0].Parts["reliability"] != 0 {
				t.Fatalf("below the baseline only %v were chosen; explained as %+v", chosen, e)
			}
			f.Set(machine("n9", 4000, 8*gib), nil)
			if e := choose(10); len(chosen) != 1 || !chosen["n3"] || e.Asleep {
				t.Fatalf("at the baseline %v were chosen; explained as %+v", chosen, e)
			}
			f.SetMetrics("n3", placement.Metrics{})
			if e := f.Explain(job(asks(1000, gib)), 1); name != "cached" && len(e.Nodes[0].Parts) != 4 {
				t.Fatalf("without any metric the sheet has %v", e.Nodes[0].Parts)
			}
			f.SetMetrics("n3", m)
			f.Remove("n0")
			if choose(9); len(chosen) < 5 {
				t.Fatalf("below the baseline again only %v were chosen", chosen)
			}
		})
	}
}

func drawWeights(t *rapid.T) placement.Weights {
	part := rapid.SampledFrom([]float64{0, 0.1, 1, 7.9})
	w := placement.Weights{VRAM: 8, Baseline: rapid.IntRange(0, 5).Draw(t, "baseline")}
	for _, p := range []*float64{&w.CPU, &w.Memory, &w.SpareGPU, &w.Price, &w.Reliability, &w.Return, &w.Speed, &w.Latency, &w.Cached} {
		*p = part.Draw(t, "weight")
	}
	return w
}

// Whatever is weighed, and however good a node is otherwise: no job gets a node
// that lacks the memory of devices it asks for.
func TestVRAMIsNeverBoughtOff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, nodes := drawFleet(t)
		if err := f.SetWeights(drawWeights(t)); err != nil {
			t.Fatal(err)
		}
		j := drawJob(t)
		if len(j.Requirements.GPUs) == 0 {
			j.Requirements.GPUs = []offpeak.GPURequest{{VRAM: 12 * gib}}
		}
		vram := map[offpeak.DeviceID]offpeak.Bytes{}
		for _, n := range nodes {
			for _, d := range n.Inventory.Devices {
				vram[d.ID] = d.VRAM
			}
			if n.Name == "n0" || n.Name == "n1" { // the best of all, but for its devices
				f.SetMetrics(n.ID, placement.Metrics{Reliability: 1, Return: 1000 * time.Hour, GPUSpeed: 1000, CPUSpeed: 1000, Latency: 1})
				f.SetAsk(n.ID, &offpeak.Ask{})
			}
		}
		best, ok := f.Best(j)
		all := f.Rank(j)
		if ok != (len(all) > 0) || ok && all[0].Node != best.Node {
			t.Fatalf("chose %+v, the best of all are %+v", best, all)
		}
		for _, c := range append(all, best) {
			for i, id := range c.Resources.Devices {
				if vram[id] < j.Requirements.GPUs[i].VRAM {
					t.Fatalf("%s has %s, asked for %s", id, vram[id], j.Requirements.GPUs[i].VRAM)
				}
			}
		}
	})
}

// The order is total: however the nodes came in, it is the same, and no score is
// out of bounds.
func TestOrderIsTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 12).Draw(t, "nodes")
		var nodes []offpeak.Node
		metrics := map[offpeak.NodeID]placement.Metrics{}
		for i := range n {
			nodes = append(nodes, drawNode(t, i))
			metrics[nodes[i].ID] = drawMetrics(t)
		}
		w := drawWeights(t)
		j := drawJob(t)
		rank := func() (out []offpeak.NodeID) {
			f := placement.NewFleet(w)
			for _, n := range nodes {
				f.Set(n, nil)
				f.SetMetrics(n.ID, metrics[n.ID])
			}
			for _, c := range f.Rank(j) {
				if !(c.Score >= 0 && c.Score <= 1) {
					t.Fatalf("the score of %s is %v", c.Node, c.Score)
				}
				out = append(out, c.Node)
			}
			return out
		}
		first := rank()
		nodes = rapid.Permutation(nodes).Draw(t, "order")
		if again := rank(); !slices.Equal(first, again) {
			t.Fatalf("ranked %v, in another order %v", first, again)
		}
	})
}

func TestWeightsAreValidated(t *testing.T) {
	if err := placement.DefaultWeights().Validate(); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*placement.Weights){
		"weights.vram":           func(w *placement.Weights) { w.VRAM = math.NaN() },
		"weights.cpu":            func(w *placement.Weights) { w.CPU = -1 },
		"weights.memory":         func(w *placement.Weights) { w.Memory = math.Inf(1) },
		"weights.spare_gpu":      func(w *placement.Weights) { w.SpareGPU = w.VRAM },
		"weights.reliability":    func(w *placement.Weights) { w.Reliability = 9 },
		"weights.cached":         func(w *placement.Weights) { w.Cached = 1001 },
		"weights.baseline_fleet": func(w *placement.Weights) { w.Baseline = -1 },
		"weights.version":        func(w *placement.Weights) { w.Version = -1 },
	} {
		w := placement.DefaultWeights()
		change(&w)
		err := w.Validate()
		var wrong *offpeak.FieldError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
		if f := fleetOf(); f.SetWeights(w) == nil || f.Weights() != placement.DefaultWeights() {
			t.Errorf("%s: set all the same", field)
		}
	}
	data, err := json.Marshal(placement.DefaultWeights())
	var back placement.Weights
	if err != nil || json.Unmarshal(data, &back) != nil || back != placement.DefaultWeights() {
		t.Errorf("%s reads as %+v, %v", data, back, err)
	}
}
