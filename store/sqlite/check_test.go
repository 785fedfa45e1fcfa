package sqlite_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/store/sqlite"
)

// TestCheckFindsPlantedViolations breaks each invariant by hand and asks that
// Check names the row.
func TestCheckFindsPlantedViolations(t *testing.T) {
	ctx := context.Background()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct{ name, invariant, object, plant string }{
		{"reserved drifts", "I1", "node_1", `UPDATE nodes SET reserved_cpu = reserved_cpu + 1`},
		{"reserved over capacity", "I1", "node_1", `UPDATE nodes SET capacity_cpu = 1`},
		{"a device held by an ended lease", "I1", "lease_done", `INSERT INTO lease_devices VALUES ('lease_done', 'node_1', 'GPU-0', 1)`},
		{"a live lease that lets go of its device", "I1", "lease_live", `INSERT INTO lease_devices VALUES ('lease_live', 'node_1', 'GPU-0', 0)`},
		{"a device held twice", "I1", "node_1/GPU-0", `DROP INDEX lease_devices_held; INSERT INTO lease_devices VALUES ('lease_live', 'node_1', 'GPU-0', 1), ('x', 'node_1', 'GPU-0', 1)`},
		{"a live job without its lease", "I2", "job_live", `UPDATE jobs SET lease = 'lease_gone' WHERE id = 'job_live'`},
		{"a running job whose lease prepares", "I2", "job_live", `UPDATE jobs SET state = 'running' WHERE id = 'job_live'`},
		{"a leased job whose lease runs", "I2", "job_live", `UPDATE leases SET state = 'running' WHERE id = 'lease_live'`},
		{"an end without a time", "I2", "job_done", `UPDATE jobs SET ended_at = 0 WHERE id = 'job_done'`},
		{"a gap in the attempts", "I2", "job_done", `UPDATE jobs SET attempt = 2 WHERE id = 'job_done'`},
		{"members that nobody writes", "I2", "group_1", `INSERT INTO job_groups (id, account, spec, indexes, at_once, size, members, written, todo, submitted_at, cancelled_at) SELECT 'group_1', account, spec, '0-1', 0, 2, 2, 1, 0, 1, 0 FROM jobs WHERE id = 'job_live';`},
		{"an open member of a cancelled array", "I2", "group_1", `INSERT INTO job_groups (id, account, spec, indexes, at_once, size, members, written, todo, submitted_at, cancelled_at) SELECT 'group_1', account, spec, '0-1', 0, 2, 2, 2, 0, 1, 1 FROM jobs WHERE id = 'job_live'; UPDATE jobs SET grp = 'group_1' WHERE id = 'job_live'`},
		{"a member of no array", "I2", "job_live", `UPDATE jobs SET grp = 'group_1' WHERE id = 'job_live'`},
		{"too many members at once", "I8", "group_1", `INSERT INTO job_groups (id, account, spec, indexes, at_once, size, members, written, todo, submitted_at, cancelled_at) SELECT 'group_1', account, spec, '0-1', 1, 2, 2, 2, 0, 1, 0 FROM jobs WHERE id = 'job_live'; UPDATE jobs SET grp = 'group_1', idx = 1 WHERE id = 'job_live';
			UPDATE jobs SET grp = 'group_1', state = 'cancelling', lease = 'x', ended_at = 0 WHERE id = 'job_done'`},
		{"a gang that holds part", "I8", "group_1", `INSERT INTO job_groups (id, account, spec, indexes, at_once, size, members, written, todo, submitted_at, cancelled_at, gang) SELECT 'group_1', account, spec, '0-1', 0, 2, 2, 2, 0, 1, 0, 2 FROM jobs WHERE id = 'job_live'; UPDATE jobs SET grp = 'group_1', idx = 1 WHERE id = 'job_live';
			UPDATE jobs SET grp = 'group_1', state = 'queued', ended_at = 0 WHERE id = 'job_done'`},
		{"a broken gang that nobody mends", "I8", "group_1", `INSERT INTO job_groups (id, account, spec, indexes, at_once, size, members, written, todo, submitted_at, cancelled_at, gang, broken) SELECT 'group_1', account, spec, '0-1', 0, 2, 2, 2, 1, 1, 0, 2, 'gang_broken' FROM jobs WHERE id = 'job_live'; UPDATE jobs SET grp = 'group_1', idx = 1 WHERE id = 'job_live';
			UPDATE jobs SET grp = 'group_1', state = 'queued', ended_at = 0 WHERE id = 'job_done'; UPDATE leases SET ended_at = 1 WHERE id = 'lease_done'`},
		{"two members of a gang on a node", "I8", "group_1", `INSERT INTO job_groups (id, account, spec, indexes, at_once, size, members, written, todo, submitted_at, cancelled_at, gang) SELECT 'group_1', account, spec, '0-1', 0, 2, 2, 2, 0, 1, 0, 2 FROM jobs WHERE id = 'job_live'; UPDATE jobs SET grp = 'group_1', idx = 1 WHERE id = 'job_live';
			UPDATE jobs SET grp = 'group_1', state = 'running', lease = 'lease_done', ended_at = 0 WHERE id = 'job_done'; UPDATE leases SET state = 'running', ended_at = 0 WHERE id = 'lease_done'`},
		{"a job that waits for ended ones", "I2", "job_waits", `UPDATE jobs SET awaited = 0, state = 'failed', lease = '', ended_at = 1, reason = 'exit_nonzero' WHERE id = 'job_live'`},
		{"a job that waits for nobody", "I2", "job_waits", `DELETE FROM job_after`},
		{"two results", "I3", "job_done", `INSERT INTO leases (id, job, account, attempt, node, state, cpu, memory, disk, price, expires_at, grace, time_limit, offered_at, ended_at)
			VALUES ('lease_2', 'job_done', 'acct_1', 2, 'node_1', 'succeeded', 0, 0, 0, 0, 1, 0, 0, 1, 1)`},
		{"a result that is not the job's", "I3", "lease_done", `UPDATE jobs SET output = 'other' WHERE id = 'job_done'`},
		{"a success without an attempt", "I3", "job_done", `UPDATE leases SET state = 'failed' WHERE id = 'lease_done'`},
		{"two live leases", "I3", "lease_done", `UPDATE leases SET state = 'finishing', ended_at = 0 WHERE id = 'lease_done'`},
		{"a lease on a removed node", "I4", "lease_live", `UPDATE nodes SET removed_at = 1`},
		{"a lease on a node never heard", "I4", "lease_live", `UPDATE nodes SET last_heard = 0, generation = 0`},
		{"an expired lease", "I5", "lease_live", `UPDATE leases SET expires_at = 1 WHERE id = 'lease_live'`},
		{"a lease lost too early", "I5", "lease_done", `UPDATE leases SET state = 'lost', reason = 'node_lost', ended_at = expires_at - 1 WHERE id = 'lease_done'`},
		{"terms that do not add up", "I6", "lease_done", `UPDATE lease_terms SET metered = metered + 1`},
		{"a missing term", "I6", "lease_done", `UPDATE lease_terms SET n = 2`},
		{"more metered than passed", "I7", "lease_done", `UPDATE leases SET metered = 1000000; UPDATE lease_terms SET metered = 1000000`},
		{"metered before a start", "I7", "lease_live", `UPDATE leases SET metered = 5, accepted_at = 0, started_at = 0 WHERE id = 'lease_live'`},
		{"more kept than metered", "I7", "lease_done", `UPDATE leases SET kept = metered + 1 WHERE id = 'lease_done'`},
		{"metered over the limit", "I7", "lease_done", `UPDATE leases SET time_limit = 1000 WHERE id = 'lease_done'`},
		{"a device of another node", "I8", "lease_done", `INSERT INTO lease_devices VALUES ('lease_done', 'node_1', 'GPU-9', 0)`},
		{"another price", "I8", "lease_done", `UPDATE lease_terms SET price = price + 1`},
		{"a price above the bid", "I8", "lease_done", `UPDATE specs SET requirements = '{"max_price":6}'`},
		{"a later price above the bid", "I8", "lease_done", `UPDATE leases SET price = 9 WHERE id = 'lease_done'; UPDATE specs SET requirements = '{"max_price":8}';
			INSERT INTO lease_terms (lease, n, price, from_at, to_at, metered) SELECT lease, 2, 9, to_at, to_at, 0 FROM lease_terms WHERE lease = 'lease_done'`},
		{"an outcome from the future", "I9", "op_1", `UPDATE operations SET at = at + 864000000000 WHERE id = 'op_1'`},
		{"an event that was pruned", "I9", "1", `INSERT INTO meta VALUES ('events_pruned', '1')`},
		{"a secret", "I10", "join", `UPDATE tokens SET secret_hash = X'00' WHERE id = 'join'`},
		{"a session of a removed node", "I10", "sess", `UPDATE nodes SET removed_at = 1`},
		{"a token of nobody", "I10", "admin", `DELETE FROM members`},
		{"two sessions", "I10", "node_1", `UPDATE tokens SET node = 'node_1' WHERE id = 'join'`},
		{"a lease of another account", "I10", "lease_done", `UPDATE leases SET account = 'acct_2' WHERE id = 'lease_done'`},
		{"bytes that were not counted", "I10", "acct_1", `UPDATE accounts SET stored = 1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "store.db")
			clock := now
			s := open(t, path, sqlite.Options{Now: func() time.Time { return clock }})
			g := newGrid(t, s)
			if _, _, err := s.SetInventory(ctx, nodeID, offpeak.Inventory{CPU: 2000, Memory: 1 << 40, Disk: 1 << 40, Devices: []offpeak.Device{{ID: "GPU-0"}}}); err != nil {
				t.Fatal(err)
			}
			take := func(name string) *offpeak.Lease {
				if _, err := s.Submit(ctx, g.op(), store.NewJob{ID: offpeak.JobID("job_" + name), Account: account, Spec: spec()}); err != nil {
					t.Fatal(err)
				}
				out, err := s.Claim(ctx, []store.Claim{{Job: offpeak.JobID("job_" + name), Attempt: 1, Node: nodeID, Lease: offpeak.LeaseID("lease_" + name), Price: 7, OfferFor: time.Minute, Resources: offpeak.Resources{CPU: 1000}}})
				if err != nil || out[0].Err != nil {
					t.Fatal(out, err)
				}
				if err := g.report(out[0].Lease, store.ReportAccepted); err != nil {
					t.Fatal(err)
				}
				return out[0].Lease
			}
			done := take("done")
			clock = clock.Add(10 * time.Second)
			if _, err := s.Report(ctx, store.Report{Node: nodeID, Lease: done.ID, Attempt: 1, Incarnation: inc, Seq: g.seq.Add(1), Kind: store.ReportEnded, Reason: offpeak.EndCompleted, Started: true, Ran: 8000}); err != nil {
				t.Fatal(err)
			}
			take("live")
			if _, err := s.Submit(ctx, g.op(), store.NewJob{ID: "job_waits", Account: account, Spec: spec(), After: []offpeak.After{{Job: "job_live"}}}); err != nil {
				t.Fatal(err)
			}
			if bad, err := s.Check(ctx); err != nil || len(bad) != 0 {
				t.Fatalf("Check before = %v, %v", bad, err)
			}
			if _, err := raw(t, path).Exec(c.plant); err != nil {
				t.Fatal(err)
			}
			bad, err := s.Check(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(bad, func(v store.Violation) bool {
				return v.Invariant == c.invariant && v.Object == c.object && v.Detail != ""
			}) {
				t.Errorf("Check = %v, want %s of %s", bad, c.invariant, c.object)
			}
		})
	}
}
