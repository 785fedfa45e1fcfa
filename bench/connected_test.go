package bench

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"offpeak/internal/gridtest"
)

// connectedNodes is how many agents are connected at once: 10,000, or as many as
// OFFPEAK_BENCH_NODES says.
func connectedNodes(b *testing.B) int {
	b.Helper()
	text := os.Getenv("OFFPEAK_BENCH_NODES")
	if text == "" {
		return 10_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 {
		b.Fatalf("OFFPEAK_BENCH_NODES is %q: it has to be a number above 1", text)
	}
	return n
}

// BenchmarkConnected measures one hub with 10,000 connected agents at an interval
// of 10 s: its share of a core and how long a heartbeat takes, with nothing leased
// and with a lease on every node, which brings every beat to the store.
func BenchmarkConnected(b *testing.B) {
	for _, e := range engines()[:2] {
		b.Run(e.name, func(b *testing.B) {
			const processes, every = 2, 10 * time.Second
			nodes := connectedNodes(b)
			timers := calm()
			timers.Heartbeat, timers.Offer = every, time.Minute
			c := startCluster(b, e, timers)
			var fleets []*fleet
			token := c.JoinToken(nodes)
			for i := range processes {
				f := startFleet(b)
				f.do(order{Join: &joinOrder{Hubs: c.URLs(), Token: token, Names: fmt.Sprintf("p%d-", i), Nodes: nodes / processes, Slots: 1, Every: every, Hold: true}})
				fleets = append(fleets, f)
			}
			for b.Loop() {
				measureBeats(b, c, fleets, "idle")
			}
			fleets[0].do(order{Load: &loadOrder{Hubs: c.URLs(), Tokens: []string{c.Client.Token}, Spec: cycleSpec(), Jobs: nodes, Clients: 16, Window: nodes, Leave: true}})
			gridtest.Eventually(b, 3*time.Minute, "a lease on every node", func() error {
				if n := c.metrics()["reports_total"]; n < float64(nodes) {
					return fmt.Errorf("%v run", n)
				}
				return nil
			})
			measureBeats(b, c, fleets, "leased")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// together has fleets obey one order at the same time.
func together(b *testing.B, fleets []*fleet, o order) []done {
	b.Helper()
	out := make([]done, len(fleets))
	for _, f := range fleets {
		f.tell(o)
	}
	for i, f := range fleets {
		out[i] = f.hearDone()
	}
	return out
}

// measureBeats watches three intervals.
func measureBeats(b *testing.B, c *cluster, fleets []*fleet, what string) {
	b.Helper()
	const window = 30 * time.Second
	together(b, fleets, order{Beats: &beatOrder{For: 10 * time.Second}}) // let what came before pass
	before := c.metrics()
	hub, database := c.used()
	began := time.Now()
	dones := together(b, fleets, order{Beats: &beatOrder{For: window}})
	took := time.Since(began)
	h, db := c.used()
	after := c.metrics()
	var all spread
	for _, d := range dones {
		if d.Failed > 0 {
			b.Errorf("%d heartbeats failed", d.Failed)
		}
		all.N += d.Beats.N
		all.P50, all.P99, all.Max = max(all.P50, d.Beats.P50), max(all.P99, d.Beats.P99), max(all.Max, d.Beats.Max)
	}
	b.ReportMetric(float64(all.N)/took.Seconds(), "beats/s-"+what)
	b.ReportMetric(100*(h-hub).Seconds()/took.Seconds(), "%core-hub-"+what)
	if c.server != nil {
		b.ReportMetric(100*(db-database).Seconds()/took.Seconds(), "%core-db-"+what)
	}
	b.ReportMetric(float64(all.P50)/1e6, "ms-p50-"+what)
	b.ReportMetric(float64(all.P99)/1e6, "ms-p99-"+what)
	b.ReportMetric(float64(all.Max)/1e6, "ms-max-"+what)
	b.ReportMetric(100*(after["heartbeat_batch_size_sum"]-before["heartbeat_batch_size_sum"])/float64(all.N), "%stored-"+what)
	if n := after["heartbeat_batch_size_count"] - before["heartbeat_batch_size_count"]; n > 0 {
		b.ReportMetric((after["heartbeat_batch_size_sum"]-before["heartbeat_batch_size_sum"])/n, "beats/batch-"+what)
	}
}
