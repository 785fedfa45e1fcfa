package wasm

import (
	"errors"
	"io"
	"os"
	"strconv"

	sysapi "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
)

// rootFile is one open file or folder of a rootFS.
type rootFile struct {
	f      *os.File
	dir    bool
	append bool
}

func (r *rootFile) Dev() (uint64, sysapi.Errno) {
	st, no := r.Stat()
	return st.Dev, no
}

func (r *rootFile) Ino() (sys.Inode, sysapi.Errno) {
	st, no := r.Stat()
	return st.Ino, no
}

func (r *rootFile) IsDir() (bool, sysapi.Errno) { return r.dir, 0 }

func (r *rootFile) IsAppend() bool { return r.append }

// SetAppend only remembers: Write seeks to the end itself, and nobody else
// writes to a module's file through this descriptor.
func (r *rootFile) SetAppend(enable bool) sysapi.Errno {
	if r.dir {
		return sysapi.EISDIR
	}
	r.append = enable
	return 0
}

func (r *rootFile) Stat() (sys.Stat_t, sysapi.Errno) { return stat(r.f.Stat()) }

func (r *rootFile) Read(buf []byte) (int, sysapi.Errno) {
	if r.dir {
		return 0, sysapi.EISDIR
	}
	n, err := r.f.Read(buf)
	return n, ioErrno(err)
}

func (r *rootFile) Pread(buf []byte, off int64) (int, sysapi.Errno) {
	switch {
	case r.dir:
		return 0, sysapi.EISDIR
	case off < 0:
		return 0, sysapi.EINVAL
	}
	n, err := r.f.ReadAt(buf, off)
	return n, ioErrno(err)
}

// position is an int64. The engine's File has a Seek that is not io.Seeker's;
// the other name says so to vet.
type position = int64

func (r *rootFile) Seek(offset position, whence int) (int64, sysapi.Errno) {
	if whence < io.SeekStart || whence > io.SeekEnd {
		return 0, sysapi.EINVAL
	}
	if r.dir && (offset != 0 || whence != io.SeekStart) {
		return 0, sysapi.EISDIR
	}
	n, err := r.f.Seek(offset, whence)
	return n, ioErrno(err)
}

func (r *rootFile) Readdir(n int) ([]sysapi.Dirent, sysapi.Errno) {
	if !r.dir {
		return nil, sysapi.ENOTDIR
	}
	entries, err := r.f.ReadDir(n)
	out := make([]sysapi.Dirent, 0, len(entries))
	for _, e := range entries {
		d := sysapi.Dirent{Name: e.Name(), Type: e.Type()}
		if info, err := e.Info(); err == nil {
			d.Ino = sys.NewStat_t(info).Ino
		}
		out = append(out, d)
	}
	return out, ioErrno(err)
}

func (r *rootFile) Write(buf []byte) (int, sysapi.Errno) {
	if r.dir {
		return 0, sysapi.EISDIR
	}
	if r.append {
		if _, err := r.f.Seek(0, io.SeekEnd); err != nil {
			return 0, ioErrno(err)
		}
	}
	n, err := r.f.Write(buf)
	return n, ioErrno(err)
}

func (r *rootFile) Pwrite(buf []byte, off int64) (int, sysapi.Errno) {
	switch {
	case r.dir:
		return 0, sysapi.EISDIR
	case off < 0:
		return 0, sysapi.EINVAL
	}
	n, err := r.f.WriteAt(buf, off)
	return n, ioErrno(err)
}

func (r *rootFile) Truncate(size int64) sysapi.Errno {
	switch {
	case r.dir:
		return sysapi.EISDIR
	case size < 0:
		return sysapi.EINVAL
	}
	return ioErrno(r.f.Truncate(size))
}

func (r *rootFile) Sync() sysapi.Errno     { return ioErrno(r.f.Sync()) }
func (r *rootFile) Datasync() sysapi.Errno { return ioErrno(r.f.Sync()) }

func (r *rootFile) Utimens(atim, mtim int64) sysapi.Errno {
	info, err := r.f.Stat()
	if err != nil {
		return errno(err)
	}
	a, m := times(info, atim, mtim)
	// By the descriptor's own name: the path may be another file's by now.
	return errno(os.Chtimes("/proc/self/fd/"+strconv.Itoa(int(r.f.Fd())), a, m))
}

func (r *rootFile) Close() sysapi.Errno { return ioErrno(r.f.Close()) }

// ioErrno is errno for calls at whose end there is nothing wrong.
func ioErrno(err error) sysapi.Errno {
	if errors.Is(err, io.EOF) {
		return 0
	}
	return errno(err)
}
