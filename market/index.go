package market

import (
	"slices"
	"sort"
)

// blockSize is how many entries a block holds at most: large enough that a list
// of a million offers has few blocks to skip, small enough that inserting moves
// little.
const blockSize = 256

// maxClasses bounds the classes of a forest that are told apart by name, so that
// nodes which invent names can't make every question slow.
const maxClasses = 512

// forest keeps entries in lists by class, each in the order of its keys.
type forest struct {
	byClass map[class]*list
	lists   []*list // the same, in the order they came; removal swaps the last one in
}

// list is a sorted sequence of entries in sorted blocks.
type list struct {
	class  class
	index  int // in the forest's lists
	blocks []*block
	// sums are the blocks' signatures and lows their least keys, side by side
	// since questions and changes skip by them.
	sums []signature
	lows []int64
}

// block keeps what is read often in columns.
type block struct {
	n       int
	keys    [blockSize]int64
	traits  [blockSize]uint64
	names   [blockSize][2]uint64
	entries [blockSize]*entry
}

func (f *forest) add(c class, key int64, s signature, e *entry) place {
	l := f.byClass[c]
	if l == nil && len(f.lists) >= maxClasses {
		c.vendor, c.model, c.mixed = "", "", true
		l = f.byClass[c]
	}
	if l == nil {
		l = &list{class: c, index: len(f.lists), blocks: []*block{new(block)}, sums: make([]signature, 1), lows: make([]int64, 1)}
		if f.byClass == nil {
			f.byClass = make(map[class]*list)
		}
		f.byClass[c] = l
		f.lists = append(f.lists, l)
	}
	l.insert(key, s, e)
	return place{l, key}
}

func (f *forest) remove(p place, e *entry) {
	l := p.list
	l.delete(p.key, e)
	if len(l.blocks) > 0 {
		return
	}
	delete(f.byClass, l.class)
	last := f.lists[len(f.lists)-1]
	f.lists[l.index], last.index = last, l.index
	f.lists[len(f.lists)-1] = nil
	f.lists = f.lists[:len(f.lists)-1]
}

// find returns the block in which the entry is or belongs, and its place there.
func (l *list) find(key int64, e *entry) (i, at int) {
	// The last block that does not begin above the entry.
	i = sort.Search(len(l.lows), func(i int) bool {
		return l.lows[i] > key || (l.lows[i] == key && l.blocks[i].n > 0 && compareEntries(key, l.blocks[i].entries[0], key, e) > 0)
	})
	i = max(i-1, 0)
	b := l.blocks[i]
	at = sort.Search(b.n, func(k int) bool { return compareEntries(b.keys[k], b.entries[k], key, e) >= 0 })
	return i, at
}

func (l *list) insert(key int64, s signature, e *entry) {
	i, at := l.find(key, e)
	b := l.blocks[i]
	if b.n == blockSize {
		next := new(block)
		b.split(next)
		l.blocks = slices.Insert(l.blocks, i+1, next)
		l.sums = slices.Insert(l.sums, i+1, next.sum())
		l.lows = slices.Insert(l.lows, i+1, next.keys[0])
		l.sums[i] = b.sum()
		if at > b.n {
			i, at, b = i+1, at-b.n, next
		}
	}
	b.open(at)
	b.keys[at], b.traits[at], b.names[at], b.entries[at] = key, s.traits, s.names, e
	l.sums[i].add(s)
	l.lows[i] = b.keys[0]
}

// delete takes out an entry that is there.
func (l *list) delete(key int64, e *entry) {
	i, at := l.find(key, e)
	b := l.blocks[i]
	b.close(at)
	if b.n >= blockSize/4 {
		l.settle(i)
		return
	}
	// Few are left: give them to a neighbour that has room.
	for _, into := range []int{i - 1, i} {
		if into < 0 || into+1 >= len(l.blocks) || l.blocks[into].n+l.blocks[into+1].n > blockSize*3/4 {
			continue
		}
		l.blocks[into].join(l.blocks[into+1])
		l.drop(into + 1)
		l.settle(into)
		return
	}
	if b.n == 0 {
		l.drop(i)
		return
	}
	l.settle(i)
}

// settle reckons what is known of the i-th block anew.
func (l *list) settle(i int) {
	l.sums[i], l.lows[i] = l.blocks[i].sum(), l.blocks[i].keys[0]
}

func (l *list) drop(i int) {
	l.blocks = slices.Delete(l.blocks, i, i+1)
	l.sums = slices.Delete(l.sums, i, i+1)
	l.lows = slices.Delete(l.lows, i, i+1)
}

// open makes room for one entry.
func (b *block) open(at int) {
	copy(b.keys[at+1:], b.keys[at:b.n])
	copy(b.traits[at+1:], b.traits[at:b.n])
	copy(b.names[at+1:], b.names[at:b.n])
	copy(b.entries[at+1:], b.entries[at:b.n])
	b.n++
}

