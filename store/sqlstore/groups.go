package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"offpeak"
	"offpeak/store"
)

// membersAtOnce is how many members are written with their group: what a
// transaction does without holding others up.
const membersAtOnce = 64

// SubmitGroup stores a group and the first of its members.
func (s *Store) SubmitGroup(ctx context.Context, op store.Op, n store.NewGroup) (store.Filled, error) {
	return write(ctx, s, "submit group", func(t *verb) (store.Filled, error) {
		var made store.Filled
		id, first, err := once(t, op, "group.submit", string(n.ID), func() (id offpeak.GroupID, err error) {
			made, err = s.addGroup(t, op, n)
			return n.ID, err
		})
		if err != nil || first {
			return made, err
		}
		g, err := t.groupRow("", id, "")
		if err != nil {
			return made, err
		}
		// As it was answered the first time, whatever became of it since.
		made.Left = g.members - g.written
		if g.parents > 0 {
			made.Group, err = s.counted(t, g)
			return made, err
		}
		made.Group, err = s.group(t, g, map[offpeak.JobState]int{offpeak.JobQueued: g.members})
		made.Group.CancelledAt = nil
		return made, err
	})
}

func (s *Store) addGroup(t *verb, op store.Op, n store.NewGroup) (store.Filled, error) {
	// Jobs before accounts, as everybody locks them.
	var err error
	if n.RetryOf != "" {
		if n.After, err = t.retriedArray(n.Account, n.RetryOf); err != nil {
			return store.Filled{}, err
		}
	}
	if err := s.loadParents(t, n.After); err != nil {
		return store.Filled{}, err
	}
	open, err := t.openJobs([]offpeak.AccountID{n.Account})
	if err != nil {
		return store.Filled{}, err
	}
	quota := open[n.Account]
	if quota == nil {
		return store.Filled{}, offpeak.ErrNotFound
	}
	g, queued, err := s.newGroup(t, op, n, quota, membersAtOnce)
	if err != nil {
		return store.Filled{}, err
	}
	return store.Filled{Group: g, Queued: queued, Left: g.Members - len(queued)}, nil
}

// newGroup stores a group and at most so many of its members. What it waits for is
// locked.
func (s *Store) newGroup(t *verb, op store.Op, n store.NewGroup, quota *quota, atOnce int) (made offpeak.Group, queued []store.Queued, err error) {
	g := &jobGroup{fresh: true, awaited: n.Awaited, array: &array{id: n.ID, account: n.Account, retryOf: n.RetryOf, by: op.Actor.Member, at: t.now, pipe: n.Pipeline, step: n.Step}}
	if n.RetryOf == "" {
		err = t.newArray(g, n)
	} else {
		n.Spec, err = s.repeatedArray(t, g, n)
	}
	if err != nil {
		return made, nil, err
	}
	g.members = g.Indexes.Len()
	if quota.most > 0 && quota.live+int64(g.members) > quota.most {
		return made, nil, &offpeak.QuotaError{Bound: "queued_jobs", Most: quota.most, Have: quota.live, More: int64(g.members)}
	}
	if in := n.Spec.Task.Input; in != "" {
		if err := t.hasTree(n.Account, in); err != nil {
			return made, nil, err
		}
	}
	sweep := ""
	if len(g.Sweep) > 0 {
		sweep = string(data(g.Sweep))
	}
	after, err := s.groupWaits(t, g, n.After)
	if err != nil {
		return made, nil, err
	}
	quota.live += int64(g.members)
	queued = t.addMembers(g, n.Spec, atOnce)
	g.todo = g.todo || g.written < g.members && (g.waits == 0 || g.reason != "")
	t.later(addGroup, string(g.id), string(g.account), string(g.spec), g.Indexes.String(), sweep, int64(g.AtOnce), int64(g.size), int64(g.members), int64(g.written), number(g.todo), string(g.retryOf), string(g.by), micros(g.at),
		int64(g.parents), int64(g.waits), micros(g.cancelledAt), string(g.reason), g.detail, number(g.awaited), g.pipe, int64(g.step), int64(g.Gang))
	keep(&t.rows.groups, g.id, g)
	state, _ := g.rest()
	if made, err = s.group(t, g, map[offpeak.JobState]int{state: g.members}); err != nil {
		return made, nil, err
	}
	made.After = after
	made.Spec = n.Spec // its row is yet to be written
	return made, queued, nil
}

