package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"offpeak"
)

// ErrChanged says that a file changed while it was packed or sent. Pack again.
var ErrChanged = errors.New("changed while it was read")

// ChangedError names the file that changed.
type ChangedError struct {
	Path string
	// How says what was seen.
	How string
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("%q changed while it was read: %s", e.Path, e.How)
}

// Unwrap makes errors.Is(e, ErrChanged) true.
func (e *ChangedError) Unwrap() error { return ErrChanged }

// NoMatchError lists the paths and patterns that matched nothing to pack.
type NoMatchError struct {
	Patterns []string
	// Skipped is what was there and left out, the first hundred.
	Skipped []Skip
}

func (e *NoMatchError) Error() string {
	text := fmt.Sprintf("nothing to pack at %q", e.Patterns)
	if len(e.Skipped) > 0 {
		text += "; " + e.Skipped[0].String()
	}
	return text
}

// Unwrap makes errors.Is(e, ErrNotFound) true.
func (e *NoMatchError) Unwrap() error { return offpeak.ErrNotFound }

// Skip is something that Pack left out because a tree can't or may not hold it.
type Skip struct {
	Path string
	// Why says what it is: "symbolic link", "hard link", "device", "pipe", "socket",
	// or which rule its path breaks.
	Why string
}

func (s Skip) String() string { return fmt.Sprintf("%q left out: %s", s.Path, s.Why) }

// Bounds of a walk: a folder with ten million links costs a bounded effort and
// a short list of warnings.
const (
	maxVisited = 10 * MaxEntries
	maxSkips   = 100
)

// walker collects what Pack packs. It holds one open folder for each level, so
// that whatever is renamed or swapped meanwhile, it looks at what it has open.
type walker struct {
	opts     PackOptions
	patterns []string
	matched  []bool

	entries []Entry
	total   offpeak.Bytes
	visited int
	skips   []Skip
	more    int
}

func (w *walker) walk(ctx context.Context, root *os.Root) error {
	whole := len(w.patterns) == 0
	for i, p := range w.patterns {
		if p == "." {
			whole, w.matched[i] = true, true
		}
	}
	if err := w.dir(ctx, root, "", whole); err != nil {
		return err
	}
	var none []string
	for i, ok := range w.matched {
		if !ok {
			none = append(none, w.patterns[i])
		}
	}
	if none != nil {
		return &NoMatchError{Patterns: none, Skipped: w.skips}
	}
	return nil
}

// dir walks over one folder. taken says that the folder itself was matched, so
// that all in it is packed.
func (w *walker) dir(ctx context.Context, dir *os.Root, at string, taken bool) error {
	for d, err := range readDir(dir, ".") {
		if err != nil {
			return changed(at, swapped(err))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if w.visited++; w.visited > maxVisited {
			return fmt.Errorf("more than %d files and folders: %w", maxVisited, offpeak.ErrTooLarge)
		}
		p := path.Join(at, d.Name())
		if p == stagingDir {
			continue
		}
		hit, below := w.match(p)
		if !taken && !hit && !below {
			continue
		}
		if err := w.entry(ctx, dir, d.Name(), p, taken || hit); err != nil {
			return err
		}
	}
	return nil
}

// match says whether p is matched by a pattern, or whether something below it
// may be. A pattern also matches itself to the letter, so that a file named
// "a[1].txt" can be asked for.
func (w *walker) match(p string) (hit, below bool) {
	depth := strings.Count(p, "/") + 1
	for _, pattern := range w.patterns {
		names := strings.Split(pattern, "/")
		if len(names) < depth {
			continue
		}
		head := strings.Join(names[:depth], "/")
		ok := head == p
		if !ok {
			ok, _ = path.Match(head, p)
		}
		hit = hit || (ok && len(names) == depth)
		below = below || (ok && len(names) > depth)
	}
	return hit, below
}

func (w *walker) note(p string) {
	for i, pattern := range w.patterns {
		if w.matched[i] {
			continue
		}
		ok := pattern == p
		if !ok {
			ok, _ = path.Match(pattern, p)
		}
		w.matched[i] = ok
	}
}

func (w *walker) entry(ctx context.Context, dir *os.Root, name, p string, taken bool) error {
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone since the folder was read: as if we had come later
	}
	if err != nil {
		return fmt.Errorf("look at %q: %w", p, err)
	}
	if w.opts.Ignore.Match(p, info.IsDir()) {
		return nil
	}
	if why := w.unfit(info); why != "" {
		if taken {
			w.skip(p, why)
		}
		return nil
	}
	if !taken && !info.IsDir() {
		return nil
	}
	if err := checkPath("path", p); err != nil {
		rule, ok := errors.AsType[*offpeak.FieldError](err)
		if !w.opts.LeaveOutNames || !ok {
			return err
		}
		if taken {
			w.skip(p, "a stored path "+rule.Rule)
		}
		return nil
	}
	if info.IsDir() {
		return w.subdir(ctx, dir, name, p, info, taken)
	}
	w.note(p)
	return w.add(Entry{Path: p, Kind: KindFile, Exec: info.Mode()&0o100 != 0, Size: offpeak.Bytes(info.Size())})
}

