package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"offpeak"
	"offpeak/store"
)

const (
	// fillAtOnce and cancelAtOnce are how many members one transaction writes or
	// cancels: what a heartbeat may wait for.
	fillAtOnce   = 512
	cancelAtOnce = 128
	// tendEvery is how often whoever matches looks for groups that another hub left
	// unfinished.
	tendEvery = 5 * time.Second
	// countEvery is the shortest time between two counts of a group that is waited for.
	countEvery = 250 * time.Millisecond
)

// SubmitGroup validates, stores and queues an array. It returns once the group is
// durable; rows of members that are still to be written follow, those of an array that
// waits for jobs once these have ended.
func (h *Hub) SubmitGroup(ctx context.Context, op store.Op, account offpeak.AccountID, spec offpeak.Spec, array offpeak.Array, after ...offpeak.After) (offpeak.Group, error) {
	spec = spec.WithDefaults()
	if err := errors.Join(spec.Validate(), array.Validate(), offpeak.ValidateAfter(after)); err != nil {
		return offpeak.Group{}, err
	}
	if err := h.known(ctx, "", &spec.Requirements); err != nil {
		return offpeak.Group{}, err
	}
	return h.submitGroup(ctx, op, store.NewGroup{Account: account, Spec: spec, Array: array, After: after})
}

// RetryGroup submits members of a group again, with failed only those that have
// failed, as a new group whose members have the same indexes.
func (h *Hub) RetryGroup(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.GroupID, failed bool) (offpeak.Group, error) {
	g, err := h.env.Store.Group(ctx, account, id)
	if err != nil {
		return offpeak.Group{}, fmt.Errorf("retry group %s: %w", id, err)
	}
	return h.submitGroup(ctx, op, store.NewGroup{Account: g.Account, RetryOf: id, Failed: failed})
}

func (h *Hub) submitGroup(ctx context.Context, op store.Op, n store.NewGroup) (offpeak.Group, error) {
	if !op.ID.Valid() {
		return offpeak.Group{}, &offpeak.FieldError{Field: "operation", Value: string(op.ID), Rule: "is 1 to 64 bytes of A-Z a-z 0-9 _ -"}
	}
	if err := h.data.Full(); err != nil {
		return offpeak.Group{}, fmt.Errorf("submit: %w", err)
	}
	id, err := h.newID("group")
	if err != nil {
		return offpeak.Group{}, err
	}
	n.ID = offpeak.NewGroupID(id)
	ctx, done := h.settling(ctx)
	defer done()
	f, err := h.env.Store.SubmitGroup(ctx, op, n)
	if err != nil {
		return offpeak.Group{}, h.failed(err)
	}
	h.metrics.submitted.Add(float64(len(f.Queued)))
	h.filled(&f)
	if f.Left > 0 && f.Group.State != offpeak.JobBlocked {
		h.tend()
	}
	if len(f.Queued) == 0 {
		// It was submitted before, perhaps without an answer that reached this hub.
		again := following{}
		for index := range f.Group.Array.Indexes.Part(0, f.Group.Members-f.Left).All() {
			again.queued = append(again.queued, f.Group.ID.Member(index))
		}
		if err := h.followQueued(ctx, &again); err != nil {
			h.doubt.Store(true)
		}
		h.wake()
	}
	return f.Group, nil
}

// filled takes members that were written into the picture.
func (h *Hub) filled(f *store.Filled) {
	if len(f.Queued) > 0 {
		asks := asksText(f.Queued[0].Requirements)
		now := h.env.Now()
		h.mu.Lock()
		for _, q := range f.Queued {
			h.queue.add(q, asks, now)
		}
		h.mu.Unlock()
		h.wake()
	}
	h.bells.Ring(string(f.Group.ID))
	h.wrote()
}

// CancelGroup cancels all members of a group that have not ended. It returns when
// each is cancelled or asked to stop, or how things stand when ctx is done: the rest
// follows.
func (h *Hub) CancelGroup(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.GroupID) (offpeak.Group, error) {
	settling, done := h.settling(ctx)
	_, err := h.env.Store.CancelGroup(settling, op, account, id, "")
	done()
	if err != nil {
		return offpeak.Group{}, h.failed(err)
	}
	h.wrote()
	h.tend()
	for left := true; left && ctx.Err() == nil; {
		if left, err = h.tendGroup(ctx, store.UnfinishedGroup{ID: id, Fill: true, Cancel: true}); err != nil {
			break // whoever tends groups tries again
		}
	}
	g, err := h.env.Store.Group(context.WithoutCancel(ctx), account, id)
	if err != nil {
		return offpeak.Group{}, fmt.Errorf("cancel group %s: %w", id, err)
	}
	return g, nil
}

