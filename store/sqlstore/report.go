package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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

// closeTerm has a lease's last term end now.
func (t *verb) closeTerm(id offpeak.LeaseID, metered offpeak.Millis) {
	t.later(endTerm, micros(t.now), int64(metered), string(id))
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
	c, err := s.reporting.do(ctx, r)
	if err != nil {
		err = fmt.Errorf("report %s of lease %s: %w", r.Kind, r.Lease, err)
	}
	if stale, ok := errors.AsType[*offpeak.StaleLeaseError](err); ok {
		if err := s.countStale(ctx, r.Node, stale, string(r.Kind)); err != nil {
			return store.Change{}, err
		}
	}
	return c, err
}

// countStale leaves an audit row of a refused message in a transaction of its
// own, since the refused one changed nothing. Audit rows are kept for ever, and an
// agent may repeat itself or make leases up: it leaves one of each kind for a lease,
// and one for all leases that are not its own.
func (s *Store) countStale(ctx context.Context, node offpeak.NodeID, stale *offpeak.StaleLeaseError, what string) error {
	m := message{node: node, what: what}
	if stale.State != "" {
		m.lease = stale.Lease
	}
	if !s.stale.first(m) {
		return nil
	}
	_, err := write(ctx, s, "audit stale "+what, func(t *verb) (struct{}, error) {
		t.audit(byNode("", node), "lease."+what, string(stale.Lease), "stale")
		return struct{}{}, nil
	})
	return err
}

// message is a kind of message of a node about a lease; "" any that it does not have.
type message struct {
	node  offpeak.NodeID
	lease offpeak.LeaseID
	what  string
}

// noted are messages that the audit knows of since this store was opened: the newest.
type noted struct {
	mu   sync.Mutex // guards have
	have map[message]struct{}
}

// first notes a message, and says whether it was not noted before.
func (n *noted) first(m message) bool {
	const most = 1 << 14
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, again := n.have[m]; again {
		return false
	}
	if n.have == nil || len(n.have) >= most {
		n.have = make(map[message]struct{})
	}
	n.have[m] = struct{}{}
	return true
}

// reports applies reports, each of which stands alone.
func (s *Store) reports(t *verb, list []store.Report) ([]answer[store.Change], error) {
	if err := s.loadReports(t, list); err != nil {
		return nil, err
	}
	out := make([]answer[store.Change], len(list))
	for i, r := range list {
		if out[i].v, out[i].err = s.report(t, r); fatal(out[i].err) {
			return nil, out[i].err
		}
	}
	return out, nil
}

// loadReports loads what reports are about: nodes, leases, jobs, and what their
// claims ask for.
func (s *Store) loadReports(t *verb, list []store.Report) error {
	nodes := make([]offpeak.NodeID, 0, len(list))
	leases := make([]offpeak.LeaseID, 0, len(list))
	var claims []store.Claim
	for _, r := range list {
		nodes, leases = append(nodes, r.Node), append(leases, r.Lease)
		if r.Then != nil && r.Kind == store.ReportEnded {
			claims = append(claims, *r.Then)
			if r.Then.Node != r.Node {
				nodes = append(nodes, r.Then.Node)
			}
		}
	}
	if err := t.loadNodes(forUpdate, nodes...); err != nil {
		return err
	}
	where, arg := oneOf("id", leases)
	found, err := t.leases(where+` ORDER BY id`, arg)
	if err != nil {
		return err
	}
	if err := s.loadJobs(t, forUpdate, jobsOf(found)); err != nil {
		return err
	}
	if err := s.loadClaims(t, claims); err != nil {
		return err
	}
	var logs, ended []*lease
	for _, r := range list {
		l := t.rows.leases[r.Lease]
		if l != nil && (len(r.Logs) > 0 || len(r.LogEnd) > 0) {
			logs = append(logs, l)
		}
		if l != nil && r.Kind == store.ReportEnded {
			ended = append(ended, l)
		}
	}
	if err := t.loadMoney(ended, nil); err != nil {
		return err
	}
	return t.loadLogs(logs...)
}

