package wasm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	sysapi "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
)

// rootFS is the job's folder as the module's file system. The engine's own
// mount of a folder follows symbolic links wherever they lead; this one stands
// on os.Root, which resolves every step of a path below the folder or not at all.
type rootFS struct {
	sysapi.UnimplementedFS
	root *os.Root
}

// errno maps what os.Root says. A path that leads out has no errno of the
// system's; to the module it is not permitted.
func errno(err error) sysapi.Errno {
	if err == nil {
		return 0
	}
	no := sysapi.UnwrapOSError(err)
	var sysErr syscall.Errno
	if no == sysapi.EIO && !errors.As(err, &sysErr) {
		return sysapi.EPERM
	}
	return no
}

var openFlags = [...]struct {
	guest sysapi.Oflag
	host  int
}{
	{sysapi.O_APPEND, os.O_APPEND},
	{sysapi.O_CREAT, os.O_CREATE},
	{sysapi.O_EXCL, os.O_EXCL},
	{sysapi.O_TRUNC, os.O_TRUNC},
	{sysapi.O_SYNC, os.O_SYNC},
	{sysapi.O_DSYNC, os.O_SYNC},
	{sysapi.O_RSYNC, os.O_SYNC},
}

func (r *rootFS) OpenFile(name string, flag sysapi.Oflag, perm fs.FileMode) (sysapi.File, sysapi.Errno) {
	name = relative(name)
	// A named pipe would block the engine; O_NONBLOCK is without effect on files.
	host := syscall.O_NONBLOCK
	switch {
	case flag&sysapi.O_RDWR != 0:
		host |= os.O_RDWR
	case flag&sysapi.O_WRONLY != 0:
		host |= os.O_WRONLY
	}
	for _, f := range openFlags {
		if flag&f.guest != 0 {
			host |= f.host
		}
	}
	if flag&sysapi.O_NOFOLLOW != 0 {
		if info, err := r.root.Lstat(name); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, sysapi.ELOOP
		}
	}
	f, err := r.root.OpenFile(name, host, perm)
	if err != nil {
		return nil, errno(err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		f.Close()
		return nil, errno(err)
	case flag&sysapi.O_DIRECTORY != 0 && !info.IsDir():
		f.Close()
		return nil, sysapi.ENOTDIR
	case !info.IsDir() && !info.Mode().IsRegular():
		f.Close()
		return nil, sysapi.EPERM
	}
	return &rootFile{f: f, dir: info.IsDir(), append: flag&sysapi.O_APPEND != 0}, 0
}

func (r *rootFS) Lstat(name string) (sys.Stat_t, sysapi.Errno) {
	return stat(r.root.Lstat(relative(name)))
}

func (r *rootFS) Stat(name string) (sys.Stat_t, sysapi.Errno) {
	return stat(r.root.Stat(relative(name)))
}

func stat(info fs.FileInfo, err error) (sys.Stat_t, sysapi.Errno) {
	if err != nil {
		return sys.Stat_t{}, errno(err)
	}
	return sys.NewStat_t(info), 0
}

func (r *rootFS) Mkdir(name string, perm fs.FileMode) sysapi.Errno {
	return errno(r.root.Mkdir(relative(name), perm.Perm()))
}

func (r *rootFS) Chmod(name string, perm fs.FileMode) sysapi.Errno {
	return errno(r.root.Chmod(relative(name), perm.Perm()))
}

func (r *rootFS) Rename(from, to string) sysapi.Errno {
	return errno(r.root.Rename(relative(from), relative(to)))
}

func (r *rootFS) Rmdir(name string) sysapi.Errno {
	info, err := r.root.Lstat(relative(name))
	if err == nil && !info.IsDir() {
		return sysapi.ENOTDIR
	}
	if err == nil {
		err = r.root.Remove(relative(name))
	}
	return errno(err)
}

func (r *rootFS) Unlink(name string) sysapi.Errno {
	info, err := r.root.Lstat(relative(name))
	if err == nil && info.IsDir() {
		return sysapi.EISDIR
	}
	if err == nil {
		err = r.root.Remove(relative(name))
	}
	return errno(err)
}

func (r *rootFS) Link(from, to string) sysapi.Errno {
	return errno(r.root.Link(relative(from), relative(to)))
}

// Symlink refuses links that lead out. They would lead the module nowhere, but
// nobody else should find them either.
func (r *rootFS) Symlink(target, name string) sysapi.Errno {
	if strings.HasPrefix(target, "/") || !filepath.IsLocal(filepath.Join(filepath.Dir(relative(name)), target)) {
		return sysapi.EPERM
	}
	return errno(r.root.Symlink(target, relative(name)))
}

func (r *rootFS) Readlink(name string) (string, sysapi.Errno) {
	target, err := r.root.Readlink(relative(name))
	return target, errno(err)
}

func (r *rootFS) Utimens(name string, atim, mtim int64) sysapi.Errno {
	info, err := r.root.Stat(relative(name))
	if err != nil {
		return errno(err)
	}
	a, m := times(info, atim, mtim)
	return errno(r.root.Chtimes(relative(name), a, m))
}

// times replaces what is to stay as it is.
func times(info fs.FileInfo, atim, mtim int64) (a, m time.Time) {
	st := sys.NewStat_t(info)
	if atim == sysapi.UTIME_OMIT {
		atim = st.Atim
	}
	if mtim == sysapi.UTIME_OMIT {
		mtim = st.Mtim
	}
	return time.Unix(0, atim), time.Unix(0, mtim)
}
