package bench

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/queue"
)

// line is a fleet and a queue, as a hub matches them, without a store.
type line struct {
	b     *testing.B
	fleet *placement.Fleet
	q     *queue.Queue
	now   time.Time
	lease int
}

func newLine(b *testing.B) *line {
	f := placement.NewFleet(placement.DefaultWeights())
	return &line{b: b, fleet: f, q: queue.New(queue.DefaultConfig(), f, nil), now: time.UnixMicro(1_700_000_000_000_000)}
}

// joins adds a node of 16 cores, with a card or without.
func (l *line) joins(i int, vram offpeak.Bytes) offpeak.NodeID {
	id := offpeak.NodeID(fmt.Sprintf("node_%06d", i))
	n := offpeak.Node{
		ID: id, Account: "owner", Name: string(id), Liveness: offpeak.NodeOnline, Intent: offpeak.NodeOpen,
		Availability: offpeak.NodeAvailable, Ask: &offpeak.Ask{},
		Inventory: offpeak.Inventory{OS: "linux", Arch: "amd64", Drivers: []string{"process"}, Shared: []string{"process"}},
		Capacity:  offpeak.Resources{CPU: 16_000, Memory: 64 * offpeak.GiB, Disk: 1024 * offpeak.GiB},
	}
	if vram > 0 {
		d := offpeak.Device{ID: offpeak.DeviceID("GPU-" + id), Vendor: "nvidia", Model: "RTX 4090", VRAM: vram}
		n.Inventory.Devices, n.Capacity.Devices = []offpeak.Device{d}, []offpeak.DeviceID{d.ID}
	}
	l.fleet.Set(n, nil)
	l.q.Freed(id)
	return id
}

// queued is a job as a hub hands it over. Its requirements' text is made once a kind.
func (l *line) queued(i int, account int, r *offpeak.Requirements, text string) queue.Job {
	return queue.Job{
		ID: offpeak.JobID(fmt.Sprintf("job_%026d", i)), Account: offpeak.AccountID(fmt.Sprintf("acct_%03d", account)),
		Submitted: l.now.Add(time.Duration(i) * time.Microsecond), Driver: "process", Requirements: r, Text: text, Lasts: 25 * time.Hour,
	}
}

func textOf(b *testing.B, r *offpeak.Requirements) string {
	b.Helper()
	data, err := json.Marshal(r)
	if err != nil {
		b.Fatal(err)
	}
	return string(data)
}

// match places all that can be placed, and counts.
func (l *line) match() (placed int) {
	for {
		it, best, ok := l.q.Next(l.now)
		if !ok {
			return placed
		}
		placed++
		l.take(it, best)
	}
}

func (l *line) take(it *queue.Item, best placement.Candidate) offpeak.LeaseID {
	j := it.Job()
	l.lease++
	id := offpeak.LeaseID(fmt.Sprintf("lease_%08d", l.lease))
	l.q.Remove(j.ID)
	l.fleet.Hold(best.Node, id, best.Resources)
	l.q.Hold(queue.Lease{ID: id, Account: j.Account, Node: best.Node, Resources: best.Resources, Since: l.now, Ends: l.now.Add(j.Lasts)}, l.now)
	return id
}

// shapes are what jobs ask for: so many kinds, between a core and four of them, a
// GPU or none.
func shapes(b *testing.B, kinds int, gpu bool) (list []*offpeak.Requirements, texts []string) {
	for i := range kinds {
		r := &offpeak.Requirements{CPU: 1000, Memory: offpeak.GiB + offpeak.Bytes(i)*offpeak.MiB, Disk: offpeak.GiB}
		if gpu {
			r.GPUs = []offpeak.GPURequest{{VRAM: offpeak.Bytes(8+i%16) * offpeak.GiB}}
		}
		list, texts = append(list, r), append(texts, textOf(b, r))
	}
	return list, texts
}

