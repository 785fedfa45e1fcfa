// Package recorded reads out of a store what came to a grid, for replay.
//
// It owns which verbs are asked for what events alone do not tell: nodes and jobs
// that were there before the oldest event that is kept. What traffic is, and how it
// is made of events, is replay's. It changes nothing in the store. It is tested on
// both engines.
package recorded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/replay"
	"offpeak/store"
)

// Read returns what the store recorded. told is called now and then with how many
// events were read of how many there may be at most.
func Read(ctx context.Context, s store.Store, told func(read, most int64)) (*replay.Traffic, error) {
	r := &reader{ctx: ctx, s: s, told: told}
	base, err := r.base()
	if err != nil {
		return nil, fmt.Errorf("read what was recorded: %w", err)
	}
	t, err := replay.Record(r.events(), base)
	if err == nil {
		err = r.err
	}
	if err != nil {
		return nil, fmt.Errorf("read what was recorded: %w", err)
	}
	return t, nil
}

type reader struct {
	ctx  context.Context
	s    store.Store
	told func(read, most int64)
	// err is what a look-up in the middle of the events ran into.
	err error
}

const page = 1000

func (r *reader) events() iter.Seq2[offpeak.Event, error] {
	return func(yield func(offpeak.Event, error) bool) {
		after, err := r.s.Pruned(r.ctx)
		var last int64
		if err == nil {
			last, err = r.s.LastEvent(r.ctx)
		}
		first := after
		for err == nil && r.err == nil {
			var events []offpeak.Event
			if events, err = r.s.Events(r.ctx, "", after, page); errors.Is(err, offpeak.ErrNotFound) {
				// Pruned under our hands.
				if after, err = r.s.Pruned(r.ctx); err == nil {
					continue
				}
			}
			if err != nil || len(events) == 0 {
				break
			}
			for i := range events {
				if after = events[i].Cursor; !yield(events[i], nil) {
					return
				}
			}
			if r.told != nil {
				r.told(after-first, last-first)
			}
		}
		if err != nil {
			yield(offpeak.Event{}, err)
		}
	}
}

func (r *reader) base() (b replay.Base, err error) {
	for cursor := ""; ; {
		nodes, next, err := r.s.Nodes(r.ctx, "", store.Page{Cursor: cursor, Limit: page})
		if err != nil {
			return b, err
		}
		b.Nodes = append(b.Nodes, nodes...)
		if cursor = next; cursor == "" {
			break
		}
	}
	for cursor := ""; ; {
		jobs, next, err := r.s.Jobs(r.ctx, store.JobFilter{States: []offpeak.JobState{offpeak.JobQueued}}, store.Page{Cursor: cursor, Limit: page})
		if err != nil {
			return b, err
		}
		b.Waiting = append(b.Waiting, jobs...)
		if cursor = next; cursor == "" {
			break
		}
	}
	for cursor := ""; ; {
		accounts, next, err := r.s.Accounts(r.ctx, store.Page{Cursor: cursor, Limit: page})
		if err != nil {
			return b, err
		}
		b.Accounts = append(b.Accounts, accounts...)
		if cursor = next; cursor == "" {
			break
		}
	}
	b.Job, b.Group, b.Asked = r.job, r.group, r.asked
	w, err := r.s.Weights(r.ctx)
	if errors.Is(err, offpeak.ErrNotFound) {
		return b, nil
	}
	if err != nil {
		return b, err
	}
	b.InForce = new(placement.Tuning)
	if err := json.Unmarshal(w.Text, b.InForce); err != nil {
		return b, fmt.Errorf("version %d of the weights: %w", w.Version, err)
	}
	b.InForce.Version = w.Version
	return b, nil
}

func (r *reader) job(id offpeak.JobID) (offpeak.Job, bool) {
	if r.err != nil {
		return offpeak.Job{}, false
	}
	j, err := r.s.Job(r.ctx, "", id)
	if err != nil && !errors.Is(err, offpeak.ErrNotFound) {
		r.err = err
	}
	return j, err == nil
}

func (r *reader) group(id offpeak.GroupID) (offpeak.Group, bool) {
	if r.err != nil {
		return offpeak.Group{}, false
	}
	g, err := r.s.Group(r.ctx, "", id)
	if err != nil && !errors.Is(err, offpeak.ErrNotFound) {
		r.err = err
	}
	return g, err == nil
}

// asked is what a node asked at a moment: the newest change that is not after it,
// else the oldest that is kept.
func (r *reader) asked(node offpeak.NodeID, at time.Time) *offpeak.Ask {
	var oldest *offpeak.Ask
	for cursor := ""; r.err == nil; {
		list, next, err := r.s.AskHistory(r.ctx, "", node, store.Page{Cursor: cursor, Limit: page})
		if err != nil {
			if !errors.Is(err, offpeak.ErrNotFound) {
				r.err = err
			}
			return oldest
		}
		for _, c := range list {
			if !c.From.After(at) {
				return c.Ask
			}
			oldest = c.Ask
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	return oldest
}
