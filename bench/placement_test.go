package bench

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/bench/consumer"
	"offpeak/placement"
)

// picture is a fleet of n nodes from the seeded generator, the offers as the fleet
// has them, and what the picture adds to their memory.
func picture(b *testing.B, src *consumer.Source, n int) (*placement.Fleet, []offpeak.Offer) {
	b.Helper()
	f := placement.NewFleet(placement.DefaultWeights())
	offers := make([]offpeak.Offer, n)
	for i := range offers {
		o := src.Offer(i)
		f.Set(nodeOf(&o), heldOf(&o))
		if o.Why == offpeak.FitDraining {
			f.SetIntent(o.Node, offpeak.NodeDraining)
		}
		offers[i], _ = f.Offer(o.Node)
		if offers[i].Ready != o.Ready || offers[i].Free.CPU != o.Free.CPU || len(offers[i].FreeDevices) != len(o.FreeDevices) {
			b.Fatalf("the picture has %+v, the generator %+v", offers[i], o)
		}
	}
	return f, offers
}

// warm has the index made, which the first question of its kind does.
func warm(f *placement.Fleet, p placement.Policy) {
	job := placement.Job{ID: "first", Driver: "process", Requirements: &offpeak.Requirements{CPU: 1000}, Policy: p}
	f.Best(job)
	job.Requirements = &offpeak.Requirements{CPU: 1000, GPUs: []offpeak.GPURequest{{}}}
	f.Best(job)
}

// nodeOf is a node whose offer is o.
func nodeOf(o *offpeak.Offer) offpeak.Node {
	n := offpeak.Node{
		ID: o.Node, Account: o.Account, Name: string(o.Node), Ask: &o.Ask, Capacity: o.Capacity,
		Liveness: offpeak.NodeOnline, Intent: offpeak.NodeOpen, Availability: offpeak.NodeAvailable,
		Inventory: offpeak.Inventory{
			OS: o.OS, Arch: o.Arch, CPU: o.Capacity.CPU, Memory: o.Capacity.Memory, Disk: o.Capacity.Disk,
			Devices: o.Devices, Drivers: o.Drivers, Shared: o.Shared, Region: o.Region, Labels: o.Labels,
		},
	}
	switch o.Why {
	case offpeak.FitOffline:
		n.Liveness = offpeak.NodeOffline
	case offpeak.FitInUse:
		n.Availability = offpeak.NodeInUse
	}
	return n
}

// heldOf is a lease on what of an offer is not free.
func heldOf(o *offpeak.Offer) []placement.Holding {
	r := offpeak.Resources{
		CPU: o.Capacity.CPU - o.Free.CPU, Memory: o.Capacity.Memory - o.Free.Memory, Disk: o.Capacity.Disk - o.Free.Disk,
		Devices: o.Capacity.Devices[:len(o.Capacity.Devices)-len(o.Free.Devices)],
	}
	if r.CPU == 0 && r.Memory == 0 && r.Disk == 0 && len(r.Devices) == 0 {
		return nil
	}
	return []placement.Holding{{Lease: offpeak.LeaseID("lease_" + o.Node), Resources: r}}
}

// BenchmarkPlacement measures how long one placement among many nodes takes, by
// how many of them fit and by policy. Each question is asked once, after others,
// as jobs ask. Whether one fits, and its price where that comes first, is checked
// for each against a look at every node; the choice itself for the first of each
// kind, since to rank them all takes long.
func BenchmarkPlacement(b *testing.B) {
	for name, size := range sizes() {
		b.Run(name, func(b *testing.B) { placements(b, size) })
	}
}

