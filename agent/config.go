package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/hardware"
	"offpeak/agent/presence"
	"offpeak/agent/state"
	"offpeak/agent/warm"
)

// Config is what an owner may choose and tests scale down. Zero durations take
// their defaults.
type Config struct {
	// Data is the node's data folder. One agent at a time uses it.
	Data string
	// Hubs are addresses to use instead of those the node was enrolled with.
	Hubs []string
	// Warm is how many idle supervisors are kept ready.
	Warm int
	// NoLimits leaves jobs the whole machine's CPU, memory and processes.
	NoLimits bool
	// StopJobs gives running jobs notice when Run is asked to end. Otherwise
	// they go on under their supervisors for the next agent to adopt.
	StopJobs bool
	// Version is sent to the hub.
	Version string
	Times   Times
}

// Times are the agent's own durations; interval and timeout are the hub's.
type Times struct {
	// Interval is the time between heartbeats until the hub hands one out.
	Interval time.Duration
	// Call bounds every call to a hub.
	Call time.Duration
	// StreamIdle is the silence after which the stream counts as dead.
	StreamIdle time.Duration
	// Retry and LongestRetry bound the growing pause after a failed call.
	Retry, LongestRetry time.Duration
	// Log is how often new output of a job is looked for and shipped.
	Log time.Duration
	// Running is how long a job runs before it is reported as running: one that
	// ends earlier says so with its end.
	Running time.Duration
	// Inventory is how often the machine is looked at again.
	Inventory time.Duration
	// Devices is how often its devices are, which changes more: a game may take
	// their memory. Watch is how often they are while a job runs that may have only
	// so much of it.
	Devices, Watch time.Duration
	// Readings is the least time between two words to the hub of how its devices
	// fare.
	Readings time.Duration
	// Conflict is the pause while another agent uses this identity.
	Conflict time.Duration
	// Blob bounds the transfer of one blob.
	Blob time.Duration
	// Upload bounds the uploads of an attempt that was preempted or failed.
	Upload time.Duration
	// DiskPause is how long a node whose disk is full takes no new work.
	DiskPause time.Duration
	// Presence is how often it is looked who else uses the machine.
	Presence presence.Times
}

func (t Times) withDefaults() Times {
	or := func(d *time.Duration, fallback time.Duration) {
		if *d <= 0 {
			*d = fallback
		}
	}
	or(&t.Interval, 5*time.Second)
	or(&t.Call, 10*time.Second)
	or(&t.StreamIdle, 40*time.Second)
	or(&t.Retry, 200*time.Millisecond)
	or(&t.LongestRetry, 10*time.Second)
	or(&t.Log, 50*time.Millisecond)
	or(&t.Running, 25*time.Millisecond)
	or(&t.Inventory, 5*time.Minute)
	or(&t.Devices, 15*time.Second)
	or(&t.Watch, time.Second)
	or(&t.Readings, 30*time.Second)
	or(&t.Conflict, 30*time.Second)
	or(&t.Blob, time.Minute)
	or(&t.Upload, 2*time.Minute)
	or(&t.DiskPause, time.Minute)
	return t
}

// Env is what the agent is given of the world.
type Env struct {
	// Boot is the clock that counts suspended time. Deadlines are counted on it.
	Boot func() time.Duration
	// Now is the wall clock: it is for people ("paused until") and dates.
	Now func() time.Time
	// Random yields the bytes of keys and incarnations.
	Random io.Reader
	// Client makes an HTTP client that trusts a hub by its key's fingerprint.
	Client func(fingerprint string) *http.Client
	// Drivers turn tasks into commands.
	Drivers []driver.Driver
	// Supervisors starts and finds supervisor processes.
	Supervisors warm.Starter
	// Probe looks at the machine, but for its devices.
	Probe func(ctx context.Context) (offpeak.Inventory, error)
	// Measure looks at the machine's devices; ours are the processes with which the
	// trees of its jobs begin. Nil: the machine offers none but those of Probe.
	Measure func(ctx context.Context, ours []int) hardware.Sample
	// Presence are what the owner's rules are decided by, and Announce what tells of
	// the machine's sleep, nil if nothing does. Without sources the rules see nobody.
	Presence []presence.Source
	Announce presence.Announcer
	// Free says how many bytes are free under a path.
	Free func(path string) (offpeak.Bytes, error)
	Log  *slog.Logger
}

// SettingsFile is a file in the data folder for what the owner said of the
// machine when it joined; it goes with the identity.
const SettingsFile = state.SettingsFile

// Errors that end Run or refuse to start it. Their texts say what to do.
var (
	// ErrNotEnrolled: the data folder holds no identity.
	ErrNotEnrolled = state.ErrNotEnrolled
	// ErrIdentityLost: the key is there but not what it is enrolled under.
	ErrIdentityLost = state.ErrIdentityLost
	// ErrSpoilt: the owner's rules were damaged; the defaults hold.
	ErrSpoilt = state.ErrSpoilt
	// ErrBusy: another agent uses the data folder.
	ErrBusy = state.ErrBusy
	// ErrTokenSpent: the hub does not take the join token.
	ErrTokenSpent = errors.New("the join token is used up, expired or revoked: make a fresh one with `offpeak token join` on the hub's side")
	// ErrRemoved: the hub does not know the node any more.
	ErrRemoved = errors.New("the hub removed this node: run `offpeak agent leave`, then `offpeak agent join TOKEN` with a fresh token")
	// ErrEnrolled: the machine is a node already.
	ErrEnrolled = errors.New("this machine is enrolled already: run `offpeak agent leave` first to join another hub")
	// ErrNotRunning: no agent answers in this data folder.
	ErrNotRunning = errors.New("no agent is running here: start it with `offpeak agent`")
)
