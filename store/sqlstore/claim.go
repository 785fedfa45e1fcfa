package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"offpeak"
	"offpeak/store"
)

// Claim writes leases.
func (s *Store) Claim(ctx context.Context, claims []store.Claim) ([]store.Claimed, error) {
	// A gang is done, and refused, as one.
	units := byGang(claims)
	done, err := writeEach(ctx, s, "claim", units, s.claims, lostClaims)
	if err != nil {
		return nil, err
	}
	return slices.Concat(done...), nil
}

// claims makes claims in one transaction.
func (s *Store) claims(t *verb, units [][]store.Claim) ([][]store.Claimed, error) {
	if err := s.loadClaims(t, slices.Concat(units...)); err != nil {
		return nil, err
	}
	out := make([][]store.Claimed, len(units))
	for i, unit := range units {
		out[i] = s.claimedTogether(t, unit)
	}
	return out, nil
}

// claimed makes one claim, of which nothing remains when it is lost.
func (s *Store) claimed(t *verb, c store.Claim) store.Claimed {
	if c.Gang != "" {
		return s.claimedTogether(t, []store.Claim{c})[0]
	}
	change, err := s.claim(t, c)
	if err == nil {
		return store.Claimed{Change: change, Room: t.room(t.rows.jobs[c.Job])}
	}
	return lostClaim(c, err)
}

func lostClaim(c store.Claim, err error) store.Claimed {
	if !errors.Is(err, offpeak.ErrQuota) && !errors.Is(err, offpeak.ErrFunds) && !errors.Is(err, store.ErrAtOnce) {
		err = fmt.Errorf("%w: %w", offpeak.ErrConflict, err)
	}
	return store.Claimed{Err: fmt.Errorf("claim job %s: %w", c.Job, err)}
}

// claim decides on what is loaded, and changes nothing before it has decided.
func (s *Store) claim(t *verb, c store.Claim) (store.Change, error) {
	j, n := t.rows.jobs[c.Job], t.rows.nodes[c.Node]
	switch {
	case j == nil:
		return store.Change{}, fmt.Errorf("it is not there, or %w", store.ErrInHand)
	case j.State != offpeak.JobQueued || j.Attempt != c.Attempt-1:
		return store.Change{}, fmt.Errorf("it is %s with attempt %d", j.State, j.Attempt)
	case j.NotBefore != nil && j.NotBefore.After(t.now):
		return store.Change{}, errors.New("its time has not come")
	case c.Resources.CPU < 0 || c.Resources.Memory < 0 || c.Resources.Disk < 0 || c.Price < 0 || c.Lease == "":
		return store.Change{}, errors.New("the claim makes no sense")
	case t.rows.used[c.Lease]:
		return store.Change{}, errors.New("the lease id was used before")
	case n == nil:
		return store.Change{}, fmt.Errorf("node %s is not there, or %w", c.Node, store.ErrInHand)
	case !n.ready():
		return store.Change{}, fmt.Errorf("node %s is not ready", c.Node)
	case j.gang() != c.Gang:
		return store.Change{}, fmt.Errorf("it is a member of gang %q, the claim is for one of %q", j.gang(), c.Gang)
	}
	if err := j.State.To(offpeak.JobLeased); err != nil {
		return store.Change{}, err
	}
	if most := j.Spec.Requirements.MaxPrice; most != nil && c.Price > *most {
		return store.Change{}, fmt.Errorf("%s is above the job's limit of %s", c.Price, *most)
	}
	if q := t.rows.quotas[j.Account]; q != nil {
		if err := q.refuses(len(c.Resources.Devices)); err != nil {
			return store.Change{}, err
		}
	}
	if q := t.membersOf(j); q != nil && q.live >= q.most {
		return store.Change{}, fmt.Errorf("%w: %d of %d", store.ErrAtOnce, q.live, q.most)
	}
	l := s.newLease(t, c, j, n)
	if l.State == offpeak.LeasePreparing {
		if err := offpeak.LeaseOffered.To(l.State); err != nil {
			return store.Change{}, err
		}
	}
	m, holds, err := s.openMoney(t, l, j, n.account)
	if err != nil {
		return store.Change{}, err
	}
	if err := t.take(n, c); err != nil {
		return store.Change{}, err
	}
	if m != nil {
		if err := t.post(holds...); err != nil {
			return store.Change{}, err
		}
		t.later(addMoney, string(l.ID), string(l.Job), int64(m.Held), micros(m.due), string(data(m.Lease)))
	}
	devices := ""
	if len(c.Resources.Devices) > 0 {
		devices = string(data(c.Resources.Devices))
	}
	t.later(addLease, string(l.ID), string(l.Job), string(l.Account), int64(l.Attempt), string(l.Node), string(l.State), c.Resources.CPU, int64(c.Resources.Memory), int64(c.Resources.Disk), devices, int64(c.Price),
		micros(l.ExpiresAt), span(l.grace), span(l.limit), micros(t.now), micros(l.acceptedAt), string(l.acceptedIncarnation), l.acceptedSeq)
	keep(&t.rows.used, l.ID, true)
	if q := t.rows.quotas[j.Account]; q != nil {
		q.live++
		q.gpus += int64(len(c.Resources.Devices))
	}
	if q := t.membersOf(j); q != nil {
		q.live++
	}
	j.State, j.Attempt, j.Lease, j.Node, j.NotBefore = offpeak.JobLeased, c.Attempt, c.Lease, c.Node, nil
	t.changeJob(j)
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
	return store.Change{Job: j.Job, Lease: &l.Lease, Node: c.Node, Revision: n.revision}, nil
}

