package store

import (
	"cmp"
	"context"
	"time"

	"offpeak"
)

// Hubs is what the hubs of one grid know of each other, and how they wake each
// other. In a store of one hub there is nobody else: its hub leads, nobody is told
// and nothing is heard.
type Hubs interface {
	// Attend notes that a hub is at work, and asks for the lead in matching until
	// lead from now: the hub that has it gets it again, others once it has lapsed.
	// lead 0 asks for none. A hub whose blobs lie elsewhere than the grid's, which
	// the first hub says, is refused with a *BlobsElsewhereError.
	Attend(ctx context.Context, hub offpeak.Hub, lead time.Duration) (Attendance, error)
	// MoveBlobs says that the grid's blobs lie in another place from now on, which a
	// person calls at, and to which somebody has copied them. ErrConflict: another
	// hub is at work.
	MoveBlobs(ctx context.Context, hub offpeak.HubID, to, at string) error
	// Place says which grid it is, and where its blobs lie.
	Place(ctx context.Context) (Place, error)
	// Leave says that a hub goes: its lead is free at once.
	Leave(ctx context.Context, hub offpeak.HubID) error
	// Hubs lists the hubs that were at work in the last day, the newest first.
	Hubs(ctx context.Context) ([]offpeak.Hub, error)
	// Tell says a text of at most MostTold bytes to all hubs that listen now. It may
	// be lost: what it says is worth knowing sooner, no more.
	Tell(ctx context.Context, text string) error
	// Listen calls heard with each text that is told, by this hub too, and with ""
	// once it listens. It returns when ctx is done or the connection is lost.
	Listen(ctx context.Context, heard func(text string)) error
	// Waiting returns those of the jobs that are queued: what another hub needs to
	// match them.
	Waiting(ctx context.Context, jobs []offpeak.JobID) ([]Queued, error)
}

// MostTold is the longest text that can be told.
const MostTold = 7000

// AliveFor is how long after it attended a hub counts as being at work.
const AliveFor = 3 * time.Second

// Place is what tells a grid from its copies. All of it is "" before the first hub
// has attended.
type Place struct {
	// Grid is the grid's id. It stays when the rows move to another engine, and a
	// restored copy gets another.
	Grid string
	// Blobs is where its blobs lie, as hubs compare it; BlobsAt is what --blobs says
	// of that, "" for a data folder.
	Blobs, BlobsAt string
}

// Attendance is what a hub learns when it attends.
type Attendance struct {
	// Grid is the grid's id.
	Grid string
	// Alone says that the store is of one hub, which leads for ever.
	Alone bool
	// Others counts the other hubs at work.
	Others int
	// Leads says that the hub has the lead, in term Term, which grows with every
	// change of hands.
	Leads bool
	Term  int64
	// Addresses are those of all hubs at work, this one's first.
	Addresses []string
}

// BlobsElsewhereError says that a hub's blobs are not the grid's.
type BlobsElsewhereError struct {
	// Here and There say where the hub's and the grid's blobs lie, At how a person
	// names the grid's place, if it is known.
	Here, There, At string
}

func (e *BlobsElsewhereError) Error() string {
	return "this hub's blobs lie in " + e.Here + ", the grid's in " + cmp.Or(e.At, e.There) + ": all hubs of a grid use one place, see --blobs"
}

// Unwrap makes errors.Is(e, offpeak.ErrConflict) true.
func (e *BlobsElsewhereError) Unwrap() error { return offpeak.ErrConflict }
