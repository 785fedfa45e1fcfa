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
	return OrLeave(ctx, signals, f.follow, Leave{
		Env: f.env, Note: f.note, What: "job", GoOn: "offpeak logs -f " + string(f.job),
		Cancel: func(ctx context.Context) error {
			op := remote.NewOp()
			return f.hub.Call(ctx, remote.Mutating, func(ctx context.Context, d *wire.Direct) error {
				_, err := d.Cancel(ctx, op, f.job)
				return err
			})
		},
	})
}

// Leave is what signals may ask for while something is followed.
type Leave struct {
	Env  world.Env
	Note func(line string)
	// What is followed, in a word; GoOn is the command that goes on with it.
	What, GoOn string
	Cancel     func(ctx context.Context) error
}

// OrLeave runs follow while signals may ask to leave or to cancel.
func OrLeave[T any](ctx context.Context, signals <-chan os.Signal, follow func(ctx context.Context) (T, error), l Leave) (T, error) {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.obey(ctx, signals, leave)
	}()
	out, err := follow(ctx)
	cause := context.Cause(ctx)
	leave(nil)
	<-done
	var exit *world.ExitError
	if err != nil && errors.As(cause, &exit) {
		l.Note("left running; go on with: " + l.GoOn)
		return out, cause
	}
	return out, err
}

// obey turns signals into what they stand for until ctx is done.
func (l Leave) obey(ctx context.Context, signals <-chan os.Signal, leave context.CancelCauseFunc) {
	answers := make(chan string)
	asking, cancelled, count := false, false, 0
	cancel := func() {
		if cancelled {
			return
		}
		cancelled = true
		l.Note("cancelling; interrupt again to leave at once")
		if err := l.Cancel(ctx); err != nil && ctx.Err() == nil {
			l.Note("cancel: " + err.Error())
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
					fmt.Fprintln(l.Env.Stderr) // the question stays as it is
				}
				cancel()
			case world.Terminal(l.Env.Stdin) && world.Terminal(l.Env.Stderr):
				asking = true
				fmt.Fprint(l.Env.Stderr, "\noffpeak: d leaves the "+l.What+" running, c cancels it, Enter goes on: ")
				go l.answer(ctx, answers)
			default:
				l.Note("the " + l.What + " goes on; interrupt again to cancel it")
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
				l.Note("going on")
			}
		}
	}
}

// answer reads one line. It ends with the line, or with the process: a read
// from a terminal can't be called off.
func (l Leave) answer(ctx context.Context, answers chan<- string) {
	line, _ := bufio.NewReader(l.Env.Stdin).ReadString('\n')
	select {
	case answers <- strings.ToLower(strings.TrimSpace(line)):
	case <-ctx.Done():
	}
}