// subdir descends. A folder that is only passed through on the way to a match
// gets its entry if something below it was taken.
func (w *walker) subdir(ctx context.Context, dir *os.Root, name, p string, info fs.FileInfo, taken bool) error {
	sub, err := openDir(dir, name, info)
	if errors.Is(err, errSwapped) {
		w.skip(p, "changed while it was read")
		return nil
	}
	if err != nil {
		return fmt.Errorf("open folder %q: %w", p, err)
	}
	defer sub.Close()
	before := len(w.entries)
	if taken {
		w.note(p)
		if err := w.add(Entry{Path: p, Kind: KindDir}); err != nil {
			return err
		}
	}
	if err := w.dir(ctx, sub, p, taken); err != nil {
		return err
	}
	if !taken && len(w.entries) > before {
		return w.add(Entry{Path: p, Kind: KindDir})
	}
	return nil
}

func (w *walker) add(e Entry) error {
	if len(w.entries) == MaxEntries {
		return fmt.Errorf("more than %d files and folders: %w", MaxEntries, offpeak.ErrTooLarge)
	}
	w.total += e.Size
	if limit := w.opts.Limit; w.total > offpeak.MaxBytes || (limit > 0 && w.total > limit) {
		if limit == 0 {
			limit = offpeak.MaxBytes
		}
		return fmt.Errorf("files of together more than %s: %w", limit, offpeak.ErrTooLarge)
	}
	w.entries = append(w.entries, e)
	return nil
}

func (w *walker) skip(p, why string) {
	if len(w.skips) == maxSkips {
		w.more++
		return
	}
	w.skips = append(w.skips, Skip{Path: p, Why: why})
}

// unfit says why something can't be packed, "" if it can.
func (w *walker) unfit(info fs.FileInfo) string {
	switch t := info.Mode().Type(); {
	case t == fs.ModeDir:
		return ""
	case t == 0:
		if w.opts.RefuseLinks && linked(info) {
			return "hard link"
		}
		return ""
	case t&fs.ModeSymlink != 0:
		return "symbolic link"
	case t&fs.ModeNamedPipe != 0:
		return "pipe"
	case t&fs.ModeSocket != 0:
		return "socket"
	case t&fs.ModeDevice != 0:
		return "device"
	}
	return "not a regular file"
}

// errSwapped says that a name led to something else when it was opened than
// when it was looked at: a file that was replaced, or a link put in its place.
var errSwapped = errors.New("replaced by something else")

// openDir opens a folder below dir, and only the one that was looked at:
// os.Root keeps us inside, but follows links that stay inside.
func openDir(dir *os.Root, name string, seen fs.FileInfo) (*os.Root, error) {
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, swapped(err)
	}
	info, err := sub.Stat(".")
	if err == nil && !os.SameFile(seen, info) {
		err = errSwapped
	}
	if err != nil {
		_ = sub.Close()
		return nil, err
	}
	return sub, nil
}

// openFile opens a regular file in dir for reading, and only the one that was
// looked at. A pipe or device that was put there meanwhile neither blocks it
// nor is read.
func openFile(dir *os.Root, name string, seen fs.FileInfo) (*os.File, fs.FileInfo, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, swapped(err)
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || !os.SameFile(seen, info)) {
		err = errSwapped
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// swapped turns the errors of a path that is no longer what it was into
// errSwapped: gone, not a folder any more, a link that leaves the root (for
// which os.Root has an error of its own that no system call made).
func swapped(err error) error {
	switch {
	case err == nil, errors.Is(err, fs.ErrClosed):
		return err
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO):
		return errSwapped
	}
	if _, ok := errors.AsType[syscall.Errno](err); !ok {
		return errSwapped
	}
	return err
}

// openPath opens the file at a path of a tree below root, without following a
// link anywhere on the way.
func openPath(root *os.Root, p string) (*os.File, fs.FileInfo, error) {
	dir, name, done, err := parent(root, p)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, nil, swapped(err)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, errSwapped
	}
	return openFile(dir, name, info)
}

// parent opens the folder in which p lies, without following a link.
func parent(root *os.Root, p string) (dir *os.Root, name string, done func(), err error) {
	names := strings.Split(p, "/")
	dir, done = root, func() {}
	for _, n := range names[:len(names)-1] {
		info, err := dir.Lstat(n)
		if err == nil && !info.IsDir() {
			err = errSwapped
		}
		var sub *os.Root
		if err == nil {
			sub, err = openDir(dir, n, info)
		}
		done()
		if err != nil {
			return nil, "", nil, swapped(err)
		}
		dir, done = sub, func() { _ = sub.Close() }
	}
	return dir, names[len(names)-1], done, nil
}
