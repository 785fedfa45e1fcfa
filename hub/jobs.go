package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"offpeak"
	"offpeak/store"
)

// longestWait is how long one call of WaitJob waits at most.
const longestWait = time.Minute

// Submit validates, stores and queues a job, once those that it waits for have ended.
func (h *Hub) Submit(ctx context.Context, op store.Op, account offpeak.AccountID, spec offpeak.Spec, after ...offpeak.After) (offpeak.Job, error) {
	return h.submit(ctx, op, account, spec, after, "")
}

func (h *Hub) submit(ctx context.Context, op store.Op, account offpeak.AccountID, spec offpeak.Spec, after []offpeak.After, retryOf offpeak.JobID) (offpeak.Job, error) {
	spec = spec.WithDefaults()
	if err := errors.Join(spec.Validate(), offpeak.ValidateAfter(after)); err != nil {
		return offpeak.Job{}, err
	}
	if retryOf == "" {
		if err := h.known(ctx, "", &spec.Requirements); err != nil {
			return offpeak.Job{}, err
		}
	}
	if !op.ID.Valid() {
		return offpeak.Job{}, &offpeak.FieldError{Field: "operation", Value: string(op.ID), Rule: "is 1 to 64 bytes of A-Z a-z 0-9 _ -"}
	}
	if err := h.data.Full(); err != nil {
		return offpeak.Job{}, fmt.Errorf("submit: %w", err)
	}
	id, err := h.newID("job")
	if err != nil {
		return offpeak.Job{}, err
	}
	ctx, done := h.settling(ctx)
	defer done()
	j, err := h.env.Store.Submit(ctx, op, store.NewJob{ID: offpeak.JobID(id), Account: account, Spec: spec, RetryOf: retryOf, After: after})
	if err != nil {
		return offpeak.Job{}, h.failed(err)
	}
	h.submitted(j)
	return j, nil
}

// submitted takes new jobs into the picture.
func (h *Hub) submitted(jobs ...offpeak.Job) {
	for i := range jobs {
		j := &jobs[i]
		h.metrics.submitted.Inc()
		if j.State != offpeak.JobQueued {
			continue
		}
		q := queued(j)
		asks := asksText(q.Requirements)
		now := h.env.Now()
		h.mu.Lock()
		h.queue.add(q, asks, now)
		h.mu.Unlock()
		h.circle.tell(string(j.ID))
	}
	h.wake()
	h.wrote()
}

// Retry submits an ended job's spec again; ErrConflict while it has not ended.
func (h *Hub) Retry(ctx context.Context, op store.Op, account offpeak.AccountID, job offpeak.JobID) (offpeak.Job, error) {
	j, err := h.env.Store.Job(ctx, account, job)
	if err != nil {
		return offpeak.Job{}, fmt.Errorf("retry job %s: %w", job, err)
	}
	if !j.State.Terminal() {
		return offpeak.Job{}, fmt.Errorf("retry job %s: it is %s and has not ended: %w", job, j.State, offpeak.ErrConflict)
	}
	if offpeak.GroupID(j.Group).Valid() {
		// Without its array it would find neither index nor parameters.
		only := offpeak.Indexes{{First: j.Index, Last: j.Index}}
		g, err := h.submitGroup(ctx, op, store.NewGroup{Account: j.Account, RetryOf: offpeak.GroupID(j.Group), Only: only})
		if err != nil {
			return offpeak.Job{}, err
		}
		return h.env.Store.Job(ctx, account, g.ID.Member(j.Index))
	}
	return h.submit(ctx, op, j.Account, j.Spec, nil, job)
}

// Cancel cancels a job and tells its node at once.
func (h *Hub) Cancel(ctx context.Context, op store.Op, account offpeak.AccountID, job offpeak.JobID) (offpeak.Job, error) {
	ctx, done := h.settling(ctx)
	defer done()
	c, err := h.env.Store.Cancel(ctx, op, account, job, "")
	if errors.Is(err, offpeak.ErrNotFound) {
		if err = h.written(ctx, account, job); err == nil {
			c, err = h.env.Store.Cancel(ctx, op, account, job, "")
		}
	}
	if err != nil {
		return offpeak.Job{}, h.failed(err)
	}
	h.apply(c)
	return c.Job, nil
}

// WaitJob returns the job once it has ended, or as it is after wait.
func (h *Hub) WaitJob(ctx context.Context, account offpeak.AccountID, job offpeak.JobID, wait time.Duration) (offpeak.Job, error) {
	l := h.bells.Listen(string(job))
	defer l.Stop()
	timer := time.NewTimer(min(max(wait, 0), longestWait))
	defer timer.Stop()
	for {
		moved := l.Next()
		j, err := h.env.Store.Job(ctx, account, job)
		if err != nil {
			return offpeak.Job{}, fmt.Errorf("wait for job %s: %w", job, err)
		}
		if j.State.Terminal() || wait <= 0 {
			return j, nil
		}
		select {
		case <-ctx.Done():
			return j, nil
		case <-h.stopped:
			return j, nil
		case <-timer.C:
			return j, nil
		case <-moved:
		}
	}
}
