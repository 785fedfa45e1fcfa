package offpeak

import "slices"

// JobState is where a job stands. The hub's store is the only one who sets it,
// always guarded by the state it moves from.
type JobState string

// The states of a job, DESIGN §2.
const (
	// JobBlocked waits for other jobs to end.
	JobBlocked JobState = "blocked"
	// JobQueued waits for a node, perhaps not before a time (Job.NotBefore).
	JobQueued JobState = "queued"
	// JobLeased has a live lease that has not started: offered or preparing.
	JobLeased JobState = "leased"
	// JobRunning has a live lease that started: running or finishing.
	JobRunning JobState = "running"
	// JobCancelling was cancelled while a lease was live: the node has not
	// confirmed yet, nor has the lease expired.
	JobCancelling JobState = "cancelling"
	// JobSucceeded is terminal: the newest attempt's result was accepted.
	JobSucceeded JobState = "succeeded"
	// JobFailed is terminal: Job.Reason says why.
	JobFailed JobState = "failed"
	// JobCancelled is terminal: somebody with the right asked for it.
	JobCancelled JobState = "cancelled"
)

// LeaseState is where a lease stands.
type LeaseState string

// The states of a lease, DESIGN §2.
const (
	// LeaseOffered was written by a claim; the agent has not accepted it yet.
	// It lives for the offer's short life only and costs nothing.
	LeaseOffered LeaseState = "offered"
	// LeasePreparing was accepted: the agent fetches inputs and restores the
	// checkpoint. Bounded, and free.
	LeasePreparing LeaseState = "preparing"
	// LeaseRunning is metered from the start acknowledgement. It may be frozen.
	LeaseRunning LeaseState = "running"
	// LeaseFinishing has no process and holds no resources any more: outputs
	// and the rest of the logs are on their way. Not metered.
	LeaseFinishing LeaseState = "finishing"
	// LeaseSucceeded is terminal: the result was accepted.
	LeaseSucceeded LeaseState = "succeeded"
	// LeaseFailed is terminal: the attempt ended by the user's, the node's or
	// the grid's fault.
	LeaseFailed LeaseState = "failed"
	// LeaseCancelled is terminal: the job was cancelled.
	LeaseCancelled LeaseState = "cancelled"
	// LeasePreempted is terminal: taken back with notice.
	LeasePreempted LeaseState = "preempted"
	// LeaseLost is terminal: it expired, or its node restarted without it.
	LeaseLost LeaseState = "lost"
)

// Liveness is what the hub measured of a node's heartbeats.
type Liveness string

// A node's liveness.
const (
	// NodeOnline was heard within the time it promised.
	NodeOnline Liveness = "online"
	// NodeLate missed three heartbeats: it keeps its leases, gets no new one.
	NodeLate Liveness = "late"
	// NodeOffline was silent for its whole timeout, or has never been heard.
	NodeOffline Liveness = "offline"
)

// Intent is what a person ordered for a node.
type Intent string

// A node's intents.
const (
	// NodeOpen takes new work.
	NodeOpen Intent = "open"
	// NodeDraining takes no new work and closes once its last lease has ended.
	NodeDraining Intent = "draining"
	// NodeClosed takes no work until somebody opens it.
	NodeClosed Intent = "closed"
)

// Availability is what the node's agent says of itself.
type Availability string

// A node's availability.
const (
	// NodeAvailable may work.
	NodeAvailable Availability = "available"
	// NodeInUse may not work now; the reason says why (an EndReason of class owner).
	NodeInUse Availability = "in_use"
)

// transitions is one table: from a state to the states that may follow it.
// docs/states.md is generated from these tables, and the CHECK constraints of
// the schema are compared with them by a test.
type transitions[S ~string] []struct {
	from S
	to   []S
}

var jobTransitions = transitions[JobState]{
	{JobBlocked, []JobState{JobQueued, JobFailed, JobCancelled}},
	{JobQueued, []JobState{JobLeased, JobFailed, JobCancelled}},
	{JobLeased, []JobState{JobRunning, JobQueued, JobFailed, JobCancelling, JobCancelled}},
	{JobRunning, []JobState{JobSucceeded, JobFailed, JobQueued, JobCancelling}},
	{JobCancelling, []JobState{JobCancelled}},
	{JobSucceeded, nil},
	{JobFailed, nil},
	{JobCancelled, nil},
}

