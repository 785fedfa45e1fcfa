package pipeline

import (
	"context"
	"os"
	"time"

	"offpeak"
	"offpeak/cmd/offpeak/cli/follow"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// lookEvery is how often a pipeline is looked at that somebody follows.
const lookEvery = 500 * time.Millisecond

// watch follows one pipeline.
type watch struct {
	c     *people.Client
	hub   *remote.Hub
	id    string
	quiet bool
	node  func(ctx context.Context, id offpeak.NodeID) string
}

// follow says what happens to the steps until all have ended.
func (w *watch) follow(ctx context.Context) (wire.PipelineJobs, error) {
	seen := map[offpeak.JobID]offpeak.Job{}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		p, err := get(ctx, w.hub, remote.Following, w.id)
		if err != nil {
			return p, err
		}
		open := false
		for _, j := range p.Jobs {
			if !w.quiet {
				w.tell(ctx, seen[j.ID], j)
			}
			seen[j.ID] = j
			open = open || !j.State.Terminal()
		}
		if !open {
			if !w.quiet {
				w.c.Note(tally(p))
			}
			return p, nil
		}
		select {
		case <-ctx.Done():
			return p, ctx.Err()
		case <-tick.C:
		}
	}
}

// tell says what happened to a step between two looks.
func (w *watch) tell(ctx context.Context, was, now offpeak.Job) {
	step := now.Spec.Name + ": "
	switch {
	case now.State == was.State && now.Attempt == was.Attempt:
	case isArray(now):
		line := step + string(now.State)
		if now.Detail != "" {
			line += ": " + now.Detail
		}
		w.c.Note(line)
	case now.State.Terminal():
		w.c.Note(step + string(now.State) + ": " + render.Ended(now.Reason, now.Detail, now.ExitCode, now.Signal))
		if now.State == offpeak.JobFailed && now.Reason != offpeak.EndDependencyFailed {
			w.c.Note(step + "its log: offpeak logs " + string(now.ID))
		}
	case now.State == offpeak.JobQueued && now.Attempt > 0:
		w.c.Note(step + "queued again: " + render.Ended(now.Reason, now.Detail, now.ExitCode, now.Signal))
	case now.State == offpeak.JobRunning:
		w.c.Note(step + "runs on " + w.node(ctx, now.Node))
	case now.State == offpeak.JobQueued && was.ID != "", now.State == offpeak.JobCancelling:
		w.c.Note(step + string(now.State))
	}
}

// orLeave follows while signals may ask to leave or to cancel.
func (w *watch) orLeave(ctx context.Context, env world.Env, signals <-chan os.Signal) (wire.PipelineJobs, error) {
	return follow.OrLeave(ctx, signals, w.follow, follow.Leave{
		Env: env, Note: w.c.Note, What: "pipeline", GoOn: "offpeak pipeline wait " + w.id,
		Cancel: func(ctx context.Context) error {
			_, err := cancel(ctx, w.hub, w.id)
			return err
		},
	})
}
