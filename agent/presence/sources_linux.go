package presence

import (
	"cmp"
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func system(o Options) ([]Source, Announcer, func()) {
	sys := os.DirFS(cmp.Or(o.Sys, "/sys"))
	// The screen has a connection of its own: one that hangs holds up one source.
	x, full, session, machine := newDisplay(o.Getenv), newDisplay(o.Getenv), sessionBus(o.Getenv), systemBus(o.Getenv)
	list := []Source{
		input("display", false, x.idle),
		input("GNOME", false, session.mutterIdle),
		input("screen saver", false, session.saverIdle),
		input("session", true, func(ctx context.Context) (time.Duration, error) { return machine.sessionIdle(ctx, monotonic()) }),
		screen(full.fullScreen),
		power(func(context.Context) (Power, error) { return sysPower(sys) }),
		heat(func(context.Context) (float64, error) { return sysHeat(sys) }),
		network(machine.metered),
	}
	return list, machine.announceSleep, func() {
		x.Close()
		full.Close()
		session.Close()
		machine.Close()
	}
}

// monotonic is the clock on which logind counts: it stands still while the machine
// sleeps.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
