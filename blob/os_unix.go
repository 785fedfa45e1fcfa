//go:build unix

package blob

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// syncDir makes what was created, renamed and removed in a folder durable.
func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// linked says that a file has more than one name.
func linked(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink > 1
}
