package hub_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/placement"
	"offpeak/placement/queue"
	"offpeak/wire"
)

// discard is a response writer that costs nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// BenchmarkHeartbeat compares quiet heartbeats with a bare handler that decodes
// and answers the same JSON.
func BenchmarkHeartbeat(b *testing.B) {
	body := `{"incarnation":"inc-0123456789abcdef","seq":1,"availability":"available"}`
	serve := func(b *testing.B, h http.HandlerFunc) {
		b.ReportAllocs()
		for b.Loop() {
			r := httptest.NewRequest(http.MethodPost, "/v1/node/heartbeat", strings.NewReader(body))
			h(discard{http.Header{}}, r)
		}
	}
	b.Run("bare", func(b *testing.B) {
		serve(b, func(w http.ResponseWriter, r *http.Request) {
			var in wire.Heartbeat
			_ = json.NewDecoder(r.Body).Decode(&in)
			_ = json.NewEncoder(w).Encode(wire.Sync{Revision: 1, Interval: 5e9, Timeout: 6e10, Leases: []wire.Desired{}})
		})
	})
	b.Run("hub", func(b *testing.B) {
		g := newGrid(b, hub.Config{})
		a := g.join("one")
		serve(b, func(w http.ResponseWriter, r *http.Request) {
			var in wire.Heartbeat
			_ = json.NewDecoder(r.Body).Decode(&in)
			t, err := g.hub.Access().Authenticate(r.Context(), a.session)
			if err != nil {
				b.Fatal(err)
			}
			a.seq++
			in.Incarnation, in.Seq = a.inc, a.seq
			s, err := g.hub.Heartbeat(r.Context(), t.Node, in)
			if err != nil {
				b.Fatal(err)
			}
			_ = json.NewEncoder(w).Encode(s)
		})
	})
}

// BenchmarkSubmitToOffer is one job from its submission to its node's watcher.
func BenchmarkSubmitToOffer(b *testing.B) {
	g := newGrid(b, hub.Config{})
	a := g.join("one")
	for b.Loop() {
		g.submit(small())
		d := a.offered()
		a.accept(d)
		a.end(d, offpeak.EndCompleted)
	}
}

// BenchmarkExplain explains a job among 100,000 nodes while 100,000 others of its
// account wait: one that no node could ever run, one whose nodes are all
// held, and one before it is submitted, which they all would take. Beside the time
// it measures for how long at a time somebody else waits for the hub's lock.
func BenchmarkExplain(b *testing.B) {
	const n = 100_000
	cfg := hub.Config{Queue: queue.DefaultConfig(), Weights: placement.DefaultWeights()}
	g := newGrid(b, cfg)
	ask := func(cpu int64, vram offpeak.Bytes) offpeak.Spec {
		s := small()
		s.Requirements = offpeak.Requirements{CPU: cpu, Memory: offpeak.GiB, GPUs: []offpeak.GPURequest{{VRAM: vram}}}
		return s
	}
	g.hub.Picture(func(f *placement.Fleet, _ *queue.Queue) {
		for i := range n {
			id := offpeak.NodeID(fmt.Sprintf("node_%06d", i))
			card := offpeak.Device{ID: offpeak.DeviceID("GPU-" + id), Vendor: "nvidia", Model: fmt.Sprint("RTX ", i%7), VRAM: []offpeak.Bytes{8, 12, 16, 24}[i%4] * offpeak.GiB}
			f.Set(offpeak.Node{
				ID: id, Account: g.account, Name: string(id), Liveness: offpeak.NodeOnline, Intent: offpeak.NodeOpen,
				Availability: offpeak.NodeAvailable, Ask: &offpeak.Ask{CPU: offpeak.Price(i % 1000), GPU: offpeak.Price(i % 1000)},
				Inventory: offpeak.Inventory{OS: "linux", Arch: "amd64", Drivers: []string{"process"}, Shared: []string{"process"}, Devices: []offpeak.Device{card}},
				Capacity:  offpeak.Resources{CPU: 8000 << (i % 3), Memory: 64 * offpeak.GiB, Disk: 1024 * offpeak.GiB, Devices: []offpeak.DeviceID{card.ID}},
			}, nil)
			if card.VRAM == 24*offpeak.GiB {
				f.Hold(id, offpeak.LeaseID(fmt.Sprint("lease_", i)), offpeak.Resources{CPU: 1000, Devices: []offpeak.DeviceID{card.ID}})
			}
		}
	})
	for i := range 10 {
		g.whole(g.submitArray(ask(int64(64_000+i), 80*offpeak.GiB), offpeak.Array{Indexes: upTo(n / 10)}).ID)
	}
	measure := func(name string, explain func() (wire.Explanation, error), holds func(*wire.Explanation) bool) {
		b.Run(name, func(b *testing.B) {
			var took, waits []time.Duration
			for b.Loop() {
				stop, most := make(chan struct{}), make(chan time.Duration)
				go func() {
					longest := time.Duration(0)
					for {
						select {
						case <-stop:
							most <- longest
							return
						case <-time.After(100 * time.Microsecond):
							t0 := time.Now()
							g.hub.Picture(func(*placement.Fleet, *queue.Queue) { longest = max(longest, time.Since(t0)) })
						}
					}
				}()
				t0 := time.Now()
				e, err := explain()
				took = append(took, time.Since(t0))
				close(stop)
				waits = append(waits, <-most)
				if must(b, err); !holds(&e) {
					b.Fatalf("it is %+v", e)
				}
			}
			slices.Sort(took)
			slices.Sort(waits)
			b.ReportMetric(took[len(took)/2].Seconds()*1000, "ms/explanation")
			b.ReportMetric(waits[len(waits)/2].Seconds()*1000, "ms/lock-p50")
			b.ReportMetric(waits[len(waits)-1].Seconds()*1000, "ms/lock-most")
			b.ReportMetric(0, "ns/op")
		})
	}
	queued := func(spec offpeak.Spec) func() (wire.Explanation, error) {
		id := g.submit(spec)
		return func() (wire.Explanation, error) { return g.hub.Explain(b.Context(), g.account, id) }
	}
	measure("nowhere", queued(ask(64_000, 80*offpeak.GiB)), func(e *wire.Explanation) bool { return e.Could == 0 && len(e.Nearest) > 0 })
	measure("held", queued(ask(1000, 24*offpeak.GiB)), func(e *wire.Explanation) bool { return e.Fits == 0 && e.Could == n/4 && len(e.Nearest) > 0 })
	measure("fits", func() (wire.Explanation, error) {
		return g.hub.Foretell(b.Context(), g.account, ask(1000, 8*offpeak.GiB))
	}, func(e *wire.Explanation) bool { return e.Fits == 3*n/4 })
}
