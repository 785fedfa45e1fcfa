package placement

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"sort"
	"strings"
)

// blockSize is how many nodes a block holds at most: large enough that a million
// nodes are few blocks, small enough that a change moves little.
const blockSize = 96

// maxGroups bounds the groups by device set, so that nodes which invent devices
// can't make every question slow. The rest share one.
const maxGroups = 1024

// The orders in which nodes are kept; each is made by the first job that asks
// for it.
const (
	pricedGPU = iota // nodes with free devices, by the price of one
	pricedCPU        // all that take work, by their price without devices
	speedyGPU        // the same two by speed, then price
	speedyCPU
	orders
)

// view keeps the nodes that take work in one order, in groups.
type view struct {
	order  int
	gpus   bool
	speedy bool
	groups map[groupKey]*group
	// heads are the groups in the order they came, with what every question asks of
	// each; removal swaps the last one in.
	heads []head
}

// head is what is known of a group without looking at it.
type head struct {
	group *group
	set   *deviceSet // nil: several sets, or a view for jobs without devices
	// slot and count are of a set of one kind; slot is −1 otherwise.
	slot, count  int32
	spare, cores uint8
	order, price int64 // of the first block
	// leastCPU and leastMem are no more than any of its nodes has free.
	leastCPU, leastMem int64
	// tight is how tightly the devices fit the question at hand; a bound where
	// there are several sets.
	tight float64
}

// groupKey parts a view so that a job skips most of it: by the free devices, or,
// for jobs without, by the state of the devices and the free cores.
type groupKey struct {
	set   *deviceSet // nil: several sets
	spare uint8
	cores uint8
}

// group is the sorted nodes of one key in sorted blocks.
type group struct {
	key    groupKey
	index  int // in the view's heads
	blocks []*block
	// sums are the blocks' summaries, side by side since questions skip by them.
	sums []summary
}

// row is what a view keeps of a node: what it is sorted by, then what questions
// skip by.
type row struct {
	order, price, cpu, memory int64
	merit                     float64
	hash                      uint64
	signature
	node *node
}

func (r *row) compare(s *row) int {
	switch {
	case r.order != s.order:
		return cmp.Compare(r.order, s.order)
	case r.price != s.price:
		return cmp.Compare(r.price, s.price)
	case r.cpu != s.cpu:
		return cmp.Compare(r.cpu, s.cpu)
	case r.memory != s.memory:
		return cmp.Compare(r.memory, s.memory)
	case r.merit != s.merit:
		return cmp.Compare(r.merit, s.merit)
	case r.hash != s.hash:
		return cmp.Compare(r.hash, s.hash)
	}
	return strings.Compare(string(r.node.offer.Node), string(s.node.offer.Node))
}

// block keeps rows in columns.
type block struct {
	group  *group
	n      int
	order  [blockSize]int64
	cpu    [blockSize]int64
	memory [blockSize]int64
	merit  [blockSize]float64
	hash   [blockSize]uint64
	traits [blockSize]uint64
	names  [blockSize][2]uint64
	nodes  [blockSize]*node
	// price is order itself in the views by price.
	price *[blockSize]int64
}

// summary bounds what the rows of a block have.
type summary struct {
	signature
	order, price        int64 // the least
	leastCPU, mostCPU   int64
	leastMem, mostMem   int64
	merit               float64 // the most
	firstHash, lastHash uint64  // the least and the most
}

func (v *view) newBlock(g *group) *block {
	b := &block{group: g}
	b.price = &b.order
	if v.speedy {
		b.price = new([blockSize]int64)
	}
	return b
}

// newView sorts nodes into a view.
func (f *Fleet) newView(order int) *view {
	v := &view{
		order: order, gpus: order == pricedGPU || order == speedyGPU, speedy: order >= speedyGPU,
		groups: make(map[groupKey]*group),
	}
	byGroup := make(map[*group][]*node)
	for _, n := range f.nodes {
		n.blocks[order] = nil
		if v.admits(n) {
			g := v.group(v.keyOf(n))
			byGroup[g] = append(byGroup[g], n)
		}
	}
	var rows []row
	for i := range v.heads {
		g := v.heads[i].group
		rows = rows[:0]
		for _, n := range byGroup[g] {
			rows = append(rows, v.row(f, n))
		}
		slices.SortFunc(rows, func(a, b row) int { return a.compare(&b) })
		// Three quarters full, so that changes find room.
		for part := range slices.Chunk(rows, blockSize*3/4) {
			b := v.newBlock(g)
			for i := range part {
				b.set(i, &part[i])
				part[i].node.blocks[order] = b
			}
			b.n = len(part)
			g.blocks, g.sums = append(g.blocks, b), append(g.sums, b.sum())
		}
		for i := range g.sums {
			v.settle(g, i)
		}
	}
	return v
}

// admits says whether the view has the node.
func (v *view) admits(n *node) bool {
	return n.offer.Ready && (!v.gpus || n.set != nil)
}

func (v *view) keyOf(n *node) groupKey {
	if !v.gpus {
		return groupKey{spare: n.spare(), cores: coreClass(n.offer.Free.CPU)}
	}
	k := groupKey{set: n.set}
	if len(v.heads) >= maxGroups && v.groups[k] == nil {
		k.set = nil
	}
	return k
}

