// Package pipeline has the commands for pipelines: jobs that are handed in together,
// some of which wait for others.
//
// It owns what a person sees of a pipeline as a whole; its jobs are jobs like any
// others, for which there are the commands of package people. What makes a pipeline
// right is decided by package offpeak. Its values belong to one command.
package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/arrays"
	"offpeak/cmd/offpeak/cli/follow"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

const refHelp = `PIPELINE is its id, or that of one of its jobs, or - for the one you submitted last.`

// New returns the commands.
func New(env world.Env) []*cobra.Command {
	cmd := &cobra.Command{
		Use:   "pipeline",
		Short: "Hand in jobs that wait for each other",
		Long: `A pipeline is a file with several jobs, its steps, some of which wait for others:
data preparation on CPUs, then training on a GPU, then evaluation. It is checked as a
whole and stored as a whole. Each step is a job like any other.

    name: digits
    steps:
      - name: prepare
        files: [prepare.py, raw.csv]
        task:
          command: [python3, prepare.py]
          outputs: [clean.csv]
      - name: train
        from: [prepare]
        files: [train.py]
        requirements:
          gpus: [{vram_bytes: 24GB}]
        task:
          command: [python3, train.py, prepare/clean.csv]
          outputs: [model.json]
      - name: evaluate
        from: [prepare, train]
        files: [evaluate.py]
        task:
          command: [python3, evaluate.py, prepare/clean.csv, train/model.json]

A step is written as a job file is (see offpeak submit --help), and may also have:

  after       steps that must succeed before it begins
  after_any   steps that must have ended, however
  from        steps that must succeed, and whose outputs land in a folder of their
              name in the job's folder; with after_any too, just those that there are
  array       makes an array of the step, one job for each index: 0-7 or 0-99%10. Who waits
              for it waits for all of them; from finds their outputs in NAME/INDEX.
              {gang: 4} makes four jobs of it that start together
  files       files and folders that land in the job's folder; their paths begin at
              the folder of the pipeline file and may lead out of it (../data), so
              look at a file from somebody else before you run it`,
		Example: `  offpeak pipeline run digits.yaml
  offpeak pipeline show -`,
	}
	cmd.AddCommand(newRun(env), newShow(env), newWait(env), newCancel(env), newRetry(env))
	return []*cobra.Command{people.Group(cmd)}
}

func newRun(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var out string
	var detach bool
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "Hand in a pipeline and follow it",
		Long: `Run hands in a pipeline, says what happens to its steps as it happens, and fetches
the outputs of those steps whose outputs no other step takes: each into a folder of
the step's name.

A step that fails keeps only those from running that depend on it. Ctrl-C asks as
offpeak run does whether to leave the pipeline running, cancel it, or go on.

Exit codes: 0 if every step succeeded; else that of the first step that did not, by
itself: the job's own, 1 if it failed without one, 130 if it was cancelled or left
running by Ctrl-C; 143 if it was left running by SIGTERM; 2 for bad input.`,
		Example: `  offpeak pipeline run digits.yaml
  offpeak pipeline run digits.yaml --out results
  offpeak pipeline run digits.yaml --detach`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, hub, err := submit(cmd.Context(), c, env, args[0])
			if err != nil {
				return err
			}
			if detach {
				return c.Print(p, []string{p.ID}, func(t *render.Table) { t.Line(p.ID) })
			}
			c.Note("pipeline " + p.ID)
			signals := make(chan os.Signal, 4)
			signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
			defer signal.Stop(signals)
			// As with a job, an interrupt is a question, not an order.
			ctx := context.WithoutCancel(cmd.Context())
			w := watch{c: c, hub: hub, id: p.ID, node: c.Nodes()}
			if p, err = w.orLeave(ctx, env, signals); err != nil {
				return err
			}
			if err := fetch(ctx, c, env, hub, p, out); err != nil {
				return err
			}
			return exit(p)
		},
	}
	cmd.Flags().StringVar(&out, "out", ".", "`folder` for the outputs")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the pipeline's id and do not wait")
	return c.Command(cmd)
}

