package sqlstore

import (
	"fmt"
	"slices"

	"offpeak"
	"offpeak/store"
)

// openMember is the condition that a member has not ended, in a form that goes through
// the members' index by state: whoever ended is not looked at.
const openMember = `grp <> id AND state IN ('blocked', 'queued', 'leased', 'running', 'cancelling')`

// loadWaitedFor locks jobs and arrays that are to be waited for.
func (s *Store) loadWaitedFor(t *verb, ids []offpeak.JobID) error {
	jobs, groups := apartByKind(ids)
	if err := s.loadJobs(t, forUpdate, jobs); err != nil || len(groups) == 0 {
		return err
	}
	return s.loadAwaited(t, groups)
}

// loadParents locks what is to be waited for.
func (s *Store) loadParents(t *verb, list []offpeak.After) error {
	ids := make([]offpeak.JobID, len(list))
	for i, a := range list {
		ids[i] = a.Job
	}
	return s.loadWaitedFor(t, ids)
}

// loadWaiting locks jobs and arrays that wait, and keeps them.
func (s *Store) loadWaiting(t *verb, ids []offpeak.JobID) error {
	jobs, groups := apartByKind(ids)
	if err := s.loadJobs(t, forUpdate, jobs); err != nil {
		return err
	}
	return t.lockGroups(groups)
}

// apartByKind tells jobs from arrays, in the order of their ids and each once.
func apartByKind(ids []offpeak.JobID) (jobs []offpeak.JobID, groups []offpeak.GroupID) {
	for _, id := range ids {
		if g := offpeak.GroupID(id); g.Valid() {
			groups = append(groups, g)
		} else {
			jobs = append(jobs, id)
		}
	}
	slices.Sort(jobs)
	slices.Sort(groups)
	return slices.Compact(jobs), slices.Compact(groups)
}

// lockGroups locks arrays and keeps them.
func (t *verb) lockGroups(ids []offpeak.GroupID) error {
	if len(ids) == 0 {
		return nil
	}
	where, arg := oneOf("id", ids)
	return t.each(`SELECT `+groupColumns+` FROM job_groups WHERE `+where+` ORDER BY id`+forUpdate, []any{arg}, func(r Rows) error {
		g := &jobGroup{}
		err := g.scan(r)
		keep(&t.rows.groups, g.id, g)
		return err
	})
}

// loadAwaited has arrays know that others wait for their ends, as job rows do: all of
// their members that are open, and those that are yet to be written. An end that comes
// later tells who waits, one that came before is seen here.
func (s *Store) loadAwaited(t *verb, ids []offpeak.GroupID) error {
	var unaware []offpeak.GroupID
	where, arg := oneOf("id", ids)
	if err := t.each(`SELECT id FROM job_groups WHERE awaited = 0 AND `+where, []any{arg}, func(r Rows) error {
		var id offpeak.GroupID
		err := r.Scan(&id)
		unaware = append(unaware, id)
		return err
	}); err != nil {
		return err
	}
	if len(unaware) > 0 {
		// Members before their array, as everybody locks them.
		if err := t.Lock(`SELECT 1 FROM jobs WHERE `+openMember+` AND grp = ANY($1) ORDER BY id`+forUpdate, texts(unaware)); err != nil {
			return err
		}
	}
	if err := t.lockGroups(ids); err != nil || len(unaware) == 0 {
		return err
	}
	// Only then it is known that no more are written meanwhile.
	if _, err := t.Exec(`UPDATE job_groups SET awaited = 1 WHERE awaited = 0 AND id = ANY($1)`, texts(unaware)); err != nil {
		return err
	}
	_, err := t.Exec(`UPDATE jobs SET awaited = 1 WHERE awaited = 0 AND `+openMember+` AND grp = ANY($1)`, texts(unaware))
	return err
}

// parent is a job, or an array, of an account that is to be waited for, as it stands.
func (s *Store) parent(t *verb, account offpeak.AccountID, id offpeak.JobID) (*ended, error) {
	if g := t.rows.groups[offpeak.GroupID(id)]; g != nil && g.account == account {
		e, err := t.whole(g)
		if err != nil || g.fresh {
			return e, err // its spec is yet to be written
		}
		spec, err := s.spec(t, g.spec)
		e.name = spec.Name
		return e, err
	}
	p := t.rows.jobs[id]
	if p == nil {
		p = t.rows.added[id]
	}
	if p == nil || p.Account != account {
		return nil, offpeak.ErrNotFound
	}
	return endedJob(p, nil), nil
}

