package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A job without a sandbox may run as the agent's own user and swap what lies in
// its lease's folder, and the folder itself, for links, pipes and devices. What
// is opened here is what the agent made: no link is followed at any step.

// ErrNotPlain says that something else stands where a file of the agent's should.
var ErrNotPlain = errors.New("not a plain file")

// mostRead bounds the files that are read whole.
const mostRead = 64 << 20

// step opens one folder in another.
func step(dir int, name string) (int, error) {
	return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// walk opens a folder, step by step, below one that stays open.
func walk(dir int, names ...string) (int, error) {
	fd := dir
	for i, name := range names {
		next, err := step(fd, name)
		if i > 0 {
			unix.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// open opens a folder below the data folder.
func (f Folder) open(names ...string) (int, error) {
	fd, err := unix.Open(f.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil && len(names) > 0 {
		data := fd
		fd, err = walk(data, names...)
		unix.Close(data)
	}
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", f.At(names...), err)
	}
	return fd, nil
}

// rootOf makes an os.Root of an open folder, which stays open.
func rootOf(fd int) (*os.Root, error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("open folder: %w", err)
	}
	return root, nil
}

// openRegular opens a file that is one: nothing that blocks, no device. The
// file's status is what it had when it was opened.
func openRegular(dir int, name string, flags int) (*os.File, unix.Stat_t, error) {
	var before, now unix.Stat_t
	fail := func(err error) (*os.File, unix.Stat_t, error) {
		return nil, before, fmt.Errorf("open %s: %w", name, err)
	}
	// Looked at first: opening a device may do something.
	if err := unix.Fstatat(dir, name, &before, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fail(err)
	}
	if before.Mode&unix.S_IFMT != unix.S_IFREG {
		return fail(fmt.Errorf("%w: its mode is %o", ErrNotPlain, before.Mode))
	}
	fd, err := unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	if err = unix.Fstat(fd, &now); err == nil && (now.Dev != before.Dev || now.Ino != before.Ino) {
		err = fmt.Errorf("%w: it was swapped", ErrNotPlain)
	}
	if err != nil {
		unix.Close(fd)
		return fail(err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(".", name)), now, nil
}
