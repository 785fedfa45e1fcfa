package blob

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"offpeak"
)

const (
	// settled is the age of a copy from which on whoever made it has booked it or
	// never will, by the bucket's clock.
	settled = 12 * time.Hour
	// bookWithin is how long a Keep may take. The hours between it and settled
	// are for clocks that are wrong or jump.
	bookWithin = time.Hour
	// tidyWithin bounds what is cleared away for a caller who has gone.
	tidyWithin = 30 * time.Second
)

// idKey is the object that holds the bucket's identity, ownerKey the one that
// names whose blobs they are; tempKeys is where a bucket may keep what is on its
// way in.
const (
	idKey    = "offpeak.id"
	ownerKey = "offpeak.grid"
	tempKeys = "tmp/"
)

// Bucket is where a Shared keeps its copies: objects by keys, which are names
// joined by slashes. All methods may be called at once, by any number of hubs;
// what one has written the others see when the write has returned. Errors are
// ErrNotFound, ErrUnavailable (try again) or ErrStorage (somebody has to mend
// it), say what was done to what, and never hold a secret.
type Bucket interface {
	// Write makes an object, whole or not at all, durable when it returns.
	Write(ctx context.Context, key string, data []byte) error
	// Create writes an object unless it is there: ErrConflict.
	Create(ctx context.Context, key string, data []byte) error
	// Read opens an object, or returns ErrNotFound.
	Read(ctx context.Context, key string) (io.ReadCloser, offpeak.Bytes, error)
	// List yields the objects whose keys begin with prefix, which is "" or ends
	// with a slash; those that lie in one folder one after the other.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]
	// Remove removes an object. Removing one that is not there is not an error.
	Remove(ctx context.Context, key string) error
	// Now is the time of the clock by which objects are dated.
	Now(ctx context.Context) (time.Time, error)
}

// Object is one object of a Bucket.
type Object struct {
	Key string
	// Written is when, by the bucket's clock.
	Written time.Time
}

// Shared is a Store that several hubs use at once. A blob is one or more copies,
// each an object with a name that is used once: whoever stores a blob makes a
// copy of its own and books the blob then, whoever collects one removes copies
// that were settled before the books were asked. DESIGN.md says why that is
// right whatever stalls or dies.
type Shared struct {
	bucket Bucket
}

var _ Store = (*Shared)(nil)

// NewShared makes a store of a bucket, which may hold blobs already.
func NewShared(bucket Bucket) *Shared { return &Shared{bucket: bucket} }

// ID is what all hubs that share the bucket, and no others, see as its identity.
// The first to ask makes it.
func (s *Shared) ID(ctx context.Context) (string, error) {
	for range 3 {
		id, err := s.readID(ctx)
		if err == nil || !errors.Is(err, offpeak.ErrNotFound) {
			return id, err
		}
		if err := s.bucket.Create(ctx, idKey, []byte(rand.Text()+"\n")); err != nil && !errors.Is(err, offpeak.ErrConflict) {
			return "", err
		}
	}
	return "", fmt.Errorf("read %s: it was written and is not there: %w", idKey, offpeak.ErrStorage)
}

// Claim notes that the blobs are owner's, and returns whose they are: somebody
// else's if that was noted before, unless take is set. Whoever collects removes
// what its own books do not name, so a bucket has one owner.
func (s *Shared) Claim(ctx context.Context, owner string, take bool) (string, error) {
	mark := []byte(owner + "\n")
	if take {
		if err := s.bucket.Write(ctx, ownerKey, mark); err != nil {
			return "", err
		}
		return owner, nil
	}
	if err := s.bucket.Create(ctx, ownerKey, mark); err == nil || !errors.Is(err, offpeak.ErrConflict) {
		return owner, err
	}
	return s.readLine(ctx, ownerKey)
}

// readLine reads an object that holds one short line.
func (s *Shared) readLine(ctx context.Context, key string) (string, error) {
	r, _, err := s.bucket.Read(ctx, key)
	if err != nil {
		return "", err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, 128))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", key, err)
	}
	return strings.TrimSpace(string(text)), nil
}

func (s *Shared) readID(ctx context.Context) (string, error) {
	id, err := s.readLine(ctx, idKey)
	if err != nil {
		return "", err
	}
	if len(id) != len(rand.Text()) {
		return "", fmt.Errorf("read %s: %q is not what a hub writes there: %w", idKey, id, offpeak.ErrStorage)
	}
	return id, nil
}

// Empty says that no blob is stored.
func (s *Shared) Empty(ctx context.Context) (bool, error) {
	for o, err := range s.bucket.List(ctx, "") {
		if err != nil {
			return false, err
		}
		if hashOf(o.Key) != "" {
			return false, nil
		}
	}
	return true, nil
}

// copies is where the copies of a blob lie.
func copies(h offpeak.Hash) string { return blobPath(h) + "/" }

// hashOf is the blob of which a key names a copy, or "".
func hashOf(key string) offpeak.Hash {
	parts := strings.Split(key, "/")
	if len(parts) != 3 {
		return ""
	}
	h := offpeak.Hash(parts[0] + parts[1])
	if !h.Valid() || len(parts[0]) != 2 {
		return ""
	}
	return h
}

// Put implements Store.
func (s *Shared) Put(ctx context.Context, h offpeak.Hash, r io.Reader) (offpeak.Bytes, error) {
	_, size, err := s.add(ctx, h, r)
	return size, err
}

