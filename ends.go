package offpeak

import (
	"math/rand/v2"
	"time"
)

// EndReason is the stable code of why an attempt or a job ended. Its facts
// (state, fault, counter, charge, sentence, next step) stand in one table.
type EndReason string

// The reasons. Codes are stable: programs may branch on them.
const (
	EndCompleted          EndReason = "completed"
	EndExitNonzero        EndReason = "exit_nonzero"
	EndSignalled          EndReason = "signalled"
	EndOutOfMemory        EndReason = "out_of_memory"
	EndDiskLimit          EndReason = "disk_limit"
	EndVRAMLimit          EndReason = "vram_limit"
	EndTimeLimit          EndReason = "time_limit"
	EndCommandNotFound    EndReason = "command_not_found"
	EndBadModule          EndReason = "bad_module"
	EndOutputsMissing     EndReason = "outputs_missing"
	EndBadInput           EndReason = "bad_input"
	EndCancelled          EndReason = "cancelled"
	EndNodeLost           EndReason = "node_lost"
	EndNodeRestarted      EndReason = "node_restarted"
	EndNodeError          EndReason = "node_error"
	EndNodeDiskFull       EndReason = "node_disk_full"
	EndSupervisorLost     EndReason = "supervisor_lost"
	EndDeviceLost         EndReason = "device_lost"
	EndPrepareTimeout     EndReason = "prepare_timeout"
	EndOfferLapsed        EndReason = "offer_lapsed"
	EndDeclined           EndReason = "declined"
	EndOwnerReturned      EndReason = "owner_returned"
	EndHot                EndReason = "hot"
	EndOnBattery          EndReason = "on_battery"
	EndOutsideSchedule    EndReason = "outside_schedule"
	EndMetered            EndReason = "metered"
	EndSleeping           EndReason = "sleeping"
	EndPaused             EndReason = "paused"
	EndDrained            EndReason = "drained"
	EndNodeRemoved        EndReason = "node_removed"
	EndOutbid             EndReason = "outbid"
	EndTermEnded          EndReason = "term_ended"
	EndBudgetSpent        EndReason = "budget_spent"
	EndInputUnavailable   EndReason = "input_unavailable"
	EndCheckpointUnusable EndReason = "checkpoint_unusable"
	EndDependencyFailed   EndReason = "dependency_failed"
	EndRestored           EndReason = "hub_restored"
	EndGangBroken         EndReason = "gang_broken"
	EndGangFailed         EndReason = "gang_failed"
)

// Fault says whose doing an end was.
type Fault string

// The fault classes.
const (
	FaultNone   Fault = "none"
	FaultUser   Fault = "user"
	FaultNode   Fault = "node"
	FaultOwner  Fault = "owner"
	FaultGrid   Fault = "grid"
	FaultMarket Fault = "market"
)

// Counter says which of a job's retry counters an end counts against.
type Counter string

// The retry counters. Each has its own cap in the job's RetryPolicy.
const (
	// CountNever: the job ends with this attempt, whatever its policy says.
	CountNever Counter = "never"
	// CountUser counts against RetryPolicy.User.
	CountUser Counter = "user"
	// CountNode counts against RetryPolicy.Node.
	CountNode Counter = "node"
	// CountInterruption counts against RetryPolicy.Interruption.
	CountInterruption Counter = "interruption"
	// CountFree is not counted: the attempt never started, or others ended it.
	CountFree Counter = "free"
)

// Charge says what a submitter pays for the attempt.
type Charge string

// The charge rules.
const (
	// ChargeFull: all metered time.
	ChargeFull Charge = "full"
	// ChargeKept: metered time up to the last stored checkpoint, else nothing.
	ChargeKept Charge = "kept"
	// ChargeNothing: nothing.
	ChargeNothing Charge = "nothing"
)

// End is one row of the table of ends.
type End struct {
	Reason EndReason `json:"reason"`
	// Lease is the state the lease ends in.
	Lease   LeaseState `json:"lease_state"`
	Fault   Fault      `json:"fault"`
	Counter Counter    `json:"counter"`
	Charge  Charge     `json:"charge"`
	// Sentence says what happened, for people.
	Sentence string `json:"sentence"`
	// Next says what the submitter can do, "" where nothing is needed.
	Next string `json:"next,omitempty"`
}

