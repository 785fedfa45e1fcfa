package state_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"offpeak/agent/state"
)

// A folder that a job made immutable is not handed to the next one.
func TestFixedFolderIsNoSpare(t *testing.T) {
	f, l := laid(t)
	folder := filepath.Join(l.Path(), state.WorkDir, state.OutputDir)
	dir, err := os.Open(folder)
	must(t, err)
	defer dir.Close()
	const immutable = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	if err := unix.IoctlSetPointerInt(int(dir.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
		t.Logf("nobody can fix a folder here, jobs neither: %v", err)
		return
	}
	defer func() { must(t, unix.IoctlSetPointerInt(int(dir.Fd()), unix.FS_IOC_SETFLAGS, 0)) }()
	l.Settle()
	l.Retire()
	next := lay(t, f, "lease_2")
	must(t, os.WriteFile(filepath.Join(next.Path(), state.WorkDir, state.OutputDir, "x"), nil, 0o600))
}
