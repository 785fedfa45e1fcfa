package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"offpeak"
)

// tried is what the stored log of an attempt says of it.
type tried struct {
	lease    offpeak.Lease
	node     string
	from     int // the step of the checkpoint it began with
	last     int // the last step it told of
	end      string
	accuracy float64
}

// proof reads what the grid kept of the training, prints it and checks it.
func (s *story) proof(ctx context.Context) error {
	s.out.title("What was kept of it")
	leases, err := s.g.api.Attempts(ctx, s.job)
	if err != nil {
		return err
	}
	var tries []tried
	for _, l := range leases.Items {
		t, err := s.read(ctx, l)
		if err != nil {
			return err
		}
		tries = append(tries, t)
	}
	accuracy, outputs, err := s.fetch(ctx)
	if err != nil {
		return err
	}
	s.table(tries)
	if err := s.verify(tries, accuracy); err != nil {
		return err
	}
	if _, err := s.g.command(ctx, s.g.dir, checkArgs()); err != nil {
		return fmt.Errorf("an invariant is broken: %w", err)
	}
	redone := tries[0].last - tries[1].from
	var computed offpeak.Millis
	for _, t := range tries {
		computed += t.lease.Metered
	}
	s.out.text("")
	s.out.text("  test accuracy   %.4f, of a model trained on two machines", accuracy)
	s.out.text("  steps lost      none beyond the last stored checkpoint (step %d); %d newer ones were done again", tries[1].from, max(redone, 0))
	s.out.text("  computing       %.1f s, as metered", float64(computed)/1000)
	s.out.text("  outputs         %s", strings.Join(outputs, ", "))
	s.out.text("  offpeak check   every invariant holds")
	s.out.title("Yours to try")
	s.out.text("  bin/offpeak hub                         # in one terminal")
	s.out.text("  bin/offpeak agent run                   # in another; on other machines: agent join TOKEN")
	s.out.text("  cd bin/digits && ../offpeak run --memory 512MiB --input . --output outputs -- digits.wasm")
	return nil
}

// read reads the stored log of an attempt.
func (s *story) read(ctx context.Context, l offpeak.Lease) (tried, error) {
	t := tried{lease: l, node: s.nodes[l.Node], from: -1}
	body, err := s.g.api.Logs(ctx, s.job, l.Attempt, "stdout", 0, false)
	if err != nil {
		return t, fmt.Errorf("read log of attempt %d: %w", l.Attempt, err)
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		said := parse(lines.Text())
		switch {
		case said.record.Event == "start":
			t.from, t.last = said.record.Step, said.record.Step
		case said.record.Event != "":
			t.last, t.end = max(t.last, said.record.Step), said.record.Event
		case said.step > 0:
			t.last = max(t.last, said.step)
		case said.accuracy > 0:
			t.accuracy = said.accuracy
		}
		if a := said.record.Attempt; a != 0 && a != int(l.Attempt) {
			return t, fmt.Errorf("the log of attempt %d holds a line of attempt %d", l.Attempt, a)
		}
	}
	if err := lines.Err(); err != nil {
		return t, fmt.Errorf("read log of attempt %d: %w", l.Attempt, err)
	}
	return t, nil
}

// fetch fetches the job's outputs and returns the accuracy they state.
func (s *story) fetch(ctx context.Context) (accuracy float64, names []string, err error) {
	to := filepath.Join(s.g.dir, "fetched")
	if _, err := s.g.command(ctx, s.g.dir, outputsArgs(s.job, to)); err != nil {
		return 0, nil, err
	}
	var found struct {
		Accuracy float64 `json:"test_accuracy"`
	}
	err = filepath.WalkDir(to, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		names = append(names, e.Name())
		if e.Name() != "metrics.json" {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return json.Unmarshal(data, &found)
	})
	if err != nil {
		return 0, nil, fmt.Errorf("read outputs: %w", err)
	}
	return found.Accuracy, names, nil
}

func (s *story) table(tries []tried) {
	s.out.text("  attempt  node          steps          how it ended")
	for _, t := range tries {
		end, _ := offpeak.EndOf(t.lease.Reason)
		s.out.text("  %-7d  %-12s  %5d – %-5d  %s", t.lease.Attempt, t.node, t.from+1, t.last, end.Sentence)
	}
}

// verify checks that the story ended as it must.
func (s *story) verify(tries []tried, accuracy float64) error {
	if len(tries) != 2 {
		return fmt.Errorf("the job took %d attempts, not 2", len(tries))
	}
	kept, err := stepOf(s.kept.Name)
	if err != nil {
		return err
	}
	first, second := tries[0], tries[1]
	var wrong []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	must(first.lease.State == offpeak.LeaseLost, "attempt 1 is %s, not lost", first.lease.State)
	must(second.lease.State == offpeak.LeaseSucceeded, "attempt 2 is %s, not succeeded", second.lease.State)
	must(first.node == s.victim, "attempt 1 ran on %s, but %s was killed", first.node, s.victim)
	must(second.node != s.victim, "attempt 2 ran on the killed node")
	must(first.from == 0, "attempt 1 began after step %d", first.from)
	must(s.kept.Attempt == 1 && kept > 0, "checkpoint %s is of attempt %d", s.kept.Name, s.kept.Attempt)
	must(second.from == kept, "attempt 2 went on after step %d, but the hub had stored step %d", second.from, kept)
	must(second.lease.Restored == s.kept.ID, "attempt 2 restored checkpoint %d, not %d", second.lease.Restored, s.kept.ID)
	must(first.last >= kept, "attempt 1 told of %d steps, but stored step %d", first.last, kept)
	must(first.last < s.steps, "attempt 1 was not killed in the middle")
	must(second.last == s.steps && second.end == "done", "attempt 2 ended at step %d of %d", second.last, s.steps)
	must(accuracy >= wanted, "the test accuracy is %.4f, less than %.2f", accuracy, wanted)
	must(fmt.Sprintf("%.4f", accuracy) == fmt.Sprintf("%.4f", second.accuracy), "the outputs state an accuracy of %.4f, the log of %.4f", accuracy, second.accuracy)
	return errors.Join(wrong...)
}
