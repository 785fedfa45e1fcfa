package queue

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"offpeak"
	"offpeak/placement"
)

// world is a fleet and a queue in virtual time: what a hub does with both, and
// nothing else.
type world struct {
	t     testing.TB
	fleet *placement.Fleet
	q     *Queue
	now   time.Time
	// ends are the running leases by when they end in truth, which is not before
	// they began and not after their limit.
	runs    map[offpeak.LeaseID]run
	started map[offpeak.JobID]time.Time
	node    map[offpeak.JobID]offpeak.NodeID
	lease   int
	steps   int
	// live are the members of arrays that run, most is the most that did at once.
	live, most map[offpeak.GroupID]int
	// takes says how long a job runs in truth; nil: as long as it may.
	takes func(Job) time.Duration
}

type run struct {
	node offpeak.NodeID
	job  Job
	end  time.Time
}

func newWorld(t testing.TB, cfg Config) *world {
	f := placement.NewFleet(placement.DefaultWeights())
	return &world{
		t: t, fleet: f, q: New(cfg, f, nil), now: time.UnixMicro(1_700_000_000_000_000), runs: make(map[offpeak.LeaseID]run),
		started: make(map[offpeak.JobID]time.Time), node: make(map[offpeak.JobID]offpeak.NodeID),
		live: make(map[offpeak.GroupID]int), most: make(map[offpeak.GroupID]int),
	}
}

// joins adds a node with so many cores and GPUs of 24 GiB.
func (w *world) joins(id offpeak.NodeID, cores int64, gpus int) {
	n := offpeak.Node{
		ID: id, Account: "owner", Name: string(id), Liveness: offpeak.NodeOnline, Intent: offpeak.NodeOpen,
		Availability: offpeak.NodeAvailable, Ask: &offpeak.Ask{},
		Inventory: offpeak.Inventory{OS: "linux", Arch: "amd64", Drivers: []string{"process"}, Shared: []string{"process"}},
		Capacity:  offpeak.Resources{CPU: cores * 1000, Memory: 64 * offpeak.GiB, Disk: 512 * offpeak.GiB},
	}
	for i := range gpus {
		d := offpeak.Device{ID: offpeak.DeviceID(fmt.Sprintf("%s-gpu%d", id, i)), Vendor: "nvidia", Model: "RTX 4090", VRAM: 24 * offpeak.GiB}
		n.Inventory.Devices = append(n.Inventory.Devices, d)
		n.Capacity.Devices = append(n.Capacity.Devices, d.ID)
	}
	w.fleet.Set(n, nil)
	w.q.Freed(id)
}

// submit queues a job of so many cores and GPUs that may run for so long.
func (w *world) submit(name string, account offpeak.AccountID, cores int64, gpus int, limit time.Duration, change func(*Job)) offpeak.JobID {
	r := &offpeak.Requirements{CPU: cores * 1000}
	for range gpus {
		r.GPUs = append(r.GPUs, offpeak.GPURequest{VRAM: 20 * offpeak.GiB})
	}
	j := Job{
		ID: offpeak.JobID(name), Account: account, Submitted: w.now, Driver: "process",
		Requirements: r, Text: text(r), Lasts: limit,
	}
	if change != nil {
		change(&j)
	}
	w.q.Add(j, w.now)
	return j.ID
}

// match places what can be placed now.
func (w *world) match() {
	w.t.Helper()
	w.q.Wake(w.now)
	for {
		it, best, ok := w.q.Next(w.now)
		if !ok {
			break
		}
		j := it.Job()
		turn := w.q.Went(it)
		w.q.Remove(j.ID)
		seats := it.Seats()
		if len(j.Gang) == 0 {
			seats = []placement.Candidate{best}
		}
		end := j.Lasts
		if w.takes != nil {
			end = min(end, w.takes(j))
		}
		own := map[offpeak.NodeID]bool{}
		for _, seat := range seats {
			w.lease++
			l := Lease{
				ID: offpeak.LeaseID(fmt.Sprintf("lease_%d", w.lease)), Account: j.Account, Node: seat.Node,
				Resources: seat.Resources, Since: w.now, Ends: w.now.Add(j.Lasts),
			}
			own[l.Node] = true
			w.fleet.Hold(l.Node, l.ID, l.Resources)
			w.q.Hold(l, w.now)
			w.runs[l.ID] = run{l.Node, j, w.now.Add(end)}
		}
		if len(own) != max(1, len(j.Gang)) {
			w.t.Fatalf("%s, of %d members, got the nodes %v", j.ID, len(j.Gang), own)
		}
		w.started[j.ID], w.node[j.ID] = w.now, best.Node
		w.live[j.Group]++
		w.most[j.Group] = max(w.most[j.Group], w.live[j.Group])
		w.q.Left(turn, j.AtOnce-w.live[j.Group])
	}
	w.wholes()
	if w.steps++; w.steps%50 != 0 {
		return
	}
	w.q.check(w.t)
	for o := range w.fleet.Offers() {
		if o.Free.CPU < 0 || o.Free.Memory < 0 {
			w.t.Fatalf("%s has %+v free", o.Node, o.Free)
		}
	}
}

