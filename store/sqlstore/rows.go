package sqlstore

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"offpeak"
	"offpeak/store"
)

// liveLease and openJob are the conditions of the schema's partial indexes, word for
// word, so that queries match them.
const (
	liveLease = `state IN ('offered', 'preparing', 'running', 'finishing')`
	openJob   = `state NOT IN ('succeeded', 'failed', 'cancelled')`
)

// job is a job with what the store keeps beside it.
type job struct {
	offpeak.Job
	seq      int64
	spec     offpeak.Hash
	avoid    string
	priority int
	// array is that of which it is a member, nil where of none.
	array *array
	// parents is of how many jobs it waits for the end, waits of how many it was not
	// told yet; awaited, that others wait for it and were not all told of its end.
	parents, waits int
	awaited        bool
	// was is what the row says, changed that it is to be written.
	was     jobWas
	changed bool
}

// jobWas is what a job's UPDATE is guarded by.
type jobWas struct {
	state   offpeak.JobState
	attempt offpeak.Attempt
	lease   offpeak.LeaseID
}

func (j *job) written() { j.was, j.changed = jobWas{j.State, j.Attempt, j.Lease}, false }

const jobColumns = `seq, id, account, grp, idx, spec, state, attempt, lease, node, reason, detail, exit_code, signal, output,
	count_user, count_node, count_interruption, avoid, not_before, retry_of, submitted_by, submitted_at, started_at, ended_at, outbid_at, priority, parents, waits, awaited`

func (j *job) scan(rows Rows) error {
	var exit sql.NullInt64
	var notBefore, submitted, started, ended, outbid, awaited int64
	err := rows.Scan(&j.seq, &j.ID, &j.Account, &j.Group, &j.Index, &j.spec, &j.State, &j.Attempt, &j.Lease, &j.Node, &j.Reason, &j.Detail, &exit, &j.Signal, &j.Output,
		&j.Counts.User, &j.Counts.Node, &j.Counts.Interruption, &j.avoid, &notBefore, &j.RetryOf, &j.SubmittedBy, &submitted, &started, &ended, &outbid, &j.priority, &j.parents, &j.waits, &awaited)
	j.awaited = awaited != 0
	j.ExitCode = exitCode(exit)
	j.NotBefore, j.SubmittedAt, j.StartedAt, j.EndedAt, j.OutbidAt = maybe(notBefore), moment(submitted), maybe(started), maybe(ended), maybe(outbid)
	j.written()
	return err
}

func exitCode(n sql.NullInt64) *int {
	if !n.Valid {
		return nil
	}
	v := int(n.Int64)
	return &v
}

func nullCode(p *int) *int64 {
	if p == nil {
		return nil
	}
	n := int64(*p)
	return &n
}

// job reads a job of an account ("" any) with its spec, and locks and keeps it where
// nodes are locked.
func (s *Store) job(t *verb, account offpeak.AccountID, id offpeak.JobID) (*job, error) {
	j := t.rows.jobs[id]
	if j == nil {
		j = &job{}
		err := t.each(`SELECT `+jobColumns+` FROM jobs WHERE id = $1`+t.rows.lock, []any{string(id)}, j.scan)
		if err != nil {
			return nil, err
		}
		if j.ID == "" && t.rows.lock == "" {
			j, err = s.unwritten(t, id)
		}
		if err != nil {
			return nil, err
		}
		if j.ID == "" {
			return nil, offpeak.ErrNotFound
		}
		if j.Spec, err = s.spec(t, j.spec); err != nil {
			return nil, err
		}
		if err := s.joinArray(t, j); err != nil {
			return nil, err
		}
		if t.rows.lock != "" {
			keep(&t.rows.jobs, j.ID, j)
		}
	}
	if account != "" && j.Account != account {
		return nil, offpeak.ErrNotFound
	}
	return j, nil
}

