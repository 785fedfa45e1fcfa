package placement

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"offpeak"
)

// Policy is the vocabulary's. All put avoided nodes last and end with a tie that the
// job seeds.
type Policy = offpeak.Policy

// The policies; "" is Cheapest.
const (
	Cheapest = offpeak.PolicyCheapest
	Balanced = offpeak.PolicyBalanced
	Fastest  = offpeak.PolicyFastest
)

// Metrics are the secondary metrics of a node. Zero is not known, and weighs
// nothing.
type Metrics struct {
	// Reliability is the share of its leases that the node did not let down.
	Reliability float64 `json:"reliability,omitempty"`
	// Return is the expected time until its owner wants it back.
	Return time.Duration `json:"return,omitempty"`
	// GPUSpeed and CPUSpeed are benchmarks: for jobs with devices and without, the
	// larger the faster, a common machine about 1.
	GPUSpeed float64 `json:"gpu_speed,omitempty"`
	CPUSpeed float64 `json:"cpu_speed,omitempty"`
	// Latency is how long a message to it takes.
	Latency time.Duration `json:"latency,omitempty"`
}

// Where a metric without a natural bound is worth half.
const (
	halfReturn  = 4 * time.Hour
	halfSpeed   = 1.0
	halfLatency = 100 * time.Millisecond
)

// sane replaces what is no measure by not known.
func (m Metrics) sane() Metrics {
	for _, f := range []*float64{&m.Reliability, &m.GPUSpeed, &m.CPUSpeed} {
		if math.IsNaN(*f) || math.IsInf(*f, 0) || *f < 0 {
			*f = 0
		}
	}
	m.Reliability = min(m.Reliability, 1)
	m.Return, m.Latency = max(m.Return, 0), max(m.Latency, 0)
	return m
}

// merits are the parts that metrics make, each from 0 to 1, higher is better.
type merits struct{ reliability, returns, speed, latency float64 }

func (m *Metrics) merits(gpus bool) (out merits) {
	if m == nil {
		return merits{}
	}
	out.reliability = m.Reliability
	out.returns = saturated(float64(m.Return), float64(halfReturn))
	out.speed = saturated(m.speed(gpus), halfSpeed)
	if m.Latency > 0 {
		out.latency = float64(halfLatency) / (float64(halfLatency) + float64(m.Latency))
	}
	return out
}

func (m *Metrics) speed(gpus bool) float64 {
	switch {
	case m == nil:
		return 0
	case gpus:
		return m.GPUSpeed
	}
	return m.CPUSpeed
}

func (m merits) weighed(w *Weights) float64 {
	return m.reliability*w.Reliability + m.returns*w.Return + m.speed*w.Speed + m.latency*w.Latency
}

// saturated grows from 0 towards 1, and is a half at half.
func saturated(x, half float64) float64 { return x / (x + half) }

// key is a node's place in the order of a job's policy: who compares lower goes
// first. What a policy does not look at is the same for all.
type key struct {
	avoided int
	speed   float64
	price   offpeak.Price // of one device, or without any
	score   float64
	// tie is how far the node stands behind the job on a ring of hashes; node is
	// for hashes that are equal.
	tie  uint64
	node offpeak.NodeID
}

func (a *key) compare(b *key) int {
	switch {
	case a.avoided != b.avoided:
		return cmp.Compare(a.avoided, b.avoided)
	case a.speed != b.speed:
		return cmp.Compare(b.speed, a.speed)
	case a.price != b.price:
		return cmp.Compare(a.price, b.price)
	case a.score != b.score:
		return cmp.Compare(b.score, a.score)
	case a.tie != b.tie:
		return cmp.Compare(a.tie, b.tie)
	}
	return strings.Compare(string(a.node), string(b.node))
}

// parts are the parts of a score, each from 0 to 1, higher is better. merit is
// weighed already.
type parts struct{ vram, cpu, memory, spareGPU, merit, cached, price float64 }

// priceFloor is added to both prices of the part price, so that next to nothing
// is not infinitely more than nothing.
const priceFloor = 1000

// ask is a job with what the inner loops need, computed once.
type ask struct {
	Job
	weights  *Weights
	seed     uint64
	question uint64 // in devices
	gpus     bool
	vram     offpeak.Bytes // of all devices asked for
	balanced bool
	fastest  bool
	// wakeable says that there are metrics that may count, awake that enough nodes
	// fit for them to count; lowest is the lowest price of those that fit, under the
	// policy balanced.
	wakeable bool
	awake    bool
	lowest   offpeak.Price
	// total is the sum of the weights that count.
	total float64
}

