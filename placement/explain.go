package placement

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"offpeak"
)

// Verdict is one node in an explanation.
type Verdict struct {
	Node    offpeak.NodeID
	Account offpeak.AccountID
	Name    string
	// Reason is the zero value where the job fits.
	Reason offpeak.Reason
	Score  float64
	// Parts are the parts of the score by name, where the job fits; Shares are what
	// each adds to it by its weight.
	Parts, Shares map[string]float64
	// Offer is the node's when it was looked at. Nobody may change it.
	Offer *offpeak.Offer
}

// Cause counts the nodes that failed one filter first.
type Cause struct {
	Code  offpeak.FitCode
	Nodes int
	// All counts those that fail it at all, where Nearest looked.
	All int
	// Nearest is the shortfall of the node that comes nearest.
	Nearest offpeak.Reason
}

// Explanation says where a job fits and why it does not elsewhere.
type Explanation struct {
	// Fits counts the nodes that fit now; Could those that would fit idle, Idle those
	// of them that take work now.
	Fits, Could, Idle int
	// Causes stand in the order of the filters that failed, the most nodes first.
	Causes []Cause
	// Nodes are those that fit, the best first, then the others by how near
	// they come; at most the limit that was asked for.
	Nodes []Verdict
	// Filters are how many nodes are left after each filter that any failed, in the
	// order in which they are tried.
	Filters []Filter
	// Won says why the first of those that fit comes first, nil where none fits.
	Won *Won
	// Asleep says that too few nodes fit for secondary metrics to count.
	Asleep bool
}

// Explain says why the job fits where it fits and why not elsewhere.
func (f *Fleet) Explain(job Job, limit int) Explanation { return f.Snapshot().Explain(job, limit) }

// Explain says why the job fits where it fits and why not elsewhere, by the code of
// the first filter that each node fails. Words are made for the nodes that it names.
func (s *Snapshot) Explain(job Job, limit int) Explanation {
	type place struct {
		*sight
		key
	}
	type short struct {
		*sight
		code    offpeak.FitCode
		lasting bool
		gap     float64
	}
	type cause struct {
		Cause
		short
	}
	var out Explanation
	a := s.picture.newAsk(job)
	closer := closer{job: &job, known: make(map[alike]offpeak.FitCode)}
	causes := make(map[offpeak.FitCode]*cause)
	others := foremost[short]{most: limit, compare: func(x, y short) int {
		return cmp.Or(boolCompare(x.lasting, y.lasting), cmp.Compare(x.gap, y.gap), cmp.Compare(x.offer.Node, y.offer.Node))
	}}
	var fits []*sight
	var lowest offpeak.Price
	for _, n := range s.nodes {
		code := closer.refused(&n.offer)
		if code == offpeak.FitOK {
			if _, fenced := job.Fenced(n.offer.Node); fenced {
				code = offpeak.FitFence
			}
		}
		if code == offpeak.FitOK {
			price := a.price(&node{sight: n})
			if len(fits) == 0 || price < lowest {
				lowest = price
			}
			fits = append(fits, n)
			continue
		}
		why := short{sight: n, code: code, lasting: offpeak.Reason{Code: code}.Lasting(), gap: a.gap(&n.offer, code)}
		if !why.lasting {
			out.Could++
			if n.offer.Ready {
				out.Idle++
			}
		}
		c := causes[code]
		if c == nil {
			c = &cause{Cause{Code: code}, why}
			causes[code] = c
		}
		if c.Nodes++; why.gap < c.gap {
			c.short = why
		}
		others.add(why)
	}
	out.Fits, out.Could, out.Idle = len(fits), out.Could+len(fits), out.Idle+len(fits)
	// The second says why the first won.
	best := foremost[place]{most: max(limit, 2), compare: func(x, y place) int { return x.compare(&y.key) }}
	a.settle(len(fits), lowest)
	for _, n := range fits {
		vram, _ := s.picture.devices.served(&a, n.set)
		best.add(place{n, a.key(&node{sight: n}, vram)})
	}
	first := make([]found, len(best.list))
	for i, p := range best.list {
		first[i] = found{&node{sight: p.sight}, p.key}
	}
	for i := range first[:min(limit, len(first))] {
		v := verdict(first[i].node.sight)
		v.Score = first[i].key.score
		v.Parts = s.picture.sheet(&a, first[i].node)
		v.Shares = a.shares(v.Parts)
		out.Nodes = append(out.Nodes, v)
	}
	for _, o := range others.list[:min(limit-len(out.Nodes), len(others.list))] {
		v := verdict(o.sight)
		v.Reason = job.Fit(&o.offer)
		out.Nodes = append(out.Nodes, v)
	}
	for _, c := range causes {
		c.Nearest = job.Fit(&c.offer)
		out.Causes = append(out.Causes, c.Cause)
	}
	slices.SortFunc(out.Causes, func(x, y Cause) int {
		return cmp.Or(cmp.Compare(y.Nodes, x.Nodes), cmp.Compare(x.Code, y.Code))
	})
	out.Asleep = out.Fits < s.picture.weights.Baseline
	out.Filters, out.Won = survivors(len(s.nodes), out.Causes), s.picture.won(&a, first)
	return out
}

