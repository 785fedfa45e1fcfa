package steady

import (
	"time"

	"golang.org/x/sys/unix"
)

// Counter returns a clock that counts, also while the machine sleeps, and can't be
// set.
func Counter() func() time.Duration {
	return func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			panic("steady: no CLOCK_BOOTTIME: " + err.Error()) // Linux has had it since 2.6.39
		}
		return time.Duration(ts.Nano())
	}
}
