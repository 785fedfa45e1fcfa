package people

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/arrays"
	"offpeak/cmd/offpeak/cli/follow"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// waitOnce is how long one call of wait lasts; the hub allows a minute.
const waitOnce = 20 * time.Second

func newWait(env world.Env) *cobra.Command {
	c := &client{env: env}
	var timeout offpeak.Duration
	cmd := &cobra.Command{
		Use:   "wait JOB|GROUP...",
		Short: "Wait until jobs and arrays have ended",
		Long: `Wait returns when all the jobs have ended, with the exit code of the first one
named that did not succeed: its own, 1 if it failed without one or is an array,
130 if it was cancelled. With --timeout it gives up after that time, with exit code 124; the
jobs go on.

` + groupHelp,
		Example: `  offpeak wait -
  offpeak wait --timeout 30m $(offpeak ps -l sweep=7 -o name)`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			ctx := cmd.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout.Std())
				defer cancel()
			}
			ended, err := c.waitAll(ctx, args)
			if errors.Is(err, context.DeadlineExceeded) && cmd.Context().Err() == nil {
				return &world.ExitError{Code: follow.ExitTimeout, Err: fmt.Errorf("the jobs have not all ended after %s", timeout)}
			} else if err != nil {
				return err
			}
			var names []string
			out := changed{Items: []offpeak.Job{}}
			for _, e := range ended {
				if e.group.ID != "" {
					out.Groups, names = append(out.Groups, e.group), append(names, string(e.group.ID))
				} else {
					out.Items, names = append(out.Items, e.job), append(names, string(e.job.ID))
				}
			}
			err = c.print(out, names, func(t *render.Table) {
				for _, j := range out.Items {
					sentence := render.Ended(j.Reason, j.Detail, j.ExitCode, j.Signal)
					t.Row(string(j.ID), string(j.State), sentence)
				}
				for _, g := range out.Groups {
					t.Row(string(g.ID), string(g.State), arrays.Counts(g))
				}
			})
			if err != nil {
				return err
			}
			for _, e := range ended {
				if err := e.exit(); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.ValidArgsFunction = c.completeWork(offpeak.JobBlocked, offpeak.JobQueued, offpeak.JobLeased, offpeak.JobRunning, offpeak.JobCancelling)
	cmd.Flags().Var((*manifest.Duration)(&timeout), "timeout", "give up after this time (default never)")
	return c.command(cmd)
}

// ended is a job or an array that has ended.
type ended struct {
	job   offpeak.Job
	group offpeak.Group
}

func (e ended) exit() error {
	if e.group.ID != "" {
		return arrays.Exit(e.group)
	}
	return follow.Exit(e.job)
}

func (c *client) waitAll(ctx context.Context, refs []string) ([]ended, error) {
	type named struct {
		job   offpeak.JobID
		group offpeak.GroupID
	}
	var wanted []named
	for _, ref := range refs {
		job, group, err := c.jobOrGroup(ctx, ref)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, named{job, group})
	}
	var out []ended
	for _, n := range wanted {
		var e ended
		var err error
		if n.group != "" {
			e.group, err = c.waitForGroup(ctx, n.group)
		} else {
			e.job, err = c.waitFor(ctx, n.job)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// waitFor returns a job once it has ended, however often the hub restarts.
func (c *client) waitFor(ctx context.Context, id offpeak.JobID) (offpeak.Job, error) {
	for {
		job, err := remote.Ask(ctx, c.hub, remote.Following, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) {
			return d.WaitJob(ctx, id, waitOnce)
		})
		if err != nil || job.State.Terminal() {
			return job, err
		}
	}
}
