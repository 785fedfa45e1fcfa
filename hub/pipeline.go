package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

// SubmitPipeline validates a pipeline as a whole and stores its jobs, all or none.
func (h *Hub) SubmitPipeline(ctx context.Context, op store.Op, account offpeak.AccountID, p offpeak.Pipeline) (wire.PipelineJobs, error) {
	p = p.WithDefaults()
	if err := p.Validate(); err != nil {
		return wire.PipelineJobs{}, err
	}
	for i := range p.Steps {
		if err := h.known(ctx, fmt.Sprintf("steps[%d].", i), &p.Steps[i].Requirements); err != nil {
			return wire.PipelineJobs{}, err
		}
	}
	group, err := h.newID("pipe")
	if err != nil {
		return wire.PipelineJobs{}, err
	}
	ids := make(map[string]offpeak.JobID, len(p.Steps))
	jobs := make([]store.NewJob, 0, len(p.Steps))
	order, _ := p.Order()
	for _, i := range order {
		s := &p.Steps[i]
		id, err := h.stepID(s.Array != nil)
		if err != nil {
			return wire.PipelineJobs{}, err
		}
		ids[s.Name] = id
		n := store.NewJob{ID: id, Array: s.Array, Account: account, Spec: labelled(s.Spec, p.Name), Group: group, Index: i}
		for _, parent := range s.Parents() {
			n.After = append(n.After, offpeak.After{Job: ids[parent.Step], Any: parent.Any, Into: parent.Into})
		}
		jobs = append(jobs, n)
	}
	return h.submitAll(ctx, op, jobs)
}

// stepID makes a step's id: a job's, or an array's.
func (h *Hub) stepID(array bool) (offpeak.JobID, error) {
	if !array {
		id, err := h.newID("job")
		return offpeak.JobID(id), err
	}
	id, err := h.newID("group")
	if err != nil {
		return "", err
	}
	return offpeak.JobID(offpeak.NewGroupID(id)), nil
}

// labelled is a spec with the name of its pipeline, by which its jobs are found.
func labelled(s offpeak.Spec, pipeline string) offpeak.Spec {
	const label = "pipeline"
	if _, has := s.Labels[label]; pipeline == "" || has {
		return s
	}
	labels := map[string]string{label: pipeline}
	for k, v := range s.Labels {
		labels[k] = v
	}
	s.Labels = labels
	return s
}

func (h *Hub) submitAll(ctx context.Context, op store.Op, jobs []store.NewJob) (wire.PipelineJobs, error) {
	if !op.ID.Valid() {
		return wire.PipelineJobs{}, &offpeak.FieldError{Field: "operation", Value: string(op.ID), Rule: "is 1 to 64 bytes of A-Z a-z 0-9 _ -"}
	}
	if err := h.data.Full(); err != nil {
		return wire.PipelineJobs{}, fmt.Errorf("submit: %w", err)
	}
	ctx, done := h.settling(ctx)
	defer done()
	made, err := h.env.Store.SubmitAll(ctx, op, jobs)
	if err != nil {
		return wire.PipelineJobs{}, h.failed(err)
	}
	alone := slices.DeleteFunc(slices.Clone(made), isArray)
	h.submitted(alone...)
	if len(alone) < len(made) {
		h.tend() // it writes their members
	}
	return pipeline(made), nil
}

// pipeline puts the jobs of one into the order of their steps.
func pipeline(jobs []offpeak.Job) wire.PipelineJobs {
	slices.SortFunc(jobs, func(a, b offpeak.Job) int { return a.Index - b.Index })
	return wire.PipelineJobs{ID: jobs[0].Group, Name: jobs[0].Spec.Labels["pipeline"], Jobs: jobs}
}

// Pipeline returns a pipeline's jobs, in the order of their steps.
func (h *Hub) Pipeline(ctx context.Context, account offpeak.AccountID, id string) (wire.PipelineJobs, error) {
	jobs, err := h.members(ctx, account, id)
	if err != nil {
		return wire.PipelineJobs{}, err
	}
	return pipeline(jobs), nil
}

// isArray says that a step is an array, which stands among jobs with its id.
func isArray(j offpeak.Job) bool { return offpeak.GroupID(j.ID).Valid() }

