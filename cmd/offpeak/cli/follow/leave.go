package follow

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// OrLeave follows a job while signals may ask to leave or to cancel it.
func (f *Follower) OrLeave(ctx context.Context, signals <-chan os.Signal) (offpeak.Job, error) {
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
	var exit *world.ExitError
	if err != nil && errors.As(cause, &exit) {
		f.note("left running; go on with: offpeak logs -f " + string(f.job))
		return job, cause
	}
	return job, err
}

// obey turns signals into what they stand for until ctx is done.
func (f *Follower) obey(ctx context.Context, signals <-chan os.Signal, leave context.CancelCauseFunc) {
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
				leave(&world.ExitError{Code: 128 + int(syscall.SIGTERM)})
				return
			case count > 2:
				leave(&world.ExitError{Code: ExitCancelled})
				return
			case count == 2:
				if asking {
					fmt.Fprintln(f.env.Stderr) // the question stays as it is
				}
				cancel()
			case world.Terminal(f.env.Stdin) && world.Terminal(f.env.Stderr):
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
				leave(&world.ExitError{Code: ExitCancelled})
				return
			case "c":
				count = 2
				cancel()
			default:
				count = 0
				f.note("going on")
			}
		}
	}
}

// answer reads one line. It ends with the line, or with the process: a read
// from a terminal can't be called off.
func (f *Follower) answer(ctx context.Context, answers chan<- string) {
	line, _ := bufio.NewReader(f.env.Stdin).ReadString('\n')
	select {
	case answers <- strings.ToLower(strings.TrimSpace(line)):
	case <-ctx.Done():
	}
}
