package replay

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
	"time"

	"offpeak"
)

// Result is what became of traffic under a set of weights.
type Result struct {
	Set Set `json:"set"`
	// Jobs were submitted; Started had a lease, Finished did their work, Failed
	// could be tried no more, Cancelled were cancelled.
	Jobs      int `json:"jobs"`
	Started   int `json:"started"`
	Finished  int `json:"finished"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
	// The waits are from submission to the first lease. A job that never started
	// counts with the time that it waited, unless no node could serve it.
	WaitMedian offpeak.Duration `json:"wait_median"`
	WaitP95    offpeak.Duration `json:"wait_p95"`
	WaitMean   offpeak.Duration `json:"wait_mean"`
	// Stranded never started, though a node that took work could have served them
	// if it had been free. Unserved never started, and no node could serve them.
	Stranded     []Kind `json:"stranded"`
	StrandedJobs int    `json:"stranded_jobs"`
	Unserved     int    `json:"unserved_jobs"`
	// Bounded never started, and in the end waited for room in a quota or for their turn
	// in an array, not for a node.
	Bounded int `json:"bounded_jobs"`
	// IdleGPUHours are hours of devices that nobody held, on nodes that could serve
	// a waiting job if all of the node were free.
	IdleGPUHours float64 `json:"idle_gpu_hours"`
	// Paid is what leases cost, WorkHours the work that it paid for.
	Paid      offpeak.MicroCredits `json:"paid"`
	WorkHours float64              `json:"work_hours"`
	// JobHours is the work of an average job of the traffic, done or not.
	JobHours float64 `json:"job_hours"`
	// Interrupted are attempts that were cut off, of InterruptedJobs; LostHours is
	// work that had to be, or would have to be, done again.
	Interrupted     int     `json:"interrupted"`
	InterruptedJobs int     `json:"interrupted_jobs"`
	LostHours       float64 `json:"lost_hours"`
}

// Kind is jobs that ask for the same devices.
type Kind struct {
	Kind string `json:"kind"`
	Jobs int    `json:"jobs"`
}

// meter adds up what cannot be read off the jobs in the end.
type meter struct {
	// hostage counts devices that are idle on nodes which waiting classes want;
	// idle is its integral over microseconds.
	hostage int
	idle    float64
	dirty   []*jobClass
	counted []*jobClass
	paid    offpeak.MicroCredits
	// work and lost are in microseconds: nanoseconds of a large grid's week run over.
	work, lost int64
	cuts       int

	versions []*version
}

// touch notes that a class may have begun or ceased to wait.
func (m *meter) touch(c *jobClass) {
	if !c.dirty && len(c.sample.Requirements.GPUs) > 0 {
		c.dirty = true
		m.dirty = append(m.dirty, c)
	}
}

// count tells nodes which classes wait, now that all is placed that could be.
func (m *meter) count(w *world) {
	for _, c := range m.dirty {
		c.dirty = false
		if waits := c.waiting > 0 && c.refused() == nil; waits != c.counted {
			c.counted = waits
			by := 1
			if waits {
				m.counted = append(m.counted, c)
			} else {
				by = -1
				m.counted = slices.DeleteFunc(m.counted, func(o *jobClass) bool { return o == c })
			}
			for _, n := range w.all {
				if n.serves(c) {
					m.want(n, by)
				}
			}
		}
	}
	m.dirty = m.dirty[:0]
}

func (m *meter) want(n *node, by int) {
	was := n.hostage()
	n.wanted += by
	m.hostage += n.hostage() - was
}

// hostage counts the node's idle devices if somebody waits for it.
func (n *node) hostage() int {
	if n.wanted == 0 {
		return 0
	}
	return n.idle
}

// serves says whether the whole node could serve a class.
func (n *node) serves(c *jobClass) bool {
	if n.whole == nil || len(n.whole.offer.Devices) == 0 {
		return false
	}
	for len(n.fits) <= c.index {
		n.fits = append(n.fits, 0)
	}
	if n.fits[c.index] == 0 {
		n.fits[c.index] = 2
		if c.sample.Requirements.Fits(c.sample.Account, c.sample.Driver, &n.whole.offer) {
			n.fits[c.index] = 1
		}
	}
	return n.fits[c.index] == 1
}

// look notes what a node has free and whether it takes work. What the whole node
// is changes with its inventory and its ask.
func (w *world) look(n *node) {
	m := &w.meter
	was := n.hostage()
	offer, there := w.fleet.Offer(n.ID)
	if n.gone || !there {
		w.close(n)
		n.whole, n.wanted, n.idle = nil, 0, 0
		m.hostage -= was
		return
	}
	n.idle = 0
	if offer.Ready {
		n.idle = len(offer.FreeDevices)
	}
	if n.whole == nil || changed(&n.whole.offer, &offer) {
		w.close(n)
		whole := offer
		whole.Free, whole.FreeDevices, whole.Ready, whole.Why = whole.Capacity, whole.Devices, true, offpeak.FitOK
		n.whole = &version{offer: whole, last: -1}
		n.fits = n.fits[:0]
		m.versions = append(m.versions, n.whole)
		n.wanted = 0
		for _, c := range m.counted {
			if n.serves(c) {
				n.wanted++
			}
		}
	}
	if n.ready && !offer.Ready {
		n.whole.last = w.now
	}
	n.ready = offer.Ready
	m.hostage += n.hostage() - was
}

// close ends a version of a node.
func (w *world) close(n *node) {
	if n.whole != nil && n.ready {
		n.whole.last = w.now
	}
	n.ready = false
}

// changed says whether two offers differ in what the whole node is.
func changed(a, b *offpeak.Offer) bool {
	return a.Ask != b.Ask || a.Capacity.CPU != b.Capacity.CPU || a.Capacity.Memory != b.Capacity.Memory || a.Capacity.Disk != b.Capacity.Disk ||
		!sameSlice(a.Devices, b.Devices) || !sameSlice(a.Drivers, b.Drivers) || !sameSlice(a.Shared, b.Shared)
}

// sameSlice compares the slices themselves: an inventory that was set anew is a
// new one.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// charge adds what a lease costs for the time that is paid, of which work counts.
func (w *world) charge(l *lease, paid, work time.Duration) {
	w.meter.work += work.Microseconds()
	hi, lo := bits.Mul64(uint64(l.price), uint64(paid.Milliseconds()))
	const hour = 3_600_000
	sum := uint64(math.MaxInt64)
	if hi < hour {
		sum, _ = bits.Div64(hi, lo, hour)
	}
	// At the most one that is counted, as it never is where prices make sense.
	w.meter.paid += min(offpeak.MicroCredits(min(sum, math.MaxInt64)), math.MaxInt64-w.meter.paid)
}

// patience is how long a job must have waited to count as stranded.
func (w *world) patience() int64 { return min(time.Hour.Microseconds(), w.until/10) }

func (w *world) result() Result {
	for _, n := range w.all {
		if !n.gone {
			w.close(n)
		}
	}
	for _, j := range w.order { // what still runs is paid for up to now
		if l := j.lease; l != nil {
			ran := time.Duration(max(w.now-l.begins, 0)) * time.Microsecond
			w.charge(l, ran, ran)
		}
	}
	m := &w.meter
	r := Result{
		Set: w.set, Jobs: len(w.order), Stranded: []Kind{}, IdleGPUHours: m.idle / float64(time.Hour.Microseconds()),
		Paid: m.paid, WorkHours: hours(m.work), Interrupted: m.cuts, LostHours: hours(m.lost),
	}
	waits := make([]int64, 0, len(w.order))
	latest := make(map[int]int64)
	stranded := make(map[string]int)
	all := int64(0)
	for _, j := range w.order {
		all += j.Work.Std().Microseconds()
		switch j.state {
		case jobDone:
			r.Finished++
		case jobFailed:
			r.Failed++
		case jobCancelled:
			r.Cancelled++
		}
		if j.cuts > 0 {
			r.InterruptedJobs++
		}
		until := w.now
		switch {
		case j.started >= 0:
			until = j.started
			r.Started++
		case j.ended >= 0:
			until = j.ended
		case w.now-j.submitted < w.patience():
		case w.latest(latest, j.class) <= j.submitted:
			r.Unserved++
			continue
		case j.state == jobHeld || j.class.refused() != nil:
			r.Bounded++
		default:
			stranded[kindOf(&j.Requirements)]++
			r.StrandedJobs++
		}
		waits = append(waits, until-j.submitted)
	}
	if len(w.order) > 0 {
		r.JobHours = hours(all) / float64(len(w.order))
	}
	for kind, n := range stranded {
		r.Stranded = append(r.Stranded, Kind{kind, n})
	}
	slices.SortFunc(r.Stranded, compareKinds)
	slices.Sort(waits)
	r.WaitMedian, r.WaitP95 = quantile(waits, 50), quantile(waits, 95)
	sum := 0.0
	for _, wait := range waits {
		sum += float64(wait)
	}
	if len(waits) > 0 {
		r.WaitMean = offpeak.Duration(sum/float64(len(waits))) * offpeak.Duration(time.Microsecond)
	}
	return r
}

func hours(us int64) float64 { return float64(us) / float64(time.Hour.Microseconds()) }

// latest is when a node last took work that could have served a class, −1 for
// never.
func (w *world) latest(known map[int]int64, c *jobClass) int64 {
	if at, ok := known[c.index]; ok {
		return at
	}
	at := int64(-1)
	for _, v := range w.meter.versions {
		if v.last > at && c.sample.Requirements.Fits(c.sample.Account, c.sample.Driver, &v.offer) {
			at = v.last
		}
	}
	known[c.index] = at
	return at
}

// quantile is the smallest value that so many of a hundred do not exceed.
func quantile(sorted []int64, percent int) offpeak.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := max((len(sorted)*percent+99)/100, 1) - 1
	return offpeak.Duration(sorted[i]) * offpeak.Duration(time.Microsecond)
}

// kindOf names the devices that a job asks for.
func kindOf(r *offpeak.Requirements) string {
	if len(r.GPUs) == 0 {
		return "cpu"
	}
	var most offpeak.Bytes
	for i := range r.GPUs {
		most = max(most, r.GPUs[i].VRAM)
	}
	kind := "gpu"
	if most > 0 {
		kind += " " + most.String()
	}
	if n := len(r.GPUs); n > 1 {
		return strconv.Itoa(n) + " × " + kind
	}
	return kind
}

// compareKinds puts the most first.
func compareKinds(a, b Kind) int {
	if a.Jobs != b.Jobs {
		return b.Jobs - a.Jobs
	}
	if a.Kind < b.Kind {
		return -1
	}
	return 1
}
