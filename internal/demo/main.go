// Demo shows a training job survive the death of its node, live: a hub and
// three agents on this machine, a real job, and kill -9 in the middle of it.
//
// It owns what it starts: all processes and folders are gone when it ends, also
// after Ctrl-C and when something is off. It knows the grid as any client does,
// through the binary's commands (package grid below keeps them in one place)
// and the API. What it claims at the end it has checked: the steps come from
// the job's own records in the stored logs, the checkpoints from the hub.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	bin := flag.String("bin", "bin/offpeak", "the offpeak binary")
	job := flag.String("job", "bin/digits", "folder with digits.wasm and its data")
	train := flag.Duration("train", 24*time.Second, "about how long to train")
	keep := flag.Bool("keep", false, "leave the folder with logs and state behind")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := show(ctx, *bin, *job, *train, *keep)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

// show runs the whole demo in a folder of its own and leaves nothing behind.
func show(ctx context.Context, bin, job string, train time.Duration, keep bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	job, err = filepath.Abs(job)
	if err != nil {
		return err
	}
	for _, needed := range []string{bin, filepath.Join(job, module)} {
		if _, err := os.Stat(needed); err != nil {
			return fmt.Errorf("%w: run `make build wasm` first", err)
		}
	}
	dir, err := os.MkdirTemp("", "offpeak-demo-")
	if err != nil {
		return err
	}
	out := newStage(os.Stdout)
	g := &grid{bin: bin, dir: dir, out: out}
	defer func() {
		switch {
		case err == nil:
		case errors.Is(ctx.Err(), context.Canceled):
			err = context.Cause(ctx) // somebody pressed Ctrl-C
		default:
			g.tails(os.Stderr)
		}
		if gone := g.end(keep); err == nil {
			err = gone
		}
	}()
	return newStory(g, out, job, train).tell(ctx)
}
