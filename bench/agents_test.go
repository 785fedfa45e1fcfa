package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"offpeak"
	"offpeak/internal/gridtest"
	"offpeak/wire"
)

// order is what a fleet process is told to do next: one of its fields is set.
// The process reads one a line and answers each with a done.
type order struct {
	Join  *joinOrder `json:",omitempty"`
	Load  *loadOrder `json:",omitempty"`
	Beats *beatOrder `json:",omitempty"`
}

// joinOrder makes virtual agents, each with a stream of its own.
type joinOrder struct {
	// Hubs are taken in turn.
	Hubs  []string
	Token wire.CreatedToken
	Names string
	Nodes int
	// Slots is how many jobs a node takes at once.
	Slots int
	// Every is the interval of heartbeats.
	Every time.Duration
	// Hold has agents start what they are given and never end it.
	Hold bool
}

// loadOrder submits jobs and waits until all have ended.
type loadOrder struct {
	Hubs []string
	// Tokens are those of who submits; clients take them in turn.
	Tokens  []string
	Spec    offpeak.Spec
	Jobs    int
	Clients int
	// Window is how many jobs may be under way at once.
	Window int
	// Rate is how many jobs a second are submitted; 0: as fast as they end.
	Rate float64
	// Leave returns once all are submitted: agents of other processes run them.
	Leave bool
}

// beatOrder counts the heartbeats of a while.
type beatOrder struct{ For time.Duration }

// done answers an order.
type done struct {
	Err     string `json:",omitempty"`
	Took    time.Duration
	Ack     spread // of a submission
	Claimed spread // from the call of submit until the agent has the assignment
	Ended   spread // from the call of submit until the success was accepted
	Beats   spread
	// Failed are heartbeats that were not answered well.
	Failed int64
}

// spread is how long something took, as often as it was done.
type spread struct {
	N             int
	P50, P99, Max time.Duration
}

func spreadOf(d []time.Duration) spread {
	if len(d) == 0 {
		return spread{}
	}
	slices.Sort(d)
	return spread{len(d), d[len(d)/2], d[len(d)*99/100], d[len(d)-1]}
}

// agents is a fleet process: virtual agents and those who submit to them.
type agents struct {
	ctx context.Context
	// Streams have a connection each; calls share theirs, so that a process has
	// descriptors enough.
	calls, streams *http.Client
	hold           bool

	jobs journal

	mu     sync.Mutex      // guards what follows
	beats  []time.Duration // that were answered since the last order
	failed int64
}

// runAgents obeys orders until its input ends.
func runAgents() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const most = 1024
	a := &agents{ctx: ctx, jobs: journal{jobs: make(map[offpeak.JobID]*passage)},
		calls:   &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: most, MaxConnsPerHost: most, DisableCompression: true}},
		streams: &http.Client{Transport: &http.Transport{ReadBufferSize: 1024, WriteBufferSize: 1024, DisableCompression: true}},
	}
	a.jobs.jobs = make(map[offpeak.JobID]*passage)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return
		}
		began := time.Now()
		d, err := a.obey(o)
		d.Took = time.Since(began)
		if err != nil {
			d.Err = err.Error()
		}
		if err := out.Encode(d); err != nil {
			return
		}
	}
}

func (a *agents) obey(o order) (done, error) {
	switch {
	case o.Join != nil:
		return done{}, a.join(o.Join)
	case o.Load != nil:
		return a.load(o.Load)
	case o.Beats != nil:
		return a.count(o.Beats)
	}
	return done{}, errors.New("an empty order")
}

// direct speaks to the i-th of the hubs in turn.
func (a *agents) direct(hubs []string, i int, token string) wire.Direct {
	return wire.Direct{Client: a.calls, Base: hubs[i%len(hubs)], Token: token, Agent: "bench"}
}