func placements(b *testing.B, size int) {
	src := consumer.New(1)
	f, offers := picture(b, src, size)
	drawn := make([]consumer.Job, 1000)
	for i := range drawn {
		drawn[i] = src.Job(i % 7)
	}
	counts := scanAll(offers, drawn)
	jobs := make([]placement.Job, len(drawn))
	for i := range drawn {
		jobs[i] = placement.Job{
			ID: offpeak.JobID(fmt.Sprintf("job_%06d", i)), Account: drawn[i].Account, Attempt: 1,
			Driver: drawn[i].Driver, Requirements: &drawn[i].Requirements,
		}
	}
	before := heap()
	warm(f, placement.Cheapest)
	bytes := float64(heap()-before) / float64(size)
	warm(f, placement.Fastest)
	withSpeed := float64(heap()-before) / float64(size)
	for _, policy := range []placement.Policy{placement.Cheapest, placement.Balanced, placement.Fastest} {
		for _, c := range []struct {
			name        string
			least, most int // of the nodes fit
		}{
			{"one_in_1000", size / 1000, size},
			{"barely_one_in_1000", size / 1000, size / 250},
			{"one_in_100000", 1, max(size/50_000, 1)},
			{"none", 0, 0},
		} {
			b.Run(fmt.Sprintf("%s/%s", policy, c.name), func(b *testing.B) {
				var took spans
				for range b.N {
					// What checks looks at all nodes: it would empty the caches between
					// two questions.
					var asked []int
					var chosen []placement.Candidate
					for i, a := range counts {
						if a.fits < c.least || a.fits > c.most {
							continue
						}
						jobs[i].Policy = policy
						took.begin()
						got, ok := f.Best(jobs[i])
						took.end()
						if ok != (a.fits > 0) || (ok && policy == placement.Cheapest && got.Price != a.cheapest.Ask.For(*jobs[i].Requirements)) {
							b.Fatalf("%+v %+v: chose %+v, %v; the scan %+v", jobs[i], jobs[i].Requirements, got, ok, a)
						}
						asked, chosen = append(asked, i), append(chosen, got)
					}
					for k := range min(len(asked), 8_000_000/size) {
						if best := f.Rank(jobs[asked[k]]); len(best) > 0 && best[0].Node != chosen[k].Node {
							b.Fatalf("%+v %+v: chose %+v, the best is %+v", jobs[asked[k]], jobs[asked[k]].Requirements, chosen[k], best[0])
						}
					}
				}
				if len(took.wall) == 0 {
					b.Skip("no such job")
				}
				took.report(b)
				b.ReportMetric(bytes, "B/node")
				b.ReportMetric(withSpeed, "B/node-with-speed")
			})
		}
	}
}

// sizes are the fleets that figures are about, the smaller first.
func sizes() iter.Seq2[string, int] {
	return func(yield func(string, int) bool) {
		_ = yield("100k", 100_000) && yield("1M", 1_000_000)
	}
}

// spans are how long questions took, by the clock and in time of the processor:
// on a machine that others use as well, the first tells much about them.
type spans struct {
	wall, processor []time.Duration
	began           time.Time
	used            time.Duration
}

func (s *spans) begin() {
	runtime.LockOSThread()
	s.used, s.began = threadTime(), time.Now()
}

func (s *spans) end() {
	wall := time.Since(s.began)
	s.wall, s.processor = append(s.wall, wall), append(s.processor, threadTime()-s.used)
	runtime.UnlockOSThread()
}

func (s *spans) report(b *testing.B) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(s.wall)), "questions")
	for _, of := range []struct {
		unit  string
		spans []time.Duration
	}{{"us", s.wall}, {"cpu-us", s.processor}} {
		slices.Sort(of.spans)
		b.ReportMetric(float64(of.spans[len(of.spans)/2].Nanoseconds())/1e3, of.unit+"-p50")
		b.ReportMetric(float64(of.spans[len(of.spans)*99/100].Nanoseconds())/1e3, of.unit+"-p99")
		b.ReportMetric(float64(of.spans[len(of.spans)-1].Nanoseconds())/1e3, of.unit+"-most")
	}
}

