package sqlstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"offpeak"
	"offpeak/store"
)

// array is what never changes of a group.
type array struct {
	id      offpeak.GroupID
	account offpeak.AccountID
	spec    offpeak.Hash
	offpeak.Array
	size, members int
	// parents is of how many jobs it waits for the end.
	parents int
	retryOf offpeak.GroupID
	by      offpeak.MemberID
	// pipe is the pipeline that it is a step of, step which.
	pipe string
	step int
	at   time.Time
}

// jobGroup is a group's row.
type jobGroup struct {
	*array
	written int
	todo    bool
	// fresh: the verb makes it.
	fresh bool
	// waits is of how many jobs it was not told yet; awaited, that others wait, or
	// waited, for its end.
	waits   int
	awaited bool
	// cancelledAt is when it was cancelled, or, with a reason, when it turned out that
	// its members won't begin.
	cancelledAt time.Time
	reason      offpeak.EndReason
	detail      string
	// broken is what MendGang has to do, "" for nothing.
	broken offpeak.EndReason
}

const groupColumns = `id, account, spec, indexes, sweep, at_once, size, members, written, todo, retry_of, submitted_by, submitted_at, cancelled_at, detail, parents, waits, awaited, reason, pipe, step, gang, broken`

func (g *jobGroup) scan(r Rows) error {
	g.array = &array{}
	var indexes, sweep string
	var todo, at, cancelled, awaited int64
	if err := r.Scan(&g.id, &g.account, &g.spec, &indexes, &sweep, &g.AtOnce, &g.size, &g.members, &g.written, &todo, &g.retryOf, &g.by, &at, &cancelled, &g.detail, &g.parents, &g.waits, &awaited, &g.reason, &g.pipe, &g.step, &g.Gang, &g.broken); err != nil {
		return err
	}
	g.todo, g.awaited, g.at, g.cancelledAt = todo == 1, awaited == 1, moment(at), moment(cancelled)
	var err error
	if g.Indexes, err = offpeak.ParseIndexes(indexes); err == nil && sweep != "" {
		err = json.Unmarshal([]byte(sweep), &g.Sweep)
	}
	if err != nil {
		return fmt.Errorf("read group %s: %w", g.id, err)
	}
	return nil
}

// groupRow reads a group of an account ("" any), lock being how its row is locked.
func (t *verb) groupRow(account offpeak.AccountID, id offpeak.GroupID, lock string) (*jobGroup, error) {
	var g *jobGroup
	if err := t.each(`SELECT `+groupColumns+` FROM job_groups WHERE id = $1`+lock, []any{string(id)}, func(r Rows) error {
		g = &jobGroup{}
		return g.scan(r)
	}); err != nil {
		return nil, err
	}
	if g == nil || account != "" && g.account != account {
		return nil, offpeak.ErrNotFound
	}
	return g, nil
}

// recentArray is an array that was read lately, nil if it was not.
func (s *Store) recentArray(id offpeak.GroupID) *array {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrays[id]
}

func (s *Store) arrayOf(t *verb, id offpeak.GroupID) (*array, error) {
	if a := s.recentArray(id); a != nil {
		return a, nil
	}
	g, err := t.groupRow("", id, "")
	if err != nil {
		return nil, fmt.Errorf("read group %s: %w", id, err)
	}
	const most = 128
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.arrays) >= most {
		clear(s.arrays)
	}
	s.arrays[id] = g.array
	return g.array, nil
}

// ofArray says of a job that it is a member of an array: steps of pipelines are in a
// group too, which has no row.
const ofArray = `grp LIKE 'group_%'`

// joinArray completes a member of an array.
func (s *Store) joinArray(t *verb, j *job) (err error) {
	if !strings.HasPrefix(j.Group, "group_") {
		return nil
	}
	if j.array, err = s.arrayOf(t, offpeak.GroupID(j.Group)); err == nil {
		j.Params = j.array.Params(j.Index)
	}
	return err
}

