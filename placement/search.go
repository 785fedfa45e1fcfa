package placement

import "offpeak"

// found is the best node that is known to fit.
type found struct {
	node *node
	key  key
}

// stop is where a search will look: a block, once what its nodes can be at best
// is known, or the rest of a group from a block on.
type stop struct {
	bound  key
	head   *head
	at     int
	opened bool
}

// search finds the best node that fits, by branch and bound: it looks into the
// block whose best possible node comes first in order, until none can be better
// than the best found. It changes nothing but scratch space.
func (f *Fleet) search(a *ask) found {
	v, q := f.view(a), a.need()
	var best found
	for _, id := range a.Cached {
		// Bounds do not reckon with cached inputs: who has them goes first.
		if n := f.byID[id]; n != nil && v.admits(n) {
			vram, ok := f.devices.served(a, n.set)
			if k := a.key(n, vram); ok && best.after(&k) && a.admit(n) {
				best = found{n, k}
			}
		}
	}
	if only := a.Requirements.Nodes; len(only) > 0 {
		for _, id := range only {
			if n := f.byID[id]; n != nil {
				vram, ok := f.devices.served(a, n.set)
				if k := a.key(n, vram); ok && best.after(&k) && a.admit(n) {
					best = found{n, k}
				}
			}
		}
		return best
	}
	heap := stops(f.stops[:0])
	for i := range v.heads {
		if h := &v.heads[i]; f.consider(a, &q, h) {
			heap = append(heap, stop{bound: a.rest(v, &q, h, h.order, h.price), head: h})
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		heap.sink(i)
	}
	for len(heap) > 0 && best.after(&heap[0].bound) {
		s := heap.pop()
		if s.opened {
			f.scan(a, v, &q, s.head, s.head.group.blocks[s.at], &best)
		} else {
			heap = a.open(v, &q, s, heap, &best)
		}
	}
	f.stops = heap[:0]
	return best
}

// after says that what comes at k, if it fits, is better than the best found.
func (b *found) after(k *key) bool { return b.node == nil || k.compare(&b.key) < 0 }

// consider prepares a group for a question and says whether it may have nodes
// that fit.
func (f *Fleet) consider(a *ask, q *need, h *head) (may bool) {
	h.tight, may = 1, true
	switch {
	case !a.gpus:
		may = h.cores >= coreClass(q.cpu)
	case h.slot >= 0:
		if may = int(h.count) >= len(a.Requirements.GPUs); may {
			h.tight, may = f.devices.serves(a, int(h.slot))
		}
	case h.set != nil:
		h.tight, may = f.devices.served(a, h.set)
	}
	return may
}

// spared is the part spareGPU of a group's nodes.
func (a *ask) spared(h *head) float64 {
	if a.gpus {
		return 1
	}
	return spares[h.spare]
}

// rest is not after any node of a group from a block on that begins with the
// order and price.
func (a *ask) rest(v *view, q *need, h *head, order, price int64) key {
	p := parts{
		vram: h.tight, spareGPU: a.spared(h), cached: 1, merit: a.weights.secondary(),
		cpu: ratio(q.cpu, max(q.cpu, h.leastCPU)), memory: ratio(q.memory, max(q.memory, h.leastMem)),
	}
	k := key{price: offpeak.Price(price)}
	if a.balanced {
		p.price, k.price = a.cheapness(k.price), 0
	}
	if v.speedy {
		k.speed = quickness(order)
	}
	k.score = a.score(&p)
	return k
}

// open adds the blocks of the rest of a group whose turn it is, and what is left
// of it then.
func (a *ask) open(v *view, q *need, from stop, heap stops, best *found) stops {
	h, g := from.head, from.head.group
	// Beyond this it is another group's turn.
	next := found{}
	if len(heap) > 0 {
		next = found{key: heap[0].bound, node: g.blocks[0].nodes[0]}
	}
	first, opened := &g.sums[from.at], false
	for at := from.at; at < len(g.sums); at++ {
		s := &g.sums[at]
		if !v.speedy && s.order > int64(q.limit) {
			return heap // all that follow are dearer
		}
		if s.order != first.order || s.price != first.price {
			bound := a.rest(v, q, h, s.order, s.price)
			if !best.after(&bound) {
				return heap
			}
			if opened || !next.after(&bound) {
				return heap.push(stop{bound: bound, head: h, at: at})
			}
			first = s
		}
		if !q.admits(s) {
			continue
		}
		opened = true
		if bound := a.bound(v, q, h, s); best.after(&bound) {
			heap = heap.push(stop{bound, h, at, true})
		}
	}
	return heap
}

// admits says whether nodes of a block may fit.
func (q *need) admits(s *summary) bool {
	return s.has(&q.signature) && s.mostCPU >= q.cpu && s.mostMem >= q.memory &&
		s.price <= int64(q.limit) && q.welcome(s.traits, &s.names)
}

// bound is not after any node of a block that fits.
func (a *ask) bound(v *view, q *need, h *head, s *summary) key {
	p := parts{
		vram: h.tight, spareGPU: a.spared(h), merit: s.merit,
		cpu: ratio(q.cpu, max(q.cpu, s.leastCPU)), memory: ratio(q.memory, max(q.memory, s.leastMem)),
	}
	k := key{tie: s.tie(a.seed)}
	if a.balanced {
		p.price = a.cheapness(offpeak.Price(s.price))
	} else {
		k.price = offpeak.Price(s.price)
	}
	if v.speedy {
		k.speed = quickness(s.order)
	}
	k.score = a.score(&p)
	return k
}

// scan looks for better nodes in one block.
func (f *Fleet) scan(a *ask, v *view, q *need, h *head, b *block, best *found) {
	for i := range b.n {
		if !q.passes(b, i) {
			continue
		}
		if best.node != nil {
			k := a.rowKey(v, q, h, b, i)
			if !best.after(&k) {
				continue
			}
		}
		n, vram, ok := b.nodes[i], h.tight, true
		if a.gpus && h.set == nil {
			vram, ok = f.devices.served(a, n.set)
		}
		if k := a.key(n, vram); ok && best.after(&k) && a.admit(n) {
			*best = found{n, k}
		}
	}
}

// passes says whether a node may fit.
func (q *need) passes(b *block, i int) bool {
	names := &b.names[i]
	return b.traits[i]&q.traits == q.traits && b.cpu[i] >= q.cpu && b.memory[i] >= q.memory && b.price[i] <= int64(q.limit) &&
		names[0]&q.names[0] == q.names[0] && names[1]&q.names[1] == q.names[1] && q.welcome(b.traits[i], names)
}

// rowKey is not after the node's key, and in most cases the same.
func (a *ask) rowKey(v *view, q *need, h *head, b *block, i int) key {
	p := parts{
		vram: h.tight, spareGPU: a.spared(h), merit: b.merit[i],
		cpu: ratio(q.cpu, b.cpu[i]), memory: ratio(q.memory, b.memory[i]),
	}
	k := key{tie: b.hash[i] - a.seed}
	if a.balanced {
		p.price = a.cheapness(offpeak.Price(b.price[i]))
	} else {
		k.price = offpeak.Price(b.price[i])
	}
	if v.speedy {
		k.speed = quickness(b.order[i])
	}
	k.score = a.score(&p)
	return k
}

// counted is how many nodes fitted a class of jobs when the fleet had changed so
// often. Each change since made at most one node more or less fit.
type counted struct {
	fits    int
	all     bool // no more did
	changes uint64
}

// counting is whose counts are kept.
type counting struct {
	account offpeak.AccountID
	driver  string
	class   string
}

// maxCounted bounds the counts that are kept.
const maxCounted = 4096

// enough returns at least how many nodes fit the job: the baseline, if no fewer
// do, and less otherwise.
func (f *Fleet) enough(a *ask) int {
	baseline := f.weights.Baseline
	if baseline == 0 {
		return 0
	}
	if a.Class == "" || a.fenced() { // others of its class have other fences
		return f.count(a, baseline)
	}
	k := counting{a.Account, a.Driver, a.Class}
	if c, known := f.counts[k]; known {
		since := int(min(f.changes-c.changes, 2*maxBaseline))
		if least := c.fits - since; least >= baseline || c.all && c.fits+since < baseline {
			return max(min(least, baseline), 0)
		}
	}
	// Twice as many, so that the count holds for as many changes.
	c := counted{fits: f.count(a, 2*baseline), changes: f.changes}
	c.all = c.fits < 2*baseline
	if len(f.counts) >= maxCounted {
		clear(f.counts)
	}
	f.counts[k] = c
	return min(c.fits, baseline)
}

// count counts nodes that fit, up to a limit.
func (f *Fleet) count(a *ask, limit int) (fits int) {
	if only := a.Requirements.Nodes; len(only) > 0 {
		seen := make(map[offpeak.NodeID]bool, len(only))
		for _, id := range only {
			if n := f.byID[id]; n != nil && !seen[id] && a.admit(n) {
				seen[id] = true
				fits++
			}
		}
		return min(fits, limit)
	}
	v, q := f.view(a), a.need()
	for i := range v.heads {
		g := v.heads[i].group
		if !f.consider(a, &q, &v.heads[i]) {
			continue
		}
		for at, b := range g.blocks {
			if !q.admits(&g.sums[at]) {
				continue
			}
			for i := range b.n {
				if fits >= limit {
					return fits
				}
				if q.passes(b, i) && a.admit(b.nodes[i]) {
					fits++
				}
			}
		}
	}
	return fits
}

// stops is a heap, the first in order at its top.
type stops []stop

func (h stops) push(s stop) stops {
	h = append(h, s)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[i].bound.compare(&h[up].bound) >= 0 {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
	return h
}

func (h *stops) pop() stop {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	*h = s[:last]
	h.sink(0)
	return top
}

func (h stops) sink(i int) {
	for {
		least := i
		for k := 2*i + 1; k <= 2*i+2 && k < len(h); k++ {
			if h[k].bound.compare(&h[least].bound) < 0 {
				least = k
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
