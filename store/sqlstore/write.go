package sqlstore

import (
	"strconv"
	"strings"

	"offpeak"
)

// Many is one statement with the arguments of each of its runs.
type Many struct {
	// Query changes exactly one row by each run.
	Query string
	Args  [][]any
}

// Parameters replaces the numbered parameters of a statement.
func Parameters(query string, with func(n int) string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(query, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		end := 0
		for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
			end++
		}
		n, err := strconv.Atoi(rest[:end])
		if err != nil {
			panic("sqlstore: a parameter without a number in " + query)
		}
		out.WriteString(with(n))
		query = rest[end:]
	}
}

// What a verb writes waits until all is decided: by kind, in this order. Devices
// are free before they are taken, leases are there before their terms.
type kind int

const (
	freeDevice kind = iota
	writeNode
	takeBlindly
	sayNode
	tryNode
	closeNode
	leaseJob
	writeJob
	writeLease
	extendLease
	repriceLease
	outbidLease
	outbidJob
	addSpec
	addGroup
	writeGroup
	breakGang
	failGang
	addJob
	addMember
	addAfter
	awaitJob
	tellAfter
	addParts
	addLabel
	addLease
	addDevice
	addTerm
	endTerm
	nextTerm
	addMoney
	writeMoney
	addReceipt
	addTransaction
	addEntry
	openBalance
	moveBalance
	addLog
	addAvailability
	copyCheckpoints
	copyMembers
	addOperation
	addEvent
	addAudit
	kinds
)

const nodeReady = `removed_at = 0 AND liveness = 'online' AND intent = 'open' AND availability = 'available' AND ask_gpu IS NOT NULL`

