package state

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"offpeak"
)

// A job without a sandbox may run as the agent's own user and swap what lies in
// its lease's folder, and the folder itself, for links, pipes and devices. What
// is opened here is what the agent made: no link is followed at any step.

// ErrNotPlain says that something else stands where a file of the agent's should.
var ErrNotPlain = errors.New("not a plain file")

// mostRead bounds the files that are read whole.
const mostRead = 64 << 20

// OpenLease opens the folder of a lease.
func (f Folder) OpenLease(id offpeak.LeaseID) (*os.Root, error) {
	return f.open("leases", string(id))
}

// OpenWork opens the folder of a lease's job.
func (f Folder) OpenWork(id offpeak.LeaseID) (*os.Root, error) {
	return f.open("leases", string(id), WorkDir)
}

func (f Folder) open(names ...string) (*os.Root, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(f.path, flags&^unix.O_NOFOLLOW, 0)
	for _, name := range names {
		if err != nil {
			break
		}
		var next int
		next, err = unix.Openat(fd, name, flags, 0)
		unix.Close(fd)
		fd = next
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.At(names...), err)
	}
	defer unix.Close(fd)
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.At(names...), err)
	}
	return root, nil
}

// ReadResult reads a file in a lease's folder.
func (f Folder) ReadResult(id offpeak.LeaseID, name string) ([]byte, error) {
	root, err := f.OpenLease(id)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, err := OpenPlain(root, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, mostRead))
}

// OpenPlain opens for reading a file that is one and has no other name: nothing
// that blocks, no device, nothing that lies elsewhere. It returns an
// ErrNotPlain for anything else.
func OpenPlain(root *os.Root, name string) (*os.File, error) {
	file, err := openRegular(root, name)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if st, ok := info.Sys().(*syscall.Stat_t); err == nil && ok && st.Nlink > 1 {
		err = fmt.Errorf("open %s: %w: it has another name", name, ErrNotPlain)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func openRegular(root *os.Root, name string) (*os.File, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("open %s: %w: %s", name, ErrNotPlain, info.Mode().Type())
	}
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	// It may have been swapped in between.
	now, err := file.Stat()
	if err == nil && !os.SameFile(info, now) {
		err = fmt.Errorf("open %s: %w: it was swapped", name, ErrNotPlain)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
