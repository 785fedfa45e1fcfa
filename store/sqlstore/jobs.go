package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"offpeak"
	"offpeak/store"
)

// submission is a job to be stored, with what of its spec is.
type submission struct {
	op                      store.Op
	job                     store.NewJob
	hash                    offpeak.Hash
	canonical, requirements string
	// after are the jobs that it waits for: those of the job that it repeats, where it
	// repeats one.
	after []offpeak.After
	// awaited: others of its pipeline may wait for it.
	awaited bool
}

func newSubmission(op store.Op, n store.NewJob) (submission, error) {
	canonical, err := n.Spec.Canonical()
	if err != nil {
		return submission{}, err
	}
	requirements, err := json.Marshal(n.Spec.Requirements)
	return submission{op, n, hashOf(canonical), string(canonical), string(requirements), n.After, n.RetryOf != ""}, err
}

// Submit stores a job.
func (s *Store) Submit(ctx context.Context, op store.Op, n store.NewJob) (offpeak.Job, error) {
	sub, err := newSubmission(op, n)
	if err != nil {
		return offpeak.Job{}, fmt.Errorf("submit job: %w", err)
	}
	j, err := s.submitting.do(ctx, sub)
	if err != nil {
		err = fmt.Errorf("submit job: %w", err)
	}
	return j, err
}

// submissions stores jobs, each of which stands alone.
func (s *Store) submissions(t *verb, list []submission) ([]answer[offpeak.Job], error) {
	ops, accounts := make([]offpeak.OpID, len(list)), make([]offpeak.AccountID, len(list))
	for i, n := range list {
		ops[i], accounts[i] = n.op.ID, n.job.Account
	}
	if err := t.loadOperations(ops...); err != nil {
		return nil, err
	}
	// Jobs before accounts, as everybody locks them.
	if err := s.loadRelated(t, list); err != nil {
		return nil, err
	}
	open, err := t.openJobs(accounts)
	if err != nil {
		return nil, err
	}
	out := make([]answer[offpeak.Job], len(list))
	for i, n := range list {
		if _, repeated := t.rows.done[n.op.ID]; repeated {
			// It may be of this batch, and is read to be answered.
			if err := t.put(s.cfg); err != nil {
				return nil, err
			}
		}
		wrote := t.writes
		if out[i].v, out[i].err = s.submit(t, n, open); fatal(out[i].err) {
			return nil, out[i].err
		}
		if out[i].err != nil {
			t.writes = wrote
		}
	}
	t.sortSpecs()
	return out, nil
}

// sortSpecs puts specs in one order, so that two hubs that store the same specs wait
// for each other in one direction.
func (t *verb) sortSpecs() {
	slices.SortFunc(t.writes.rows[addSpec], func(a, b []any) int { return strings.Compare(a[0].(string), b[0].(string)) })
}

// openJobs locks the accounts that have a quota of jobs, and counts theirs.
func (t *verb) openJobs(accounts []offpeak.AccountID) (map[offpeak.AccountID]*quota, error) {
	slices.Sort(accounts)
	accounts = slices.Compact(accounts)
	var bound []offpeak.AccountID
	out := make(map[offpeak.AccountID]*quota, len(accounts))
	where, arg := oneOf("id", accounts)
	if err := t.each(`SELECT id, quota_queued FROM accounts WHERE `+where, []any{arg}, func(r Rows) error {
		var id offpeak.AccountID
		q := &quota{}
		err := r.Scan(&id, &q.most)
		if out[id] = q; q.most > 0 {
			bound = append(bound, id)
		}
		return err
	}); err != nil || len(bound) == 0 {
		return out, err
	}
	if err := t.Lock(`SELECT 1 FROM accounts WHERE id = ANY($1) ORDER BY id`+forUpdate, texts(bound)); err != nil {
		return nil, err
	}
	where, arg = oneOf("account", bound)
	count := func(r Rows) error {
		var id offpeak.AccountID
		var live int64
		err := r.Scan(&id, &live)
		out[id].live += live
		return err
	}
	if err := t.each(`SELECT account, count(*) FROM jobs WHERE `+openJob+` AND `+where+` GROUP BY account`, []any{arg}, count); err != nil {
		return out, err
	}
	return out, t.each(`SELECT account, CAST(sum(members - written) AS BIGINT) FROM job_groups WHERE written < members AND cancelled_at = 0 AND `+where+` GROUP BY account`, []any{arg}, count)
}

