package placement

import (
	"cmp"
	"slices"
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
	// Fits counts the nodes that fit now; Could those that would fit idle.
	Fits, Could int
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
func (f *Fleet) Explain(job Job, limit int) Explanation {
	var out Explanation
	a := f.newAsk(job)
	var fits []found
	causes := make(map[offpeak.FitCode]*Cause)
	near := make(map[offpeak.FitCode]float64)
	type seen struct {
		Verdict
		key
		gap float64
	}
	all := make([]seen, 0, len(f.nodes))
	for _, n := range f.nodes {
		s := seen{Verdict: Verdict{Node: n.offer.Node, Account: n.offer.Account, Name: n.name}}
		s.Reason = job.Fit(&n.offer)
		if !s.Reason.Lasting() {
			out.Could++
		}
		if s.Reason.OK() {
			out.Fits++
			fits = append(fits, found{node: n})
		} else {
			s.gap = a.gap(n, s.Reason)
			c := causes[s.Reason.Code]
			if c == nil {
				c = &Cause{Code: s.Reason.Code, Nearest: s.Reason}
				causes[c.Code], near[c.Code] = c, s.gap
			}
			c.Nodes++
			if s.gap < near[c.Code] {
				c.Nearest, near[c.Code] = s.Reason, s.gap
			}
		}
		all = append(all, s)
	}
	f.order(&a, fits)
	sheets := make(map[offpeak.NodeID]*found, len(fits))
	for i := range fits {
		sheets[fits[i].key.node] = &fits[i]
	}
	for i := range all {
		if s := &all[i]; s.Reason.OK() {
			s.key = sheets[s.Node].key
			s.Score = s.score
			s.Parts = f.sheet(&a, sheets[s.Node].node)
			s.Shares = a.shares(s.Parts)
		}
	}
	slices.SortFunc(all, func(x, y seen) int {
		if x.Reason.OK() && y.Reason.OK() {
			return x.compare(&y.key)
		}
		return cmp.Or(
			-boolCompare(x.Reason.OK(), y.Reason.OK()),
			boolCompare(x.Reason.Lasting(), y.Reason.Lasting()),
			cmp.Compare(x.gap, y.gap),
			cmp.Compare(x.Node, y.Node),
		)
	})
	for _, s := range all[:min(limit, len(all))] {
		out.Nodes = append(out.Nodes, s.Verdict)
	}
	for _, c := range causes {
		out.Causes = append(out.Causes, *c)
	}
	slices.SortFunc(out.Causes, func(x, y Cause) int {
		return cmp.Or(cmp.Compare(y.Nodes, x.Nodes), cmp.Compare(x.Code, y.Code))
	})
	out.Asleep = out.Fits < f.weights.Baseline
	out.Filters, out.Won = survivors(len(f.nodes), out.Causes), f.won(&a, fits)
	return out
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
func (a *ask) gap(n *node, why offpeak.Reason) float64 {
	r, o := a.Requirements, &n.offer
	switch why.Code {
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
	case offpeak.FitWindow, offpeak.FitQuarantined:
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
