package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Making and removing half a dozen folders can cost a file system more than the
// whole rest of a short job: an inode takes long to find on a large disk. So the
// folders of a job that has ended, emptied and looked over, wait for the next
// one. Whatever is not exactly as Lay makes it is removed instead.

// CheckpointDir is where checkpoints appear unless a task says otherwise.
const CheckpointDir = "checkpoints"

const (
	spareDir   = "spare"
	mostSpares = 8
)

// place is a folder of the layout and what belongs in it.
type place struct {
	name string
	file string
	dirs []place
}

// layout is what Lay makes in a lease's folder, and Begin.
var layout = place{file: journal, dirs: []place{{name: WorkDir, dirs: []place{
	{name: OutputDir},
	{name: OwnDir, dirs: []place{{name: "tmp"}}},
	{name: CheckpointDir},
}}}}

// paths lists the folders, parents first.
func (p place) paths(above string) (out []string) {
	for _, d := range p.dirs {
		path := filepath.Join(above, d.name)
		out = append(append(out, path), d.paths(path)...)
	}
	return out
}

// spares are folders that wait for their next lease, each open.
type spares struct {
	// mu guards idle.
	mu   sync.Mutex
	idle []spare
}

// spare is one of them: its name in the folder of spares, and the open folder.
type spare struct {
	name string
	dir  int
}

// put takes a folder in, if there is room.
func (s *spares) put(one spare) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) >= mostSpares {
		return false
	}
	s.idle = append(s.idle, one)
	return true
}

func (s *spares) take() (one spare, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		one, s.idle = s.idle[n-1], s.idle[:n-1]
		return one, true
	}
	return spare{}, false
}

// close lets go of all of them.
func (s *spares) close() {
	for one, ok := s.take(); ok; one, ok = s.take() {
		unix.Close(one.dir)
	}
}

func (s *spares) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.idle) >= mostSpares
}

// takeSpare makes the folder of one that waits.
func (l *Lease) takeSpare() bool {
	if l.folder.spares == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir >= 0 {
		return false // there already
	}
	one, ok := l.folder.spares.take()
	if !ok {
		return false
	}
	from := l.folder.At(spareDir, one.name)
	if isAt(one.dir, from) && os.Rename(from, l.Path()) == nil {
		l.dir = one.dir
		return true
	}
	unix.Close(one.dir)
	if err := l.folder.remove(spareDir, one.name); err != nil {
		l.folder.log.Warn("remove spare folder", "folder", one.name, "error", err)
	}
	return false
}

// isAt says that an open folder is what a path leads to.
func isAt(dir int, path string) bool {
	var open, there unix.Stat_t
	return unix.Fstat(dir, &open) == nil && unix.Lstat(path, &there) == nil && open.Dev == there.Dev && open.Ino == there.Ino
}

// Retire removes the folder, or keeps its empty folders for the next lease. No
// process of the job is left.
func (l *Lease) Retire() {
	if l.recycle() != nil {
		l.Close()
		l.folder.Drop(l.id)
	}
}

func (l *Lease) recycle() error {
	if l.folder.spares == nil || l.folder.spares.full() {
		return fmt.Errorf("keep a spare folder: no room")
	}
	dir, err := l.open()
	if err != nil {
		return err
	}
	if !l.settled {
		if err := l.settle(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := layout.clear(dir); err != nil {
		return err
	}
	name := string(l.id)
	if !isAt(dir, l.Path()) {
		return errAltered
	}
	if err := os.Rename(l.Path(), l.folder.At(spareDir, name)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dir = -1
	if !l.folder.spares.put(spare{name, dir}) {
		unix.Close(dir)
		return l.folder.remove(spareDir, name)
	}
	return nil
}

// errAltered says that a folder is not as it was made.
var errAltered = errors.New("folder was altered")

// clear removes what does not belong in an open folder and in those below it. It
// returns errAltered unless they are as they were made: ours, with their mode,
// and without attributes that the next job could find something in.
func (p place) clear(dir int) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode != unix.S_IFDIR|0o700 {
		return errAltered
	}
	if n, err := unix.Flistxattr(dir, nil); err == nil && n > 0 || fixed(dir) {
		return errAltered
	}
	names, err := list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		switch i := slices.IndexFunc(p.dirs, func(d place) bool { return d.name == name }); {
		case i >= 0:
			err = p.dirs[i].clearIn(dir)
		case name == p.file:
			// Settled, so it is ours.
		default:
			err = removeAll(dir, name)
		}
		if err != nil {
			return err
		}
	}
	for _, d := range p.dirs {
		if !slices.Contains(names, d.name) {
			return errAltered
		}
	}
	return nil
}

func (p place) clearIn(parent int) error {
	dir, err := step(parent, p.name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return p.clear(dir)
}

// list reads the names in an open folder, which nobody else lists meanwhile.
func list(dir int) (names []string, err error) {
	if _, err := unix.Seek(dir, 0, io.SeekStart); err != nil {
		return nil, err
	}
	var buf [2 << 10]byte
	for {
		n, err := unix.ReadDirent(dir, buf[:])
		if n <= 0 || err != nil {
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// removeAll removes whatever has a name in an open folder.
func removeAll(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	root, err := rootOf(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(name)
}

// clearSpares forgets what another agent kept: it may have been killed while it
// emptied it.
func (f Folder) clearSpares() {
	kept, err := os.ReadDir(f.At(spareDir))
	if err != nil {
		return
	}
	for _, s := range kept {
		if err := f.remove(spareDir, s.Name()); err != nil {
			f.log.Warn("remove spare folder", "folder", s.Name(), "error", err)
		}
	}
}