func (f *Fleet) newAsk(job Job) ask {
	a := ask{Job: job, weights: &f.weights, gpus: len(job.Requirements.GPUs) > 0}
	a.seed = mix(hashNumber(hashText(hashStart, string(job.ID)), uint64(job.Attempt)))
	a.balanced, a.fastest = job.Policy == Balanced, job.Policy == Fastest
	a.wakeable = (f.measured > 0 || len(job.Cached) > 0) && f.weights.secondary() > 0
	for i := range job.Requirements.GPUs {
		a.vram += job.Requirements.GPUs[i].VRAM
	}
	f.devices.question++
	a.question = f.devices.question
	a.settle(0, 0)
	return a
}

// settle notes what is known of the choice as a whole: how many nodes fit, and
// the lowest of their prices.
func (a *ask) settle(fits int, lowest offpeak.Price) {
	w := a.weights
	a.awake, a.lowest = a.wakeable && fits >= w.Baseline, lowest
	a.total = w.VRAM + w.CPU + w.Memory + w.SpareGPU
	if a.balanced {
		a.total += w.Price
	}
	if a.awake {
		a.total += w.secondary()
	}
}

// score is the weighted mean of the parts. Each step is monotone in each part,
// also as floating point numbers round: bounds of parts give bounds of scores.
func (a *ask) score(p *parts) float64 {
	if !(a.total > 0) {
		return 0
	}
	w := a.weights
	sum := p.vram*w.VRAM + p.cpu*w.CPU + p.memory*w.Memory + p.spareGPU*w.SpareGPU
	if a.balanced {
		sum += p.price * w.Price
	}
	if a.awake {
		sum += p.merit + p.cached*w.Cached
	}
	return sum / a.total
}

// parts of a node, of whose devices vram fit so tightly.
func (a *ask) parts(n *node, vram float64) parts {
	free := &n.offer.Free
	p := parts{
		vram:     vram,
		cpu:      ratio(a.Requirements.CPU, free.CPU),
		memory:   ratio(int64(a.Requirements.Memory), int64(free.Memory)),
		spareGPU: 1,
		merit:    n.metrics.merits(a.gpus).weighed(a.weights),
	}
	if !a.gpus {
		p.spareGPU = spares[n.spare()]
	}
	if len(a.Cached) > 0 && slices.Contains(a.Cached, n.offer.Node) {
		p.cached = 1
	}
	if a.balanced {
		p.price = a.cheapness(a.price(n))
	}
	return p
}

func (a *ask) cheapness(p offpeak.Price) float64 {
	return ratio(int64(a.lowest)+priceFloor, int64(p)+priceFloor)
}

// spares are the parts of a job without devices on a node that has none, whose
// devices are all held, and that has an idle one.
var spares = [...]float64{1, 0.5, 0}

func (n *node) spare() uint8 {
	switch {
	case len(n.offer.Devices) == 0:
		return 0
	case n.set == nil:
		return 1
	}
	return 2
}

// price of one device, or of the node without any: what the job pays grows with
// it, whatever the job asks for.
func (a *ask) price(n *node) offpeak.Price {
	if a.gpus {
		return n.offer.Ask.GPU
	}
	return n.offer.Ask.CPU
}

// key of a node, of whose devices vram fit so tightly.
func (a *ask) key(n *node, vram float64) key {
	p := a.parts(n, vram)
	k := key{score: a.score(&p), tie: n.hash - a.seed, node: n.offer.Node}
	if !a.balanced {
		k.price = a.price(n)
	}
	if a.fastest {
		k.speed = n.metrics.speed(a.gpus)
	}
	if len(a.Avoid) > 0 {
		k.avoided = slices.Index(a.Avoid, n.offer.Node) + 1
	}
	return k
}

// admit says whether the job fits the node: the one predicate decides, and the
// job's fences.
func (a *ask) admit(n *node) bool {
	if len(a.Fences) > 0 {
		if _, fenced := a.Fenced(n.offer.Node); fenced {
			return false
		}
	}
	return a.Requirements.Fits(a.Account, a.Driver, &n.offer)
}

func (a *ask) candidate(n *node, k *key, fits int) Candidate {
	res, _ := a.Requirements.Assign(n.offer)
	return Candidate{
		Node: n.offer.Node, Price: n.offer.Ask.For(*a.Requirements), Score: k.score,
		Resources: res, Fits: fits, Version: a.weights.Version,
	}
}

// ratio is want/have within 0 and 1, never NaN.
func ratio(want, have int64) float64 {
	if have <= 0 || want >= have {
		return 1
	}
	return max(0, float64(want)/float64(have))
}
