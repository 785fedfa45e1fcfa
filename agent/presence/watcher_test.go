package presence

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watched is a watcher in a bubble, with what it told and when.
type watched struct {
	*Watcher
	mu   sync.Mutex
	told []Verdict
	when []time.Duration
	end  func()
}

func watch(t *testing.T, p Policy, announce Announcer, sources ...Source) *watched {
	start := time.Now()
	w := &watched{Watcher: NewWatcher(Config{
		Policy: p, Sources: sources, Announce: announce, Log: slog.New(slog.DiscardHandler),
		Clock: func() Now { return Now{Boot: 24*time.Hour + time.Since(start), Wall: time.Now()} },
	})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- w.Run(ctx, func(v Verdict) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told, w.when = append(w.told, v), append(w.when, time.Since(start))
		})
	}()
	w.end = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}
	return w
}

func (w *watched) last() Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.told) == 0 {
		return Verdict{}
	}
	return w.told[len(w.told)-1]
}

// all is what was told, and when.
func (w *watched) all() ([]Verdict, []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.told), slices.Clone(w.when)
}

// keyboard is a source of input that tests touch.
func keyboard() (s Source, touch func()) {
	var touched atomic.Int64
	start := time.Now()
	return input("keyboard", false, func(context.Context) (time.Duration, error) {
		return time.Hour*time.Duration(1-min(touched.Load(), 1)) + time.Since(start) - time.Duration(touched.Load()), nil
	}), func() { touched.Store(max(int64(time.Since(start)), 1)) }
}

func TestWatcherSeesTheOwnerReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys, touch := keyboard()
		w := watch(t, DefaultPolicy(), nil, keys)
		defer w.end()
		w.Busy(true)
		time.Sleep(10*time.Second + 300*time.Millisecond)
		if told, _ := w.all(); len(told) != 1 || told[0].Allow != AllowAll {
			t.Fatalf("told %+v", told)
		}
		touch()
		at := time.Now()
		for w.last().Allow == AllowAll && time.Since(at) < 5*time.Second {
			time.Sleep(10 * time.Millisecond)
		}
		if d := time.Since(at); w.last().Allow != AllowNone || d > 1100*time.Millisecond {
			t.Errorf("seen after %s: %+v", d, w.last())
		}
		// It is told once, though the rule's end moves on; then that it is over.
		time.Sleep(6 * time.Minute)
		if told, _ := w.all(); len(told) != 3 || told[2].Allow != AllowAll {
			t.Errorf("told %d verdicts: %+v", len(told), told)
		}
	})
}

// TestWatcherReactsAtOnce: between the answer of a source and the verdict lies
// nothing that waits.
func TestWatcherReactsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var here atomic.Bool
		var seen atomic.Int64
		start := time.Now()
		s := input("keyboard", false, func(context.Context) (time.Duration, error) {
			if here.Load() {
				seen.CompareAndSwap(0, int64(time.Since(start)))
				return 0, nil
			}
			return time.Hour, nil
		})
		hung := input("display", false, func(ctx context.Context) (time.Duration, error) { <-ctx.Done(); return 0, ctx.Err() })
		w := watch(t, DefaultPolicy(), nil, hung, s)
		defer w.end()
		time.Sleep(time.Minute + 100*time.Millisecond)
		here.Store(true)
		time.Sleep(time.Minute)
		if v := w.last(); v.Allow != AllowNone {
			t.Fatal(v)
		}
		_, when := w.all()
		if took := when[len(when)-1] - time.Duration(seen.Load()); took != 0 {
			t.Errorf("the verdict came %s after the source saw it", took)
		}
	})
}

// TestDisplayThatHangs: a display that accepts and never answers is a field that
// could not be read, within Bound, and holds up nothing else.
func TestDisplayThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		// Not even the end of its time ends it.
		stuck := input("display", false, func(context.Context) (time.Duration, error) { <-release; return 0, errors.New("released") })
		var reads atomic.Int64
		battery := power(func(context.Context) (Power, error) { reads.Add(1); return Power{Percent: 80}, nil })
		w := watch(t, DefaultPolicy(), nil, stuck, battery)
		time.Sleep(Bound + time.Millisecond)
		v := w.last()
		if v.Allow != AllowNone || !slices.Contains(v.Unknown, "input: display does not answer; you count as present") {
			t.Errorf("verdict: %+v", v)
		}
		before := reads.Load()
		time.Sleep(time.Minute)
		if reads.Load() < before+10 {
			t.Errorf("the other source was read %d times in a minute", reads.Load()-before)
		}
		w.end()
	})
}

func TestBrokenSourceBreaksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys, _ := keyboard()
		w := watch(t, DefaultPolicy(), nil, keys, power(func(context.Context) (Power, error) { panic("a bad day") }))
		defer w.end()
		time.Sleep(time.Second)
		if v := w.last(); v.Why != "on_battery" || !slices.Contains(v.Unknown, "battery: broke: a bad day; it counts as in use") {
			t.Errorf("verdict: %+v", v)
		}
	})
}

// TestIdleWatcherSleeps: with nothing to do a watcher wakes once in its Idle time,
// for all sources together, and once a second at the most while jobs run.
func TestIdleWatcherSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		wakes := map[time.Duration]bool{}
		start := time.Now()
		note := func() {
			mu.Lock()
			defer mu.Unlock()
			wakes[time.Since(start)] = true
		}
		keys := input("keyboard", false, func(context.Context) (time.Duration, error) { note(); return time.Hour, nil })
		battery := power(func(context.Context) (Power, error) { note(); return Power{}, nil })
		net := network(func(context.Context) (bool, error) { note(); return false, nil })
		w := watch(t, DefaultPolicy(), nil, keys, battery, net)
		defer w.end()
		time.Sleep(10*time.Minute - time.Millisecond)
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			n := len(wakes)
			clear(wakes)
			return n
		}
		if n := count(); n != 120 {
			t.Errorf("idle: woke %d times in ten minutes, want 120", n)
		}
		w.Busy(true)
		time.Sleep(10 * time.Minute)
		if n := count(); n > 601 {
			t.Errorf("busy: woke %d times in ten minutes", n)
		}
	})
}

func TestPolicyIsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := input("keyboard", false, func(context.Context) (time.Duration, error) { return 7 * time.Minute, nil })
		w := watch(t, DefaultPolicy(), nil, s)
		defer w.end()
		time.Sleep(time.Second)
		if v := w.last(); v.Allow != AllowAll {
			t.Fatal(v)
		}
		p := DefaultPolicy()
		p.IdleAfter *= 2
		w.SetPolicy(p)
		synctest.Wait()
		if v := w.last(); v.Allow != AllowNone {
			t.Errorf("after the change: %+v", v)
		}
		if v, ok := w.Verdict(); !ok || v.Allow != AllowNone || len(v.Rules) != 9 {
			t.Errorf("asked: %+v, %t", v, ok)
		}
	})
}

// TestHoursTurnWithoutAnyAnswer: time passes for the rules even where no source
// has anything to say.
func TestHoursTurnWithoutAnyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A bubble's clock begins at midnight UTC on a Saturday.
		p := DefaultPolicy()
		p.Zone = "UTC"
		hours("00:30-01:00")(&p)
		w := watch(t, p, nil)
		defer w.end()
		time.Sleep(2 * time.Hour)
		told, when := w.all()
		if len(told) != 3 || told[0].Allow != AllowNone || told[1].Allow != AllowAll || told[2].Allow != AllowNone {
			t.Fatalf("told %+v", told)
		}
		for i, want := range []time.Duration{0, 30 * time.Minute, time.Hour} {
			if d := when[i] - want; d < 0 || d > 5*time.Second {
				t.Errorf("verdict %d came at %s", i, when[i])
			}
		}
	})
}

func TestSleepIsToldBeforeItComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan bool)
		told := make(chan struct{})
		announce := func(ctx context.Context, asleep func(bool)) error {
			for {
				select {
				case before := <-signals:
					asleep(before)
					told <- struct{}{}
				case <-ctx.Done():
					return nil
				}
			}
		}
		s := input("keyboard", false, func(context.Context) (time.Duration, error) { return time.Hour, nil })
		w := watch(t, DefaultPolicy(), announce, s)
		defer w.end()
		time.Sleep(time.Second)
		signals <- true
		<-told
		if v := w.last(); v.Allow != AllowNone || v.Why != "sleeping" {
			t.Errorf("before sleep: %+v", v)
		}
		time.Sleep(8 * time.Hour)
		signals <- false
		<-told
		if v := w.last(); v.Allow != AllowNone || v.Why != "owner_returned" {
			t.Errorf("woken: %+v", v)
		}
		time.Sleep(6 * time.Minute)
		if v := w.last(); v.Allow != AllowAll {
			t.Errorf("left alone: %+v", v)
		}
	})
}
