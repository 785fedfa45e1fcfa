package people

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newCancel(env world.Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:   "cancel JOB...",
		Short: "Cancel jobs",
		Long: `Cancel ends jobs that wait at once; a job that runs gets notice and its grace
first, and is cancelling until its node has confirmed.

` + jobHelp,
		Example: `  offpeak cancel -
  offpeak ps -l sweep=7 -o name | xargs offpeak cancel`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.eachJob(cmd.Context(), args, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.JobID) (offpeak.Job, error) {
				return d.Cancel(ctx, op, id)
			})
		},
	}
	cmd.ValidArgsFunction = c.completeJobs(offpeak.JobBlocked, offpeak.JobQueued, offpeak.JobLeased, offpeak.JobRunning)
	return c.command(cmd)
}

// eachJob changes jobs one after another and prints what became of them. One
// that fails does not keep the others from being changed.
func (c *client) eachJob(ctx context.Context, refs []string, change func(context.Context, *wire.Direct, offpeak.OpID, offpeak.JobID) (offpeak.Job, error)) error {
	if err := c.dial(); err != nil {
		return err
	}
	var errs []error
	jobs := []offpeak.Job{}
	for _, ref := range refs {
		id, err := c.job(ctx, ref)
		if err == nil {
			op := remote.NewOp()
			var job offpeak.Job
			job, err = remote.Ask(ctx, c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) {
				return change(ctx, d, op, id)
			})
			if err == nil {
				jobs = append(jobs, job)
			}
		}
		errs = append(errs, err)
	}
	var shown any = wire.List[offpeak.Job]{Items: jobs}
	if len(refs) == 1 && len(jobs) == 1 {
		shown = jobs[0]
	}
	errs = append(errs, c.print(shown, ids(jobs, func(j offpeak.Job) offpeak.JobID { return j.ID }), func(t *render.Table) {
		for _, j := range jobs {
			t.Row(string(j.ID), string(j.State))
		}
	}))
	return errors.Join(errs...)
}