func (s *Store) submit(t *verb, n submission, open map[offpeak.AccountID]*quota) (offpeak.Job, error) {
	id, first, err := onceLoaded(t, n.op, "job.submit", string(n.job.ID), func() (offpeak.JobID, error) {
		return n.job.ID, s.addJob(t, n, open[n.job.Account])
	})
	if err != nil {
		return offpeak.Job{}, err
	}
	if first {
		return t.rows.added[id].Job, nil
	}
	return s.submitted(t, id)
}

// submitted is a job as it was answered the first time, whatever became of it since.
// One that waited for others is as it is now.
func (s *Store) submitted(t *verb, id offpeak.JobID) (offpeak.Job, error) {
	j, err := s.job(t, "", id)
	if err != nil {
		return offpeak.Job{}, err
	}
	if j.parents > 0 {
		return j.Job, t.readAfter(s, j)
	}
	return offpeak.Job{
		ID: j.ID, Account: j.Account, Group: j.Group, Index: j.Index, Spec: j.Spec, State: offpeak.JobQueued,
		RetryOf: j.RetryOf, SubmittedBy: j.SubmittedBy, SubmittedAt: j.SubmittedAt,
	}, nil
}

// addJob stores a new job.
func (s *Store) addJob(t *verb, sub submission, open *quota) error {
	n := sub.job
	if open == nil {
		return offpeak.ErrNotFound
	}
	if open.most > 0 && open.live >= open.most {
		return &offpeak.QuotaError{Bound: "queued_jobs", Most: open.most, Have: open.live, More: 1}
	}
	if in := n.Spec.Task.Input; in != "" {
		if err := t.hasTree(n.Account, in); err != nil {
			return err
		}
	}
	if n.RetryOf != "" {
		old := t.rows.jobs[n.RetryOf]
		if old == nil || old.Account != n.Account {
			return offpeak.ErrNotFound
		}
		if !old.State.Terminal() {
			return fmt.Errorf("job %s has not ended: %w", old.ID, offpeak.ErrConflict)
		}
		t.later(copyCheckpoints, string(n.ID), string(n.RetryOf))
	}
	j := &job{Job: offpeak.Job{
		ID: n.ID, Account: n.Account, Group: or(n.Group, string(n.ID)), Index: n.Index, Spec: n.Spec, State: offpeak.JobQueued,
		RetryOf: n.RetryOf, SubmittedBy: sub.op.Actor.Member, SubmittedAt: t.now,
	}}
	if err := s.waitFor(t, j, sub.after); err != nil {
		return err
	}
	keep(&t.rows.added, j.ID, j)
	t.later(addSpec, string(sub.hash), sub.canonical, n.Spec.Task.Driver, sub.requirements, span(n.Spec.Limits.Lasts()), string(n.Spec.Policy))
	t.later(addJob, string(n.ID), string(n.Account), j.Group, int64(j.Index), string(sub.hash), n.Spec.Name, int64(n.Spec.Priority), string(j.State), string(n.Spec.Task.Input), string(n.RetryOf),
		string(sub.op.Actor.Member), micros(t.now), int64(j.parents), int64(j.waits), string(j.Reason), j.Detail, microsOf(j.EndedAt))
	for k, v := range n.Spec.Labels {
		t.later(addLabel, k, v, string(n.ID))
	}
	if !j.State.Terminal() {
		open.live++
	}
	t.event(offpeak.Event{Type: "job." + string(j.State), Account: n.Account, Job: n.ID, Reason: j.Reason, Data: queuedData(sub)})
	return nil
}

// Cancel ends a job or asks its lease to stop.
func (s *Store) Cancel(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.JobID, detail string) (store.Change, error) {
	return write(ctx, s, "cancel job "+string(id), func(t *verb) (store.Change, error) {
		c, _, err := once(t, op, "job.cancel", string(id), func() (store.Change, error) {
			c, err := s.cancel(t, account, id, detail)
			c.Job.Spec = offpeak.Spec{} // stored already
			return c, err
		})
		if err != nil {
			return store.Change{}, err
		}
		j, err := s.job(t, account, c.Job.ID)
		if err != nil {
			return store.Change{}, err
		}
		c.Job.Spec = j.Spec
		return c, nil
	})
}

