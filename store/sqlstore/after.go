package sqlstore

import (
	"context"
	"fmt"
	"slices"

	"offpeak"
	"offpeak/store"
)

// mostFreed bounds the jobs that one transaction tells of ends. Free tells the rest.
const mostFreed = 256

// SubmitAll stores jobs all or none.
func (s *Store) SubmitAll(ctx context.Context, op store.Op, jobs []store.NewJob) ([]offpeak.Job, error) {
	list := make([]submission, len(jobs))
	ids := make([]offpeak.JobID, len(jobs))
	accounts := make([]offpeak.AccountID, len(jobs))
	for i, n := range jobs {
		sub, err := newSubmission(op, n)
		if err != nil {
			return nil, fmt.Errorf("submit jobs: %w", err)
		}
		list[i], ids[i], accounts[i] = sub, n.ID, n.Account
	}
	for i := range list {
		list[i].awaited = list[i].awaited || slices.ContainsFunc(jobs, func(n store.NewJob) bool {
			return slices.ContainsFunc(n.After, func(a offpeak.After) bool { return a.Job == list[i].job.ID })
		})
	}
	return write(ctx, s, "submit jobs", func(t *verb) ([]offpeak.Job, error) {
		if err := s.loadRelated(t, list); err != nil {
			return nil, err
		}
		open, err := t.openJobs(slices.Clone(accounts))
		if err != nil {
			return nil, err
		}
		made, first, err := once(t, op, "job.submit_all", first(jobs), func() ([]offpeak.JobID, error) {
			for _, sub := range list {
				add := s.addJob
				if offpeak.GroupID(sub.job.ID).Valid() {
					add = s.addStep
				}
				if err := add(t, sub, open[sub.job.Account]); err != nil {
					return nil, fmt.Errorf("job %d of %d: %w", sub.job.Index+1, len(list), err)
				}
			}
			return ids, nil
		})
		if err != nil {
			return nil, err
		}
		t.sortSpecs()
		out := make([]offpeak.Job, len(made))
		for i, id := range made {
			if g := offpeak.GroupID(id); g.Valid() {
				if out[i], err = s.step(t, g, first); err != nil {
					return nil, err
				}
			} else if first {
				out[i] = t.rows.added[id].Job
			} else if out[i], err = s.submitted(t, id); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

func first(jobs []store.NewJob) string {
	if len(jobs) == 0 {
		return ""
	}
	return or(jobs[0].Group, string(jobs[0].ID))
}

// loadRelated locks the jobs that submissions repeat or wait for.
func (s *Store) loadRelated(t *verb, list []submission) error {
	var ids []offpeak.JobID
	var repeated []offpeak.JobID
	for _, sub := range list {
		if sub.job.RetryOf != "" {
			repeated = append(repeated, sub.job.RetryOf)
		}
		for _, a := range sub.job.After {
			ids = append(ids, a.Job)
		}
	}
	after, err := t.retried(repeated)
	if err != nil {
		return err
	}
	// One that is submitted with it is newer than any.
	newer := make(map[offpeak.JobID]offpeak.JobID, len(repeated))
	for i := range list {
		of := list[i].job.RetryOf
		if of == "" {
			continue
		}
		list[i].after = after[of]
		for k, a := range list[i].after {
			if n, together := newer[a.Job]; together {
				list[i].after[k].Job = n
			} else {
				ids = append(ids, a.Job)
			}
		}
		if list[i].job.Group != "" {
			newer[of] = list[i].job.ID
		}
	}
	return s.loadWaitedFor(t, append(ids, repeated...))
}

// retried reads what jobs that are repeated waited for: the newest retry of each, but
// for one whose end counted as it was.
func (t *verb) retried(jobs []offpeak.JobID) (map[offpeak.JobID][]offpeak.After, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	out := map[offpeak.JobID][]offpeak.After{}
	where, arg := oneOf("job", jobs)
	return out, t.each(`SELECT job, any_end, folder, CASE WHEN any_end = 1 OR told = 'succeeded' THEN parent WHEN parent LIKE 'group_%' THEN COALESCE((`+newestArray+`), parent) ELSE COALESCE((
			WITH RECURSIVE tries (id, n) AS (SELECT parent, 0 UNION ALL SELECT j.id, n + 1 FROM tries JOIN jobs j ON j.retry_of = tries.id AND j.account = job_after.account WHERE n < 1000)
			SELECT t.id FROM tries t JOIN jobs j ON j.id = t.id ORDER BY j.seq DESC LIMIT 1), parent) END
		FROM job_after WHERE n >= 0 AND `+where+` ORDER BY job, n`, []any{arg}, func(r Rows) error {
		var job offpeak.JobID
		var a offpeak.After
		var anyEnd int64
		err := r.Scan(&job, &anyEnd, &a.Into, &a.Job)
		a.Any = anyEnd != 0
		out[job] = append(out[job], a)
		return err
	})
}

// waiter is a job or an array that is to wait for others.
type waiter struct {
	id      string
	account offpeak.AccountID
	// again: it repeats another one. What that one waited for is repeated first.
	again bool
	// waits is for how many it waits; failed says which one makes that it can't begin.
	waits  int
	failed string
	after  []offpeak.Awaited
}

// waitFor has a new job wait for others, in so far as they have not ended.
func (s *Store) waitFor(t *verb, j *job, list []offpeak.After) error {
	w := &waiter{id: string(j.ID), account: j.Account, again: j.RetryOf != ""}
	if err := s.wait(t, w, list); err != nil {
		return err
	}
	j.waits, j.parents, j.After = w.waits, len(list), w.after
	switch {
	case w.failed != "":
		j.State, j.Reason, j.Detail, j.EndedAt = offpeak.JobFailed, offpeak.EndDependencyFailed, w.failed, &t.now
	case w.waits > 0:
		j.State = offpeak.JobBlocked
	}
	return nil
}

func (s *Store) wait(t *verb, w *waiter, list []offpeak.After) error {
	for i, a := range list {
		p, err := s.parent(t, w.account, a.Job)
		if fatal(err) {
			return err
		}
		if err != nil {
			return &offpeak.FieldError{Field: fmt.Sprintf("after[%d].job", i), Value: string(a.Job), Rule: fmt.Sprintf("names a job of the account: there is no %s", a.Job)}
		}
		if g := p.group; g != nil && a.Into != "" && g.members > offpeak.MaxParts {
			return &offpeak.FieldError{Field: fmt.Sprintf("after[%d].into", i), Value: a.Into, Rule: fmt.Sprintf("is for arrays of at most %d members, whose outputs fit into one job: this one has %d", offpeak.MaxParts, g.members)}
		}
		if w.again && p.group != nil && !a.Any {
			if err := t.repeated(p.group); err != nil {
				return err
			}
		}
		var told offpeak.JobState
		var output offpeak.Hash
		switch {
		case !p.state.Terminal():
			w.waits++
			if p.job != nil {
				t.later(awaitJob, p.id)
			}
		case a.Any || p.state == offpeak.JobSucceeded:
			told = p.state
		case w.again:
			return fmt.Errorf("%s, which it waits for, %s: retry that one first: %w", p.called(), p.fared(), offpeak.ErrConflict)
		default:
			if told = p.state; w.failed == "" {
				w.failed = p.called() + " " + p.fared()
			}
		}
		if told != "" && a.Into != "" {
			output = p.output
		}
		t.later(addAfter, w.id, string(w.account), int64(i), p.id, number(a.Any), a.Into, string(told), string(output))
		if told != "" && a.Into != "" && p.group != nil {
			if err := t.parts(w.id, a.Into, p.group); err != nil {
				return err
			}
		}
		w.after = append(w.after, offpeak.Awaited{Job: a.Job, Name: p.name, Any: a.Any, Into: a.Into, State: p.state})
	}
	return nil
}

// ended is a job, or an array as a whole, that ended and that others wait for.
type ended struct {
	id, name string
	state    offpeak.JobState
	output   offpeak.Hash
	// job is the one that ended, of an array the last of it.
	job *job
	// group is set where this is about the whole; counts are its members then.
	group  *jobGroup
	counts map[offpeak.JobState]int
	// freed is where it is noted what that meant for others.
	freed *store.Freed
}

func endedJob(j *job, freed *store.Freed) *ended {
	return &ended{id: string(j.ID), name: j.Spec.Name, state: j.State, output: j.Output, job: j, freed: freed}
}

// called names it for people.
func (p *ended) called() string {
	kind, name := "job ", ""
	if p.group != nil {
		kind = "array "
	}
	if p.name != "" {
		name = " (" + p.name + ")"
	}
	return kind + p.id + name
}

// fared says how it ended.
func (p *ended) fared() string {
	switch {
	case p.state == offpeak.JobCancelled:
		return "was cancelled"
	case p.counts[offpeak.JobFailed] > 0 && p.group.members > 1:
		return fmt.Sprintf("has failed in %d of its %d members", p.counts[offpeak.JobFailed], p.group.members)
	}
	return "has " + string(p.state)
}

// ends has those that wait for j told of its end, if this is one.
func (t *verb) ends(j *job) *store.Freed {
	if !j.awaited || !j.State.Terminal() {
		return nil
	}
	e := endedJob(j, &store.Freed{})
	t.ended = append(t.ended, e)
	return e.freed
}

// free tells jobs of the ends that the verb made, and others of what that ended. What
// is too much for one transaction stays noted in the rows, for Free.
func (s *Store) free(t *verb) error {
	for left := mostFreed; len(t.ended) > 0; {
		now := t.ended
		t.ended = nil
		now, err := s.wholes(t, now)
		if err != nil {
			return err
		}
		told, err := s.tell(t, now, left)
		if err != nil {
			return err
		}
		left -= told
	}
	return nil
}

// tell tells at most so many of ends, and says how many it told.
func (s *Store) tell(t *verb, list []*ended, most int) (int, error) {
	byID := make(map[string]*ended, len(list))
	ids := make([]string, len(list))
	for i, e := range list {
		byID[e.id], ids[i] = e, e.id
	}
	type edge struct {
		id, parent, folder string
		anyEnd             int64
	}
	var edges []edge
	if most > 0 {
		where, arg := oneOf("parent", ids)
		// One more than is told shows that there are more.
		if err := t.each(`SELECT job, parent, any_end, folder FROM job_after WHERE told = '' AND `+where+` ORDER BY parent, job LIMIT $2`, []any{arg, int64(most + 1)}, func(r Rows) error {
			var e edge
			err := r.Scan(&e.id, &e.parent, &e.anyEnd, &e.folder)
			edges = append(edges, e)
			return err
		}); err != nil {
			return 0, err
		}
	}
	rest := "" // the first whose jobs are not all told
	if len(edges) > most {
		rest, edges = edges[most].parent, edges[:most]
	}
	waiting := make([]offpeak.JobID, len(edges))
	for i, e := range edges {
		waiting[i] = offpeak.JobID(e.id)
	}
	if err := s.loadWaiting(t, waiting); err != nil {
		return 0, err
	}
	for _, e := range edges {
		p := byID[e.parent]
		t.later(tellAfter, string(p.state), string(p.output), e.id, p.id)
		if p.group != nil && e.folder != "" {
			if err := t.parts(e.id, e.folder, p.group); err != nil {
				return 0, err
			}
		}
		if g := t.rows.groups[offpeak.GroupID(e.id)]; g != nil {
			t.toldGroup(p, g, e.anyEnd != 0)
		} else if c := t.rows.jobs[offpeak.JobID(e.id)]; c != nil {
			t.told(p, c, e.anyEnd != 0)
		} else {
			return 0, &RacedError{} // it was pruned
		}
	}
	// A member that ended its array stands for both, until all were told of both.
	more := make(map[*job]bool, len(list))
	for _, e := range list {
		if most == 0 || rest != "" && e.id >= rest {
			e.freed.More, more[e.job] = true, true
		}
	}
	for _, e := range list {
		if e.job.awaited && !more[e.job] {
			e.job.awaited = false
			t.changeJob(e.job)
		}
	}
	return len(edges), nil
}

// told is what the end of p means for c.
func (t *verb) told(p *ended, c *job, anyEnd bool) {
	if c.waits > 0 {
		c.waits--
	}
	t.changeJob(c)
	if c.State != offpeak.JobBlocked {
		return // it has ended meanwhile
	}
	switch {
	case !anyEnd && p.state != offpeak.JobSucceeded:
		c.State, c.Reason, c.Detail, c.EndedAt = offpeak.JobFailed, offpeak.EndDependencyFailed, p.called()+" "+p.fared(), &t.now
	case c.waits == 0:
		c.State = offpeak.JobQueued
	default:
		return
	}
	t.event(offpeak.Event{Type: "job." + string(c.State), Account: c.Account, Job: c.ID, Reason: c.Reason, Data: data(struct {
		Parent offpeak.JobID `json:"parent"`
	}{offpeak.JobID(p.id)})})
	p.freed.Changes = append(p.freed.Changes, store.Change{Job: c.Job, Queued: c.queued()})
	if c.State.Terminal() && c.awaited {
		t.ended = append(t.ended, endedJob(c, p.freed))
	}
}

// Free tells jobs of ends that those who wrote them had no room for.
func (s *Store) Free(ctx context.Context, limit int) ([]store.Change, bool, error) {
	const untold = `awaited = 1 AND ended_at <> 0`
	some, err := read(ctx, s, "look for jobs that wait for ended ones", func(t *verb) (bool, error) {
		return t.exists(`SELECT 1 FROM jobs WHERE ` + untold + ` LIMIT 1`)
	})
	if err != nil || !some {
		return nil, false, err
	}
	limit = min(max(limit, 1), mostFreed)
	freed := &store.Freed{}
	more, err := write(ctx, s, "free jobs", func(t *verb) (bool, error) {
		*freed = store.Freed{}
		// What another hub tells now is left to it.
		var ended []*job
		if err := t.QueryMany(Look{`SELECT ` + jobColumns + ` FROM jobs WHERE ` + untold + ` ORDER BY ended_at, id LIMIT $1` + skipLocked, []any{int64(limit)}, func(r Rows) error {
			j := &job{}
			ended = append(ended, j)
			return j.scan(r)
		}}); err != nil {
			return false, err
		}
		if err := s.keepJobs(t, ended); err != nil {
			return false, err
		}
		for _, j := range ended {
			t.ended = append(t.ended, endedJob(j, freed))
		}
		return len(ended) > 0, nil
	})
	if err != nil {
		return nil, false, err
	}
	return freed.Changes, more, nil
}

// readAfter completes jobs by those that they wait for, or that their array waits for.
func (t *verb) readAfter(s *Store, jobs ...*job) error {
	of := func(j *job) string {
		switch {
		case len(j.After) > 0:
			return ""
		case j.parents > 0:
			return string(j.ID)
		case j.array != nil && j.array.parents > 0:
			return string(j.array.id)
		}
		return ""
	}
	var ids []string
	for _, j := range jobs {
		if id := of(j); id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	after, err := s.awaitedBy(t, ids)
	for _, j := range jobs {
		if id := of(j); id != "" {
			j.After = after[id]
		}
	}
	return err
}

// awaitedBy are those that jobs, and arrays, wait for.
func (s *Store) awaitedBy(t *verb, ids []string) (map[string][]offpeak.Awaited, error) {
	out := make(map[string][]offpeak.Awaited, len(ids))
	wholes := false
	where, arg := oneOf("a.job", ids)
	if err := t.each(`SELECT a.job, a.parent, a.any_end, a.folder, CASE WHEN a.told <> '' THEN a.told ELSE COALESCE(p.state, '') END, COALESCE(p.name, '')
		FROM job_after a LEFT JOIN jobs p ON p.id = a.parent WHERE a.n >= 0 AND `+where+` ORDER BY a.job, a.n`, []any{arg}, func(r Rows) error {
		var id string
		var a offpeak.Awaited
		var anyEnd int64
		err := r.Scan(&id, &a.Job, &anyEnd, &a.Into, &a.State, &a.Name)
		a.Any, wholes = anyEnd != 0, wholes || offpeak.GroupID(a.Job).Valid()
		out[id] = append(out[id], a)
		return err
	}); err != nil || !wholes {
		return out, err
	}
	return out, s.nameWholes(t, out)
}

// inputs are the outputs of jobs that a job, or its array, waited for, and where they go.
func (t *verb) inputs(id offpeak.JobID) (out []store.Input, err error) {
	ids := []string{string(id)}
	if g, _, ok := id.Member(); ok {
		ids = append(ids, string(g))
	}
	where, arg := oneOf("job", ids)
	return out, t.each(`SELECT folder, output FROM job_after WHERE `+where+` AND folder <> '' ORDER BY job, n, folder`, []any{arg}, func(r Rows) error {
		var in store.Input
		err := r.Scan(&in.Into, &in.Tree)
		out = append(out, in)
		return err
	})
}