// add makes a new copy.
func (s *Shared) add(ctx context.Context, h offpeak.Hash, r io.Reader) (key string, size offpeak.Bytes, err error) {
	if !h.Valid() {
		return "", 0, &offpeak.ValueError{Value: string(h), Rule: "a hash is 64 lower-case hex digits"}
	}
	in := &input{ctx: ctx, r: r, sum: sha256.New()}
	data, err := io.ReadAll(in)
	if err == nil {
		err = in.check(h)
	}
	if err == nil {
		key = copies(h) + rand.Text()
		err = s.bucket.Write(ctx, key, data)
	}
	if err != nil {
		return "", 0, fmt.Errorf("store blob %s: %w", h, err)
	}
	return key, in.size, nil
}

// Keep implements Store. Since the copy is this call's own, one that was refused
// is removed at once: nobody else's books rest on it.
func (s *Shared) Keep(ctx context.Context, h offpeak.Hash, r io.Reader, book func(context.Context, offpeak.Bytes) error) error {
	ctx, cancel := context.WithTimeout(ctx, bookWithin)
	defer cancel()
	key, size, err := s.add(ctx, h, r)
	if err != nil {
		return err
	}
	err = book(ctx, size)
	if errors.Is(err, offpeak.ErrQuota) {
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin)
		defer cancel()
		err = errors.Join(err, s.bucket.Remove(tidy, key))
	}
	return err
}

// Open implements Store.
func (s *Shared) Open(ctx context.Context, h offpeak.Hash) (io.ReadCloser, offpeak.Bytes, error) {
	if !h.Valid() {
		return nil, 0, fmt.Errorf("open blob %q: %w", h, offpeak.ErrNotFound)
	}
	// A copy may go between the look and the read where there is a newer one:
	// then a second look sees that.
	for range 2 {
		all, err := s.list(ctx, h)
		if err != nil {
			return nil, 0, fmt.Errorf("open blob %s: %w", h, err)
		}
		// The newest first: sending a blob again mends one that was damaged.
		for _, o := range slices.Backward(all) {
			r, size, err := s.bucket.Read(ctx, o.Key)
			if errors.Is(err, offpeak.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, 0, fmt.Errorf("open blob %s: %w", h, err)
			}
			return &verified{ctx: ctx, f: r, want: h, sum: sha256.New(), broken: func(err error) error { return err }}, size, nil
		}
	}
	return nil, 0, fmt.Errorf("open blob %s: %w", h, offpeak.ErrNotFound)
}

// Has implements Store.
func (s *Shared) Has(ctx context.Context, h offpeak.Hash) (bool, error) {
	if !h.Valid() {
		return false, nil
	}
	all, err := s.list(ctx, h)
	if err != nil {
		return false, fmt.Errorf("look for blob %s: %w", h, err)
	}
	return len(all) > 0, nil
}

// list returns the copies of a blob, the newest last.
func (s *Shared) list(ctx context.Context, h offpeak.Hash) (all []Object, err error) {
	for o, err := range s.bucket.List(ctx, copies(h)) {
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	order(all)
	return all, nil
}

func order(objects []Object) {
	slices.SortFunc(objects, func(a, b Object) int {
		return cmp.Or(a.Written.Compare(b.Written), cmp.Compare(a.Key, b.Key))
	})
}

// Collect implements Store.
func (s *Shared) Collect(ctx context.Context, h offpeak.Hash, unused func(context.Context) (bool, error)) error {
	old, err := s.settledCopies(ctx, h)
	if err != nil {
		return fmt.Errorf("collect blob %s: %w", h, err)
	}
	if gone, err := unused(ctx); err != nil || !gone {
		return err
	}
	if err := s.drop(ctx, old); err != nil {
		return fmt.Errorf("collect blob %s: %w", h, err)
	}
	return nil
}

func (s *Shared) settledCopies(ctx context.Context, h offpeak.Hash) ([]Object, error) {
	if !h.Valid() {
		return nil, nil
	}
	now, err := s.bucket.Now(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.list(ctx, h)
	return slices.DeleteFunc(all, func(o Object) bool { return !old(o, now) }), err
}

func old(o Object, now time.Time) bool { return now.Sub(o.Written) >= settled }

func (s *Shared) drop(ctx context.Context, objects []Object) error {
	for _, o := range objects {
		if err := s.bucket.Remove(ctx, o.Key); err != nil {
			return err
		}
	}
	return nil
}

// Sweep implements Store. Of blobs that somebody has it leaves the newest of the
// copies that are settled.
func (s *Shared) Sweep(ctx context.Context, unused func(context.Context, offpeak.Hash) (bool, error)) (removed int, err error) {
	now, err := s.bucket.Now(ctx)
	if err != nil {
		return 0, fmt.Errorf("sweep blobs: %w", err)
	}
	var hash offpeak.Hash
	var group []Object
	flush := func() error {
		if len(group) == 0 {
			return nil
		}
		order(group)
		gone, err := unused(ctx, hash)
		if err == nil && gone {
			err = s.drop(ctx, group)
			removed++
		} else if err == nil {
			err = s.drop(ctx, group[:len(group)-1])
		}
		group = group[:0]
		if err != nil {
			return fmt.Errorf("sweep blob %s: %w", hash, err)
		}
		return nil
	}
	for o, err := range s.bucket.List(ctx, "") {
		if err != nil {
			return removed, fmt.Errorf("sweep blobs: %w", err)
		}
		h := hashOf(o.Key)
		if h != hash {
			if err := flush(); err != nil {
				return removed, err
			}
			hash = h
		}
		switch {
		case !old(o, now):
		case h != "":
			group = append(group, o)
		case strings.HasPrefix(o.Key, tempKeys):
			if err := s.bucket.Remove(ctx, o.Key); err != nil {
				return removed, fmt.Errorf("sweep blobs: %w", err)
			}
		}
	}
	return removed, flush()
}
