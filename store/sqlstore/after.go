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
				if err := s.addJob(t, sub, open[sub.job.Account]); err != nil {
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
			if first {
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
	ids = append(ids, repeated...)
	slices.Sort(ids)
	return s.loadJobs(t, forUpdate, slices.Compact(ids))
}

// retried reads what jobs that are repeated waited for: the newest retry of each, but
// for one whose end counted as it was.
func (t *verb) retried(jobs []offpeak.JobID) (map[offpeak.JobID][]offpeak.After, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	out := map[offpeak.JobID][]offpeak.After{}
	where, arg := oneOf("job", jobs)
	return out, t.each(`SELECT job, any_end, folder, CASE WHEN any_end = 1 OR told = 'succeeded' THEN parent ELSE COALESCE((
			WITH RECURSIVE tries (id, n) AS (SELECT parent, 0 UNION ALL SELECT j.id, n + 1 FROM tries JOIN jobs j ON j.retry_of = tries.id AND j.account = job_after.account WHERE n < 1000)
			SELECT t.id FROM tries t JOIN jobs j ON j.id = t.id ORDER BY j.seq DESC LIMIT 1), parent) END
		FROM job_after WHERE `+where+` ORDER BY job, n`, []any{arg}, func(r Rows) error {
		var job offpeak.JobID
		var a offpeak.After
		var anyEnd int64
		err := r.Scan(&job, &anyEnd, &a.Into, &a.Job)
		a.Any = anyEnd != 0
		out[job] = append(out[job], a)
		return err
	})
}

// waitFor has a new job wait for others, in so far as they have not ended.
func (t *verb) waitFor(j *job, list []offpeak.After) error {
	for i, a := range list {
		p := t.rows.jobs[a.Job]
		if p == nil {
			p = t.rows.added[a.Job]
		}
		if p == nil || p.Account != j.Account {
			return &offpeak.FieldError{Field: fmt.Sprintf("after[%d].job", i), Value: string(a.Job), Rule: fmt.Sprintf("names a job of the account: there is no %s", a.Job)}
		}
		var told offpeak.JobState
		var output offpeak.Hash
		switch {
		case !p.State.Terminal():
			j.waits++
			t.later(awaitJob, string(p.ID))
		case a.Any || p.State == offpeak.JobSucceeded:
			told = p.State
		case j.RetryOf != "":
			return fmt.Errorf("job %s, which it waits for, has %s: retry that one first: %w", called(p), p.State, offpeak.ErrConflict)
		default:
			told = p.State
			if !j.State.Terminal() {
				j.State, j.Reason, j.Detail, j.EndedAt = offpeak.JobFailed, offpeak.EndDependencyFailed, because(p), &t.now
			}
		}
		if told != "" && a.Into != "" {
			output = p.Output
		}
		anyEnd := number(a.Any)
		t.later(addAfter, string(j.ID), string(j.Account), int64(i), string(a.Job), anyEnd, a.Into, string(told), string(output))
		j.After = append(j.After, offpeak.Awaited{Job: p.ID, Name: p.Spec.Name, Any: a.Any, Into: a.Into, State: p.State})
	}
	if j.parents = len(list); j.waits > 0 && j.State == offpeak.JobQueued {
		j.State = offpeak.JobBlocked
	}
	return nil
}

// called names a job for people.
func called(j *job) string {
	if j.Spec.Name == "" {
		return string(j.ID)
	}
	return string(j.ID) + " (" + j.Spec.Name + ")"
}

// because says what kept a job from beginning: one that it waits for.
func because(p *job) string {
	s := fmt.Sprintf("job %s has %s", called(p), p.State)
	if p.State == offpeak.JobCancelled {
		s = fmt.Sprintf("job %s was cancelled", called(p))
	}
	return s
}

// endedJob is a job that ended and that others wait for, with where it is noted what
// that meant for them.
type endedJob struct {
	*job
	freed *store.Freed
}

// ends has the jobs that wait for j told of its end, if this is one.
func (t *verb) ends(j *job) *store.Freed {
	if !j.awaited || !j.State.Terminal() {
		return nil
	}
	e := &endedJob{j, &store.Freed{}}
	t.ended = append(t.ended, e)
	return e.freed
}

// free tells jobs of the ends that the verb made, and others of what that ended. What
// is too much for one transaction stays noted in the rows, for Free.
func (s *Store) free(t *verb) error {
	for left := mostFreed; len(t.ended) > 0; {
		now := t.ended
		t.ended = nil
		told, err := s.tell(t, now, left)
		if err != nil {
			return err
		}
		left -= told
	}
	return nil
}

// tell tells at most so many jobs of ends, and says how many it told.
func (s *Store) tell(t *verb, ended []*endedJob, most int) (int, error) {
	byID := make(map[offpeak.JobID]*endedJob, len(ended))
	ids := make([]offpeak.JobID, len(ended))
	for i, e := range ended {
		byID[e.ID], ids[i] = e, e.ID
	}
	type edge struct {
		job, parent offpeak.JobID
		anyEnd      int64
	}
	var edges []edge
	if most > 0 {
		where, arg := oneOf("parent", ids)
		// One more than is told shows that there are more.
		if err := t.each(`SELECT job, parent, any_end FROM job_after WHERE told = '' AND `+where+` ORDER BY parent, job LIMIT $2`, []any{arg, int64(most + 1)}, func(r Rows) error {
			var e edge
			err := r.Scan(&e.job, &e.parent, &e.anyEnd)
			edges = append(edges, e)
			return err
		}); err != nil {
			return 0, err
		}
	}
	rest := offpeak.JobID("") // the first whose jobs are not all told
	if len(edges) > most {
		rest, edges = edges[most].parent, edges[:most]
	}
	waiting := make([]offpeak.JobID, len(edges))
	for i, e := range edges {
		waiting[i] = e.job
	}
	slices.Sort(waiting)
	if err := s.loadJobs(t, forUpdate, slices.Compact(waiting)); err != nil {
		return 0, err
	}
	for _, e := range edges {
		p, c := byID[e.parent], t.rows.jobs[e.job]
		if c == nil {
			return 0, &RacedError{} // it was pruned
		}
		t.later(tellAfter, string(p.State), string(p.Output), string(c.ID), string(p.ID))
		t.told(p, c, e.anyEnd != 0)
	}
	for _, e := range ended {
		if most > 0 && (rest == "" || e.ID < rest) {
			e.awaited = false
			t.changeJob(e.job)
		} else {
			e.freed.More = true
		}
	}
	return len(edges), nil
}

// told is what the end of p means for c.
func (t *verb) told(p *endedJob, c *job, anyEnd bool) {
	if c.waits > 0 {
		c.waits--
	}
	t.changeJob(c)
	if c.State != offpeak.JobBlocked {
		return // it has ended meanwhile
	}
	switch {
	case !anyEnd && p.State != offpeak.JobSucceeded:
		c.State, c.Reason, c.Detail, c.EndedAt = offpeak.JobFailed, offpeak.EndDependencyFailed, because(p.job), &t.now
	case c.waits == 0:
		c.State = offpeak.JobQueued
	default:
		return
	}
	t.event(offpeak.Event{Type: "job." + string(c.State), Account: c.Account, Job: c.ID, Reason: c.Reason, Data: data(struct {
		Parent offpeak.JobID `json:"parent"`
	}{p.ID})})
	p.freed.Changes = append(p.freed.Changes, store.Change{Job: c.Job, Queued: c.queued()})
	if c.State.Terminal() && c.awaited {
		t.ended = append(t.ended, &endedJob{c, p.freed})
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
			t.ended = append(t.ended, &endedJob{j, freed})
		}
		return len(ended) > 0, nil
	})
	if err != nil {
		return nil, false, err
	}
	return freed.Changes, more, nil
}