func (t *verb) newArray(g *jobGroup, n store.NewGroup) error {
	canonical, err := n.Spec.Canonical()
	if err != nil {
		return err
	}
	requirements, err := json.Marshal(n.Spec.Requirements)
	if err != nil {
		return err
	}
	g.Array = n.Array
	g.Indexes = n.Array.Members()
	g.spec, g.size = hashOf(canonical), g.Indexes.Len()
	t.later(addSpec, string(g.spec), string(canonical), n.Spec.Task.Driver, string(requirements), span(n.Spec.Limits.Lasts()), string(n.Spec.Policy))
	return nil
}

// repeatedArray is the array of the members of another group that are repeated.
func (s *Store) repeatedArray(t *verb, g *jobGroup, n store.NewGroup) (offpeak.Spec, error) {
	old, err := t.groupRow(n.Account, n.RetryOf, "")
	if err != nil {
		return offpeak.Spec{}, err
	}
	if old.reason != "" && old.written < old.members {
		return offpeak.Spec{}, fmt.Errorf("its members are being written off, %d are left: try again in a moment: %w", old.members-old.written, offpeak.ErrConflict)
	}
	g.Array, g.spec, g.size = old.Array, old.spec, old.size
	var again []int
	open := old.members - old.written
	if len(n.Only) > 0 {
		open = 0 // who has no row is not repeated, and found missing
	}
	if err := t.each(`SELECT idx, state FROM jobs WHERE grp <> id AND grp = $1 ORDER BY idx`, []any{string(old.id)}, func(r Rows) error {
		var index int
		var state offpeak.JobState
		err := r.Scan(&index, &state)
		if _, asked := n.Only.Place(index); len(n.Only) > 0 && !asked {
			return err
		}
		if !state.Terminal() {
			open++
		}
		if !n.Failed && !n.Rest || n.Failed && state == offpeak.JobFailed || n.Rest && state != offpeak.JobSucceeded {
			again = append(again, index)
		}
		return err
	}); err != nil {
		return offpeak.Spec{}, err
	}
	switch {
	case n.Failed && len(again) == 0:
		return offpeak.Spec{}, fmt.Errorf("none of its members has failed: %w", offpeak.ErrConflict)
	case g.Gang > 0 && len(n.Only) > 0:
		return offpeak.Spec{}, fmt.Errorf("a member of a gang runs with the others only: retry those that failed together (`offpeak retry --failed %s`): %w", old.id, offpeak.ErrConflict)
	case len(again) < n.Only.Len():
		return offpeak.Spec{}, offpeak.ErrNotFound
	case !n.Failed && open > 0:
		return offpeak.Spec{}, fmt.Errorf("%d of its members have not ended: %w", open, offpeak.ErrConflict)
	}
	g.Indexes = offpeak.IndexesOf(again)
	return s.spec(t, g.spec)
}

// addMembers writes the next members of a group, as it is: queued, or cancelled with
// the whole.
func (t *verb) addMembers(g *jobGroup, spec offpeak.Spec, limit int) (queued []store.Queued) {
	part := g.Indexes.Part(g.written, limit)
	state, reason := g.rest()
	what := "group." + string(state)
	indexes := offpeak.GroupIndexes{Group: g.id, Spec: g.spec, Priority: spec.Priority, AtOnce: g.AtOnce, Gang: g.Gang, RetryOf: g.retryOf}
	if g.written == 0 && !state.Terminal() {
		indexes.GroupAsks = &offpeak.GroupAsks{Driver: spec.Task.Driver, Requirements: &spec.Requirements, Policy: spec.Policy, Limit: spec.Limits.Time, Retry: spec.Retry}
	}
	if state == offpeak.JobBlocked {
		if g.fresh {
			indexes.Indexes = g.Indexes
			t.event(offpeak.Event{Type: what, Account: g.account, Data: data(indexes)})
		}
		return nil
	}
	if len(part) == 0 {
		return nil
	}
	q := store.Queued{Account: g.account, Priority: spec.Priority, Submitted: g.at, Driver: spec.Task.Driver, Requirements: &spec.Requirements, Policy: spec.Policy, Lasts: spec.Limits.Lasts()}
	if g.AtOnce > 0 {
		q.Group, q.AtOnce = g.id, g.AtOnce
	}
	if g.Gang > 0 {
		q.Gang = g.id
	}
	// Of members that end as they are written the last one tells who waits.
	last := g.id.Member(g.Indexes[len(g.Indexes)-1].Last)
	for index := range part.All() {
		id := g.id.Member(index)
		retryOf := ""
		if g.retryOf != "" {
			retryOf = string(g.retryOf.Member(index))
		}
		t.later(addMember, string(id), string(g.account), string(g.id), int64(index), string(g.spec), spec.Name, int64(spec.Priority), string(state), string(spec.Task.Input),
			retryOf, string(g.by), micros(g.at), string(reason), g.detail, micros(g.cancelledAt), number(g.awaited && (!state.Terminal() || id == last)))
		for k, v := range spec.Labels {
			t.later(addLabel, k, v, string(id))
		}
		if state == offpeak.JobQueued {
			q.Job = id
			queued = append(queued, q)
		}
	}
	if g.retryOf != "" {
		t.later(copyMembers, string(g.id), int64(part[0].First), int64(part[len(part)-1].Last))
	}
	g.written += part.Len()
	g.todo = g.written < g.members || g.todo && !g.cancelledAt.IsZero()
	indexes.Indexes = part
	t.event(offpeak.Event{Type: what, Account: g.account, Reason: reason, Data: data(indexes)})
	return queued
}

