package replay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"offpeak"
	"offpeak/placement"
)

// Base is what is known beside events: of nodes and jobs that were there before the
// first one. What is nil or zero is not known.
type Base struct {
	// Until is when the record ends. Default: with the last event.
	Until time.Time
	// Nodes are those that are there now.
	Nodes []offpeak.Node
	// Asked returns what a node asked at a moment, nil for nothing.
	Asked func(node offpeak.NodeID, at time.Time) *offpeak.Ask
	// Job returns a job. It is asked for those whose events do not say all.
	Job func(id offpeak.JobID) (offpeak.Job, bool)
	// InForce is what is weighed now.
	InForce *placement.Tuning
	// Waiting are jobs that wait now.
	Waiting []offpeak.Job
	// Most bounds the jobs, of which a few lines may name very many. Default: 4,194,304.
	Most int
	// Accounts are those that there are now.
	Accounts []offpeak.Account
	// Group returns an array. It is asked for those of jobs that Job returned.
	Group func(id offpeak.GroupID) (offpeak.Group, bool)
}

// Record makes traffic of events. What they do not tell is taken from the base, or
// else assumed, and noted.
func Record(events iter.Seq2[offpeak.Event, error], base Base) (*Traffic, error) {
	r := recorder{
		base: base, nodes: make(map[offpeak.NodeID]*nodeTrack), jobs: make(map[offpeak.JobID]*jobTrack),
		groups: make(map[offpeak.GroupID]*groupTrack), accounts: make(map[offpeak.AccountID]*accountTrack),
	}
	for e, err := range events {
		if err != nil {
			return nil, err
		}
		if err := r.event(&e); err != nil {
			return nil, fmt.Errorf("event %d (%s): %w", e.Cursor, e.Type, err)
		}
	}
	return r.traffic()
}

type recorder struct {
	base        Base
	from, until time.Time
	seen        bool
	nodes       map[offpeak.NodeID]*nodeTrack
	jobs        map[offpeak.JobID]*jobTrack
	groups      map[offpeak.GroupID]*groupTrack
	accounts    map[offpeak.AccountID]*accountTrack
	steps       []Step
	inForce     *placement.Tuning
	expecting
}

// nodeTrack is what events say of a node.
type nodeTrack struct {
	// first is the node before its first event, as far as that tells; whole says that
	// its inventory is known.
	first         Node
	whole, joined bool
	asked         bool
	steps         []Step
}

// jobTrack is what events say of a job.
type jobTrack struct {
	job       *Job
	submitted time.Time
	// offered is when the newest lease was offered, running when it began to run.
	offered, running time.Time
	kept             offpeak.Millis // of earlier attempts
	stored           offpeak.Millis // at the newest checkpoint of this attempt
	checkpoints      int
	ran              offpeak.Millis
	prepare          time.Duration
	started, ended   bool
	// blocked says that it still waits for other jobs.
	blocked bool
	// member says that an array's event told of it.
	member  bool
	endedAt time.Time
}

func (r *recorder) event(e *offpeak.Event) error {
	if !r.seen || e.At.Before(r.from) {
		r.from = e.At
	}
	if !r.seen || e.At.After(r.until) {
		r.until = e.At
	}
	r.seen = true
	object, what, _ := strings.Cut(e.Type, ".")
	switch object {
	case "node":
		r.turned(e, what)
		return r.node(e, what)
	case "job":
		return r.job(e, what)
	case "group":
		return r.group(e, what)
	case "account":
		return r.account(e, what)
	case "lease":
		return r.lease(e, what)
	case "checkpoint":
		return r.checkpoint(e)
	case "weights":
		var d struct {
			Version int64            `json:"version"`
			Weights placement.Tuning `json:"weights"`
		}
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return err
		}
		d.Weights.Version = d.Version
		if r.inForce == nil || r.inForce.Version < d.Version {
			r.inForce = &d.Weights
		}
	}
	return nil
}

