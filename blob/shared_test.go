package blob_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/blob"
	"offpeak/blob/blobtest"
)

const day = 24 * time.Hour

// aging is a folder whose clock the test puts forward.
func aging(t *testing.T) (*blobtest.Aging, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := blob.OpenFolder(dir)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return &blobtest.Aging{Bucket: f}, dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// count is how many copies of a blob there are.
func count(t *testing.T, b blob.Bucket, h offpeak.Hash) (n int) {
	t.Helper()
	for _, err := range b.List(t.Context(), string(h[:2]+"/"+h[2:]+"/")) {
		must(t, err)
		n++
	}
	return n
}

// stalling is a bucket that stops before removals until it is let go.
type stalling struct {
	blob.Bucket
	at, goOn chan struct{}
}

func (s *stalling) Remove(ctx context.Context, key string) error {
	s.at <- struct{}{}
	<-s.goOn
	return s.Bucket.Remove(ctx, key)
}

// A hub that stalls between the books' answer and the removal, for a day if it
// must be, removes nothing that another hub stored meanwhile.
func TestStalledCollectorHitsNothingNew(t *testing.T) {
	for name, collect := range map[string]func(s *blob.Shared, h offpeak.Hash) error{
		"collect": func(s *blob.Shared, h offpeak.Hash) error {
			return s.Collect(context.Background(), h, func(context.Context) (bool, error) { return true, nil })
		},
		"sweep": func(s *blob.Shared, _ offpeak.Hash) error {
			_, err := s.Sweep(context.Background(), func(context.Context, offpeak.Hash) (bool, error) { return true, nil })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bucket, _ := aging(t)
			slow := &stalling{Bucket: bucket, at: make(chan struct{}), goOn: make(chan struct{})}
			first, second := blob.NewShared(bucket), blob.NewShared(slow)
			data := []byte("collected by one, stored by another")
			h := blobtest.Put(t, first, data)
			bucket.Age(day)
			done := make(chan error, 1)
			go func() { done <- collect(second, h) }()
			<-slow.at
			must(t, first.Keep(t.Context(), h, bytes.NewReader(data), func(context.Context, offpeak.Bytes) error { return nil }))
			bucket.Age(day)
			close(slow.goOn)
			must(t, <-done)
			if n := count(t, bucket, h); n != 1 {
				t.Errorf("%d copies are left", n)
			}
			if got, err := blobtest.Read(t.Context(), first, h); err != nil || !bytes.Equal(got, data) {
				t.Errorf("what was stored meanwhile: %q, %v", got, err)
			}
		})
	}
}

// What is stored and not yet booked is nobody's to the books, and stays.
func TestCollectorsSpareWhatIsAboutToBeBooked(t *testing.T) {
	bucket, _ := aging(t)
	first, second := blob.NewShared(bucket), blob.NewShared(bucket)
	data := []byte("on its way")
	h := blobtest.Put(t, first, data)
	bucket.Age(day)
	must(t, first.Keep(t.Context(), h, bytes.NewReader(data), func(ctx context.Context, _ offpeak.Bytes) error {
		bucket.Age(time.Hour)
		must(t, second.Collect(ctx, h, func(context.Context) (bool, error) { return true, nil }))
		_, err := second.Sweep(ctx, func(context.Context, offpeak.Hash) (bool, error) { return true, nil })
		must(t, err)
		if n := count(t, bucket, h); n != 1 {
			t.Errorf("%d copies before it is booked, want the new one", n)
		}
		return nil
	}))
	if got, err := blobtest.Read(t.Context(), second, h); err != nil || !bytes.Equal(got, data) {
		t.Errorf("booked it holds %q, %v", got, err)
	}
}

// A refused upload takes its own copy with it, and no other.
func TestRefusedCopyGoesAtOnce(t *testing.T) {
	bucket, _ := aging(t)
	s := blob.NewShared(bucket)
	data := []byte("too much")
	keep := func(err error) {
		t.Helper()
		got := s.Keep(t.Context(), blob.Sum(data), bytes.NewReader(data), func(context.Context, offpeak.Bytes) error { return err })
		if !errors.Is(got, err) {
			t.Fatalf("Keep = %v, want %v", got, err)
		}
	}
	for _, step := range []struct {
		err  error
		want int
	}{{offpeak.ErrQuota, 0}, {nil, 1}, {offpeak.ErrQuota, 1}, {offpeak.ErrUnavailable, 2}} {
		keep(step.err)
		if n := count(t, bucket, blob.Sum(data)); n != step.want {
			t.Errorf("after %v there are %d copies, want %d", step.err, n, step.want)
		}
	}
}

