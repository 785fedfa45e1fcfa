package queue

// heap is a binary heap whose members know their seat in it, so that one can be
// moved or taken out. The order is a type, so that a heap is as small as a slice.
type heap[T comparable, O order[T]] struct{ list []T }

// order says which of two comes first and where a member keeps its seat: its
// index and one, 0 for none.
type order[T any] interface {
	before(a, b T) bool
	seat(T) *int
}

func (h *heap[T, O]) len() int { return len(h.list) }

func (h *heap[T, O]) top() T { return h.list[0] }

// has says whether x sits here.
func (h *heap[T, O]) has(x T) bool {
	var o O
	i := *o.seat(x) - 1
	return i >= 0 && i < len(h.list) && h.list[i] == x
}

func (h *heap[T, O]) push(x T) {
	var o O
	h.list = append(h.list, x)
	*o.seat(x) = len(h.list)
	h.up(len(h.list) - 1)
}

func (h *heap[T, O]) fix(x T) {
	var o O
	if i := *o.seat(x) - 1; !h.down(i) {
		h.up(i)
	}
}

func (h *heap[T, O]) remove(x T) {
	var o O
	i, last := *o.seat(x)-1, len(h.list)-1
	*o.seat(x) = 0
	moved := h.list[last]
	var none T
	h.list[last] = none
	h.list = h.list[:last]
	if i == last {
		return
	}
	h.list[i] = moved
	*o.seat(moved) = i + 1
	h.fix(moved)
}

func (h *heap[T, O]) up(i int) {
	var o O
	for i > 0 {
		parent := (i - 1) / 2
		if !o.before(h.list[i], h.list[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *heap[T, O]) down(i int) (moved bool) {
	var o O
	for {
		child := 2*i + 1
		if child >= len(h.list) {
			return moved
		}
		if right := child + 1; right < len(h.list) && o.before(h.list[right], h.list[child]) {
			child = right
		}
		if !o.before(h.list[child], h.list[i]) {
			return moved
		}
		h.swap(i, child)
		i, moved = child, true
	}
}

func (h *heap[T, O]) swap(i, j int) {
	var o O
	h.list[i], h.list[j] = h.list[j], h.list[i]
	*o.seat(h.list[i]), *o.seat(h.list[j]) = i+1, j+1
}