// nodeData is what events of nodes hold beside their columns.
type nodeData struct {
	Name      string             `json:"name"`
	Inventory *offpeak.Inventory `json:"inventory"`
	Ask       *offpeak.Ask       `json:"ask"`
	Stop      bool               `json:"stop"`
}

func (r *recorder) node(e *offpeak.Event, what string) error {
	var d nodeData
	if len(e.Data) > 0 {
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return err
		}
	}
	if err := checkNode(d.Inventory, d.Ask); err != nil {
		return fmt.Errorf("node %s: %w", e.Node, err)
	}
	n := r.nodes[e.Node]
	if n == nil {
		n = &nodeTrack{first: Node{ID: e.Node, Account: e.Account}}
		r.nodes[e.Node] = n
	}
	c := Change{Node: e.Node}
	was := func(l offpeak.Liveness, i offpeak.Intent, a offpeak.Availability) {
		n.first.Liveness, n.first.Intent, n.first.Availability = cmp.Or(n.first.Liveness, l), cmp.Or(n.first.Intent, i), cmp.Or(n.first.Availability, a)
	}
	switch what {
	case "enrolled":
		if d.Inventory == nil {
			return fmt.Errorf("node %s joined without an inventory", e.Node)
		}
		n.joined, n.whole = true, true
		n.steps = append(n.steps, Step{At: e.At, Join: &Node{
			ID: e.Node, Account: e.Account, Name: d.Name, Inventory: *d.Inventory, Ask: d.Ask,
			Liveness: offpeak.NodeOffline, Intent: offpeak.NodeOpen, Availability: offpeak.NodeAvailable, Metrics: unknown(e.At),
		}})
		return nil
	case "inventory":
		if d.Inventory == nil {
			return fmt.Errorf("node %s: no inventory", e.Node)
		}
		r.inventory(n, d.Inventory)
		c.Inventory = d.Inventory
	case "ask":
		n.asked = true
		c.Asks, c.Ask = true, d.Ask
	case "removed":
		if d.Inventory != nil {
			r.inventory(n, d.Inventory)
			if !n.asked {
				n.asked, n.first.Ask = true, d.Ask
			}
		}
		n.steps = append(n.steps, Step{At: e.At, Leave: e.Node})
		return nil
	case string(offpeak.NodeOnline):
		was(offpeak.NodeOffline, "", "")
		c.Liveness = offpeak.NodeOnline
	case string(offpeak.NodeLate), string(offpeak.NodeOffline):
		was(offpeak.NodeOnline, "", "")
		c.Liveness = offpeak.Liveness(what)
	case string(offpeak.NodeOpen):
		was("", offpeak.NodeClosed, "")
		c.Intent = offpeak.NodeOpen
	case string(offpeak.NodeDraining):
		was("", offpeak.NodeOpen, "")
		c.Intent = offpeak.NodeDraining
		if d.Stop {
			c.Stop = offpeak.EndDrained
		}
	case string(offpeak.NodeClosed):
		was("", offpeak.NodeDraining, "")
		c.Intent = offpeak.NodeClosed
		if d.Stop {
			c.Stop = offpeak.EndDrained
		}
	case string(offpeak.NodeAvailable):
		was("", "", offpeak.NodeInUse)
		c.Availability = offpeak.NodeAvailable
	case string(offpeak.NodeInUse):
		was("", "", offpeak.NodeAvailable)
		c.Availability = offpeak.NodeInUse
	default:
		return nil
	}
	n.steps = append(n.steps, Step{At: e.At, Change: &c})
	return nil
}

// inventory notes what a node has; the first is taken for what it had before.
func (r *recorder) inventory(n *nodeTrack, inv *offpeak.Inventory) {
	if !n.whole {
		n.first.Inventory, n.whole = *inv, true
	}
}

// QueuedData is what the event job.queued of a submission holds for replay.
type QueuedData struct {
	Spec         offpeak.Hash          `json:"spec"`
	Priority     int                   `json:"priority"`
	Driver       string                `json:"driver"`
	Requirements *offpeak.Requirements `json:"requirements"`
	Policy       offpeak.Policy        `json:"policy"`
	Limit        offpeak.Duration      `json:"time_limit"`
	Retry        *offpeak.RetryPolicy  `json:"retry"`
}

