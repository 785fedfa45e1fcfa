package sqlstore

import (
	"offpeak"
	"offpeak/store"
)

// addStep stores an array that is a step of a pipeline. Its members are written by
// FillGroup, if they are not blocked.
func (s *Store) addStep(t *verb, sub submission, open *quota) error {
	n := sub.job
	if open == nil {
		return offpeak.ErrNotFound
	}
	g := store.NewGroup{
		ID: offpeak.GroupID(n.ID), Account: n.Account, Spec: n.Spec, RetryOf: offpeak.GroupID(n.RetryOf), Rest: n.RetryOf != "",
		After: sub.after, Pipeline: n.Group, Step: n.Index, Awaited: sub.awaited,
	}
	if n.Array != nil {
		g.Array = *n.Array
	}
	made, _, err := s.newGroup(t, sub.op, g, open, 0)
	if err == nil {
		keep(&t.rows.steps, made.ID, made)
	}
	return err
}

// step is an array that is a step, as its pipeline shows it.
func (s *Store) step(t *verb, id offpeak.GroupID, first bool) (offpeak.Job, error) {
	if first {
		return t.rows.steps[id].AsStep(), nil
	}
	g, err := t.groupRow("", id, "")
	if err != nil {
		return offpeak.Job{}, err
	}
	made, err := s.counted(t, g)
	return made.AsStep(), err
}
