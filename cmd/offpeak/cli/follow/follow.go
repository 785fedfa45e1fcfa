// Package follow stays with a job for a person until it has ended: it passes on
// what the job prints and says what happens to it, and turns interrupts into
// what they stand for.
//
// It owns the words for what happens to a job and the exit code that stands for
// its end. It knows no flags and prints no tables. A Follower belongs to one
// goroutine; it starts its own and waits for them.
package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// Exit codes of commands that wait for a job.
const (
	ExitCancelled = 130
	ExitTimeout   = 124
)

// Code is the exit code that stands for how a job ended: its own, 130 if it
// was cancelled, 1 if it failed without a code.
func Code(job offpeak.Job) int {
	switch {
	case job.State == offpeak.JobSucceeded:
		return 0
	case job.State == offpeak.JobCancelled:
		return ExitCancelled
	case job.ExitCode != nil && *job.ExitCode > 0 && *job.ExitCode < 256:
		return *job.ExitCode
	}
	return 1
}

// Exit turns the end of a job into the end of a command.
func Exit(job offpeak.Job) error {
	if code := Code(job); code != 0 {
		return &world.ExitError{Code: code}
	}
	return nil
}

// picture is what is known of a job at a moment.
type picture struct {
	job      offpeak.Job
	attempts []offpeak.Lease
}

// changes says in short lines what happened between two pictures of a job.
// Attempts are never forgotten, so nothing that happened between the pictures
// is missed, however short it was.
func changes(before, now picture, node func(offpeak.NodeID) string, checkpoint func(id int64) string) []string {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if before.job.ID == "" && now.job.State == offpeak.JobQueued && now.job.Attempt == 0 {
		say("queued")
	}
	switch waits := before.job.State == offpeak.JobBlocked; {
	case before.job.ID == "" && now.job.State == offpeak.JobBlocked:
		say("blocked until the jobs it waits for have ended")
	case waits && now.job.State != offpeak.JobBlocked && !now.job.State.Terminal():
		say("no job is waited for any more")
	}
	known := map[offpeak.LeaseID]offpeak.Lease{}
	for _, l := range before.attempts {
		known[l.ID] = l
	}
	for _, l := range now.attempts {
		was, seen := known[l.ID]
		if !seen {
			say("attempt %d: leased on %s", l.Attempt, node(l.Node))
		}
		if l.StartedAt != nil && was.StartedAt == nil {
			line := fmt.Sprintf("attempt %d: running on %s", l.Attempt, node(l.Node))
			if l.Restored != 0 {
				line += ", resumed from checkpoint " + checkpoint(l.Restored)
			}
			say("%s", line)
		}
		if l.Frozen != was.Frozen && !l.State.Terminal() {
			if l.Frozen {
				say("attempt %d: frozen, its node can't reach a hub", l.Attempt)
			} else {
				say("attempt %d: running again", l.Attempt)
			}
		}
		if l.Stop != "" && was.Stop == "" && !l.State.Terminal() {
			sentence := render.Ended(l.Stop, "", nil, "")
			say("attempt %d: must leave %s: %s", l.Attempt, node(l.Node), sentence)
		}
		newest := l.Attempt == now.job.Attempt
		if l.State.Terminal() && !was.State.Terminal() && (!newest || !now.job.State.Terminal()) {
			sentence := render.Ended(l.Reason, l.Detail, l.ExitCode, l.Signal)
			say("attempt %d: ended on %s: %s", l.Attempt, node(l.Node), sentence)
			if newest && now.job.State == offpeak.JobQueued {
				say("queued again")
			}
		}
	}
	if now.job.State == offpeak.JobCancelling && before.job.State != offpeak.JobCancelling {
		say("cancelling")
	}
	return lines
}

// Config is what a Follower needs.
type Config struct {
	Env world.Env
	Hub *remote.Hub
	// Note shows a line to the person who waits.
	Note func(line string)
	Job  offpeak.JobID
	// Quiet leaves out what happens to the job, Raw passes control characters
	// on to a terminal.
	Quiet, Raw bool
}

// Follower follows a job to its end for a person.
type Follower struct {
	env        world.Env
	hub        *remote.Hub
	note       func(line string)
	job        offpeak.JobID
	quiet, raw bool
	// patience is how long the job may wait before it is said why.
	patience time.Duration

	names map[offpeak.NodeID]string
}

// New returns a Follower with the usual patience.
func New(c Config) *Follower {
	return &Follower{env: c.Env, hub: c.Hub, note: c.Note, job: c.Job, quiet: c.Quiet, raw: c.Raw, patience: 2 * time.Second, names: map[offpeak.NodeID]string{}}
}

// follow passes on both streams of the log and says what happens to the job,
// until it has ended; it returns the ended job.
func (f *Follower) follow(ctx context.Context) (offpeak.Job, error) {
	last := picture{}
	watch, stop := context.WithCancel(ctx)
	defer stop()
	group, _ := errgroup.WithContext(ctx)
	kick := make(chan struct{}, 1)
	kicked := func() {
		select {
		case kick <- struct{}{}:
		default:
		}
	}
	if !f.quiet {
		group.Go(func() error {
			// Without its events the job is still followed, only less promptly.
			err := f.hub.Events(watch, "", f.job, kicked, func(offpeak.Event) error { kicked(); return nil })
			if err != nil && watch.Err() == nil {
				f.note("no events: " + err.Error())
			}
			return nil
		})
		group.Go(func() error { f.narrate(ctx, watch.Done(), kick, &last); return nil })
	}
	logs := f.Logs()
	err := f.hub.FollowLog(ctx, f.job, true, logs.Write)
	err = errors.Join(err, logs.Close())
	stop()
	_ = group.Wait()
	if err != nil {
		return offpeak.Job{}, err
	}
	now, err := f.look(ctx, last.job.ID == "" && f.quiet)
	if err != nil {
		return offpeak.Job{}, err
	}
	f.tell(ctx, last, now)
	return now.job, nil
}

