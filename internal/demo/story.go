package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"offpeak"
)

const (
	// warmUp is how many steps the first, small job takes. It measures the
	// machine, so that the training takes about the time asked for on any.
	warmUp = 700
	// A training shorter than this does not reach the accuracy it is checked for.
	fewest = 1500
	// The node is killed once this share of the steps is done and this many
	// checkpoints are stored; after the second share it is too late for it.
	killShare, killStored, lateShare = 0.4, 2, 0.8
	// wanted is the accuracy that the trained model must have.
	wanted = 0.95
	// tellEvery is how often the training's progress is shown.
	tellEvery = 2 * time.Second
	// silence is how long nothing at all may happen. A node that runs a module
	// for the first time compiles it, which takes a while on a slow machine.
	silence = 45 * time.Second
)

// story is the demo from curtain to curtain.
type story struct {
	g      *grid
	out    *stage
	folder string
	train  time.Duration

	nodes map[offpeak.NodeID]string
	// The followers fill these; they are long enough never to make them wait.
	events chan offpeak.Event
	lines  chan line

	// What is known of the training.
	job    offpeak.JobID
	steps  int
	ran    map[offpeak.Attempt]string // the node of each attempt
	stored int                        // how many checkpoints of it the hub stored
	told   time.Time                  // when its progress was last shown
	// What was done to it: the node that was killed, and the newest checkpoint
	// that the hub held when the node was dead.
	victim string
	kept   offpeak.Checkpoint
}

func newStory(g *grid, out *stage, folder string, train time.Duration) *story {
	return &story{
		g: g, out: out, folder: folder, train: train,
		nodes: map[offpeak.NodeID]string{}, ran: map[offpeak.Attempt]string{},
		events: make(chan offpeak.Event, 4096), lines: make(chan line, 65536),
	}
}

// followers are the goroutines that fill a story's channels. The first that
// fails ends the context with its error.
type followers struct {
	sync.WaitGroup
	fail context.CancelCauseFunc
}

func (f *followers) follow(what func() error) {
	f.Go(func() {
		if err := what(); err != nil {
			f.fail(err)
		}
	})
}

// tell runs the acts, one after the other.
func (s *story) tell(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	f := &followers{fail: cancel}
	err := s.acts(ctx, f)
	if err != nil && errors.Is(err, ctx.Err()) {
		err = context.Cause(ctx)
	}
	cancel(nil)
	f.Wait()
	return err
}

func (s *story) acts(ctx context.Context, f *followers) error {
	if err := s.gather(ctx, f); err != nil {
		return err
	}
	rate, err := s.measure(ctx, f)
	if err != nil {
		return err
	}
	if err := s.training(ctx, f, rate); err != nil {
		return err
	}
	return s.proof(ctx)
}