// statement says what a kind is written by, and whether each run must change
// exactly one row: if it does not, what the verb had read was changed under it.
func (k kind) statement() (query string, exact bool) {
	switch k {
	case freeDevice:
		return `UPDATE lease_devices SET held = 0 WHERE lease = $1 AND device = $2 AND held = 1`, true
	case writeNode:
		// This one UPDATE under the schema's CHECK is what keeps a node from being
		// promised twice, whoever claims at once.
		return `UPDATE nodes SET reserved_cpu = reserved_cpu + $1, reserved_memory = reserved_memory + $2, reserved_disk = reserved_disk + $3,
			capacity_cpu = $4, capacity_memory = $5, capacity_disk = $6, revision = revision + $7
			WHERE id = $8 AND reserved_cpu + $1 <= $4 AND reserved_memory + $2 <= $5 AND reserved_disk + $3 <= $6 AND ($9 = 0 OR ` + nodeReady + `)`, true
	case takeBlindly:
		return `UPDATE nodes SET reserved_cpu = reserved_cpu + $1, reserved_memory = reserved_memory + $2, reserved_disk = reserved_disk + $3, revision = revision + $4 WHERE id = $5`, true
	case sayNode:
		return `UPDATE nodes SET liveness = 'online', availability = $1, why = $2, beat = $3, timeout = $4, last_heard = $5 WHERE id = $6 AND incarnation = $7 AND beat = $8`, true
	case tryNode:
		return `UPDATE nodes SET trial = $1 WHERE id = $2`, true
	case closeNode:
		return `UPDATE nodes SET intent = 'closed' WHERE id = $1 AND intent = 'draining' AND removed_at = 0`, true
	case leaseJob:
		return `UPDATE jobs SET state = 'leased', attempt = $1, lease = $2, node = $3, not_before = 0 WHERE id = $4 AND state = 'queued' AND attempt = $5`, true
	case writeJob:
		return `UPDATE jobs SET state = $1, lease = $2, reason = $3, detail = $4, exit_code = $5, signal = $6, output = $7, count_user = $8, count_node = $9, count_interruption = $10,
			avoid = $11, not_before = $12, started_at = $13, ended_at = $14, waits = $15, awaited = $16 WHERE id = $17 AND state = $18 AND attempt = $19 AND lease = $20`, true
	case writeLease:
		return `UPDATE leases SET state = $1, frozen = $2, stop = $3, expires_at = $4, metered = $5, incarnation = $6, seq = $7, outcome = $8, accepted_incarnation = $9, accepted_seq = $10,
			reason = $11, detail = $12, exit_code = $13, signal = $14, output = $15, restored = $16, accepted_at = $17, started_at = $18, ended_at = $19
			WHERE id = $20 AND attempt = $21 AND state = $22`, true
	case extendLease:
		return `UPDATE leases SET frozen = $1, expires_at = $2, metered = $3, accepted_seq = $4 WHERE id = $5 AND attempt = $6 AND state = $7`, true
	case repriceLease:
		return `UPDATE leases SET price = $1, term = $2 WHERE id = $3`, true
	case outbidLease:
		return `UPDATE leases SET outbid_by = $1, outbid_price = $2 WHERE id = $3 AND outbid_by = ''`, true
	case outbidJob:
		return `UPDATE jobs SET outbid_at = $1 WHERE id = $2`, true
	case addSpec:
		return `INSERT INTO specs (hash, spec, driver, requirements, lasts, policy) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`, false
	case addJob:
		return `INSERT INTO jobs (id, account, grp, idx, spec, name, priority, state, input, retry_of, submitted_by, submitted_at, parents, waits, reason, detail, ended_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`, true
	case addGroup:
		return `INSERT INTO job_groups (id, account, spec, indexes, sweep, at_once, size, members, written, todo, retry_of, submitted_by, submitted_at, parents, waits, cancelled_at, reason, detail, awaited, pipe, step, gang)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)`, true
	case writeGroup:
		return `UPDATE job_groups SET written = $1, todo = $2, cancelled_at = $3, reason = $4, detail = $5, waits = $6, broken = $7 WHERE id = $8`, true
	case breakGang:
		return `UPDATE job_groups SET broken = 'gang_broken', todo = 1 WHERE id = $1 AND broken <> 'gang_failed'`, false
	case failGang:
		return `UPDATE job_groups SET broken = 'gang_failed', todo = 1, detail = $1 WHERE id = $2 AND broken <> 'gang_failed' AND cancelled_at = 0`, false
	case addMember:
		return `INSERT INTO jobs (id, account, grp, idx, spec, name, priority, state, input, retry_of, submitted_by, submitted_at, reason, detail, ended_at, awaited) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`, true
	case addAfter:
		return `INSERT INTO job_after (job, account, n, parent, any_end, folder, told, output) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, true
	case awaitJob:
		// Several may begin to wait for it at once; its row is locked, or new.
		return `UPDATE jobs SET awaited = 1 WHERE id = $1`, false
	case tellAfter:
		return `UPDATE job_after SET told = $1, output = CASE WHEN folder <> '' THEN $2 ELSE '' END WHERE job = $3 AND parent = $4 AND told = ''`, true
	case addParts:
		// Of a member that was repeated the newer outputs are there already.
		return `INSERT INTO job_after (job, account, n, parent, any_end, folder, told, output)
			SELECT $1, account, -1, id, 1, CAST($2 AS TEXT) || '/' || CAST(idx AS TEXT), state, output FROM jobs WHERE grp <> id AND grp = $3 AND output <> '' AND ended_at <> 0
				AND NOT EXISTS (SELECT 1 FROM job_after a WHERE a.job = $1 AND a.folder = CAST($2 AS TEXT) || '/' || CAST(jobs.idx AS TEXT))
			ON CONFLICT (job, parent) DO NOTHING`, false
	case addLabel:
		return `INSERT INTO job_labels (key, value, job) SELECT $1, $2, seq FROM jobs WHERE id = $3`, true
	case addLease:
		return `INSERT INTO leases (id, job, account, attempt, node, state, cpu, memory, disk, devices, price, expires_at, grace, time_limit, offered_at, accepted_at, accepted_incarnation, accepted_seq)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`, true
	case addDevice:
		return `INSERT INTO lease_devices (lease, node, device, held) VALUES ($1, $2, $3, 1)`, true
	case addTerm:
		return `INSERT INTO lease_terms (lease, n, price, from_at) VALUES ($1, 1, $2, $3)`, true
	case endTerm:
		return `UPDATE lease_terms SET to_at = $1, metered = $2 - COALESCE((SELECT CAST(sum(e.metered) AS BIGINT) FROM lease_terms e WHERE e.lease = $3 AND e.n < lease_terms.n), 0)
			WHERE lease = $3 AND n = (SELECT max(n) FROM lease_terms WHERE lease = $3)`, false
	case nextTerm:
		return `INSERT INTO lease_terms (lease, n, price, from_at) VALUES ($1, $2, $3, $4)`, true
	case addMoney:
		return `INSERT INTO lease_money (lease, job, held, due_at, ledger) VALUES ($1, $2, $3, $4, $5)`, true
	case writeMoney:
		return `UPDATE lease_money SET held = $1, charged = $2, settled = $3, due_at = $4, ledger = $5, reason = $6, metered = $7, kept = $8 WHERE lease = $9 AND settled = 0`, true
	case addReceipt:
		return `INSERT INTO receipts (lease, term, job, payer, owner, charged, line, node, at, earned) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`, true
	case addTransaction:
		return `INSERT INTO transactions (id, kind, at, job, lease, attempt, term, external, minimum) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`, true
	case addEntry:
		return `INSERT INTO entries (transaction_id, account, part, amount) VALUES ($1, $2, $3, $4)`, true
	case openBalance:
		return `INSERT INTO balances (account, part) VALUES ($1, $2) ON CONFLICT DO NOTHING`, false
	case moveBalance:
		// The CHECK refuses what another hub spent since the balance was read.
		return `UPDATE balances SET balance = balance + $1 WHERE account = $2 AND part = $3`, true
	case addLog:
		return `INSERT INTO log_segments (lease, n, account, stream, start, length, data, blob, at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`, true
	case addAvailability:
		return `INSERT INTO node_availability (node, at, availability, why) VALUES ($1, $2, $3, $4)`, true
	case copyCheckpoints:
		// Attempt 0: none of this job's own attempts wrote them.
		return `INSERT INTO checkpoints (job, account, attempt, lease, name, tree, metered, size, at)
			SELECT $1, account, 0, lease, name, tree, metered, size, at FROM checkpoints WHERE job = $2 ORDER BY id`, false
	case copyMembers:
		return `INSERT INTO checkpoints (job, account, attempt, lease, name, tree, metered, size, at)
			SELECT n.id, c.account, 0, c.lease, c.name, c.tree, c.metered, c.size, c.at FROM jobs n JOIN checkpoints c ON c.job = n.retry_of
			WHERE n.grp <> n.id AND n.grp = $1 AND n.idx BETWEEN $2 AND $3 ORDER BY c.id`, false
	case addOperation:
		return `INSERT INTO operations (id, account, digest, outcome, at) VALUES ($1, $2, $3, $4, $5)`, true
	case addEvent:
		return `INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data, hub) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`, true
	case addAudit:
		return `INSERT INTO audit (at, account, member, token, node, address, verb, object, outcome) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`, true
	}
	panic("sqlstore: a kind without a statement")
}

// writes is what a verb has still to write.
type writes struct {
	rows   [kinds][][]any
	nodes  []*lockedNode
	jobs   []*job
	leases []*lease
}

// later has one row written once all is decided.
func (t *verb) later(k kind, args ...any) { t.writes.rows[k] = append(t.writes.rows[k], args) }

// change has a kept row written as it is in the end.
func (t *verb) changeNode(n *lockedNode) {
	if !n.pending.changed {
		n.pending.changed = true
		t.writes.nodes = append(t.writes.nodes, n)
	}
}

func (t *verb) changeJob(j *job) {
	if !j.changed {
		j.changed = true
		t.writes.jobs = append(t.writes.jobs, j)
	}
}

func (t *verb) changeLease(l *lease) {
	if !l.changed {
		l.changed = true
		t.writes.leases = append(t.writes.leases, l)
	}
	l.extended = false
}

// extendLease has a lease written in so far as heartbeats move it.
func (t *verb) extendLease(l *lease) {
	if !l.changed {
		t.changeLease(l)
		l.extended = true
	}
}

// alone runs fn so that an error undoes what fn did to a lease, its job and its
// node, and what it wanted written: others of the batch stand.
func (t *verb) alone(l *lease, j *job, fn func() error) error {
	n := t.rows.nodes[l.Node]
	if n == nil {
		return offpeak.ErrUnknownNode
	}
	lease, job, node, writes := *l, *j, *n, t.writes
	err := fn()
	if err != nil {
		*l, *j, *n, t.writes = lease, job, node, writes
		t.rows.posted = nil // summed anew: it counts what is undone
	}
	return err
}

// put writes what has been decided.
func (t *verb) put(cfg Config) error {
	w := &t.writes
	for _, n := range w.nodes {
		t.putNode(n, cfg.Unguarded)
	}
	for _, j := range w.jobs {
		t.putJob(j)
	}
	for _, l := range w.leases {
		t.putLease(l)
	}
	t.moveBalances()
	var list []Many
	var exact []bool
	for k := range kinds {
		if len(w.rows[k]) > 0 {
			query, one := k.statement()
			list, exact = append(list, Many{query, w.rows[k]}), append(exact, one)
		}
	}
	*w = writes{}
	if len(list) == 0 {
		return nil
	}
	changed, err := t.ExecMany(list...)
	if err != nil {
		return err
	}
	for i, n := range changed {
		if exact[i] && n != int64(len(list[i].Args)) {
			return &RacedError{}
		}
	}
	return nil
}

func (t *verb) putNode(n *lockedNode, unguarded bool) {
	p, c := n.pending, n.capacity
	if p.said {
		t.later(sayNode, string(n.availability), string(n.why), n.beat, span(n.timeout), micros(t.now), string(n.id), string(n.incarnation), p.heard)
	}
	if p.tried {
		t.later(tryNode, trialText(n.trial), string(n.id))
	}
	switch {
	case p.raised > 0 && unguarded:
		t.later(takeBlindly, p.reserved.CPU, int64(p.reserved.Memory), int64(p.reserved.Disk), p.raised, string(n.id))
	case p.raised > 0:
		t.later(writeNode, p.reserved.CPU, int64(p.reserved.Memory), int64(p.reserved.Disk), c.CPU, int64(c.Memory), int64(c.Disk), p.raised, string(n.id), number(p.ready))
	}
	n.pending = pendingNode{heard: n.beat}
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func (t *verb) putJob(j *job) {
	was := j.was
	if j.State == offpeak.JobLeased && was.state == offpeak.JobQueued {
		t.later(leaseJob, int64(j.Attempt), string(j.Lease), string(j.Node), string(j.ID), int64(was.attempt))
	} else {
		t.later(writeJob, string(j.State), string(j.Lease), string(j.Reason), j.Detail, nullCode(j.ExitCode), j.Signal, string(j.Output), int64(j.Counts.User), int64(j.Counts.Node), int64(j.Counts.Interruption),
			j.avoid, microsOf(j.NotBefore), microsOf(j.StartedAt), microsOf(j.EndedAt), int64(j.waits), number(j.awaited), string(j.ID), string(was.state), int64(was.attempt), string(was.lease))
	}
	j.written()
}

func (t *verb) putLease(l *lease) {
	if l.extended {
		t.later(extendLease, l.Frozen, micros(l.ExpiresAt), int64(l.Metered), l.acceptedSeq, string(l.ID), int64(l.Attempt), string(l.was))
	} else {
		t.later(writeLease, string(l.State), l.Frozen, string(l.Stop), micros(l.ExpiresAt), int64(l.Metered), string(l.incarnation), l.Seq, l.outcome, string(l.acceptedIncarnation), l.acceptedSeq,
			string(l.Reason), l.Detail, nullCode(l.ExitCode), l.Signal, string(l.Output), l.Restored, micros(l.acceptedAt), microsOf(l.StartedAt), microsOf(l.EndedAt),
			string(l.ID), int64(l.Attempt), string(l.was))
	}
	l.was, l.changed, l.extended = l.State, false, false
}

func (t *verb) event(e offpeak.Event) {
	t.later(addEvent, t.Cursor(), micros(t.now), e.Type, string(e.Account), string(e.Job), int64(e.Attempt), string(e.Lease), string(e.Node), string(e.Reason), string(e.Data), t.hub)
}

// audit says who did what.
func (t *verb) audit(actor offpeak.Actor, verb, object, outcome string) {
	t.later(addAudit, micros(t.now), string(actor.Account), string(actor.Member), string(actor.Token), string(actor.Node), actor.Address, verb, object, outcome)
}

// The grid itself, acting for nobody.
func byHub() offpeak.Actor { return offpeak.Actor{Address: "hub"} }

func byNode(account offpeak.AccountID, node offpeak.NodeID) offpeak.Actor {
	return offpeak.Actor{Account: account, Node: node, Role: offpeak.RoleNode}
}