// track returns what is known of a job, and makes it known from the base.
func (r *recorder) track(id offpeak.JobID, at time.Time) *jobTrack {
	j := r.jobs[id]
	if j == nil {
		j = &jobTrack{submitted: at}
		if r.base.Job != nil {
			if known, ok := r.base.Job(id); ok {
				j.job = r.jobOf(&known)
				j.submitted = known.SubmittedAt
			}
		}
		if g, _, ok := id.Member(); ok && j.job == nil && r.groups[g] != nil {
			j.job = r.groups[g].member(id)
		}
		r.jobs[id] = j
	}
	return j
}

func (r *recorder) jobOf(j *offpeak.Job) *Job {
	out := &Job{
		ID: j.ID, Account: j.Account, Driver: j.Spec.Task.Driver, Priority: j.Spec.Priority,
		Requirements: j.Spec.Requirements, Policy: j.Spec.Policy, Limit: j.Spec.Limits.Time, Retry: j.Spec.Retry,
	}
	if id := offpeak.GroupID(j.Group); id.Valid() && r.base.Group != nil {
		g := r.groups[id]
		if g == nil {
			g = &groupTrack{id: id}
			if known, ok := r.base.Group(id); ok {
				g.atOnce = known.Array.AtOnce
			}
			r.groups[id] = g
		}
		if g.atOnce > 0 {
			out.Group, out.AtOnce = id, g.atOnce
		}
	}
	return out
}

func (r *recorder) job(e *offpeak.Event, what string) error {
	switch {
	case e.Reason == offpeak.EndDependencyFailed:
		// It never waited for a node, whatever else is known of it.
		j := r.jobs[e.Job]
		if j == nil {
			j = &jobTrack{}
			r.jobs[e.Job] = j
		}
		j.blocked = true
		return nil
	case what == string(offpeak.JobBlocked), what == string(offpeak.JobQueued):
		return r.queued(e, what == string(offpeak.JobBlocked))
	}
	if j := r.track(e.Job, e.At); offpeak.JobState(what).Terminal() {
		j.ended, j.endedAt = true, e.At
	}
	return nil
}

// queued is the event of a job that begins to wait: for a node, or for other jobs.
func (r *recorder) queued(e *offpeak.Event, blocked bool) error {
	var d QueuedData
	if len(e.Data) > 0 {
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return err
		}
	}
	if d.Requirements == nil {
		j := r.track(e.Job, e.At)
		if blocked {
			j.blocked = true
		} else if j.blocked || e.Attempt == 0 {
			j.blocked, j.submitted = false, e.At // what it waited for has ended
		}
		return nil
	}
	if err := checkAsks(d.Requirements); err != nil {
		return fmt.Errorf("job %s: %w", e.Job, err)
	}
	// On PostgreSQL what happened to it may be read first.
	j := r.jobs[e.Job]
	if j == nil {
		j = &jobTrack{}
		r.jobs[e.Job] = j
	}
	if j.job == nil {
		j.submitted, j.blocked = e.At, j.blocked || blocked
		j.job = &Job{
			ID: e.Job, Account: e.Account, Driver: d.Driver, Priority: d.Priority,
			Requirements: *d.Requirements, Policy: d.Policy, Limit: d.Limit, Retry: d.Retry,
		}
	}
	return r.room()
}