// coreClass is the free CPU as a power of two cores, rounded down.
func coreClass(milli int64) uint8 {
	return uint8(bits.Len64(uint64(max(milli/1000, 0))))
}

func (v *view) group(k groupKey) *group {
	g := v.groups[k]
	if g == nil {
		g = &group{key: k, index: len(v.heads)}
		v.groups[k] = g
		h := head{group: g, set: k.set, slot: -1, spare: k.spare, cores: k.cores, leastCPU: math.MaxInt64, leastMem: math.MaxInt64}
		if k.set != nil {
			if h.count = int32(k.set.count); k.set.kind != nil {
				h.slot = int32(k.set.kind.slot)
			}
		}
		v.heads = append(v.heads, h)
	}
	return g
}

func (v *view) row(f *Fleet, n *node) row {
	o := &n.offer
	r := row{
		price: int64(o.Ask.CPU), cpu: o.Free.CPU, memory: int64(o.Free.Memory),
		merit: n.metrics.merits(v.gpus).weighed(&f.weights), hash: n.hash, signature: n.sign, node: n,
	}
	if v.gpus {
		r.price = int64(o.Ask.GPU)
	}
	r.amounts(o.Free.Disk, len(o.FreeDevices))
	if r.order = r.price; v.speedy {
		r.order = slowness(n.metrics.speed(v.gpus))
	}
	return r
}

// slowness orders speeds, the fastest first.
func slowness(speed float64) int64 { return -int64(math.Float64bits(speed)) }

func quickness(order int64) float64 { return math.Float64frombits(uint64(-order)) }

// update puts a node where it belongs now, or nowhere.
func (v *view) update(f *Fleet, n *node) {
	b := n.blocks[v.order]
	if !v.admits(n) {
		if b != nil {
			v.delete(b, n)
		}
		return
	}
	r := v.row(f, n)
	if b == nil {
		v.insert(v.group(v.keyOf(n)), &r)
		return
	}
	k := v.keyOf(n)
	if b.group.key == k {
		at := b.find(n)
		old := b.row(at)
		if old == r {
			return
		}
		if old.compare(&r) == 0 { // only bits changed
			b.set(at, &r)
			v.settle(b.group, b.group.indexOf(b))
			return
		}
	}
	v.delete(b, n)
	v.insert(v.group(k), &r)
}

// blockOf is the place of the last block that does not begin above the row.
func (g *group) blockOf(r *row) int {
	i := sort.Search(len(g.sums), func(i int) bool {
		if least := g.sums[i].order; least != r.order {
			return least > r.order
		}
		first := g.blocks[i].row(0)
		return first.compare(r) > 0
	})
	return max(i-1, 0)
}

func (g *group) indexOf(b *block) int {
	first := b.row(0)
	i := g.blockOf(&first)
	if g.blocks[i] != b {
		panic("placement: a block is not where its first node belongs")
	}
	return i
}

func (v *view) insert(g *group, r *row) {
	if len(g.blocks) == 0 {
		g.blocks, g.sums = append(g.blocks, v.newBlock(g)), append(g.sums, summary{})
	}
	i := 0
	if g.blocks[0].n > 0 {
		i = g.blockOf(r)
	}
	b := g.blocks[i]
	at := sort.Search(b.n, func(k int) bool {
		if b.order[k] != r.order {
			return b.order[k] > r.order
		}
		old := b.row(k)
		return old.compare(r) >= 0
	})
	if b.n == blockSize {
		next := v.newBlock(g)
		b.split(next, v.order)
		g.blocks = slices.Insert(g.blocks, i+1, next)
		g.sums = slices.Insert(g.sums, i+1, next.sum())
		if at > b.n {
			v.settle(g, i)
			i, at, b = i+1, at-b.n, next
		}
	}
	b.open(at)
	b.set(at, r)
	r.node.blocks[v.order] = b
	v.settle(g, i)
}

// delete takes a node out of its block.
func (v *view) delete(b *block, n *node) {
	g := b.group
	i := g.indexOf(b)
	b.close(b.find(n))
	n.blocks[v.order] = nil
	if b.n >= blockSize/4 {
		v.settle(g, i)
		return
	}
	// Few are left: give them to a neighbour that has room.
	for _, into := range []int{i - 1, i} {
		if into < 0 || into+1 >= len(g.blocks) || g.blocks[into].n+g.blocks[into+1].n > blockSize*3/4 {
			continue
		}
		g.blocks[into].join(g.blocks[into+1], v.order)
		g.drop(into + 1)
		v.settle(g, into)
		return
	}
	if b.n > 0 {
		v.settle(g, i)
		return
	}
	if g.drop(i); len(g.blocks) == 0 {
		v.drop(g)
	} else {
		v.settle(g, 0)
	}
}

func (v *view) drop(g *group) {
	delete(v.groups, g.key)
	last := len(v.heads) - 1
	v.heads[g.index] = v.heads[last]
	v.heads[g.index].group.index = g.index
	v.heads[last] = head{}
	v.heads = v.heads[:last]
}

