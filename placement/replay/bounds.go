package replay

import (
	"offpeak"
)

// account is what an account may have at once, and has.
type account struct {
	quota Quota
	// open are its jobs that have not ended, live its leases, gpus what these hold.
	open, live, gpus int
	// held are jobs over the quota of open ones, first come first: whoever is refused
	// tries again until there is room.
	held    []*job
	classes []*jobClass
}

// limited is an array of which only some members may hold leases at once.
type limited struct {
	most, live int
}

// limited is the job's array, if that has a limit.
func (j *Job) limited() offpeak.GroupID {
	if j.AtOnce > 0 {
		return j.Group
	}
	return ""
}

func (w *world) account(id offpeak.AccountID) *account {
	a := w.accounts[id]
	if a == nil {
		a = &account{}
		w.accounts[id] = a
	}
	return a
}

// array is what is known of a job's array, nil where that has no limit.
func (w *world) array(j *Job) *limited {
	id := j.limited()
	if id == "" {
		return nil
	}
	g := w.limited[id]
	if g == nil {
		g = &limited{most: j.AtOnce}
		w.limited[id] = g
	}
	return g
}

// refused says what stands in the way of another lease for a job of the class, nil
// for nothing: what a store would say to the claim.
func (c *jobClass) refused() error {
	a, gpus := c.account, len(c.sample.Requirements.GPUs)
	switch {
	case c.limited != nil && c.limited.live >= c.limited.most:
		return ErrTurn
	case a.quota.Running > 0 && a.live >= a.quota.Running:
		return &offpeak.QuotaError{Bound: "running_jobs", Most: int64(a.quota.Running), Have: int64(a.live), More: 1}
	case gpus > 0 && a.quota.GPUs > 0 && a.gpus+gpus > a.quota.GPUs:
		return &offpeak.QuotaError{Bound: "gpus", Most: int64(a.quota.GPUs), Have: int64(a.gpus), More: int64(gpus)}
	}
	return nil
}

// touchBound notes that classes of the account may have come to a bound of it, or of
// the class's array, or left one.
func (w *world) touchBound(c *jobClass) {
	if a := c.account; a.quota.Running > 0 || a.quota.GPUs > 0 {
		w.touchAll(a)
	} else if c.limited != nil {
		w.meter.touch(c)
	}
}

func (w *world) touchAll(a *account) {
	for _, c := range a.classes {
		if c.waiting > 0 || c.counted {
			w.meter.touch(c)
		}
	}
}

// took counts a lease, and returns how many more members of the job's array may go.
func (w *world) took(l *lease) (room int) {
	c := l.job.class
	c.account.live++
	c.account.gpus += len(l.resources.Devices)
	if g := c.limited; g != nil {
		g.live++
		room = g.most - g.live
	}
	w.touchBound(c)
	return room
}

// gaveBack counts the end of a lease.
func (w *world) gaveBack(l *lease) {
	c := l.job.class
	c.account.live--
	c.account.gpus -= len(l.resources.Devices)
	if c.limited != nil {
		c.limited.live--
	}
	w.queue.Enough(l.job.Account, l.job.limited())
	w.touchBound(c)
}

// bound sets what an account may have.
func (w *world) bound(q *Quota) {
	a := w.account(q.Account)
	a.quota = *q
	w.queue.Enough(q.Account, "")
	w.touchAll(a)
	w.letIn(a)
}

// admit counts a job as open, or holds it back where its account has as many as it
// may.
func (w *world) admit(j *job) bool {
	a := j.class.account
	if a.full() || len(a.held) > 0 {
		j.state = jobHeld
		a.held = append(a.held, j)
		return false
	}
	a.open++
	return true
}

func (a *account) full() bool { return a.quota.Queued > 0 && a.open >= a.quota.Queued }

// letIn submits what was held back while there is room.
func (w *world) letIn(a *account) {
	for len(a.held) > 0 && !a.full() {
		j := a.held[0]
		a.held = a.held[1:]
		a.open++
		j.waiting.Since = w.time().UnixMicro()
		w.wait(j)
	}
}

// ended notes the end of an open job.
func (w *world) ended(j *job, state jobState) {
	j.state = state
	a := j.class.account
	a.open--
	w.letIn(a)
}
