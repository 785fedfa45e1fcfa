package replay

import (
	"errors"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/queue"
)

// ByShare is the order of a hub: package queue's, with its settings.
func ByShare(cfg queue.Config) func(*placement.Fleet) Queue {
	return func(fleet *placement.Fleet) Queue {
		return &byShare{queue: queue.New(cfg, fleet, nil), waiting: make(map[offpeak.JobID]*Waiting)}
	}
}

type byShare struct {
	queue   *queue.Queue
	waiting map[offpeak.JobID]*Waiting
}

func (q *byShare) Add(w *Waiting, now time.Time) {
	q.waiting[w.ID] = w
	q.add(w, now)
}

func (q *byShare) add(w *Waiting, now time.Time) *queue.Item {
	return q.queue.Add(queue.Job{
		ID: w.ID, Account: w.Account, Attempt: w.Attempt - 1, Priority: w.Priority, Submitted: time.UnixMicro(w.Since),
		Driver: w.Driver, Requirements: w.Requirements, Text: w.Text, Policy: w.Policy, Lasts: w.Lasts, Avoid: w.Avoid,
		Group: w.Group, AtOnce: w.AtOnce,
	}, now)
}

// Refused does as a hub does whose store refuses a claim.
func (q *byShare) Refused(w *Waiting, why error, now time.Time) {
	q.waiting[w.ID] = w
	it := q.add(w, now)
	if errors.Is(why, ErrTurn) {
		q.queue.Left(w.turn, 0)
		return
	}
	q.queue.Back(w.turn)
	q.queue.Lack(it, why)
}

func (q *byShare) Enough(account offpeak.AccountID, group offpeak.GroupID) {
	q.queue.Funded(account)
	if group != "" {
		q.queue.MemberEnded(group)
	}
}

func (q *byShare) Remove(w *Waiting) {
	delete(q.waiting, w.ID)
	q.queue.Remove(w.ID)
}

func (q *byShare) Freed(node offpeak.NodeID) { q.queue.Freed(node) }

func (q *byShare) Next(now time.Time) (*Waiting, placement.Candidate) {
	it, best, ok := q.queue.Next(now)
	if !ok {
		return nil, placement.Candidate{}
	}
	w := q.waiting[it.ID()]
	w.turn = q.queue.Went(it)
	q.Remove(w)
	return w, best
}

func (q *byShare) Hold(w *Waiting, lease offpeak.LeaseID, c *placement.Candidate, room int, until, now time.Time) {
	q.queue.Left(w.turn, room)
	q.queue.Hold(queue.Lease{ID: lease, Account: w.Account, Node: c.Node, Resources: c.Resources, Since: now, Ends: until}, now)
}

func (q *byShare) Release(lease offpeak.LeaseID, now time.Time) { q.queue.Release(lease, now) }