// queued is what matching needs of a queued job.
func (j *job) queued() *store.Queued {
	if j.State != offpeak.JobQueued {
		return nil
	}
	q := &store.Queued{
		Job: j.ID, Account: j.Account, Attempt: j.Attempt, Priority: j.priority, Submitted: j.SubmittedAt,
		Driver: j.Spec.Task.Driver, Requirements: &j.Spec.Requirements, Policy: j.Spec.Policy, Lasts: j.Spec.Limits.Lasts(),
	}
	q.Avoid, q.Failed = avoided(j.avoid)
	if j.NotBefore != nil {
		q.NotBefore = *j.NotBefore
	}
	if j.array != nil && j.array.AtOnce > 0 {
		q.Group, q.AtOnce = j.array.id, j.array.AtOnce
	}
	q.Gang = j.gang()
	return q
}

// avoided reads the nodes that the next attempt should avoid, and what fences it from
// some of them.
func avoided(s string) (nodes []offpeak.NodeID, failed []offpeak.Failed) {
	if s == "" {
		return nil, nil
	}
	parts := strings.Split(s, " ")
	nodes = make([]offpeak.NodeID, len(parts))
	for i, p := range parts {
		f := offpeak.ParseFailed(p)
		if nodes[i] = f.Node; f.Times > 0 {
			failed = append(failed, f)
		}
	}
	return nodes, failed
}

// avoidToo adds the node of an attempt that ended so as the newest; the last 16 are
// kept.
func avoidToo(s string, node offpeak.NodeID, reason offpeak.EndReason, ended time.Time) string {
	const most = 16
	parts := make([]string, 0, most+1)
	last := offpeak.Failed{Node: node}
	for _, p := range strings.Fields(s) {
		if f := offpeak.ParseFailed(p); f.Node == node {
			last = f
		} else {
			parts = append(parts, p)
		}
	}
	parts = append(parts, last.Again(reason, ended).String())
	return strings.Join(parts[max(0, len(parts)-most):], " ")
}

// takenSeq is the accepted sequence of a lease that was taken ahead, until a
// report or beat shows that its agent has heard of it: no beat of the same
// incarnation is known to be composed after that.
const takenSeq = math.MaxInt64

// unheard says that the lease was taken ahead and its agent may not know of it.
func (l *lease) unheard() bool {
	return l.State == offpeak.LeasePreparing && l.acceptedSeq == takenSeq
}

// lease is a lease with what the store keeps beside it.
type lease struct {
	offpeak.Lease
	grace               time.Duration
	limit               time.Duration
	kept                offpeak.Millis
	incarnation         offpeak.Incarnation
	outcome             string
	acceptedIncarnation offpeak.Incarnation
	acceptedSeq         int64
	acceptedAt          time.Time
	log                 logTail
	// term counts the prices that the lease has had.
	term int
	// money is the ledger's side of a lease that has had a price, once it was read.
	money *money
	// begun says that it began to run in this transaction, until a change has said so.
	begun bool
	// was is the state that the row says; changed that it is to be written, and
	// extended that no more than a heartbeat's part of it is.
	was               offpeak.LeaseState
	changed, extended bool
}

// now is the lease as it is now, whatever the rest of the batch does to it.
func (l *lease) now() *offpeak.Lease {
	c := l.Lease
	return &c
}

const leaseColumns = `id, job, account, attempt, rank, node, state, frozen, stop, cpu, memory, disk, devices, price, term, outbid_by, outbid_price, expires_at, grace, time_limit, metered, kept,
	incarnation, seq, outcome, accepted_incarnation, accepted_seq, reason, detail, exit_code, signal, output, restored, offered_at, accepted_at, started_at, ended_at`