func (t *verb) putGroup(g *jobGroup) {
	t.later(writeGroup, int64(g.written), number(g.todo), micros(g.cancelledAt), string(g.reason), g.detail, int64(g.waits), string(g.broken), string(g.id))
}

// FillGroup writes further members.
func (s *Store) FillGroup(ctx context.Context, id offpeak.GroupID, limit int) (store.Filled, error) {
	return write(ctx, s, "fill group "+string(id), func(t *verb) (store.Filled, error) {
		g, err := t.groupRow("", id, forUpdate)
		if err != nil {
			return store.Filled{}, err
		}
		spec, err := s.spec(t, g.spec)
		if err != nil {
			return store.Filled{}, err
		}
		was := *g
		queued := t.addMembers(g, spec, limit)
		if g.written != was.written {
			t.putGroup(g)
		}
		out := store.Filled{Group: g.plain(spec), Queued: queued, Left: g.members - g.written}
		if out.Left > 0 {
			out.Group.State, _ = g.rest()
		}
		if g.awaited && out.Left == 0 && len(queued) == 0 && g.written != was.written {
			out.Freed, err = s.wroteOff(t, g)
		}
		return out, err
	})
}

// CancelGroup marks a group.
func (s *Store) CancelGroup(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.GroupID, detail string) (offpeak.Group, error) {
	return write(ctx, s, "cancel group "+string(id), func(t *verb) (offpeak.Group, error) {
		if _, _, err := once(t, op, "group.cancel", string(id), func() (struct{}, error) {
			g, err := t.groupRow(account, id, forUpdate)
			if err != nil || !g.cancelledAt.IsZero() && g.reason == "" {
				return struct{}{}, err
			}
			open, err := t.exists(`SELECT 1 FROM jobs WHERE grp <> id AND grp = $1 AND `+openJob+` LIMIT 1`, string(id))
			if err != nil {
				return struct{}{}, err
			}
			if !open && (g.written == g.members || g.reason != "") {
				return struct{}{}, fmt.Errorf("all its members have ended: %w", offpeak.ErrConflict)
			}
			g.cancelledAt, g.detail, g.todo = t.now, detail, true
			t.putGroup(g)
			t.event(offpeak.Event{Type: "group.cancelling", Account: g.account, Reason: offpeak.EndCancelled, Data: data(offpeak.GroupIndexes{Group: id, Indexes: g.Indexes})})
			return struct{}{}, nil
		}); err != nil {
			return offpeak.Group{}, err
		}
		if err := t.put(s.cfg); err != nil {
			return offpeak.Group{}, err
		}
		g, err := t.groupRow(account, id, "")
		if err != nil {
			return offpeak.Group{}, err
		}
		return s.counted(t, g)
	})
}

// cancelled is what CancelMembers did.
type cancelledMembers struct {
	changes []store.Change
	left    bool
}

