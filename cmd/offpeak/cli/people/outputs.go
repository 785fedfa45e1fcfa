package people

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"offpeak"
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
		Use:   "outputs JOB|GROUP",
		Short: "Fetch the outputs of a job or an array",
		Long: `Outputs fetches what a job left behind into the current folder, or the one that
--out names, and prints the files' paths. Files of the same names are replaced;
what is there already with the right contents is not fetched again.

Of a job that did not succeed, or not yet, it fetches what its newest attempt
that left anything has stored, and says so. Of an array it fetches what members
that succeeded left, each into a folder named by its index.

` + groupHelp,
		Example: `  offpeak outputs -
  offpeak outputs - --list
  offpeak outputs job_01jd8zk3x9f0wr4c2m7qv5t6ae --out results/`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			ctx := cmd.Context()
			id, group, err := c.jobOrGroup(ctx, args[0])
			if err != nil {
				return err
			}
			if group != "" {
				return c.outputsOfGroup(ctx, group, out, list)
			}
			job, err := remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) { return d.Job(ctx, id) })
			if err != nil {
				return err
			}
			from, err := c.stored(ctx, job)
			switch {
			case err != nil:
				return err
			case from.tree == "" && !job.State.Terminal():
				return world.Hint(fmt.Errorf("job %s is %s: outputs are stored when an attempt ends", id, job.State), "Wait for it: `offpeak wait "+string(id)+"`.")
			case from.tree == "":
				return world.Hint(fmt.Errorf("job %s is %s and left no outputs", id, job.State), "Name outputs when you submit it: --output PATTERN.")
			case job.Output == "":
				c.note(fmt.Sprintf("job %s is %s: these are the outputs of attempt %d, which did not complete", id, job.State, from.attempt))
			}
			m, err := c.desk().Look(ctx, from.tree, job.Spec.Task.Outputs)
			if err == nil && !list {
				err = c.desk().Fetch(ctx, from.tree, job.Spec.Task.Outputs, out)
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
	cmd.ValidArgsFunction = c.completeWork(offpeak.JobSucceeded, offpeak.JobFailed, offpeak.JobCancelled)
	cmd.Flags().StringVar(&out, "out", ".", "`folder` to fetch into")
	cmd.Flags().BoolVar(&list, "list", false, "print what there is, fetch nothing")
	return c.command(cmd)
}

// kept is a tree of outputs and the attempt that left it.
type kept struct {
	tree    offpeak.Hash
	attempt offpeak.Attempt
}

// stored finds a job's outputs: the accepted ones, else those of the newest
// attempt that left any.
func (c *client) stored(ctx context.Context, job offpeak.Job) (kept, error) {
	if job.Output != "" {
		return kept{job.Output, job.Attempt}, nil
	}
	attempts, err := remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Lease], error) {
		return d.Attempts(ctx, job.ID)
	})
	if err != nil {
		return kept{}, err
	}
	var found kept
	for _, l := range attempts.Items {
		if l.Output != "" && l.Attempt > found.attempt {
			found = kept{l.Output, l.Attempt}
		}
	}
	return found, nil
}