func verdict(n *sight) Verdict {
	return Verdict{Node: n.offer.Node, Account: n.offer.Account, Name: n.name, Offer: &n.offer}
}

// foremost keeps the first of what it is given, so many, in order.
type foremost[T any] struct {
	most    int
	compare func(x, y T) int
	list    []T
}

func (f *foremost[T]) add(x T) {
	if n := len(f.list); n >= f.most {
		if n == 0 || f.compare(x, f.list[n-1]) >= 0 {
			return
		}
		f.list = f.list[:n-1]
	}
	at := sort.Search(len(f.list), func(i int) bool { return f.compare(x, f.list[i]) < 0 })
	f.list = slices.Insert(f.list, at, x)
}

// closer asks which filter refuses an offer, without words. What the devices of a
// node lack takes a closer look: one for all nodes that have the same.
type closer struct {
	job   *Job
	known map[alike]offpeak.FitCode
}

// alike are so many devices of a kind.
type alike struct {
	kind  offpeak.Device
	count int
}

func (c *closer) refused(o *offpeak.Offer) offpeak.FitCode {
	j := c.job
	code := j.Requirements.Refused(j.Account, j.Driver, o)
	if code != offpeak.FitGPU {
		return code
	}
	var k alike
	for i := range o.Devices {
		kind := nameless(o.Devices[i])
		if i > 0 && kind != k.kind {
			return j.Requirements.Fit(j.Account, j.Driver, *o).Code
		}
		k = alike{kind, i + 1}
	}
	code, known := c.known[k]
	if !known {
		code = j.Requirements.Fit(j.Account, j.Driver, *o).Code
		c.known[k] = code
	}
	return code
}

// sheet is the parts of a node's score by name.
func (f *Fleet) sheet(a *ask, n *node) map[string]float64 {
	vram, _ := f.devices.served(a, n.set)
	p := a.parts(n, vram)
	out := map[string]float64{"vram": p.vram, "cpu": p.cpu, "memory": p.memory, "spare_gpu": p.spareGPU}
	if a.balanced {
		out["price"] = p.price
	}
	if a.awake {
		m := n.metrics.merits(a.gpus)
		out["reliability"], out["return"], out["speed"], out["latency"], out["cached"] = m.reliability, m.returns, m.speed, m.latency, p.cached
	}
	return out
}

// gap says how far a node is from serving, as the share of what it lacks.
func (a *ask) gap(o *offpeak.Offer, code offpeak.FitCode) float64 {
	r := a.Requirements
	switch code {
	case offpeak.FitCPU:
		return 1 - ratio(o.Capacity.CPU, r.CPU)
	case offpeak.FitMemory:
		return 1 - ratio(int64(o.Capacity.Memory), int64(r.Memory))
	case offpeak.FitDisk:
		return 1 - ratio(int64(o.Capacity.Disk), int64(r.Disk))
	case offpeak.FitBusyCPU:
		return 1 - ratio(o.Free.CPU, r.CPU)
	case offpeak.FitBusyMemory:
		return 1 - ratio(int64(o.Free.Memory), int64(r.Memory))
	case offpeak.FitBusyDisk:
		return 1 - ratio(int64(o.Free.Disk), int64(r.Disk))
	case offpeak.FitWindow, offpeak.FitQuarantined, offpeak.FitNoAsk:
		// Sooner is nearer; any is nearer than nobody knows.
		if o.Opens != nil {
			return soon(*o.Opens)
		}
	case offpeak.FitFence:
		if until, fenced := a.Fenced(o.Node); fenced {
			return soon(until)
		}
	case offpeak.FitVRAM, offpeak.FitUnified, offpeak.FitGPU, offpeak.FitCompute, offpeak.FitGPUDriver, offpeak.FitBusyGPU:
		var most offpeak.Bytes
		for _, d := range o.Devices {
			most = max(most, d.VRAM)
		}
		if a.gpus {
			var want offpeak.Bytes
			for _, g := range r.GPUs {
				want = max(want, g.VRAM)
			}
			return 1 - ratio(int64(most), int64(want))
		}
	case offpeak.FitPrice:
		if r.MaxPrice != nil {
			return 1 - ratio(int64(*r.MaxPrice), int64(o.Ask.For(*r)))
		}
	}
	return 1
}

// soon is a gap of time: the sooner the less.
func soon(at time.Time) float64 {
	const far = 1 << 40
	return ratio(at.Unix(), far)
}

func boolCompare(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return 1
	}
	return -1
}