// limited is the group of a member, where at most some hold leases at once.
func (j *job) limited() offpeak.GroupID {
	if j.array == nil || j.array.AtOnce == 0 {
		return ""
	}
	return j.array.id
}

// gang is that of a member of one, "" of all others.
func (j *job) gang() offpeak.GroupID {
	if j.array == nil || j.array.Gang == 0 {
		return ""
	}
	return j.array.id
}

// rest is how members stand that have no row yet.
func (g *jobGroup) rest() (offpeak.JobState, offpeak.EndReason) {
	switch {
	case g.reason != "":
		return offpeak.JobFailed, g.reason
	case !g.cancelledAt.IsZero():
		return offpeak.JobCancelled, offpeak.EndCancelled
	case g.waits > 0:
		return offpeak.JobBlocked, ""
	}
	return offpeak.JobQueued, ""
}

// unwritten is a member that has no row yet; one without an id where there is none.
func (s *Store) unwritten(t *verb, id offpeak.JobID) (*job, error) {
	j := &job{}
	of, index, ok := id.Member()
	if !ok {
		return j, nil
	}
	g, err := t.groupRow("", of, "")
	if err != nil {
		return j, notThere(err)
	}
	if place, ok := g.Indexes.Place(index); !ok || place < g.written {
		return j, nil
	}
	j.ID, j.Account, j.Group, j.Index, j.spec, j.State, j.SubmittedBy, j.SubmittedAt = id, g.account, string(of), index, g.spec, offpeak.JobQueued, g.by, g.at
	if g.retryOf != "" {
		j.RetryOf = g.retryOf.Member(index)
	}
	if j.State, j.Reason = g.rest(); j.State.Terminal() {
		j.Detail, j.EndedAt = g.detail, &g.cancelledAt
	}
	j.written()
	return j, nil
}

func notThere(err error) error {
	if err == offpeak.ErrNotFound { //nolint:errorlint // as groupRow returns it
		return nil
	}
	return err
}

// ownerOfUnwritten is the account of a member that has no row yet.
func (t *verb) ownerOfUnwritten(id offpeak.JobID) (offpeak.AccountID, error) {
	j, err := (*Store)(nil).unwritten(t, id)
	if err == nil && j.ID == "" {
		err = offpeak.ErrNotFound
	}
	return j.Account, err
}

// loadMembers locks the arrays with a limit of which members are claimed, and counts
// who holds leases.
func (t *verb) loadMembers(claims []store.Claim) error {
	var limited []offpeak.GroupID
	seen := map[offpeak.GroupID]bool{}
	for _, c := range claims {
		if j := t.rows.jobs[c.Job]; j != nil && j.limited() != "" && !seen[j.limited()] {
			seen[j.limited()] = true
			limited = append(limited, j.limited())
			keep(&t.rows.members, j.array.id, &quota{most: int64(j.array.AtOnce)})
		}
	}
	if len(limited) == 0 {
		return nil
	}
	if err := t.Lock(`SELECT 1 FROM job_groups WHERE id = ANY($1) ORDER BY id`+forUpdate, texts(limited)); err != nil {
		return err
	}
	where, arg := oneOf("grp", limited)
	return t.each(`SELECT grp, count(*) FROM jobs WHERE grp <> id AND `+where+` AND state IN ('leased', 'running', 'cancelling') GROUP BY grp`, []any{arg}, func(r Rows) error {
		var id offpeak.GroupID
		var live int64
		err := r.Scan(&id, &live)
		t.rows.members[id].live = live
		return err
	})
}

// membersOf counts the members of a job's array, where claims asked for that.
func (t *verb) membersOf(j *job) *quota {
	if j.array == nil {
		return nil
	}
	return t.rows.members[j.array.id]
}

// room is how many more members of a job's array may be claimed.
func (t *verb) room(j *job) int {
	if q := t.membersOf(j); q != nil {
		return int(q.most - q.live)
	}
	return 0
}