func (s *Store) report(t *verb, r store.Report) (c store.Change, err error) {
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
	err = t.alone(l, j, func() error {
		c, err = s.apply(t, r, l, j)
		return err
	})
	if err == nil && r.Kind == store.ReportEnded && r.Then != nil && c.Freed == nil {
		then := s.claimed(t, *r.Then)
		c.Then = &then
	}
	return c, err
}

// apply moves a lease and its job as a report says.
func (s *Store) apply(t *verb, r store.Report, l *lease, j *job) (store.Change, error) {
	n, err := t.lockedNode(l.Node)
	if err != nil {
		return store.Change{}, err
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
	t.changeLease(l)
	if r.Kind == store.ReportEnded {
		return s.reportEnd(t, r, l, j)
	}
	held := l.State.Holds()
	if err := s.advance(t, r, l, j, r.Kind); err != nil {
		return store.Change{}, err
	}
	c := store.Change{Job: j.Job, Lease: l.now(), Begun: l.begun}
	l.begun = false
	if held && !l.State.Holds() {
		t.release(n, l)
		t.closeTerm(l.ID, l.Metered)
		c.Node, c.Revision = l.Node, n.revision
	}
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
		return store.Change{Job: j.Job, Lease: l.now()}, true, nil
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
	return store.Change{Job: o.Job, Lease: l.now(), Queued: o.Queued, Node: o.Node, Revision: o.Revision, NodeClosed: o.Closed}, true, nil
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

// advance moves a lease and its job through every
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
			n, err := t.lockedNode(l.Node)
			if err != nil {
				return err
			}
			l.acceptedAt, l.acceptedIncarnation, l.acceptedSeq = t.now, r.Incarnation, r.Seq
			l.ExpiresAt = later(l.ExpiresAt, t.now.Add(n.timeout+l.grace))
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
	l.StartedAt, l.begun = &began, true
	t.later(addTerm, string(l.ID), int64(l.Price), micros(began))
	if j.StartedAt == nil {
		j.StartedAt = &began
		t.changeJob(j)
	}
	if j.State == offpeak.JobCancelling {
		return nil
	}
	if err := j.State.To(offpeak.JobRunning); err != nil {
		return err
	}
	t.event(offpeak.Event{Type: "job.running", Account: l.Account, Job: l.Job, Attempt: l.Attempt, Lease: l.ID, Node: l.Node})
	j.State = offpeak.JobRunning
	t.changeJob(j)
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

// reportEnd applies the last report of a lease.
func (s *Store) reportEnd(t *verb, r store.Report, l *lease, j *job) (store.Change, error) {
	for _, stream := range slices.Sorted(maps.Keys(r.LogEnd)) {
		if end := *l.log.end(stream); end < r.LogEnd[stream] {
			return store.Change{}, &offpeak.LogGapError{Want: end, Got: r.LogEnd[stream]}
		}
	}
	e := ending{
		reason: r.Reason, detail: r.Detail, exit: r.ExitCode, signal: r.Signal, output: r.Output, ran: r.Ran, reported: true,
	}
	if r.Reason == offpeak.EndCancelled && j.State != offpeak.JobCancelling {
		// Nobody with the right asked for it: a node can't cancel a job.
		e.reason, e.detail = offpeak.EndNodeError, "the node says cancelled, but nobody cancelled the job"
	}
	if (r.Reason == offpeak.EndGangBroken || r.Reason == offpeak.EndGangFailed) && l.Stop != r.Reason {
		e.reason, e.detail = offpeak.EndNodeError, "the node says "+string(r.Reason)+", for which nobody asked it"
	}
	if e.reason == offpeak.EndGangFailed && j.gang() != "" {
		g, err := t.groupRow("", j.gang(), "")
		if err != nil {
			return store.Change{}, err
		}
		e.detail = strings.TrimSuffix(g.detail+"; "+e.detail, "; ")
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
	return s.end(t, l, j, e)
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
	if j.State == offpeak.JobCancelling && e.reason == offpeak.EndCompleted {
		e.reason = offpeak.EndCancelled // its result is not accepted
	}
	row, _ := offpeak.EndOf(e.reason)
	if err := l.State.To(row.Lease); err != nil {
		return store.Change{}, err
	}
	n, err := t.lockedNode(l.Node)
	if err != nil {
		return store.Change{}, err
	}
	if l.State == offpeak.LeaseRunning {
		l.Metered = l.observed(t.now, e.ran)
		t.closeTerm(l.ID, l.Metered)
	}
	held := l.State.Holds()
	// This transaction may have begun before the one that it then waited for.
	ended := later(t.now, l.OfferedAt)
	if l.StartedAt != nil {
		ended = later(ended, *l.StartedAt)
	}
	l.State, l.Reason, l.Detail, l.ExitCode, l.Signal, l.EndedAt, l.Frozen = row.Lease, e.reason, e.detail, e.exit, e.signal, &ended, false
	if e.output != "" {
		l.Output = e.output
	}
	t.changeLease(l)
	cost, err := t.settleMoney(l, e.reason)
	if err != nil {
		return store.Change{}, err
	}
	if err := s.settle(t, l, j, e, row); err != nil {
		return store.Change{}, err
	}
	c := store.Change{Job: j.Job, Queued: j.queued(), Node: l.Node, Begun: l.begun, Paid: cost}
	c.Tried, c.Quarantine = t.try(n, l)
	l.begun = false
	if c.NodeClosed, err = t.closeDrained(n, l); err != nil {
		return store.Change{}, err
	}
	if held {
		t.release(n, l)
	} else {
		t.touched(n)
	}
	if q := t.rows.quotas[l.Account]; q != nil {
		q.live--
		if held {
			q.gpus -= int64(len(l.Resources.Devices))
		}
	}
	if q := t.membersOf(j); q != nil {
		q.live--
	}
	c.Revision = n.revision
	if e.reported {
		o := outcome{Job: j.Job, Queued: j.queued(), Node: c.Node, Revision: c.Revision, Closed: c.NodeClosed}
		o.Job.Spec = offpeak.Spec{}
		if o.Queued != nil {
			o.Queued.Requirements = nil
		}
		l.outcome = string(data(o))
	}
	c.Lease = l.now()
	c.Broken = t.gangBroken(j)
	c.Freed = t.ends(j)
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
	if v.State == offpeak.JobQueued {
		if over, err := s.spent(t, l, j); err != nil {
			return err
		} else if over {
			// It would wait for money that its budget does not have.
			v.State, v.Counts, e.reason, e.detail = offpeak.JobFailed, j.Counts, offpeak.EndBudgetSpent, "the attempt before ended as "+string(e.reason)
		}
	}
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
		j.EndedAt = l.EndedAt
	} else if l.Reason != offpeak.EndGangBroken {
		j.avoid = avoidToo(j.avoid, l.Node, l.Reason, *l.EndedAt)
	}
	t.changeJob(j)
	t.event(offpeak.Event{Type: "job." + string(j.State), Account: j.Account, Job: j.ID, Attempt: l.Attempt, Lease: l.ID, Node: l.Node, Reason: j.Reason, Data: data(struct {
		NotBefore *time.Time           `json:"not_before,omitempty"`
		Counts    *offpeak.RetryCounts `json:"retries,omitempty"`
		Group     offpeak.GroupID      `json:"group,omitempty"`
	}{j.NotBefore, counts(j), j.limited()})})
	return nil
}

func counts(j *job) *offpeak.RetryCounts {
	if j.Counts == (offpeak.RetryCounts{}) {
		return nil
	}
	return &j.Counts
}

// closeDrained closes a draining node when this was its last live lease.
func (t *verb) closeDrained(n *lockedNode, ended *lease) (bool, error) {
	if n.intent != offpeak.NodeDraining || n.removed {
		return false, nil
	}
	live, err := t.leases(`node = $1 AND `+liveLease+` AND id <> $2`, string(n.id), string(ended.ID))
	if err != nil {
		return false, err
	}
	for _, l := range live {
		if !l.State.Terminal() {
			return false, nil
		}
	}
	n.intent = offpeak.NodeClosed
	t.later(closeNode, string(n.id))
	t.event(offpeak.Event{Type: "node.closed", Account: n.account, Node: n.id})
	return true, nil
}
