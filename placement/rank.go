package placement

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strconv"

	"offpeak"
)

// Weights say how much each part of a score counts. They are data: another set
// over the same picture shows what it would have chosen.
type Weights struct {
	// VRAM weighs a tight fit of the devices: the heaviest part.
	VRAM float64
	// CPU and Memory weigh tight fits of the rest.
	CPU, Memory float64
	// SpareGPU weighs, for jobs without devices, that no idle device is taken
	// hostage by the node's CPU being used up.
	SpareGPU float64
	// Baseline is how many nodes must fit before secondary metrics (latency,
	// reliability, benchmark) may count. None is measured yet; explanations say
	// that they sleep.
	Baseline int
}

// DefaultWeights returns the weights of a hub that sets none.
func DefaultWeights() Weights {
	return Weights{VRAM: 8, CPU: 1, Memory: 1, SpareGPU: 4, Baseline: 100}
}

// Job is what placement needs of a queued job.
type Job struct {
	ID      offpeak.JobID
	Account offpeak.AccountID
	// Attempt is the one to be placed; with ID it seeds the last tie.
	Attempt      offpeak.Attempt
	Driver       string
	Requirements *offpeak.Requirements
	// Avoid are nodes where attempts ended badly, the newest last: they come after
	// all others, the newest at the very end. They stay candidates, so that nobody
	// is stranded, and so that asking for more never makes a node one.
	Avoid []offpeak.NodeID
}

// Candidate is a node that fits.
type Candidate struct {
	Node      offpeak.NodeID
	Price     offpeak.Price
	Score     float64
	Resources offpeak.Resources
	// Fits counts the nodes that were in the choice.
	Fits int
}

// key is the order of the policy cheapest: avoided nodes last, then price,
// then the higher score, then a tie that the job seeds.
type key struct {
	avoided int
	price   offpeak.Price
	score   float64
	tie     uint64
}

func (a key) compare(b key) int {
	return cmp.Or(
		cmp.Compare(a.avoided, b.avoided),
		cmp.Compare(a.price, b.price),
		cmp.Compare(b.score, a.score),
		cmp.Compare(a.tie, b.tie),
	)
}

// Best returns the node to claim, or false if none fits now. Nodes are scored
// before they are checked, since scoring is cheaper than Fit; the first in
// order that Fit admits is the one.
func (f *Fleet) Best(job Job) (Candidate, bool) {
	a := newAsk(job)
	var refused []*node
	for {
		var best *node
		var bestKey key
		fits := 0
		for _, n := range f.nodes {
			if a.prunes(n) || slices.Contains(refused, n) {
				continue
			}
			fits++
			k := f.key(&a, n)
			if best == nil || k.compare(bestKey) < 0 {
				best, bestKey = n, k
			}
		}
		if best == nil {
			return Candidate{}, false
		}
		if res, ok := a.admit(best); ok {
			return Candidate{best.offer.Node, bestKey.price, bestKey.score, res, fits}, true
		}
		refused = append(refused, best)
		if len(refused) > 8 {
			return f.bestOf(job)
		}
	}
}

// bestOf is Best where the cheap checks let through many nodes that do not
// fit: it checks every node once.
func (f *Fleet) bestOf(job Job) (Candidate, bool) {
	if all := f.Rank(job); len(all) > 0 {
		return all[0], true
	}
	return Candidate{}, false
}

// Rank returns all nodes that fit now, the best first.
func (f *Fleet) Rank(job Job) []Candidate {
	a := newAsk(job)
	type ranked struct {
		Candidate
		key
	}
	var all []ranked
	for _, n := range f.nodes {
		if a.prunes(n) {
			continue
		}
		if res, ok := a.admit(n); ok {
			k := f.key(&a, n)
			all = append(all, ranked{Candidate{n.offer.Node, k.price, k.score, res, 0}, k})
		}
	}
	slices.SortFunc(all, func(x, y ranked) int { return x.compare(y.key) })
	out := make([]Candidate, len(all))
	for i := range all {
		out[i] = all[i].Candidate
		out[i].Fits = len(all)
	}
	return out
}

// Candidate is one node as Best would return it, or false if it does not fit now.
func (f *Fleet) Candidate(job Job, id offpeak.NodeID) (Candidate, bool) {
	n := f.byID[id]
	if n == nil {
		return Candidate{}, false
	}
	a := newAsk(job)
	res, ok := a.admit(n)
	k := f.key(&a, n)
	return Candidate{n.offer.Node, k.price, k.score, res, 1}, ok
}

