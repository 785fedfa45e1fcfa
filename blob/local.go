package blob

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"sync"
	"syscall"

	"offpeak"
)

// Names inside a local store's folder: blobs lie in 256 folders named by the
// first two digits of their hash, files on their way in lie in tmpDir.
const tmpDir = "tmp"

// Local is a Store in a folder of one process; the lock on the hub's database
// sees to that. For a folder that several hubs use there is Shared.
type Local struct {
	root *os.Root

	// mu guards locks.
	mu sync.Mutex
	// locks holds those locks that somebody holds or waits for.
	locks map[offpeak.Hash]*hashLock
}

var _ Store = (*Local)(nil)

type hashLock struct {
	mu sync.Mutex
	// users counts holders and waiters; guarded by Local.mu.
	users int
}

// OpenLocal opens the store in dir and makes it where it is not there. Files
// that a crash left half-written are swept. It returns ErrStorage when the
// folder can't be made or written.
func OpenLocal(dir string) (*Local, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open blob folder: %w", diskError(err))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open blob folder: %w", diskError(err))
	}
	l := &Local{root: root, locks: make(map[offpeak.Hash]*hashLock)}
	if err := l.prepare(); err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("open blob folder %s: %w", dir, diskError(err))
	}
	return l, nil
}

// prepare sweeps the temporary files and makes all folders. Making them here,
// durably, spares Put the question whether its folder survives a crash.
func (l *Local) prepare() error {
	if err := l.root.RemoveAll(tmpDir); err != nil {
		return err
	}
	return makeFolders(l.root)
}

// Close closes the folder. Readers that are open stay good.
func (l *Local) Close() error { return l.root.Close() }

func blobPath(h offpeak.Hash) string { return path.Join(string(h[:2]), string(h[2:])) }

// Put implements Store. A stored blob whose bytes were damaged since is
// replaced, so sending it again mends it.
func (l *Local) Put(ctx context.Context, h offpeak.Hash, r io.Reader) (offpeak.Bytes, error) {
	if !h.Valid() {
		return 0, &offpeak.ValueError{Value: string(h), Rule: "a hash is 64 lower-case hex digits"}
	}
	n, err := l.put(ctx, h, r)
	if err != nil {
		return 0, fmt.Errorf("store blob %s: %w", h, err)
	}
	return n, nil
}

func (l *Local) put(ctx context.Context, h offpeak.Hash, r io.Reader) (offpeak.Bytes, error) {
	in := &input{ctx: ctx, r: r, sum: sha256.New()}
	whole, err := l.whole(ctx, h)
	if err != nil {
		return 0, err
	}
	if whole {
		if _, err := io.Copy(io.Discard, in); err != nil {
			return 0, err
		}
		if err := in.check(h); err != nil {
			return 0, err
		}
		// Whoever stored it may not have come to this line yet.
		return in.size, diskError(syncDir(l.root, string(h[:2])))
	}
	tmp := path.Join(tmpDir, rand.Text())
	f, err := l.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, diskError(err)
	}
	err = l.fill(f, in, h)
	if err == nil {
		err = diskError(l.root.Rename(tmp, blobPath(h)))
	}
	if err != nil {
		return 0, errors.Join(err, remove(l.root, tmp))
	}
	return in.size, diskError(syncDir(l.root, string(h[:2])))
}

// fill writes what in yields to f and closes it, durably.
func (l *Local) fill(f *os.File, in *input, h offpeak.Hash) error {
	_, err := io.Copy(f, in)
	switch {
	case in.err != nil:
		err = in.err
	case err != nil:
		err = diskError(err)
	default:
		err = in.check(h)
	}
	if err == nil {
		err = diskError(f.Sync())
	}
	return errors.Join(err, diskError(f.Close()))
}

// whole says that the blob is there with the right bytes.
func (l *Local) whole(ctx context.Context, h offpeak.Hash) (bool, error) {
	r, _, err := l.Open(ctx, h)
	if errors.Is(err, offpeak.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err != nil {
		return false, ctx.Err()
	}
	return true, nil
}

// Open implements Store.
func (l *Local) Open(ctx context.Context, h offpeak.Hash) (io.ReadCloser, offpeak.Bytes, error) {
	if !h.Valid() {
		return nil, 0, fmt.Errorf("open blob %q: %w", h, offpeak.ErrNotFound)
	}
	f, err := l.root.Open(blobPath(h))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, 0, fmt.Errorf("open blob %s: %w", h, offpeak.ErrNotFound)
		}
		return nil, 0, fmt.Errorf("open blob %s: %w", h, diskError(err))
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open blob %s: %w", h, diskError(err)), f.Close())
	}
	return &verified{ctx: ctx, f: f, want: h, sum: sha256.New(), broken: diskError}, offpeak.Bytes(info.Size()), nil
}

// Has implements Store.
func (l *Local) Has(_ context.Context, h offpeak.Hash) (bool, error) {
	if !h.Valid() {
		return false, nil
	}
	_, err := l.root.Lstat(blobPath(h))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("look for blob %s: %w", h, diskError(err))
}

// Keep implements Store. The blob's lock is held until it is booked.
func (l *Local) Keep(ctx context.Context, h offpeak.Hash, r io.Reader, book func(context.Context, offpeak.Bytes) error) error {
	unlock := l.lock(h)
	defer unlock()
	size, err := l.Put(ctx, h, r)
	if err != nil {
		return err
	}
	return book(ctx, size)
}

