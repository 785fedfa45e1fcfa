//go:build unix

package hardware

import (
	"io/fs"
	"syscall"
)

// inode tells a file from all others of the machine.
func inode(info fs.FileInfo) (key [2]uint64, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return key, false
	}
	return [2]uint64{uint64(st.Dev), st.Ino}, true //nolint:unconvert // 32 bits wide on some machines
}
