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

` + transfer.InputHelp,
		Example: `  offpeak submit --input . --output model.json -- python3 train.py
  offpeak submit -f job.yaml
  offpeak submit -f job.yaml --name second-try --memory 8GB`,
		RunE: func(cmd *cobra.Command, args []string) error {
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
	s.bind(cmd)
	return c.command(cmd)
}

// submission is a job on its way to the hub.
type submission struct {
	manifest.Flags
	file string
}

func (s *submission) bind(cmd *cobra.Command) {
	s.Bind(cmd)
	cmd.Flags().StringVarP(&s.file, "file", "f", "", "job `file` in YAML; - reads it from standard input")
}

// submit checks the job, sends its inputs and hands it in. Nothing is sent
// before all that can be checked here is right.
func (s *submission) submit(ctx context.Context, c *client, command []string) (offpeak.Job, error) {
	var spec offpeak.Spec
	if s.file != "" {
		var err error
		if spec, err = manifest.Read(s.file, c.env.Stdin); err != nil {
			return offpeak.Job{}, world.Refuse(err)
		}
	}
	if len(command) == 0 && len(spec.Task.Command) == 0 {
		return offpeak.Job{}, world.Refuse(world.Hint(errors.New("no command: say what to run"), "For example `offpeak run -- python3 train.py`, or describe the job in a file: `offpeak submit -f job.yaml`."))
	}
	spec, err := s.Apply(spec, command, c.env.Getenv)
	if err != nil {
		return offpeak.Job{}, world.Refuse(err)
	}
	given := s.Inputs
	if len(given) == 0 && spec.Task.Input == "" && spec.Task.Driver == "wasm" {
		// A module can come from nowhere but the input.
		if _, err := os.Stat(spec.Task.Command[0]); err == nil {
			given = spec.Task.Command[:1]
		}
	}
	if _, _, err := transfer.Inputs(given); err != nil {
		return offpeak.Job{}, err
	}
	if err := c.dial(); err != nil {
		return offpeak.Job{}, err
	}
	if spec, err = s.Resolve(spec, func(ref string) (offpeak.NodeID, error) { return c.node(ctx, ref) }); err != nil {
		return offpeak.Job{}, err
	}
	if len(given) > 0 {
		if spec.Task.Input, err = c.desk().Send(ctx, given); err != nil {
			return offpeak.Job{}, err
		}
	}
	op := remote.NewOp()
	job, err := remote.Ask(ctx, c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) {
		return d.Submit(ctx, op, spec)
	})
	if err == nil {
		c.remember(job.ID)
	}
	return job, err
}
