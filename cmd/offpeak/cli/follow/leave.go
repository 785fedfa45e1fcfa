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
		f.leaver().Obey(ctx, signals, leave)
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

func (f *Follower) leaver() Leaver {
	return Leaver{Env: f.env, Note: f.note, What: "job", Cancel: func(ctx context.Context) error {
		op := remote.NewOp()
		return f.hub.Call(ctx, remote.Mutating, func(ctx context.Context, d *wire.Direct) error {
			_, err := d.Cancel(ctx, op, f.job)
			return err
		})
	}}
}

// Leaver asks a person who interrupts whether to leave what they follow running, or
// to cancel it.
type Leaver struct {
	Env  world.Env
	Note func(line string)
	// What is followed, for people.
	What string
	// Cancel cancels it.
	Cancel func(ctx context.Context) error
}

// Obey turns signals into what they stand for until ctx is done: leave ends the
// following with the exit code.
func (l Leaver) Obey(ctx context.Context, signals <-chan os.Signal, leave context.CancelCauseFunc) {
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
				fmt.Fprintf(l.Env.Stderr, "\noffpeak: d leaves the %s running, c cancels it, Enter goes on: ", l.What)
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
func (l Leaver) answer(ctx context.Context, answers chan<- string) {
	line, _ := bufio.NewReader(l.Env.Stdin).ReadString('\n')
	select {
	case answers <- strings.ToLower(strings.TrimSpace(line)):
	case <-ctx.Done():
	}
}
