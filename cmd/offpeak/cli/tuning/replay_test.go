package tuning

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"offpeak/bench/consumer"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/placement"
	"offpeak/placement/replay"
)

// traffic is a file of made-up traffic.
func traffic(t *testing.T) string {
	t.Helper()
	made := consumer.New(1).Traffic(consumer.Load{Nodes: 30, Jobs: 400, Span: 24 * time.Hour, Away: 6 * time.Hour})
	path := filepath.Join(t.TempDir(), "traffic.jsonl")
	if err := writeNew(path, func(f *os.File) error { return made.Write(f) }); err != nil {
		t.Fatal(err)
	}
	return path
}

func at(stdout io.Writer, from string) *replaying {
	env := world.Env{Stdout: stdout, Stderr: io.Discard, Getenv: func(string) string { return "" }}
	return &replaying{env: env, progress: newProgress(env), from: from, format: "table", objective: "wait=1", budget: 10, seed: 1}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := at(io.Discard, traffic(t))
	if err := r.command(ctx, r.run); err == nil || !strings.HasPrefix(err.Error(), "interrupted") {
		t.Errorf("interrupted: %v", err)
	}
}

// Several sets at once give what each gives alone.
func TestSideBySide(t *testing.T) {
	var stdout bytes.Buffer
	r := at(&stdout, traffic(t))
	whole, err := r.load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other := placement.DefaultTuning()
	other.Policy = placement.Balanced
	sets := []replay.Set{{Name: "a", Tuning: placement.DefaultTuning()}, {Name: "b", Tuning: other}, {Name: "c", Tuning: placement.DefaultTuning()}}
	results, err := r.try(t.Context(), whole, "replaying", sets)
	if err != nil {
		t.Fatal(err)
	}
	for i := range sets {
		alone, err := replay.Run(whole, sets[i], replay.Options{})
		if err != nil || alone.WaitMean != results[i].WaitMean || alone.Paid != results[i].Paid || results[i].Set.Name != sets[i].Name {
			t.Errorf("%s: %+v, alone %+v, %v", sets[i].Name, results[i], alone, err)
		}
	}
	if results[0].Paid == results[1].Paid {
		t.Error("the policy made no difference")
	}
	sets[1].VRAM = -1
	if _, err := r.try(t.Context(), whole, "", sets); err == nil || !strings.Contains(err.Error(), "replay under b") {
		t.Errorf("a set that makes no sense: %v", err)
	}
}

func TestFilesAreWrittenWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	full := errors.New("full")
	if err := writeNew(path, func(f *os.File) error { _, _ = f.WriteString("half"); return full }); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestObjective(t *testing.T) {
	if o, err := parseObjective("price=0, wait=2.5"); err != nil || o.Wait != 2.5 || o.Price != 0 || o.Stranded != 24 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range []string{"", "wait", "wait=-1", "wait=1,wait=2", "wait=NaN", "wait=0,price=0,lost=0,stranded=0"} {
		if _, err := parseObjective(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// halted ends its context within a line.
type halted struct {
	in     io.Reader
	cancel context.CancelFunc
}

func (h *halted) Read(p []byte) (int, error) {
	defer h.cancel()
	return h.in.Read(p[:min(len(p), 1000)])
}

// Whoever interrupts while a file is read is told just that, not where it ended.
func TestInterruptedWhileItReads(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := at(io.Discard, "")
	err := r.command(ctx, func(ctx context.Context) error {
		head := `{"traffic":2,"from":"2026-01-01T00:00:00Z","until":"2026-01-02T00:00:00Z"}` + "\n"
		_, err := parse(ctx, "file", []byte(head), &halted{strings.NewReader(strings.Repeat("x", 1<<20)), cancel})
		return err
	})
	if err == nil || err.Error() != "interrupted: nothing was changed" {
		t.Errorf("%v", err)
	}
}

// Where no file can be written is said before the work, and a long line by its bound.
func TestBadPlaces(t *testing.T) {
	r := at(io.Discard, "nowhere")
	r.search, r.out = true, filepath.Join(t.TempDir(), "none", "w.yaml")
	if err := r.run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "--out: ") {
		t.Errorf("search: %v", err)
	}
	if err := r.record(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "--out: ") {
		t.Errorf("record: %v", err)
	}
	path := filepath.Join(t.TempDir(), "long")
	if err := os.WriteFile(path, bytes.Repeat([]byte("a"), replay.MaxLine+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := at(io.Discard, path).load(t.Context()); err == nil || !strings.Contains(err.Error(), "line 1: ") || !strings.Contains(err.Error(), "a line is at most 4MiB") {
		t.Errorf("%v", err)
	}
}