// Collect implements Store, under the blob's lock.
func (l *Local) Collect(ctx context.Context, h offpeak.Hash, unused func(context.Context) (bool, error)) error {
	unlock := l.lock(h)
	defer unlock()
	if gone, err := unused(ctx); err != nil || !gone {
		return err
	}
	return l.remove(h)
}

// Sweep implements Store.
func (l *Local) Sweep(ctx context.Context, unused func(context.Context, offpeak.Hash) (bool, error)) (removed int, err error) {
	for h, err := range l.All() {
		if err != nil {
			return removed, err
		}
		// Nearly all are booked, which costs no lock to see.
		gone, err := unused(ctx, h)
		if err == nil && gone {
			err = l.Collect(ctx, h, func(ctx context.Context) (bool, error) {
				gone, err = unused(ctx, h)
				return gone, err
			})
		}
		if err != nil {
			return removed, fmt.Errorf("sweep blob %s: %w", h, err)
		}
		if gone {
			removed++
		}
	}
	return removed, nil
}

func (l *Local) remove(h offpeak.Hash) error {
	if !h.Valid() {
		return nil
	}
	err := remove(l.root, blobPath(h))
	if err == nil {
		// Else a crash could bring it back with nobody to collect it.
		err = diskError(syncDir(l.root, string(h[:2])))
	}
	if err != nil {
		return fmt.Errorf("remove blob %s: %w", h, err)
	}
	return nil
}

// All walks over the blobs that are stored, in no order; those stored or
// removed meanwhile may be seen or not.
func (l *Local) All() iter.Seq2[offpeak.Hash, error] {
	return func(yield func(offpeak.Hash, error) bool) {
		for i := range 256 {
			two := hex.EncodeToString([]byte{byte(i)})
			for entry, err := range readDir(l.root, two) {
				if err != nil {
					yield("", fmt.Errorf("list blobs: %w", diskError(err)))
					return
				}
				if h := offpeak.Hash(two + entry.Name()); h.Valid() && !yield(h, nil) {
					return
				}
			}
		}
	}
}

// lock holds a blob's lock until unlock is called.
func (l *Local) lock(h offpeak.Hash) (unlock func()) {
	l.mu.Lock()
	k := l.locks[h]
	if k == nil {
		k = new(hashLock)
		l.locks[h] = k
	}
	k.users++
	l.mu.Unlock()
	k.mu.Lock()
	return sync.OnceFunc(func() {
		k.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.locks, h)
		}
	})
}

// input bounds, hashes and counts what a caller hands in, and remembers the
// caller's error, so that it is not taken for one of the disk.
type input struct {
	ctx  context.Context
	r    io.Reader
	sum  hash.Hash
	size offpeak.Bytes
	err  error
}

func (in *input) Read(p []byte) (int, error) {
	if err := in.ctx.Err(); err != nil {
		in.err = err
		return 0, err
	}
	n, err := in.r.Read(p)
	in.size += offpeak.Bytes(n)
	if in.size > MaxBlob {
		in.err = fmt.Errorf("more than %s: %w", MaxBlob, offpeak.ErrTooLarge)
		return 0, in.err
	}
	in.sum.Write(p[:n])
	if err != nil && err != io.EOF {
		in.err = err
	}
	return n, err
}

func (in *input) check(want offpeak.Hash) error {
	if got := sumOf(in.sum); got != want {
		return fmt.Errorf("%d bytes with hash %s: %w", in.size, got, offpeak.ErrHashMismatch)
	}
	return nil
}

// verified reads a blob and fails at its end if its bytes were changed.
type verified struct {
	ctx  context.Context
	f    io.ReadCloser
	want offpeak.Hash
	sum  hash.Hash
	// broken turns an error of f into one of the store.
	broken func(error) error
}

func (v *verified) Read(p []byte) (int, error) {
	if err := v.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := v.f.Read(p)
	v.sum.Write(p[:n])
	switch {
	case errors.Is(err, io.EOF):
		if got := sumOf(v.sum); got != v.want {
			return n, fmt.Errorf("read blob %s: stored bytes have hash %s: %w", v.want, got, offpeak.ErrHashMismatch)
		}
	case err != nil:
		err = fmt.Errorf("read blob %s: %w", v.want, v.broken(err))
	}
	return n, err
}

func (v *verified) Close() error { return v.f.Close() }

// Sum returns the hash of data.
func Sum(data []byte) offpeak.Hash {
	s := sha256.Sum256(data)
	return offpeak.Hash(hex.EncodeToString(s[:]))
}

func sumOf(h hash.Hash) offpeak.Hash { return offpeak.Hash(hex.EncodeToString(h.Sum(nil))) }

// diskError wraps an error of our own folder in ErrStorage. Running out of file
// descriptors is not the disk's doing and passes: that is ErrUnavailable.
func diskError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("%w: %w", offpeak.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", offpeak.ErrStorage, err)
}

func remove(root *os.Root, name string) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskError(err)
	}
	return nil
}

// readDir walks over a folder in no order, a few hundred entries at a time.
func readDir(root *os.Root, name string) iter.Seq2[fs.DirEntry, error] {
	return func(yield func(fs.DirEntry, error) bool) {
		d, err := root.Open(name)
		if err != nil {
			yield(nil, err)
			return
		}
		defer d.Close()
		for {
			entries, err := d.ReadDir(256)
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}
