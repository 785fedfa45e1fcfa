package people

import (
	"context"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newRetry(env world.Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:   "retry JOB",
		Short: "Hand in an ended job again",
		Long: `Retry hands in the spec of a job that has ended again, as a new job, and prints
the new job's id. The new job resumes from the old one's newest checkpoint.

` + jobHelp,
		Example: `  offpeak retry -`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.output == "table" {
				c.output = "name"
			}
			return c.eachJob(cmd.Context(), args, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.JobID) (offpeak.Job, error) {
				job, err := d.Retry(ctx, op, id)
				if err == nil {
					c.remember(job.ID)
				}
				return job, err
			})
		},
	}
	cmd.ValidArgsFunction = c.completeJobs(offpeak.JobFailed, offpeak.JobCancelled, offpeak.JobSucceeded)
	return c.command(cmd)
}
