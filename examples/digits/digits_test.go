package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// trainSet is a small and quick training on the real data.
func trainSet(t *testing.T) []image {
	t.Helper()
	images, err := load("digits.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	train, test := split(images)
	if len(images) != 1797 || len(train)+len(test) != len(images) {
		t.Fatalf("loaded %d images, split into %d and %d", len(images), len(train), len(test))
	}
	return train
}

func TestLoadRefusesWhatIsNotTheData(t *testing.T) {
	for name, content := range map[string]string{
		"not gzip": "0,0,5",
		"empty":    "",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "data")
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := load(path); err == nil {
				t.Error("no error")
			}
		})
	}
}

// The slope that backward computes is the slope of the loss.
func TestGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	n := newNet(rng, 5)
	x := make([]float32, pixels)
	for i := range x {
		x[i] = rng.Float32()
	}
	n.learn(x, 4)
	wants := map[*layer][]float32{n.hidden: slices.Clone(n.hidden.grad), n.output: slices.Clone(n.output.grad)}
	for l, want := range wants {
		for _, i := range []int{0, 7, len(l.W) / 2, len(l.W) - 1} {
			const h = 1e-2
			w := l.W[i]
			l.W[i] = w + h
			up := n.learn(x, 4)
			l.W[i] = w - h
			down := n.learn(x, 4)
			l.W[i] = w
			if got := (up - down) / (2 * h); math.Abs(got-float64(want[i])) > 1e-3 {
				t.Errorf("weight %d: the loss's slope is %g, backward says %g", i, got, want[i])
			}
		}
	}
}

// A training that is stored and restored after any step takes the same steps
// as one that was left alone, bit for bit.
func TestResumeIsExact(t *testing.T) {
	images := trainSet(t)
	const steps = 60
	begin := func() *training { return newTraining(images, 7, 16, 8, steps, 0.01) }
	whole := begin()
	var losses []float64
	for whole.step < steps {
		losses = append(losses, whole.advance())
	}
	want, err := whole.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []int{0, 1, 29, 59, 60} {
		first := begin()
		for first.step < cut {
			first.advance()
		}
		stored, err := first.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		// Another seed: whatever matters must come from the stored state.
		second := newTraining(images, 99, 16, 8, steps, 0.01)
		if err := second.UnmarshalBinary(stored); err != nil {
			t.Fatal(err)
		}
		for second.step < steps {
			if loss := second.advance(); loss != losses[second.step-1] {
				t.Fatalf("cut at %d: step %d has loss %v, want %v", cut, second.step, loss, losses[second.step-1])
			}
		}
		got, err := second.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("cut at %d: the trained state differs", cut)
		}
	}
}

func TestRestoreRefusesAnotherTraining(t *testing.T) {
	images := trainSet(t)
	data, err := newTraining(images, 7, 16, 8, 60, 0.01).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]*training{
		"steps":  newTraining(images, 7, 16, 8, 61, 0.01),
		"batch":  newTraining(images, 7, 16, 9, 60, 0.01),
		"hidden": newTraining(images, 7, 17, 8, 60, 0.01),
		"rate":   newTraining(images, 7, 16, 8, 60, 0.02),
	} {
		if err := other.UnmarshalBinary(data); err == nil {
			t.Errorf("a state with another %s was taken", name)
		}
	}
	if err := newTraining(images, 7, 16, 8, 60, 0.01).UnmarshalBinary(data[:len(data)/2]); err == nil {
		t.Error("half a state was taken")
	}
}

