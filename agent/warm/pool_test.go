package warm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"offpeak/agent/supervisor"
)

// fake starts supervisors that are nothing but a state.
type fake struct {
	mu      sync.Mutex
	live    map[string]*sup
	refuse  int // this many starts fail
	started int
	cleared []string
}

type sup struct {
	updates chan supervisor.Status
	once    sync.Once
}

var errDown = errors.New("does not start")

func (f *fake) Spawn(_ context.Context, dir string) (Supervisor, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse > 0 {
		f.refuse--
		return nil, errDown
	}
	f.started++
	s := &sup{updates: make(chan supervisor.Status, 1)}
	f.live[filepath.Base(dir)] = s
	return s, nil
}

func (f *fake) Adopt(_ context.Context, dir string) (Supervisor, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.live[filepath.Base(dir)]; s != nil {
		return s, nil
	}
	return nil, errDown
}

func (f *fake) Clear(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cleared = append(f.cleared, filepath.Base(dir))
	return nil
}

func (f *fake) starts() int { f.mu.Lock(); defer f.mu.Unlock(); return f.started }

func (s *sup) Do(_ context.Context, r supervisor.Request) (supervisor.Status, error) {
	return supervisor.Status{Phase: supervisor.Idle}, nil
}
func (s *sup) Updates() <-chan supervisor.Status { return s.updates }
func (s *sup) Close() error                      { return nil }
func (s *sup) End(context.Context) error         { s.die(); return nil }
func (s *sup) die()                              { s.once.Do(func() { close(s.updates) }) }

func pause(ctx context.Context, n int) error {
	select {
	case <-time.After(time.Duration(n) * time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bubble runs a test over a pool of two in a bubble, until it is quiet.
func bubble(t *testing.T, prepare func(dir string, f *fake), test func(t *testing.T, p *Pool, f *fake)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{live: map[string]*sup{}}
		if prepare != nil {
			prepare(dir, f)
		}
		p := New(dir, f, 2, time.Second, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx, pause) }()
		synctest.Wait()
		test(t, p, f)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("run = %v", err)
		}
		if left := names(t, dir); len(left) > 0 {
			t.Errorf("folders left: %q", left)
		}
	})
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func take(t *testing.T, p *Pool) Slot {
	t.Helper()
	s, err := p.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return s
}

func TestPoolIsKeptFilledAndUsedAgain(t *testing.T) {
	bubble(t, nil, func(t *testing.T, p *Pool, f *fake) {
		if n := f.starts(); n != 2 {
			t.Fatalf("%d were started, want 2", n)
		}
		a, b := take(t, p), take(t, p)
		if a.Name == b.Name {
			t.Fatal("one supervisor was taken twice")
		}
		if n := f.starts(); n != 3 {
			t.Errorf("%d were started, want one more to be ready", n)
		}
		for range 10 {
			p.Give(t.Context(), a, "lease_1")
			if a = take(t, p); a.Last != "lease_1" {
				t.Errorf("it is to forget %q", a.Last)
			}
		}
		if n := f.starts(); n != 3 {
			t.Errorf("%d were started for jobs that came one after the other, want 3", n)
		}
		p.Give(t.Context(), a, "lease_1")
		p.Give(t.Context(), b, "lease_2")
		time.Sleep(2 * surplusFor)
		synctest.Wait()
		if left := names(t, p.dir); len(left) != 2 {
			t.Errorf("when all is quiet %q are kept, want 2", left)
		}
	})
}

func TestDeadOnesAreNotTaken(t *testing.T) {
	bubble(t, nil, func(t *testing.T, p *Pool, f *fake) {
		old := slices.Collect(func(yield func(string) bool) {
			for name, s := range f.live {
				s.die()
				if !yield(name) {
					return
				}
			}
		})
		s := take(t, p)
		if !alive(s.Sup) {
			t.Error("a dead supervisor was taken")
		}
		for _, name := range old {
			if !slices.Contains(f.cleared, name) {
				t.Errorf("what %s left was not cleared away", name)
			}
		}
		p.Drop(t.Context(), s)
	})
}

func TestOneThatDiedIsNotKept(t *testing.T) {
	bubble(t, nil, func(t *testing.T, p *Pool, f *fake) {
		s := take(t, p)
		s.Sup.(*sup).die()
		p.Give(t.Context(), s, "lease_1")
		if next := take(t, p); next.Name == s.Name || next.Last != "" {
			t.Errorf("took %+v", next)
		} else {
			p.Drop(t.Context(), next)
		}
		if !slices.Contains(f.cleared, s.Name) {
			t.Error("what it left was not cleared away")
		}
	})
}

func TestStartsThatFailAreTriedAgain(t *testing.T) {
	bubble(t, func(_ string, f *fake) { f.refuse = 3 }, func(t *testing.T, p *Pool, f *fake) {
		if n := f.starts(); n != 0 {
			t.Fatalf("%d were started", n)
		}
		// Whoever needs one at once hears why there is none.
		if _, err := p.Take(t.Context()); !errors.Is(err, errDown) {
			t.Errorf("take = %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := f.starts(); n != 2 {
			t.Errorf("%d were started, want 2", n)
		}
	})
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	f := &fake{live: map[string]*sup{}}
	for _, name := range []string{"1", "2", "3"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	wanted, stray := &sup{updates: make(chan supervisor.Status)}, &sup{updates: make(chan supervisor.Status)}
	f.live["1"], f.live["3"] = wanted, stray
	p := New(dir, f, 0, time.Second, slog.New(slog.DiscardHandler))
	found, err := p.Sweep(t.Context(), map[string]bool{"1": true, "2": true})
	if err != nil || len(found) != 1 || found["1"].Sup != Supervisor(wanted) {
		t.Errorf("found %v, %v", found, err)
	}
	if alive(stray) {
		t.Error("a supervisor that holds no lease goes on")
	}
	if left := names(t, dir); !slices.Equal(left, []string{"1"}) {
		t.Errorf("folders left: %q", left)
	}
	if !slices.Contains(f.cleared, "2") || slices.Contains(f.cleared, "1") {
		t.Errorf("cleared %q", f.cleared)
	}
	// The name of one that lives is not given to another.
	s, err := p.Take(t.Context())
	if err != nil || s.Name == "1" {
		t.Errorf("took %q, %v", s.Name, err)
	}
}