// members are a pipeline's steps, each before those that it waits for.
func (h *Hub) members(ctx context.Context, account offpeak.AccountID, id string) ([]offpeak.Job, error) {
	jobs, _, err := h.env.Store.Jobs(ctx, store.JobFilter{Account: account, Group: offpeak.GroupID(id)}, store.Page{Limit: offpeak.MaxSteps})
	if err != nil {
		return nil, fmt.Errorf("pipeline %s: %w", id, err)
	}
	arrays, _, err := h.env.Store.Groups(ctx, store.GroupFilter{Account: account, Pipeline: id}, store.Page{Limit: offpeak.MaxSteps})
	for _, g := range arrays {
		jobs = append(jobs, g.AsStep())
	}
	if err == nil && len(jobs) == 0 {
		err = offpeak.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("pipeline %s: %w", id, err)
	}
	return waitersFirst(jobs), nil
}

// waitersFirst puts jobs before those that they wait for.
func waitersFirst(jobs []offpeak.Job) []offpeak.Job {
	awaited := make(map[offpeak.JobID]int, len(jobs)) // by how many that are left
	for _, j := range jobs {
		for _, a := range j.After {
			awaited[a.Job]++
		}
	}
	out := make([]offpeak.Job, 0, len(jobs))
	for len(jobs) > 0 {
		i := max(slices.IndexFunc(jobs, func(j offpeak.Job) bool { return awaited[j.ID] == 0 }), 0)
		for _, a := range jobs[i].After {
			awaited[a.Job]--
		}
		out = append(out, jobs[i])
		jobs = slices.Delete(jobs, i, i+1)
	}
	return out
}

// CancelPipeline cancels those jobs of a pipeline that have not ended.
func (h *Hub) CancelPipeline(ctx context.Context, op store.Op, account offpeak.AccountID, id string) (wire.PipelineJobs, error) {
	jobs, err := h.members(ctx, account, id)
	if err != nil {
		return wire.PipelineJobs{}, err
	}
	// Whoever waits goes first, or it would fail for what it waits for.
	for _, j := range jobs {
		if j.State.Terminal() {
			continue
		}
		cancel := func() error { _, err := h.Cancel(ctx, partOf(op, j.ID), account, j.ID); return err }
		if isArray(j) {
			cancel = func() error {
				_, err := h.CancelGroup(ctx, partOf(op, j.ID), account, offpeak.GroupID(j.ID))
				return err
			}
		}
		if err := cancel(); err != nil && !errors.Is(err, offpeak.ErrConflict) {
			return wire.PipelineJobs{}, fmt.Errorf("cancel pipeline %s: %w", id, err)
		}
	}
	return h.Pipeline(ctx, account, id)
}

// partOf is the operation of one job's part in a larger one.
func partOf(op store.Op, job offpeak.JobID) store.Op {
	sum := sha256.Sum256([]byte(string(op.ID) + " " + string(job)))
	op.ID = offpeak.OpID(hex.EncodeToString(sum[:16]))
	return op
}

// RetryPipeline submits those jobs of a pipeline again that did not succeed, as a
// pipeline of their own; ErrConflict while not all have ended, or where all succeeded.
func (h *Hub) RetryPipeline(ctx context.Context, op store.Op, account offpeak.AccountID, id string) (wire.PipelineJobs, error) {
	jobs, err := h.members(ctx, account, id)
	if err != nil {
		return wire.PipelineJobs{}, err
	}
	group, err := h.newID("pipe")
	if err != nil {
		return wire.PipelineJobs{}, err
	}
	var again []store.NewJob
	for _, j := range slices.Backward(jobs) {
		switch {
		case !j.State.Terminal():
			return wire.PipelineJobs{}, fmt.Errorf("retry pipeline %s: step %s is %s and has not ended: %w", id, j.Spec.Name, j.State, offpeak.ErrConflict)
		case j.State == offpeak.JobSucceeded:
			continue
		}
		fresh, err := h.stepID(isArray(j))
		if err != nil {
			return wire.PipelineJobs{}, err
		}
		again = append(again, store.NewJob{ID: fresh, Account: j.Account, Spec: j.Spec, RetryOf: j.ID, Group: group, Index: j.Index})
	}
	if len(again) == 0 {
		return wire.PipelineJobs{}, fmt.Errorf("retry pipeline %s: all of its steps have succeeded: %w", id, offpeak.ErrConflict)
	}
	return h.submitAll(ctx, op, again)
}