// settle reckons what is known of the i-th block anew.
func (v *view) settle(g *group, i int) {
	g.sums[i] = g.blocks[i].sum()
	h := &v.heads[g.index]
	h.order, h.price = g.sums[0].order, g.sums[0].price
	if len(g.sums) == 1 {
		h.leastCPU, h.leastMem = math.MaxInt64, math.MaxInt64
	}
	h.leastCPU, h.leastMem = min(h.leastCPU, g.sums[i].leastCPU), min(h.leastMem, g.sums[i].leastMem)
}

func (g *group) drop(i int) {
	g.blocks = slices.Delete(g.blocks, i, i+1)
	g.sums = slices.Delete(g.sums, i, i+1)
}

func (b *block) find(n *node) int {
	for i, at := range b.nodes[:b.n] {
		if at == n {
			return i
		}
	}
	panic("placement: a node is not in its block")
}

func (b *block) row(i int) row {
	return row{
		order: b.order[i], price: b.price[i], cpu: b.cpu[i], memory: b.memory[i], merit: b.merit[i],
		hash: b.hash[i], signature: signature{b.traits[i], b.names[i]}, node: b.nodes[i],
	}
}

func (b *block) set(i int, r *row) {
	b.price[i], b.order[i] = r.price, r.order // in this order: they may be one
	b.cpu[i], b.memory[i], b.merit[i] = r.cpu, r.memory, r.merit
	b.hash[i], b.traits[i], b.names[i], b.nodes[i] = r.hash, r.traits, r.names, r.node
}

// shift copies the rows of from in [i, j) to at.
func (b *block) shift(at int, from *block, i, j int) {
	copy(b.order[at:], from.order[i:j])
	if b.price != &b.order {
		copy(b.price[at:], from.price[i:j])
	}
	copy(b.cpu[at:], from.cpu[i:j])
	copy(b.memory[at:], from.memory[i:j])
	copy(b.merit[at:], from.merit[i:j])
	copy(b.hash[at:], from.hash[i:j])
	copy(b.traits[at:], from.traits[i:j])
	copy(b.names[at:], from.names[i:j])
	copy(b.nodes[at:], from.nodes[i:j])
}

// open makes room for one row.
func (b *block) open(at int) {
	b.shift(at+1, b, at, b.n)
	b.n++
}

// close takes one row out.
func (b *block) close(at int) {
	b.shift(at, b, at+1, b.n)
	b.n--
	b.nodes[b.n] = nil
}

// split moves the upper half into the empty block next.
func (b *block) split(next *block, order int) {
	half := b.n / 2
	next.shift(0, b, half, b.n)
	next.n = b.n - half
	for _, n := range next.nodes[:next.n] {
		n.blocks[order] = next
	}
	clear(b.nodes[half:b.n])
	b.n = half
}

// join appends the rows of next, which have to fit.
func (b *block) join(next *block, order int) {
	for _, n := range next.nodes[:next.n] {
		n.blocks[order] = b
	}
	b.shift(b.n, next, 0, next.n)
	b.n += next.n
}

func (b *block) sum() summary {
	last := b.n - 1
	s := summary{
		order: b.order[0], price: b.price[0], merit: b.merit[0],
		leastCPU: b.cpu[0], mostCPU: b.cpu[0], leastMem: b.memory[0], mostMem: b.memory[0],
		lastHash: math.MaxUint64,
	}
	for i := range b.n {
		s.traits |= b.traits[i]
		s.names[0] |= b.names[i][0]
		s.names[1] |= b.names[i][1]
		s.price = min(s.price, b.price[i])
		s.leastCPU, s.mostCPU = min(s.leastCPU, b.cpu[i]), max(s.mostCPU, b.cpu[i])
		s.leastMem, s.mostMem = min(s.leastMem, b.memory[i]), max(s.mostMem, b.memory[i])
		s.merit = max(s.merit, b.merit[i])
	}
	// Sorted: where first and last are alike but for their hashes, all are, and
	// the hashes are in order.
	if b.order[0] == b.order[last] && b.price[0] == b.price[last] && b.cpu[0] == b.cpu[last] && b.memory[0] == b.memory[last] && b.merit[0] == b.merit[last] {
		s.firstHash, s.lastHash = b.hash[0], b.hash[last]
	}
	return s
}

// tie is the least that hashes within the bounds can be behind the seed.
func (s *summary) tie(seed uint64) uint64 {
	if s.firstHash < seed && seed <= s.lastHash {
		return 0
	}
	return s.firstHash - seed
}

// reindex brings a node up to date in the views that there are.
func (f *Fleet) reindex(n *node) {
	for _, v := range f.views {
		if v != nil {
			v.update(f, n)
		}
	}
}

// view returns the nodes in the order that serves a job.
func (f *Fleet) view(a *ask) *view {
	order := pricedCPU
	if a.gpus {
		order = pricedGPU
	}
	if a.fastest {
		order += speedyGPU
	}
	if f.views[order] == nil {
		f.views[order] = f.newView(order)
	}
	return f.views[order]
}
