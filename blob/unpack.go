package blob

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"offpeak"
)

// UnpackOptions bound what Unpack writes.
type UnpackOptions struct {
	// Limit bounds the sum of the files' sizes; 0 is no bound but MaxBytes. It
	// is checked before anything is written, and no byte beyond what the
	// manifest declared is ever written.
	Limit offpeak.Bytes
	// Entries bounds the number of files and folders; 0 is MaxEntries.
	Entries int
	// Overwrite replaces regular files that are there with other contents.
	// Nothing else is ever replaced.
	Overwrite bool
	// Progress is called one at a time while files are written.
	Progress func(done, total offpeak.Bytes)
}

// Unpack fetches a tree and lays it out below root. Every byte is checked
// against its hash before it is written, files appear under their names whole,
// and a file that is there already with the right contents is kept, so an
// unpacking that was cut off goes on where it was. Nothing outside root is
// touched, whatever the tree or another process puts there, and no link is
// followed.
//
// It returns an error that wraps ErrTooLarge over a bound, ErrInvalid for a
// tree that can't be laid out on this system, ErrConflict when something else
// stands at a path, ErrHashMismatch for wrong bytes, ErrStorage when the disk
// is full or broken, ErrNotFound for a blob that is gone. What was whole by
// then stays.
func Unpack(ctx context.Context, remote Remote, tree offpeak.Hash, root *os.Root, opts UnpackOptions) error {
	m, err := Fetch(ctx, remote, tree)
	if err == nil {
		err = unpack(ctx, remote, m, root, opts)
	}
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	return nil
}

func unpack(ctx context.Context, remote Remote, m Manifest, root *os.Root, opts UnpackOptions) error {
	size := m.Size()
	if opts.Limit > 0 && size > opts.Limit {
		return fmt.Errorf("the tree holds %s, there is room for %s: %w", size, opts.Limit, offpeak.ErrTooLarge)
	}
	if opts.Entries > 0 && len(m.Entries) > opts.Entries {
		return fmt.Errorf("the tree has %d entries, at most %d: %w", len(m.Entries), opts.Entries, offpeak.ErrTooLarge)
	}
	for _, e := range m.Entries {
		if _, err := filepath.Localize(e.Path); err != nil {
			return &offpeak.FieldError{Field: "path", Value: e.Path, Rule: "is not a name that this system can have"}
		}
	}
	stage, err := openStage(root)
	if err != nil {
		return err
	}
	u := &unpacker{
		remote: remote, root: root, stage: stage, overwrite: opts.Overwrite,
		bar:    &meter{total: size, report: opts.Progress},
		folded: foldedTwins(m),
	}
	err = u.entries(ctx, m)
	return errors.Join(err, stage.Close(), diskError(root.RemoveAll(stagingDir)))
}

// openStage makes the folder for files that are not whole yet, empty.
func openStage(root *os.Root) (*os.Root, error) {
	if err := root.RemoveAll(stagingDir); err != nil {
		return nil, diskError(err)
	}
	if err := root.Mkdir(stagingDir, 0o700); err != nil {
		return nil, diskError(err)
	}
	info, err := root.Lstat(stagingDir)
	if err != nil {
		return nil, diskError(err)
	}
	stage, err := openDir(root, stagingDir, info)
	if err != nil {
		return nil, diskError(err)
	}
	return stage, nil
}

type unpacker struct {
	remote      Remote
	root, stage *os.Root
	overwrite   bool
	bar         *meter
	// folded maps a path to an earlier one that differs by case only.
	folded map[string]string
}

func (u *unpacker) entries(ctx context.Context, m Manifest) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	// Twins that differ by case are compared when all before them are in place.
	for i := range m.Entries {
		e := &m.Entries[i]
		if inner.Err() != nil {
			break
		}
		if other, ok := u.folded[e.Path]; ok {
			if err := group.Wait(); err != nil {
				return err
			}
			group, inner = errgroup.WithContext(ctx)
			group.SetLimit(parallel)
			if err := u.distinct(e.Path, other); err != nil {
				return err
			}
		}
		var err error
		if e.Kind == KindDir {
			err = u.dir(e.Path)
		} else {
			err = u.file(inner, group, e)
		}
		if err != nil {
			// The cause is what a task failed of, if one did.
			if cause := group.Wait(); cause != nil {
				return cause
			}
			return err
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// dir makes a folder, or finds it there.
func (u *unpacker) dir(p string) error {
	dir, name, done, err := parent(u.root, p)
	if err != nil {
		return conflict(p, err)
	}
	defer done()
	err = dir.Mkdir(name, 0o755)
	if !errors.Is(err, fs.ErrExist) {
		return conflict(p, err)
	}
	info, err := dir.Lstat(name)
	if err == nil && !info.IsDir() {
		return fmt.Errorf("%q should be a folder but is not: %w", p, offpeak.ErrConflict)
	}
	return conflict(p, err)
}

// file brings one file into place, its chunks as tasks of group.
func (u *unpacker) file(ctx context.Context, group *errgroup.Group, e *Entry) error {
	kept, err := u.keep(ctx, e)
	if err != nil || kept {
		u.bar.add(e.Size)
		return err
	}
	perm := fs.FileMode(0o644)
	if e.Exec {
		perm = 0o755
	}
	tmp := rand.Text()
	f, err := u.stage.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return diskError(err)
	}
	if len(e.Chunks) == 0 {
		return errors.Join(diskError(f.Close()), u.place(tmp, e))
	}
	left := new(atomic.Int64)
	failed := new(atomic.Bool)
	left.Store(int64(len(e.Chunks)))
	for i, h := range e.Chunks {
		group.Go(func() error {
			err := u.chunk(ctx, f, e, i, h)
			if err != nil {
				failed.Store(true)
			}
			// Who ends last closes the file, and places it if all went well.
			if left.Add(-1) > 0 {
				return err
			}
			err = errors.Join(err, diskError(f.Close()))
			if err != nil || failed.Load() {
				return err
			}
			return u.place(tmp, e)
		})
	}
	return nil
}

func (u *unpacker) chunk(ctx context.Context, f *os.File, e *Entry, i int, h offpeak.Hash) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	data, err := download(ctx, u.remote, h)
	if err != nil {
		return fmt.Errorf("%q: %w", e.Path, err)
	}
	if len(data) != e.chunkLen(i) {
		return fmt.Errorf("%q: %w: chunk %d has %d bytes, the manifest says %d", e.Path, offpeak.ErrInvalid, i, len(data), e.chunkLen(i))
	}
	if _, err := f.WriteAt(data, int64(i)*int64(ChunkSize)); err != nil {
		return fmt.Errorf("write %q: %w", e.Path, diskError(err))
	}
	u.bar.add(offpeak.Bytes(len(data)))
	return nil
}

