package people

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
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
		Use:   "wait JOB...",
		Short: "Wait until jobs have ended",
		Long: `Wait returns when all the jobs have ended, with the exit code of the first one
named that did not succeed: its own, 1 if it failed without one, 130 if it was
cancelled. With --timeout it gives up after that time, with exit code 124; the
jobs go on.

` + jobHelp,
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
			jobs, err := c.waitAll(ctx, args)
			if errors.Is(err, context.DeadlineExceeded) && cmd.Context().Err() == nil {
				return &world.ExitError{Code: follow.ExitTimeout, Err: fmt.Errorf("the jobs have not all ended after %s", timeout)}
			} else if err != nil {
				return err
			}
			err = c.print(wire.List[offpeak.Job]{Items: jobs}, ids(jobs, func(j offpeak.Job) offpeak.JobID { return j.ID }), func(t *render.Table) {
				for _, j := range jobs {
					sentence := render.Ended(j.Reason, j.Detail, j.ExitCode, j.Signal)
					t.Row(string(j.ID), string(j.State), sentence)
				}
			})
			if err != nil {
				return err
			}
			for _, j := range jobs {
				if err := follow.Exit(j); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.ValidArgsFunction = c.completeJobs(offpeak.JobBlocked, offpeak.JobQueued, offpeak.JobLeased, offpeak.JobRunning, offpeak.JobCancelling)
	cmd.Flags().Var((*manifest.Duration)(&timeout), "timeout", "give up after this time (default never)")
	return c.command(cmd)
}

func (c *client) waitAll(ctx context.Context, refs []string) ([]offpeak.Job, error) {
	var wanted []offpeak.JobID
	for _, ref := range refs {
		id, err := c.job(ctx, ref)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, id)
	}
	var jobs []offpeak.Job
	for _, id := range wanted {
		job, err := c.waitFor(ctx, id)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
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
