package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/blob"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/wire"
)

func newOutputs(env Env) *cobra.Command {
	c := &client{env: env}
	var out string
	var list bool
	cmd := &cobra.Command{
		Use:   "outputs JOB",
		Short: "Fetch a job's outputs",
		Long: `Outputs fetches what a job left behind into the current folder, or the one that
--out names, and prints the files' paths. Of a job that failed it is what the
newest attempt had written by its end, as far as that was stored. Files of the same
names are replaced; what is there already with the right contents is not fetched
again.

` + jobHelp,
		Example: `  offpeak outputs -
  offpeak outputs - --list
  offpeak outputs job_01jd8zk3x9f0wr4c2m7qv5t6ae --out results/`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			ctx := cmd.Context()
			id, err := c.job(ctx, args[0])
			if err != nil {
				return err
			}
			job, err := remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) { return d.Job(ctx, id) })
			if err == nil && job.Output == "" && job.State.Terminal() {
				job.Output, err = c.leftBehind(ctx, id)
			}
			switch {
			case err != nil:
				return err
			case job.Output == "" && !job.State.Terminal():
				return hinted{fmt.Errorf("job %s is %s: outputs are stored when it has succeeded", id, job.State), "Wait for it: `offpeak wait " + string(id) + "`."}
			case job.Output == "":
				return hinted{fmt.Errorf("job %s is %s and left no outputs", id, job.State), "Name outputs when you submit it: --output PATTERN."}
			}
			m, err := blob.Fetch(ctx, remote.Blobs{Hub: c.hub}, job.Output)
			if err == nil && !list {
				err = c.fetch(ctx, job, out)
			}
			if err != nil {
				return err
			}
			var paths []string
			for _, e := range m.Entries {
				paths = append(paths, e.Path)
			}
			return c.print(m, paths, func(t *table) {
				for _, p := range paths {
					t.row(p)
				}
			})
		},
	}
	cmd.ValidArgsFunction = c.completeJobs(offpeak.JobSucceeded)
	cmd.Flags().StringVar(&out, "out", ".", "`folder` to fetch into")
	cmd.Flags().BoolVar(&list, "list", false, "print what there is, fetch nothing")
	return c.command(cmd)
}

// leftBehind is the newest stored output of a job without an accepted result:
// what an attempt that failed had written by its end. "" if there is none.
func (c *client) leftBehind(ctx context.Context, id offpeak.JobID) (offpeak.Hash, error) {
	attempts, err := remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Lease], error) {
		return d.Attempts(ctx, id)
	})
	var newest offpeak.Lease
	for _, l := range attempts.Items {
		if l.Output != "" && l.Attempt > newest.Attempt {
			newest = l
		}
	}
	return newest.Output, err
}
