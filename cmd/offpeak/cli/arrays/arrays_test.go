package arrays

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"

	"offpeak"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// Lines of members come whole, each with its index, however they were cut.
func TestLines(t *testing.T) {
	var out, errs bytes.Buffer
	w := &Whole{Env: world.Env{Stdout: &out, Stderr: &errs}}
	l := w.lines()
	say := func(index int, stream, text string) {
		t.Helper()
		if err := l.write(index, wire.LogRecord{Stream: stream, Data: []byte(text)}); err != nil {
			t.Fatal(err)
		}
	}
	say(7, "stdout", "one\ntw")
	say(3, "stdout", "drei\n")
	say(7, "stderr", "oh\n\n")
	say(7, "stdout", "o\nthr")
	if err := l.end(7); err != nil {
		t.Fatal(err)
	}
	say(3, "stdout", strings.Repeat("x", longest+1))
	if err := l.end(3); err != nil {
		t.Fatal(err)
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if want := "[7] one\n[3] drei\n[7] two\n[7] thr\n[3] " + strings.Repeat("x", longest+1) + "\n"; out.String() != want {
		t.Errorf("stdout = %.80q…, want %.80q…", out.String(), want)
	}
	if want := "[7] oh\n[7] \n"; errs.String() != want {
		t.Errorf("stderr = %q, want %q", errs.String(), want)
	}
}

// Each member is followed once, and all that was put there before the end is.
func TestPile(t *testing.T) {
	p := newPile()
	var mu sync.Mutex
	var got []int
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i, ok := p.next(); ok; i, ok = p.next() {
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
			}
		})
	}
	for range 2 {
		for i := range 100 {
			p.add(i)
		}
	}
	p.close()
	all.Wait()
	slices.Sort(got)
	if len(got) != 100 || got[0] != 0 || got[99] != 99 {
		t.Errorf("followed %v", got)
	}
}

func TestWords(t *testing.T) {
	g := offpeak.Group{Members: 10, State: offpeak.JobRunning, Counts: map[offpeak.JobState]int{
		offpeak.JobQueued: 3, offpeak.JobRunning: 2, offpeak.JobSucceeded: 4, offpeak.JobFailed: 1,
	}}
	if got, want := Progress(g), "5 of 10 ended: 3 queued, 2 running, 4 succeeded, 1 failed"; got != want {
		t.Errorf("Progress = %q, want %q", got, want)
	}
	for state, want := range map[offpeak.JobState]int{offpeak.JobSucceeded: 0, offpeak.JobFailed: 1, offpeak.JobCancelled: 130} {
		if got := Code(offpeak.Group{State: state}); got != want {
			t.Errorf("Code(%s) = %d, want %d", state, got, want)
		}
	}
}