// narrate tells what changes, whenever it is kicked and now and then, and why
// the job waits if it waits long, until done. What it has begun to tell it tells
// to the end, under ctx.
func (f *Follower) narrate(ctx context.Context, done, kick <-chan struct{}, last *picture) {
	tick := time.NewTicker(max(f.patience/4, 10*time.Millisecond))
	defer tick.Stop()
	looked := time.Now()
	waiting, explained := time.Now(), ""
	const net, again = 15 * time.Second, 30 * time.Second
	for {
		select {
		case <-done:
			return
		case <-kick:
		case <-tick.C:
			waits := last.job.State == offpeak.JobQueued || last.job.State == offpeak.JobBlocked
			if waits && time.Since(waiting) >= f.patience {
				waiting = time.Now().Add(again)
				if why := f.why(ctx); why != "" && why != explained {
					explained = why
					f.note(why)
				}
			}
			if time.Since(looked) < net {
				continue
			}
		}
		looked = time.Now()
		now, err := f.look(ctx, false)
		if err != nil {
			continue
		}
		f.tell(ctx, *last, now)
		if now.job.State != last.job.State {
			waiting, explained = time.Now(), ""
		}
		*last = now
	}
}

func (f *Follower) why(ctx context.Context) string {
	e, err := remote.Ask(ctx, f.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.Explanation, error) { return d.Explain(ctx, f.job) })
	if err != nil || e.Summary == "" {
		return ""
	}
	return "waits: " + e.Summary
}

func (f *Follower) look(ctx context.Context, jobOnly bool) (p picture, err error) {
	err = f.hub.Call(ctx, remote.Following, func(ctx context.Context, d *wire.Direct) error {
		var list wire.List[offpeak.Lease]
		var err error
		if !jobOnly {
			if list, err = d.Attempts(ctx, f.job); err != nil {
				return err
			}
		}
		// The job is asked for last: it is never older than its attempts.
		job, err := d.Job(ctx, f.job)
		if err == nil && !jobOnly && job.State.Terminal() {
			// It may have ended in between: what an attempt did is told before
			// the end, so it must be known by now.
			list, err = d.Attempts(ctx, f.job)
		}
		p = picture{job, list.Items}
		return err
	})
	return p, err
}

func (f *Follower) tell(ctx context.Context, before, now picture) {
	ended := now.job.State.Terminal() && !before.job.State.Terminal()
	if f.quiet {
		// An exit code that is not the job's own would say nothing by itself.
		if ended && now.job.State == offpeak.JobFailed && now.job.ExitCode == nil {
			f.End(now.job)
		}
		return
	}
	for _, line := range changes(before, now, func(id offpeak.NodeID) string { return f.NodeName(ctx, id) }, func(id int64) string { return f.checkpointName(ctx, id) }) {
		f.note(line)
	}
	if ended {
		f.End(now.job)
	}
}

// End says how the job ended.
func (f *Follower) End(job offpeak.Job) {
	sentence := render.Ended(job.Reason, job.Detail, job.ExitCode, job.Signal)
	f.note(string(job.State) + ": " + sentence)
	if next := render.Next(job); next != "" && job.State == offpeak.JobFailed {
		fmt.Fprintln(f.env.Stderr, "next: "+render.Safe(next))
	}
}

// NodeName returns a node's name, or its id where the name can't be had.
func (f *Follower) NodeName(ctx context.Context, id offpeak.NodeID) string {
	if f.names[id] == "" {
		f.names[id] = string(id)
		n, err := remote.Ask(ctx, f.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (offpeak.Node, error) { return d.Node(ctx, id) })
		if err == nil && n.Name != "" {
			f.names[id] = n.Name
		}
	}
	return f.names[id]
}

func (f *Follower) checkpointName(ctx context.Context, id int64) string {
	list, err := remote.Ask(ctx, f.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Checkpoint], error) {
		return d.Checkpoints(ctx, f.job)
	})
	if err == nil {
		for _, cp := range list.Items {
			if cp.ID == id {
				return fmt.Sprintf("%s of attempt %d", cp.Name, cp.Attempt)
			}
		}
	}
	return fmt.Sprint(id)
}

// Sink writes the records of a log to stdout and stderr.
type Sink struct {
	Stdout, Stderr io.Writer
	guards         []*render.Harmless
}

// Logs returns a sink for the log. On a terminal control characters are made
// visible unless raw output was asked for; elsewhere bytes pass as they are.
func (f *Follower) Logs() *Sink {
	s := &Sink{Stdout: f.env.Stdout, Stderr: f.env.Stderr}
	guard := func(w io.Writer) io.Writer {
		if f.raw || !world.Terminal(w) {
			return w
		}
		h := render.NewHarmless(w)
		s.guards = append(s.guards, h)
		return h
	}
	s.Stdout, s.Stderr = guard(s.Stdout), guard(s.Stderr)
	return s
}

// Write passes a record on.
func (s *Sink) Write(rec wire.LogRecord) error {
	w := s.Stdout
	if rec.Stream == "stderr" {
		w = s.Stderr
	}
	_, err := w.Write(rec.Data)
	return err
}

// Close writes what was held back of a character that was cut.
func (s *Sink) Close() error {
	var errs []error
	for _, g := range s.guards {
		errs = append(errs, g.Close())
	}
	return errors.Join(errs...)
}