// join makes the agents and has them listen, report and beat from then on.
func (a *agents) join(o *joinOrder) error {
	a.hold = o.Hold
	nodes, err := gridtest.JoinMany(a.ctx, o.Nodes, o.Token, func(i int) gridtest.Joining {
		return gridtest.Joining{Direct: a.direct(o.Hubs, i, ""), Name: fmt.Sprintf("%s%05d", o.Names, i), CPU: int64(o.Slots) * 1000}
	})
	if err != nil {
		return err
	}
	group := errgroup.Group{}
	group.SetLimit(64)
	for i, v := range nodes {
		group.Go(func() error {
			n := &agent{Virtual: v, fleet: a, told: make(map[offpeak.LeaseID]struct{}), wake: make(chan struct{}, 1)}
			stream := n.Direct
			stream.Client = a.streams
			body, err := stream.Stream(a.ctx)
			if err != nil {
				return err
			}
			if _, err := n.beat(); err != nil {
				return err
			}
			go n.listen(body)
			// Agents begin at different moments of the interval.
			go n.work(o.Every, o.Every*time.Duration(i)/time.Duration(len(nodes)))
			return nil
		})
	}
	return group.Wait()
}

// agent is one virtual agent: one goroutine listens, one speaks. What there is to
// report while a request is under way goes into the next one.
type agent struct {
	*gridtest.Virtual
	fleet *agents
	wake  chan struct{}

	mu   sync.Mutex // guards what follows
	told map[offpeak.LeaseID]struct{}
	next []step
}

// step is the next report of a lease.
type step struct {
	job    offpeak.JobID
	report wire.Report
}

func (n *agent) listen(body io.ReadCloser) {
	defer body.Close()
	lines := bufio.NewReaderSize(body, 512)
	for {
		var s wire.Sync
		line, err := lines.ReadBytes('\n')
		if err != nil {
			n.fleet.lost(err)
			return
		}
		if len(line) > 1 {
			if err := json.Unmarshal(line, &s); err != nil {
				n.fleet.lost(err)
				return
			}
			n.take(&s)
		}
	}
}

// take begins what is new.
func (n *agent) take(s *wire.Sync) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range s.Leases {
		if _, known := n.told[l.Lease]; known || l.State != offpeak.LeaseOffered && l.State != offpeak.LeasePreparing {
			continue
		}
		n.told[l.Lease] = struct{}{}
		n.fleet.jobs.claimed(l.Job)
		n.next = append(n.next, step{l.Job, wire.Report{Lease: l.Lease, Attempt: l.Attempt, Kind: "running", Started: true}})
	}
	n.ring()
}

func (n *agent) ring() {
	if len(n.next) > 0 {
		select {
		case n.wake <- struct{}{}:
		default:
		}
	}
}

func (n *agent) work(every, first time.Duration) {
	timer := time.NewTimer(first)
	for {
		select {
		case <-n.fleet.ctx.Done():
			return
		case <-timer.C:
			timer.Reset(every)
			took, err := n.beat()
			n.fleet.beaten(took, err)
		case <-n.wake:
			n.report()
		}
	}
}

func (n *agent) beat() (time.Duration, error) {
	began := time.Now()
	s, err := n.Beat(n.fleet.ctx)
	if err == nil {
		n.take(&s)
	}
	return time.Since(began), err
}

// report says all there is to say, in one request.
func (n *agent) report() {
	n.mu.Lock()
	steps := n.next[:min(len(n.next), wire.MaxReports)]
	n.next = n.next[len(steps):]
	n.ring()
	n.mu.Unlock()
	if len(steps) == 0 {
		return
	}
	reports := make([]wire.Report, len(steps))
	for i := range steps {
		reports[i] = steps[i].report
	}
	results, err := n.Report(n.fleet.ctx, reports)
	if err != nil {
		n.fleet.lost(err)
		return
	}
	var more []step
	for i, r := range results {
		s := &steps[i]
		switch {
		case r.Problem != nil:
			n.fleet.lost(fmt.Errorf("%s of %s: %w", s.report.Kind, s.report.Lease, r.Problem))
		case s.report.Kind == "ended" || n.fleet.hold:
			n.fleet.jobs.ended(s.job)
		default:
			end := s.report
			end.Kind, end.Reason, end.ExitCode, end.Takes = "ended", offpeak.EndCompleted, new(int), true
			more = append(more, step{s.job, end})
		}
	}
	n.mu.Lock()
	n.next = append(n.next, more...)
	n.ring()
	n.mu.Unlock()
}