func (r *recorder) lease(e *offpeak.Event, what string) error {
	j := r.track(e.Job, e.At)
	switch state := offpeak.LeaseState(what); {
	case state == offpeak.LeaseOffered:
		j.offered, j.running, j.stored = e.At, time.Time{}, 0
	case state == offpeak.LeaseRunning:
		j.running = e.At
		j.started = true
		if !j.offered.IsZero() {
			j.prepare = max(e.At.Sub(j.offered), 0)
		}
	case state.Terminal():
		r.fared(e)
		metered, err := metered(e)
		if err != nil {
			return err
		}
		if metered > 0 {
			j.started = true
		}
		end, _ := offpeak.EndOf(e.Reason)
		if end.Counter == offpeak.CountInterruption || end.Counter == offpeak.CountNode {
			j.kept += j.stored
			j.ran = 0
		} else {
			j.ran = metered
		}
		j.stored, j.running = 0, time.Time{}
		if e.Reason == offpeak.EndNodeRestarted && e.Node != "" {
			r.steps = append(r.steps, Step{At: e.At, Change: &Change{Node: e.Node, Stop: e.Reason}})
		}
	}
	return nil
}

func (r *recorder) checkpoint(e *offpeak.Event) error {
	metered, err := metered(e)
	if err != nil {
		return err
	}
	j := r.track(e.Job, e.At)
	if j.job != nil && metered > j.stored {
		j.checkpoints++
		every := offpeak.Duration(metered-j.stored) * offpeak.Duration(time.Millisecond)
		// The mean of what lies between two, as they come.
		j.job.Keep += (every - j.job.Keep) / offpeak.Duration(j.checkpoints)
	}
	j.stored = metered
	return nil
}

// metered is how long the lease of an event had run.
func metered(e *offpeak.Event) (offpeak.Millis, error) {
	var d struct {
		Metered offpeak.Millis `json:"metered_ms"`
	}
	if len(e.Data) > 0 {
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return 0, err
		}
	}
	if most := offpeak.Millis(mostSpan.Std().Milliseconds()); d.Metered < 0 || d.Metered > most {
		return 0, fmt.Errorf("metered_ms is %d: it is from 0 to %d", d.Metered, most)
	}
	return d.Metered, nil
}

func (r *recorder) traffic() (*Traffic, error) {
	if !r.seen {
		return nil, fmt.Errorf("there are no events: nothing was recorded, or it is older than the hub keeps events")
	}
	t := &Traffic{From: r.from.UTC(), Until: r.until.UTC(), Steps: r.steps}
	if t.InForce = r.inForce; t.InForce == nil {
		t.InForce = r.base.InForce
	}
	if r.base.Until.After(t.Until) {
		t.Until = r.base.Until.UTC()
	}
	if !t.Until.After(t.From) {
		return nil, fmt.Errorf("all events are of one moment, %s: there is nothing to replay", stamp(t.From))
	}
	r.addNodes(t)
	r.addQuotas(t)
	r.addJobs(t)
	t.Sort()
	return t, t.Check()
}

// addNodes adds the nodes, those that were there before at the beginning.
func (r *recorder) addNodes(t *Traffic) {
	now := make(map[offpeak.NodeID]*offpeak.Node, len(r.base.Nodes))
	for i := range r.base.Nodes {
		n := &r.base.Nodes[i]
		now[n.ID] = n
		if r.nodes[n.ID] == nil {
			r.nodes[n.ID] = &nodeTrack{}
		}
	}
	unknown := make(map[offpeak.NodeID]bool)
	var first []Step
	for _, id := range slices.Sorted(maps.Keys(r.nodes)) {
		n := r.nodes[id]
		if !n.joined {
			if n = r.before(id, n, now[id], t.From); n == nil {
				unknown[id] = true
				continue
			}
			first = append(first, Step{At: t.From, Join: &n.first})
		}
		first = append(first, n.steps...)
	}
	// In front of what else happened at a node's moments.
	t.Steps = slices.Concat(first, slices.DeleteFunc(t.Steps, func(s Step) bool { return s.Change != nil && unknown[s.Change.Node] }))
	if n := len(unknown); n > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d nodes joined before the record begins, and nothing says what they have: they are left out. Record from a database or a backup to have them.", n))
	}
}

