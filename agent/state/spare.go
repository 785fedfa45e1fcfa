package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"offpeak"
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
	journal    = "lease.json"
)

// layout is what Lay makes in a lease's folder, parents first.
var layout = [...]string{WorkDir, WorkDir + "/" + OutputDir, WorkDir + "/" + OwnDir, WorkDir + "/" + OwnDir + "/tmp", WorkDir + "/" + CheckpointDir}

// Lay makes a lease's folder with the job's empty folders in it and opens the
// job's own.
func (f Folder) Lay(id offpeak.LeaseID) (*os.Root, error) {
	if !f.takeSpare(id) {
		for _, dir := range layout {
			if err := os.MkdirAll(filepath.Join(f.Lease(id), filepath.FromSlash(dir)), 0o700); err != nil {
				return nil, fmt.Errorf("make job folder: %w", err)
			}
		}
	}
	return f.OpenWork(id)
}

func (f Folder) takeSpare(id offpeak.LeaseID) bool {
	if _, err := os.Lstat(f.Lease(id)); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	spares, err := os.ReadDir(f.At(spareDir))
	if err != nil {
		return false
	}
	for _, s := range spares {
		// Two attempts may reach for one: the second finds it gone.
		if os.Rename(f.At(spareDir, s.Name()), f.Lease(id)) == nil {
			return true
		}
	}
	return false
}

// Retire removes a lease's folder, or keeps its empty folders for the next one.
// No process of the job is left.
func (f Folder) Retire(id offpeak.LeaseID) {
	if f.recycle(id) != nil {
		f.Drop(id)
	}
}

func (f Folder) recycle(id offpeak.LeaseID) error {
	spares, err := os.ReadDir(f.At(spareDir))
	if err != nil || len(spares) >= mostSpares {
		return fmt.Errorf("keep a spare folder: %d there: %w", len(spares), err)
	}
	root, err := f.OpenLease(id)
	if err != nil {
		return err
	}
	defer root.Close()
	keep := map[string][]string{".": {WorkDir, journal}}
	for _, dir := range layout {
		parent, name := filepath.ToSlash(filepath.Dir(dir)), filepath.Base(dir)
		if parent != "." {
			keep[parent] = append(keep[parent], name)
		}
	}
	for _, dir := range append([]string{"."}, layout[:]...) {
		if err := empty(root, dir, keep[dir]); err != nil {
			return err
		}
	}
	if err := emptyJournal(root); err != nil {
		return err
	}
	return os.Rename(f.Lease(id), f.At(spareDir, string(id)))
}

// errAltered says that a folder is not as it was made.
var errAltered = errors.New("folder was altered")

// empty removes what is in a folder but for some names, and returns errAltered
// unless the folder itself is as it was made: ours, with its mode, and without
// attributes that the next job could find something in.
func empty(root *os.Root, dir string, keep []string) error {
	info, err := root.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != os.Geteuid() || info.Mode() != fs.ModeDir|0o700 {
		return errAltered
	}
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if n, err := unix.Flistxattr(int(d.Fd()), nil); err == nil && n > 0 {
		return errAltered
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	kept := 0
	for _, name := range names {
		if slices.Contains(keep, name) {
			kept++
			continue
		}
		if err := root.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if kept != len(keep) {
		return errAltered
	}
	return nil
}

// emptyJournal leaves the journal's file without content.
func emptyJournal(root *os.Root) error {
	file, err := openOwn(root, journal)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Truncate(0)
}

// openOwn opens for writing a file that this agent made: one name, no link.
func openOwn(root *os.Root, name string) (*os.File, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Nlink != 1 || info.Mode() != 0o600 {
		return nil, errAltered
	}
	return root.OpenFile(name, os.O_WRONLY, 0)
}

// clearSpares forgets what another agent kept: it may have been killed while it
// emptied it.
func (f Folder) clearSpares() {
	spares, err := os.ReadDir(f.At(spareDir))
	if err != nil {
		return
	}
	for _, s := range spares {
		if err := f.remove(spareDir, s.Name()); err != nil {
			f.log.Warn("remove spare folder", "folder", s.Name(), "error", err)
		}
	}
}
