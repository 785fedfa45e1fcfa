package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"offpeak"
	"offpeak/store"
)

// observed bounds what a lease may have metered by now: by what the agent says
// it ran, by what the store saw pass since the start was acknowledged, and by
// the time limit. It never falls under what was accepted before, and stands
// still once the devices are free.
func (l *lease) observed(now time.Time, ran offpeak.Millis) offpeak.Millis {
	since := l.acceptedAt
	if l.StartedAt != nil {
		since = *l.StartedAt
	}
	if since.IsZero() || !l.State.Holds() {
		return l.Metered
	}
	seen := offpeak.Millis(now.Sub(since).Milliseconds())
	limit := offpeak.Millis(l.limit.Milliseconds())
	return max(l.Metered, min(ran, seen, limit))
}

func (t *verb) closeTerm(id offpeak.LeaseID, metered offpeak.Millis, at time.Time) error {
	_, err := t.Exec(`UPDATE lease_terms SET to_at = $1, metered = $2 - COALESCE((SELECT CAST(sum(e.metered) AS BIGINT) FROM lease_terms e WHERE e.lease = $3 AND e.n < lease_terms.n), 0)
		WHERE lease = $3 AND n = (SELECT max(n) FROM lease_terms WHERE lease = $3)`, micros(at), int64(metered), string(id))
	return err
}

// outcome is what an ended report was answered, kept in its lease's row.
type outcome struct {
	Job      offpeak.Job
	Queued   *store.Queued
	Node     offpeak.NodeID
	Revision int64
	Closed   bool
}

// Report applies one report.
func (s *Store) Report(ctx context.Context, r store.Report) (store.Change, error) {
	if _, known := offpeak.EndOf(r.Reason); r.Kind == store.ReportEnded && !known {
		return store.Change{}, &offpeak.FieldError{Field: "reason", Value: string(r.Reason), Rule: "stands in the table of ends"}
	}
	if !slices.Contains([]store.ReportKind{store.ReportAccepted, store.ReportRunning, store.ReportFinishing, store.ReportEnded}, r.Kind) {
		return store.Change{}, &offpeak.FieldError{Field: "kind", Value: string(r.Kind), Rule: "is accepted, running, finishing or ended"}
	}
	if r.Ran < 0 {
		return store.Change{}, &offpeak.FieldError{Field: "ran_ms", Rule: "is not negative"}
	}
	c, err := write(ctx, s, "report "+string(r.Kind)+" of lease "+string(r.Lease), func(t *verb) (store.Change, error) { return s.report(t, r) })
	if stale, ok := errors.AsType[*offpeak.StaleLeaseError](err); ok {
		if err := s.countStale(ctx, r.Node, stale, string(r.Kind)); err != nil {
			return store.Change{}, err
		}
	}
	return c, err
}

// countStale leaves an audit row of a refused message in a transaction of its
// own, since the refused one changed nothing.
func (s *Store) countStale(ctx context.Context, node offpeak.NodeID, stale *offpeak.StaleLeaseError, what string) error {
	_, err := write(ctx, s, "audit stale "+what, func(t *verb) (struct{}, error) {
		t.audit(byNode("", node), "lease."+what, string(stale.Lease), "stale")
		return struct{}{}, nil
	})
	return err
}

