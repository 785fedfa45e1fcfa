package people

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/blob"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newOutputs(env world.Env) *cobra.Command {
	c := &client{env: env}
	var out string
	var list bool
	cmd := &cobra.Command{
		Use:   "outputs JOB",
		Short: "Fetch a job's outputs",
		Long: `Outputs fetches what a job that succeeded left behind into the current folder,
or the one that --out names, and prints the files' paths. Files of the same
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
			switch {
			case err != nil:
				return err
			case job.Output == "" && !job.State.Terminal():
				return world.Hint(fmt.Errorf("job %s is %s: outputs are stored when it has succeeded", id, job.State), "Wait for it: `offpeak wait "+string(id)+"`.")
			case job.Output == "":
				return world.Hint(fmt.Errorf("job %s is %s and left no outputs", id, job.State), "Name outputs when you submit it: --output PATTERN.")
			}
			m, err := blob.Fetch(ctx, remote.Blobs{Hub: c.hub}, job.Output)
			if err == nil && !list {
				err = c.desk().Fetch(ctx, job, out)
			}
			if err != nil {
				return err
			}
			var paths []string
			for _, e := range m.Entries {
				paths = append(paths, e.Path)
			}
			return c.print(m, paths, func(t *render.Table) {
				for _, p := range paths {
					t.Row(p)
				}
			})
		},
	}
	cmd.ValidArgsFunction = c.completeJobs(offpeak.JobSucceeded)
	cmd.Flags().StringVar(&out, "out", ".", "`folder` to fetch into")
	cmd.Flags().BoolVar(&list, "list", false, "print what there is, fetch nothing")
	return c.command(cmd)
}