func (s *Store) cancel(t *verb, account offpeak.AccountID, id offpeak.JobID, detail string) (store.Change, error) {
	j, err := s.lockJob(t, account, id)
	if err != nil {
		return store.Change{}, err
	}
	return s.cancelLocked(t, j, detail)
}

// cancelLocked cancels a job that is locked, with its lease's node.
func (s *Store) cancelLocked(t *verb, j *job, detail string) (store.Change, error) {
	switch j.State {
	case offpeak.JobCancelling, offpeak.JobCancelled:
		return store.Change{Job: j.Job}, nil
	case offpeak.JobSucceeded, offpeak.JobFailed:
		return store.Change{}, fmt.Errorf("it has %s: %w", j.State, offpeak.ErrConflict)
	case offpeak.JobBlocked, offpeak.JobQueued:
		if err := j.State.To(offpeak.JobCancelled); err != nil {
			return store.Change{}, err
		}
		j.State, j.Reason, j.Detail, j.ExitCode, j.Signal, j.NotBefore, j.EndedAt = offpeak.JobCancelled, offpeak.EndCancelled, detail, nil, "", nil, &t.now
		t.changeJob(j)
		t.event(offpeak.Event{Type: "job.cancelled", Account: j.Account, Job: j.ID, Attempt: j.Attempt, Reason: offpeak.EndCancelled})
		return store.Change{Job: j.Job, Broken: t.gangBroken(j), Freed: t.ends(j)}, nil
	}
	l, err := t.lease(j.Lease)
	if err != nil {
		return store.Change{}, err
	}
	if l.State == offpeak.LeaseOffered {
		return s.end(t, l, j, ending{reason: offpeak.EndCancelled, detail: detail})
	}
	if err := j.State.To(offpeak.JobCancelling); err != nil {
		return store.Change{}, err
	}
	j.State, j.Detail = offpeak.JobCancelling, detail
	t.changeJob(j)
	t.event(offpeak.Event{Type: "job.cancelling", Account: j.Account, Job: j.ID, Attempt: j.Attempt, Lease: l.ID, Node: l.Node})
	return s.stop(t, l, j, offpeak.EndCancelled)
}

// lockJob locks the node of a job's lease, if it has one, and then the job.
func (s *Store) lockJob(t *verb, account offpeak.AccountID, id offpeak.JobID) (*job, error) {
	seen, err := s.job(t, account, id)
	if err != nil {
		return nil, err
	}
	if seen.Lease != "" {
		if err := t.loadNodes(forUpdate, seen.Node); err != nil {
			return nil, err
		}
	}
	t.rows.lock = forUpdate
	j, err := s.job(t, account, id)
	if err == nil && j.Lease != seen.Lease {
		err = &RacedError{} // it has another node now
	}
	return j, err
}

// Job returns one job.
func (s *Store) Job(ctx context.Context, account offpeak.AccountID, id offpeak.JobID) (offpeak.Job, error) {
	return read(ctx, s, "read job "+string(id), func(t *verb) (offpeak.Job, error) {
		j, err := s.job(t, account, id)
		if err != nil {
			return offpeak.Job{}, err
		}
		return j.Job, t.readAfter(s, j)
	})
}

