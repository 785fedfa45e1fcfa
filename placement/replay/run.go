package replay

import (
	"container/heap"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/placement/queue"
)

// Set is what is tried: weights, and the policy of jobs that name none.
type Set struct {
	Name string `json:"name"`
	placement.Tuning
}

// Options are what a run may be told. The zero value is fine.
type Options struct {
	// Queue makes the order of matching. Default ByShare, as a hub that sets nothing.
	Queue func(*placement.Fleet) Queue
	// Tick is called now and then with the part of the time that is simulated; a
	// run for which it returns false ends with ErrStopped.
	Tick func(part float64) bool
}

// ErrStopped says that Tick ended a run.
var ErrStopped = errors.New("the replay was stopped")

// ticks is how many events lie between two calls of Tick.
const ticks = 2048

// Run replays traffic under a set of weights. The traffic is one that Check finds
// nothing wrong with.
func Run(t *Traffic, set Set, opts Options) (Result, error) {
	if err := set.Validate(); err != nil {
		return Result{}, err
	}
	if opts.Queue == nil {
		opts.Queue = ByShare(queue.DefaultConfig())
	}
	w := newWorld(t, set, opts.Queue)
	if err := w.run(opts.Tick); err != nil {
		return Result{}, err
	}
	return w.result(), nil
}

// world is one run.
type world struct {
	traffic *Traffic
	set     Set
	fleet   *placement.Fleet
	queue   Queue

	now, until int64 // microseconds since the start
	events     eventHeap
	seq        int

	jobs    map[offpeak.JobID]*job
	order   []*job // as they were submitted
	nodes   map[offpeak.NodeID]*node
	all     []*node
	classes map[classKey]*jobClass
	asks    []*jobClass
	// accounts are those with jobs or quotas, limited the members with leases of arrays
	// with a limit.
	accounts map[offpeak.AccountID]*account
	limited  map[offpeak.GroupID]*limited
	leases   int
	meter    meter
}

type jobState uint8

const (
	jobWaits jobState = iota
	jobPauses
	jobRuns
	jobHeld // over its account's quota of jobs that have not ended
	jobDone
	jobFailed
	jobCancelled
)

// job is a job on its way.
type job struct {
	*Job
	waiting Waiting
	class   *jobClass
	state   jobState
	// submitted and started are moments; started is −1 before the first lease.
	submitted, started int64
	// ended is when a job that never started was cancelled.
	ended  int64
	done   time.Duration // work that is kept
	counts offpeak.RetryCounts
	lease  *lease
	// cuts counts attempts that were interrupted.
	cuts int
}

// jobClass is jobs that ask for the same thing.
type jobClass struct {
	account *account
	limited *limited // nil without a limit
	index   int
	sample  *Job
	waiting int
	// counted says that nodes know that the class waits for their devices.
	counted, dirty bool
}

// node is a node with what runs there.
type node struct {
	Node
	// whole is the node's offer if nothing ran there and it took work; fits caches
	// which classes that serves: 0 unknown, 1 yes, 2 no.
	whole *version
	fits  []uint8
	ready bool
	// idle counts its free devices, while it takes work; wanted counts the waiting
	// classes that the whole node could serve.
	idle, wanted int
	leases       []*lease
	gone         bool
}

// version is what a node was for a while.
type version struct {
	offer offpeak.Offer
	// last is when it last took work, −1 for never.
	last int64
}

type lease struct {
	id        offpeak.LeaseID
	job       *job
	node      *node
	resources offpeak.Resources
	price     offpeak.Price
	begins    int64 // when its work begins
	over      bool
	// runs is how long it would run; short says that its time limit comes first.
	runs  time.Duration
	short bool
}

// event is something to come: the end of a lease, or of a job's pause.
type event struct {
	at    int64
	seq   int
	lease *lease
	job   *job
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = event{}
	*h = (*h)[:last]
	return e
}