// WaitGroup returns the group once all its members have ended, or as it is after wait.
func (h *Hub) WaitGroup(ctx context.Context, account offpeak.AccountID, id offpeak.GroupID, wait time.Duration) (offpeak.Group, error) {
	l := h.bells.Listen(string(id))
	defer l.Stop()
	timer := time.NewTimer(min(max(wait, 0), longestWait))
	defer timer.Stop()
	for {
		moved := l.Next()
		g, err := h.env.Store.Group(ctx, account, id)
		if err != nil {
			return offpeak.Group{}, fmt.Errorf("wait for group %s: %w", id, err)
		}
		if g.State.Terminal() || wait <= 0 {
			return g, nil
		}
		select {
		case <-ctx.Done():
			return g, nil
		case <-h.stopped:
			return g, nil
		case <-timer.C:
			return g, nil
		case <-moved:
			sleep(ctx, countEvery)
		}
	}
}

// written has the row of a member written that has none yet: what changes a job
// needs one.
func (h *Hub) written(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) error {
	id, index, ok := job.Member()
	if !ok {
		return offpeak.ErrNotFound
	}
	if _, err := h.env.Store.Job(ctx, account, job); err != nil {
		return err
	}
	for left := true; left; {
		f, err := h.fill(ctx, id)
		if err != nil {
			return err
		}
		if _, has := f.Group.Array.Indexes.Place(index); !has {
			return nil
		}
		if f.Group.State == offpeak.JobBlocked {
			return fmt.Errorf("array %s waits for others and has no members yet that could be changed one by one: cancel the whole: %w", id, offpeak.ErrConflict)
		}
		left = f.Left > 0
	}
	return nil
}

func (h *Hub) fill(ctx context.Context, id offpeak.GroupID) (store.Filled, error) {
	ctx, done := h.settling(ctx)
	defer done()
	f, err := h.env.Store.FillGroup(ctx, id, fillAtOnce)
	if err != nil {
		return f, h.failed(err)
	}
	h.metrics.submitted.Add(float64(len(f.Queued)))
	h.filled(&f)
	if f.Freed != nil {
		h.apply(store.Change{Freed: f.Freed})
	}
	return f, nil
}

// tend lets groups be looked at that have work left.
func (h *Hub) tend() {
	select {
	case h.untended <- struct{}{}:
	default:
	}
}

// tendGroups writes members of large arrays and cancels those of cancelled ones, a
// part of each at a time, until ctx is done. What a hub leaves unfinished the one
// that matches finishes; two that are at the same group take turns.
func (h *Hub) tendGroups(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-h.loaded:
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.untended:
		case <-timer.C:
			timer.Reset(tendEvery)
			if !h.leads() {
				continue
			}
			h.askForGangs()
		}
		for left := true; left && ctx.Err() == nil; {
			left = false
			list, err := h.env.Store.UnfinishedGroups(ctx, 64)
			for _, u := range list {
				more, failed := h.tendGroup(ctx, u)
				if err = errors.Join(err, failed); more && failed == nil {
					left = true
				}
			}
			if err != nil && ctx.Err() == nil {
				h.env.Log.Warn("tend groups", "err", err)
			}
		}
	}
}

// tendGroup takes one step with a group and says whether there may be more to do.
func (h *Hub) tendGroup(ctx context.Context, u store.UnfinishedGroup) (left bool, err error) {
	if u.Fill {
		f, err := h.fill(ctx, u.ID)
		if err != nil {
			return true, err
		}
		left = f.Left > 0
	}
	if u.Mend {
		more, err := h.mend(ctx, u.ID)
		if left = left || more; err != nil {
			return true, err
		}
	}
	if !u.Cancel {
		return left, nil
	}
	settling, done := h.settling(ctx)
	defer done()
	changes, more, err := h.env.Store.CancelMembers(settling, u.ID, cancelAtOnce)
	if err != nil {
		return true, h.failed(err)
	}
	h.apply(changes...)
	return left || more, nil
}

// memberBell rings for those who wait for a member's group.
func (h *Hub) memberBell(job offpeak.JobID) {
	if g, _, ok := job.Member(); ok {
		h.bells.Ring(string(g))
	}
}

// endedElsewhere notes from another hub's event that a member of an array ended or
// was queued again.
func (w *waiting) endedElsewhere(e *offpeak.Event) {
	var d struct {
		Group offpeak.GroupID `json:"group"`
	}
	if e.Lease != "" && len(e.Data) > 0 && json.Unmarshal(e.Data, &d) == nil && d.Group != "" {
		w.MemberEnded(d.Group)
	}
}

// members are the jobs that an event of a group is about.
func members(e *offpeak.Event) (out []offpeak.JobID) {
	var d offpeak.GroupIndexes
	if json.Unmarshal(e.Data, &d) != nil {
		return nil
	}
	for index := range d.Indexes.All() {
		out = append(out, d.Group.Member(index))
	}
	return out
}