// threadTime is the processor time that this thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// processTime is the processor time that this process has used, the collection
// of garbage included.
func processTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// BenchmarkPlacementAwake is BenchmarkPlacement with metrics of every node known,
// so that they count where 100 nodes fit.
func BenchmarkPlacementAwake(b *testing.B) {
	const size = 100_000
	src := consumer.New(1)
	f, offers := picture(b, src, size)
	rng := rand.New(rand.NewPCG(3, 0))
	for i := range offers {
		f.SetMetrics(offers[i].Node, placement.Metrics{
			Reliability: 1 - rng.Float64()/5, Return: time.Duration(rng.IntN(600)) * time.Minute,
			GPUSpeed: float64(offers[i].Ask.GPU) / 50_000 * (0.7 + rng.Float64()), CPUSpeed: 0.3 + rng.Float64(),
			Latency: time.Duration(5+rng.IntN(200)) * time.Millisecond,
		})
	}
	for _, policy := range []placement.Policy{placement.Cheapest, placement.Balanced, placement.Fastest} {
		warm(f, policy)
		b.Run(string(policy), func(b *testing.B) {
			var took spans
			for range b.N {
				jobs := make([]placement.Job, 1000)
				chosen := make([]placement.Candidate, len(jobs))
				for i := range jobs {
					drawn := src.Job(i % 3)
					jobs[i] = placement.Job{
						ID: offpeak.JobID(fmt.Sprintf("job_%06d", i)), Account: drawn.Account, Attempt: 1,
						Driver: drawn.Driver, Requirements: &drawn.Requirements, Policy: policy,
					}
				}
				for i := range jobs {
					took.begin()
					chosen[i], _ = f.Best(jobs[i])
					took.end()
				}
				for i := range 50 {
					if all := f.Rank(jobs[i]); len(all) > 0 && all[0].Node != chosen[i].Node {
						b.Fatalf("%+v %+v: chose %+v of %d", jobs[i], jobs[i].Requirements, chosen[i], len(all))
					}
				}
			}
			took.report(b)
		})
	}
}

// BenchmarkHold measures what a claim and an end cost the picture.
func BenchmarkHold(b *testing.B) {
	src := consumer.New(1)
	f, offers := picture(b, src, 1_000_000)
	r := offpeak.Requirements{CPU: 1000, GPUs: []offpeak.GPURequest{{}}}
	warm(f, placement.Cheapest)
	var took spans
	changes := 0
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range b.N {
		for i := range 100_000 {
			o := &offers[(i*7919)%len(offers)]
			res, ok := r.Assign(*o)
			if !ok || !o.Ready || o.Free.CPU < r.CPU {
				continue
			}
			took.begin()
			f.Hold(o.Node, "lease_held", res)
			took.end()
			took.begin()
			f.Release(o.Node, "lease_held")
			took.end()
			changes += 2
		}
	}
	runtime.ReadMemStats(&after)
	took.report(b)
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(changes), "allocs/change")
}

// waiting is a queue as a hub keeps it, as far as matching needs it: jobs that ask
// for the same share a class, and a class of which one job finds no node waits
// until a node comes free that may take it.
type waiting struct {
	fleet  *placement.Fleet
	ready  []*class
	parked []*class
	leases []placed
}

type class struct {
	job  placement.Job
	jobs []offpeak.JobID
}

type placed struct {
	node  offpeak.NodeID
	lease offpeak.LeaseID
}

// pass places what can be placed.
func (w *waiting) pass() {
	for len(w.ready) > 0 {
		c := w.ready[0]
		c.job.ID = c.jobs[0]
		best, ok := w.fleet.Best(c.job)
		if !ok {
			w.ready, w.parked = w.ready[1:], append(w.parked, c)
			continue
		}
		lease := offpeak.LeaseID("lease_" + c.job.ID)
		w.fleet.Hold(best.Node, lease, best.Resources)
		w.fleet.Confirm(best.Node, lease)
		w.leases = append(w.leases, placed{best.Node, lease})
		if c.jobs = c.jobs[1:]; len(c.jobs) == 0 {
			w.ready = w.ready[1:]
		} else {
			w.ready = append(w.ready[1:], c) // turn by turn
		}
	}
}

