//go:build unix

package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes the lock that the kernel lets go of when the process ends,
// however it ends. taken says that another process has it.
func tryLock(f *os.File) (taken bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return true, nil
	}
	return false, err
}

// syncFolder makes a rename durable.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
