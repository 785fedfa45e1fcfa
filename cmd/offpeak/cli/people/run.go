package people

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"offpeak"

	"offpeak/cmd/offpeak/cli/follow"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/transfer"
	"offpeak/cmd/offpeak/cli/world"

	"github.com/spf13/cobra"
)

func newRun(env world.Env) *cobra.Command {
	c := &client{env: env}
	var s submission
	var out string
	var detach, quiet, raw bool
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a job as if it were local",
		Long: `Run hands in a job, shows its output as it comes, fetches its outputs into the
current folder and exits with the job's exit code. What happens to the job (it
waits, runs, moves to another node) stands on standard error.

Files that the job declared with --output replace files of the same names here.

Ctrl-C on a terminal asks whether to leave the job running, cancel it, or go on.
Elsewhere the first interrupt only says so and the second one cancels. SIGTERM
leaves the job running.

With --array or --sweep it hands in an array of jobs, one for each index or
combination of values. Each finds OFFPEAK_ARRAY_INDEX, OFFPEAK_ARRAY_SIZE,
OFFPEAK_GROUP and OFFPEAK_PARAM_NAME (for each --sweep NAME=…, in capitals) in its
environment. What they print comes line by line with the index before it, their
outputs land in a folder for each index, and run exits with 0 if all succeeded, 1
if one failed. At most ` + fmt.Sprint(offpeak.MaxMembers) + ` members.

With --gang it is an array whose members start together, each on a node of its own,
or not at all, and find OFFPEAK_GANG_RANK and OFFPEAK_GANG_SIZE. Where one loses its
node all stop and start again together; where one fails all end.

Exit codes: the job's own; 1 if it failed without one; 2 for bad input; 130 if it
was cancelled or left running by Ctrl-C; 143 if it was left running by SIGTERM.

` + dryRunHelp + `

` + transfer.InputHelp,
		Example: `  offpeak run -- echo hello
  offpeak run --input . --output model.json -- python3 train.py
  offpeak run --vram 24GB --max-price 0.40/h --input . -- python3 train.py --epochs 20
  offpeak run --policy fastest --vram 24GB --input . -- python3 train.py
  offpeak run --dry-run --vram 24GB --max-price 0.40/h -- python3 train.py
  offpeak run --input-from data=- -- python3 train.py data/clean.csv
  offpeak run digits.wasm
  offpeak run --array 0-99%10 -- sh -c 'echo part $OFFPEAK_ARRAY_INDEX of $OFFPEAK_ARRAY_SIZE'
  offpeak run --gang 4 --gpus 1 --input . -- sh -c 'python3 train.py --rank $OFFPEAK_GANG_RANK --of $OFFPEAK_GANG_SIZE'
  offpeak run --sweep lr=0.1,0.01 --sweep seed=1..3 --input . --output model.json -- sh sweep.sh`,
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
				return c.stay(cmd.Context(), group, out, detach, quiet, raw)
			}
			job, err := s.submit(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			if detach {
				return c.print(job, []string{string(job.ID)}, func(t *render.Table) { t.Line(string(job.ID)) })
			}
			if !quiet {
				c.note("job " + string(job.ID))
			}
			f := c.follower(job.ID, quiet, raw)
			signals := make(chan os.Signal, 4)
			signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
			defer signal.Stop(signals)
			// From here on an interrupt is a question, not an order: the
			// command's own context would take it as the latter.
			ctx := context.WithoutCancel(cmd.Context())
			job, err = f.OrLeave(ctx, signals)
			if err != nil {
				return err
			}
			if job.Output == "" {
				c.partial(ctx, job)
				return follow.Exit(job)
			}
			if err := c.desk().Fetch(ctx, job.Output, job.Spec.Task.Outputs, out); err != nil {
				return world.Hint(err, "Fetch them again: `offpeak outputs "+string(job.ID)+"`.")
			}
			return follow.Exit(job)
		},
	}
	s.bind(cmd, c)
	f := cmd.Flags()
	f.StringVar(&out, "out", ".", "`folder` for the outputs")
	f.BoolVarP(&detach, "detach", "d", false, "print the job's id and do not wait")
	f.BoolVarP(&quiet, "quiet", "q", false, "show the job's own output only, and why it failed where no exit code says so")
	f.BoolVar(&raw, "raw", false, "pass control characters on to the terminal")
	return c.command(cmd)
}

// partial says where the outputs of a job are that did not succeed. They are not
// fetched unasked: they would replace whole files by halves.
func (c *client) partial(ctx context.Context, job offpeak.Job) {
	if job.State == offpeak.JobSucceeded {
		return
	}
	stored, err := c.stored(ctx, job)
	if err == nil && stored.tree != "" {
		c.note(fmt.Sprintf("attempt %d left outputs; fetch them with: offpeak outputs %s", stored.attempt, job.ID))
	}
}
