package people

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/follow"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newLogs(env world.Env) *cobra.Command {
	c := &client{env: env}
	var on, raw bool
	var attempt int
	var stream string
	var offset int64
	var index int
	cmd := &cobra.Command{
		Use:   "logs JOB|GROUP",
		Short: "Print the output of a job or an array",
		Long: `Logs prints what a job wrote: its standard output to standard output and its
standard error to standard error, byte by byte, all attempts, in the order in
which it arrived. With -f it goes on until the job has ended and exits with the
job's exit code.

Of an array it prints what the members wrote, line by line with the index before
each: one after another, with -f as it comes. --index picks one of them.

On a terminal control characters are made visible; --raw passes them on.

` + groupHelp,
		Example: `  offpeak logs -
  offpeak logs -f job_01jd8zk3x9f0wr4c2m7qv5t6ae
  offpeak logs - --attempt 2 --stream stderr > second.err
  offpeak logs -f group_01jd8zk3x9f0wr4c2m7qv50000
  offpeak logs group_01jd8zk3x9f0wr4c2m7qv50000 --index 7
  offpeak logs - --stream stdout --since-offset 4096`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !slices.Contains([]string{"", "stdout", "stderr"}, stream):
				return world.Refuse(&offpeak.FieldError{Field: "--stream", Value: stream, Rule: "is stdout or stderr"})
			case attempt < 0:
				return world.Refuse(&offpeak.FieldError{Field: "--attempt", Value: fmt.Sprint(attempt), Rule: "counts from 1"})
			case offset < 0:
				return world.Refuse(&offpeak.FieldError{Field: "--since-offset", Value: fmt.Sprint(offset), Rule: "is not negative"})
			case cmd.Flags().Changed("since-offset") && stream == "":
				return world.Refuse(&offpeak.FieldError{Field: "--since-offset", Rule: "is a place in one stream: give --stream too"})
			}
			if err := c.dial(); err != nil {
				return err
			}
			ctx := cmd.Context()
			id, group, err := c.jobOrGroup(ctx, args[0])
			if err != nil {
				return err
			}
			take := func(rec wire.LogRecord) bool {
				return (attempt == 0 || int(rec.Attempt) == attempt) && (stream == "" || rec.Stream == stream)
			}
			switch picked := cmd.Flags().Changed("index"); {
			case picked && group == "":
				return world.Refuse(&offpeak.FieldError{Field: "--index", Rule: "is for arrays"})
			case picked && (index < 0 || index > offpeak.MaxIndex):
				return world.Refuse(&offpeak.FieldError{Field: "--index", Value: fmt.Sprint(index), Rule: fmt.Sprintf("is from 0 to %d", offpeak.MaxIndex)})
			case picked:
				id = group.Member(index)
			case group != "" && cmd.Flags().Changed("since-offset"):
				return world.Refuse(&offpeak.FieldError{Field: "--since-offset", Rule: "is a place in the log of one job: give --index too"})
			case group != "":
				return c.logsOfGroup(ctx, group, on, raw, take)
			}
			f := c.follower(id, true, raw)
			logs := f.Logs()
			if cmd.Flags().Changed("since-offset") {
				err = c.hub.CopyLog(ctx, sinkOf(logs, stream), id, offpeak.Attempt(attempt), stream, offset, on)
			} else {
				enc := newJSONLines(c)
				err = c.hub.FollowLog(ctx, id, on, func(rec wire.LogRecord) error {
					if !take(rec) {
						return nil
					}
					if c.output == "json" {
						return enc(rec)
					}
					return logs.Write(rec)
				})
			}
			if err = errors.Join(err, logs.Close()); err != nil || !on {
				return err
			}
			job, err := remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) { return d.Job(ctx, id) })
			if err != nil {
				return err
			}
			if job.State.Terminal() && job.State != offpeak.JobSucceeded {
				f.End(job)
			}
			if !job.State.Terminal() {
				return nil
			}
			return follow.Exit(job)
		},
	}
	cmd.ValidArgsFunction = c.completeWork()
	fl := cmd.Flags()
	fl.BoolVarP(&on, "follow", "f", false, "go on until the job has ended")
	fl.IntVar(&index, "index", 0, "only this member of an array, `n`")
	fl.IntVar(&attempt, "attempt", 0, "only this attempt, `n` from 1")
	fl.StringVar(&stream, "stream", "", "only this `stream`: stdout or stderr")
	fl.Int64Var(&offset, "since-offset", 0, "begin at this `byte` of the stream of one attempt, the newest unless --attempt says else")
	fl.BoolVar(&raw, "raw", false, "pass control characters on to the terminal")
	_ = cmd.RegisterFlagCompletionFunc("stream", cobra.FixedCompletions([]string{"stdout", "stderr"}, cobra.ShellCompDirectiveNoFileComp))
	return c.command(cmd)
}

func sinkOf(logs *follow.Sink, stream string) io.Writer {
	if stream == "stderr" {
		return logs.Stderr
	}
	return logs.Stdout
}
