package sqlstore

import (
	"context"

	"offpeak"
	"offpeak/store"
)

// holding is what one node should hold.
type holding struct {
	known       bool
	incarnation offpeak.Incarnation
	revision    int64
	list        []store.Assignment
}

// Assignments returns what a node should hold.
func (s *Store) Assignments(ctx context.Context, id offpeak.NodeID) (int64, []store.Assignment, error) {
	h, err := s.assigning.do(ctx, id)
	return h.revision, h.list, err
}

// assignments reads what nodes should hold from one snapshot, which began after each of
// them was asked for.
func (s *Store) assignments(ctx context.Context, ids []offpeak.NodeID) ([]answer[holding], error) {
	byNode := make(map[offpeak.NodeID]*holding, len(ids))
	for _, id := range ids {
		byNode[id] = &holding{}
	}
	var live []*assigned
	m, err := s.db.Glance(ctx, lookAssignments(ids, byNode, &live)...)
	if err == nil {
		err = s.readWork(ctx, live)
	}
	if err != nil {
		return nil, err
	}
	for _, l := range live {
		h := byNode[l.Node]
		a := store.Assignment{Lease: l.Lease, Spec: l.work, Checkpoints: l.from, Inputs: l.inputs, Taken: l.unheard() && l.acceptedIncarnation == h.incarnation}
		if l.State == offpeak.LeaseOffered {
			a.Left = max(0, l.ExpiresAt.Sub(m.Now))
		}
		if l.array != nil {
			_, index, _ := l.Job.Member()
			a.Member = l.array.GroupEnv(l.array.id, index, l.array.size)
		}
		h.list = append(h.list, a)
	}
	out := make([]answer[holding], len(ids))
	for i, id := range ids {
		if h := byNode[id]; h.known {
			out[i].v = *h
		} else {
			out[i].err = offpeak.ErrUnknownNode
		}
	}
	return out, nil
}

// assigned is a live lease with what its assignment says beside.
type assigned struct {
	lease
	spec        offpeak.Hash
	checkpoints bool
	parents     int
	work        offpeak.Spec
	inputs      []store.Input
	from        []offpeak.Checkpoint
	// group is the job's, "" of a job of its own; array is what that is.
	group offpeak.GroupID
	array *array
}

// readWork completes leases by specs that were not read lately, which never change, and
// by checkpoints and the outputs of jobs that they waited for.
func (s *Store) readWork(ctx context.Context, live []*assigned) error {
	var more []*assigned
	for _, l := range live {
		var known bool
		l.work, known = s.recent(l.spec)
		if l.group != "" {
			l.array = s.recentArray(l.group)
		}
		if !known || l.checkpoints || l.parents > 0 || l.group != "" && (l.array == nil || l.array.parents > 0) {
			more = append(more, l)
		}
	}
	if len(more) == 0 {
		return nil
	}
	_, err := read(ctx, s, "read what leases are for", func(t *verb) (struct{}, error) {
		for _, l := range more {
			var err error
			if l.work, err = s.spec(t, l.spec); err != nil {
				return struct{}{}, err
			}
			if l.group != "" {
				if l.array, err = s.arrayOf(t, l.group); err != nil {
					return struct{}{}, err
				}
			}
			if l.checkpoints {
				if l.from, err = t.checkpoints(l.Job); err != nil {
					return struct{}{}, err
				}
			}
			if l.parents > 0 || l.array != nil && l.array.parents > 0 {
				if l.inputs, err = t.inputs(l.Job); err != nil {
					return struct{}{}, err
				}
			}
		}
		return struct{}{}, nil
	})
	return err
}

// lookAssignments reads nodes and their live leases, in the order of their offers.
func lookAssignments(ids []offpeak.NodeID, into map[offpeak.NodeID]*holding, live *[]*assigned) []Look {
	isNode, arg := oneOf("id", ids)
	ofNode, _ := oneOf("node", ids)
	return []Look{{`SELECT id, revision, incarnation FROM nodes WHERE removed_at = 0 AND ` + isNode, []any{arg}, func(r Rows) error {
		var id offpeak.NodeID
		h := holding{known: true}
		err := r.Scan(&id, &h.revision, &h.incarnation)
		if kept := into[id]; kept != nil {
			*kept = h
		}
		return err
	}}, {`SELECT ` + leaseColumns + `, (SELECT spec FROM jobs WHERE jobs.id = leases.job), (SELECT CASE WHEN ` + ofArray + ` THEN grp ELSE '' END FROM jobs WHERE jobs.id = leases.job),
		(SELECT parents FROM jobs WHERE jobs.id = leases.job), EXISTS (SELECT 1 FROM checkpoints WHERE checkpoints.job = leases.job)
		FROM leases WHERE ` + liveLease + ` AND ` + ofNode + ` ORDER BY offered_at, id`, []any{arg}, func(r Rows) error {
		l := &assigned{}
		*live = append(*live, l)
		return l.scan(r, &l.spec, &l.group, &l.parents, &l.checkpoints)
	}}}
}
