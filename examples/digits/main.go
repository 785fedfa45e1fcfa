// Digits trains a small neural network to read handwritten digits, as a job of
// the grid: it can be killed at any moment on one node and goes on from its
// last checkpoint on another, to the same result, bit for bit.
//
// What makes it so is the checkpoint contract: the whole state of the training
// is written to a file that appears in $OFFPEAK_CHECKPOINT_DIR by rename, and a
// start takes the newest that is there. When $OFFPEAK_NOTICE appears the grid
// wants the machine back: it writes a last checkpoint and leaves.
//
// It is built for WebAssembly (GOOS=wasip1 GOARCH=wasm) and runs sandboxed on
// every node; built natively it does the same, which is how most tests run it.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// exitMoved says that the job left because it was asked to. It is not 0: the
// job is not done.
const exitMoved = 75

var errMoved = errors.New("asked to leave")

type options struct {
	data, outputs, checkpoints, notice string
	attempt                            int
	steps, every, report               int
	batch, hidden                      int
	rate                               float64
	seed                               uint64
}

func main() {
	o := options{
		checkpoints: env("OFFPEAK_CHECKPOINT_DIR", "checkpoints"),
		notice:      os.Getenv("OFFPEAK_NOTICE"),
	}
	o.attempt, _ = strconv.Atoi(env("OFFPEAK_ATTEMPT", "1"))
	flag.StringVar(&o.data, "data", "digits.csv.gz", "the data file")
	flag.StringVar(&o.outputs, "outputs", env("OFFPEAK_OUTPUT_DIR", "outputs"), "folder for model and metrics")
	flag.IntVar(&o.steps, "steps", 5000, "steps to train, one batch each")
	flag.IntVar(&o.every, "checkpoint-every", 100, "steps between checkpoints")
	flag.IntVar(&o.report, "report-every", 100, "steps between lines of progress")
	flag.IntVar(&o.batch, "batch", 64, "images in a step")
	flag.IntVar(&o.hidden, "hidden", 64, "units in the hidden layer")
	flag.Float64Var(&o.rate, "rate", 0.01, "learning rate of the first step")
	flag.Uint64Var(&o.seed, "seed", 7, "seed of the training")
	flag.Parse()
	err := o.run(os.Stdout)
	switch {
	case errors.Is(err, errMoved):
		os.Exit(exitMoved)
	case err != nil:
		fmt.Fprintln(os.Stderr, "digits:", err)
		os.Exit(1)
	}
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// record is what the job says of itself, one JSON object a line: where each
// attempt began and ended, and which checkpoints it wrote. It goes to stdout,
// which the grid keeps for every attempt; the files of a killed attempt are lost.
type record struct {
	Event   string `json:"event"`
	Attempt int    `json:"attempt"`
	Step    int    `json:"step"`
	From    string `json:"from,omitempty"`
}

// run trains from the newest checkpoint to the end. It returns errMoved when
// it was asked to leave, after it has written a checkpoint.
func (o options) run(out io.Writer) error {
	if o.steps < 1 || o.every < 1 || o.report < 1 || o.batch < 1 || o.hidden < 1 {
		return errors.New("steps, batch, hidden, checkpoint-every and report-every must be at least 1")
	}
	images, err := load(o.data)
	if err != nil {
		return err
	}
	if len(images) < 4 {
		return fmt.Errorf("%s holds %d images, too few to train and test with", o.data, len(images))
	}
	train, test := split(images)
	t := newTraining(train, o.seed, o.hidden, o.batch, o.steps, o.rate)
	store := checkpoints{o.checkpoints}
	say := json.NewEncoder(out)

	from, refused := store.restore(t.UnmarshalBinary)
	for _, err := range refused {
		fmt.Fprintln(out, "passed over:", err)
	}
	if err := say.Encode(record{"start", o.attempt, t.step, from}); err != nil {
		return err
	}
	saved := t.step
	save := func() error {
		data, err := t.MarshalBinary()
		if err == nil {
			err = store.save(t.step, data)
		}
		if err != nil {
			return fmt.Errorf("write checkpoint: %w", err)
		}
		saved = t.step
		return say.Encode(record{Event: "checkpoint", Attempt: o.attempt, Step: t.step})
	}
	for t.step < t.steps {
		if o.asked() {
			if t.step > saved {
				if err := save(); err != nil {
					return err
				}
			}
			if err := say.Encode(record{Event: "moved", Attempt: o.attempt, Step: t.step}); err != nil {
				return err
			}
			return errMoved
		}
		loss := t.advance()
		if t.step%o.report == 0 || t.step == t.steps {
			fmt.Fprintf(out, "step %d of %d loss %.4f\n", t.step, t.steps, loss)
		}
		if t.step%o.every == 0 {
			if err := save(); err != nil {
				return err
			}
		}
	}
	accuracy := t.net.accuracy(test)
	if err := o.finish(t, accuracy, len(train), len(test)); err != nil {
		return fmt.Errorf("write outputs: %w", err)
	}
	if err := say.Encode(record{Event: "done", Attempt: o.attempt, Step: t.step}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "test accuracy %.4f\n", accuracy)
	return err
}

// asked says that the grid wants the machine back.
func (o options) asked() bool {
	if o.notice == "" {
		return false
	}
	_, err := os.Stat(o.notice)
	return err == nil
}

// metrics is what metrics.json holds.
type metrics struct {
	Accuracy float64 `json:"test_accuracy"`
	Steps    int     `json:"steps"`
	Train    int     `json:"train_images"`
	Test     int     `json:"test_images"`
}

func (o options) finish(t *training, accuracy float64, train, test int) error {
	if err := os.MkdirAll(o.outputs, 0o755); err != nil {
		return err
	}
	m, err := json.MarshalIndent(metrics{accuracy, t.step, train, test}, "", "  ")
	if err != nil {
		return err
	}
	weights, err := json.Marshal(map[string][]float32{"hidden": t.net.hidden.W, "output": t.net.output.W})
	if err != nil {
		return err
	}
	return errors.Join(
		write(filepath.Join(o.outputs, "model.json"), weights),
		write(filepath.Join(o.outputs, "metrics.json"), append(m, '\n')),
	)
}
