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
	var failed bool
	cmd := &cobra.Command{
		Use:   "retry [--failed] JOB|GROUP",
		Short: "Hand in an ended job, or members of an array, again",
		Long: `Retry hands in the spec of a job that has ended again, as a new job, and prints
the new job's id. The new job resumes from the old one's newest checkpoint.

Of an array it hands in all members once they have ended, or with --failed those
that have failed by now, as a new array whose members have the same indexes.

` + groupHelp,
		Example: `  offpeak retry -
  offpeak retry --failed group_01jd8zk3x9f0wr4c2m7qv50000`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.output == "table" {
				c.output = "name"
			}
			return c.each(cmd.Context(), args, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.JobID) (offpeak.Job, error) {
				if failed {
					return offpeak.Job{}, world.Refuse(&offpeak.FieldError{Field: "--failed", Rule: "is for arrays"})
				}
				job, err := d.Retry(ctx, op, id)
				if err == nil {
					c.remember(string(job.ID))
				}
				return job, err
			}, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.GroupID) (offpeak.Group, error) {
				group, err := d.RetryGroup(ctx, op, id, wire.GroupRetry{Failed: failed})
				if err == nil {
					c.remember(string(group.ID))
				}
				return group, err
			})
		},
	}
	cmd.ValidArgsFunction = c.completeWork(offpeak.JobFailed, offpeak.JobCancelled, offpeak.JobSucceeded)
	cmd.Flags().BoolVar(&failed, "failed", false, "of an array, only the members that have failed")
	return c.command(cmd)
}