func TestCheckpointsKeepTwoAndFallBack(t *testing.T) {
	c := checkpoints{filepath.Join(t.TempDir(), "checkpoints")}
	take := func(data []byte) error {
		if len(data) == 0 {
			return errors.New("empty")
		}
		return nil
	}
	if name, refused := c.restore(take); name != "" || refused != nil {
		t.Fatalf("from nothing: %q, %v", name, refused)
	}
	for _, step := range []int{100, 200, 300} {
		if err := c.save(step, []byte("state")); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != "step-00000200 step-00000300" {
		t.Fatalf("kept %q", got)
	}
	newest := filepath.Join(c.dir, "step-00000300")
	for name, spoil := range map[string]func() error{
		"changed": func() error { return os.WriteFile(newest, []byte("stale\x00\x00\x00\x00"), 0o644) },
		"cut":     func() error { return os.Truncate(newest, 2) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		got, refused := c.restore(take)
		if got != "step-00000200" || len(refused) != 1 {
			t.Errorf("newest %s: restored %q, refused %v", name, got, refused)
		}
	}
}

// onLine calls then once, when the first line that holds mark is written.
type onLine struct {
	bytes.Buffer
	mark string
	then func()
}

func (w *onLine) Write(p []byte) (int, error) {
	if w.then != nil && bytes.Contains(p, []byte(w.mark)) {
		w.then()
		w.then = nil
	}
	return w.Buffer.Write(p)
}

// job returns the options of a short run in a folder of its own.
func job(t *testing.T, dir string, attempt int) options {
	return options{
		data: "digits.csv.gz", outputs: filepath.Join(dir, "outputs"),
		checkpoints: filepath.Join(dir, "checkpoints"), notice: filepath.Join(dir, "notice.json"),
		attempt: attempt, steps: 1000, every: 100, report: 100, batch: 32, hidden: 64, rate: 0.01, seed: 7,
	}
}

// A run that is asked to leave writes a checkpoint of the very step; the next
// attempt begins there, and the model is the one of an uninterrupted run.
func TestRunLeavesAndGoesOn(t *testing.T) {
	alone, moved := t.TempDir(), t.TempDir()
	var quiet bytes.Buffer
	if err := job(t, alone, 1).run(&quiet); err != nil {
		t.Fatal(err)
	}
	first := job(t, moved, 1)
	// Report every step so that the notice comes between two checkpoints.
	first.report = 1
	out := &onLine{mark: "step 337 ", then: func() {
		if err := os.WriteFile(first.notice, []byte(`{"reason":"owner_returned"}`), 0o644); err != nil {
			t.Error(err)
		}
	}}
	if err := first.run(out); !errors.Is(err, errMoved) {
		t.Fatalf("run with a notice returned %v", err)
	}
	if !strings.Contains(out.String(), `{"event":"moved","attempt":1,"step":337}`) {
		t.Errorf("the record does not say where it left:\n%s", out)
	}
	if err := os.Remove(first.notice); err != nil {
		t.Fatal(err)
	}
	var second bytes.Buffer
	if err := job(t, moved, 2).run(&second); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(second.String(), `{"event":"start","attempt":2,"step":337,"from":"step-00000337"}`) {
		t.Errorf("the second attempt did not begin at the checkpoint:\n%s", second.String())
	}
	same(t, filepath.Join(alone, "outputs", "model.json"), filepath.Join(moved, "outputs", "model.json"))
	accurate(t, filepath.Join(moved, "outputs", "metrics.json"))
	if !strings.Contains(second.String(), "test accuracy 0.9") {
		t.Errorf("no accuracy in:\n%s", second.String())
	}
}

func TestRunRefusesNonsense(t *testing.T) {
	for name, change := range map[string]func(*options){
		"no steps": func(o *options) { o.steps = 0 },
		"no batch": func(o *options) { o.batch = -1 },
		"no data":  func(o *options) { o.data = "absent.csv.gz" },
	} {
		o := job(t, t.TempDir(), 1)
		change(&o)
		if err := o.run(&bytes.Buffer{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func same(t *testing.T, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x, y) {
		t.Errorf("%s and %s differ", a, b)
	}
}

func accurate(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m metrics
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	if m.Accuracy < 0.95 {
		t.Errorf("test accuracy %.4f, want at least 0.95", m.Accuracy)
	}
}
