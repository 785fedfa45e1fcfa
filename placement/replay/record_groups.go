package replay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"offpeak"
)

// groupTrack is what events say of an array.
type groupTrack struct {
	id     offpeak.GroupID
	atOnce int
	// asks is what each member asks for, nil while nothing says it; asked says that
	// the base was.
	asks  *Job
	asked bool
}

// member is a member as it was submitted, nil while nobody knows what it asks for.
func (g *groupTrack) member(id offpeak.JobID) *Job {
	if g.asks == nil {
		return nil
	}
	j := *g.asks
	if j.ID = id; g.atOnce > 0 {
		j.Group, j.AtOnce = g.id, g.atOnce
	}
	return &j
}

// group is an event of an array: members begin to wait for a node when they are
// queued. Those that wait for other jobs have no lives yet, and those that were
// cancelled or failed with the whole never had one.
func (r *recorder) group(e *offpeak.Event, what string) error {
	if what != string(offpeak.JobQueued) && what != string(offpeak.JobBlocked) {
		return nil
	}
	var d offpeak.GroupIndexes
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return err
	}
	if !d.Group.Valid() || d.AtOnce < 0 {
		return fmt.Errorf("group %q with the limit %d: it is the id of an array, and a limit is not negative", d.Group, d.AtOnce)
	}
	g := r.groups[d.Group]
	if g == nil {
		g = &groupTrack{id: d.Group}
		r.groups[d.Group] = g
	}
	g.atOnce = max(g.atOnce, d.AtOnce)
	if d.GroupAsks != nil && d.Requirements != nil && g.asks == nil {
		if err := checkAsks(d.Requirements); err != nil {
			return fmt.Errorf("group %s: %w", d.Group, err)
		}
		g.asks = &Job{Account: e.Account, Driver: d.Driver, Priority: d.Priority, Requirements: *d.Requirements, Policy: d.Policy, Limit: d.Limit, Retry: d.Retry}
	}
	if what == string(offpeak.JobBlocked) {
		return nil
	}
	for index := range d.Indexes.All() {
		id := d.Group.Member(index)
		if g.asks == nil && !g.asked && r.base.Job != nil {
			// One stands for all: they have one spec.
			known, ok := r.base.Job(id)
			if g.asked = ok; ok {
				g.asks = r.jobOf(&known)
				g.asks.Group, g.asks.AtOnce = "", 0
			}
		}
		j := r.jobs[id]
		if j == nil {
			j = &jobTrack{}
			r.jobs[id] = j
		}
		j.member, j.submitted = true, e.At
		if j.job == nil {
			j.job = g.member(id)
		}
		if err := r.room(); err != nil {
			return err
		}
	}
	return nil
}

func (r *recorder) room() error {
	if most := cmp.Or(r.base.Most, 4<<20); len(r.jobs) > most {
		return fmt.Errorf("more than %d jobs: record less time at once", most)
	}
	return nil
}

// accountTrack is what events say of an account.
type accountTrack struct {
	// first is the quota that it had before what its events say, nil where these do not
	// tell; changed says that one of them set it.
	first   *offpeak.Quota
	changed bool
	steps   []Step
}

func (r *recorder) account(e *offpeak.Event, what string) error {
	var d struct {
		Quota *offpeak.Quota `json:"quota"`
		Was   *offpeak.Quota `json:"was"`
	}
	if what != "created" && what != "quota" {
		return nil
	}
	if len(e.Data) > 0 {
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return err
		}
	}
	a := r.accounts[e.Account]
	if a == nil {
		a = &accountTrack{}
		r.accounts[e.Account] = a
	}
	if what == "quota" {
		d.Quota = new(offpeak.Quota)
		if len(e.Data) > 0 {
			if err := json.Unmarshal(e.Data, d.Quota); err != nil {
				return err
			}
		}
		if !a.changed {
			a.first = d.Was
		}
	}
	if d.Quota == nil {
		return nil
	}
	if a.changed = true; what == "created" {
		a.first = nil
	}
	s := Step{At: e.At, Quota: quotaOf(e.Account, d.Quota)}
	if err := s.check(); err != nil {
		return err
	}
	a.steps = append(a.steps, s)
	return nil
}

func quotaOf(id offpeak.AccountID, q *offpeak.Quota) *Quota {
	return &Quota{Account: id, Queued: q.Queued, Running: q.Running, GPUs: q.GPUs}
}

// addQuotas adds what accounts may have, in front of all else: those of before from the
// beginning on.
func (r *recorder) addQuotas(t *Traffic) {
	for i := range r.base.Accounts {
		a := &r.base.Accounts[i]
		known := r.accounts[a.ID]
		if known == nil {
			known = &accountTrack{}
			r.accounts[a.ID] = known
		}
		if !known.changed {
			known.first = &a.Quota // nothing has changed it since
		}
	}
	var steps []Step
	for _, id := range slices.Sorted(maps.Keys(r.accounts)) {
		a := r.accounts[id]
		if a.first != nil {
			if q := quotaOf(id, a.first); *q != (Quota{Account: id}) {
				steps = append(steps, Step{At: t.From, Quota: q})
			}
		}
		steps = append(steps, a.steps...)
	}
	t.Steps = slices.Concat(steps, t.Steps)
}
