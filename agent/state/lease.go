package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"offpeak"
)

// Lease is the folder of one lease, for as long as this agent has to do with
// it. The folder is opened once: what a job puts in the place of it or of
// anything above it changes nothing for the agent. Its methods may be called
// from any number of goroutines, but not with or after Retire and Close.
type Lease struct {
	folder Folder
	id     offpeak.LeaseID

	// mu guards dir, which is -1 before the folder is opened.
	mu  sync.Mutex
	dir int

	// settled says that the journal was blanked. One goroutine begins and ends a lease.
	settled bool
}

// Hold returns the folder of a lease; it does nothing yet.
func (f Folder) Hold(id offpeak.LeaseID) *Lease { return &Lease{folder: f, id: id, dir: -1} }

// Path is where the folder is.
func (l *Lease) Path() string { return l.folder.At("leases", string(l.id)) }

// Close lets go of the folder, which stays.
func (l *Lease) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir >= 0 {
		unix.Close(l.dir)
		l.dir = -1
	}
}

// open opens the folder, which must be there.
func (l *Lease) open() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir >= 0 {
		return l.dir, nil
	}
	fd, err := l.folder.open("leases", string(l.id))
	if err == nil {
		l.dir = fd
	}
	return fd, err
}

// Lay makes the folder with the job's empty folders in it.
func (l *Lease) Lay() error {
	if l.takeSpare() {
		return nil
	}
	for _, name := range layout.paths("") {
		if err := os.MkdirAll(filepath.Join(l.Path(), name), 0o700); err != nil {
			return fmt.Errorf("make job folder: %w", err)
		}
	}
	return nil
}

// Make makes the folder with nothing but the job's own in it.
func (l *Lease) Make() error {
	if err := os.MkdirAll(filepath.Join(l.Path(), WorkDir), 0o700); err != nil {
		return fmt.Errorf("make job folder: %w", err)
	}
	return nil
}

// Work opens the job's own folder.
func (l *Lease) Work() (*os.Root, error) {
	fd, err := l.in(WorkDir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return rootOf(fd)
}

// Holds says that a folder below the lease's is one and has anything in it,
// Empty that it is one and has nothing. Of what is no folder, a link to one
// included, they say neither.
func (l *Lease) Holds(names ...string) bool {
	there, err := l.list(names)
	return err == nil && len(there) > 0
}

// Empty is the other of the two.
func (l *Lease) Empty(names ...string) bool {
	there, err := l.list(names)
	return err == nil && len(there) == 0
}

func (l *Lease) list(names []string) ([]string, error) {
	fd, err := l.in(names...)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return list(fd)
}

func (l *Lease) in(names ...string) (int, error) {
	dir, err := l.open()
	if err != nil {
		return -1, err
	}
	fd, err := walk(dir, names...)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", filepath.Join(append([]string{l.Path()}, names...)...), err)
	}
	return fd, nil
}

// Open opens for reading a file that the agent or the supervisor made: one that
// is a file and has no other name. It returns an ErrNotPlain for anything else.
func (l *Lease) Open(name string) (*os.File, error) {
	dir, err := l.open()
	if err != nil {
		return nil, err
	}
	file, st, err := openRegular(dir, name, unix.O_RDONLY)
	if err == nil && st.Nlink > 1 {
		file.Close()
		return nil, fmt.Errorf("open %s: %w: it has another name", name, ErrNotPlain)
	}
	return file, err
}

// Read reads such a file whole.
func (l *Lease) Read(name string) ([]byte, error) {
	file, err := l.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, mostRead))
}

const (
	journal = "lease.json"
	// blank stands in the place of a journal's first byte while nothing is begun.
	blank = ' '
	// mostKept bounds the journals that are overwritten in place.
	mostKept = 16 << 10
)

// begun says that a journal is that of a lease whose job may have been started.
func begun(data []byte) bool { return len(data) > 0 && data[0] == '{' }

// Begin writes down that the lease's job is about to be started. The file of
// the lease before is written over and never cut, which would make the file
// system write it out at once; the first byte goes last, so that what was only
// half written was never begun.
func (l *Lease) Begin(j Journal) error {
	data, err := json.Marshal(j)
	if err == nil {
		err = l.begin(data)
	}
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

func (l *Lease) begin(data []byte) error {
	dir, err := l.open()
	if err != nil {
		return err
	}
	file, size, err := openOwn(dir)
	if err != nil {
		if file, err = l.makeJournal(dir); err != nil {
			return err
		}
	}
	defer file.Close()
	first := data[:1]
	data = append([]byte{blank}, data[1:]...)
	for int64(len(data)) < size {
		data = append(data, blank)
	}
	if _, err := file.WriteAt(data, 0); err != nil {
		return err
	}
	_, err = file.WriteAt(first, 0)
	l.settled = false
	return err
}

func (l *Lease) makeJournal(dir int) (*os.File, error) {
	if err := l.removeJournal(); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(dir, journal, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), journal), nil
}

func (l *Lease) removeJournal() error {
	dir, err := l.open()
	if err != nil {
		return err
	}
	return removeAll(dir, journal)
}

// Settle ends a lease's journal: the lease is over for the next agent too.
func (l *Lease) Settle() {
	err := l.settle()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		err = l.removeJournal()
	}
	if err != nil {
		l.folder.log.Warn("settle journal", "lease", l.id, "error", err)
	}
}

func (l *Lease) settle() error {
	dir, err := l.open()
	if err != nil {
		return err
	}
	file, size, err := openOwn(dir)
	if err != nil {
		return err
	}
	defer file.Close()
	if size > mostKept {
		return file.Truncate(0)
	}
	// Nothing of an ended job is kept, what its environment held least of all.
	_, err = file.WriteAt(bytes.Repeat([]byte{blank}, int(size)), 0)
	l.settled = err == nil
	return err
}

// openOwn opens for writing the journal that this agent made: one name, no link.
func openOwn(dir int) (*os.File, int64, error) {
	file, st, err := openRegular(dir, journal, unix.O_WRONLY)
	if err != nil {
		return nil, 0, err
	}
	if st.Nlink != 1 || st.Mode != unix.S_IFREG|0o600 {
		file.Close()
		return nil, 0, errAltered
	}
	return file, st.Size, nil
}