// CancelMembers cancels members of a cancelled group.
func (s *Store) CancelMembers(ctx context.Context, id offpeak.GroupID, limit int) ([]store.Change, bool, error) {
	out, err := write(ctx, s, "cancel members of "+string(id), func(t *verb) (out cancelledMembers, err error) {
		g, err := t.groupRow("", id, "")
		if err != nil || g.cancelledAt.IsZero() {
			return out, err
		}
		lease := map[offpeak.JobID]offpeak.LeaseID{}
		var jobs []offpeak.JobID
		var nodes []offpeak.NodeID
		if err := t.each(`SELECT id, lease, node FROM jobs WHERE grp <> id AND grp = $1 AND state IN ('blocked', 'queued', 'leased', 'running') LIMIT $2`, []any{string(id), int64(limit)}, func(r Rows) error {
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
		if len(jobs) == 0 {
			if g, err = t.groupRow("", id, forUpdate); err != nil {
				return out, err
			}
			if out.left = g.written < g.members; g.todo && !out.left {
				g.todo = g.broken == offpeak.EndGangBroken
				t.putGroup(g)
			}
			return out, nil
		}
		if err := t.loadNodes(forUpdate, nodes...); err != nil {
			return out, err
		}
		if err := s.loadJobs(t, forUpdate, jobs); err != nil {
			return out, err
		}
		out.left = true
		for _, id := range jobs {
			j := t.rows.jobs[id]
			if j == nil || j.Lease != lease[id] || j.State.Terminal() {
				continue // it moved meanwhile; the next look finds it where it is
			}
			c, err := s.cancelLocked(t, j, g.detail)
			if err != nil {
				return out, fmt.Errorf("%s: %w", id, err)
			}
			out.changes = append(out.changes, c)
		}
		return out, nil
	})
	return out.changes, out.left, err
}

// UnfinishedGroups lists groups with work left.
func (s *Store) UnfinishedGroups(ctx context.Context, limit int) ([]store.UnfinishedGroup, error) {
	return read(ctx, s, "list unfinished groups", func(t *verb) (out []store.UnfinishedGroup, err error) {
		return out, t.each(`SELECT id, written < members, cancelled_at <> 0, broken <> '' FROM job_groups WHERE todo = 1 ORDER BY id LIMIT $1`, []any{int64(limit)}, func(r Rows) error {
			var u store.UnfinishedGroup
			err := r.Scan(&u.ID, &u.Fill, &u.Cancel, &u.Mend)
			out = append(out, u)
			return err
		})
	})
}

// Group returns one group.
func (s *Store) Group(ctx context.Context, account offpeak.AccountID, id offpeak.GroupID) (offpeak.Group, error) {
	return read(ctx, s, "read group "+string(id), func(t *verb) (offpeak.Group, error) {
		g, err := t.groupRow(account, id, "")
		if err != nil {
			return offpeak.Group{}, err
		}
		return s.counted(t, g)
	})
}

// Groups lists groups, newest first: their ids sort by time.
func (s *Store) Groups(ctx context.Context, f store.GroupFilter, page store.Page) ([]offpeak.Group, string, error) {
	limit, err := bounded(page.Limit)
	if err != nil {
		return nil, "", err
	}
	if len(f.States) > len(offpeak.JobStates()) {
		return nil, "", &offpeak.FieldError{Field: "states", Rule: "names each state once"}
	}
	var where []string
	var args []any
	arg := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	if page.Cursor != "" {
		where = append(where, `id < `+arg(page.Cursor))
	}
	if f.Pipeline != "" {
		where = append(where, `pipe = `+arg(f.Pipeline))
	}
	if f.Account != "" {
		where = append(where, `account = `+arg(string(f.Account)))
	}
	if len(f.States) > 0 {
		var in, unwritten []string
		for _, st := range f.States {
			in = append(in, arg(string(st)))
			switch st {
			case offpeak.JobQueued:
				unwritten = append(unwritten, `OR (written < members AND cancelled_at = 0 AND waits = 0)`)
			case offpeak.JobBlocked:
				unwritten = append(unwritten, `OR (written < members AND cancelled_at = 0 AND waits > 0)`)
			case offpeak.JobCancelled:
				unwritten = append(unwritten, `OR (written < members AND cancelled_at <> 0 AND reason = '')`)
			case offpeak.JobFailed:
				unwritten = append(unwritten, `OR (written < members AND reason <> '')`)
			}
		}
		where = append(where, `(EXISTS (SELECT 1 FROM jobs j WHERE j.grp <> j.id AND j.grp = job_groups.id AND j.state IN (`+strings.Join(in, ", ")+`)) `+strings.Join(unwritten, " ")+`)`)
	}
	q := `SELECT ` + groupColumns + ` FROM job_groups`
	if len(where) > 0 {
		q += ` WHERE ` + strings.Join(where, " AND ")
	}
	q += ` ORDER BY id DESC LIMIT ` + arg(int64(limit+1))
	groups, err := read(ctx, s, "list groups", func(t *verb) (out []offpeak.Group, err error) {
		var rows []*jobGroup
		if err := t.each(q, args, func(r Rows) error {
			g := &jobGroup{}
			rows = append(rows, g)
			return g.scan(r)
		}); err != nil {
			return nil, err
		}
		for _, g := range rows {
			one, err := s.counted(t, g)
			if err != nil {
				return nil, err
			}
			out = append(out, one)
		}
		return out, nil
	})
	next := ""
	if len(groups) > limit {
		groups = groups[:limit]
		next = string(groups[limit-1].ID)
	}
	return groups, next, err
}

// counted is a group with its members counted.
func (s *Store) counted(t *verb, g *jobGroup) (offpeak.Group, error) {
	counts := map[offpeak.JobState]int{}
	if err := t.each(`SELECT state, count(*) FROM jobs WHERE grp <> id AND grp = $1 GROUP BY state`, []any{string(g.id)}, func(r Rows) error {
		var state offpeak.JobState
		var n int
		err := r.Scan(&state, &n)
		counts[state] = n
		return err
	}); err != nil {
		return offpeak.Group{}, err
	}
	if left := g.members - g.written; left > 0 {
		state, _ := g.rest()
		counts[state] += left
	}
	out, err := s.group(t, g, counts)
	if err != nil || g.parents == 0 {
		return out, err
	}
	after, err := s.awaitedBy(t, []string{string(g.id)})
	out.After = after[string(g.id)]
	return out, err
}

func (s *Store) group(t *verb, g *jobGroup, counts map[offpeak.JobState]int) (offpeak.Group, error) {
	var spec offpeak.Spec
	if len(t.writes.rows[addSpec]) == 0 {
		var err error
		if spec, err = s.spec(t, g.spec); err != nil {
			return offpeak.Group{}, err
		}
	}
	out := g.plain(spec)
	out.Counts, out.State = counts, offpeak.GroupState(counts)
	return out, nil
}

func (g *jobGroup) plain(spec offpeak.Spec) offpeak.Group {
	out := offpeak.Group{
		ID: g.id, Account: g.account, Spec: spec, Array: g.Array, Size: g.size, Members: g.members,
		RetryOf: g.retryOf, SubmittedBy: g.by, SubmittedAt: g.at, Pipeline: g.pipe, Step: g.step, Detail: g.detail,
	}
	if !g.cancelledAt.IsZero() && g.reason == "" {
		out.CancelledAt = &g.cancelledAt
	}
	if g.broken == offpeak.EndGangFailed {
		out.Reason = g.broken
	}
	return out
}

func pruneGroups(t *verb, before int64, limit int) (int, error) {
	var ids, specs []string
	if err := t.each(`SELECT id, spec FROM job_groups WHERE todo = 0 AND written = members AND submitted_at < $1 AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.grp <> j.id AND j.grp = job_groups.id) LIMIT $2`, []any{before, int64(limit)}, func(r Rows) error {
		var id, spec string
		err := r.Scan(&id, &spec)
		ids, specs = append(ids, id), append(specs, spec)
		return err
	}); err != nil || len(ids) == 0 {
		return 0, err
	}
	if _, err := t.Exec(`DELETE FROM job_after WHERE job = ANY($1)`, ids); err != nil {
		return 0, err
	}
	if _, err := t.Exec(`DELETE FROM job_groups WHERE id = ANY($1)`, ids); err != nil {
		return 0, err
	}
	_, err := t.Exec(`DELETE FROM specs WHERE hash = ANY($1) AND NOT EXISTS (SELECT 1 FROM jobs WHERE spec = specs.hash) AND NOT EXISTS (SELECT 1 FROM job_groups WHERE spec = specs.hash)`, specs)
	return len(ids), err
}