func (a *agents) lost(err error) {
	if a.ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "virtual agent:", err)
		a.mu.Lock()
		a.failed++
		a.mu.Unlock()
	}
}

func (a *agents) beaten(took time.Duration, err error) {
	if err != nil {
		a.lost(err)
		return
	}
	a.mu.Lock()
	a.beats = append(a.beats, took)
	a.mu.Unlock()
}

// count waits and says how heartbeats fared meanwhile.
func (a *agents) count(o *beatOrder) (done, error) {
	a.mu.Lock()
	a.beats, a.failed = nil, 0
	a.mu.Unlock()
	time.Sleep(o.For)
	a.mu.Lock()
	defer a.mu.Unlock()
	return done{Beats: spreadOf(a.beats), Failed: a.failed}, nil
}

// journal is when what happened to each job of a load.
type journal struct {
	mu   sync.Mutex // guards what follows
	jobs map[offpeak.JobID]*passage
	out  journalled
}

type passage struct{ asked, claimed, ended time.Time }

type journalled struct {
	ack, claimed, ended []time.Duration
	free                chan struct{} // holds a token for each job that may be under way
	left                sync.WaitGroup
}

// of is a job's passage; an agent may learn of it before its submitter does.
func (j *journal) of(id offpeak.JobID) *passage {
	p := j.jobs[id]
	if p == nil {
		p = &passage{}
		j.jobs[id] = p
	}
	return p
}

func (j *journal) submitted(id offpeak.JobID, asked time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.out.ack = append(j.out.ack, time.Since(asked))
	p := j.of(id)
	p.asked = asked
	j.settle(id, p)
}

func (j *journal) claimed(id offpeak.JobID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.of(id).claimed = time.Now()
}

func (j *journal) ended(id offpeak.JobID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.of(id)
	p.ended = time.Now()
	j.settle(id, p)
}

func (j *journal) settle(id offpeak.JobID, p *passage) {
	if p.asked.IsZero() || p.ended.IsZero() {
		return
	}
	j.out.claimed = append(j.out.claimed, p.claimed.Sub(p.asked))
	j.out.ended = append(j.out.ended, p.ended.Sub(p.asked))
	delete(j.jobs, id)
	j.out.free <- struct{}{}
	j.out.left.Done()
}

func (a *agents) load(o *loadOrder) (done, error) {
	j := &a.jobs
	j.mu.Lock()
	j.jobs = make(map[offpeak.JobID]*passage)
	j.out = journalled{free: make(chan struct{}, o.Window+o.Jobs)}
	for range o.Window {
		j.out.free <- struct{}{}
	}
	j.out.left.Add(o.Jobs)
	j.mu.Unlock()
	began := time.Now()
	var next atomic.Int64
	group := errgroup.Group{}
	for c := range o.Clients {
		d := a.direct(o.Hubs, c, o.Tokens[c%len(o.Tokens)])
		group.Go(func() error {
			for {
				i := next.Add(1)
				if i > int64(o.Jobs) {
					return nil
				}
				if o.Rate > 0 {
					time.Sleep(time.Until(began.Add(time.Duration(float64(i) / o.Rate * float64(time.Second)))))
				} else {
					<-j.out.free
				}
				asked := time.Now()
				job, err := d.Submit(a.ctx, gridtest.NewOp(), o.Spec)
				if err != nil {
					return err
				}
				j.submitted(job.ID, asked)
			}
		})
	}
	if err := group.Wait(); err != nil || o.Leave {
		return done{}, err
	}
	all := make(chan struct{})
	go func() { j.out.left.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(2 * time.Minute):
		return done{}, errors.New("not all jobs ended in two minutes")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return done{Ack: spreadOf(j.out.ack), Claimed: spreadOf(j.out.claimed), Ended: spreadOf(j.out.ended)}, nil
}
