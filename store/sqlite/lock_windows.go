package sqlite

import (
	"os"

	"golang.org/x/sys/windows"
)

// tryLock locks one byte far behind the holder's pid, so that others can read it.
func tryLock(f *os.File) (taken bool, err error) {
	at := &windows.Overlapped{OffsetHigh: 1}
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, at)
	if err == windows.ERROR_LOCK_VIOLATION {
		return true, nil
	}
	return false, err
}

// syncFolder does nothing: NTFS journals a rename by itself.
func syncFolder(string) error { return nil }
