package postgres

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// giveUp bounds how long what was sent may stay unacknowledged: until then nothing
// is seen of a network that was cut, as keep-alives wait behind it.
func giveUp(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silentFor.Milliseconds()))
	})
	switch {
	case err != nil:
		return err
	case errors.Is(failed, unix.ENOPROTOOPT), errors.Is(failed, unix.EOPNOTSUPP):
		return nil // no TCP: a socket of this machine
	}
	return failed
}
