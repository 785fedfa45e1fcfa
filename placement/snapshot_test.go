package placement_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/placement"
)

// toldOf is all that a snapshot says of a job.
func toldOf(s *placement.Snapshot, j placement.Job) string {
	e, look := s.Explain(j, 50), s.Nearest(j, nil)
	text := fmt.Sprintf("%d of %d, %d, %d; %+v; %+v; %+v; %t", e.Fits, s.Len(), e.Could, e.Idle, e.Causes, e.Filters, e.Won, e.Asleep)
	for _, v := range e.Nodes {
		o := *v.Offer
		v.Offer = nil
		text += fmt.Sprintf("\n%+v %+v %v", v, o, o.Opens)
	}
	for _, c := range look.Changes {
		text += fmt.Sprintf("\n%+v %d %v", c.Parts, c.Nodes, c.Gap)
	}
	return text + fmt.Sprintf("\n%+v %d", look.Causes, look.Seen)
}

// A snapshot says the same however the fleet changes after it, also while others ask
// it, and a later one says what is so then.
func TestSnapshotStaysAsItWas(t *testing.T) {
	w := newWorld(7, 60, 6)
	w.fill()
	for range 300 {
		for range 10 {
			w.change()
		}
		j, s := w.job(), w.fleet.Snapshot()
		want, got := toldOf(s, j), make(chan string)
		go func() { got <- toldOf(s, j) }()
		for range 40 {
			w.change()
		}
		if got := <-got; got != want {
			t.Fatalf("a snapshot said\n%s\nand after changes\n%s", want, got)
		}
	}
	if err := w.fleet.CheckIndex(); err != nil {
		t.Error(err)
	}
}

// The counts of an explanation are those of asking the predicate, with words, about
// each node of the snapshot; so are the nodes that it names, and their order.
func TestCountsAreBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, _, j := drawWaiting(t)
		s := f.Snapshot()
		want, could, idle := make(map[offpeak.FitCode]int), 0, 0
		reasons := make(map[offpeak.NodeID]offpeak.Reason)
		for o := range s.Offers {
			why := j.Fit(o)
			reasons[o.Node] = why
			if want[why.Code]++; !why.Lasting() {
				could++
			}
			free := *o
			free.Free, free.FreeDevices = o.Capacity, o.Devices
			if j.Requirements.Fits(j.Account, j.Driver, &free) {
				idle++
			}
		}
		all := s.Explain(j, 1000)
		if all.Fits != want[offpeak.FitOK] || all.Could != could || all.Idle != idle || len(all.Nodes) != s.Len() {
			t.Fatalf("%d fit, %d could, %d idle of %d; want %d, %d and %d of %d", all.Fits, all.Could, all.Idle, len(all.Nodes), want[offpeak.FitOK], could, idle, s.Len())
		}
		delete(want, offpeak.FitOK)
		for _, c := range all.Causes {
			if want[c.Code] != c.Nodes || c.Nearest.Code != c.Code {
				t.Fatalf("%d nodes fail %s, %+v is said", want[c.Code], c.Code, c)
			}
			delete(want, c.Code)
		}
		if len(want) > 0 {
			t.Fatalf("causes %v are left out", want)
		}
		ranked := f.Rank(j)
		for i, v := range all.Nodes {
			if v.Reason != reasons[v.Node] || v.Offer.Node != v.Node {
				t.Fatalf("%s is said to fail %+v, want %+v", v.Node, v.Reason, reasons[v.Node])
			}
			if i < len(ranked) && (v.Node != ranked[i].Node || v.Score != ranked[i].Score) {
				t.Fatalf("place %d is %s, want %s", i, v.Node, ranked[i].Node)
			}
		}
		if !slices.IsSortedFunc(all.Nodes, func(x, y placement.Verdict) int {
			rank := func(v *placement.Verdict) int {
				switch {
				case v.Reason.OK():
					return 0
				case !v.Reason.Lasting():
					return 1
				}
				return 2
			}
			return cmp.Compare(rank(&x), rank(&y))
		}) {
			t.Fatalf("nodes are out of order: %+v", all.Nodes)
		}
		// A shorter explanation is the beginning of a longer one.
		limit := rapid.IntRange(0, 5).Draw(t, "limit")
		some := s.Explain(j, limit)
		for i, v := range some.Nodes {
			if v.Node != all.Nodes[i].Node || v.Reason != all.Nodes[i].Reason {
				t.Fatalf("place %d of %d is %+v, want %+v", i, limit, v, all.Nodes[i])
			}
		}
		if len(some.Nodes) != min(limit, len(all.Nodes)) || fmt.Sprint(some.Causes, some.Filters) != fmt.Sprint(all.Causes, all.Filters) || (some.Won == nil) != (all.Won == nil) || some.Won != nil && *some.Won != *all.Won {
			t.Fatalf("with %d nodes it is %+v, with all %+v", limit, some, all)
		}
	})
}