// scan reads the columns of a lease, and those that the query has after them.
func (l *lease) scan(rows Rows, more ...any) error {
	var exit sql.NullInt64
	var devices string
	var outbid offpeak.Outbid
	var expires, grace, limit, offered, accepted, started, ended int64
	err := rows.Scan(append([]any{&l.ID, &l.Job, &l.Account, &l.Attempt, &l.Rank, &l.Node, &l.State, &l.Frozen, &l.Stop, &l.Resources.CPU, &l.Resources.Memory, &l.Resources.Disk, &devices, &l.Price, &l.term, &outbid.Job, &outbid.Price, &expires, &grace, &limit, &l.Metered, &l.kept,
		&l.incarnation, &l.Seq, &l.outcome, &l.acceptedIncarnation, &l.acceptedSeq, &l.Reason, &l.Detail, &exit, &l.Signal, &l.Output, &l.Restored, &offered, &accepted, &started, &ended}, more...)...)
	if err != nil {
		return err
	}
	if outbid.Job != "" {
		l.Outbid = &outbid
	}
	l.ExitCode, l.was = exitCode(exit), l.State
	l.ExpiresAt, l.OfferedAt, l.acceptedAt = moment(expires), moment(offered), moment(accepted)
	l.StartedAt, l.EndedAt = maybe(started), maybe(ended)
	l.grace, l.limit = time.Duration(grace)*time.Microsecond, time.Duration(limit)*time.Microsecond
	if devices != "" {
		if err := json.Unmarshal([]byte(devices), &l.Resources.Devices); err != nil {
			return fmt.Errorf("read devices of lease %s: %w", l.ID, err)
		}
	}
	return nil
}

// lease returns a lease, which is locked and kept where nodes are locked.
func (t *verb) lease(id offpeak.LeaseID) (*lease, error) {
	if l := t.rows.leases[id]; l != nil {
		return l, nil
	}
	list, err := t.leases(`id = $1`, string(id))
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, offpeak.ErrNotFound
	}
	return list[0], nil
}

// lockLease locks a lease's node and returns the lease.
func (t *verb) lockLease(id offpeak.LeaseID) (*lease, error) {
	l, err := t.lease(id)
	if err != nil {
		return nil, err
	}
	if err := t.loadNodes(forUpdate, l.Node); err != nil {
		return nil, err
	}
	return t.lease(id)
}

// leases returns leases, which are locked and kept where nodes are locked.
func (t *verb) leases(where string, args ...any) ([]*lease, error) {
	var out []*lease
	err := t.each(`SELECT `+leaseColumns+` FROM leases WHERE `+where+t.rows.lock, args, func(rows Rows) error {
		l := &lease{}
		if err := l.scan(rows); err != nil {
			return err
		}
		if t.rows.lock != "" {
			l = keep(&t.rows.leases, l.ID, l)
		}
		out = append(out, l)
		return nil
	})
	return out, err
}

// fence returns a live lease that is on the node and the newest of its job,
// with its job; otherwise a *StaleLeaseError.
func (s *Store) fence(t *verb, node offpeak.NodeID, id offpeak.LeaseID, attempt offpeak.Attempt) (*lease, *job, error) {
	l, err := t.lease(id)
	if errors.Is(err, offpeak.ErrNotFound) {
		return nil, nil, &offpeak.StaleLeaseError{Lease: id}
	}
	if err != nil {
		return nil, nil, err
	}
	j, err := s.job(t, "", l.Job)
	if err != nil {
		return nil, nil, err
	}
	if l.Node != node {
		return nil, nil, &offpeak.StaleLeaseError{Lease: id}
	}
	if l.State.Terminal() || j.Lease != l.ID || l.Attempt != j.Attempt || attempt != 0 && attempt != l.Attempt {
		return l, j, &offpeak.StaleLeaseError{Lease: id, Attempt: j.Attempt, State: l.State}
	}
	return l, j, nil
}

// fenceLease is fence for what adds to a lease and moves neither it nor its job:
// the lease stays live until the verb is done, and its node is not held up.
func (s *Store) fenceLease(t *verb, node offpeak.NodeID, id offpeak.LeaseID, attempt offpeak.Attempt) (*lease, *job, error) {
	if err := t.Lock(`SELECT 1 FROM leases WHERE id = $1`+forUpdate, string(id)); err != nil {
		return nil, nil, err
	}
	return s.fence(t, node, id, attempt)
}

