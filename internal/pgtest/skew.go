package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"offpeak/internal/require"
)

// StartSkewable starts a server whose clock Skew sets, which ends with the test.
// Its time goes through libfaketime; that which only counts stays the machine's.
// Asking the time is slower there, so nothing is to be measured with it.
func StartSkewable(t testing.TB) *Server {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	var missing error
	if len(found) == 0 {
		missing = os.ErrNotExist
	}
	require.Met(t, missing, "libfaketime (apt-get install faketime)")
	s := launch(t, func(s *Server) error {
		s.skewable = true
		s.env = append(s.env, "LD_PRELOAD="+found[0], "FAKETIME_TIMESTAMP_FILE="+s.clock(),
			"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
		return s.Skew(0)
	})
	t.Cleanup(func() { s.end(t) })
	// A clock that can't be set would let every test of a clock that jumps pass.
	for _, d := range []time.Duration{time.Hour, 0} {
		if err := s.Skew(d); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var now time.Time
		err := s.ask(ctx, "select clock_timestamp()", &now)
		if off := time.Until(now) - d; err != nil || off.Abs() > 10*time.Minute {
			t.Fatalf("the server's clock does not follow: set %s ahead, it is %s more: %v", d, off, err)
		}
	}
	return s
}

func (s *Server) clock() string { return filepath.Join(s.dir, "clock") }

// Skew sets the server's clock d ahead of the machine's, or behind it, at once
// and for all its processes, whether it runs or not. It goes on from there.
func (s *Server) Skew(d time.Duration) error {
	if !s.skewable {
		return errors.New("skew clock: the server was not started with StartSkewable")
	}
	// Replaced whole: a clock that is read while it is written would be no clock.
	next := s.clock() + ".next"
	err := os.WriteFile(next, []byte(fmt.Sprintf("%+.6f\n", d.Seconds())), 0o644)
	if err == nil {
		err = os.Rename(next, s.clock())
	}
	if err != nil {
		return fmt.Errorf("skew clock: %w", err)
	}
	return nil
}

// forgetClock removes what libfaketime leaves of a killed process.
func (s *Server) forgetClock(pid int) error {
	if !s.skewable {
		return nil
	}
	var errs []error
	for _, name := range []string{"/dev/shm/faketime_shm_", "/dev/shm/sem.faketime_sem_"} {
		if err := os.Remove(name + strconv.Itoa(pid)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
