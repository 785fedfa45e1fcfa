package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"

	"offpeak"
	"offpeak/store"
)

// invariant is a query whose every row breaks one invariant: the object's id,
// and what is wrong with it.
type invariant struct {
	name  string
	query string
}

// invariants returns I1 to I10 in so far as rows can show them. $1 is the
// store's time.
func invariants() []invariant {
	return []invariant{
		{"I1", `SELECT n.id, 'reserves cpu ' || n.reserved_cpu || ', memory ' || n.reserved_memory || ', disk ' || n.reserved_disk || '; its live leases hold ' || x.cpu || ', ' || x.memory || ', ' || x.disk
			FROM nodes n JOIN (SELECT m.id, COALESCE(sum(l.cpu), 0) AS cpu, COALESCE(sum(l.memory), 0) AS memory, COALESCE(sum(l.disk), 0) AS disk
				FROM nodes m LEFT JOIN leases l ON l.node = m.id AND l.state IN ('offered', 'preparing', 'running') GROUP BY m.id) x ON x.id = n.id
			WHERE n.reserved_cpu <> x.cpu OR n.reserved_memory <> x.memory OR n.reserved_disk <> x.disk`},
		{"I1", `SELECT id, 'is over-committed: reserves cpu ' || reserved_cpu || ' of ' || capacity_cpu || ', memory ' || reserved_memory || ' of ' || capacity_memory || ', disk ' || reserved_disk || ' of ' || capacity_disk
			FROM nodes WHERE reserved_cpu < 0 OR reserved_cpu > capacity_cpu OR reserved_memory < 0 OR reserved_memory > capacity_memory OR reserved_disk < 0 OR reserved_disk > capacity_disk`},
		{"I1", `SELECT node || '/' || device, 'is held by ' || count(*) || ' leases' FROM lease_devices WHERE held = 1 GROUP BY node, device HAVING count(*) > 1`},
		{"I1", `SELECT d.lease, 'holds device ' || d.device || ' in state ' || COALESCE(l.state, 'unknown') FROM lease_devices d LEFT JOIN leases l ON l.id = d.lease
			WHERE d.held = 1 AND (l.id IS NULL OR l.state NOT IN ('offered', 'preparing', 'running'))`},
		{"I1", `SELECT d.lease, 'does not hold device ' || d.device || ' although it is ' || l.state FROM lease_devices d JOIN leases l ON l.id = d.lease
			WHERE d.held = 0 AND l.state IN ('offered', 'preparing', 'running')`},
		{"I2", `SELECT j.id, 'is ' || j.state || ' but its lease ' || j.lease || ' is ' || COALESCE(l.state, 'unknown') FROM jobs j LEFT JOIN leases l ON l.id = j.lease AND l.job = j.id
			WHERE j.state IN ('leased', 'running', 'cancelling') AND (l.id IS NULL OR l.state NOT IN ('offered', 'preparing', 'running', 'finishing'))`},
		{"I2", `SELECT j.id, 'is leased but its lease is ' || l.state FROM jobs j JOIN leases l ON l.id = j.lease WHERE j.state = 'leased' AND l.state NOT IN ('offered', 'preparing')`},
		{"I2", `SELECT j.id, 'is running but its lease is ' || l.state FROM jobs j JOIN leases l ON l.id = j.lease WHERE j.state = 'running' AND l.state NOT IN ('running', 'finishing')`},
		{"I2", `SELECT id, 'is ' || state || ' without an end time, or with one before its end' FROM jobs WHERE (ended_at <> 0) <> (state IN ('succeeded', 'failed', 'cancelled'))`},
		{"I2", `SELECT j.id, 'has attempt ' || j.attempt || ' but ' || count(DISTINCT l.attempt) || ' attempts up to ' || COALESCE(max(l.attempt), 0) FROM jobs j LEFT JOIN leases l ON l.job = j.id
			GROUP BY j.id, j.attempt HAVING count(DISTINCT l.attempt) <> j.attempt OR COALESCE(max(l.attempt), 0) <> j.attempt`},
		{"I2", `SELECT g.id, 'has ' || g.members || ' members, ' || g.written || ' were written, and none is to be' FROM job_groups g WHERE g.todo = 0 AND g.written < g.members AND (g.waits = 0 OR g.cancelled_at <> 0)`},
		{"I2", `SELECT g.id, 'was cancelled; ' || count(*) || ' members are open' FROM job_groups g JOIN jobs j ON j.grp = g.id WHERE j.grp <> j.id AND g.todo = 0 AND g.cancelled_at <> 0
			AND j.state IN ('blocked', 'queued', 'leased', 'running') GROUP BY g.id`},
		{"I2", `SELECT j.id, 'is a member of ' || j.grp || ', which is not there' FROM jobs j WHERE j.` + ofArray + ` AND NOT EXISTS (SELECT 1 FROM job_groups g WHERE g.id = j.grp)`},
		// Whom one end told too many to tell at once are told within moments.
		{"I2", `SELECT j.id, 'is blocked although all ' || j.parents || ' jobs that it waits for have ended' FROM jobs j WHERE j.state = 'blocked'
			AND NOT EXISTS (SELECT 1 FROM job_after a JOIN jobs p ON p.id = a.parent WHERE a.job = j.id AND a.told = '' AND (p.ended_at = 0 OR p.awaited = 1 AND p.ended_at + 60000000 > $1))
			AND NOT EXISTS (` + openArray + ` AND a.job = j.id)`},
		{"I2", `SELECT g.id, 'is blocked although all ' || g.parents || ' jobs that it waits for have ended' FROM job_groups g WHERE g.waits > 0 AND g.cancelled_at = 0
			AND NOT EXISTS (SELECT 1 FROM job_after a JOIN jobs p ON p.id = a.parent WHERE a.job = g.id AND a.told = '' AND (p.ended_at = 0 OR p.awaited = 1 AND p.ended_at + 60000000 > $1))
			AND NOT EXISTS (` + openArray + ` AND a.job = g.id)`},
		{"I2", `SELECT g.id, 'waits for ' || g.waits || ' jobs, but ' || count(a.parent) || ' are yet to end' FROM job_groups g LEFT JOIN job_after a ON a.job = g.id AND a.told = ''
			WHERE g.parents > 0 GROUP BY g.id, g.waits HAVING count(a.parent) <> g.waits`},
		{"I2", `SELECT a.job, 'waits for ' || g.id || ', which does not know' FROM job_after a JOIN job_groups g ON g.id = a.parent WHERE a.told = '' AND g.awaited = 0`},
		{"I2", `SELECT j.id, 'waits for ' || j.waits || ' jobs, but ' || count(a.parent) || ' are yet to end' FROM jobs j LEFT JOIN job_after a ON a.job = j.id AND a.told = ''
			WHERE j.parents > 0 GROUP BY j.id, j.waits HAVING count(a.parent) <> j.waits`},
		{"I2", `SELECT a.job, 'waits for ' || p.id || ', which is ' || p.state || ' and does not know' FROM job_after a JOIN jobs p ON p.id = a.parent WHERE a.told = '' AND p.awaited = 0`},
		{"I3", `SELECT job, 'has ' || count(*) || ' succeeded attempts' FROM leases WHERE state = 'succeeded' GROUP BY job, rank HAVING count(*) > 1`},
		{"I3", `SELECT l.id, 'succeeded as attempt ' || l.attempt || '; job ' || j.id || ' is ' || j.state || ' with attempt ' || j.attempt FROM leases l JOIN jobs j ON j.id = l.job
			WHERE l.state = 'succeeded' AND (j.state <> 'succeeded' OR j.attempt <> l.attempt OR j.output <> l.output)`},
		{"I3", `SELECT j.id, 'succeeded without a succeeded attempt' FROM jobs j WHERE j.state = 'succeeded' AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.job = j.id AND l.attempt = j.attempt AND l.state = 'succeeded')`},
		{"I3", `SELECT l.id, 'is live but not the lease of its job ' || l.job FROM leases l JOIN jobs j ON j.id = l.job WHERE l.state IN ('offered', 'preparing', 'running', 'finishing') AND j.lease <> l.id`},
		{"I4", `SELECT l.id, 'is live on a removed node ' || l.node FROM leases l JOIN nodes n ON n.id = l.node WHERE n.removed_at <> 0 AND l.state IN ('offered', 'preparing', 'running', 'finishing')`},
		{"I4", `SELECT l.id, 'was offered by ' || l.node || ' before that node was ever heard' FROM leases l JOIN nodes n ON n.id = l.node WHERE n.last_heard = 0 AND n.generation = 0`},
		// The monitor's tick is a second; ten leave room for a busy hub.
		{"I5", `SELECT id, 'is ' || state || ' and expired ' || (($1 - expires_at) / 1000000) || ' s ago' FROM leases WHERE state IN ('offered', 'preparing', 'running', 'finishing') AND expires_at < $1 - 10000000`},
		{"I5", `SELECT id, 'was lost as ' || reason || ' before its expiry' FROM leases WHERE state = 'lost' AND reason IN ('node_lost', 'offer_lapsed') AND ended_at < expires_at`},
		{"I6", `SELECT l.id, 'metered ' || l.metered || ' ms, its terms ' || COALESCE(sum(p.metered), 0) FROM leases l LEFT JOIN lease_terms p ON p.lease = l.id
			WHERE l.ended_at <> 0 GROUP BY l.id, l.metered HAVING COALESCE(sum(p.metered), 0) <> l.metered`},
		{"I6", `SELECT p.lease, 'has ' || count(*) || ' terms up to ' || max(p.n) FROM lease_terms p GROUP BY p.lease HAVING count(*) <> max(p.n)`},
		{"I7", `SELECT id, 'metered ' || metered || ' ms in ' || ((ended_at - started_at) / 1000) || ' ms between start and end' FROM leases WHERE ended_at <> 0 AND started_at <> 0 AND metered > (ended_at - started_at) / 1000 + 1`},
		{"I7", `SELECT id, 'metered ' || metered || ' ms without a start' FROM leases WHERE started_at = 0 AND metered > 0 AND accepted_at = 0`},
		{"I7", `SELECT id, 'keeps ' || kept || ' ms of ' || metered || ' metered' FROM leases WHERE kept > metered OR kept < 0`},
		{"I7", `SELECT id, 'metered ' || metered || ' ms over its time limit' FROM leases WHERE metered > time_limit / 1000`},
		{"I8", `SELECT d.lease, 'has device ' || d.device || ' that its node never listed' FROM lease_devices d LEFT JOIN node_devices n ON n.node = d.node AND n.device = d.device WHERE n.node IS NULL`},
		{"I8", `SELECT p.lease, 'was metered at ' || p.price || ' in its last term, the lease is locked at ' || l.price FROM lease_terms p JOIN leases l ON l.id = p.lease
			WHERE p.price <> l.price AND p.n = (SELECT max(n) FROM lease_terms o WHERE o.lease = p.lease)`},
		{"I8", `SELECT g.id, count(*) || ' members hold leases, at once may ' || g.at_once FROM job_groups g JOIN jobs j ON j.grp = g.id
			WHERE g.at_once > 0 AND j.grp <> j.id AND j.state IN ('leased', 'running', 'cancelling') GROUP BY g.id, g.at_once HAVING count(*) > g.at_once`},
		// While a gang breaks its members leave their nodes, within moments.
		{"I8", `SELECT g.id, 'is a gang and holds part of its nodes: ' || sum(CASE WHEN j.state = 'queued' THEN 1 ELSE 0 END) || ' members are queued, ' || sum(CASE WHEN l.id IS NULL THEN 0 ELSE 1 END) || ' have leases that nobody asked to go'
			FROM job_groups g JOIN jobs j ON j.grp = g.id LEFT JOIN leases l ON l.id = j.lease AND l.stop = '' AND l.state IN ('offered', 'preparing', 'running')
			WHERE g.gang > 0 AND j.grp <> j.id AND (g.todo = 0 OR NOT EXISTS (SELECT 1 FROM jobs m JOIN leases e ON e.job = m.id WHERE m.grp = g.id AND m.grp <> m.id AND e.ended_at + 60000000 > $1))
			GROUP BY g.id HAVING sum(CASE WHEN j.state = 'queued' THEN 1 ELSE 0 END) > 0 AND count(l.id) > 0`},
		{"I8", `SELECT g.id, 'is a gang and has ' || count(*) || ' members on node ' || l.node FROM job_groups g JOIN jobs j ON j.grp = g.id JOIN leases l ON l.id = j.lease
			WHERE g.gang > 0 AND j.grp <> j.id AND l.state IN ('offered', 'preparing', 'running', 'finishing') GROUP BY g.id, l.node HAVING count(*) > 1`},
		{"I9", `SELECT o.id, 'has an outcome from ' || ((o.at - $1) / 1000000) || ' s in the future' FROM operations o WHERE o.at > $1 + 86400000000`},
		{"I9", `SELECT CAST(e.cursor AS TEXT), 'is an event at or before the pruned cursor ' || m.value FROM events e JOIN meta m ON m.key = 'events_pruned' WHERE e.cursor <= CAST(m.value AS BIGINT)`},
		{"I10", `SELECT id, 'is kept with ' || length(secret_hash) || ' bytes instead of a SHA-256' FROM tokens WHERE length(secret_hash) <> 32`},
		{"I10", `SELECT t.id, 'lets a removed node in' FROM tokens t JOIN nodes n ON n.id = t.node WHERE n.removed_at <> 0`},
		{"I10", `SELECT t.id, 'is good for a member who was removed' FROM tokens t WHERE t.member <> '' AND t.revoked_at = 0 AND NOT EXISTS (SELECT 1 FROM members m WHERE m.id = t.member AND m.account = t.account)`},
		{"I10", `SELECT node, 'has ' || count(*) || ' sessions' FROM tokens WHERE node <> '' GROUP BY node HAVING count(*) > 1`},
		{"I10", `SELECT l.id, 'is of account ' || l.account || ', its job of ' || j.account FROM leases l JOIN jobs j ON j.id = l.job WHERE j.account <> l.account`},
		{"I10", `SELECT a.id, 'counts ' || a.stored || ' bytes stored, its blobs have ' || COALESCE(b.size, 0) FROM accounts a LEFT JOIN (SELECT account, sum(size) AS size FROM blobs GROUP BY account) b ON b.account = a.id WHERE COALESCE(b.size, 0) <> a.stored`},
	}
}