// free ends n leases and lets those try again that may take their nodes.
func (w *waiting) free(n int) {
	var freed []offpeak.NodeID
	for _, l := range w.leases[:n] {
		w.fleet.Release(l.node, l.lease)
		freed = append(freed, l.node)
	}
	w.leases = w.leases[n:]
	w.parked = slices.DeleteFunc(w.parked, func(c *class) bool {
		if !slices.ContainsFunc(freed, func(id offpeak.NodeID) bool { return w.fleet.MayFit(c.job, id) }) {
			return false
		}
		w.ready = append(w.ready, c)
		return true
	})
}

func (w *waiting) left() (n int) {
	for _, c := range slices.Concat(w.ready, w.parked) {
		n += len(c.jobs)
	}
	return n
}

// BenchmarkBurst measures how long 1,000 to 100,000 queued jobs take to be placed
// on 10,000 free and equal nodes, the store excluded: CPU jobs, which all find
// room, and jobs for the one GPU that each node has, of which nine tenths of the
// largest burst wait. Of those one of each class is explained, and then a few
// nodes come free.
func BenchmarkBurst(b *testing.B) {
	const nodes, accounts = 10_000, 50
	for _, kind := range []string{"cpu", "gpu"} {
		for _, jobs := range []int{1000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/%d", kind, jobs), func(b *testing.B) {
				var pass, used, explain, freed time.Duration
				explained := 0
				for range b.N {
					w := &waiting{fleet: placement.NewFleet(placement.DefaultWeights())}
					for i := range nodes {
						o := offpeak.Offer{
							Node: offpeak.NodeID(fmt.Sprintf("node_%08d", i)), Account: "acct_o", OS: "linux", Arch: "amd64",
							Drivers: []string{"process"}, Shared: []string{"process"},
							Capacity: offpeak.Resources{CPU: 16_000, Memory: 64 * offpeak.GiB, Disk: 500 * offpeak.GiB},
						}
						if kind == "gpu" {
							id := offpeak.DeviceID(fmt.Sprintf("GPU-%d", i))
							o.Devices = []offpeak.Device{{ID: id, Vendor: "nvidia", Model: "NVIDIA GeForce RTX 3090", VRAM: 24 * offpeak.GiB}}
							o.Capacity.Devices = []offpeak.DeviceID{id}
						}
						w.fleet.Set(nodeOf(&o), nil)
					}
					r := offpeak.Requirements{CPU: 1000, Memory: offpeak.GiB, Disk: offpeak.GiB}
					if kind == "gpu" {
						r.GPUs = []offpeak.GPURequest{{VRAM: 16 * offpeak.GiB}}
					}
					for i := range accounts {
						c := &class{job: placement.Job{Account: offpeak.AccountID(fmt.Sprintf("acct_%d", i)), Attempt: 1, Driver: "process", Requirements: &r}}
						for k := i; k < jobs; k += accounts {
							c.jobs = append(c.jobs, offpeak.JobID(fmt.Sprintf("job_%06d", k)))
						}
						w.ready = append(w.ready, c)
					}
					runtime.GC()
					before, began := processTime(), time.Now()
					w.pass()
					pass += time.Since(began)
					used += processTime() - before
					want := 0
					if kind == "gpu" {
						want = max(jobs-nodes, 0)
					}
					if left := w.left(); left != want {
						b.Fatalf("%d jobs wait, want %d", left, want)
					}
					began = time.Now()
					for _, c := range w.parked {
						if e := w.fleet.Explain(c.job, 10); e.Fits != 0 || len(e.Causes) == 0 || e.Causes[0].Code != offpeak.FitBusyGPU || e.Causes[0].Nodes != nodes {
							b.Fatalf("explained as %+v", e)
						}
						explained++
					}
					explain += time.Since(began)
					began = time.Now()
					w.free(10)
					w.pass()
					freed += time.Since(began)
				}
				n := float64(b.N)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(pass.Seconds()/n, "s/burst")
				b.ReportMetric(used.Seconds()/n, "cpu-s/burst")
				b.ReportMetric(float64(used.Microseconds())/n/float64(jobs), "cpu-us/job")
				b.ReportMetric(float64(freed.Microseconds())/n/10, "us/freed-node")
				if explained > 0 {
					b.ReportMetric(float64(explain.Microseconds())/float64(explained), "us/explained-class")
				}
			})
		}
	}
}