// node is a node with what the store keeps beside it.
type node struct {
	offpeak.Node
	beat    int64
	claimed offpeak.Resources
	removed time.Time
}

const nodeColumns = `id, account, name, key, liveness, intent, availability, why, inventory, claimed_cpu, claimed_memory, claimed_disk,
	capacity_cpu, capacity_memory, capacity_disk, reserved_cpu, reserved_memory, reserved_disk, ask_gpu, ask_cpu, revision, generation, incarnation, beat, timeout, last_heard, enrolled_at, removed_at, readings, trial`

// scan reads the columns of a node, and those that the query has after them.
func (n *node) scan(rows Rows, more ...any) error {
	var inventory, readings, trial string
	var gpu, cpu sql.NullInt64
	var timeout, heard, enrolled, removed int64
	err := rows.Scan(append([]any{&n.ID, &n.Account, &n.Name, &n.Key, &n.Liveness, &n.Intent, &n.Availability, &n.Why, &inventory, &n.claimed.CPU, &n.claimed.Memory, &n.claimed.Disk,
		&n.Capacity.CPU, &n.Capacity.Memory, &n.Capacity.Disk, &n.Reserved.CPU, &n.Reserved.Memory, &n.Reserved.Disk, &gpu, &cpu, &n.Revision, &n.Generation, &n.Incarnation, &n.beat, &timeout, &heard, &enrolled, &removed, &readings, &trial}, more...)...)
	if err != nil {
		return err
	}
	n.Ask = askOf(gpu, cpu)
	held, err := trialOf(n.ID, trial)
	if err != nil {
		return err
	}
	n.Quarantine = held.Quarantine()
	n.Timeout = offpeak.Duration(time.Duration(timeout) * time.Microsecond)
	n.LastHeard, n.EnrolledAt, n.removed = maybe(heard), moment(enrolled), moment(removed)
	if err := json.Unmarshal([]byte(inventory), &n.Inventory); err != nil {
		return fmt.Errorf("read inventory of node %s: %w", n.ID, err)
	}
	if readings != "" {
		if err := json.Unmarshal([]byte(readings), &n.Readings); err != nil {
			return fmt.Errorf("read readings of node %s: %w", n.ID, err)
		}
	}
	for _, d := range n.Inventory.Devices {
		n.Capacity.Devices = append(n.Capacity.Devices, d.ID)
	}
	return nil
}

func askOf(gpu, cpu sql.NullInt64) *offpeak.Ask {
	if !gpu.Valid || !cpu.Valid {
		return nil
	}
	return &offpeak.Ask{GPU: offpeak.Price(gpu.Int64), CPU: offpeak.Price(cpu.Int64)}
}

func nullAsk(ask *offpeak.Ask) (gpu, cpu *int64) {
	if ask == nil {
		return nil, nil
	}
	return (*int64)(&ask.GPU), (*int64)(&ask.CPU)
}

// node reads a node of an account ("" any) that was not removed.
func (t *verb) node(account offpeak.AccountID, id offpeak.NodeID) (*node, error) {
	n := &node{}
	if err := t.each(`SELECT `+nodeColumns+` FROM nodes WHERE id = $1`, []any{string(id)}, func(r Rows) error { return n.scan(r) }); err != nil {
		return nil, err
	}
	if n.ID == "" || !n.removed.IsZero() || account != "" && n.Account != account {
		return nil, offpeak.ErrNotFound
	}
	return n, t.reserved(n)
}

// reserved adds the devices that live leases hold.
func (t *verb) reserved(n *node) error {
	return t.each(`SELECT device FROM lease_devices WHERE node = $1 AND held = 1 ORDER BY device`, []any{string(n.ID)}, func(rows Rows) error {
		var d offpeak.DeviceID
		err := rows.Scan(&d)
		n.Reserved.Devices = append(n.Reserved.Devices, d)
		return err
	})
}