// passes lets time pass, with what ends meanwhile.
func (w *world) passes(d time.Duration) {
	w.now = w.now.Add(d)
	for id, r := range w.runs {
		if !r.end.After(w.now) {
			delete(w.runs, id)
			w.q.Release(id, w.now)
			w.fleet.Release(r.node, id)
			w.q.Freed(r.node)
			w.live[r.job.Group]--
			w.q.MemberEnded(r.job.Group)
		}
	}
	w.match()
}

func (w *world) bound(job offpeak.JobID) time.Time {
	w.t.Helper()
	b, ok := w.q.Bound(w.q.Item(job), w.now, w.fleet.Explain(w.q.Placement(w.q.Item(job)), 1).Idle)
	if !ok {
		w.t.Fatalf("%s waits without a bound", job)
	}
	return b
}

// A stream of small jobs that always fills what comes free, of many accounts,
// some before the large ones in every respect, keeps none of these out for longer
// than the bound that was stated when they came.
func TestNothingStarves(t *testing.T) {
	for seed := range uint64(3) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, Config{HalfLife: 24 * time.Hour, GPU: 16, ReserveAfter: 30 * time.Minute, Places: 2})
		nodes := 1 + rnd.IntN(4)
		for i := range nodes {
			w.joins(offpeak.NodeID(fmt.Sprintf("n%d", i)), 8, i%3)
		}
		w.takes = func(j Job) time.Duration { return time.Duration(rnd.Int64N(int64(j.Lasts))) + time.Minute }
		bounds := map[offpeak.JobID]time.Time{}
		n := 0
		small := func() {
			n++
			w.submit(fmt.Sprintf("small-%d", n), offpeak.AccountID(fmt.Sprint("small-", rnd.IntN(5))), 1+rnd.Int64N(2), 0,
				time.Duration(10+rnd.IntN(170))*time.Minute, func(j *Job) { j.Priority = rnd.IntN(3) })
		}
		for range 200 {
			small()
		}
		w.match()
		for step := range 4000 {
			if step%800 == 10 && step < 2500 {
				id := w.submit(fmt.Sprintf("large-%d", step), "large", 8, 0, 2*time.Hour, func(j *Job) { j.Priority = -rnd.IntN(2) })
				bounds[id] = w.bound(id)
			}
			if step%800 == 30 && step < 2500 {
				// Another account's, that used far more than the small ones do.
				id := w.submit(fmt.Sprintf("heavy-%d", step), "heavy", 7, 0, time.Hour, nil)
				w.q.Used("heavy", 1_000_000, 0, w.now.Add(-time.Hour), w.now, w.now)
				bounds[id] = w.bound(id)
			}
			w.passes(time.Minute)
			for range nodes {
				small()
			}
			w.match()
		}
		small2 := 0
		for id := range w.started {
			if id[0] == 's' {
				small2++
			}
		}
		for id, by := range bounds {
			at, ok := w.started[id]
			if !ok {
				t.Errorf("seed %d: %s never started; it was to by %s", seed, id, by)
			} else if at.After(by.Add(time.Minute)) { // the world's own step
				t.Errorf("seed %d: %s started at %s, %s after its bound", seed, id, at, at.Sub(by))
			}
		}
		if small2 < 400*nodes {
			t.Errorf("seed %d: only %d small jobs ran on %d nodes", seed, small2, nodes)
		}
	}
}

// Without reservations the same stream does keep a large job out: the test above
// tests something.
func TestSmallJobsStarveALargeOneWithoutReservations(t *testing.T) {
	w := newWorld(t, Config{HalfLife: 24 * time.Hour})
	w.joins("n", 4, 0)
	w.submit("small", "a", 1, 0, time.Hour, nil)
	w.match()
	id := w.submit("large", "b", 4, 0, time.Hour, nil)
	for i := range 500 {
		w.submit(fmt.Sprint("small-", i), "a", 1, 0, time.Hour, nil)
		w.passes(20 * time.Minute)
	}
	if _, ok := w.started[id]; ok {
		t.Error("it started")
	}
}

