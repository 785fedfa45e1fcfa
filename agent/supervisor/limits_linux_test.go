package supervisor_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/agent/supervisor"
	"offpeak/internal/require"
)

func TestTimeLimit(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	s := script(t, `trap '' TERM; while :; do sleep 0.01; done`)
	s.Limits.Time = 100 * time.Millisecond
	s.Grace = 50 * time.Millisecond
	start(t, h, s)
	if e := awaitExit(t, h); e.Reason != offpeak.EndTimeLimit {
		t.Errorf("exit %+v", e)
	}
	if !strings.Contains(read(t, s, "notice.json"), "time_limit") {
		t.Error("no notice")
	}
}

func TestDiskLimit(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	s := script(t, `head -c 8000000 /dev/zero >big; sync big; sleep 1000`)
	s.Limits.Disk = 4 * offpeak.MB
	start(t, h, s)
	if e := awaitExit(t, h); e.Reason != offpeak.EndDiskLimit {
		t.Errorf("exit %+v", e)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	if !do(t, h, ask).Limited {
		require.Met(t, errors.ErrUnsupported, "writable cgroups")
	}
	limits := supervisor.Limits{CPU: 1000, Memory: 64 * offpeak.MiB, Processes: 20}
	t.Run("memory", func(t *testing.T) {
		s := script(t, `head -c 200000000 /dev/zero | tail -c 150000000 >/dev/null`)
		s.Limits = limits
		start(t, h, s)
		if e := awaitExit(t, h); e.Reason != offpeak.EndOutOfMemory {
			t.Errorf("exit %+v", e)
		}
	})
	t.Run("processes", func(t *testing.T) {
		s := script(t, `i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done; echo all`)
		s.Limits = limits
		m := mark(t, &s)
		start(t, h, s)
		if e := awaitExit(t, h); e.Reason != offpeak.EndExitNonzero {
			t.Errorf("exit %+v", e)
		}
		if left := marked(m); len(left) > 0 {
			t.Errorf("survivors %v", left)
		}
	})
	t.Run("fork bomb", func(t *testing.T) {
		s := script(t, `mkfifo never; sh -c 'while :; do sleep 1000 & done'; read x <never`)
		s.Limits = limits
		m := mark(t, &s)
		start(t, h, s)
		eventually(t, "the bomb goes off", func() bool { return len(marked(m)) > 10 })
		if n := len(marked(m)); n > 20 {
			t.Errorf("%d processes", n)
		}
		do(t, h, supervisor.Request{Kill: &supervisor.Kill{Reason: offpeak.EndCancelled}})
		if e := awaitExit(t, h); e.Reason != offpeak.EndCancelled {
			t.Errorf("exit %+v", e)
		}
		if left := marked(m); len(left) > 0 {
			t.Errorf("survivors %v", left)
		}
	})
	t.Run("lifted for the next job", func(t *testing.T) {
		s := script(t, `head -c 200000000 /dev/zero | tail -c 100000000 >/dev/null`)
		start(t, h, s)
		if e := awaitExit(t, h); e.Reason != offpeak.EndCompleted {
			t.Errorf("exit %+v, %s", e, read(t, s, "stderr.log"))
		}
	})
}

func TestOutputIsExactAndCapped(t *testing.T) {
	t.Parallel()
	h := spawn(t, "")
	s := script(t, `printf 'a\0b\377\n'; printf err >&2; printf tail`)
	start(t, h, s)
	awaitExit(t, h)
	if got := read(t, s, "stdout.log"); got != "a\x00b\xff\ntail" {
		t.Errorf("stdout %q", got)
	}
	if got := read(t, s, "stderr.log"); got != "err" {
		t.Errorf("stderr %q", got)
	}

	s = script(t, `head -c 209715200 /dev/zero | tr '\0' x; echo; echo the end`)
	s.Limits.Log = offpeak.MiB
	start(t, h, s)
	awaitExit(t, h)
	got := read(t, s, "stdout.log")
	if len(got) > 1<<20+200 || !strings.HasSuffix(got, "the end\n") ||
		!strings.Contains(got, "\n[offpeak: log capped at 1MiB, 208666633 bytes left out here]\n") {
		t.Errorf("%d bytes, mark %q", len(got), got[max(0, 786432-5):min(len(got), 786432+80)])
	}
	if rss := resident(t, outerPID(t, h.Dir())); rss > 40<<20 {
		t.Errorf("the supervisor takes %d bytes", rss)
	}
}

func resident(t *testing.T, pid int) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	return pages * 4096
}