// newLease is the lease that a claim asks for.
func (s *Store) newLease(t *verb, c store.Claim, j *job, n *lockedNode) *lease {
	limits := j.Spec.Limits
	l := &lease{grace: limits.ReconnectGrace.Std(), limit: limits.Time.Std(), Lease: offpeak.Lease{
		ID: c.Lease, Job: c.Job, Account: j.Account, Attempt: c.Attempt, Node: c.Node, State: offpeak.LeaseOffered,
		Resources: c.Resources, Price: c.Price, ExpiresAt: t.now.Add(c.OfferFor).Truncate(time.Microsecond), OfferedAt: t.now,
	}}
	if c.Taken != "" && c.Taken == n.incarnation {
		l.State, l.acceptedAt, l.acceptedIncarnation, l.acceptedSeq = offpeak.LeasePreparing, t.now, c.Taken, takenSeq
		l.ExpiresAt = later(l.ExpiresAt, t.now.Add(n.timeout+l.grace).Truncate(time.Microsecond))
	}
	return l
}

// placement keeps what is JSON.
func placement(p json.RawMessage) json.RawMessage {
	if !json.Valid(p) {
		return nil
	}
	return p
}

// take reserves what a claim asks for on its node, if it is free.
func (t *verb) take(n *lockedNode, c store.Claim) error {
	r := c.Resources
	if r.CPU > n.capacity.CPU-n.reserved.CPU || r.Memory > n.capacity.Memory-n.reserved.Memory || r.Disk > n.capacity.Disk-n.reserved.Disk {
		return fmt.Errorf("node %s has not enough free", n.id)
	}
	for i, d := range r.Devices {
		held, listed := t.rows.devices[device{n.id, d}]
		if !listed || held || slices.Contains(r.Devices[:i], d) {
			return fmt.Errorf("device %s is not free", d)
		}
	}
	for _, d := range r.Devices {
		t.rows.devices[device{n.id, d}] = true
		t.later(addDevice, string(c.Lease), string(n.id), string(d))
	}
	n.pending.ready = true
	t.reserve(n, r.CPU, r.Memory, r.Disk)
	return nil
}

// reserve changes what a node holds, which raises its revision.
func (t *verb) reserve(n *lockedNode, cpu int64, memory, disk offpeak.Bytes) {
	for _, r := range []*offpeak.Resources{&n.reserved, &n.pending.reserved} {
		r.CPU, r.Memory, r.Disk = r.CPU+cpu, r.Memory+memory, r.Disk+disk
	}
	n.revision++
	n.pending.raised++
	t.changeNode(n)
}

// release gives back what a lease holds when it leaves the holding states.
// Capacity that had been kept up for leases that no longer fit the inventory
// follows down.
func (t *verb) release(n *lockedNode, l *lease) {
	r := l.Resources
	t.reserve(n, -r.CPU, -r.Memory, -r.Disk)
	n.capacity.CPU = min(n.capacity.CPU, max(n.claimed.CPU, n.reserved.CPU))
	n.capacity.Memory = min(n.capacity.Memory, max(n.claimed.Memory, n.reserved.Memory))
	n.capacity.Disk = min(n.capacity.Disk, max(n.claimed.Disk, n.reserved.Disk))
	for _, d := range r.Devices {
		t.later(freeDevice, string(l.ID), string(d))
		if _, listed := t.rows.devices[device{n.id, d}]; listed {
			t.rows.devices[device{n.id, d}] = false
		}
	}
}

// touched raises a node's revision because what it should hold changed.
func (t *verb) touched(n *lockedNode) { t.reserve(n, 0, 0, 0) }

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
	c := store.Change{Job: j.Job, Lease: l.now()}
	if l.Stop != "" {
		return c, nil
	}
	n, err := t.lockedNode(l.Node)
	if err != nil {
		return store.Change{}, err
	}
	l.Stop = reason
	t.changeLease(l)
	t.touched(n)
	t.event(offpeak.Event{Type: "lease.stopping", Account: l.Account, Job: l.Job, Attempt: l.Attempt, Lease: l.ID, Node: l.Node, Reason: reason, Data: outbid(l.Outbid)})
	t.audit(byHub(), "lease.stop", string(l.ID), string(reason))
	c.Lease, c.Node, c.Revision = l.now(), l.Node, n.revision
	return c, nil
}

func outbid(to *offpeak.Outbid) json.RawMessage {
	if to == nil {
		return nil
	}
	return data(to)
}