// openArray is that somebody waits for an array with members that are open, were not
// written yet, or ended moments ago.
const openArray = `SELECT 1 FROM job_after a JOIN job_groups p ON p.id = a.parent WHERE a.told = '' AND (p.written < p.members
	OR EXISTS (SELECT 1 FROM jobs m WHERE m.grp <> m.id AND m.grp = p.id AND (m.ended_at = 0 OR m.awaited = 1 AND m.ended_at + 60000000 > $1)))`

// Check runs the invariants over one snapshot.
func (s *Store) Check(ctx context.Context) ([]store.Violation, error) {
	return read(ctx, s, "check", func(t *verb) ([]store.Violation, error) {
		var out []store.Violation
		for _, i := range invariants() {
			// A query that has no use for the time must not be handed it.
			args := []any(nil)
			if usesTime(i.query) {
				args = []any{micros(t.now)}
			}
			err := t.each(i.query, args, func(rows Rows) error {
				v := store.Violation{Invariant: i.name}
				err := rows.Scan(&v.Object, &v.Detail)
				out = append(out, v)
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", i.name, err)
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		dear, err := t.checkLimits()
		if err != nil {
			return nil, err
		}
		money, err := t.checkMoney()
		return append(append(out, dear...), money...), err
	})
}

// checkLimits finds terms whose price is above their job's limit (I8).
func (t *verb) checkLimits() (out []store.Violation, err error) {
	return out, t.each(`SELECT p.lease, p.n, p.price, s.requirements FROM lease_terms p JOIN leases l ON l.id = p.lease JOIN jobs j ON j.id = l.job JOIN specs s ON s.hash = j.spec
		WHERE p.price > 0 AND s.requirements LIKE '%"max_price"%'`, nil, func(rows Rows) error {
		var lease, text string
		var n int64
		var price offpeak.Price
		var r offpeak.Requirements
		if err := rows.Scan(&lease, &n, &price, &text); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			return fmt.Errorf("read the requirements of lease %s: %w", lease, err)
		}
		if r.MaxPrice != nil && price > *r.MaxPrice {
			out = append(out, store.Violation{Invariant: "I8", Object: lease, Detail: fmt.Sprintf("has term %d at %s, its job's limit is %s", n, price, *r.MaxPrice)})
		}
		return nil
	})
}

func usesTime(query string) bool {
	for i := range len(query) {
		if query[i] == '$' {
			return true
		}
	}
	return false
}