// whole counts the members of an array that is locked.
func (t *verb) whole(g *jobGroup) (*ended, error) {
	e := &ended{id: string(g.id), group: g, counts: map[offpeak.JobState]int{}}
	if g.fresh {
		e.state, _ = g.rest()
		e.counts[e.state] = g.members
		return e, nil
	}
	if left := g.members - g.written; left > 0 {
		state, _ := g.rest()
		e.counts[state] = left
	}
	if err := t.each(`SELECT state, count(*) FROM jobs WHERE grp <> id AND grp = $1 GROUP BY state`, []any{string(g.id)}, func(r Rows) error {
		var state offpeak.JobState
		var n int
		err := r.Scan(&state, &n)
		e.counts[state] += n
		return err
	}); err != nil {
		return nil, err
	}
	// What is decided is yet to be written.
	for _, j := range t.rows.jobs {
		if j.array != nil && j.array.id == g.id && j.State != j.was.state {
			e.counts[j.was.state]--
			e.counts[j.State]++
		}
	}
	all := 0
	for state, n := range e.counts {
		if all += n; n == 0 {
			delete(e.counts, state)
		}
	}
	if all < g.members {
		return nil, offpeak.ErrNotFound // it is being pruned
	}
	e.state = offpeak.GroupState(e.counts)
	return e, nil
}

// groupWaits has a new array wait for others.
func (s *Store) groupWaits(t *verb, g *jobGroup, list []offpeak.After) ([]offpeak.Awaited, error) {
	w := &waiter{id: string(g.id), account: g.account, again: g.retryOf != ""}
	if err := s.wait(t, w, list); err != nil {
		return nil, err
	}
	g.parents, g.waits = len(list), w.waits
	if w.failed != "" {
		g.cancelledAt, g.reason, g.detail, g.todo = t.now, offpeak.EndDependencyFailed, w.failed, true
	}
	return w.after, nil
}

// toldGroup is what the end of p means for an array.
func (t *verb) toldGroup(p *ended, g *jobGroup, anyEnd bool) {
	if g.waits > 0 {
		g.waits--
	}
	if g.cancelledAt.IsZero() {
		switch {
		case !anyEnd && p.state != offpeak.JobSucceeded:
			g.cancelledAt, g.reason, g.detail, g.todo = t.now, offpeak.EndDependencyFailed, p.called()+" "+p.fared(), true
			p.freed.Fill = true
		case g.waits == 0:
			g.todo, p.freed.Fill = true, true
		}
	}
	t.putGroup(g)
}

// wholes adds to jobs that ended the arrays that ended with them.
func (s *Store) wholes(t *verb, list []*ended) ([]*ended, error) {
	last := map[offpeak.GroupID]*ended{}
	var ids []offpeak.GroupID
	for _, e := range list {
		if e.group == nil && e.job.array != nil {
			if last[e.job.array.id] == nil {
				ids = append(ids, e.job.array.id)
			}
			last[e.job.array.id] = e
		}
	}
	slices.Sort(ids)
	if err := t.lockGroups(ids); err != nil {
		return nil, err
	}
	for _, id := range ids {
		g, e := t.rows.groups[id], last[id]
		if g == nil || !g.awaited {
			continue
		}
		if state, _ := g.rest(); g.written < g.members && !state.Terminal() {
			continue
		}
		var ending []string
		for _, j := range t.rows.jobs {
			if j.array != nil && j.array.id == id && j.State.Terminal() {
				ending = append(ending, string(j.ID))
			}
		}
		open, err := t.exists(`SELECT 1 FROM jobs WHERE `+openMember+` AND grp = $1 AND NOT id = ANY($2) LIMIT 1`, string(id), ending)
		if err != nil {
			return nil, err
		}
		if open {
			continue
		}
		whole, err := t.whole(g)
		if err != nil {
			return nil, err
		}
		whole.job, whole.name, whole.freed = e.job, e.job.Spec.Name, e.freed
		list = append(list, whole)
	}
	return list, nil
}