func newWorld(t *Traffic, set Set, order func(*placement.Fleet) Queue) *world {
	fleet := placement.NewFleet(set.Weights)
	return &world{
		traffic: t, set: set, fleet: fleet, queue: order(fleet),
		until: t.Until.Sub(t.From).Microseconds(),
		jobs:  make(map[offpeak.JobID]*job), nodes: make(map[offpeak.NodeID]*node), classes: make(map[classKey]*jobClass),
		accounts: make(map[offpeak.AccountID]*account), limited: make(map[offpeak.GroupID]*limited),
	}
}

// run goes from event to event. At each moment leases end first, then what was
// recorded happens, then jobs are matched.
func (w *world) run(tick func(float64) bool) error {
	steps := w.traffic.Steps
	handled := 0
	for {
		next := w.until + 1
		if len(w.events) > 0 {
			next = w.events[0].at
		}
		if len(steps) > 0 {
			next = min(next, steps[0].At.Sub(w.traffic.From).Microseconds())
		}
		if next > w.until {
			break
		}
		w.advance(next)
		for len(w.events) > 0 && w.events[0].at == w.now {
			e := heap.Pop(&w.events).(event)
			w.happen(e)
			handled++
		}
		for len(steps) > 0 && steps[0].At.Sub(w.traffic.From).Microseconds() == w.now {
			w.step(&steps[0])
			steps = steps[1:]
			handled++
		}
		w.match()
		if tick != nil && handled >= ticks {
			handled = 0
			if !tick(float64(w.now) / float64(w.until)) {
				return ErrStopped
			}
		}
	}
	w.advance(w.until)
	if tick != nil && !tick(1) {
		return ErrStopped
	}
	return nil
}

// advance lets time pass.
func (w *world) advance(to int64) {
	w.meter.idle += float64(w.meter.hostage) * float64(to-w.now)
	w.now = to
}

// time is the virtual time now.
func (w *world) time() time.Time { return w.at(w.now) }

func (w *world) at(us int64) time.Time {
	return w.traffic.From.Add(time.Duration(us) * time.Microsecond)
}

func (w *world) later(at int64, l *lease, j *job) {
	w.seq++
	heap.Push(&w.events, event{at, w.seq, l, j})
}

func (w *world) happen(e event) {
	switch {
	case e.lease != nil && !e.lease.over:
		l := e.lease
		w.release(l)
		l.job.done += l.runs
		w.charge(l, l.runs, l.runs)
		to := jobDone
		if l.short {
			to = jobFailed
		}
		w.ended(l.job, to)
	case e.job != nil && e.job.state == jobPauses:
		w.wait(e.job)
	}
}

// step has happen what was recorded.
func (w *world) step(s *Step) {
	switch {
	case s.Join != nil:
		n := w.nodes[s.Join.ID]
		if n == nil {
			n = &node{}
			w.nodes[s.Join.ID] = n
			w.all = append(w.all, n)
		}
		before := n.Node
		n.Node, n.gone = *s.Join, false
		w.settle(n, &before)
	case s.Change != nil:
		n := w.nodes[s.Change.Node]
		if n == nil || n.gone {
			return
		}
		before := n.Node
		n.change(s.Change)
		w.settle(n, &before)
		if s.Change.Stop != "" {
			w.interrupt(n, s.Change.Stop)
		}
	case s.Leave != "":
		if n := w.nodes[s.Leave]; n != nil && !n.gone {
			w.interrupt(n, offpeak.EndNodeRemoved)
			n.gone = true
			w.look(n)
			w.fleet.Remove(n.ID)
			w.queue.Freed(n.ID)
		}
	case s.Submit != nil:
		w.submit(s.Submit)
	case s.Cancel != "":
		w.cancel(s.Cancel)
	case s.Quota != nil:
		w.bound(s.Quota)
	}
}

