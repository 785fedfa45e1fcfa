package supervisor_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"offpeak"
	"offpeak/agent/supervisor"
)

func lease(timeout time.Duration) supervisor.Lease {
	return supervisor.Lease{Granted: supervisor.BootTime(), Timeout: timeout}
}

// counter appends a byte every few milliseconds, so that running shows.
const counter = `echo ready; while :; do printf x >>ticks; sleep 0.01; done`

func ticks(t *testing.T, s supervisor.Start) int64 {
	info, err := os.Stat(filepath.Join(s.Command.Dir, "ticks"))
	if err != nil {
		return 0
	}
	return info.Size()
}

func TestFreezesAtTheDeadlineAndThawsOnANewerLease(t *testing.T) {
	for _, fence := range fences(t) {
		t.Run(fence, func(t *testing.T) {
			t.Parallel()
			h := spawn(t, fence)
			s := script(t, counter)
			s.Deadline = lease(400 * time.Millisecond)
			start(t, h, s)
			st := await(t, h, "frozen", func(st supervisor.Status) bool { return st.Frozen })
			if at := time.Duration(supervisor.BootTime() - s.Deadline.Granted); at < 300*time.Millisecond || at > 390*time.Millisecond {
				t.Logf("frozen after %s", at)
				if at < 300*time.Millisecond {
					t.Error("frozen early")
				}
			}
			if st.Why != offpeak.EndNodeLost {
				t.Errorf("why %q", st.Why)
			}
			n := ticks(t, s)
			stale := supervisor.Lease{Granted: s.Deadline.Granted - 1, Timeout: time.Hour}
			if st := do(t, h, supervisor.Request{Lease: &stale}); !st.Frozen {
				t.Error("an older lease thawed the tree")
			}
			do(t, h, supervisor.Request{Freeze: &supervisor.Freeze{Frozen: false}})
			time.Sleep(50 * time.Millisecond) // time in which nothing may happen
			if m := ticks(t, s); m != n {
				t.Errorf("%d ticks while frozen", m-n)
			}
			newer := lease(time.Hour)
			if st := do(t, h, supervisor.Request{Lease: &newer}); st.Frozen {
				t.Error("still frozen")
			}
			eventually(t, "the job goes on", func() bool { return ticks(t, s) > n })
		})
	}
}

func TestKilledAfterKeepFrozen(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	s := script(t, escapees+counter)
	m := mark(t, &s)
	s.Deadline = lease(400 * time.Millisecond)
	s.KeepFrozen = 100 * time.Millisecond
	start(t, h, s)
	if e := awaitExit(t, h); e.Reason != offpeak.EndNodeLost {
		t.Errorf("exit %+v", e)
	}
	if left := marked(m); len(left) > 0 {
		t.Errorf("survivors %v", left)
	}
	if _, err := os.Stat(filepath.Join(s.Folder, "notice.json")); err == nil {
		t.Error("a job whose hub was away got a notice")
	}
}

func TestFreezeByOrderKeepsTheJobAndItsTime(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	s := script(t, counter)
	s.Limits.Time = time.Hour
	start(t, h, s)
	eventually(t, "ticks", func() bool { return ticks(t, s) > 0 })
	st := do(t, h, supervisor.Request{Freeze: &supervisor.Freeze{Frozen: true}})
	if !st.Frozen || st.Why != "" {
		t.Fatalf("%+v", st)
	}
	time.Sleep(30 * time.Millisecond) // frozen time, which must not count
	if later := do(t, h, ask); later.Ran != st.Ran {
		t.Errorf("ran %d, then %d while frozen", st.Ran, later.Ran)
	}
	n := ticks(t, s)
	do(t, h, supervisor.Request{Freeze: &supervisor.Freeze{Frozen: false}})
	eventually(t, "the job goes on", func() bool { return ticks(t, s) > n })
}
