package people

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/arrays"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newCancel(env world.Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:   "cancel JOB|GROUP...",
		Short: "Cancel jobs, or all members of arrays",
		Long: `Cancel ends jobs that wait at once; a job that runs gets notice and its grace
first, and is cancelling until its node has confirmed.

` + groupHelp,
		Example: `  offpeak cancel -
  offpeak ps -l sweep=7 -o name | xargs offpeak cancel`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.each(cmd.Context(), args, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.JobID) (offpeak.Job, error) {
				return d.Cancel(ctx, op, id)
			}, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.GroupID) (offpeak.Group, error) {
				return d.CancelGroup(ctx, op, id)
			})
		},
	}
	cmd.ValidArgsFunction = c.completeWork(offpeak.JobBlocked, offpeak.JobQueued, offpeak.JobLeased, offpeak.JobRunning)
	return c.command(cmd)
}

type (
	changeJob   func(context.Context, *wire.Direct, offpeak.OpID, offpeak.JobID) (offpeak.Job, error)
	changeGroup func(context.Context, *wire.Direct, offpeak.OpID, offpeak.GroupID) (offpeak.Group, error)
)

// changed are jobs and arrays that a command changed.
type changed struct {
	Items  []offpeak.Job   `json:"items"`
	Groups []offpeak.Group `json:"groups,omitempty"`
}

// each changes jobs and arrays one after another and prints what became of them. One
// that fails does not keep the others from being changed.
func (c *client) each(ctx context.Context, refs []string, one changeJob, whole changeGroup) error {
	if err := c.dial(); err != nil {
		return err
	}
	var errs []error
	var names []string
	out := changed{Items: []offpeak.Job{}}
	for _, ref := range refs {
		id, group, err := c.jobOrGroup(ctx, ref)
		op := remote.NewOp()
		switch {
		case err != nil:
		case group != "":
			var g offpeak.Group
			if g, err = remote.Ask(ctx, c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Group, error) { return whole(ctx, d, op, group) }); err == nil {
				out.Groups, names = append(out.Groups, g), append(names, string(g.ID))
			}
		default:
			var job offpeak.Job
			if job, err = remote.Ask(ctx, c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) { return one(ctx, d, op, id) }); err == nil {
				out.Items, names = append(out.Items, job), append(names, string(job.ID))
			}
		}
		errs = append(errs, err)
	}
	var shown any = out
	switch {
	case len(refs) == 1 && len(out.Items) == 1:
		shown = out.Items[0]
	case len(refs) == 1 && len(out.Groups) == 1:
		shown = out.Groups[0]
	}
	errs = append(errs, c.print(shown, names, func(t *render.Table) {
		for _, j := range out.Items {
			t.Row(string(j.ID), string(j.State))
		}
		for _, g := range out.Groups {
			t.Row(string(g.ID), string(g.State), arrays.Counts(g))
		}
	}))
	return errors.Join(errs...)
}
