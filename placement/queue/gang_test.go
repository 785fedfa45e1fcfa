package queue

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"offpeak"
)

// gangOf makes a gang of a job.
func gangOf(n int) func(*Job) {
	return func(j *Job) {
		for i := range n {
			j.Gang = append(j.Gang, Member{ID: offpeak.JobID(fmt.Sprintf("%s/%d", j.ID, i))})
		}
	}
}

// wholes fails the test where a gang has nodes reserved, but not all that it needs.
func (w *world) wholes() {
	w.t.Helper()
	nodes := map[offpeak.JobID]int{}
	for id, r := range w.q.reserved {
		if r.Node != id || r.account.reserved.all()[0] != r.all()[0] {
			w.t.Fatalf("%s is kept by %+v, whose account has %+v", id, r, r.account.reserved)
		}
		nodes[r.Job]++
	}
	for job, n := range nodes {
		if it := w.q.Item(job); it == nil || n != max(1, it.class.size) {
			w.t.Fatalf("%d nodes are kept for %s", n, job)
		}
	}
}

func (w *world) hasStarted(job offpeak.JobID) bool {
	_, ok := w.started[job]
	return ok
}

// A gang starts when there is a node for each member, and takes none before.
func TestGangNeedsANodeForEachMember(t *testing.T) {
	w := newWorld(t, Config{})
	w.joins("a", 8, 0)
	w.joins("b", 8, 0)
	w.submit("first", "x", 8, 0, time.Hour, nil)
	w.match()
	id := w.submit("gang", "y", 2, 0, time.Hour, gangOf(2))
	lone := w.submit("lone", "y", 8, 0, 30*time.Minute, nil)
	w.match()
	if w.hasStarted(id) || !w.hasStarted(lone) {
		t.Fatalf("with one node free the gang runs: %t, a job behind it: %t", w.hasStarted(id), w.hasStarted(lone))
	}
	if !w.q.IsParked(w.q.Item(id)) {
		t.Error("it is looked at again although nothing changed")
	}
	w.passes(30 * time.Minute)
	if w.hasStarted(id) {
		t.Fatal("it began on one node")
	}
	w.passes(30 * time.Minute)
	if !w.hasStarted(id) {
		t.Fatal("it did not start when both nodes were free")
	}
}

// A gang is one job in the order: priority first, then shares, then age.
func TestGangsAreInOrder(t *testing.T) {
	w := newWorld(t, Config{})
	w.submit("third", "x", 8, 0, time.Hour, gangOf(2))
	w.submit("second", "x", 8, 0, time.Hour, func(j *Job) { gangOf(2)(j); j.Priority = 1 })
	w.submit("first", "x", 8, 0, time.Hour, func(j *Job) { j.Priority = 2 })
	for i := range 3 {
		w.joins(offpeak.NodeID(fmt.Sprint("n", i)), 8, 0)
	}
	w.match()
	if !w.hasStarted("first") || !w.hasStarted("second") || w.hasStarted("third") {
		t.Fatalf("started: %v", w.started)
	}
	if n := w.q.Ahead(w.q.Item("third"), w.now); n != 0 {
		t.Errorf("%d jobs are ahead of it", n)
	}
}