func (s *Store) report(t *verb, r store.Report) (store.Change, error) {
	if err := t.lockNodes(r.Node); err != nil {
		return store.Change{}, err
	}
	l, j, err := s.fence(t, r.Node, r.Lease, r.Attempt)
	if l != nil && l.incarnation == r.Incarnation && r.Seq <= l.Seq {
		if c, ok, again := s.repeated(t, l, j); ok || again != nil {
			return c, again
		}
	}
	if err != nil {
		return store.Change{}, err
	}
	if l.State == offpeak.LeaseOffered && !l.ExpiresAt.After(t.now) {
		return store.Change{}, &offpeak.StaleLeaseError{Lease: l.ID, Attempt: j.Attempt, State: l.State}
	}
	for _, a := range r.Logs {
		if _, err := t.appendLog(l, a); err != nil {
			return store.Change{}, err
		}
	}
	l.incarnation, l.Seq = r.Incarnation, r.Seq
	if l.unheard() {
		l.acceptedIncarnation, l.acceptedSeq = r.Incarnation, r.Seq
	}
	if r.Restored != 0 {
		l.Restored = r.Restored
	}
	if r.Kind == store.ReportEnded {
		c, err := s.reportEnd(t, r, l, j)
		if err != nil || r.Then == nil {
			return c, err
		}
		then, err := s.claimed(t, *r.Then)
		c.Then = &then
		return c, err
	}
	was := l.State
	if err := s.advance(t, r, l, j, r.Kind); err != nil {
		return store.Change{}, err
	}
	c := store.Change{Lease: &l.Lease}
	if was.Holds() && !l.State.Holds() {
		if c.Revision, err = t.release(l); err != nil {
			return store.Change{}, err
		}
		c.Node = l.Node
		if err := t.closeTerm(l.ID, l.Metered, t.now); err != nil {
			return store.Change{}, err
		}
	}
	if err := t.must(`UPDATE leases SET state = $1, expires_at = $2, metered = $3, incarnation = $4, seq = $5, accepted_incarnation = $6, accepted_seq = $7, restored = $8, accepted_at = $9, started_at = $10
		WHERE id = $11 AND attempt = $12 AND state = $13`,
		string(l.State), micros(l.ExpiresAt), int64(l.Metered), string(l.incarnation), l.Seq, string(l.acceptedIncarnation), l.acceptedSeq, l.Restored, micros(l.acceptedAt), microsOf(l.StartedAt),
		string(l.ID), int64(l.Attempt), string(was)); err != nil {
		return store.Change{}, err
	}
	c.Job = j.Job
	return c, nil
}

func microsOf(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return micros(*t)
}

// repeated answers a report that was applied before. ok is false when the lease
// ended by other hands than a report's.
func (s *Store) repeated(t *verb, l *lease, j *job) (c store.Change, ok bool, err error) {
	if !l.State.Terminal() {
		return store.Change{Job: j.Job, Lease: &l.Lease}, true, nil
	}
	if l.outcome == "" {
		return store.Change{}, false, nil
	}
	var o outcome
	if err := json.Unmarshal([]byte(l.outcome), &o); err != nil {
		return store.Change{}, false, fmt.Errorf("read the outcome of lease %s: %w", l.ID, err)
	}
	o.Job.Spec = j.Spec
	if o.Queued != nil {
		o.Queued.Requirements = &j.Spec.Requirements
	}
	return store.Change{Job: o.Job, Lease: &l.Lease, Queued: o.Queued, Node: o.Node, Revision: o.Revision, NodeClosed: o.Closed}, true, nil
}

// order of the reports' kinds and of the lease states they lead to.
var steps = [...]struct {
	kind  store.ReportKind
	state offpeak.LeaseState
}{
	{store.ReportAccepted, offpeak.LeasePreparing},
	{store.ReportRunning, offpeak.LeaseRunning},
	{store.ReportFinishing, offpeak.LeaseFinishing},
}

// advance moves a lease in memory, and its job in the database, through every
// step up to the one that a report of kind means. Steps that are past are left
// out; each taken one is an event of its own.
func (s *Store) advance(t *verb, r store.Report, l *lease, j *job, kind store.ReportKind) error {
	at, last := 0, 0 // the first step that is not taken yet, and the last to take
	for i, st := range steps {
		if l.State == st.state {
			at = i + 1
		}
		if st.kind == kind {
			last = i
		}
	}
	// A step that is past is said again by the next agent, which adopted the job.
	for ; at <= last; at++ {
		st := steps[at]
		if err := l.State.To(st.state); err != nil {
			return err
		}
		switch st.kind {
		case store.ReportAccepted:
			timeout, err := t.timeout(l.Node)
			if err != nil {
				return err
			}
			l.acceptedAt, l.acceptedIncarnation, l.acceptedSeq = t.now, r.Incarnation, r.Seq
			l.ExpiresAt = later(l.ExpiresAt, t.now.Add(timeout+l.grace))
		case store.ReportRunning:
			if err := s.start(t, r, l, j); err != nil {
				return err
			}
		case store.ReportFinishing:
			l.Metered = l.observed(t.now, r.Ran)
		}
		l.State = st.state
		t.event(offpeak.Event{Type: "lease." + string(st.state), Account: l.Account, Job: l.Job, Attempt: l.Attempt, Lease: l.ID, Node: l.Node})
	}
	if l.State == offpeak.LeaseRunning {
		l.Metered = l.observed(t.now, r.Ran)
	}
	return nil
}

