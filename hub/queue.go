package hub

import (
	"encoding/json"
	"math"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/queue"
	"offpeak/store"
)

// waiting is the picture of all queued jobs, in their order. Its owner holds a lock.
type waiting struct {
	*queue.Queue
	// taken notes who leaves while the store's queue is read, nil otherwise:
	// what was read of them is old. Nothing is matched meanwhile.
	taken map[offpeak.JobID]struct{}
	// margin is for how much longer than its own limits say an attempt may hold a
	// node: until its agent takes the offer, and until the hub stops what is over
	// its time.
	margin time.Duration
	// fence is for how long a job is kept off a node where one attempt of it failed.
	fence time.Duration
	// gangs are those of which members are queued: see gather. unread are those of which
	// the store is to say whether they are whole; news counts what was heard of any.
	gangs  map[offpeak.GroupID]*gang
	unread map[offpeak.GroupID]struct{}
	news   int
}

// asksText is the canonical text of requirements: fields in order, map keys sorted.
func asksText(r *offpeak.Requirements) string {
	data, err := json.Marshal(r)
	if err != nil {
		// Requirements hold strings, numbers and maps of strings only.
		panic("hub: requirements have no JSON: " + err.Error())
	}
	return string(data)
}

// queued is what matching needs of a job that is queued.
func queued(j *offpeak.Job) store.Queued {
	q := store.Queued{
		Job: j.ID, Account: j.Account, Attempt: j.Attempt, Priority: j.Spec.Priority, Lasts: j.Spec.Limits.Lasts(),
		Submitted: j.SubmittedAt, Driver: j.Spec.Task.Driver, Requirements: &j.Spec.Requirements, Policy: j.Spec.Policy,
	}
	if j.NotBefore != nil {
		q.NotBefore = *j.NotBefore
	}
	return q
}

// add queues a job. One that is there with the same or a newer attempt stays as it
// is.
func (w *waiting) add(in store.Queued, asks string, now time.Time) {
	if in.Gang != "" {
		w.gather(in, asks)
		return
	}
	w.Add(w.job(in, asks), now)
}

func (w *waiting) job(in store.Queued, asks string) queue.Job {
	out := queue.Job{
		ID: in.Job, Account: in.Account, Attempt: in.Attempt, Priority: in.Priority, Submitted: in.Submitted, NotBefore: in.NotBefore,
		Driver: in.Driver, Requirements: in.Requirements, Text: asks, Policy: in.Policy, Lasts: in.Lasts + w.margin, Avoid: in.Avoid,
		Group: in.Group, AtOnce: in.AtOnce,
	}
	for i := range in.Failed {
		f := &in.Failed[i]
		if until := f.Fenced(w.fence); !until.IsZero() {
			out.Fences = append(out.Fences, placement.Fence{Node: f.Node, Until: until})
		}
	}
	return out
}

// remove forgets a job, if it is queued.
func (w *waiting) remove(job offpeak.JobID) {
	if w.taken != nil {
		w.taken[job] = struct{}{}
	}
	if w.leaves(job) {
		return
	}
	w.Remove(job)
}

// again puts a job back that was taken out, from some moment on, zero for now.
func (w *waiting) again(it *queue.Item, notBefore, now time.Time) *queue.Item {
	j := it.Job()
	if notBefore.After(j.NotBefore) {
		j.NotBefore = notBefore
	}
	return w.Add(j, now)
}

// repause puts a job that lost a race back, with a pause that grows with each
// loss in a row; the first costs none.
func (w *waiting) repause(j queue.Job, lost uint8, now time.Time) {
	if lost > 1 {
		pause := min(time.Millisecond<<min(lost, 10), time.Second)
		if at := now.Add(pause); at.After(j.NotBefore) {
			j.NotBefore = at
		}
	}
	j.Lost = lost
	w.Add(j, now)
}

// hold notes a lease for what its account uses and for when its node is free.
func (w *waiting) hold(l *offpeak.Lease, ends, now time.Time) {
	w.Hold(queue.Lease{ID: l.ID, Account: l.Account, Node: l.Node, Resources: l.Resources, Since: l.OfferedAt, Ends: ends}, now)
}

// ends is when a lease gives back what it holds at the latest, as its limits say.
func (w *waiting) ends(l *offpeak.Lease, limits offpeak.Limits) time.Time {
	if l.StartedAt != nil {
		return l.StartedAt.Add(limits.Time.Std() + w.margin)
	}
	return l.OfferedAt.Add(limits.Lasts() + w.margin)
}

func bump(n uint8) uint8 {
	if n == math.MaxUint8 {
		return n
	}
	return n + 1
}
