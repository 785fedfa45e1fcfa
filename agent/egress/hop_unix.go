//go:build unix

package egress

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// limitHops bounds how far a socket's packets travel.
func limitHops(raw syscall.RawConn, six bool, hops int) error {
	var err error
	if cerr := raw.Control(func(fd uintptr) {
		if six {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, hops)
		}
	}); cerr != nil {
		return cerr
	}
	return err
}