var ends = []End{
	{EndCompleted, LeaseSucceeded, FaultNone, CountNever, ChargeFull, "The job exited with code 0 and its outputs are stored.", ""},
	{EndExitNonzero, LeaseFailed, FaultUser, CountUser, ChargeFull, "The job exited with a code other than 0.", "Read `offpeak logs JOB`; mend the job and `offpeak retry JOB`."},
	{EndSignalled, LeaseFailed, FaultUser, CountUser, ChargeFull, "A signal that did not come from Offpeak ended the job.", "Read `offpeak logs JOB`; a crash (SIGSEGV, SIGABRT) is in the job's own code."},
	{EndOutOfMemory, LeaseFailed, FaultUser, CountUser, ChargeFull, "The job used more memory than it asked for and was killed.", "Submit it again with a larger --memory."},
	{EndDiskLimit, LeaseFailed, FaultUser, CountUser, ChargeFull, "The job wrote more to its folder than it asked for.", "Submit it again with a larger --disk."},
	{EndVRAMLimit, LeaseFailed, FaultUser, CountUser, ChargeFull, "The job took more of a GPU's memory than it asked for and was killed.", "Submit it again with a larger --vram."},
	{EndTimeLimit, LeaseFailed, FaultUser, CountNever, ChargeFull, "The attempt reached the job's time limit.", "Submit it again with a larger --time-limit; checkpoints of this job are kept with it."},
	{EndCommandNotFound, LeaseFailed, FaultUser, CountUser, ChargeFull, "The command could not be started: it is not there or not executable.", "Check the command's path; inputs land in the job's folder, so a script of yours starts with ./"},
	{EndBadModule, LeaseFailed, FaultUser, CountNever, ChargeNothing, "The WebAssembly module could not be loaded.", "Build it for WASI preview 1, for example with GOOS=wasip1 GOARCH=wasm go build."},
	{EndOutputsMissing, LeaseFailed, FaultUser, CountUser, ChargeFull, "The job exited with code 0 but an output it had declared was not there.", "Check the paths given with --output; they are relative to the job's folder."},
	{EndBadInput, LeaseFailed, FaultUser, CountNever, ChargeNothing, "The job's input can't be laid out on a node.", "Pack the input again; links, devices and paths that leave the folder are refused."},
	{EndCancelled, LeaseCancelled, FaultUser, CountNever, ChargeFull, "The job was cancelled.", ""},
	{EndNodeLost, LeaseLost, FaultNode, CountInterruption, ChargeKept, "The node fell silent and the lease expired.", ""},
	{EndNodeRestarted, LeaseLost, FaultNode, CountInterruption, ChargeKept, "The node came back without the job.", ""},
	{EndNodeError, LeaseFailed, FaultNode, CountNode, ChargeNothing, "The node could not run the job.", "If every node says so, look at `offpeak show JOB` for the detail."},
	{EndNodeDiskFull, LeaseFailed, FaultNode, CountNode, ChargeNothing, "The node's disk was full.", "Ask for the disk the job needs with --disk."},
	{EndSupervisorLost, LeaseFailed, FaultNode, CountNode, ChargeKept, "The supervisor of the job died on the node, and the job with it.", ""},
	{EndDeviceLost, LeaseFailed, FaultNode, CountNode, ChargeKept, "A GPU of the node vanished while the job ran.", ""},
	{EndPrepareTimeout, LeaseFailed, FaultNode, CountNode, ChargeNothing, "The node did not finish fetching inputs and restoring the checkpoint in time.", "Large inputs need a larger --prepare-limit."},
	{EndOfferLapsed, LeaseLost, FaultGrid, CountFree, ChargeNothing, "The node did not accept the offer in time.", ""},
	{EndDeclined, LeasePreempted, FaultOwner, CountFree, ChargeNothing, "The node declined: it may not work now.", ""},
	{EndOwnerReturned, LeasePreempted, FaultOwner, CountInterruption, ChargeKept, "The owner came back to the machine.", ""},
	{EndHot, LeasePreempted, FaultOwner, CountInterruption, ChargeKept, "The machine became too hot.", ""},
	{EndOnBattery, LeasePreempted, FaultOwner, CountInterruption, ChargeKept, "The machine went on battery.", ""},
	{EndOutsideSchedule, LeasePreempted, FaultOwner, CountInterruption, ChargeKept, "The owner's hours for the grid ended.", ""},
	{EndMetered, LeasePreempted, FaultOwner, CountInterruption, ChargeKept, "The machine went on a network that is paid by volume.", ""},
	{EndSleeping, LeasePreempted, FaultOwner, CountInterruption, ChargeKept, "The machine went to sleep.", ""},
	{EndPaused, LeasePreempted, FaultOwner, CountInterruption, ChargeKept, "The owner paused the machine.", ""},
	{EndDrained, LeasePreempted, FaultOwner, CountInterruption, ChargeKept, "The node is being drained.", ""},
	{EndNodeRemoved, LeasePreempted, FaultOwner, CountInterruption, ChargeKept, "The node left the grid.", ""},
	{EndOutbid, LeasePreempted, FaultMarket, CountInterruption, ChargeKept, "A job with a higher bid took the node.", "Raise --max-price to hold a scarce machine."},
	{EndTermEnded, LeasePreempted, FaultMarket, CountInterruption, ChargeFull, "The price term ended and the new ask is above the job's limit.", "Raise --max-price."},
	{EndBudgetSpent, LeasePreempted, FaultMarket, CountNever, ChargeFull, "The job's budget or the account's balance is spent.", "Add funds, or raise --budget, and `offpeak retry JOB`."},
	{EndInputUnavailable, LeaseFailed, FaultGrid, CountNode, ChargeNothing, "An input could not be fetched whole from the hub.", "Submit the job again; its input is packed and sent anew."},
	{EndCheckpointUnusable, LeaseFailed, FaultGrid, CountNode, ChargeNothing, "No stored checkpoint could be restored.", ""},
	{EndDependencyFailed, LeaseCancelled, FaultUser, CountNever, ChargeNothing, "A job that this one waits for did not succeed.", "Mend the job it waits for and `offpeak retry` it, then this one."},
	{EndGangBroken, LeasePreempted, FaultGrid, CountFree, ChargeKept, "Another member of its gang lost its node; all of them start again together.", ""},
	{EndGangFailed, LeaseCancelled, FaultUser, CountNever, ChargeFull, "Another member of its gang failed or was cancelled, and a gang ends as a whole.", "Mend what made that member fail, then `offpeak retry --failed` the gang."},
	{EndRestored, LeaseLost, FaultGrid, CountInterruption, ChargeNothing, "The hub was restored from a backup that is older than the lease.", ""},
}

