// Package supervisor holds one job's deadline and kill switch, in a process of
// its own, so that a job survives its agent's restart and never outlives its
// lease.
//
// A supervisor process is started by an agent, warm and idle, as the first
// process of a PID namespace where the machine has them: whatever the job
// forks, setsid children included, is in that namespace, dies with one kill,
// and dies with the supervisor. Elsewhere it fences with a cgroup, else as a
// child subreaper, else with the process group, and says which. It listens on
// a Unix socket in its own folder; an agent, or the next one after a restart,
// talks to it there in newline-delimited JSON: one Request, one Status back,
// and a Status whenever something changes.
//
// It knows nothing of hubs, jobs' meaning or checkpoints. The deadline is an
// instant of the clock that counts suspended time; at three quarters of the
// lease's timeout without word from an agent the supervisor freezes the whole
// tree, alone. A frozen tree is not running, so nothing runs twice when the hub
// gives the job to another node, and an outage of the hub costs time, not work:
// a new grant thaws it. After KeepFrozen it is killed. It gets no notice then:
// a job that left because the hub was away for a minute would lose its work.
package supervisor

import (
	"path/filepath"
	"time"

	"offpeak"
	"offpeak/agent/driver"
)

// Request is one thing an agent asks of a supervisor. Exactly one field beside
// ID is set.
type Request struct {
	// ID is given back in the Re of the status that answers, so that it can be
	// told from one that was pushed. Set by Handle.Do.
	ID uint64 `json:"id,omitempty"`
	// Start starts a command. A supervisor that is not idle refuses it, unless it
	// is told to forget the job that has exited.
	Start *Start `json:"start,omitempty"`
	// Lease moves the deadline; it thaws a tree that was frozen for lack of it.
	Lease *Lease `json:"lease,omitempty"`
	// Freeze stops the tree, or lets it go on.
	Freeze *Freeze `json:"freeze,omitempty"`
	// Notice tells the job to go and kills what is left after the grace.
	Notice *Notice `json:"notice,omitempty"`
	// Kill kills the tree now.
	Kill *Kill `json:"kill,omitempty"`
	// Status asks for the status alone.
	Status *struct{} `json:"status,omitempty"`
	// Quit kills what runs and ends the supervisor.
	Quit *struct{} `json:"quit,omitempty"`
}

// Start says what to run and within which bounds.
type Start struct {
	// Lease is kept and shown in the status: it is how a restarted agent knows
	// what this supervisor holds.
	Lease offpeak.LeaseID `json:"lease"`
	// Forget is the lease of an exited job whose result was taken: that it may
	// be forgotten is told here, since a request of its own would cost a warm
	// start as much again.
	Forget  offpeak.LeaseID `json:"forget,omitempty"`
	Command driver.Command  `json:"command"`
	// Folder is the attempt's folder: the supervisor writes stdout.log,
	// stderr.log and status.json there. A log that stayed empty has no file.
	Folder string `json:"folder"`
	// NoticePath is the file at which a notice appears, where the job looks for
	// it; absolute. "" is notice.json in Folder.
	NoticePath string `json:"notice_path,omitempty"`
	Limits     Limits `json:"limits"`
	// Grace is the time between notice and kill.
	Grace time.Duration `json:"grace"`
	// KeepFrozen is how long a tree frozen for lack of a lease is kept.
	KeepFrozen time.Duration `json:"keep_frozen"`
	// Deadline as in Lease.
	Deadline Lease `json:"deadline"`
}

// Limits bound a job.
type Limits struct {
	CPU       int64         `json:"cpu_milli"`
	Memory    offpeak.Bytes `json:"memory_bytes"`
	Disk      offpeak.Bytes `json:"disk_bytes"`
	Processes int           `json:"processes"`
	Log       offpeak.Bytes `json:"log_bytes"`
	// Time is how long the job may run (frozen time does not count).
	Time time.Duration `json:"time"`
}