// Jobs lists jobs, newest first.
func (s *Store) Jobs(ctx context.Context, f store.JobFilter, page store.Page) ([]offpeak.Job, string, error) {
	before := int64(1) << 62
	if page.Cursor != "" {
		n, err := strconv.ParseInt(page.Cursor, 10, 64)
		if err != nil {
			return nil, "", &offpeak.FieldError{Field: "cursor", Value: page.Cursor, Rule: "is what the page before returned"}
		}
		before = n
	}
	limit, err := bounded(page.Limit)
	if err != nil {
		return nil, "", err
	}
	args := []any{before}
	arg := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	q := strings.Builder{}
	q.WriteString(`SELECT ` + jobColumns + ` FROM jobs WHERE seq < $1`)
	if f.Account != "" {
		q.WriteString(` AND account = ` + arg(string(f.Account)))
	}
	if f.Node != "" {
		q.WriteString(` AND node = ` + arg(string(f.Node)))
	}
	if f.Group != "" {
		q.WriteString(` AND grp <> id AND grp = ` + arg(string(f.Group)))
	}
	if f.Alone {
		q.WriteString(` AND NOT (` + ofArray + `)`)
	}
	if f.Name != "" {
		q.WriteString(` AND name = ` + arg(f.Name))
	}
	if len(f.States) > len(offpeak.JobStates()) {
		return nil, "", &offpeak.FieldError{Field: "states", Rule: "names each state once"}
	}
	if len(f.States) > 0 {
		in := make([]string, len(f.States))
		for i, st := range f.States {
			in[i] = arg(string(st))
		}
		q.WriteString(` AND state IN (` + strings.Join(in, ", ") + `)`)
	}
	if len(f.Label) > 8 {
		return nil, "", &offpeak.FieldError{Field: "label", Rule: "at most 8 labels restrict a list"}
	}
	for k, v := range f.Label {
		q.WriteString(` AND EXISTS (SELECT 1 FROM job_labels WHERE job = jobs.seq AND key = ` + arg(k) + ` AND value = ` + arg(v) + `)`)
	}
	q.WriteString(` ORDER BY seq DESC LIMIT ` + arg(int64(limit+1)))
	list, err := read(ctx, s, "list jobs", func(t *verb) ([]*job, error) {
		var out []*job
		err := t.each(q.String(), args, func(rows Rows) error {
			j := &job{}
			out = append(out, j)
			return j.scan(rows)
		})
		if err != nil {
			return nil, err
		}
		for _, j := range out {
			if j.Spec, err = s.spec(t, j.spec); err != nil {
				return nil, err
			}
			if err := s.joinArray(t, j); err != nil {
				return nil, err
			}
		}
		return out, t.readAfter(s, out...)
	})
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(list) > limit {
		list = list[:limit]
		next = strconv.FormatInt(list[limit-1].seq, 10)
	}
	jobs := make([]offpeak.Job, len(list))
	for i, j := range list {
		jobs[i] = j.Job
	}
	return jobs, next, nil
}

func bounded(limit int) (int, error) {
	if limit < 1 || limit > 1000 {
		return 0, &offpeak.FieldError{Field: "limit", Value: strconv.Itoa(limit), Rule: "is 1 to 1000"}
	}
	return limit, nil
}

// Attempts lists a job's leases.
func (s *Store) Attempts(ctx context.Context, account offpeak.AccountID, id offpeak.JobID) ([]offpeak.Lease, error) {
	return read(ctx, s, "list attempts of job "+string(id), func(t *verb) ([]offpeak.Lease, error) {
		if err := t.owns(account, "jobs", string(id)); err != nil {
			return nil, err
		}
		list, err := t.leases(`job = $1 ORDER BY attempt, rank`, string(id))
		return plain(list), err
	})
}

func plain(list []*lease) []offpeak.Lease {
	out := make([]offpeak.Lease, len(list))
	for i, l := range list {
		out[i] = l.Lease
	}
	return out
}

// owns returns nil if the table has the id, and of the account ("" any).
func (t *verb) owns(account offpeak.AccountID, table, id string) error {
	var owner offpeak.AccountID
	err := t.row(`SELECT account FROM `+table+` WHERE id = $1`, []any{id}, &owner)
	if errors.Is(err, offpeak.ErrNotFound) && table == "jobs" {
		owner, err = t.ownerOfUnwritten(offpeak.JobID(id))
	}
	if err != nil {
		return err
	}
	if account != "" && owner != account {
		return offpeak.ErrNotFound
	}
	return nil
}

// Checkpoints lists a job's checkpoints.
func (s *Store) Checkpoints(ctx context.Context, account offpeak.AccountID, id offpeak.JobID) ([]offpeak.Checkpoint, error) {
	return read(ctx, s, "list checkpoints of job "+string(id), func(t *verb) ([]offpeak.Checkpoint, error) {
		if err := t.owns(account, "jobs", string(id)); err != nil {
			return nil, err
		}
		return t.checkpoints(id)
	})
}

func (t *verb) checkpoints(id offpeak.JobID) ([]offpeak.Checkpoint, error) {
	var out []offpeak.Checkpoint
	err := t.each(`SELECT id, job, attempt, name, tree, metered, size, at FROM checkpoints WHERE job = $1 ORDER BY id DESC`, []any{string(id)}, func(rows Rows) error {
		var c offpeak.Checkpoint
		var at int64
		err := rows.Scan(&c.ID, &c.Job, &c.Attempt, &c.Name, &c.Tree, &c.Metered, &c.Size, &at)
		c.At = moment(at)
		out = append(out, c)
		return err
	})
	return out, err
}