// before completes what a node was before its first event, or returns nil where
// nobody knows what it had.
func (r *recorder) before(id offpeak.NodeID, n *nodeTrack, now *offpeak.Node, at time.Time) *nodeTrack {
	f := &n.first
	if now != nil {
		if !n.whole {
			f.Inventory, n.whole = now.Inventory, true
		}
		f.ID, f.Account, f.Name = id, now.Account, now.Name
		f.Liveness, f.Intent, f.Availability = cmp.Or(f.Liveness, now.Liveness), cmp.Or(f.Intent, now.Intent), cmp.Or(f.Availability, now.Availability)
		if !n.asked {
			f.Ask = now.Ask
		}
	}
	if !n.whole {
		return nil
	}
	f.Metrics = unknown(at)
	f.Liveness, f.Intent, f.Availability = cmp.Or(f.Liveness, offpeak.NodeOnline), cmp.Or(f.Intent, offpeak.NodeOpen), cmp.Or(f.Availability, offpeak.NodeAvailable)
	if r.base.Asked != nil {
		f.Ask = r.base.Asked(id, at)
	}
	return n
}

// addJobs adds the jobs with the work that they turned out to be.
func (r *recorder) addJobs(t *Traffic) {
	for i := range r.base.Waiting {
		if w := &r.base.Waiting[i]; r.jobs[w.ID] == nil {
			r.jobs[w.ID] = &jobTrack{job: r.jobOf(w), submitted: w.SubmittedAt}
		}
	}
	seen := make(map[string][]time.Duration)
	for _, j := range r.jobs {
		if j.job == nil {
			continue
		}
		if work := j.work(t.Until); work > 0 && j.ended {
			seen[kindOf(&j.job.Requirements)] = append(seen[kindOf(&j.job.Requirements)], work)
			seen[""] = append(seen[""], work)
		}
	}
	for _, s := range seen {
		slices.Sort(s)
	}
	unknown, untold, early, guessed := 0, 0, 0, 0
	for _, id := range slices.Sorted(maps.Keys(r.jobs)) {
		j := r.jobs[id]
		if j.blocked {
			continue // it never waited for a node
		}
		if j.job == nil {
			if j.member {
				untold++
			} else {
				unknown++
			}
			continue
		}
		at := j.submitted.UTC()
		if at.Before(t.From) {
			at = t.From
			early++
		}
		work := j.work(t.Until)
		usual := typical(seen, kindOf(&j.job.Requirements))
		switch {
		case !j.started || work == 0 && !j.ended:
			work, j.job.Guessed = usual, true
		case !j.ended:
			work, j.job.Guessed = max(work, usual), true
		}
		if j.job.Guessed {
			guessed++
		}
		j.job.Work = min(offpeak.Duration(max(work, time.Millisecond)), mostSpan)
		j.job.Prepare = min(offpeak.Duration(j.prepare), mostSpan)
		t.Steps = append(t.Steps, Step{At: at, Submit: j.job})
		if j.ended && !j.started {
			t.Steps = append(t.Steps, Step{At: j.endedAt.UTC(), Cancel: id})
		}
	}
	if unknown > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d jobs were submitted before the record begins, and nothing says what they ask for: they are left out.", unknown))
	}
	if untold > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d jobs are members of arrays of which the hub, an older one, did not tell what they ask for: they are left out. Record from a database or a backup to have them.", untold))
	}
	if early > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d jobs were submitted before the record begins: they are submitted at its beginning.", early))
	}
	if guessed > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d jobs were not seen to their end: they are taken to run as long as others that ask for the same devices.", guessed))
	}
}

// work is how long a job ran, with what checkpoints kept of earlier attempts.
func (j *jobTrack) work(until time.Time) time.Duration {
	work := time.Duration(min(j.kept+j.ran, offpeak.Millis(mostSpan.Std().Milliseconds()))) * time.Millisecond
	if !j.running.IsZero() {
		work += max(until.Sub(j.running), 0)
	}
	return work
}

// typical is the median of what jobs of a kind ran, else of all jobs, else a guess.
func typical(seen map[string][]time.Duration, kind string) time.Duration {
	for _, list := range [][]time.Duration{seen[kind], seen[""]} {
		if len(list) > 0 {
			return list[len(list)/2]
		}
	}
	return 10 * time.Minute
}