// Lease is the deadline: the lease's timeout counted from when the last
// acknowledged heartbeat was sent.
type Lease struct {
	// Granted is that moment on the suspend-aware clock of this boot, in
	// nanoseconds (CLOCK_BOOTTIME).
	Granted int64 `json:"granted_boottime_ns"`
	// Timeout is the silence allowed. At ¾ of it the tree is frozen, so that
	// nothing runs when the hub may expire the lease.
	Timeout time.Duration `json:"timeout"`
}

// Freeze stops or continues the tree by order of the agent.
type Freeze struct {
	Frozen bool `json:"frozen"`
}

// Notice tells the job to go.
type Notice struct {
	Reason offpeak.EndReason `json:"reason"`
	// Grace overrides Start's grace; 0 keeps it.
	Grace time.Duration `json:"grace,omitempty"`
}

// Kill kills the tree now, for a reason.
type Kill struct {
	Reason offpeak.EndReason `json:"reason"`
	// Detail is for people; "" is that it was ordered.
	Detail string `json:"detail,omitempty"`
}

// StatusFile is the file in an attempt's folder that holds the last Status of a
// job that has exited: the result survives its supervisor. A supervisor without
// an agent writes it, at once; a connected agent does with KeepStatus, unless the
// hub has the end before that is worth it.
const StatusFile = "status.json"

// KeepStatus writes into an attempt's folder what its supervisor said last, if
// that is an exit.
func KeepStatus(folder string, st Status) error {
	if st.Phase != Exited {
		return nil
	}
	return writeWhole(filepath.Join(folder, StatusFile), st)
}

// Phase is where a supervisor stands.
type Phase string

// The phases.
const (
	// Idle: warm, nothing started.
	Idle Phase = "idle"
	// Running: the tree is there, perhaps frozen.
	Running Phase = "running"
	// Exited: the tree is gone, checked, and Exit says how.
	Exited Phase = "exited"
)

// Status is what a supervisor answers and pushes.
type Status struct {
	// Re is the ID of the request that this answers, 0 for a pushed status.
	Re    uint64          `json:"re,omitempty"`
	Phase Phase           `json:"phase"`
	PID   int             `json:"pid"`
	Lease offpeak.LeaseID `json:"lease,omitempty"`
	// Fence says how the tree is fenced: "pid_namespace", "cgroup_v2",
	// "cgroup_v1", "subreaper" or "process_group". Limited says that CPU,
	// memory and process limits are enforced.
	Fence   string `json:"fence"`
	Limited bool   `json:"limited"`
	// Frozen says that the tree is stopped, and Why: "" by order of the agent,
	// EndNodeLost for lack of a lease.
	Frozen bool              `json:"frozen,omitempty"`
	Why    offpeak.EndReason `json:"why,omitempty"`
	// Noticed is the reason of the notice the job was given, if any.
	Noticed offpeak.EndReason `json:"noticed,omitempty"`
	// Ran is how long the tree has run, without frozen time.
	Ran offpeak.Millis `json:"ran_ms"`
	// FirstOutput is how long after the start the first byte came, in
	// microseconds; 0 if none came yet.
	FirstOutput int64 `json:"first_output_us,omitempty"`
	// Stdout and Stderr are the lengths of the files written so far.
	Stdout int64 `json:"stdout_bytes"`
	Stderr int64 `json:"stderr_bytes"`
	Exit   *Exit `json:"exit,omitempty"`
	// Warnings say what the fence or the limits lack on this machine.
	Warnings []string `json:"warnings,omitempty"`
	// Error is set when the request was refused.
	Error string `json:"error,omitempty"`
}

// Exit says how a tree ended.
type Exit struct {
	// Reason is EndCompleted, EndExitNonzero, EndSignalled, EndOutOfMemory,
	// EndTimeLimit, EndDiskLimit, EndCommandNotFound, EndBadModule, or the reason of the notice
	// or kill that ended it. EndNodeLost: the lease ran out.
	Reason offpeak.EndReason `json:"reason"`
	Detail string            `json:"detail,omitempty"`
	Code   *int              `json:"code,omitempty"`
	Signal string            `json:"signal,omitempty"`
}