// wroteOff has those that wait for an array told of its end, if the members that were
// just written off were the last that were open.
func (s *Store) wroteOff(t *verb, g *jobGroup) (*store.Freed, error) {
	if err := t.put(s.cfg); err != nil {
		return nil, err
	}
	last := g.id.Member(g.Indexes[len(g.Indexes)-1].Last)
	if err := s.loadJobs(t, forUpdate, []offpeak.JobID{last}); err != nil {
		return nil, err
	}
	if j := t.rows.jobs[last]; j != nil {
		return t.ends(j), nil
	}
	return nil, nil
}

// repeated refuses to wait for a retry of an array that left members out which did not
// succeed: they were to be waited for too.
func (t *verb) repeated(g *jobGroup) error {
	newer := []*jobGroup{g}
	for id := g.retryOf; id != "" && len(newer) < 100; {
		older, err := t.groupRow(g.account, id, "")
		if err != nil {
			return notThere(err) // it was pruned
		}
		left := 0
		if err := t.each(`SELECT idx FROM jobs WHERE grp <> id AND grp = $1 AND state <> 'succeeded'`, []any{string(id)}, func(r Rows) error {
			var index int
			err := r.Scan(&index)
			if !slices.ContainsFunc(newer, func(n *jobGroup) bool { _, has := n.Indexes.Place(index); return has }) {
				left++
			}
			return err
		}); err != nil {
			return err
		}
		if left > 0 {
			return fmt.Errorf("array %s has %d members that did not succeed and that %s does not repeat: retry those of %s that failed first: %w", id, left, g.id, id, offpeak.ErrConflict)
		}
		newer, id = append(newer, older), older.retryOf
	}
	return nil
}

// parts lays the outputs of an array's members out for what waits for it, each in a
// folder of its index; of a member that a retry left out, those it had before.
func (t *verb) parts(waiter, folder string, g *jobGroup) error {
	of := []offpeak.GroupID{g.id}
	for older := g.retryOf; older != "" && len(of) < 100; {
		row, err := t.groupRow(g.account, older, "")
		if err != nil {
			if notThere(err) == nil {
				break // it was pruned
			}
			return err
		}
		of, older = append(of, older), row.retryOf
	}
	for _, id := range of {
		t.later(addParts, waiter, folder, string(id))
	}
	return nil
}

// newestArray is the newest retry of an array that a job waited for, in a query over
// job_after.
const newestArray = `WITH RECURSIVE tries (id, n) AS (SELECT parent, 0 UNION ALL SELECT g.id, n + 1 FROM tries JOIN job_groups g ON g.retry_of = tries.id AND g.account = job_after.account WHERE n < 1000)
	SELECT id FROM tries ORDER BY id DESC LIMIT 1`

// retriedArray is what an array that is repeated waited for.
func (t *verb) retriedArray(account offpeak.AccountID, id offpeak.GroupID) ([]offpeak.After, error) {
	g, err := t.groupRow(account, id, "")
	if err != nil || g.parents == 0 {
		return nil, err
	}
	after, err := t.retried([]offpeak.JobID{offpeak.JobID(id)})
	return after[offpeak.JobID(id)], err
}

// nameWholes completes arrays that are waited for by their names, and how they stand.
func (s *Store) nameWholes(t *verb, lists map[string][]offpeak.Awaited) error {
	seen := map[offpeak.GroupID]offpeak.Group{}
	for _, list := range lists {
		for i := range list {
			id := offpeak.GroupID(list[i].Job)
			if !id.Valid() {
				continue
			}
			g, read := seen[id]
			if !read {
				row, err := t.groupRow("", id, "")
				switch {
				case err == nil:
					row.parents = 0 // what it waits for itself is not asked
					if g, err = s.counted(t, row); err != nil {
						return err
					}
				case notThere(err) != nil:
					return err
				}
				seen[id] = g
			}
			if list[i].Name = g.Spec.Name; list[i].State == "" {
				list[i].State = g.State
			}
		}
	}
	return nil
}