const selectQueued = `SELECT j.id, j.account, j.attempt, j.priority, j.submitted_at, j.not_before, j.avoid, p.driver, p.requirements, p.lasts, p.policy, COALESCE(g.id, ''), COALESCE(g.at_once, 0), COALESCE(g.gang, 0) > 0
	FROM jobs j JOIN specs p ON p.hash = j.spec LEFT JOIN job_groups g ON g.id = j.grp AND j.grp <> j.id AND (g.at_once > 0 OR g.gang > 0) WHERE j.state = 'queued'`

// queueReader reads queued jobs. A hundred thousand of them have few distinct
// requirements, accounts and drivers between them, which they share.
type queueReader struct {
	requirements map[string]*offpeak.Requirements
	words        map[string]string
}

func newQueueReader() queueReader {
	return queueReader{map[string]*offpeak.Requirements{}, map[string]string{}}
}

func (r queueReader) intern(w string) string {
	if v, ok := r.words[w]; ok {
		return v
	}
	r.words[w] = w
	return w
}

func (r queueReader) scan(rows Rows) (q store.Queued, err error) {
	var account, avoid, driver, requirements, policy, group string
	var submitted, notBefore, lasts int64
	var gang bool
	if err := rows.Scan(&q.Job, &account, &q.Attempt, &q.Priority, &submitted, &notBefore, &avoid, &driver, &requirements, &lasts, &policy, &group, &q.AtOnce, &gang); err != nil {
		return q, err
	}
	if q.Requirements = r.requirements[requirements]; q.Requirements == nil {
		q.Requirements = &offpeak.Requirements{}
		if err := json.Unmarshal([]byte(requirements), q.Requirements); err != nil {
			return q, fmt.Errorf("read requirements of job %s: %w", q.Job, err)
		}
		r.requirements[requirements] = q.Requirements
	}
	q.Account, q.Driver = offpeak.AccountID(r.intern(account)), r.intern(driver)
	if group := offpeak.GroupID(r.intern(group)); gang {
		q.Gang = group
	} else {
		q.Group = group
	}
	q.Submitted, q.NotBefore = moment(submitted), moment(notBefore)
	q.Avoid, q.Failed = avoided(avoid)
	q.Policy, q.Lasts = offpeak.Policy(r.intern(policy)), unspan(lasts)
	return q, nil
}

// Waiting returns those of the jobs that are queued.
func (s *Store) Waiting(ctx context.Context, jobs []offpeak.JobID) ([]store.Queued, error) {
	r := newQueueReader()
	var out []store.Queued
	_, err := s.db.Glance(ctx, Look{selectQueued + ` AND j.id = ANY($1) ORDER BY j.priority DESC, j.seq`, []any{texts(jobs)}, func(rows Rows) error {
		q, err := r.scan(rows)
		out = append(out, q)
		return err
	}})
	if err != nil {
		return nil, fmt.Errorf("read queued jobs: %w", err)
	}
	return out, nil
}

// Queue walks over all queued jobs.
func (s *Store) Queue(ctx context.Context) iter.Seq2[store.Queued, error] {
	return func(yield func(store.Queued, error) bool) {
		var stopped = errors.New("stopped")
		r := newQueueReader()
		_, err := read(ctx, s, "read the queue", func(t *verb) (struct{}, error) {
			return struct{}{}, t.each(selectQueued+` ORDER BY j.priority DESC, j.seq`, nil, func(rows Rows) error {
				q, err := r.scan(rows)
				if err != nil {
					return err
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				if !yield(q, nil) {
					return stopped
				}
				return nil
			})
		})
		if err != nil && !errors.Is(err, stopped) {
			yield(store.Queued{}, err)
		}
	}
}

// CountJobs counts jobs by state.
func (s *Store) CountJobs(ctx context.Context, account offpeak.AccountID) (map[offpeak.JobState]int, error) {
	return read(ctx, s, "count jobs", func(t *verb) (map[offpeak.JobState]int, error) {
		q, args := `SELECT state, count(*) FROM jobs GROUP BY state`, []any(nil)
		if account != "" {
			q, args = `SELECT state, count(*) FROM jobs WHERE account = $1 GROUP BY state`, []any{string(account)}
		}
		out := map[offpeak.JobState]int{}
		return out, t.each(q, args, func(rows Rows) error {
			var st offpeak.JobState
			var n int
			err := rows.Scan(&st, &n)
			out[st] = n
			return err
		})
	})
}
