package queue

import (
	"errors"

	"offpeak"
)

// ErrTurn is what a member of an array lacks while as many of that hold leases as may
// at once.
var ErrTurn = errors.New("as many members of its array hold leases as may at once")

// turns is what the queue knows of an array of which only some members may hold
// leases at once. It is a guess that, once claims under way are answered, errs by too
// many, which the store refuses; what the store says of a claim sets it right.
type turns struct {
	most int
	// room is how many more may be claimed.
	room int
	// ends counts ends of members: of those that came after a claim was sent, the
	// answer knows nothing.
	ends int
	// classes are its members that wait, claims how many are on their way to a node.
	// It is forgotten with the last of both.
	classes map[*class]struct{}
	claims  int
}

// Turn is that of one member on its way to a node.
type Turn struct {
	of   *turns
	id   offpeak.GroupID
	ends int
}

// takeTurns gives a class of an array with a limit the turns of that array.
func (q *Queue) takeTurns(c *class, most int) {
	if c.group == "" {
		return
	}
	t := q.limited[c.group]
	if t == nil {
		t = &turns{most: most, room: most, classes: make(map[*class]struct{}, 1)}
		q.limited[c.group] = t
	}
	t.classes[c] = struct{}{}
	c.turns = t
}

func (q *Queue) leaveTurns(c *class) {
	if c.turns != nil {
		delete(c.turns.classes, c)
		q.forgetTurns(c.group, c.turns)
	}
}

func (q *Queue) forgetTurns(id offpeak.GroupID, t *turns) {
	if len(t.classes) == 0 && t.claims == 0 && q.limited[id] == t {
		delete(q.limited, id)
	}
}

func (c *class) mayGo() bool { return c.turns == nil || c.turns.room > 0 }

// Went notes that a claim for a job is about to be made, before that leaves the
// queue. The claim is settled by Back or Left.
func (q *Queue) Went(it *Item) Turn {
	t := it.class.turns
	if t == nil {
		return Turn{}
	}
	t.claims++
	q.roomFor(t, t.room-1)
	return Turn{t, it.class.group, t.ends}
}

// Back takes a claim back of which nothing came.
func (q *Queue) Back(turn Turn) {
	if t := turn.of; t != nil {
		q.roomFor(t, t.room+1)
		q.settled(turn)
	}
}

// Left notes what the store said to a claim: how many more may be made, those beside
// that are under way not counted. A job whose claim was refused is queued again before.
func (q *Queue) Left(turn Turn, room int) {
	if t := turn.of; t != nil {
		others := t.claims - 1
		q.roomFor(t, room+t.ends-turn.ends-others)
		q.settled(turn)
	}
}

func (q *Queue) settled(turn Turn) {
	turn.of.claims--
	q.forgetTurns(turn.id, turn.of)
}

// MemberEnded lets the next member of an array go.
func (q *Queue) MemberEnded(id offpeak.GroupID) {
	if t := q.limited[id]; t != nil {
		t.ends++
		q.roomFor(t, t.room+1)
	}
}

// tryTurns has each array with a limit tried again, in case the end of a member was
// missed.
func (q *Queue) tryTurns() {
	for _, t := range q.limited {
		q.roomFor(t, max(t.room, 1))
	}
}

// roomFor notes how many members may go, and sets their classes aside while none may.
func (q *Queue) roomFor(t *turns, room int) {
	t.room = room
	for c := range t.classes {
		switch {
		case room <= 0 && c.lacks == nil && c.items.len() > 0:
			q.lack(c, ErrTurn)
		case room > 0 && errors.Is(c.lacks, ErrTurn):
			q.enough(c)
			q.moved(c)
		}
	}
}
