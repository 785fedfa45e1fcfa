package queue

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
)

func member(of offpeak.GroupID, most int) func(*Job) {
	return func(j *Job) { j.Group, j.AtOnce = of, most }
}

// Of an array with a limit no more members run than may, as many as may do where
// there is room, and others are not held up by those that wait for their turn.
func TestArrayTakesTurns(t *testing.T) {
	w := newWorld(t, Config{ReserveAfter: 10 * time.Minute, Places: 4})
	w.joins("n", 8, 0)
	for i := range 9 {
		w.submit(fmt.Sprint("member-", i), "a", 1, 0, time.Hour, member("g", 3))
	}
	w.now = w.now.Add(time.Second)
	for i := range 5 {
		w.submit(fmt.Sprint("other-", i), "a", 1, 0, time.Hour, nil)
	}
	last := w.submit("late", "a", 8, 0, time.Hour, member("g", 3))
	w.match()
	if w.live["g"] != 3 || w.live[""] != 5 {
		t.Fatalf("%d members run and %d others, want 3 and 5", w.live["g"], w.live[""])
	}
	it := w.q.Item("member-5")
	if !errors.Is(it.Lacks(), ErrTurn) || it.HasTurn() || !w.q.IsParked(it) {
		t.Errorf("a member lacks %v, has its turn: %t", it.Lacks(), it.HasTurn())
	}
	if _, ok := w.q.Bound(it, w.now, 1); ok {
		t.Error("a member waits with a bound")
	}
	w.q.Funded("a") // lifts nothing
	for range 2 {
		if w.match(); w.live["g"] != 3 {
			t.Fatalf("%d members run", w.live["g"])
		}
		// The turn is not held back by the ripe age of those that wait for theirs.
		if w.passes(30 * time.Minute); len(w.q.reserved) != 0 {
			t.Error("a node is kept for a job that waits for its turn")
		}
		w.passes(30 * time.Minute)
	}
	for range 3 {
		w.passes(time.Hour)
	}
	if w.most["g"] != 3 || w.q.Len() != 0 || w.started[last].IsZero() {
		t.Errorf("%d members ran at once, %d jobs are left", w.most["g"], w.q.Len())
	}
	w.passes(time.Hour)
	if len(w.q.limited) != 0 {
		t.Errorf("%d arrays are remembered", len(w.q.limited))
	}
}

// An array whose members ask for a node that is taken loses the node that is kept for
// it when its turn is gone.
func TestReservationGoesWithTheTurn(t *testing.T) {
	w := newWorld(t, Config{ReserveAfter: 10 * time.Minute, Places: 4})
	w.joins("n", 4, 0)
	w.submit("first", "a", 1, 0, 2*time.Hour, nil)
	w.match()
	w.submit("large", "b", 4, 0, time.Hour, member("g", 1))
	w.passes(10 * time.Minute)
	if w.q.Reservation("large") == nil {
		t.Fatal("it has no reservation")
	}
	// Another hub claimed a member: the store says so.
	it := w.q.Item("large")
	w.q.Left(w.q.Went(it), 0)
	if w.q.Reservation("large") != nil || !errors.Is(it.Lacks(), ErrTurn) {
		t.Errorf("it lacks %v and a node is kept for it", it.Lacks())
	}
	w.q.check(t)
	w.q.MemberEnded("g")
	if w.passes(0); w.q.Reservation("large") == nil {
		t.Error("it has its turn again, and no reservation")
	}
}

// Whatever claims are answered in whatever order, and whatever ends meanwhile, once
// all is told the queue lets members go where the store would.
func TestTurnsFollowTheStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 3
		q := empty(Config{})
		now := time.UnixMicro(1_000_000)
		asks := &offpeak.Requirements{CPU: 1}
		live, next, untold := 0, 0, 0
		type claim struct {
			job     Job
			turn    Turn
			room    int
			refused bool
			settled bool // by the store
		}
		var claims []*claim
		settle := func(c *claim) {
			if c.settled = true; live >= most {
				c.refused = true
				return
			}
			live++
			c.room = most - live
		}
		answer := func(i int) {
			c := claims[i]
			claims = append(claims[:i], claims[i+1:]...)
			switch {
			case !c.settled:
				q.Back(c.turn)
				q.Add(c.job, now)
			case c.refused:
				q.Add(c.job, now)
				q.Left(c.turn, 0)
			default:
				q.Left(c.turn, c.room)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) {
				next++
				j := waits(next, asks)
				j.Group, j.AtOnce = "g", most
				q.Add(j, now)
			},
			"claim": func(*rapid.T) {
				if c := q.next(); c != nil {
					it := c.items.top()
					made := &claim{job: it.Job()}
					made.turn = q.Went(it)
					q.Remove(it.id)
					claims = append(claims, made)
				}
			},
			"the store settles": func(t *rapid.T) {
				if len(claims) > 0 {
					if c := claims[rapid.IntRange(0, len(claims)-1).Draw(t, "claim")]; !c.settled {
						settle(c)
					}
				}
			},
			"answer": func(t *rapid.T) {
				if len(claims) > 0 {
					answer(rapid.IntRange(0, len(claims)-1).Draw(t, "claim"))
				}
			},
			"end": func(*rapid.T) {
				if live > 0 {
					live--
					untold++
				}
			},
			"tell": func(*rapid.T) {
				if untold > 0 {
					untold--
					q.MemberEnded("g")
				}
			},
			"": func(t *rapid.T) {
				q.check(t)
				if len(claims) > 0 || untold > 0 || q.Len() == 0 {
					return
				}
				if live < most && q.next() == nil {
					t.Fatalf("%d of %d run, and none of %d goes", live, most, q.Len())
				}
			},
		})
	})
}