// BenchmarkQueueBurst measures how long it takes to place 100,000 queued jobs on 10,000
// free nodes, the store excluded: jobs of a core on 16-core nodes, which all run;
// and GPU jobs on nodes with one card, of which 90,000 are left, each with the cause
// known. Jobs are of ten accounts and ten kinds.
func BenchmarkQueueBurst(b *testing.B) {
	for _, c := range []struct {
		name string
		gpu  bool
	}{{"cpu", false}, {"gpu", true}} {
		for _, nodes := range []int{100, 1000, 10_000} {
			b.Run(fmt.Sprintf("%s/nodes=%d", c.name, nodes), func(b *testing.B) {
				jobs := 10 * nodes
				for b.Loop() {
					b.StopTimer()
					l := newLine(b)
					for i := range nodes {
						vram := offpeak.Bytes(0)
						if c.gpu {
							vram = 24 * offpeak.GiB
						}
						l.joins(i, vram)
					}
					list, texts := shapes(b, 10, c.gpu)
					b.StartTimer()
					began := time.Now()
					for i := range jobs {
						k := i % len(list)
						l.q.Add(l.queued(i, i/10%10, list[k], texts[k]), l.now)
					}
					queued := time.Since(began)
					placed := l.match()
					all := time.Since(began)
					b.StopTimer()
					want := jobs
					if c.gpu {
						want = nodes
					}
					if placed != want || l.q.Len() != jobs-want {
						b.Fatalf("%d placed and %d left, want %d of %d", placed, l.q.Len(), want, jobs)
					}
					explained := l.causes()
					b.ReportMetric(all.Seconds(), "s/burst")
					b.ReportMetric(queued.Seconds(), "s/queueing")
					b.ReportMetric(explained.Seconds(), "s/causes")
					b.ReportMetric(float64(all.Microseconds())/float64(placed), "µs/placed")
					b.StartTimer()
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// causes finds out for each job that is left why it waits: what is so for one of a
// class is so for all of it.
func (l *line) causes() time.Duration {
	began := time.Now()
	type class struct {
		account offpeak.AccountID
		text    string
	}
	known := map[class]offpeak.FitCode{}
	for it := range l.q.Items {
		j := it.Job()
		k := class{j.Account, j.Text}
		if _, there := known[k]; !there {
			e := l.fleet.Explain(l.q.Placement(it), 1)
			if len(e.Causes) == 0 || e.Fits > 0 || !l.q.IsParked(it) {
				l.b.Fatalf("job %s waits for no cause: %+v", j.ID, e)
			}
			known[k] = e.Causes[0].Code
		}
	}
	return time.Since(began)
}

// BenchmarkPass measures one pass over a queue when one node changes: a lease ends,
// the next job takes what it leaves. The fleet is full and of 100 nodes, so that the
// choice of a node costs little. In alike the jobs are of 20 accounts and 50 kinds, in
// distinct every job asks for something else, in elsewhere none is for this node: they
// want a label that no node has.
func BenchmarkPass(b *testing.B) {
	for _, kind := range []string{"alike", "distinct", "elsewhere"} {
		for _, jobs := range []int{1000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/jobs=%d", kind, jobs), func(b *testing.B) {
				const nodes = 100
				l := newLine(b)
				for i := range nodes {
					l.joins(i, 24*offpeak.GiB)
				}
				whole := &offpeak.Requirements{CPU: 16_000, GPUs: []offpeak.GPURequest{{VRAM: 20 * offpeak.GiB}}}
				text := textOf(b, whole)
				for i := range nodes {
					l.q.Add(l.queued(i, 0, whole, text), l.now)
				}
				if placed := l.match(); placed != nodes {
					b.Fatalf("%d placed", placed)
				}
				kinds := 50
				if kind == "distinct" {
					kinds = jobs
				}
				list, texts := shapes(b, kinds, true)
				for i := range jobs {
					k := i % kinds
					r := *list[k]
					r.CPU = 16_000
					if kind == "elsewhere" {
						r.Where = map[string]string{"room": "none"}
					}
					if kind != "distinct" && i < kinds || kind == "distinct" {
						texts[k] = textOf(b, &r)
					}
					l.q.Add(l.queued(nodes+i, i%20, &r, texts[k]), l.now)
				}
				if placed := l.match(); placed != 0 {
					b.Fatalf("%d placed on a full fleet", placed)
				}
				node, lease, next := offpeak.NodeID("node_000000"), offpeak.LeaseID("lease_00000001"), nodes+jobs
				for id := range l.fleet.Leases(node) {
					lease = id
				}
				for b.Loop() {
					l.now = l.now.Add(time.Second)
					l.fleet.Release(node, lease)
					l.q.Release(lease, l.now)
					l.q.Freed(node)
					it, best, ok := l.q.Next(l.now)
					if ok != (kind != "elsewhere") {
						b.Fatalf("placed: %t", ok)
					}
					if ok {
						j := it.Job()
						lease = l.take(it, best)
						// Another comes for the one that went, so that the queue stays as it is.
						j.ID, j.Submitted = offpeak.JobID(fmt.Sprintf("job_%026d", next)), l.now
						next++
						l.q.Add(j, l.now)
					}
					if _, _, more := l.q.Next(l.now); more {
						b.Fatal("two took one place")
					}
				}
			})
		}
	}
}