// settle takes a node into the picture as it is now, and ends what that ends.
func (w *world) settle(n *node, before *Node) {
	switch {
	case n.Liveness == offpeak.NodeOffline && before.Liveness != offpeak.NodeOffline:
		w.interrupt(n, offpeak.EndNodeLost)
	case n.Availability == offpeak.NodeInUse && before.Availability != offpeak.NodeInUse:
		w.interrupt(n, offpeak.EndOwnerReturned)
	}
	w.shrink(n)
	held := make([]placement.Holding, len(n.leases))
	for i, l := range n.leases {
		held[i] = placement.Holding{Lease: l.id, Resources: l.resources}
	}
	w.fleet.Set(n.node(), held)
	if n.Metrics != nil {
		w.fleet.SetMetrics(n.ID, *n.Metrics)
	}
	w.queue.Freed(n.ID)
	w.look(n)
}

// shrink ends leases that no longer fit what the node has, the newest first.
func (w *world) shrink(n *node) {
	have := n.node().Capacity
	var used offpeak.Resources
	for _, l := range slices.Clone(n.leases) {
		r := l.resources
		switch {
		case slices.ContainsFunc(r.Devices, func(d offpeak.DeviceID) bool { return !slices.Contains(have.Devices, d) }):
			w.cut(l, offpeak.EndDeviceLost)
		case used.CPU+r.CPU > have.CPU || used.Memory+r.Memory > have.Memory || used.Disk+r.Disk > have.Disk:
			w.cut(l, offpeak.EndNodeError)
		default:
			used.CPU, used.Memory, used.Disk = used.CPU+r.CPU, used.Memory+r.Memory, used.Disk+r.Disk
		}
	}
}

// interrupt ends all leases of a node.
func (w *world) interrupt(n *node, why offpeak.EndReason) {
	for len(n.leases) > 0 {
		w.cut(n.leases[0], why)
	}
}

// cut ends a lease before its work is done.
func (w *world) cut(l *lease, why offpeak.EndReason) {
	j := l.job
	w.release(l)
	ran := time.Duration(max(w.now-l.begins, 0)) * time.Microsecond
	var kept time.Duration
	if keep := j.Keep.Std(); keep > 0 {
		kept = ran / keep * keep
	}
	j.done += kept
	end, _ := offpeak.EndOf(why)
	switch end.Charge {
	case offpeak.ChargeFull:
		w.charge(l, ran, kept)
	case offpeak.ChargeKept:
		w.charge(l, kept, kept)
	}
	if why != offpeak.EndCancelled { // whoever cancels wants none of it
		w.meter.lost += (ran - kept).Microseconds()
		w.meter.cuts++
		j.cuts++
	}
	policy := offpeak.DefaultRetryPolicy()
	if j.Retry != nil {
		policy = *j.Retry
	}
	// Seeded by what is decided, so that other weights do not change the pause.
	h := fold(string(j.ID))
	v := offpeak.AfterEnd(offpeak.JobRunning, why, policy, j.counts, rand.New(rand.NewPCG(h, uint64(j.waiting.Attempt))))
	j.counts = v.Counts
	switch v.State {
	case offpeak.JobQueued:
		if end.Counter != offpeak.CountFree {
			j.waiting.Avoid = avoid(j.waiting.Avoid, l.node.ID)
		}
		if v.Pause > 0 {
			j.state = jobPauses
			w.later(w.now+v.Pause.Microseconds(), nil, j)
			return
		}
		w.wait(j)
	case offpeak.JobCancelled:
		w.ended(j, jobCancelled)
	default:
		w.ended(j, jobFailed)
	}
}

// avoid adds a node to those to come after all others, as the store does.
func avoid(list []offpeak.NodeID, id offpeak.NodeID) []offpeak.NodeID {
	const most = 8
	list = slices.DeleteFunc(slices.Clone(list), func(n offpeak.NodeID) bool { return n == id })
	list = append(list, id)
	return list[max(0, len(list)-most):]
}