// submit reads and checks a pipeline file, sends its files and hands it in. Nothing is
// sent before all that can be checked here is right.
func submit(ctx context.Context, c *people.Client, env world.Env, path string) (p wire.PipelineJobs, hub *remote.Hub, err error) {
	file, err := manifest.ReadPipeline(path, env.Stdin)
	if err != nil {
		return p, nil, world.Refuse(err)
	}
	in := offpeak.Pipeline{Name: file.Name, Steps: make([]offpeak.Step, len(file.Steps))}
	for i, s := range file.Steps {
		if s.Task.Driver == "" {
			s.Task.Driver = "process"
			if len(s.Task.Command) > 0 && strings.HasSuffix(s.Task.Command[0], ".wasm") {
				s.Task.Driver = "wasm"
			}
		}
		in.Steps[i] = s.Step
	}
	if err := in.WithDefaults().Validate(); err != nil {
		return p, nil, world.Refuse(err)
	}
	folder := "."
	if path != "-" {
		folder = filepath.Dir(path)
	}
	for i, s := range file.Steps {
		if err := c.Desk().Check(fmt.Sprintf("steps[%d].files", i), folder, s.Files); err != nil {
			return p, nil, err
		}
	}
	if hub, err = c.Dial(); err != nil {
		return p, nil, err
	}
	for i, s := range file.Steps {
		if len(s.Files) == 0 {
			continue
		}
		if in.Steps[i].Task.Input, err = c.Desk().SendFrom(ctx, fmt.Sprintf("steps[%d].files", i), folder, s.Files); err != nil {
			return p, nil, err
		}
	}
	op := remote.NewOp()
	p, err = remote.Ask(ctx, hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (wire.PipelineJobs, error) {
		return d.SubmitPipeline(ctx, op, in)
	})
	if err == nil {
		c.Remember(p.Jobs[len(p.Jobs)-1].ID)
	}
	return p, hub, err
}

// find finds the pipeline that a person named.
func find(ctx context.Context, c *people.Client, ref string) (*remote.Hub, string, error) {
	hub, err := c.Dial()
	if err != nil || strings.HasPrefix(ref, "pipe_") {
		return hub, ref, err
	}
	id, group, err := c.JobOrGroup(ctx, ref)
	if err != nil {
		return nil, "", err
	}
	if group != "" {
		g, err := remote.Ask(ctx, hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (offpeak.Group, error) { return d.Group(ctx, group) })
		if err == nil && g.Pipeline == "" {
			err = world.Refuse(fmt.Errorf("array %s is no step of a pipeline", group))
		}
		return hub, g.Pipeline, err
	}
	job, err := remote.Ask(ctx, hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) { return d.Job(ctx, id) })
	if err == nil && !strings.HasPrefix(job.Group, "pipe_") {
		err = world.Refuse(fmt.Errorf("job %s is no step of a pipeline", id))
	}
	return hub, job.Group, err
}

func get(ctx context.Context, hub *remote.Hub, kind remote.Patience, id string) (wire.PipelineJobs, error) {
	return remote.Ask(ctx, hub, kind, func(ctx context.Context, d *wire.Direct) (wire.PipelineJobs, error) { return d.Pipeline(ctx, id) })
}

func newShow(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	cmd := &cobra.Command{
		Use:   "show PIPELINE",
		Short: "Show a pipeline's steps",
		Long: `Show lists the steps of a pipeline: how each stands, what it waits for, and why it
ended.

` + refHelp,
		Example: `  offpeak pipeline show -`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, id, err := find(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			p, err := get(cmd.Context(), hub, remote.Reading, id)
			if err != nil {
				return err
			}
			return show(c, p)
		},
	}
	cmd.ValidArgsFunction = c.CompletePipelines
	return c.Command(cmd)
}

func show(c *people.Client, p wire.PipelineJobs) error {
	return c.Print(p, []string{p.ID}, func(t *render.Table) {
		t.Line(cmp.Or(p.Name, "pipeline") + " " + p.ID + ": " + tally(p))
		t.Line("")
		t.Row("STEP", "JOB", "STATE", "WAITS FOR", "WHY IT ENDED")
		for _, j := range p.Jobs {
			var waits []string
			for _, a := range j.After {
				if !a.State.Terminal() && !j.State.Terminal() {
					waits = append(waits, cmp.Or(a.Name, string(a.Job)))
				}
			}
			why := ""
			if isArray(j) {
				why = j.Detail
			} else if j.State.Terminal() {
				why = render.Ended(j.Reason, j.Detail, j.ExitCode, j.Signal)
			}
			t.Row(j.Spec.Name, string(j.ID), string(j.State), render.Dash(strings.Join(waits, ", ")), render.Dash(why))
		}
	})
}

