package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"offpeak"
	"offpeak/internal/require"
	"offpeak/store"
	"offpeak/store/postgres"
	"offpeak/store/storetest"
)

const (
	claimHubs  = 3
	claimBatch = 64
	// Each hub fills two batches of nodes in turn.
	claimNodes = claimHubs * 2 * claimBatch
	// claimJobs are queued for each way of claiming them.
	claimJobs = claimHubs * claimBatch * 48
	// claimants of one job each.
	claimants = 16
)

// BenchmarkClaims measures claims per second of three hubs on one PostgreSQL, 64 in a
// transaction, against pgbench with a script that takes one job per transaction with
// SKIP LOCKED at 16 clients, and against the same rows written as bare batched SQL by
// three clients; all on the same tables with the same rows in them.
func BenchmarkClaims(b *testing.B) {
	pgbench := require.Tool(b, "pgbench", "postgresql-client-common")
	scripts, err := filepath.Abs("sql")
	if err != nil {
		b.Fatal(err)
	}
	url := pg.Database(b)
	var hubs []*postgres.Store
	for i := range claimHubs {
		s, err := postgres.Open(b.Context(), url, postgres.Options{Hub: offpeak.HubID(fmt.Sprintf("hub_%d", i))})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close() })
		hubs = append(hubs, s)
	}
	fleet := storetest.NewFleet(b, hubs[0])
	fleet.Submit()
	db := bareGrid(b, url, fleet.Enrol(offpeak.Inventory{CPU: 1 << 40, Memory: 1 << 50, Disk: 1 << 50}))
	var ours, one, batched []float64
	for b.Loop() {
		first := db.refill(b)
		one = append(one, db.pgbench(b, pgbench, filepath.Join(scripts, "one.sql"), claimants, claimJobs/claimants, first))
		first = db.refill(b)
		ours = append(ours, claimAll(b, fleet, hubs, first))
		first = db.refill(b)
		batched = append(batched, claimBatch*db.pgbench(b, pgbench, filepath.Join(scripts, "batch.sql"), claimHubs, claimJobs/claimHubs/claimBatch, first))
	}
	for _, rates := range [][]float64{ours, one, batched} {
		slices.Sort(rates)
	}
	o, p, r := ours[len(ours)/2], one[len(one)/2], batched[len(batched)/2]
	b.ReportMetric(o, "claims/s")
	b.ReportMetric(p, "one-by-one/s")
	b.ReportMetric(r, "bare-batched/s")
	b.ReportMetric(o/p, "x-one-by-one")
	b.ReportMetric(100*o/r, "%bare-batched")
	b.ReportMetric(0, "ns/op")
}

// claimAll has the hubs claim all jobs, and returns how many a second.
func claimAll(b *testing.B, fleet *storetest.Fleet, hubs []*postgres.Store, first int64) float64 {
	b.Helper()
	batches := make([][][]store.Claim, len(hubs))
	for i := range int64(claimJobs) {
		k := i / claimBatch
		h := k % claimHubs
		if i%claimBatch == 0 {
			batches[h] = append(batches[h], nil)
		}
		node := (h*2+k/claimHubs%2)*claimBatch + i%claimBatch + 1
		c := fleet.Ask(offpeak.JobID(fmt.Sprintf("job_%022d", first+i)), offpeak.NodeID(fmt.Sprintf("node_%d", 100_000+node)))
		last := len(batches[h]) - 1
		batches[h][last] = append(batches[h][last], c)
	}
	began := time.Now()
	var wg sync.WaitGroup
	for h, s := range hubs {
		wg.Go(func() {
			for _, claims := range batches[h] {
				out, err := s.Claim(context.Background(), claims)
				if err != nil {
					b.Error(err)
					return
				}
				for _, c := range out {
					if c.Err != nil {
						b.Error(c.Err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	return claimJobs / time.Since(began).Seconds()
}

// bareDB is a grid's database without a hub.
type bareDB struct {
	*pgx.Conn
	url  string
	next int64
}

// bareGrid has nodes with the numbers 1 to claimNodes, all like the one.
func bareGrid(b *testing.B, url string, like offpeak.NodeID) *bareDB {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close(context.Background()) })
	d := &bareDB{conn, url, 1000}
	d.exec(b, `INSERT INTO nodes SELECT (jsonb_populate_record(n, jsonb_build_object('id', 'node_' || (100000 + k), 'key', '\x' || lpad(k::text, 8, '0')))).*
		FROM nodes n, generate_series(1, $1::int) k WHERE n.id = $2`, claimNodes, string(like))
	return d
}

func (d *bareDB) exec(b *testing.B, query string, args ...any) {
	b.Helper()
	if _, err := d.Exec(b.Context(), query, args...); err != nil {
		b.Fatalf("%s: %v", query, err)
	}
}

// refill leaves claimJobs queued jobs and nothing else, and returns the first's number.
func (d *bareDB) refill(b *testing.B) int64 {
	b.Helper()
	first := d.next
	d.next += claimJobs
	d.exec(b, `TRUNCATE leases, lease_devices, events, audit`)
	d.exec(b, `UPDATE nodes SET reserved_cpu = 0, reserved_memory = 0, reserved_disk = 0`)
	d.exec(b, `CREATE TEMPORARY TABLE one ON COMMIT PRESERVE ROWS AS SELECT spec, account FROM jobs LIMIT 1`)
	d.exec(b, `TRUNCATE jobs, job_labels`)
	d.exec(b, `INSERT INTO jobs (seq, id, account, grp, idx, spec, name, priority, state, submitted_at)
		SELECT k, 'job_' || lpad(k::text, 22, '0'), account, 'job_' || lpad(k::text, 22, '0'), 0, spec, 'noop', 0, 'queued', 1 FROM one, generate_series($1::bigint, $2::bigint) k`, first, d.next-1)
	d.exec(b, `DROP TABLE one`)
	d.exec(b, `VACUUM ANALYZE`)
	d.exec(b, `CHECKPOINT`)
	return first
}

// pgbench runs a script and returns its transactions a second. It fails unless every
// job was taken.
func (d *bareDB) pgbench(b *testing.B, pgbench, script string, clients, each int, first int64) float64 {
	b.Helper()
	out, err := command(pgbench, "--no-vacuum", "--protocol", "prepared", "--client", strconv.Itoa(clients), "--jobs", "2", "--transactions", strconv.Itoa(each),
		"--define", "n=0", "--define", "clients="+strconv.Itoa(clients), "--define", "nodes="+strconv.Itoa(claimNodes), "--define", "first="+strconv.FormatInt(first, 10),
		"--file", script, d.url)
	if err != nil {
		b.Fatalf("pgbench: %v\n%s", err, out)
	}
	var left int
	if err := d.QueryRow(b.Context(), `SELECT count(*) FROM jobs j LEFT JOIN leases l ON l.id = j.lease AND l.job = j.id WHERE j.state <> 'leased' OR l.id IS NULL`).Scan(&left); err != nil {
		b.Fatal(err)
	}
	if left > 0 {
		b.Fatalf("%s left %d jobs\n%s", script, left, out)
	}
	m := regexp.MustCompile(`tps = ([0-9.]+) \(without`).FindStringSubmatch(out)
	if m == nil {
		b.Fatalf("pgbench says no rate:\n%s", out)
	}
	rate, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return rate
}

func command(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "PGOPTIONS=-c synchronous_commit=on")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