// A job that can't start keeps a node from a moment on; what is over before may
// use it all, and what does not touch what it needs may use that for long.
func TestSmallJobsPassALargeOneThatCannotStart(t *testing.T) {
	w := newWorld(t, Config{ReserveAfter: 10 * time.Minute, Places: 4})
	w.joins("n", 8, 2)
	w.submit("first", "a", 4, 1, 2*time.Hour, nil)
	w.match()
	end := w.now.Add(2 * time.Hour)
	w.submit("large", "b", 6, 2, time.Hour, nil)
	w.match()
	if w.q.Reservation("large") != nil {
		t.Fatal("it has a reservation before it waited")
	}
	w.passes(10 * time.Minute)
	r := w.q.Reservation("large")
	if r == nil || r.Node != "n" || !r.At.Equal(end) {
		t.Fatalf("after ten minutes it has %+v, want n at %s", r, end)
	}
	// Free now: 4 cores, a GPU. The first gives 4 cores and the other GPU back, so
	// 2 cores and the GPU are kept.
	w.submit("long-gpu", "c", 1, 1, 3*time.Hour, nil)
	w.submit("long-large", "c", 3, 0, 3*time.Hour, nil)
	w.submit("long-small", "c", 2, 0, 3*time.Hour, nil)
	w.submit("short-gpu", "c", 2, 1, time.Hour, nil)
	w.submit("too-long-gpu", "c", 1, 1, 111*time.Minute, nil)
	w.passes(0)
	for id, want := range map[offpeak.JobID]bool{"long-gpu": false, "long-large": false, "long-small": true, "short-gpu": true, "too-long-gpu": false, "large": false} {
		if _, runs := w.started[id]; runs != want {
			t.Errorf("%s runs: %t, want %t", id, runs, want)
		}
	}
	if b := w.bound("large"); !b.Equal(end) {
		t.Errorf("its bound is %s, want %s", b, end)
	}
	w.passes(time.Hour)      // the short one is over
	w.passes(time.Minute)    // and what it had stays kept
	w.passes(end.Sub(w.now)) // the first is
	if at := w.started["large"]; !at.Equal(end) {
		t.Errorf("it started at %s, want %s", at, end)
	}
	if len(w.q.reserved) != 0 && w.q.Reservation("large") != nil {
		t.Error("it has a reservation still")
	}
}

// A lease that ends early makes room for the job that waits for it, not for others.
func TestReservedJobStartsEarlyWhereItCan(t *testing.T) {
	w := newWorld(t, Config{ReserveAfter: 10 * time.Minute, Places: 4})
	w.takes = func(j Job) time.Duration { return 30 * time.Minute }
	w.joins("n", 4, 0)
	w.submit("first", "a", 4, 0, 2*time.Hour, nil)
	w.match()
	w.submit("large", "b", 4, 0, time.Hour, nil)
	w.passes(10 * time.Minute)
	for i := range 10 {
		w.submit(fmt.Sprint("small-", i), "c", 1, 0, time.Hour, func(j *Job) { j.Priority = 100 })
	}
	w.passes(20 * time.Minute)
	if _, ok := w.started["large"]; !ok {
		t.Fatal("it did not start when the lease had ended")
	}
}

// Two accounts with the same jobs get the same, whoever was first and however much
// more the other queued; one that used much before waits until the other has, too.
func TestAccountsShare(t *testing.T) {
	w := newWorld(t, Config{HalfLife: 24 * time.Hour, GPU: 16})
	w.joins("n", 10, 0)
	for i := range 1000 {
		w.submit(fmt.Sprint("a-", i), "a", 1, 0, time.Hour, nil)
	}
	w.now = w.now.Add(time.Second)
	for i := range 100 {
		w.submit(fmt.Sprint("b-", i), "b", 1, 0, time.Hour, nil)
	}
	ran := func(account byte) (n int) {
		for id := range w.started {
			if id[0] == account {
				n++
			}
		}
		return n
	}
	w.match()
	if a, b := ran('a'), ran('b'); a != 5 || b != 5 {
		t.Errorf("at once %d of a and %d of b run, want 5 and 5", a, b)
	}
	for range 8 {
		w.passes(time.Hour)
	}
	if a, b := ran('a'), ran('b'); a != 45 || b != 45 {
		t.Errorf("in nine hours %d of a and %d of b ran, want 45 each", a, b)
	}
	// A third comes that has used nothing: what it may hold weighs as much as what
	// the others used.
	for i := range 100 {
		w.submit(fmt.Sprint("c-", i), "c", 1, 0, time.Hour, nil)
	}
	w.passes(time.Hour)
	if c := ran('c'); c != 4 {
		t.Errorf("who used nothing got %d of 10 places, want more than the others' 3", c)
	}
	s := w.q.Share("a", w.now)
	if s.Hours < 39 || s.Hours > 40 || s.Part < 0.4 || s.Part > 0.6 {
		t.Errorf("a used %+v, want about 39.6 core-hours, half of all", s)
	}
}

// Use counts half after a half-life, also what was used before the queue knew of it.
func TestUseDecays(t *testing.T) {
	q := empty(Config{HalfLife: time.Hour, GPU: 10})
	now := time.UnixMicro(1_700_000_000_000_000)
	q.Hold(Lease{ID: "l", Account: "live", Resources: offpeak.Resources{CPU: 2000, Devices: []offpeak.DeviceID{"g"}}, Since: now}, now)
	later := now.Add(90 * time.Minute)
	q.Release("l", later)
	q.Used("told", 2000, 1, now, later, later)
	for _, at := range []time.Time{later, later.Add(time.Hour), later.Add(9 * time.Hour)} {
		live, told := q.Share("live", at), q.Share("told", at)
		if diff := live.Hours - told.Hours; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("watched it is %g core-hours, told %g", live.Hours, told.Hours)
		}
	}
	first := q.Share("live", later.Add(9*time.Hour)).Hours
	if half := q.Share("live", later.Add(10*time.Hour)).Hours; half < first/2*0.999 || half > first/2*1.001 {
		t.Errorf("%g core-hours are %g an hour later", first, half)
	}
}