// Copies that two hubs made of one blob become one, and it is the newest.
func TestSweepLeavesOneCopy(t *testing.T) {
	bucket, _ := aging(t)
	s := blob.NewShared(bucket)
	data := []byte("stored four times")
	h := blob.Sum(data)
	for range 3 {
		blobtest.Put(t, s, data)
		bucket.Age(day)
	}
	blobtest.Put(t, s, data) // is not settled: it may be refused yet
	used := func(context.Context, offpeak.Hash) (bool, error) { return false, nil }
	for range 2 {
		n, err := s.Sweep(t.Context(), used)
		must(t, err)
		if copies := count(t, bucket, h); n != 0 || copies != 2 {
			t.Fatalf("%d blobs removed, %d copies left", n, copies)
		}
	}
}

// A blob that was damaged is mended by sending it again.
func TestSharedNoticesDamageAndMendsIt(t *testing.T) {
	bucket, dir := aging(t)
	s := blob.NewShared(bucket)
	data := []byte("precious bytes")
	h := blobtest.Put(t, s, data)
	for _, damage := range []string{"precious bytez", "prec", "", "precious bytes and more"} {
		files, err := filepath.Glob(filepath.Join(dir, string(h[:2]), string(h[2:]), "*"))
		must(t, err)
		for _, f := range files {
			must(t, os.WriteFile(f, []byte(damage), 0o600))
		}
		if _, err := blobtest.Read(t.Context(), s, h); !errors.Is(err, offpeak.ErrHashMismatch) {
			t.Fatalf("%q: %v, want a hash mismatch", damage, err)
		}
		bucket.Age(time.Minute)
		blobtest.Put(t, s, data)
		if got, err := blobtest.Read(t.Context(), s, h); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("after sending it again: %q, %v", got, err)
		}
	}
}

// vanishing is a bucket from which a copy goes after it was listed.
type vanishing struct {
	blob.Bucket
	after func()
	once  sync.Once
}

func (v *vanishing) List(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		var all []blob.Object
		for o, err := range v.Bucket.List(ctx, prefix) {
			if err != nil {
				yield(o, err)
				return
			}
			all = append(all, o)
		}
		v.once.Do(v.after)
		for _, o := range all {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// A reader who listed a copy that a sweep then removed for a newer one finds the
// newer one.
func TestReaderFindsTheCopyThatReplacedItsOwn(t *testing.T) {
	bucket, _ := aging(t)
	s := blob.NewShared(bucket)
	data := []byte("replaced while it is opened")
	h := blobtest.Put(t, s, data)
	reader := blob.NewShared(&vanishing{Bucket: bucket, after: func() {
		bucket.Age(day)
		blobtest.Put(t, s, data)
		bucket.Age(day)
		_, err := s.Sweep(t.Context(), func(context.Context, offpeak.Hash) (bool, error) { return false, nil })
		must(t, err)
	}})
	if got, err := blobtest.Read(t.Context(), reader, h); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%q, %v", got, err)
	}
}

// Whatever hubs ask at once for the identity of a new place, all get one.
func TestIDIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			f, err := blob.OpenFolder(dir)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			s := blob.NewShared(f)
			if ids[i], err = s.ID(t.Context()); err != nil {
				t.Error(err)
			}
			if empty, err := s.Empty(t.Context()); !empty || err != nil {
				t.Errorf("with an identity alone it is empty: %v, %v", empty, err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("identities %q", ids)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "offpeak.id"), []byte("mine"), 0o600))
	f, err := blob.OpenFolder(dir)
	must(t, err)
	defer f.Close()
	if _, err := blob.NewShared(f).ID(t.Context()); !errors.Is(err, offpeak.ErrStorage) {
		t.Errorf("an identity that nobody wrote: %v", err)
	}
}

// Files that a hub left half-written go a day later; those of one that writes stay.
func TestFolderTidiesUp(t *testing.T) {
	dir := t.TempDir()
	f, err := blob.OpenFolder(dir)
	must(t, err)
	defer f.Close()
	s := blob.NewShared(f)
	then := time.Now().Add(-day)
	must(t, os.WriteFile(filepath.Join(dir, "tmp", "HALF"), []byte("ha"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "tmp", "OLD"), []byte("ol"), 0o600))
	must(t, os.Chtimes(filepath.Join(dir, "tmp", "OLD"), then, then))
	h := blobtest.Put(t, s, []byte("old"))
	files, err := filepath.Glob(filepath.Join(dir, string(h[:2]), string(h[2:]), "*"))
	must(t, err)
	must(t, os.Chtimes(files[0], then, then))
	n, err := s.Sweep(t.Context(), func(context.Context, offpeak.Hash) (bool, error) { return true, nil })
	must(t, err)
	var left []string
	must(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || len(d.Name()) > 3 && p != dir) {
			left = append(left, d.Name())
		}
		return err
	}))
	if n != 1 || len(left) != 1 || left[0] != "HALF" {
		t.Errorf("%d blobs removed, left: %q", n, left)
	}
}
