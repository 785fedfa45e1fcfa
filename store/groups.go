package store

import (
	"context"
	"errors"

	"offpeak"
)

// Groups is arrays of jobs. A group is stored in one small transaction; the rows of
// its members follow, some at a time, and until then a member is read as queued, or
// as cancelled where the whole was.
type Groups interface {
	// SubmitGroup stores a group with its spec, and as many of its members as go into
	// one small transaction. The spec and the array are valid. It returns what Submit
	// returns: ErrQuota where not all members fit into the account's quota. With
	// RetryOf it repeats members of another group, whose checkpoints become those of
	// the new ones: all of them or those of Only (ErrConflict while one is open), or
	// those that have failed by now (ErrConflict: none has); Spec and Array are that
	// group's.
	SubmitGroup(ctx context.Context, op Op, g NewGroup) (Filled, error)
	// FillGroup writes the rows of at most limit further members; none of a group that
	// waits for jobs.
	FillGroup(ctx context.Context, id offpeak.GroupID, limit int) (Filled, error)
	// CancelGroup has all members cancelled that have not ended: CancelMembers does
	// it. Cancelling a cancelled group changes nothing; ErrConflict: all have ended.
	CancelGroup(ctx context.Context, op Op, account offpeak.AccountID, id offpeak.GroupID, detail string) (offpeak.Group, error)
	// CancelMembers does what Cancel does to at most limit members of a cancelled
	// group. It does nothing to another group. left says that some remain.
	CancelMembers(ctx context.Context, id offpeak.GroupID, limit int) (changes []Change, left bool, err error)
	// MendGang does what is left to do where members of a gang ended or were queued again:
	// leases that still hold a node are asked to go, as gang_broken, offers end at once;
	// where a member failed or was cancelled all others end as gang_failed. It may be
	// called at any time by any number of hubs. more says that it is to be called again.
	MendGang(ctx context.Context, id offpeak.GroupID) (changes []Change, more bool, err error)
	// Gangs returns gangs as they stand, all at one moment; those that are not there, or
	// have no queued member, are left out.
	Gangs(ctx context.Context, ids []offpeak.GroupID) (map[offpeak.GroupID]Gang, error)
	// UnfinishedGroups lists groups that FillGroup, CancelMembers or MendGang has still to
	// work on, the oldest first, at most limit.
	UnfinishedGroups(ctx context.Context, limit int) ([]UnfinishedGroup, error)
	// Group returns one group.
	Group(ctx context.Context, account offpeak.AccountID, id offpeak.GroupID) (offpeak.Group, error)
	// Groups lists groups, newest first. next is "" at the end.
	Groups(ctx context.Context, filter GroupFilter, page Page) (groups []offpeak.Group, next string, err error)
}

// NewGroup is what SubmitGroup stores. When the operation id was used before, the
// group that it made then is returned instead.
type NewGroup struct {
	ID      offpeak.GroupID
	Account offpeak.AccountID
	Spec    offpeak.Spec
	Array   offpeak.Array
	// RetryOf is the group of the same account of which this one repeats members,
	// Failed only those that failed, Only only those.
	RetryOf offpeak.GroupID
	Failed  bool
	Only    offpeak.Indexes
	// Rest: with RetryOf those that did not succeed.
	Rest bool
	// After are jobs that must end before a member is queued. One that repeats waits as
	// a job does that repeats another.
	After []offpeak.After
	// Pipeline is that of which it is a step, Step which. Awaited: others wait for it
	// that are stored with it. All of this is SubmitAll's.
	Pipeline string
	Step     int
	Awaited  bool
}

// Filled is a group some of whose members were just written.
type Filled struct {
	Group offpeak.Group
	// Queued are those that are queued now, which this verb wrote.
	Queued []Queued
	// Left counts members without a row.
	Left int
	// Freed is what it meant for others that the last member was written off.
	Freed *Freed
}

// UnfinishedGroup is one with work left.
type UnfinishedGroup struct {
	ID offpeak.GroupID
	// Fill says that members are to be written, Cancel that members are to be
	// cancelled.
	// Mend says that it is a gang of which a lease ended.
	Fill, Cancel, Mend bool
}

// Gang is what matching needs of a gang.
type Gang struct {
	// Queued are its queued members, by their indexes.
	Queued []Queued
	// Whole says that these are all that have not ended, so that they may be claimed.
	Whole bool
}

// GroupFilter restricts a list of groups. Zero fields restrict nothing.
type GroupFilter struct {
	Account offpeak.AccountID
	// States: those with a member in one of these.
	States []offpeak.JobState
	// Pipeline: those that are steps of it.
	Pipeline string
}

// ErrAtOnce refuses a claim for a member of an array of which as many hold leases as
// may at once.
var ErrAtOnce = errors.New("as many members of its array hold leases as may at once")
