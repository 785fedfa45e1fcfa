package bell

import "testing"

func rang(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestBells(t *testing.T) {
	var b Bells
	b.Ring("a") // nobody listens
	one, two, other := b.Listen("a"), b.Listen("a"), b.Listen("b")
	before, late, never := one.Next(), two.Next(), other.Next()
	if rang(before) {
		t.Error("it rang before anybody listened")
	}
	b.Ring("a")
	if !rang(before) || !rang(late) || rang(never) {
		t.Errorf("who listens to a heard it %v and %v, who listens to b %v", rang(before), rang(late), rang(never))
	}
	if again := one.Next(); rang(again) {
		t.Error("it rings for what was heard already")
	}
	one.Stop()
	after := two.Next()
	b.Ring("a")
	if !rang(after) {
		t.Error("who goes on listening heard nothing")
	}
	two.Stop()
	other.Stop()
	if len(b.byKey) != 0 {
		t.Errorf("%d bells are left though nobody listens", len(b.byKey))
	}
}
