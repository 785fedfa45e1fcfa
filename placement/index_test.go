package placement_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"offpeak"
	"offpeak/placement"
)

// world is a fleet that changes at random.
type world struct {
	rng    *rand.Rand
	fleet  *placement.Fleet
	nodes  int
	leases map[offpeak.LeaseID]offpeak.NodeID
	serial int
	// kinds is how many kinds of nodes there are about; 1 makes all alike.
	kinds int
	// invent gives every node devices that no other has.
	invent bool
	// known are jobs that come again.
	known []placement.Job
}

func newWorld(seed uint64, nodes, kinds int) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 1)), fleet: placement.NewFleet(placement.DefaultWeights()),
		nodes: nodes, kinds: kinds, leases: make(map[offpeak.LeaseID]offpeak.NodeID),
	}
	return w
}

func (w *world) fill() {
	for i := range w.nodes {
		w.fleet.Set(w.node(i), nil)
	}
}

func (w *world) id(i int) offpeak.NodeID { return offpeak.NodeID(fmt.Sprintf("n%d", i)) }

func (w *world) node(i int) offpeak.Node {
	k := 1 + w.rng.IntN(w.kinds)
	n := machine(string(w.id(i)), 4000<<(k%3), offpeak.Bytes(8<<(k%4))*gib, [][]offpeak.Bytes{
		nil, {8 * gib}, {12 * gib}, {24 * gib}, {8 * gib, 8 * gib}, {8 * gib, 24 * gib}, {24 * gib, 24 * gib, 24 * gib},
	}[k%7]...)
	for d := range n.Inventory.Devices {
		n.Inventory.Devices[d].Vendor = []string{"nvidia", "amd"}[k/7%2]
		if w.invent {
			n.Inventory.Devices[d].VRAM += offpeak.Bytes(i)
		}
	}
	p := offpeak.Price(k % 3)
	n.Ask = &offpeak.Ask{GPU: p * 1000, CPU: p * 500}
	if k%11 == 3 {
		n.Inventory.Labels = map[string]string{"rack": "7"}
	}
	if k%13 == 5 {
		n.Inventory.Shared = []string{"wasm"}
	}
	if k%7 == 2 {
		n.Inventory.Guests = &offpeak.Guests{Allow: []offpeak.AccountID{"acct_x", "acct_s"}[:1+k%2]}
	}
	return n
}

func (w *world) job() placement.Job {
	w.serial++
	if len(w.known) > 0 && w.rng.IntN(2) == 0 {
		j := w.known[w.rng.IntN(len(w.known))]
		j.ID, j.Avoid = offpeak.JobID(fmt.Sprintf("job_%d", w.serial)), nil
		j.Fences = w.fences()
		return j
	}
	r := asks([]int64{250, 1000, 2000, 7000}[w.rng.IntN(4)], offpeak.Bytes(1+w.rng.IntN(6))*gib)
	for range []int{0, 0, 1, 1, 1, 2}[w.rng.IntN(6)] {
		r.GPUs = append(r.GPUs, offpeak.GPURequest{
			VRAM:   offpeak.Bytes(4+w.rng.IntN(22)) * gib,
			Vendor: []string{"", "", "amd", "nvidia"}[w.rng.IntN(4)],
		})
	}
	if w.rng.IntN(8) == 0 {
		r.Where = map[string]string{"rack": "7"}
	}
	r.Match = [][]string{nil, nil, nil, {"rack=7"}, {"!rack"}, {"rack!=7", "rack"}}[w.rng.IntN(6)]
	if w.rng.IntN(6) == 0 {
		r.Nodes = []offpeak.NodeID{w.id(w.rng.IntN(w.nodes)), w.id(w.rng.IntN(w.nodes)), "none"}
	}
	if w.rng.IntN(4) == 0 {
		p := offpeak.Price(w.rng.IntN(4) * 700)
		r.MaxPrice = &p
	}
	j := job(r)
	j.ID = offpeak.JobID(fmt.Sprintf("job_%d", w.serial))
	j.Policy = []placement.Policy{"", placement.Cheapest, placement.Balanced, placement.Fastest}[w.rng.IntN(4)]
	for range w.rng.IntN(3) {
		j.Avoid = append(j.Avoid, w.id(w.rng.IntN(w.nodes)))
	}
	j.Now, j.Fences = opening, w.fences()
	if w.rng.IntN(3) == 0 {
		j.Cached = []offpeak.NodeID{w.id(w.rng.IntN(w.nodes))}
	}
	if len(w.known) < 8 {
		j.Class = fmt.Sprint("class ", len(w.known))
		w.known = append(w.known, j)
	}
	return j
}