// Ends lists the table of ends in a stable order.
func Ends() []End { return append([]End(nil), ends...) }

// EndOf returns the row of a reason; known is false for a reason that is not
// in the table.
func EndOf(reason EndReason) (end End, known bool) {
	for i := range ends {
		if ends[i].Reason == reason {
			return ends[i], true
		}
	}
	return End{}, false
}

// RetryPolicy caps how often a job is tried again, by whose fault the end was.
type RetryPolicy struct {
	// User caps retries after the job's own failures. Default 0.
	User int `json:"user" minimum:"0" maximum:"1000"`
	// Node caps retries after the node's and the grid's faults. Default 8.
	Node int `json:"node" minimum:"0" maximum:"1000"`
	// Interruption caps retries after a lost node, a returned owner and the
	// like. Default 1000.
	Interruption int `json:"interruption" minimum:"0" maximum:"100000"`
}

// DefaultRetryPolicy returns the policy of a job that names none.
func DefaultRetryPolicy() RetryPolicy { return RetryPolicy{User: 0, Node: 8, Interruption: 1000} }

// RetryCounts counts how often a job was tried again, by counter. Set by the
// store in the transaction that ends an attempt.
type RetryCounts struct {
	User         int `json:"user"`
	Node         int `json:"node"`
	Interruption int `json:"interruption"`
}

// Verdict is what becomes of a job when an attempt ends.
type Verdict struct {
	// State is JobQueued for another try, or a terminal state.
	State JobState
	// Counts are the job's counters from now on.
	Counts RetryCounts
	// Pause is how long the job stays queued before it may be leased again.
	Pause time.Duration
}

// Pauses between attempts grow by two from these first ones, up to the longest,
// each jittered over its upper half.
const (
	firstUserPause         = time.Second
	firstNodePause         = time.Second
	firstInterruptionPause = 50 * time.Millisecond
	longestPause           = 5 * time.Minute
)

// AfterEnd decides what becomes of a job in state from whose newest attempt
// ended for a reason. A cancelling job is cancelled whatever the reason was.
// The reason must stand in the table; rng jitters the pause.
func AfterEnd(from JobState, reason EndReason, policy RetryPolicy, counts RetryCounts, rng *rand.Rand) Verdict {
	end, known := EndOf(reason)
	switch {
	case !known:
		panic("offpeak: end reason not in the table: " + string(reason))
	case from == JobCancelling || reason == EndCancelled:
		return Verdict{State: JobCancelled, Counts: counts}
	case reason == EndCompleted:
		return Verdict{State: JobSucceeded, Counts: counts}
	}
	again := func(n *int, limit int, first time.Duration) Verdict {
		if *n >= limit {
			return Verdict{State: JobFailed, Counts: counts}
		}
		pause := longestPause
		if *n < 20 {
			pause = min(first<<*n, longestPause)
		}
		*n++
		return Verdict{State: JobQueued, Counts: counts, Pause: pause/2 + time.Duration(rng.Int64N(int64(pause/2)+1))}
	}
	switch end.Counter {
	case CountUser:
		return again(&counts.User, policy.User, firstUserPause)
	case CountNode:
		return again(&counts.Node, policy.Node, firstNodePause)
	case CountInterruption:
		return again(&counts.Interruption, policy.Interruption, firstInterruptionPause)
	case CountFree:
		return Verdict{State: JobQueued, Counts: counts}
	default:
		return Verdict{State: JobFailed, Counts: counts}
	}
}