// start begins metering. When the start is told by a later report, what ran is
// seen from the acceptance on, which the agent waits for before it starts.
func (s *Store) start(t *verb, r store.Report, l *lease, j *job) error {
	began := t.now
	if r.Kind != store.ReportRunning {
		began = later(l.acceptedAt, t.now.Add(-time.Duration(r.Ran)*time.Millisecond))
	}
	l.StartedAt = &began
	if _, err := t.Exec(`INSERT INTO lease_terms (lease, n, price, from_at) VALUES ($1, 1, $2, $3)`, string(l.ID), int64(l.Price), micros(began)); err != nil {
		return err
	}
	if j.StartedAt == nil {
		j.StartedAt = &began
	}
	if j.State == offpeak.JobCancelling {
		return nil
	}
	if err := j.State.To(offpeak.JobRunning); err != nil {
		return err
	}
	t.event(offpeak.Event{Type: "job.running", Account: l.Account, Job: l.Job, Attempt: l.Attempt, Lease: l.ID, Node: l.Node})
	if r.Kind != store.ReportEnded { // else the end writes the row
		if err := t.must(`UPDATE jobs SET state = 'running', started_at = $1 WHERE id = $2 AND state = $3 AND lease = $4`, micros(*j.StartedAt), string(j.ID), string(j.State), string(l.ID)); err != nil {
			return err
		}
	}
	j.State = offpeak.JobRunning
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (t *verb) timeout(id offpeak.NodeID) (time.Duration, error) {
	var us int64
	err := t.row(`SELECT timeout FROM nodes WHERE id = $1`, []any{string(id)}, &us)
	return time.Duration(us) * time.Microsecond, err
}

// reportEnd applies the last report of a lease.
func (s *Store) reportEnd(t *verb, r store.Report, l *lease, j *job) (store.Change, error) {
	for _, stream := range slices.Sorted(maps.Keys(r.LogEnd)) {
		end, err := t.logEnd(l.ID, stream)
		if err != nil {
			return store.Change{}, err
		}
		if end < r.LogEnd[stream] {
			return store.Change{}, &offpeak.LogGapError{Want: end, Got: r.LogEnd[stream]}
		}
	}
	e := ending{
		reason: r.Reason, detail: r.Detail, exit: r.ExitCode, signal: r.Signal, output: r.Output, ran: r.Ran, reported: true,
		wasLease: l.State, wasJob: j.State,
	}
	if r.Reason == offpeak.EndCancelled && j.State != offpeak.JobCancelling {
		// Nobody with the right asked for it: a node can't cancel a job.
		e.reason, e.detail = offpeak.EndNodeError, "the node says cancelled, but nobody cancelled the job"
	}
	if r.Output != "" {
		if err := t.hasTree(l.Account, r.Output); err != nil {
			return store.Change{}, err
		}
	}
	switch {
	case r.Started || r.Reason == offpeak.EndCompleted:
		if l.State != offpeak.LeaseFinishing && l.State != offpeak.LeaseRunning {
			if err := s.advance(t, r, l, j, store.ReportRunning); err != nil {
				return store.Change{}, err
			}
		}
	case l.State == offpeak.LeaseOffered && r.Reason != offpeak.EndDeclined:
		if err := s.advance(t, r, l, j, store.ReportAccepted); err != nil {
			return store.Change{}, err
		}
	}
	c, err := s.end(t, l, j, e)
	if err != nil {
		return store.Change{}, err
	}
	return c, nil
}

// ending is how a lease ends.
type ending struct {
	reason   offpeak.EndReason
	detail   string
	exit     *int
	signal   string
	output   offpeak.Hash
	ran      offpeak.Millis
	reported bool
	// What the rows say, where the steps before the end moved on in memory;
	// "" is the states of lease and job as they are.
	wasLease offpeak.LeaseState
	wasJob   offpeak.JobState
}

// endNow ends a lease whose job has not been read.
func (s *Store) endNow(t *verb, l *lease, e ending) (store.Change, error) {
	j, err := s.job(t, "", l.Job)
	if err != nil {
		return store.Change{}, err
	}
	t.audit(byHub(), "lease.end", string(l.ID), string(e.reason))
	return s.end(t, l, j, e)
}

// end is the one place where a lease ends: it meters and releases, moves the
// job where offpeak.AfterEnd says, and closes a drained node.
func (s *Store) end(t *verb, l *lease, j *job, e ending) (store.Change, error) {
	e.wasLease, e.wasJob = or(e.wasLease, l.State), or(e.wasJob, j.State)
	if j.State == offpeak.JobCancelling && e.reason == offpeak.EndCompleted {
		e.reason = offpeak.EndCancelled // its result is not accepted
	}
	row, _ := offpeak.EndOf(e.reason)
	if err := l.State.To(row.Lease); err != nil {
		return store.Change{}, err
	}
	if l.State == offpeak.LeaseRunning {
		l.Metered = l.observed(t.now, e.ran)
	}
	c := store.Change{Node: l.Node}
	var err error
	if l.State.Holds() {
		c.Revision, err = t.release(l)
	} else {
		c.Revision, err = t.touched(l.Node)
	}
	if err != nil {
		return store.Change{}, err
	}
	if l.State == offpeak.LeaseRunning {
		if err := t.closeTerm(l.ID, l.Metered, t.now); err != nil {
			return store.Change{}, err
		}
	}
	l.State, l.Reason, l.Detail, l.ExitCode, l.Signal, l.EndedAt, l.Frozen = row.Lease, e.reason, e.detail, e.exit, e.signal, &t.now, false
	if e.output != "" {
		l.Output = e.output
	}
	if err := s.settle(t, l, j, e, row); err != nil {
		return store.Change{}, err
	}
	if c.NodeClosed, err = t.closeDrained(l); err != nil {
		return store.Change{}, err
	}
	c.Job, c.Queued = j.Job, j.queued()
	if e.reported {
		o := outcome{Job: j.Job, Queued: j.queued(), Node: c.Node, Revision: c.Revision, Closed: c.NodeClosed}
		o.Job.Spec = offpeak.Spec{}
		if o.Queued != nil {
			o.Queued.Requirements = nil
		}
		l.outcome = string(data(o))
	}
	if err := t.must(`UPDATE leases SET state = $1, metered = $2, incarnation = $3, seq = $4, outcome = $5, accepted_incarnation = $6, accepted_seq = $7, reason = $8, detail = $9, exit_code = $10, signal = $11,
		output = $12, restored = $13, accepted_at = $14, started_at = $15, ended_at = $16, frozen = FALSE, expires_at = $20 WHERE id = $17 AND attempt = $18 AND state = $19`,
		string(l.State), int64(l.Metered), string(l.incarnation), l.Seq, l.outcome, string(l.acceptedIncarnation), l.acceptedSeq, string(l.Reason), l.Detail, nullCode(l.ExitCode), l.Signal,
		string(l.Output), l.Restored, micros(l.acceptedAt), microsOf(l.StartedAt), micros(t.now), string(l.ID), int64(l.Attempt), string(e.wasLease), micros(l.ExpiresAt)); err != nil {
		return store.Change{}, err
	}
	c.Lease = &l.Lease
	return c, nil
}

func or[S ~string](a, b S) S {
	if a == "" {
		return b
	}
	return a
}

// settle moves the job of a lease that ends.
func (s *Store) settle(t *verb, l *lease, j *job, e ending, row offpeak.End) error {
	t.event(offpeak.Event{Type: "lease." + string(l.State), Account: l.Account, Job: l.Job, Attempt: l.Attempt, Lease: l.ID, Node: l.Node, Reason: e.reason, Data: data(struct {
		Metered  offpeak.Millis `json:"metered_ms"`
		ExitCode *int           `json:"exit_code,omitempty"`
		Signal   string         `json:"signal,omitempty"`
		Detail   string         `json:"detail,omitempty"`
	}{l.Metered, l.ExitCode, l.Signal, l.Detail})})
	policy := offpeak.DefaultRetryPolicy()
	if j.Spec.Retry != nil {
		policy = *j.Spec.Retry
	}
	// The store's source is shared by every verb.
	s.mu.Lock()
	v := offpeak.AfterEnd(j.State, e.reason, policy, j.Counts, s.rand)
	s.mu.Unlock()
	if err := j.State.To(v.State); err != nil {
		return err
	}
	j.State, j.Counts, j.Lease = v.State, v.Counts, ""
	// A cancelled job keeps who cancelled it and why, unless its end says more.
	if j.Reason, j.ExitCode, j.Signal = e.reason, e.exit, e.signal; v.State == offpeak.JobCancelled {
		j.Reason = offpeak.EndCancelled
		j.Detail = or(j.Detail, e.detail)
	} else {
		j.Detail = e.detail
	}
	j.NotBefore, j.EndedAt = nil, nil
	switch {
	case v.State == offpeak.JobSucceeded:
		j.Output = l.Output
	case v.State == offpeak.JobQueued && v.Pause > 0:
		at := t.now.Add(v.Pause).Truncate(time.Microsecond)
		j.NotBefore = &at
	}
	if v.State.Terminal() {
		j.EndedAt = &t.now
	} else if row.Counter != offpeak.CountFree {
		j.avoid = avoidToo(j.avoid, l.Node)
	}
	if err := t.must(`UPDATE jobs SET state = $1, lease = '', reason = $2, detail = $3, exit_code = $4, signal = $5, output = $6, count_user = $7, count_node = $8, count_interruption = $9,
		avoid = $10, not_before = $11, started_at = $12, ended_at = $13 WHERE id = $14 AND state = $15 AND attempt = $16 AND lease = $17`,
		string(j.State), string(j.Reason), j.Detail, nullCode(j.ExitCode), j.Signal, string(j.Output), int64(j.Counts.User), int64(j.Counts.Node), int64(j.Counts.Interruption),
		j.avoid, microsOf(j.NotBefore), microsOf(j.StartedAt), microsOf(j.EndedAt), string(j.ID), string(e.wasJob), int64(l.Attempt), string(l.ID)); err != nil {
		return err
	}
	t.event(offpeak.Event{Type: "job." + string(j.State), Account: j.Account, Job: j.ID, Attempt: l.Attempt, Lease: l.ID, Node: l.Node, Reason: j.Reason, Data: data(struct {
		NotBefore *time.Time           `json:"not_before,omitempty"`
		Counts    *offpeak.RetryCounts `json:"retries,omitempty"`
	}{j.NotBefore, counts(j)})})
	return nil
}

func counts(j *job) *offpeak.RetryCounts {
	if j.Counts == (offpeak.RetryCounts{}) {
		return nil
	}
	return &j.Counts
}

// closeDrained closes a draining node when this was its last live lease.
func (t *verb) closeDrained(l *lease) (bool, error) {
	n, err := t.Exec(`UPDATE nodes SET intent = 'closed' WHERE id = $1 AND intent = 'draining' AND removed_at = 0
		AND NOT EXISTS (SELECT 1 FROM leases WHERE node = $1 AND `+liveLease+` AND id <> $2)`, string(l.Node), string(l.ID))
	if err != nil || n == 0 {
		return false, err
	}
	var account offpeak.AccountID
	if err := t.row(`SELECT account FROM nodes WHERE id = $1`, []any{string(l.Node)}, &account); err != nil {
		return false, err
	}
	t.event(offpeak.Event{Type: "node.closed", Account: account, Node: l.Node})
	return true, nil
}
