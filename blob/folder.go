package blob

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"time"

	"offpeak"
)

// Folder is a Bucket in a folder that several machines may have mounted. It is
// as good as the mount: a hub must see at once what another one wrote.
type Folder struct {
	root *os.Root
}

var _ Bucket = (*Folder)(nil)

// OpenFolder opens the bucket in dir and makes it where it is not there. It
// returns ErrStorage when the folder can't be made or written.
func OpenFolder(dir string) (*Folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open blob folder: %w", diskError(err))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open blob folder: %w", diskError(err))
	}
	if err := makeFolders(root); err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("open blob folder %s: %w", dir, diskError(err))
	}
	return &Folder{root: root}, nil
}

// makeFolders makes, durably, those folders in which a store keeps blobs by the
// beginning of their hashes, and the one for files on their way in.
func makeFolders(root *os.Root) error {
	names := []string{tmpDir}
	for i := range 256 {
		names = append(names, hex.EncodeToString([]byte{byte(i)}))
	}
	for _, name := range names {
		if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return syncDir(root, ".")
}

// Close closes the folder. Readers that are open stay good.
func (f *Folder) Close() error { return f.root.Close() }

// Path is where the folder lies on this machine.
func (f *Folder) Path() string { return f.root.Name() }

// Write implements Bucket.
func (f *Folder) Write(ctx context.Context, key string, data []byte) error {
	return f.write(ctx, key, data, f.root.Rename)
}

// Create implements Bucket.
func (f *Folder) Create(ctx context.Context, key string, data []byte) error {
	return f.write(ctx, key, data, func(tmp, key string) error {
		// Unlike a rename, a link leaves alone what is there.
		err := f.root.Link(tmp, key)
		if errors.Is(err, fs.ErrExist) {
			err = offpeak.ErrConflict
		}
		return errors.Join(err, remove(f.root, tmp))
	})
}

// write makes a file on the side and has place bring it to its name.
func (f *Folder) write(ctx context.Context, key string, data []byte, place func(tmp, key string) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	tmp := path.Join(tmpDir, rand.Text())
	_, err := f.fill(tmp, data)
	if err == nil {
		err = f.place(tmp, key, place)
	}
	if errors.Is(err, offpeak.ErrConflict) {
		return fmt.Errorf("write %s: %w", key, offpeak.ErrConflict)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", key, diskError(err)), remove(f.root, tmp))
	}
	return nil
}

// fill writes a file, durably, and says what it then is.
func (f *Folder) fill(name string, data []byte) (info fs.FileInfo, err error) {
	file, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		info, err = file.Stat()
	}
	return info, errors.Join(err, file.Close())
}

// place brings a file to its key. The folder there goes with its last file, so
// it may go between being made and being used: then it is made again.
func (f *Folder) place(tmp, key string, place func(tmp, key string) error) error {
	dir := path.Dir(key)
	for range 100 {
		made := f.root.Mkdir(dir, 0o700)
		if made != nil && !errors.Is(made, fs.ErrExist) {
			return made
		}
		err := place(tmp, key)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = syncDir(f.root, dir)
		}
		// Whoever made the folder may not have come to this line yet.
		if err == nil && dir != "." {
			err = syncDir(f.root, path.Dir(dir))
		}
		return err
	}
	return fmt.Errorf("the folder %s is gone as often as it is made", dir)
}

// Read implements Bucket.
func (f *Folder) Read(ctx context.Context, key string) (io.ReadCloser, offpeak.Bytes, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	file, err := f.root.Open(key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("read %s: %w", key, offpeak.ErrNotFound)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", key, diskError(err))
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("read %s: %w", key, diskError(err)), file.Close())
	}
	return diskFile{file}, offpeak.Bytes(info.Size()), nil
}

// diskFile is a file whose errors are the disk's.
type diskFile struct{ *os.File }

func (d diskFile) Read(p []byte) (int, error) {
	n, err := d.File.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = diskError(err)
	}
	return n, err
}

// List implements Bucket.
func (f *Folder) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		f.list(ctx, strings.TrimSuffix(prefix, "/"), yield)
	}
}

// list walks below a folder and says whether to go on.
func (f *Folder) list(ctx context.Context, dir string, yield func(Object, error) bool) bool {
	for entry, err := range readDir(f.root, cmp.Or(dir, ".")) {
		if errors.Is(err, fs.ErrNotExist) && dir != "" {
			return true // gone, or not there yet
		}
		if err != nil {
			yield(Object{}, fmt.Errorf("list %s: %w", cmp.Or(dir, "."), diskError(err)))
			return false
		}
		if err := ctx.Err(); err != nil {
			yield(Object{}, err)
			return false
		}
		if strings.HasPrefix(entry.Name(), ".") {
			continue // a file that NFS keeps for a reader after it was removed
		}
		name := path.Join(dir, entry.Name())
		if entry.IsDir() {
			if !f.list(ctx, name, yield) {
				return false
			}
			continue
		}
		info, err := entry.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			yield(Object{}, fmt.Errorf("list %s: %w", name, diskError(err)))
			return false
		}
		if info.Mode().IsRegular() && !yield(Object{Key: name, Written: info.ModTime()}, nil) {
			return false
		}
	}
	return true
}

// Remove implements Bucket. The folder of a file that was the last in it goes too.
func (f *Folder) Remove(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := remove(f.root, key)
	dir := path.Dir(key)
	if err == nil && path.Dir(dir) != "." {
		// One that is not empty can't be removed, and need not be.
		if f.root.Remove(dir) == nil {
			dir = path.Dir(dir)
		}
	}
	if err == nil {
		err = syncDir(f.root, dir)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // another one removed the folder
		}
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", key, err)
	}
	return nil
}

// Now implements Bucket: the time that a new file has, which on a shared folder
// is not this machine's.
func (f *Folder) Now(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	name := path.Join(tmpDir, rand.Text())
	info, err := f.fill(name, []byte("now"))
	if err = errors.Join(err, remove(f.root, name)); err != nil {
		return time.Time{}, fmt.Errorf("ask the blob folder for the time: %w", diskError(err))
	}
	return info.ModTime(), nil
}
