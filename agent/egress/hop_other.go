//go:build !unix

package egress

import (
	"errors"
	"syscall"
)

// limitHops is for systems on which jobs can have egress.
func limitHops(syscall.RawConn, bool, int) error { return errors.ErrUnsupported }