var leaseTransitions = transitions[LeaseState]{
	{LeaseOffered, []LeaseState{LeasePreparing, LeaseFailed, LeaseCancelled, LeasePreempted, LeaseLost}},
	{LeasePreparing, []LeaseState{LeaseRunning, LeaseFinishing, LeaseFailed, LeaseCancelled, LeasePreempted, LeaseLost}},
	{LeaseRunning, []LeaseState{LeaseFinishing, LeaseSucceeded, LeaseFailed, LeaseCancelled, LeasePreempted, LeaseLost}},
	{LeaseFinishing, []LeaseState{LeaseSucceeded, LeaseFailed, LeaseCancelled, LeasePreempted, LeaseLost}},
	{LeaseSucceeded, nil},
	{LeaseFailed, nil},
	{LeaseCancelled, nil},
	{LeasePreempted, nil},
	{LeaseLost, nil},
}

var livenessTransitions = transitions[Liveness]{
	{NodeOnline, []Liveness{NodeLate, NodeOffline}},
	{NodeLate, []Liveness{NodeOnline, NodeOffline}},
	{NodeOffline, []Liveness{NodeOnline}},
}

var intentTransitions = transitions[Intent]{
	{NodeOpen, []Intent{NodeDraining, NodeClosed}},
	{NodeDraining, []Intent{NodeOpen, NodeClosed}},
	{NodeClosed, []Intent{NodeOpen}},
}

var availabilityTransitions = transitions[Availability]{
	{NodeAvailable, []Availability{NodeInUse}},
	{NodeInUse, []Availability{NodeAvailable}},
}

func (t transitions[S]) states() []S {
	out := make([]S, len(t))
	for i, row := range t {
		out[i] = row.from
	}
	return out
}

func (t transitions[S]) next(from S) (to []S, known bool) {
	for _, row := range t {
		if row.from == from {
			return row.to, true
		}
	}
	return nil, false
}

func (t transitions[S]) check(machine string, from, to S) error {
	next, known := t.next(from)
	if !known || !slices.Contains(next, to) {
		return &IllegalMoveError{Machine: machine, From: string(from), To: string(to)}
	}
	return nil
}

// To returns nil if a job may move from s to next, else an *IllegalMoveError.
func (s JobState) To(next JobState) error { return jobTransitions.check("job", s, next) }

// Terminal says that no state follows s.
func (s JobState) Terminal() bool {
	next, known := jobTransitions.next(s)
	return known && len(next) == 0
}

// Live says that a job in s has exactly one live lease.
func (s JobState) Live() bool { return s == JobLeased || s == JobRunning || s == JobCancelling }

// To returns nil if a lease may move from s to next, else an *IllegalMoveError.
func (s LeaseState) To(next LeaseState) error { return leaseTransitions.check("lease", s, next) }

// Terminal says that no state follows s.
func (s LeaseState) Terminal() bool {
	next, known := leaseTransitions.next(s)
	return known && len(next) == 0
}

// Holds says that a lease in s holds its node's resources.
func (s LeaseState) Holds() bool {
	return s == LeaseOffered || s == LeasePreparing || s == LeaseRunning
}

// To returns nil if a node's liveness may move from s to next, else an *IllegalMoveError.
func (s Liveness) To(next Liveness) error { return livenessTransitions.check("liveness", s, next) }

// To returns nil if a node's intent may move from s to next, else an *IllegalMoveError.
func (s Intent) To(next Intent) error { return intentTransitions.check("intent", s, next) }

// To returns nil if a node's availability may move from s to next, else an *IllegalMoveError.
func (s Availability) To(next Availability) error {
	return availabilityTransitions.check("availability", s, next)
}

// JobStates lists the states of a job in the order of its way.
func JobStates() []JobState { return jobTransitions.states() }

// LeaseStates lists the states of a lease in the order of its way.
func LeaseStates() []LeaseState { return leaseTransitions.states() }

// Livenesses lists the values of a node's liveness.
func Livenesses() []Liveness { return livenessTransitions.states() }

// Intents lists the values of a node's intent.
func Intents() []Intent { return intentTransitions.states() }

// Availabilities lists the values of a node's availability.
func Availabilities() []Availability { return availabilityTransitions.states() }