// gather starts the hub and the agents.
func (s *story) gather(ctx context.Context, f *followers) error {
	s.out.title("A hub and three machines")
	if err := s.g.startHub(ctx); err != nil {
		return err
	}
	s.out.line(plain, "hub", "serves %s", s.g.api.Base)
	ready := make(chan struct{})
	f.follow(func() error { return followEvents(ctx, s.g.api, func() { close(ready) }, s.events) })
	select {
	case <-ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	names := []string{"gaming-pc", "workstation", "laptop"}
	nodes, err := s.g.startAgents(ctx, names)
	if err != nil {
		return err
	}
	s.nodes = nodes
	for _, name := range names {
		s.out.line(green, name, "online")
	}
	return nil
}

// measure runs a small job and returns how many steps a second this machine takes.
func (s *story) measure(ctx context.Context, f *followers) (rate float64, err error) {
	s.out.title("A small job first, to see how fast this machine is")
	job, err := s.submit(ctx, f, "warm-up", warmUp, 100, warmUp)
	if err != nil {
		return 0, err
	}
	var first, last time.Time
	from := 0
	err = s.watch(ctx, job, func(e offpeak.Event) { s.show(e) }, func(_ offpeak.Attempt, said said) error {
		switch {
		case said.step == warmUp:
			last = time.Now()
		case said.step > 0 && from == 0:
			from, first = said.step, time.Now()
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if from == 0 || !last.After(first) {
		return 0, fmt.Errorf("job %s told of no steps", job)
	}
	rate = float64(warmUp-from) / last.Sub(first).Seconds()
	s.out.line(plain, "", "that is %.0f steps a second", rate)
	return rate, nil
}

// training runs the real job and kills its node in the middle.
func (s *story) training(ctx context.Context, f *followers, rate float64) (err error) {
	s.steps = max(fewest, int(math.Round(rate*s.train.Seconds()/100))*100)
	s.out.title("A training of %d steps; in the middle of it, its machine dies", s.steps)
	every := max(10, int(rate/2))
	s.job, err = s.submit(ctx, f, "digits", s.steps, max(1, every/5), every)
	if err != nil {
		return err
	}
	return s.watch(ctx, s.job, s.trained, func(a offpeak.Attempt, said said) error { return s.progress(ctx, a, said) })
}

// submit submits the example job and follows its log.
func (s *story) submit(ctx context.Context, f *followers, name string, steps, report, every int) (offpeak.JobID, error) {
	command := []string{module, fmt.Sprintf("--steps=%d", steps), fmt.Sprintf("--report-every=%d", report), fmt.Sprintf("--checkpoint-every=%d", every)}
	s.out.line(faint, "you", "offpeak %s", strings.Join(submitArgs(name, command...), " "))
	job, err := s.g.submit(ctx, s.folder, name, command...)
	if err != nil {
		return "", err
	}
	f.follow(func() error { return followLog(ctx, s.g.api, job, s.lines) })
	return job, nil
}

// watch hands on what happens until a job has succeeded and its log is read to
// the end. It returns an error when the job ends in another way.
func (s *story) watch(ctx context.Context, job offpeak.JobID, event func(offpeak.Event), spoke func(offpeak.Attempt, said) error) error {
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	var succeeded *offpeak.Event // told last, after all that the job said
	for spoken := false; succeeded == nil || !spoken; {
		select {
		case e := <-s.events:
			if e.Job != "" && e.Job != job {
				continue
			}
			if e.Type == "job.succeeded" {
				succeeded = &e
				continue
			}
			event(e)
			switch e.Type {
			case "job.failed", "job.cancelled":
				return s.explain(ctx, job)
			}
		case l := <-s.lines:
			if l.job != job {
				continue
			}
			spoken = spoken || l.end
			if err := spoke(l.attempt, parse(l.text)); err != nil {
				return err
			}
		case <-quiet.C:
			return fmt.Errorf("nothing happened for %s: %w", silence, s.explain(ctx, job))
		case <-ctx.Done():
			return ctx.Err()
		}
		quiet.Reset(silence)
	}
	event(*succeeded)
	return nil
}

// explain makes an error of how a job stands.
func (s *story) explain(ctx context.Context, id offpeak.JobID) error {
	j, err := s.g.api.Job(ctx, id)
	if err != nil {
		return err
	}
	return fmt.Errorf("job %s is %s (attempt %d, %s %s)", j.ID, j.State, j.Attempt, j.Reason, j.Detail)
}

// show prints an event that people care about.
func (s *story) show(e offpeak.Event) {
	node := s.nodes[e.Node]
	if node == "" {
		node = "hub"
	}
	switch e.Type {
	case "node.late":
		s.out.line(yellow, node, "misses heartbeats; it gets no new work")
	case "node.offline":
		s.out.line(red, node, "offline")
	case "job.queued":
		if e.Attempt == 0 {
			s.out.line(plain, "hub", "queued %s", e.Job)
		} else {
			s.out.line(yellow, "hub", "the job is queued again, at the same place")
		}
	case "lease.preparing":
		s.out.line(plain, node, "took attempt %d and fetches its input", e.Attempt)
	case "job.running":
		s.out.line(plain, node, "runs attempt %d", e.Attempt)
	case "lease.lost":
		end, _ := offpeak.EndOf(e.Reason)
		s.out.line(red, node, "lost attempt %d: %s", e.Attempt, end.Sentence)
	case "job.succeeded":
		s.out.line(green, node, "done: the job succeeded and its outputs are stored")
	}
}

// trained shows an event of the training and keeps what matters of it.
func (s *story) trained(e offpeak.Event) {
	s.show(e)
	switch e.Type {
	case "lease.offered":
		s.ran[e.Attempt] = s.nodes[e.Node]
	case "checkpoint.stored":
		s.stored++
		if s.stored == 1 {
			s.out.line(faint, "hub", "stores the first checkpoint; it keeps the newest two")
		}
	}
}

// progress shows what the training says, and kills its node when it is time.
func (s *story) progress(ctx context.Context, a offpeak.Attempt, said said) error {
	node := s.ran[a]
	switch {
	case node == s.victim && s.victim != "":
		// What the dead node had sent before it died.
	case said.record.Event == "start" && said.record.Step > 0:
		s.out.line(green, node, "restored %s: attempt %d goes on with step %d", said.record.From, a, said.record.Step+1)
	case said.accuracy > 0:
		s.out.line(bold, node, "test accuracy %.4f", said.accuracy)
	case said.step > 0:
		if time.Since(s.told) >= tellEvery || said.step == said.of {
			s.told = time.Now()
			s.out.line(plain, node, "step %*d of %d  loss %.4f", len(fmt.Sprint(said.of)), said.step, said.of, said.loss)
		}
		share := float64(said.step) / float64(said.of)
		switch {
		case s.victim != "" || share < killShare:
		case s.stored >= killStored:
			return s.strike(ctx, node)
		case share > lateShare:
			return fmt.Errorf("at step %d of %d the hub has stored %d checkpoints, too few to kill the node", said.step, said.of, s.stored)
		}
	}
	return nil
}

// strike kills the node that runs the training: agent, supervisors and job.
func (s *story) strike(ctx context.Context, node string) error {
	s.victim = node
	killed, err := killAll(ctx, s.g.data(s.victim))
	if err != nil {
		return err
	}
	s.out.line(red, s.victim, "kill -9: agent, supervisors and job, %d processes", killed)
	list, err := s.g.api.Checkpoints(ctx, s.job)
	if err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return fmt.Errorf("the hub holds no checkpoint of %s", s.job)
	}
	s.kept = slices.MaxFunc(list.Items, func(a, b offpeak.Checkpoint) int { return int(a.ID - b.ID) })
	s.out.line(plain, "hub", "stored %d checkpoints so far; the job must go on from the newest, %s", s.stored, s.kept.Name)
	return nil
}
