package supervisor

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// BootTime reads the clock that leases are counted on: nanoseconds since the
// machine started, suspended time included.
func BootTime() int64 { return readClock(unix.CLOCK_BOOTTIME) }

func now() instant {
	return instant{Boot: BootTime(), Mono: readClock(unix.CLOCK_MONOTONIC)}
}

func readClock(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("supervisor: read clock: " + err.Error())
	}
	return ts.Nano()
}

// alarm is a timer on the clock that counts suspended time: Go's own timers
// stand still while the machine sleeps, and a lease that ran out meanwhile
// must be seen at once after it wakes.
type alarm struct {
	file *os.File
	// C gets a value when the alarm went off. A reader must look whether
	// anything is due, since an alarm that was set anew may still be in it.
	C <-chan struct{}
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	c := make(chan struct{}, 1)
	a := &alarm{file: os.NewFile(uintptr(fd), "timerfd"), C: c}
	go func() {
		var buf [8]byte
		for {
			if _, err := a.file.Read(buf[:]); err != nil {
				return // closed
			}
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}()
	return a, nil
}

// set lets the alarm go off once after d; 0 unsets it.
func (a *alarm) set(d time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	conn, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := conn.Control(func(fd uintptr) { serr = unix.TimerfdSettime(int(fd), 0, &spec, nil) }); err != nil {
		return err
	}
	return serr
}