// MayFit says whether the job might fit the node now: false is certain.
func (f *Fleet) MayFit(job Job, id offpeak.NodeID) bool {
	n := f.byID[id]
	if n == nil {
		return false
	}
	a := newAsk(job)
	return !a.prunes(n)
}

// ask is a job with what the inner loops need, computed once.
type ask struct {
	Job
	seed uint64
	// vram are the device sizes that are enough, largest first.
	vram []offpeak.Bytes
	// want is the memory asked for in all, of which the tolerance may be missing.
	want offpeak.Bytes
	// named says that a request asks for more than a size, so that sizes alone do
	// not tell which device it gets.
	named bool
}

func newAsk(job Job) ask {
	a := ask{Job: job}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(job.ID))
	_, _ = sum.Write(strconv.AppendInt(nil, int64(job.Attempt), 10))
	a.seed = sum.Sum64()
	for _, g := range job.Requirements.GPUs {
		a.vram = append(a.vram, g.Least())
		a.want += g.VRAM
		g.VRAM = 0
		a.named = a.named || g != offpeak.GPURequest{}
	}
	slices.SortFunc(a.vram, func(x, y offpeak.Bytes) int { return cmp.Compare(y, x) })
	return a
}

// prunes says that Fit would refuse the node, from numbers alone.
func (a *ask) prunes(n *node) bool {
	r, free := a.Requirements, &n.offer.Free
	return !n.offer.Ready || r.CPU > free.CPU || r.Memory > free.Memory || r.Disk > free.Disk ||
		len(a.vram) > len(n.vram) || (len(a.vram) > 0 && a.vram[0] > n.mostVRAM)
}

func (a *ask) admit(n *node) (offpeak.Resources, bool) {
	if !a.Requirements.Fits(a.Account, a.Driver, &n.offer) {
		return offpeak.Resources{}, false
	}
	return a.Requirements.Assign(n.offer)
}

func (f *Fleet) key(a *ask, n *node) key {
	k := key{price: n.offer.Ask.For(*a.Requirements), tie: mix(a.seed ^ n.hash)}
	if i := slices.Index(a.Avoid, n.offer.Node); i >= 0 {
		k.avoided = i + 1
	}
	k.score = f.score(a, n).total(f.weights)
	return k
}

// mix spreads the bits of x, so that neighbours do not stay neighbours.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// parts are the parts of a score, each from 0 to 1, higher is better.
type parts struct{ vram, cpu, memory, spareGPU float64 }

// total is the weighted mean of the parts.
func (p parts) total(w Weights) float64 {
	sum := w.VRAM + w.CPU + w.Memory + w.SpareGPU
	if sum <= 0 {
		return 0
	}
	return (p.vram*w.VRAM + p.cpu*w.CPU + p.memory*w.Memory + p.spareGPU*w.SpareGPU) / sum
}

func (f *Fleet) score(a *ask, n *node) parts {
	free := &n.offer.Free
	p := parts{
		vram:     a.tightVRAM(n),
		cpu:      ratio(a.Requirements.CPU, free.CPU),
		memory:   ratio(int64(a.Requirements.Memory), int64(free.Memory)),
		spareGPU: 1,
	}
	if len(a.vram) == 0 && len(n.vram) > 0 {
		p.spareGPU = 0
	}
	return p
}

// tightVRAM is the share of the chosen devices' memory that was asked for: 1
// is a perfect fit, and what a job without devices gets.
func (a *ask) tightVRAM(n *node) float64 {
	if len(a.vram) == 0 {
		return 1
	}
	var have offpeak.Bytes
	if a.named || n.unified {
		res, ok := a.Requirements.Assign(n.offer)
		if !ok {
			return 0
		}
		for _, d := range n.offer.FreeDevices {
			if slices.Contains(res.Devices, d.ID) {
				have += d.VRAM
			}
		}
		return ratio(int64(a.want), int64(have))
	}
	// Largest request first, each the smallest device left that serves: a
	// request that is not larger than the one before looks from the start.
	var used [4]uint64
	if len(n.vram) > 64*len(used) {
		return 0
	}
	for _, v := range a.vram {
		i, _ := slices.BinarySearch(n.vram, v)
		for i < len(n.vram) && used[i/64]&(1<<(i%64)) != 0 {
			i++
		}
		if i == len(n.vram) {
			return 0
		}
		used[i/64] |= 1 << (i % 64)
		have += n.vram[i]
	}
	return ratio(int64(a.want), int64(have))
}

// ratio is want/have within 0 and 1, never NaN.
func ratio(want, have int64) float64 {
	if have <= 0 || want >= have {
		return 1
	}
	return max(0, float64(want)/float64(have))
}
