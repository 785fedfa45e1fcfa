package replay

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/placement"
)

// Jobs come in the order of priority, age and id, except for those of classes that
// are parked; whoever is woken comes in the same order again.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := ByAge(nil).(*byAge)
		waiting := map[*Waiting]bool{}
		parked := map[int]bool{}
		n := 0
		first := func() (best *Waiting) {
			for w := range waiting {
				if parked[w.Class] {
					continue
				}
				if best == nil || cmp.Or(cmp.Compare(best.Priority, w.Priority), cmp.Compare(w.Since, best.Since), cmp.Compare(w.ID, best.ID)) < 0 {
					best = w
				}
			}
			return best
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				n++
				w := &Waiting{
					Job:      placement.Job{ID: offpeak.JobID(fmt.Sprint("job", n))},
					Priority: rapid.IntRange(-1, 1).Draw(t, "priority"), Since: rapid.Int64Range(0, 3).Draw(t, "since"), Class: rapid.IntRange(0, 3).Draw(t, "class"),
				}
				waiting[w] = true
				q.add(w)
			},
			"remove": func(t *rapid.T) {
				list := make([]*Waiting, 0, len(waiting))
				for w := range waiting {
					list = append(list, w)
				}
				slices.SortFunc(list, func(a, b *Waiting) int { return cmp.Compare(a.ID, b.ID) })
				if len(list) == 0 {
					t.Skip("nobody waits")
				}
				w := rapid.SampledFrom(list).Draw(t, "who")
				delete(waiting, w)
				q.remove(w)
			},
			"park": func(t *rapid.T) {
				if w := q.first(); w != nil {
					parked[w.Class] = true
					q.park(w)
				}
			},
			"wake": func(t *rapid.T) {
				class := rapid.IntRange(0, 3).Draw(t, "class")
				q.wake(func(w *Waiting) bool { return w.Class == class })
				delete(parked, class)
				// Who is parked with nobody waiting is forgotten.
				for c := range parked {
					if !slices.ContainsFunc(keys(waiting), func(w *Waiting) bool { return w.Class == c }) {
						delete(parked, c)
					}
				}
			},
			"": func(t *rapid.T) {
				if got, want := q.first(), first(); got != want {
					t.Fatalf("first is %+v, want %+v", got, want)
				}
			},
		})
	})
}

func keys[K comparable, V any](m map[K]V) (out []K) {
	for k := range m {
		out = append(out, k)
	}
	return out
}