// Outbid asks a running lease to go in favour of a job that bid more.
func (s *Store) Outbid(ctx context.Context, id offpeak.LeaseID, to offpeak.Outbid) (store.Change, error) {
	if to.Job == "" || to.Price < 0 || to.Price > offpeak.MaxPrice {
		return store.Change{}, &offpeak.FieldError{Field: "outbid", Value: string(to.Job), Rule: "names a job and what it pays"}
	}
	return write(ctx, s, "outbid lease "+string(id), func(t *verb) (store.Change, error) {
		l, err := t.lockLease(id)
		if err != nil {
			return store.Change{}, err
		}
		j, err := s.job(t, "", l.Job)
		if err != nil {
			return store.Change{}, err
		}
		switch {
		case l.State.Terminal():
			return store.Change{}, &offpeak.StaleLeaseError{Lease: id, Attempt: j.Attempt, State: l.State}
		case l.State != offpeak.LeaseRunning:
			return store.Change{}, fmt.Errorf("it is %s: %w", l.State, offpeak.ErrConflict)
		case l.Stop != "":
			return store.Change{}, fmt.Errorf("it is asked to go already (%s): %w", l.Stop, offpeak.ErrConflict)
		}
		l.Outbid, j.OutbidAt = &to, &t.now
		t.later(outbidLease, string(to.Job), int64(to.Price), string(id))
		t.later(outbidJob, micros(t.now), string(j.ID))
		return s.stop(t, l, j, offpeak.EndOutbid)
	})
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

// dueLease is a lease that has run out, as it was before its node was locked.
type dueLease struct {
	id   offpeak.LeaseID
	node offpeak.NodeID
}

// Expire ends leases whose expiry is not after asOf.
func (s *Store) Expire(ctx context.Context, asOf time.Time, limit int) ([]store.Change, error) {
	// Most ticks find nothing: look before taking the writer's time.
	due, err := read(ctx, s, "expire leases", func(t *verb) (due []dueLease, err error) {
		err = t.each(`SELECT id, node FROM leases WHERE `+liveLease+` AND expires_at <= $1 ORDER BY expires_at, id LIMIT $2`, []any{micros(earlier(asOf, t.now)), int64(limit)}, func(r Rows) error {
			var l dueLease
			err := r.Scan(&l.id, &l.node)
			due = append(due, l)
			return err
		})
		return due, err
	})
	if err != nil || len(due) == 0 {
		return nil, err
	}
	var late error
	ended, err := writeEach(ctx, s, "expire leases", due, func(t *verb, due []dueLease) ([]answer[*store.Change], error) {
		if ago := t.now.Sub(asOf); ago > store.ExpireWithin {
			late = fmt.Errorf("expire leases: asked %s ago: %w", ago, offpeak.ErrConflict)
			return make([]answer[*store.Change], len(due)), nil
		}
		return s.expire(t, asOf, due)
	}, refuse)
	if err != nil {
		return nil, err
	}
	var out []store.Change
	for i, e := range ended {
		if e.v != nil {
			out = append(out, *e.v)
		}
		if e.err != nil && err == nil {
			err = &store.UnendedError{Lease: due[i].id, Cause: e.err}
		}
	}
	if late != nil {
		err = late
	}
	return out, err
}

// expire ends those of the leases that are still due, in one transaction.
func (s *Store) expire(t *verb, asOf time.Time, due []dueLease) ([]answer[*store.Change], error) {
	out := make([]answer[*store.Change], len(due))
	at := make(map[offpeak.LeaseID]int, len(due))
	ids, nodes := make([]string, len(due)), make([]offpeak.NodeID, len(due))
	for i, l := range due {
		at[l.id], ids[i], nodes[i] = i, string(l.id), l.node
	}
	if err := t.loadNodes(forUpdate, nodes...); err != nil {
		return nil, err
	}
	// Another monitor, or a heartbeat, may have been there before the lock.
	list, err := t.leases(liveLease+` AND expires_at <= $1 AND id = ANY($2) ORDER BY expires_at, id`, micros(earlier(asOf, t.now)), ids)
	if err != nil {
		return nil, err
	}
	if err := s.loadJobs(t, forUpdate, jobsOf(list)); err != nil {
		return nil, err
	}
	if err := t.loadMoney(list, nil); err != nil {
		return nil, err
	}
	for _, l := range list {
		reason := offpeak.EndNodeLost
		if l.State == offpeak.LeaseOffered || l.unheard() {
			reason = offpeak.EndOfferLapsed
		}
		c, err := s.endNow(t, l, ending{reason: reason})
		if err != nil {
			return nil, err
		}
		out[at[l.ID]].v = &c
	}
	return out, nil
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
			t.closeTerm(l.ID, max(l.Metered, metered))
		}
		t.event(offpeak.Event{Type: "checkpoint.stored", Account: l.Account, Job: j.ID, Attempt: l.Attempt, Lease: l.ID, Node: l.Node, Data: data(map[string]any{"checkpoint": out.ID, "name": c.Name, "tree": c.Tree, "metered_ms": metered})})
		t.audit(byNode(l.Account, l.Node), "checkpoint.add", string(l.ID), "done")
		out.Metered, out.Size, out.At = metered, c.Size, t.now
		return out, nil
	})
}