func fold(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// release gives back what a lease holds.
func (w *world) release(l *lease) {
	l.over = true
	l.job.lease = nil
	n := l.node
	n.leases = slices.DeleteFunc(n.leases, func(other *lease) bool { return other == l })
	w.fleet.Release(n.ID, l.id)
	w.queue.Release(l.id, w.time())
	w.queue.Freed(n.ID)
	w.gaveBack(l)
	w.look(n)
}

func (w *world) submit(in *Job) {
	k := keyOf(in)
	c := w.classes[k]
	if c == nil {
		c = &jobClass{index: len(w.asks), sample: in, account: w.account(in.Account), limited: w.array(in)}
		c.account.classes = append(c.account.classes, c)
		w.classes[k] = c
		w.asks = append(w.asks, c)
	}
	j := &job{Job: in, class: c, submitted: w.now, started: -1, ended: -1}
	policy := in.Policy
	if policy == "" {
		policy = w.set.Policy
	}
	lasts := in.Prepare.Std() + 24*time.Hour // what who says nothing gets
	if in.Limit > 0 {
		lasts = in.Prepare.Std() + in.Limit.Std()
	}
	j.waiting = Waiting{
		Job:      placement.Job{ID: in.ID, Account: in.Account, Driver: in.Driver, Requirements: &in.Requirements, Policy: policy},
		Priority: in.Priority, Since: w.time().UnixMicro(), Class: c.index, Text: k.asks, Lasts: lasts,
		Group: in.limited(), AtOnce: in.AtOnce,
	}
	w.jobs[in.ID] = j
	w.order = append(w.order, j)
	if w.admit(j) {
		w.wait(j)
	}
}

// wait queues a job.
func (w *world) wait(j *job) {
	j.state = jobWaits
	j.waiting.Attempt++
	j.class.waiting++
	w.meter.touch(j.class)
	w.queue.Add(&j.waiting, w.time())
}

// leave takes a job out of the queue.
func (w *world) leave(j *job) {
	j.class.waiting--
	w.meter.touch(j.class)
	w.queue.Remove(&j.waiting)
}

func (w *world) cancel(id offpeak.JobID) {
	j := w.jobs[id]
	if j == nil {
		return
	}
	switch j.state {
	case jobWaits:
		w.leave(j)
	case jobPauses:
	case jobHeld:
		c := j.class.account
		c.held = slices.DeleteFunc(c.held, func(h *job) bool { return h == j })
		j.state, j.ended = jobCancelled, w.now
		return
	case jobRuns:
		w.cut(j.lease, offpeak.EndCancelled)
		return
	default:
		return
	}
	j.ended = w.now
	w.ended(j, jobCancelled)
}

// match places jobs until none that is left fits.
func (w *world) match() {
	for next, best := w.queue.Next(w.time()); next != nil; next, best = w.queue.Next(w.time()) {
		j := w.jobs[next.ID]
		if err := j.class.refused(); err != nil {
			w.queue.Refused(next, err, w.time())
			continue
		}
		w.place(j, best)
	}
	w.meter.count(w)
}

// place leases a node to a job.
func (w *world) place(j *job, best placement.Candidate) {
	j.class.waiting--
	w.meter.touch(j.class)
	w.leases++
	n := w.nodes[best.Node]
	l := &lease{
		id: offpeak.LeaseID("l" + strconv.Itoa(w.leases)), job: j, node: n, resources: best.Resources, price: best.Price,
		begins: w.now + j.Prepare.Std().Microseconds(), runs: j.Work.Std() - j.done,
	}
	if limit := j.Limit.Std(); limit > 0 && l.runs > limit {
		l.runs, l.short = limit, true
	}
	n.leases = append(n.leases, l)
	w.fleet.Hold(n.ID, l.id, best.Resources)
	w.fleet.Confirm(n.ID, l.id)
	room := w.took(l)
	w.look(n)
	j.state, j.lease = jobRuns, l
	if j.started < 0 {
		j.started = w.now
	}
	ends := l.begins + l.runs.Microseconds()
	last := ends
	if limit := j.Limit.Std(); limit > 0 {
		last = l.begins + limit.Microseconds()
	}
	w.queue.Hold(&j.waiting, l.id, &best, room, w.at(last), w.time())
	w.later(ends, l, nil)
}
