package people

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/transfer"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newSubmit(env world.Env) *cobra.Command {
	c := &client{env: env}
	var s submission
	cmd := &cobra.Command{
		Use:   "submit [flags] [-f FILE] [--] [COMMAND [ARG...]]",
		Short: "Hand in a job and print its id",
		Long: `Submit hands in a job, from flags, from a job file or both, and prints its id
once the hub has stored it. What flags say wins over the file.

A job file is YAML with the names of the API; sizes may have units:

    name: digits
    task:
      driver: process
      command: [python3, train.py]
      outputs: [model.json]
    requirements:
      memory_bytes: 4GB
      max_price: 0.40/h

` + dryRunHelp + `

` + transfer.InputHelp,
		Example: `  offpeak submit --input . --output model.json -- python3 train.py
  offpeak submit --after - -- python3 report.py
  offpeak submit --dry-run --gpus 2 -- python3 train.py
  offpeak submit -f job.yaml
  offpeak submit -f job.yaml --name second-try --memory 8GB`,
		RunE: func(cmd *cobra.Command, args []string) error {
			array, err := s.group.Read(cmd)
			if err != nil {
				return world.Refuse(err)
			}
			if s.dry {
				return s.foretell(cmd.Context(), c, args, array)
			}
			if array != nil {
				group, err := s.submitArray(cmd.Context(), c, args, *array)
				if err != nil {
					return err
				}
				if c.output != "json" {
					c.output = "name"
				}
				return c.print(group, []string{string(group.ID)}, nil)
			}
			job, err := s.submit(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			if c.output == "json" {
				return c.print(job, nil, nil)
			}
			c.output = "name"
			return c.print(job, []string{string(job.ID)}, nil)
		},
	}
	s.bind(cmd, c)
	return c.command(cmd)
}

// submission is a job on its way to the hub.
type submission struct {
	manifest.Flags
	group manifest.Array
	file  string
	// dry says that it is not to be handed in.
	dry bool
	// after, afterAny and from name jobs to wait for.
	after, afterAny, from []string
}

func (s *submission) bind(cmd *cobra.Command, c *client) {
	s.Bind(cmd)
	s.group.Bind(cmd)
	f := cmd.Flags()
	f.StringVarP(&s.file, "file", "f", "", "job `file` in YAML; - reads it from standard input")
	f.BoolVar(&s.dry, "dry-run", false, "hand nothing in: say where it would go, or why it would wait")
	f.StringArrayVar(&s.after, "after", nil, "begin once this `job`, or each member of this array, has succeeded; if not, this one fails (repeatable)")
	f.StringArrayVar(&s.afterAny, "after-any", nil, "begin once this `job`, or all of this array, has ended, however (repeatable)")
	f.StringArrayVar(&s.from, "input-from", nil, "begin once a job has succeeded, with its outputs in a folder: `folder=job`; of an array in folder/INDEX (repeatable)")
	for _, name := range []string{"after", "after-any"} {
		_ = cmd.RegisterFlagCompletionFunc(name, c.completeJobs())
	}
}

// spec checks the job and sends its inputs. Nothing is sent before all that can be
// checked here is right.
func (s *submission) spec(ctx context.Context, c *client, command []string) (spec offpeak.Spec, after []offpeak.After, err error) {
	if s.file != "" {
		if spec, err = manifest.Read(s.file, c.env.Stdin); err != nil {
			return spec, nil, world.Refuse(err)
		}
	}
	if len(command) == 0 && len(spec.Task.Command) == 0 {
		return spec, nil, world.Refuse(world.Hint(errors.New("no command: say what to run"), "For example `offpeak run -- python3 train.py`, or describe the job in a file: `offpeak submit -f job.yaml`."))
	}
	if spec, err = s.Apply(spec, command, c.env.Getenv); err != nil {
		return spec, nil, world.Refuse(err)
	}
	given := s.Inputs
	if len(given) == 0 && spec.Task.Input == "" && spec.Task.Driver == "wasm" {
		// A module can come from nowhere but the input.
		if _, err := os.Stat(spec.Task.Command[0]); err == nil {
			given = spec.Task.Command[:1]
		}
	}
	if _, _, err := transfer.Inputs(given); err != nil {
		return spec, after, err
	}
	if err := c.dial(); err != nil {
		return spec, after, err
	}
	if spec, err = s.Resolve(spec, func(ref string) (offpeak.NodeID, error) { return c.node(ctx, ref) }); err != nil {
		return spec, nil, misnamed(err)
	}
	if after, err = s.waits(ctx, c); err != nil {
		return spec, nil, misnamed(err)
	}
	if len(given) > 0 && !s.dry {
		spec.Task.Input, err = c.desk().Send(ctx, given)
	}
	return spec, after, err
}

// misnamed marks what a flag names and is not there as bad input: nothing was tried.
func misnamed(err error) error {
	if errors.Is(err, offpeak.ErrNotFound) {
		return world.Refuse(err)
	}
	return err
}

// submit hands the job in.
func (s *submission) submit(ctx context.Context, c *client, command []string) (offpeak.Job, error) {
	spec, after, err := s.spec(ctx, c, command)
	if err != nil {
		return offpeak.Job{}, err
	}
	op := remote.NewOp()
	job, err := remote.Ask(ctx, c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) {
		return d.Submit(ctx, op, spec, after...)
	})
	err = world.Named(err, s.awaited(after))
	if err == nil {
		c.remember(string(job.ID))
	}
	return job, err
}

// submitArray hands an array of the job in.
func (s *submission) submitArray(ctx context.Context, c *client, command []string, array offpeak.Array) (offpeak.Group, error) {
	spec, after, err := s.spec(ctx, c, command)
	if err != nil {
		return offpeak.Group{}, err
	}
	op := remote.NewOp()
	group, err := remote.Ask(ctx, c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Group, error) {
		return d.SubmitGroup(ctx, op, wire.NewGroup{Spec: spec, Array: array, After: after})
	})
	err = world.Named(err, s.awaited(after))
	if err == nil {
		c.remember(string(group.ID))
	}
	return group, err
}
