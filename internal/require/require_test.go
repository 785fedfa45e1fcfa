package require_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"offpeak/internal/require"
)

// recorder is a test that notes how it was ended.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(format string, args ...any) {
	r.ended = "skipped: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.ended = "failed: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestMet(t *testing.T) {
	gone := errors.New("it is gone")
	for _, c := range []struct {
		require string
		err     error
		want    string
	}{
		{"", nil, ""},
		{"all", nil, ""},
		{"", gone, "skipped: needs a disk: it is gone"},
		{"all", gone, "failed: needs a disk, as OFFPEAK_TEST_REQUIRE=all asks: it is gone"},
	} {
		t.Setenv("OFFPEAK_TEST_REQUIRE", c.require)
		if got := ended(t, func(tb testing.TB) { require.Met(tb, c.err, "a disk") }); got != c.want {
			t.Errorf("with %q and %v: %q, want %q", c.require, c.err, got, c.want)
		}
	}
}

func TestTool(t *testing.T) {
	t.Setenv("OFFPEAK_TEST_REQUIRE", "")
	t.Setenv("PATH", t.TempDir())
	want := `skipped: needs no-such-tool (apt-get install a-package): exec: "no-such-tool": executable file not found in $PATH`
	if got := ended(t, func(tb testing.TB) { require.Tool(tb, "no-such-tool", "a-package") }); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// ended runs f as a test of its own and returns how that was ended.
func ended(t *testing.T, f func(testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.ended
}
