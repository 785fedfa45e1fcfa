package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"offpeak"
	"offpeak/store"
)

// byGang puts claims of one gang, which stand side by side, together.
func byGang(claims []store.Claim) (units [][]store.Claim) {
	for i := 0; i < len(claims); {
		n := i + 1
		for claims[i].Gang != "" && n < len(claims) && claims[n].Gang == claims[i].Gang {
			n++
		}
		units = append(units, claims[i:n:n])
		i = n
	}
	return units
}

func lostClaims(unit []store.Claim, err error) []store.Claimed {
	out := make([]store.Claimed, len(unit))
	for i, c := range unit {
		out[i] = lostClaim(c, err)
	}
	return out
}

// loadGangs locks the gangs of which members are claimed, and counts who has not
// ended. Who is claimed is locked: nobody else of them moves meanwhile.
func (t *verb) loadGangs(claims []store.Claim) error {
	var gangs []offpeak.GroupID
	for _, c := range claims {
		if c.Gang != "" && !slices.Contains(gangs, c.Gang) {
			gangs = append(gangs, c.Gang)
		}
	}
	if len(gangs) == 0 {
		return nil
	}
	slices.Sort(gangs)
	where, arg := oneOf("id", gangs)
	if err := t.each(`SELECT id, written = members AND cancelled_at = 0 AND broken <> 'gang_failed' FROM job_groups WHERE gang > 0 AND `+where+` ORDER BY id`+forUpdate, []any{arg}, func(r Rows) error {
		var id offpeak.GroupID
		var may bool
		err := r.Scan(&id, &may)
		if may {
			keep(&t.rows.gangs, id, 0)
		}
		return err
	}); err != nil {
		return err
	}
	where, arg = oneOf("grp", gangs)
	return t.each(`SELECT grp, count(*) FROM jobs WHERE `+openMember+` AND `+where+` GROUP BY grp`, []any{arg}, func(r Rows) error {
		var id offpeak.GroupID
		var open int
		err := r.Scan(&id, &open)
		if _, may := t.rows.gangs[id]; may {
			t.rows.gangs[id] = open
		}
		return err
	})
}

// claimedTogether makes the claims of one gang, or one claim. Nothing remains of any
// when one is lost: all are answered as that one.
func (s *Store) claimedTogether(t *verb, unit []store.Claim) []store.Claimed {
	gang := unit[0].Gang
	if gang == "" {
		return []store.Claimed{s.claimed(t, unit[0])}
	}
	if err := t.wholeGang(gang, unit); err != nil {
		return lostClaims(unit, err)
	}
	out := make([]store.Claimed, len(unit))
	if err := t.allOrNone(unit, func() error {
		for i, c := range unit {
			change, err := s.claim(t, c)
			if err != nil {
				return fmt.Errorf("member %s: %w", c.Job, err)
			}
			out[i].Change = change
		}
		return nil
	}); err != nil {
		return lostClaims(unit, err)
	}
	return out
}

func (t *verb) wholeGang(gang offpeak.GroupID, unit []store.Claim) error {
	open, may := t.rows.gangs[gang]
	switch {
	case !may:
		return fmt.Errorf("gang %s is not to be claimed any more", gang)
	case open != len(unit):
		return fmt.Errorf("gang %s has %d members that have not ended, the claims are for %d", gang, open, len(unit))
	}
	nodes, jobs := map[offpeak.NodeID]bool{}, map[offpeak.JobID]bool{}
	for _, c := range unit {
		nodes[c.Node], jobs[c.Job] = true, true
	}
	if len(nodes) < len(unit) || len(jobs) < len(unit) {
		return errors.New("each member of a gang has a node of its own")
	}
	return nil
}

// allOrNone runs fn so that an error undoes what fn did to the jobs, nodes and accounts
// of claims: others of the batch stand.
func (t *verb) allOrNone(unit []store.Claim, fn func() error) error {
	jobs, nodes, quotas := make([]job, len(unit)), make([]lockedNode, len(unit)), map[offpeak.AccountID]quota{}
	for i, c := range unit {
		j, n := t.rows.jobs[c.Job], t.rows.nodes[c.Node]
		if j == nil || n == nil {
			return fmt.Errorf("%s or its node %s is not there, or %w", c.Job, c.Node, store.ErrInHand)
		}
		jobs[i], nodes[i] = *j, *n
		if q := t.rows.quotas[j.Account]; q != nil {
			quotas[j.Account] = *q
		}
	}
	writes, devices, used := t.writes, maps.Clone(t.rows.devices), maps.Clone(t.rows.used)
	err := fn()
	if err == nil {
		return nil
	}
	for i, c := range unit {
		*t.rows.jobs[c.Job], *t.rows.nodes[c.Node] = jobs[i], nodes[i]
	}
	for id, q := range quotas {
		*t.rows.quotas[id] = q
	}
	t.writes, t.rows.devices, t.rows.used = writes, devices, used
	t.rows.posted = nil // summed anew: it counts what is undone
	return err
}

// gangBroken notes in the row of a member's gang that it ended or was queued again,
// and returns that gang: the others can't go on. "" where there is nothing to do.
func (t *verb) gangBroken(j *job) offpeak.GroupID {
	gang := j.gang()
	switch {
	case gang == "" || j.State == offpeak.JobSucceeded:
		return ""
	case j.State == offpeak.JobQueued:
		t.later(breakGang, string(gang))
	case j.Reason != offpeak.EndGangFailed:
		what := "has failed: " + string(j.Reason)
		if j.State == offpeak.JobCancelled {
			what = "was cancelled"
		}
		t.later(failGang, fmt.Sprintf("member %d %s", j.Index, what), string(gang))
	}
	return gang
}