// tally counts a pipeline's steps by their states.
func tally(p wire.PipelineJobs) string {
	var parts []string
	for _, state := range offpeak.JobStates() {
		n := 0
		for _, j := range p.Jobs {
			if j.State == state {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return strings.Join(parts, ", ")
}

func newWait(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	cmd := &cobra.Command{
		Use:   "wait PIPELINE",
		Short: "Wait until a pipeline has ended",
		Long: `Wait returns when every step of a pipeline has ended, with the exit code that
offpeak pipeline run would have.

` + refHelp,
		Example: `  offpeak pipeline wait -`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, id, err := find(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			p, err := (&watch{c: c, hub: hub, id: id, quiet: true}).follow(cmd.Context())
			if err != nil {
				return err
			}
			return errors.Join(show(c, p), exit(p))
		},
	}
	cmd.ValidArgsFunction = c.CompletePipelines
	return c.Command(cmd)
}

func newCancel(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	cmd := &cobra.Command{
		Use:   "cancel PIPELINE",
		Short: "Cancel what of a pipeline has not ended",
		Long: `Cancel ends steps that wait at once; those that run get notice and their grace
first, as with offpeak cancel.

` + refHelp,
		Example: `  offpeak pipeline cancel -`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, id, err := find(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			p, err := cancel(cmd.Context(), hub, id)
			if err != nil {
				return err
			}
			return show(c, p)
		},
	}
	cmd.ValidArgsFunction = c.CompletePipelines
	return c.Command(cmd)
}

func cancel(ctx context.Context, hub *remote.Hub, id string) (wire.PipelineJobs, error) {
	op := remote.NewOp()
	return remote.Ask(ctx, hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (wire.PipelineJobs, error) {
		return d.CancelPipeline(ctx, op, id)
	})
}

func newRetry(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	cmd := &cobra.Command{
		Use:   "retry PIPELINE",
		Short: "Hand in again what of a pipeline did not succeed",
		Long: `Retry hands in those steps again that failed or were cancelled, with those that
could not begin, as a pipeline of their own, and prints its id. They take what steps
made that had succeeded, and resume from their checkpoints.

` + refHelp,
		Example: `  offpeak pipeline retry -
  offpeak pipeline wait -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, id, err := find(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			op := remote.NewOp()
			p, err := remote.Ask(cmd.Context(), hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (wire.PipelineJobs, error) {
				return d.RetryPipeline(ctx, op, id)
			})
			if err != nil {
				return err
			}
			c.Remember(p.Jobs[len(p.Jobs)-1].ID)
			return c.Print(p, []string{p.ID}, func(t *render.Table) { t.Line(p.ID) })
		},
	}
	cmd.ValidArgsFunction = c.CompletePipelines
	return c.Command(cmd)
}

// isArray says that a step is an array, which stands among jobs with its id.
func isArray(j offpeak.Job) bool { return offpeak.GroupID(j.ID).Valid() }

// fetch fetches the outputs that no step takes.
func fetch(ctx context.Context, c *people.Client, env world.Env, hub *remote.Hub, p wire.PipelineJobs, out string) error {
	taken := map[offpeak.JobID]bool{}
	for _, j := range p.Jobs {
		for _, a := range j.After {
			taken[a.Job] = taken[a.Job] || a.Into != ""
		}
	}
	for _, j := range p.Jobs {
		if isArray(j) && !taken[j.ID] && len(j.Spec.Task.Outputs) > 0 {
			whole := arrays.Whole{Env: env, Hub: hub, Note: c.Note, Desk: c.Desk(), ID: offpeak.GroupID(j.ID)}
			if _, err := whole.Fetch(ctx, filepath.Join(out, j.Spec.Name)); err != nil {
				return world.Hint(err, "Fetch them again: `offpeak outputs "+string(j.ID)+"`.")
			}
			continue
		}
		if j.Output == "" || taken[j.ID] {
			continue
		}
		folder := filepath.Join(out, j.Spec.Name)
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return fmt.Errorf("fetch outputs: %w", err)
		}
		if err := c.Desk().Fetch(ctx, j.Output, j.Spec.Task.Outputs, folder); err != nil {
			return world.Hint(err, "Fetch them again: `offpeak outputs "+string(j.ID)+"`.")
		}
	}
	return nil
}

// exit is the exit code of a pipeline that has ended: that of the first step that did
// not succeed by itself, rather than for one that it waited for.
func exit(p wire.PipelineJobs) error {
	jobs := slices.Clone(p.Jobs)
	slices.SortStableFunc(jobs, func(a, b offpeak.Job) int { return cmp.Compare(waited(a), waited(b)) })
	for _, j := range jobs {
		if err := follow.Exit(j); err != nil {
			return err
		}
	}
	return nil
}

func waited(j offpeak.Job) int {
	if j.Reason == offpeak.EndDependencyFailed {
		return 1
	}
	return 0
}