// keep looks at what stands where a file should go: nothing, the same file, or
// one that may be replaced.
func (u *unpacker) keep(ctx context.Context, e *Entry) (kept bool, err error) {
	dir, name, done, err := parent(u.root, e.Path)
	if err != nil {
		return false, conflict(e.Path, err)
	}
	defer done()
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, conflict(e.Path, err)
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("%q is there and not a regular file: %w", e.Path, offpeak.ErrConflict)
	}
	same, err := u.same(ctx, dir, name, info, e)
	if err != nil || same {
		return same, err
	}
	if !u.overwrite {
		return false, fmt.Errorf("%q is there with other contents: %w", e.Path, offpeak.ErrConflict)
	}
	return false, nil
}

// same compares a file with its entry and, if only the mode differs, mends it.
func (u *unpacker) same(ctx context.Context, dir *os.Root, name string, info fs.FileInfo, e *Entry) (bool, error) {
	if offpeak.Bytes(info.Size()) != e.Size {
		return false, nil
	}
	f, _, err := openFile(dir, name, info)
	if err != nil {
		// It can't be read; it may still be replaced.
		return false, nil
	}
	defer f.Close()
	sum := sha256.New()
	for i, h := range e.Chunks {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		sum.Reset()
		if _, err := io.CopyN(sum, f, int64(e.chunkLen(i))); err != nil || sumOf(sum) != h {
			return false, nil
		}
	}
	if exec := info.Mode()&0o100 != 0; exec != e.Exec {
		mode := info.Mode().Perm()&^0o111 | 0o600
		if e.Exec {
			mode |= mode >> 2 & 0o111
		}
		return true, conflict(e.Path, f.Chmod(mode))
	}
	return true, nil
}

// place renames a whole file into its place.
func (u *unpacker) place(tmp string, e *Entry) error {
	// The folders on the way are looked at once more: a rename within root
	// can't leave it, but it would follow a link that stays inside.
	dir, name, done, err := parent(u.root, e.Path)
	if err != nil {
		return conflict(e.Path, err)
	}
	defer done()
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return conflict(e.Path, err)
	case !info.Mode().IsRegular() || !u.overwrite:
		return fmt.Errorf("%q appeared while it was unpacked: %w", e.Path, offpeak.ErrConflict)
	}
	return conflict(e.Path, u.root.Rename(path.Join(stagingDir, tmp), e.Path))
}

// distinct fails if two paths that differ by case only lead to one file.
func (u *unpacker) distinct(p, other string) error {
	a, err := u.root.Lstat(other)
	if err != nil {
		return conflict(other, err)
	}
	b, err := u.root.Lstat(p)
	if err == nil && os.SameFile(a, b) {
		return &offpeak.FieldError{Field: "path", Value: p, Rule: fmt.Sprintf("is the same name as %q on this file system", other)}
	}
	return nil
}

// foldedTwins finds paths that differ by case only from an earlier one.
func foldedTwins(m Manifest) map[string]string {
	first := make(map[string]string, len(m.Entries))
	twins := make(map[string]string)
	for _, e := range m.Entries {
		key := strings.ToLower(strings.ToUpper(e.Path))
		if other, ok := first[key]; ok {
			twins[e.Path] = other
		} else {
			first[key] = e.Path
		}
	}
	return twins
}

// conflict tells a path that is blocked by something from a broken disk.
func conflict(p string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(swapped(err), errSwapped), errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%q is blocked by a link or file on its way: %w", p, offpeak.ErrConflict)
	}
	return fmt.Errorf("write %q: %w", p, diskError(err))
}
