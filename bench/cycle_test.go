package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"offpeak"
	"offpeak/internal/gridtest"
)

// calm are the timers that a hub has by default.
func calm() gridtest.Timers {
	return gridtest.Timers{Heartbeat: 5 * time.Second, Timeout: time.Minute, Offer: 15 * time.Second, Tick: time.Second}
}

// cycleSpec is a job of one core that does nothing.
func cycleSpec() offpeak.Spec {
	return offpeak.Spec{
		Name:         "cycle",
		Task:         offpeak.Task{Driver: "process", Command: []string{"/bin/true"}},
		Requirements: offpeak.Requirements{CPU: 1000, Memory: offpeak.MiB, Disk: offpeak.MiB},
	}
}

// BenchmarkCycle measures jobs from submission over claim and acknowledged start
// to accepted success, with virtual agents in another process, and what it costs
// whom, against what the same changes of the same rows cost as bare statements of
// many rows. Every iteration is a load, between two of the bare side.
func BenchmarkCycle(b *testing.B) {
	for _, e := range engines() {
		b.Run(e.String(), func(b *testing.B) {
			const nodes, slots = 64, 8
			c := startCluster(b, e, calm())
			f := startFleet(b)
			f.do(order{Join: &joinOrder{Hubs: c.URLs(), Token: c.JoinToken(nodes), Names: "v", Nodes: nodes, Slots: slots, Every: 5 * time.Second}})
			load := loadOrder{Hubs: c.URLs(), Tokens: []string{c.Client.Token}, Spec: cycleSpec(), Jobs: 500, Clients: 64, Window: 512}
			f.do(order{Load: &load}) // warm everything up
			load.Jobs = 4000
			bare := newBareSQL(b, c, 4)
			bare.rate(640)
			var ours, theirs []float64
			for b.Loop() {
				theirs = append(theirs, bare.rate(load.Jobs))
				before := c.metrics()
				hubs, database := c.used()
				self := cpuOf(f.cmd.Process.Pid)
				d := f.do(order{Load: &load})
				h, db := c.used()
				n := float64(load.Jobs) * 1e6
				ours = append(ours, float64(load.Jobs)/d.Took.Seconds())
				b.ReportMetric(float64(h-hubs)/n, "ms-hub/job")
				b.ReportMetric(float64(db-database)/n, "ms-db/job")
				b.ReportMetric(float64(cpuOf(f.cmd.Process.Pid)-self)/n, "ms-fleet/job")
				report(b, d)
				after := c.metrics()
				rose := func(name string) float64 { return after[name] - before[name] }
				b.ReportMetric(rose("store_commits_total")/float64(load.Jobs), "commits/job")
				b.ReportMetric(rose("store_verbs_total")/rose("store_commits_total"), "verbs/commit")
				b.ReportMetric(rose("claim_batch_size_sum")/rose("claim_batch_size_count"), "claims/batch")
			}
			theirs = append(theirs, bare.rate(load.Jobs))
			o, t := middle(ours), middle(theirs)
			b.ReportMetric(o, "jobs/s")
			b.ReportMetric(t, "bare/s")
			b.ReportMetric(100*o/t, "%bare")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func middle(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

func report(b *testing.B, d done) {
	ms := func(d time.Duration, unit string) { b.ReportMetric(float64(d)/1e6, unit) }
	ms(d.Ack.P50, "ms-submit-p50")
	ms(d.Claimed.P50, "ms-claim-p50")
	ms(d.Claimed.P99, "ms-claim-p99")
	ms(d.Ended.P50, "ms-success-p50")
	ms(d.Ended.P99, "ms-success-p99")
}

// BenchmarkHalfLoad measures how long a job waits for its node while three hubs on
// PostgreSQL have half the load of which BenchmarkCycle finds them capable: until it is
// claimed, by the store's times of both, and until the agent knows of it, by the clock
// of who submits.
func BenchmarkHalfLoad(b *testing.B) {
	const nodes, slots, perSecond = 64, 8, 350
	ctx := context.Background()
	c := startCluster(b, engine{"postgres", 3}, calm())
	db, err := pgx.Connect(ctx, c.database)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(ctx)
	f := startFleet(b)
	f.do(order{Join: &joinOrder{Hubs: c.URLs(), Token: c.JoinToken(nodes), Names: "v", Nodes: nodes, Slots: slots, Every: 5 * time.Second}})
	load := loadOrder{Hubs: c.URLs(), Tokens: []string{c.Client.Token}, Spec: cycleSpec(), Jobs: 2 * perSecond, Clients: 64, Rate: perSecond}
	f.do(order{Load: &load}) // warm everything up
	load.Jobs = 20 * perSecond
	for b.Loop() {
		began := time.Now().UnixMicro()
		before := c.metrics()
		hubs, database := c.used()
		report(b, f.do(order{Load: &load}))
		h, d := c.used()
		n := float64(load.Jobs)
		b.ReportMetric((h-hubs).Seconds()*1e3/n, "ms-hub/job")
		b.ReportMetric((d-database).Seconds()*1e3/n, "ms-db/job")
		after := c.metrics()
		rose := func(name string) float64 { return after[name] - before[name] }
		b.ReportMetric(rose("store_commits_total")/n, "commits/job")
		b.ReportMetric(rose("claim_batch_size_sum")/rose("claim_batch_size_count"), "claims/batch")
		var p50, p99 float64
		if err := db.QueryRow(ctx, `SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY waited), percentile_disc(0.99) WITHIN GROUP (ORDER BY waited)
			FROM (SELECT (l.offered_at - j.submitted_at) / 1000.0::float8 AS waited FROM leases l JOIN jobs j ON j.id = l.job WHERE j.submitted_at >= $1) w`, began).Scan(&p50, &p99); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(p50, "ms-offered-p50")
		b.ReportMetric(p99, "ms-offered-p99")
	}
	b.ReportMetric(perSecond, "jobs/s")
	b.ReportMetric(0, "ns/op")
}