// Many gangs of more than half the nodes, among a stream of small jobs and of large
// ones that need a node each: every one starts within the bound that it was told, and no
// two ever keep a part each.
func TestNoGangStarves(t *testing.T) {
	for seed := range uint64(3) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		places := 1 + rnd.IntN(6)
		w := newWorld(t, Config{HalfLife: 24 * time.Hour, GPU: 16, ReserveAfter: 30 * time.Minute, Places: places})
		const nodes = 5
		for i := range nodes {
			w.joins(offpeak.NodeID(fmt.Sprintf("n%d", i)), 8, 0)
		}
		w.takes = func(j Job) time.Duration { return time.Duration(rnd.Int64N(int64(j.Lasts))) + time.Minute }
		bounds := map[offpeak.JobID]time.Time{}
		n := 0
		small := func() {
			n++
			w.submit(fmt.Sprintf("small-%d", n), offpeak.AccountID(fmt.Sprint("small-", rnd.IntN(3))), 1+rnd.Int64N(2), 0,
				time.Duration(10+rnd.IntN(110))*time.Minute, func(j *Job) { j.Priority = rnd.IntN(3) })
		}
		for range 100 {
			small()
		}
		w.match()
		for step := range 12000 {
			if step%300 == 10 && step < 4000 {
				for _, account := range []offpeak.AccountID{"x", "y", "z"}[:1+rnd.IntN(3)] {
					size := 3 + rnd.IntN(nodes-2)
					id := w.submit(fmt.Sprintf("gang-%s-%d", account, step), account, 4+rnd.Int64N(5), 0, 2*time.Hour, gangOf(size))
					bounds[id] = w.bound(id)
				}
			}
			if step%400 == 30 && step < 4000 {
				id := w.submit(fmt.Sprintf("large-%d", step), "large", 8, 0, 2*time.Hour, nil)
				bounds[id] = w.bound(id)
			}
			w.passes(time.Minute)
			for range nodes {
				if rnd.IntN(2) == 0 {
					small()
				}
			}
			w.match()
		}
		for id, by := range bounds {
			at, ok := w.started[id]
			switch {
			case !ok && by.Before(w.now):
				t.Errorf("seed %d: %s never started; it was to by %s", seed, id, by)
			case ok && at.After(by.Add(2*time.Minute)): // the world's own steps
				t.Errorf("seed %d: %s started at %s, %s after its bound", seed, id, at, at.Sub(by))
			case !ok:
				t.Errorf("seed %d: %s has not started within the test, until %s", seed, id, by)
			}
		}
		ran := 0
		for id := range w.started {
			if id[0] == 's' {
				ran++
			}
		}
		if ran < 2000 {
			t.Errorf("seed %d: only %d small jobs ran", seed, ran)
		}
	}
}

// Two gangs that both need more than half of the nodes, where what ends on them ends
// one by one: reserved one at a time they would keep a part each for ever.
func TestGangsReserveInTurn(t *testing.T) {
	w := newWorld(t, Config{ReserveAfter: time.Minute, Places: 16})
	for i := range 4 {
		w.joins(offpeak.NodeID(fmt.Sprint("n", i)), 8, 0)
		w.submit(fmt.Sprint("first-", i), "other", 8, 0, time.Duration(1+i)*time.Hour, nil)
	}
	w.match()
	x := w.submit("gang-x", "x", 8, 0, time.Hour, gangOf(3))
	y := w.submit("gang-y", "y", 8, 0, time.Hour, gangOf(3))
	one := w.submit("one", "z", 8, 0, time.Hour, nil)
	w.passes(time.Minute)
	r := w.q.Reservation(x)
	if r == nil || r.Nodes() != 3 || !r.At.Equal(w.started["first-2"].Add(3*time.Hour)) {
		t.Fatalf("the first has %+v", r)
	}
	if w.q.Reservation(y) != nil || w.q.Reservation(one) != nil {
		t.Fatal("others have a reservation while the second gang waits for its nodes")
	}
	for range 12 {
		w.passes(time.Hour)
	}
	for _, id := range []offpeak.JobID{x, y, one} {
		if !w.hasStarted(id) {
			t.Errorf("%s never started", id)
		}
	}
	if !w.started[x].Before(w.started[y]) {
		t.Errorf("%s started at %s, %s at %s", x, w.started[x], y, w.started[y])
	}
}

// A node that leaves takes the whole of a gang's reservation along, and another is made.
func TestGangLosesAReservedNode(t *testing.T) {
	w := newWorld(t, Config{ReserveAfter: time.Minute, Places: 16})
	for i := range 3 {
		w.joins(offpeak.NodeID(fmt.Sprint("n", i)), 8, 0)
		w.submit(fmt.Sprint("first-", i), "other", 8, 0, time.Duration(1+i)*time.Hour, nil)
	}
	w.match()
	id := w.submit("gang", "x", 8, 0, time.Hour, gangOf(2))
	w.passes(time.Minute)
	r := w.q.Reservation(id)
	if r == nil {
		t.Fatal("it has no reservation")
	}
	w.fleet.Remove(r.Node)
	w.q.Gone(r.Node)
	w.match()
	if next := w.q.Reservation(id); next == nil || next.Nodes() != 2 || !next.At.After(r.At) {
		t.Fatalf("it has %+v", next)
	}
	w.passes(4 * time.Hour)
	if !w.hasStarted(id) {
		t.Error("it never started")
	}
}