// readAfter completes jobs by those that they wait for.
func (t *verb) readAfter(jobs ...*job) error {
	byID := make(map[offpeak.JobID]*job)
	var ids []offpeak.JobID
	for _, j := range jobs {
		if j.parents > 0 && len(j.After) == 0 {
			byID[j.ID], ids = j, append(ids, j.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	where, arg := oneOf("a.job", ids)
	return t.each(`SELECT a.job, a.parent, a.any_end, a.folder, CASE WHEN a.told <> '' THEN a.told ELSE COALESCE(p.state, '') END, COALESCE(p.name, '')
		FROM job_after a LEFT JOIN jobs p ON p.id = a.parent WHERE `+where+` ORDER BY a.job, a.n`, []any{arg}, func(r Rows) error {
		var id offpeak.JobID
		var a offpeak.Awaited
		var anyEnd int64
		err := r.Scan(&id, &a.Job, &anyEnd, &a.Into, &a.State, &a.Name)
		a.Any = anyEnd != 0
		byID[id].After = append(byID[id].After, a)
		return err
	})
}

// inputs are the outputs of jobs that a job waited for, and where they go.
func (t *verb) inputs(id offpeak.JobID) (out []store.Input, err error) {
	return out, t.each(`SELECT folder, output FROM job_after WHERE job = $1 AND folder <> '' ORDER BY n`, []any{string(id)}, func(r Rows) error {
		var in store.Input
		err := r.Scan(&in.Into, &in.Tree)
		out = append(out, in)
		return err
	})
}
