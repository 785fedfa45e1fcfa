package queue

import "time"

// Ahead counts the jobs that would be matched before an item as things stand now.
// It changes with what accounts use.
func (q *Queue) Ahead(it *Item, now time.Time) (n int) {
	q.tick(now)
	mine := it.class.line
	stands := q.standing(mine.account)
	for _, c := range q.classes {
		l := c.line
		switch theirs := q.standing(l.account); {
		case c.items.len() == 0, l.priority < mine.priority, l.priority == mine.priority && theirs > stands:
		case l.priority > mine.priority, theirs < stands:
			n += c.items.len()
		default:
			for _, o := range c.items.list {
				if o != it && o.before(it) {
					n++
				}
			}
		}
	}
	return n
}

// Bound is until when a job starts at the latest, and false where there is no
// bound: without reservations, for what no node could ever take, and for members of
// an array with a limit of its own, which wait for one another. It holds
// while nodes stay, and leases keep to their limits. Of a job that fences keep off
// nodes it counts from their end.
//
// A job has a reservation once it waited for ReserveAfter, its account has none
// for an older job, and one of the Places is free; accounts get them in turn. The node then serves it when the leases there have reached their limits, D
// at most, where D is the longest limit of any job that runs or waits. So a job
// with o older ones of its own account waits for at most
// ReserveAfter + (1 + o)·(a/n)·D, where a is how many accounts have jobs that wait,
// n how many nodes could take it, no more than Places, and a/n is rounded up: how much
// others queue, now or later, and at what priority, does not count. While gangs wait n is
// one: a gang gets its nodes when those before it have theirs, and others get none
// meanwhile.
//
// could is how many nodes that take work would fit the job if they were idle: who
// asks counts them, since that is to look at every node.
func (q *Queue) Bound(it *Item, now time.Time, could int) (time.Time, bool) {
	q.tick(now)
	if r := q.Reservation(it.id); r != nil {
		return r.At, true
	}
	if q.cfg.ReserveAfter <= 0 || q.cfg.Places <= 0 || it.class.lacks != nil || it.class.turns != nil {
		return time.Time{}, false
	}
	need := max(1, it.class.size)
	places := min(could, max(need, q.cfg.Places))
	switch {
	case places < need:
		return time.Time{}, false
	case q.gangs > 0:
		places = 1
	}
	accounts, own := 0, 0
	for _, a := range q.accounts {
		if len(a.lines) > 0 {
			accounts++
		}
	}
	for _, c := range q.classes {
		if c.line.account != it.class.line.account {
			continue
		}
		for _, o := range c.items.list {
			if o.before(it) {
				own++
			}
		}
	}
	longest := time.Duration(0)
	for k := range q.kinds {
		longest = max(longest, k.lasts)
	}
	for id := range q.leases {
		if at := q.ends(id); at != never {
			longest = max(longest, time.Duration(at-q.now)*time.Microsecond)
		}
	}
	rounds := (1 + own) * ((accounts + places - 1) / places)
	ripe := max(q.now, it.since+q.cfg.ReserveAfter.Microseconds())
	if it.past != nil {
		for i := range it.past.fences {
			ripe = max(ripe, micro(it.past.fences[i].Until))
		}
	}
	return time.UnixMicro(ripe).Add(time.Duration(rounds) * longest), true
}