// close takes one entry out.
func (b *block) close(at int) {
	copy(b.keys[at:], b.keys[at+1:b.n])
	copy(b.traits[at:], b.traits[at+1:b.n])
	copy(b.names[at:], b.names[at+1:b.n])
	copy(b.entries[at:], b.entries[at+1:b.n])
	b.n--
	b.entries[b.n] = nil
}

// split moves the upper half into the empty block next.
func (b *block) split(next *block) {
	half := b.n / 2
	next.n = copy(next.keys[:], b.keys[half:b.n])
	copy(next.traits[:], b.traits[half:b.n])
	copy(next.names[:], b.names[half:b.n])
	copy(next.entries[:], b.entries[half:b.n])
	clear(b.entries[half:b.n])
	b.n = half
}

// join appends the entries of next, which has to fit.
func (b *block) join(next *block) {
	copy(b.keys[b.n:], next.keys[:next.n])
	copy(b.traits[b.n:], next.traits[:next.n])
	copy(b.names[b.n:], next.names[:next.n])
	copy(b.entries[b.n:], next.entries[:next.n])
	b.n += next.n
}

func (b *block) sum() signature {
	var s signature
	for i := range b.n {
		s.add(signature{b.traits[i], b.names[i]})
	}
	return s
}

// cursor walks over one list. It stands before the entry at, and is sure once
// that entry is known to fit; until then key is a lower bound.
type cursor struct {
	list *list
	i    int // block
	at   int
	key  int64
	sure bool
}

// from returns a cursor before the first entry whose key is not below least;
// false if there is none.
func (l *list) from(least int64) (cursor, bool) {
	i := max(sort.Search(len(l.lows), func(i int) bool { return l.lows[i] >= least })-1, 0)
	for ; i < len(l.blocks); i++ {
		b := l.blocks[i]
		if at := sort.Search(b.n, func(k int) bool { return b.keys[k] >= least }); at < b.n {
			return cursor{list: l, i: i, at: at, key: b.keys[at]}, true
		}
	}
	return cursor{}, false
}

// before orders cursors by key. Of equal keys one that is not sure comes first,
// since it may yet find a lower node id.
func (c *cursor) before(d *cursor) bool {
	if c.key != d.key {
		return c.key < d.key
	}
	if c.sure && d.sure {
		return c.entry().offer.Node < d.entry().offer.Node
	}
	return !c.sure && d.sure
}

func (c *cursor) entry() *entry { return c.list.blocks[c.i].entries[c.at] }

// advance looks for the next entry that fits, but no further than the key
// bound: beyond it another list's turn comes first. It returns false at the end.
func (c *cursor) advance(q *question, bound int64, fits func(*entry) bool) bool {
	l := c.list
	for ; c.i < len(l.blocks); c.i, c.at = c.i+1, 0 {
		if !l.sums[c.i].has(q.need) {
			continue
		}
		b := l.blocks[c.i]
		if c.at < b.n && b.keys[c.at] > bound {
			c.key = b.keys[c.at]
			return true
		}
		for ; c.at < b.n; c.at++ {
			if b.traits[c.at]&q.need.traits != q.need.traits {
				continue
			}
			if b.keys[c.at] > bound {
				c.key = b.keys[c.at]
				return true
			}
			if q.passes(b.traits[c.at], b.names[c.at]) && fits(b.entries[c.at]) {
				c.key, c.sure = b.keys[c.at], true
				return true
			}
		}
	}
	return false
}

// ascend yields the entries that fit in the order of their keys, then node ids.
// It takes from all lists that the question admits at once, the list with the
// lowest key first, and looks into each no further than it must.
func (f *forest) ascend(q *question, fits func(*entry) bool, yield func(*entry) bool) {
	var heap []cursor
	for _, l := range f.lists {
		if q.admits(&l.class) {
			if c, any := l.from(q.least); any {
				heap = append(heap, c)
			}
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		sink(heap, i)
	}
	for len(heap) > 0 && heap[0].key <= q.limit {
		c := &heap[0]
		more := true
		if c.sure {
			if !yield(c.entry()) {
				return
			}
			c.at, c.sure = c.at+1, false
		} else {
			bound := q.limit
			for k := 1; k <= 2 && k < len(heap); k++ {
				bound = min(bound, heap[k].key)
			}
			more = c.advance(q, bound, fits)
		}
		if !more {
			heap[0] = heap[len(heap)-1]
			heap = heap[:len(heap)-1]
		}
		sink(heap, 0)
	}
}

// sink restores the heap below i.
func sink(heap []cursor, i int) {
	for {
		least := i
		for k := 2*i + 1; k <= 2*i+2 && k < len(heap); k++ {
			if heap[k].before(&heap[least]) {
				least = k
			}
		}
		if least == i {
			return
		}
		heap[i], heap[least] = heap[least], heap[i]
		i = least
	}
}
