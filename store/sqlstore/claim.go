package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"offpeak"
	"offpeak/store"
)

// Claim writes leases.
func (s *Store) Claim(ctx context.Context, claims []store.Claim) ([]store.Claimed, error) {
	return write(ctx, s, "claim", func(t *verb) ([]store.Claimed, error) {
		out := make([]store.Claimed, len(claims))
		nodes := make([]offpeak.NodeID, len(claims))
		for i, c := range claims {
			nodes[i] = c.Node
		}
		if err := t.lockNodes(nodes...); err != nil {
			return nil, err
		}
		for i, c := range claims {
			var err error
			if out[i], err = s.claimed(t, c); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// claimed makes one claim, of which nothing remains when it is lost. An error
// is the disk's or the connection's.
func (s *Store) claimed(t *verb, c store.Claim) (store.Claimed, error) {
	var out store.Claimed
	events, audits := len(t.events), len(t.audits)
	err := t.Sub(func() (err error) {
		out.Change, err = s.claim(t, c)
		return err
	})
	if err == nil {
		return out, nil
	}
	if errors.Is(err, offpeak.ErrStorage) || errors.Is(err, offpeak.ErrUnavailable) {
		return store.Claimed{}, err
	}
	t.events, t.audits = t.events[:events], t.audits[:audits]
	if !errors.Is(err, offpeak.ErrQuota) && !errors.Is(err, offpeak.ErrConflict) {
		err = fmt.Errorf("%w: %w", offpeak.ErrConflict, err)
	}
	return store.Claimed{Err: fmt.Errorf("claim job %s: %w", c.Job, err)}, nil
}

func (s *Store) claim(t *verb, c store.Claim) (store.Change, error) {
	lost := func(why string) (store.Change, error) {
		return store.Change{}, fmt.Errorf("%s: %w", why, offpeak.ErrConflict)
	}
	j, err := s.job(t, "", c.Job)
	switch {
	case err != nil:
		return store.Change{}, err
	case j.State != offpeak.JobQueued || j.Attempt != c.Attempt-1:
		return lost(fmt.Sprintf("it is %s with attempt %d", j.State, j.Attempt))
	case j.NotBefore != nil && j.NotBefore.After(t.now):
		return lost("its time has not come")
	case c.Resources.CPU < 0 || c.Resources.Memory < 0 || c.Resources.Disk < 0 || c.Price < 0 || c.Lease == "":
		return lost("the claim makes no sense")
	}
	if err := j.State.To(offpeak.JobLeased); err != nil {
		return store.Change{}, err
	}
	if err := s.mayLease(t, j.Account); err != nil {
		return store.Change{}, err
	}
	on, err := s.take(t, c)
	if err != nil {
		return store.Change{}, err
	}
	devices := ""
	if len(c.Resources.Devices) > 0 {
		b, err := json.Marshal(c.Resources.Devices)
		if err != nil {
			return store.Change{}, err
		}
		devices = string(b)
	}
	limits := j.Spec.Limits
	l := &lease{Lease: offpeak.Lease{
		ID: c.Lease, Job: c.Job, Account: j.Account, Attempt: c.Attempt, Node: c.Node, State: offpeak.LeaseOffered,
		Resources: c.Resources, Price: c.Price, ExpiresAt: t.now.Add(c.OfferFor).Truncate(time.Microsecond), OfferedAt: t.now,
	}}
	if c.Taken != "" && c.Taken == on.incarnation {
		if err := l.State.To(offpeak.LeasePreparing); err != nil {
			return store.Change{}, err
		}
		l.State, l.acceptedAt, l.acceptedIncarnation, l.acceptedSeq = offpeak.LeasePreparing, t.now, c.Taken, takenSeq
		l.ExpiresAt = later(l.ExpiresAt, t.now.Add(on.timeout+limits.ReconnectGrace.Std()).Truncate(time.Microsecond))
	}
	n, err := t.Exec(`INSERT INTO leases (id, job, account, attempt, node, state, cpu, memory, disk, devices, price, expires_at, grace, time_limit, offered_at, accepted_at, accepted_incarnation, accepted_seq)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) ON CONFLICT DO NOTHING`,
		string(c.Lease), string(c.Job), string(j.Account), int64(c.Attempt), string(c.Node), string(l.State), c.Resources.CPU, int64(c.Resources.Memory), int64(c.Resources.Disk), devices, int64(c.Price),
		micros(l.ExpiresAt), span(limits.ReconnectGrace.Std()), span(limits.Time.Std()), micros(t.now), micros(l.acceptedAt), string(l.acceptedIncarnation), l.acceptedSeq)
	if err != nil {
		return store.Change{}, err
	}
	if n != 1 {
		return lost("the lease id or the attempt was used before")
	}
	if err := t.must(`UPDATE jobs SET state = 'leased', attempt = $1, lease = $2, node = $3, not_before = 0 WHERE id = $4 AND state = 'queued' AND attempt = $5`,
		int64(c.Attempt), string(c.Lease), string(c.Node), string(c.Job), int64(c.Attempt-1)); err != nil {
		return store.Change{}, err
	}
	j.State, j.Attempt, j.Lease, j.Node, j.NotBefore = offpeak.JobLeased, c.Attempt, c.Lease, c.Node, nil
	t.event(offpeak.Event{Type: "lease.offered", Account: j.Account, Job: j.ID, Attempt: c.Attempt, Lease: c.Lease, Node: c.Node, Data: data(struct {
		Resources offpeak.Resources `json:"resources"`
		Price     offpeak.Price     `json:"price"`
		Expires   time.Time         `json:"expires_at"`
		Placement json.RawMessage   `json:"placement,omitempty"`
	}{c.Resources, c.Price, l.ExpiresAt, placement(c.Placement)})})
	t.event(offpeak.Event{Type: "job.leased", Account: j.Account, Job: j.ID, Attempt: c.Attempt, Lease: c.Lease, Node: c.Node})
	if l.State == offpeak.LeasePreparing {
		t.event(offpeak.Event{Type: "lease.preparing", Account: j.Account, Job: j.ID, Attempt: c.Attempt, Lease: c.Lease, Node: c.Node})
	}
	return store.Change{Job: j.Job, Lease: &l.Lease, Node: c.Node, Revision: on.revision}, nil
}

// placement keeps what is JSON.
func placement(p json.RawMessage) json.RawMessage {
	if !json.Valid(p) {
		return nil
	}
	return p
}

// mayLease checks the account's quota of live leases.
func (s *Store) mayLease(t *verb, account offpeak.AccountID) error {
	var quota, live int64
	if err := t.row(`SELECT quota_running FROM accounts WHERE id = $1`, []any{string(account)}, &quota); err != nil || quota == 0 {
		return err
	}
	if err := t.lockAccount(account); err != nil {
		return err
	}
	if err := t.row(`SELECT count(*) FROM leases WHERE account = $1 AND `+liveLease, []any{string(account)}, &live); err != nil {
		return err
	}
	if live >= quota {
		return fmt.Errorf("%w: the account has %d of %d live leases", offpeak.ErrQuota, live, quota)
	}
	return nil
}

// claimedNode is what a claim needs of its node.
type claimedNode struct {
	revision    int64
	incarnation offpeak.Incarnation
	timeout     time.Duration
}

const nodeReady = ` AND removed_at = 0 AND liveness = 'online' AND intent = 'open' AND availability = 'available'`

// take reserves what a claim asks for on its node, or is a conflict. This one
// UPDATE under the schema's CHECK is what keeps a node from being promised
// twice, whoever claims at once.
func (s *Store) take(t *verb, c store.Claim) (on claimedNode, err error) {
	q := `UPDATE nodes SET reserved_cpu = reserved_cpu + $1, reserved_memory = reserved_memory + $2, reserved_disk = reserved_disk + $3, revision = revision + 1
		WHERE id = $4` + nodeReady + ` AND $1 <= capacity_cpu - reserved_cpu AND $2 <= capacity_memory - reserved_memory AND $3 <= capacity_disk - reserved_disk`
	if s.cfg.Unguarded {
		q = `UPDATE nodes SET reserved_cpu = reserved_cpu + $1, reserved_memory = reserved_memory + $2, reserved_disk = reserved_disk + $3, revision = revision + 1
			WHERE id = $4` + nodeReady
	}
	r := c.Resources
	err = t.must(q, r.CPU, int64(r.Memory), int64(r.Disk), string(c.Node))
	if errors.Is(err, offpeak.ErrConflict) {
		return on, fmt.Errorf("node %s is not ready or has not enough free: %w", c.Node, err)
	}
	if err != nil {
		return on, err
	}
	for _, d := range r.Devices {
		n, err := t.Exec(`INSERT INTO lease_devices (lease, node, device, held)
			SELECT $1, node, device, 1 FROM node_devices WHERE node = $2 AND device = $3 AND gone = 0 ON CONFLICT DO NOTHING`, string(c.Lease), string(c.Node), string(d))
		if err != nil {
			return on, err
		}
		if n != 1 {
			return on, fmt.Errorf("device %s is not free: %w", d, offpeak.ErrConflict)
		}
	}
	var timeout int64
	err = t.row(`SELECT revision, incarnation, timeout FROM nodes WHERE id = $1`, []any{string(c.Node)}, &on.revision, &on.incarnation, &timeout)
	on.timeout = time.Duration(timeout) * time.Microsecond
	return on, err
}

// revision reads a node's revision, of a row that this transaction has changed.
// It is read apart: RETURNING makes SQLite build a table for one row, which
// costs several times as much.
func (t *verb) revision(id offpeak.NodeID) (revision int64, err error) {
	err = t.row(`SELECT revision FROM nodes WHERE id = $1`, []any{string(id)}, &revision)
	return revision, err
}

// release gives back what a lease holds when it leaves the holding states, and
// raises the node's revision. Capacity that had been kept up for leases that no
// longer fit the inventory follows down.
func (t *verb) release(l *lease) (revision int64, err error) {
	var claimed, capacity, reserved offpeak.Resources
	r := l.Resources
	if err := t.must(`UPDATE nodes SET reserved_cpu = reserved_cpu - $1, reserved_memory = reserved_memory - $2, reserved_disk = reserved_disk - $3, revision = revision + 1 WHERE id = $4`,
		r.CPU, int64(r.Memory), int64(r.Disk), string(l.Node)); err != nil {
		return 0, fmt.Errorf("release node %s: %w", l.Node, err)
	}
	if err := t.row(`SELECT revision, claimed_cpu, claimed_memory, claimed_disk, capacity_cpu, capacity_memory, capacity_disk, reserved_cpu, reserved_memory, reserved_disk FROM nodes WHERE id = $1`,
		[]any{string(l.Node)}, &revision, &claimed.CPU, &claimed.Memory, &claimed.Disk, &capacity.CPU, &capacity.Memory, &capacity.Disk,
		&reserved.CPU, &reserved.Memory, &reserved.Disk); err != nil {
		return 0, fmt.Errorf("release node %s: %w", l.Node, err)
	}
	if capacity.CPU > claimed.CPU || capacity.Memory > claimed.Memory || capacity.Disk > claimed.Disk {
		if err := t.must(`UPDATE nodes SET capacity_cpu = $1, capacity_memory = $2, capacity_disk = $3 WHERE id = $4`,
			max(claimed.CPU, reserved.CPU), int64(max(claimed.Memory, reserved.Memory)), int64(max(claimed.Disk, reserved.Disk)), string(l.Node)); err != nil {
			return 0, err
		}
	}
	if len(r.Devices) > 0 {
		if _, err := t.Exec(`UPDATE lease_devices SET held = 0 WHERE lease = $1 AND held = 1`, string(l.ID)); err != nil {
			return 0, err
		}
	}
	return revision, nil
}

// touched raises a node's revision because what it should hold changed.
func (t *verb) touched(id offpeak.NodeID) (revision int64, err error) {
	if err := t.must(`UPDATE nodes SET revision = revision + 1 WHERE id = $1`, string(id)); err != nil {
		return 0, err
	}
	return t.revision(id)
}

// Assignments returns what a node should hold.
func (s *Store) Assignments(ctx context.Context, id offpeak.NodeID) (int64, []store.Assignment, error) {
	type held struct {
		revision int64
		list     []store.Assignment
	}
	h, err := read(ctx, s, "read assignments of node "+string(id), func(t *verb) (h held, err error) {
		var incarnation offpeak.Incarnation
		if err := t.row(`SELECT revision, incarnation FROM nodes WHERE id = $1 AND removed_at = 0`, []any{string(id)}, &h.revision, &incarnation); err != nil {
			if errors.Is(err, offpeak.ErrNotFound) {
				err = offpeak.ErrUnknownNode
			}
			return h, err
		}
		type row struct {
			lease
			spec        offpeak.Hash
			checkpoints bool
		}
		var live []*row
		if err := t.each(`SELECT `+leaseColumns+`, (SELECT spec FROM jobs WHERE jobs.id = leases.job), EXISTS (SELECT 1 FROM checkpoints WHERE checkpoints.job = leases.job)
			FROM leases WHERE node = $1 AND `+liveLease+` ORDER BY offered_at, id`, []any{string(id)}, func(rows Rows) error {
			l := &row{}
			live = append(live, l)
			return l.scan(rows, &l.spec, &l.checkpoints)
		}); err != nil {
			return h, err
		}
		for _, l := range live {
			a := store.Assignment{Lease: l.Lease, Taken: l.unheard() && l.acceptedIncarnation == incarnation}
			if a.Spec, err = s.spec(t, l.spec); err != nil {
				return h, err
			}
			if l.checkpoints {
				if a.Checkpoints, err = t.checkpoints(l.Job); err != nil {
					return h, err
				}
			}
			h.list = append(h.list, a)
		}
		return h, nil
	})
	return h.revision, h.list, err
}

// Stop asks a live lease to go.
func (s *Store) Stop(ctx context.Context, id offpeak.LeaseID, reason offpeak.EndReason) (store.Change, error) {
	if _, known := offpeak.EndOf(reason); !known {
		return store.Change{}, &offpeak.FieldError{Field: "reason", Value: string(reason), Rule: "stands in the table of ends"}
	}
	return write(ctx, s, "stop lease "+string(id), func(t *verb) (store.Change, error) {
		l, err := t.lockLease(id)
		if err != nil {
			return store.Change{}, err
		}
		j, err := s.job(t, "", l.Job)
		if err != nil {
			return store.Change{}, err
		}
		if l.State.Terminal() {
			return store.Change{}, &offpeak.StaleLeaseError{Lease: id, Attempt: j.Attempt, State: l.State}
		}
		return s.stop(t, l, j, reason)
	})
}

func (s *Store) stop(t *verb, l *lease, j *job, reason offpeak.EndReason) (store.Change, error) {
	if l.Stop != "" {
		return store.Change{Job: j.Job, Lease: &l.Lease}, nil
	}
	if err := t.must(`UPDATE leases SET stop = $1 WHERE id = $2 AND attempt = $3 AND state = $4 AND stop = ''`, string(reason), string(l.ID), int64(l.Attempt), string(l.State)); err != nil {
		return store.Change{}, err
	}
	l.Stop = reason
	revision, err := t.touched(l.Node)
	if err != nil {
		return store.Change{}, err
	}
	t.event(offpeak.Event{Type: "lease.stopping", Account: l.Account, Job: l.Job, Attempt: l.Attempt, Lease: l.ID, Node: l.Node, Reason: reason})
	t.audit(byHub(), "lease.stop", string(l.ID), string(reason))
	return store.Change{Job: j.Job, Lease: &l.Lease, Node: l.Node, Revision: revision}, nil
}

// Abandon ends a finishing lease.
func (s *Store) Abandon(ctx context.Context, id offpeak.LeaseID, reason offpeak.EndReason) (store.Change, error) {
	if _, known := offpeak.EndOf(reason); !known {
		return store.Change{}, &offpeak.FieldError{Field: "reason", Value: string(reason), Rule: "stands in the table of ends"}
	}
	return write(ctx, s, "abandon lease "+string(id), func(t *verb) (store.Change, error) {
		l, err := t.lockLease(id)
		if err != nil {
			return store.Change{}, err
		}
		if l.State.Terminal() {
			return store.Change{}, &offpeak.StaleLeaseError{Lease: id, Attempt: l.Attempt, State: l.State}
		}
		if l.State != offpeak.LeaseFinishing {
			return store.Change{}, fmt.Errorf("it is %s: %w", l.State, offpeak.ErrConflict)
		}
		return s.endNow(t, l, ending{reason: reason})
	})
}

// Expire ends leases whose expiry is not after asOf.
func (s *Store) Expire(ctx context.Context, asOf time.Time, limit int) ([]store.Change, error) {
	// Most ticks find nothing: look before taking the writer's time.
	due, err := read(ctx, s, "expire leases", func(t *verb) (bool, error) {
		return t.exists(`SELECT 1 FROM leases WHERE `+liveLease+` AND expires_at <= $1 LIMIT 1`, micros(earlier(asOf, t.now)))
	})
	if err != nil || !due {
		return nil, err
	}
	return write(ctx, s, "expire leases", func(t *verb) ([]store.Change, error) {
		if late := t.now.Sub(asOf); late > store.ExpireWithin {
			return nil, fmt.Errorf("asked %s ago: %w", late, offpeak.ErrConflict)
		}
		const due = liveLease + ` AND expires_at <= $1`
		until := micros(earlier(asOf, t.now))
		list, err := t.leases(due+` ORDER BY expires_at, id LIMIT $2`, until, int64(limit))
		if err != nil {
			return nil, err
		}
		ids, nodes := make([]string, len(list)), make([]offpeak.NodeID, len(list))
		for i, l := range list {
			ids[i], nodes[i] = string(l.ID), l.Node
		}
		if err := t.lockNodes(nodes...); err != nil {
			return nil, err
		}
		// Another monitor, or a heartbeat, may have been there before the lock.
		if list, err = t.leases(due+` AND id = ANY($2) ORDER BY expires_at, id`, until, ids); err != nil {
			return nil, err
		}
		var out []store.Change
		for _, l := range list {
			reason := offpeak.EndNodeLost
			if l.State == offpeak.LeaseOffered || l.unheard() {
				reason = offpeak.EndOfferLapsed
			}
			c, err := s.endNow(t, l, ending{reason: reason})
			if err != nil {
				return nil, err
			}
			out = append(out, c)
		}
		return out, nil
	})
}

// Overdue counts nodes whose leases run out.
func (s *Store) Overdue(ctx context.Context, asOf, by time.Time) (due, holding int, err error) {
	type counts struct{ due, holding int }
	c, err := read(ctx, s, "count overdue nodes", func(t *verb) (c counts, err error) {
		some, err := t.exists(`SELECT 1 FROM leases WHERE `+liveLease+` AND expires_at <= $1 LIMIT 1`, micros(earlier(asOf, t.now)))
		if err != nil || !some {
			return c, err
		}
		const held = ` AND state <> 'offered'`
		if err := t.row(`SELECT count(DISTINCT node) FROM leases WHERE `+liveLease+held+` AND expires_at <= $1`, []any{micros(by)}, &c.due); err != nil {
			return c, err
		}
		return c, t.row(`SELECT count(DISTINCT node) FROM leases WHERE `+liveLease+held, nil, &c.holding)
	})
	return c.due, c.holding, err
}

// Amnesty moves every live lease's expiry.
func (s *Store) Amnesty(ctx context.Context, d time.Duration) error {
	_, err := write(ctx, s, "grant amnesty", func(t *verb) (struct{}, error) {
		if err := t.Lock(`SELECT 1 FROM nodes WHERE removed_at = 0 ORDER BY id` + forUpdate); err != nil {
			return struct{}{}, err
		}
		to := micros(t.now.Add(d))
		n, err := t.Exec(`UPDATE leases SET expires_at = $1 WHERE `+liveLease+` AND expires_at < $1`, to)
		if err != nil {
			return struct{}{}, err
		}
		if _, err := t.Exec(`UPDATE nodes SET last_heard = $1 WHERE liveness <> 'offline' AND removed_at = 0 AND last_heard < $1`, micros(t.now)); err != nil {
			return struct{}{}, err
		}
		t.event(offpeak.Event{Type: "hub.amnesty", Data: data(map[string]int64{"leases": n, "until_us": to})})
		t.audit(byHub(), "hub.amnesty", "", fmt.Sprintf("%d leases", n))
		return struct{}{}, nil
	})
	return err
}

// AddCheckpoint stores a snapshot.
func (s *Store) AddCheckpoint(ctx context.Context, c store.NewCheckpoint) (offpeak.Checkpoint, error) {
	return write(ctx, s, "add checkpoint of lease "+string(c.Lease), func(t *verb) (offpeak.Checkpoint, error) {
		// It moves what a lease has metered, as a heartbeat and an end do: they take turns.
		if err := t.lockNodes(c.Node); err != nil {
			return offpeak.Checkpoint{}, err
		}
		l, j, err := s.fence(t, c.Node, c.Lease, c.Attempt)
		if err != nil {
			return offpeak.Checkpoint{}, err
		}
		out := offpeak.Checkpoint{Job: j.ID, Attempt: l.Attempt, Name: c.Name, Tree: c.Tree}
		var at int64
		err = t.row(`SELECT id, metered, size, at FROM checkpoints WHERE job = $1 AND lease = $2 AND tree = $3 AND name = $4`,
			[]any{string(j.ID), string(l.ID), string(c.Tree), c.Name}, &out.ID, &out.Metered, &out.Size, &at)
		if err == nil {
			out.At = moment(at)
			return out, nil
		}
		if !errors.Is(err, offpeak.ErrNotFound) {
			return offpeak.Checkpoint{}, err
		}
		if err := t.hasTree(l.Account, c.Tree); err != nil {
			return offpeak.Checkpoint{}, err
		}
		metered := min(max(c.Metered, 0), l.observed(t.now, c.Metered))
		if err := t.row(`INSERT INTO checkpoints (job, account, attempt, lease, name, tree, metered, size, at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id`,
			[]any{string(j.ID), string(l.Account), int64(l.Attempt), string(l.ID), c.Name, string(c.Tree), int64(metered), int64(c.Size), micros(t.now)}, &out.ID); err != nil {
			return offpeak.Checkpoint{}, err
		}
		if _, err := t.Exec(`DELETE FROM checkpoints WHERE job = $1 AND id NOT IN (SELECT id FROM checkpoints WHERE job = $1 ORDER BY id DESC LIMIT 2)`, string(j.ID)); err != nil {
			return offpeak.Checkpoint{}, err
		}
		// What is kept was metered: a lease is charged for no more than both.
		if err := t.must(`UPDATE leases SET metered = $1, kept = $2 WHERE id = $3 AND attempt = $4 AND state = $5`,
			int64(max(l.Metered, metered)), int64(max(l.kept, metered)), string(l.ID), int64(l.Attempt), string(l.State)); err != nil {
			return offpeak.Checkpoint{}, err
		}
		if l.State == offpeak.LeaseFinishing {
			if err := t.closeTerm(l.ID, max(l.Metered, metered), t.now); err != nil {
				return offpeak.Checkpoint{}, err
			}
		}
		t.event(offpeak.Event{Type: "checkpoint.stored", Account: l.Account, Job: j.ID, Attempt: l.Attempt, Lease: l.ID, Node: l.Node, Data: data(map[string]any{"checkpoint": out.ID, "name": c.Name, "tree": c.Tree, "metered_ms": metered})})
		t.audit(byNode(l.Account, l.Node), "checkpoint.add", string(l.ID), "done")
		out.Metered, out.Size, out.At = metered, c.Size, t.now
		return out, nil
	})
}