// mended is what MendGang did.
type mended struct {
	changes []store.Change
	more    bool
}

// MendGang has the members of a broken gang leave their nodes, or end.
func (s *Store) MendGang(ctx context.Context, id offpeak.GroupID) ([]store.Change, bool, error) {
	out, err := write(ctx, s, "mend gang "+string(id), func(t *verb) (mended, error) { return s.mend(t, id) })
	return out.changes, out.more, err
}

func (s *Store) mend(t *verb, id offpeak.GroupID) (out mended, err error) {
	lease := map[offpeak.JobID]offpeak.LeaseID{}
	var jobs []offpeak.JobID
	var nodes []offpeak.NodeID
	if err := t.each(`SELECT id, lease, node FROM jobs WHERE `+openMember+` AND grp = $1 ORDER BY idx`, []any{string(id)}, func(r Rows) error {
		var j offpeak.JobID
		var l offpeak.LeaseID
		var n offpeak.NodeID
		err := r.Scan(&j, &l, &n)
		lease[j], jobs = l, append(jobs, j)
		if l != "" {
			nodes = append(nodes, n)
		}
		return err
	}); err != nil {
		return out, err
	}
	// Nodes before jobs before their group, as everybody locks them.
	if err := t.loadNodes(forUpdate, nodes...); err != nil {
		return out, err
	}
	if err := s.loadJobs(t, forUpdate, jobs); err != nil {
		return out, err
	}
	g, err := t.groupRow("", id, forUpdate)
	if err != nil || g.broken == "" {
		return out, err
	}
	if !g.cancelledAt.IsZero() {
		// CancelMembers ends all of them.
		if g.broken == offpeak.EndGangBroken {
			g.broken = ""
			t.putGroup(g)
		}
		return out, nil
	}
	open, queued, live := 0, 0, 0
	for _, id := range jobs {
		j := t.rows.jobs[id]
		if j == nil || j.Lease != lease[id] {
			out.more = true // it moved meanwhile; the next look finds it where it is
			return out, nil
		}
		switch {
		case j.State.Terminal():
			continue
		case j.State == offpeak.JobQueued:
			queued++
		case j.State.Live():
			live++
		}
		open++
	}
	fails := g.broken == offpeak.EndGangFailed
	if fails && open == 0 || !fails && (queued == 0 || live == 0) {
		// All have ended, or are where they may start again together.
		g.todo = g.written < g.members
		if !fails {
			g.broken = ""
		}
		t.putGroup(g)
		return out, nil
	}
	for _, id := range jobs {
		c, did, err := s.leave(t, t.rows.jobs[id], g)
		if err != nil {
			return out, fmt.Errorf("%s: %w", id, err)
		}
		if did {
			out.changes = append(out.changes, c)
		}
	}
	return out, nil
}

// leave has a member of a broken gang leave its node; where the gang has failed, end.
// What is finishing holds nothing any more, and ends by itself.
func (s *Store) leave(t *verb, j *job, g *jobGroup) (c store.Change, did bool, err error) {
	fails := g.broken == offpeak.EndGangFailed
	switch {
	case j.State.Terminal():
		return c, false, nil
	case !j.State.Live():
		if !fails {
			return c, false, nil
		}
		if err := j.State.To(offpeak.JobFailed); err != nil {
			return c, false, err
		}
		j.State, j.Reason, j.Detail, j.ExitCode, j.Signal, j.NotBefore, j.EndedAt = offpeak.JobFailed, g.broken, g.detail, nil, "", nil, &t.now
		t.changeJob(j)
		t.event(offpeak.Event{Type: "job.failed", Account: j.Account, Job: j.ID, Attempt: j.Attempt, Reason: g.broken})
		return store.Change{Job: j.Job, Freed: t.ends(j)}, true, nil
	}
	l, err := t.lease(j.Lease)
	if err != nil {
		return c, false, err
	}
	switch {
	case l.State == offpeak.LeaseOffered:
		c, err = s.end(t, l, j, ending{reason: g.broken, detail: g.detail})
	case l.State == offpeak.LeaseFinishing || l.Stop != "":
		return c, false, nil
	default:
		c, err = s.stop(t, l, j, g.broken)
	}
	return c, err == nil, err
}

// Gangs returns gangs as they stand.
func (s *Store) Gangs(ctx context.Context, ids []offpeak.GroupID) (map[offpeak.GroupID]store.Gang, error) {
	r := newQueueReader()
	out := make(map[offpeak.GroupID]store.Gang, len(ids))
	open := make(map[offpeak.GroupID]int, len(ids))
	isGroup, arg := oneOf("id", ids)
	ofGroup, _ := oneOf("j.grp", ids)
	_, err := s.db.Glance(ctx,
		Look{selectQueued + ` AND g.gang > 0 AND ` + ofGroup + ` ORDER BY j.grp, j.idx`, []any{arg}, func(rows Rows) error {
			q, err := r.scan(rows)
			g := out[q.Gang]
			g.Queued = append(g.Queued, q)
			out[q.Gang] = g
			return err
		}},
		Look{`SELECT id, (SELECT count(*) FROM jobs WHERE ` + openMember + ` AND jobs.grp = job_groups.id) FROM job_groups
			WHERE gang > 0 AND written = members AND cancelled_at = 0 AND broken <> 'gang_failed' AND ` + isGroup, []any{arg}, func(rows Rows) error {
			var id offpeak.GroupID
			var n int
			err := rows.Scan(&id, &n)
			open[id] = n
			return err
		}})
	if err != nil {
		return nil, fmt.Errorf("read gangs: %w", err)
	}
	for id, g := range out {
		g.Whole = open[id] == len(g.Queued)
		out[id] = g
	}
	return out, nil
}
