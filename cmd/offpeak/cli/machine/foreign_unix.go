//go:build unix

package machine

import (
	"io/fs"
	"os"
	"syscall"
)

// foreign says that a file is another user's.
func foreign(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) != os.Geteuid()
}