// fences keep a job off some nodes, or did until now; at times off all but a few.
func (w *world) fences() (out []placement.Fence) {
	n := []int{0, 0, 1, 3, w.nodes - 5}[w.rng.IntN(5)]
	for i := range min(n, 40) {
		until := opening.Add(time.Duration(w.rng.IntN(3)) * time.Minute)
		out = append(out, placement.Fence{Node: w.id(w.rng.IntN(w.nodes)), Until: until})
		if i > 3 {
			out[i].Node = w.id(i)
		}
	}
	return out
}

func (w *world) change() {
	id := w.id(w.rng.IntN(w.nodes))
	w.serial++
	switch w.rng.IntN(12) {
	case 0:
		w.fleet.SetLiveness(id, []offpeak.Liveness{offpeak.NodeOnline, offpeak.NodeOnline, offpeak.NodeOffline}[w.rng.IntN(3)])
	case 1:
		w.fleet.SetAvailability(id, []offpeak.Availability{offpeak.NodeAvailable, offpeak.NodeAvailable, offpeak.NodeInUse}[w.rng.IntN(3)], "")
	case 2:
		p := offpeak.Price(w.rng.IntN(3))
		w.fleet.SetAsk(id, &offpeak.Ask{GPU: p * 1000, CPU: p * 500})
	case 3:
		if w.rng.IntN(3) == 0 {
			w.fleet.Remove(id)
		} else {
			w.fleet.Set(w.node(w.rng.IntN(w.nodes)), nil)
		}
	case 4:
		w.fleet.SetMetrics(id, placement.Metrics{
			Reliability: float64(w.rng.IntN(3)) / 2, Return: time.Duration(w.rng.IntN(3)) * time.Hour,
			GPUSpeed: float64(w.rng.IntN(3)), CPUSpeed: float64(w.rng.IntN(3)), Latency: time.Duration(w.rng.IntN(3)) * 10 * time.Millisecond,
		})
	case 5, 6:
		for lease, node := range w.leases {
			w.fleet.Release(node, lease)
			delete(w.leases, lease)
			break
		}
	default:
		if c, ok := w.fleet.Best(w.job()); ok {
			lease := offpeak.LeaseID(fmt.Sprintf("lease_%d", w.serial))
			w.fleet.Hold(c.Node, lease, c.Resources)
			w.leases[lease] = c.Node
		}
	}
}

// Over fleets of several blocks that change at random, the index finds what a
// look at every node finds, under each policy, with metrics asleep and awake.
func TestIndexIsBruteForce(t *testing.T) {
	for _, c := range []struct {
		nodes, kinds, baseline int
		invent                 bool
	}{
		{30, 200, 5, false}, {1500, 200, 100, false}, {1500, 1, 100, false}, {1500, 4, 100_000, false}, {600, 30, 0, false}, {2500, 200, 50, true},
	} {
		t.Run(fmt.Sprintf("%d_of_%d_%v", c.nodes, c.kinds, c.invent), func(t *testing.T) {
			w := newWorld(uint64(c.nodes+c.kinds), c.nodes, c.kinds)
			w.invent = c.invent
			w.fill()
			weights := placement.DefaultWeights()
			weights.Baseline, weights.Version = c.baseline, 7
			if err := w.fleet.SetWeights(weights); err != nil {
				t.Fatal(err)
			}
			placed := 0
			for round := range 80 {
				for range 20 {
					w.change()
				}
				if round%10 == 0 {
					if err := w.fleet.CheckIndex(); err != nil {
						t.Fatal(err)
					}
				}
				j := w.job()
				got, ok := w.fleet.Best(j)
				all := w.fleet.Rank(j)
				if ok != (len(all) > 0) {
					t.Fatalf("round %d: %+v, %+v: found %v, of %d that fit", round, j, j.Requirements, ok, len(all))
				}
				if !ok {
					continue
				}
				placed++
				if got.Node != all[0].Node || got.Score != all[0].Score || got.Price != all[0].Price || got.Version != 7 {
					t.Fatalf("round %d: %+v, %+v: found %+v, the best is %+v", round, j, j.Requirements, got, all[0])
				}
				if got.Fits > len(all) || (got.Fits >= c.baseline) != (len(all) >= c.baseline) && got.Fits > 0 {
					t.Fatalf("counted %d of %d", got.Fits, len(all))
				}
			}
			if placed < 8 {
				t.Fatalf("only %d jobs were placed: nothing was tested", placed)
			}
		})
	}
}
