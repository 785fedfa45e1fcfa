package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/wire"
)

func newRun(env Env) *cobra.Command {
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

Exit codes: the job's own; 1 if it failed without one; 2 for bad input; 130 if it
was cancelled or left running by Ctrl-C; 143 if it was left running by SIGTERM.

` + inputHelp,
		Example: `  offpeak run -- echo hello
  offpeak run --input . --output model.json -- python3 train.py
  offpeak run --vram 24GB --max-price 0.40 --input . -- python3 train.py --epochs 20
  offpeak run digits.wasm`,
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := s.submit(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			if detach {
				return c.print(job, []string{string(job.ID)}, func(t *table) { t.line(string(job.ID)) })
			}
			if !quiet {
				c.note("job " + string(job.ID))
			}
			f := newFollower(c, job.ID, quiet, raw)
			signals := make(chan os.Signal, 4)
			signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
			defer signal.Stop(signals)
			// From here on an interrupt is a question, not an order: the
			// command's own context would take it as the latter.
			ctx := context.WithoutCancel(cmd.Context())
			job, err = f.followOrLeave(ctx, signals)
			if err != nil {
				return err
			}
			if err := c.fetch(ctx, job, out); err != nil {
				return hinted{err, "Fetch them again: `offpeak outputs " + string(job.ID) + "`."}
			}
			return exit(job)
		},
	}
	s.bind(cmd)
	f := cmd.Flags()
	f.StringVar(&out, "out", ".", "`folder` for the outputs")
	f.BoolVarP(&detach, "detach", "d", false, "print the job's id and do not wait")
	f.BoolVarP(&quiet, "quiet", "q", false, "show the job's own output only")
	f.BoolVar(&raw, "raw", false, "pass control characters on to the terminal")
	return c.command(cmd)
}

// followOrLeave follows a job while signals may ask to leave or to cancel it.
func (f *follower) followOrLeave(ctx context.Context, signals <-chan os.Signal) (offpeak.Job, error) {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.obey(ctx, signals, leave)
	}()
	job, err := f.follow(ctx)
	cause := context.Cause(ctx)
	leave(nil)
	<-done
	var exit *ExitError
	if err != nil && errors.As(cause, &exit) {
		f.note("left running; go on with: offpeak logs -f " + string(f.job))
		return job, cause
	}
	return job, err
}

// obey turns signals into what they stand for until ctx is done.
func (f *follower) obey(ctx context.Context, signals <-chan os.Signal, leave context.CancelCauseFunc) {
	answers := make(chan string)
	asking, cancelled, count := false, false, 0
	cancel := func() {
		if cancelled {
			return
		}
		cancelled = true
		f.note("cancelling; interrupt again to leave at once")
		op := remote.NewOp()
		err := f.hub.Call(ctx, remote.Mutating, func(ctx context.Context, d *wire.Direct) error {
			_, err := d.Cancel(ctx, op, f.job)
			return err
		})
		if err != nil && ctx.Err() == nil {
			f.note("cancel: " + err.Error())
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-signals:
			count++
			switch {
			case s == syscall.SIGTERM:
				leave(&ExitError{Code: 128 + int(syscall.SIGTERM)})
				return
			case count > 2:
				leave(&ExitError{Code: exitCancelled})
				return
			case count == 2:
				cancel()
			case terminal(f.env.Stdin) && terminal(f.env.Stderr):
				asking = true
				fmt.Fprint(f.env.Stderr, "\noffpeak: d leaves the job running, c cancels it, Enter goes on: ")
				go f.answer(ctx, answers)
			default:
				f.note("the job goes on; interrupt again to cancel it")
			}
		case a := <-answers:
			if !asking {
				continue
			}
			asking = false
			switch a {
			case "d":
				leave(&ExitError{Code: exitCancelled})
				return
			case "c":
				count = 2
				cancel()
			default:
				count = 0
			}
		}
	}
}

// answer reads one line. It ends with the line, or with the process: a read
// from a terminal can't be called off.
func (f *follower) answer(ctx context.Context, answers chan<- string) {
	line, _ := bufio.NewReader(f.env.Stdin).ReadString('\n')
	select {
	case answers <- strings.ToLower(strings.TrimSpace(line)):
	case <-ctx.Done():
	}
}
