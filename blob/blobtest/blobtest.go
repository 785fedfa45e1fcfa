// Package blobtest is the suite that every blob.Store passes, and what tests of
// stores that several hubs share need beside it.
package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"offpeak"
	"offpeak/blob"
)

// Run tests a store. open returns an empty one, and age, which makes all that is
// stored so far old enough to be collected.
func Run(t *testing.T, open func(t *testing.T) (s blob.Store, age func())) {
	for name, test := range map[string]func(t *testing.T, s blob.Store, age func()){
		"keeps blobs":                    keeps,
		"refuses what is not the blob":   refuses,
		"books what it keeps":            books,
		"collects what is unused":        collects,
		"sweeps what nobody has":         sweeps,
		"is used at once":                atOnce,
		"keeps and collects at one time": races,
	} {
		t.Run(name, func(t *testing.T) {
			s, age := open(t)
			test(t, s, age)
		})
	}
}

// Put stores data or fails the test.
func Put(t testing.TB, s blob.Store, data []byte) offpeak.Hash {
	t.Helper()
	h := blob.Sum(data)
	n, err := s.Put(t.Context(), h, bytes.NewReader(data))
	if err != nil || n != offpeak.Bytes(len(data)) {
		t.Fatalf("Put = %d, %v", n, err)
	}
	return h
}

// Read returns all bytes of a blob.
func Read(ctx context.Context, s blob.Store, h offpeak.Hash) ([]byte, error) {
	r, size, err := s.Open(ctx, h)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err == nil && offpeak.Bytes(len(data)) != size {
		err = fmt.Errorf("it is said to have %d bytes and has %d", size, len(data))
	}
	return data, err
}

func has(t testing.TB, s blob.Store, h offpeak.Hash) bool {
	t.Helper()
	ok, err := s.Has(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func yes(context.Context) (bool, error) { return true, nil }

func keeps(t *testing.T, s blob.Store, _ func()) {
	for _, data := range [][]byte{{}, []byte("a"), bytes.Repeat([]byte("x"), int(blob.MaxBlob))} {
		h := Put(t, s, data)
		Put(t, s, data)
		got, err := Read(t.Context(), s, h)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("read %d of %d bytes: %v", len(got), len(data), err)
		}
		if !has(t, s, h) {
			t.Fatal("it is not there")
		}
	}
	absent := blob.Sum([]byte("absent"))
	if has(t, s, absent) {
		t.Error("it has what was never stored")
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, h := range []offpeak.Hash{absent, "", "..", offpeak.Hash(strings.Repeat("/", 64)), "../" + absent[3:]} {
		if _, _, err := s.Open(t.Context(), h); !errors.Is(err, offpeak.ErrNotFound) {
			t.Errorf("Open(%q): %v", h, err)
		}
		if ok, err := s.Has(t.Context(), h); ok || err != nil {
			t.Errorf("Has(%q) = %v, %v", h, ok, err)
		}
		if err := s.Collect(t.Context(), h, yes); err != nil {
			t.Errorf("Collect(%q): %v", h, err)
		}
	}
	if _, err := Read(done, s, blob.Sum([]byte("a"))); !errors.Is(err, context.Canceled) {
		t.Errorf("read for a caller who has gone: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func refuses(t *testing.T, s blob.Store, _ func()) {
	broken := errors.New("cable pulled")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	good := blob.Sum([]byte("good"))
	for _, c := range []struct {
		name string
		ctx  context.Context
		hash offpeak.Hash
		r    io.Reader
		want error
	}{
		{"other bytes", t.Context(), good, strings.NewReader("evil"), offpeak.ErrHashMismatch},
		{"short", t.Context(), good, strings.NewReader("goo"), offpeak.ErrHashMismatch},
		{"too long", t.Context(), good, io.LimitReader(zeros{}, int64(blob.MaxBlob)+1), offpeak.ErrTooLarge},
		{"endless", t.Context(), good, zeros{}, offpeak.ErrTooLarge},
		{"broken reader", t.Context(), good, io.MultiReader(strings.NewReader("go"), iotest.ErrReader(broken)), broken},
		{"cancelled", done, good, strings.NewReader("good"), context.Canceled},
		{"no hash", t.Context(), "", strings.NewReader("good"), offpeak.ErrInvalid},
		{"path for a hash", t.Context(), "../" + good[3:], strings.NewReader("good"), offpeak.ErrInvalid},
		{"upper case", t.Context(), offpeak.Hash(strings.ToUpper(string(good))), strings.NewReader("good"), offpeak.ErrInvalid},
	} {
		_, err := s.Put(c.ctx, c.hash, c.r)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if errors.Is(err, offpeak.ErrStorage) || errors.Is(err, offpeak.ErrUnavailable) {
			t.Errorf("%s: blames the store: %v", c.name, err)
		}
		err = s.Keep(c.ctx, c.hash, strings.NewReader("no"), func(context.Context, offpeak.Bytes) error {
			t.Errorf("%s: bytes that are not the blob's are booked", c.name)
			return nil
		})
		if err == nil {
			t.Errorf("%s: kept", c.name)
		}
	}
	if has(t, s, good) {
		t.Error("a refused blob is there")
	}
}

func books(t *testing.T, s blob.Store, _ func()) {
	data := []byte("kept and booked")
	h := blob.Sum(data)
	full := errors.New("no room in the books")
	for _, want := range []error{nil, full, fmt.Errorf("over: %w", offpeak.ErrQuota), nil} {
		err := s.Keep(t.Context(), h, bytes.NewReader(data), func(ctx context.Context, size offpeak.Bytes) error {
			if got, err := Read(ctx, s, h); err != nil || !bytes.Equal(got, data) || int(size) != len(data) {
				t.Errorf("when it is booked it holds %q of %d bytes, %v", got, size, err)
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Errorf("Keep = %v, want %v", err, want)
		}
		if !has(t, s, h) {
			t.Error("what was booked before is gone")
		}
	}
}

func collects(t *testing.T, s blob.Store, age func()) {
	gone, kept := Put(t, s, []byte("gone")), Put(t, s, []byte("kept"))
	Put(t, s, []byte("gone"))
	age()
	asked := 0
	broken := errors.New("no answer")
	for _, err := range []error{nil, broken} {
		got := s.Collect(t.Context(), kept, func(context.Context) (bool, error) { asked++; return false, err })
		if !errors.Is(got, err) {
			t.Errorf("Collect = %v, want %v", got, err)
		}
	}
	for range 2 {
		if err := s.Collect(t.Context(), gone, func(context.Context) (bool, error) { asked++; return true, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 4 {
		t.Errorf("it asked %d times in 4 calls", asked)
	}
	if has(t, s, gone) || !has(t, s, kept) {
		t.Errorf("has what is gone: %v, what is kept: %v", has(t, s, gone), has(t, s, kept))
	}
	if _, err := Read(t.Context(), s, gone); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("read after it was collected: %v", err)
	}
	Put(t, s, []byte("gone"))
	if !has(t, s, gone) {
		t.Error("stored again it is not there")
	}
}

func sweeps(t *testing.T, s blob.Store, age func()) {
	booked := map[offpeak.Hash]bool{}
	var all []offpeak.Hash
	for i := range 12 {
		h := Put(t, s, fmt.Appendf(nil, "swept %d", i))
		booked[h] = i%2 == 0
		all = append(all, h)
		Put(t, s, fmt.Appendf(nil, "swept %d", i))
	}
	age()
	unused := func(_ context.Context, h offpeak.Hash) (bool, error) { return !booked[h], nil }
	for _, want := range []int{6, 0} {
		if n, err := s.Sweep(t.Context(), unused); n != want || err != nil {
			t.Fatalf("Sweep = %d, %v, want %d", n, err, want)
		}
		for i, h := range all {
			if has(t, s, h) != booked[h] {
				t.Errorf("blob %d is there: %v", i, !booked[h])
			}
			if _, err := Read(t.Context(), s, h); booked[h] && err != nil {
				t.Errorf("blob %d: %v", i, err)
			}
		}
	}
	broken := errors.New("no answer")
	if _, err := s.Sweep(t.Context(), func(context.Context, offpeak.Hash) (bool, error) { return true, broken }); !errors.Is(err, broken) {
		t.Errorf("Sweep = %v, want %v", err, broken)
	}
	for i, h := range all {
		if has(t, s, h) != booked[h] {
			t.Errorf("without an answer blob %d went", i)
		}
	}
}

func atOnce(t *testing.T, s blob.Store, _ func()) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 4 {
				data := fmt.Appendf(nil, "blob %d", (i+k)%4)
				h := blob.Sum(data)
				if _, err := s.Put(t.Context(), h, bytes.NewReader(data)); err != nil {
					t.Error(err)
				}
				if got, err := Read(t.Context(), s, h); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// races has a blob kept while others collect it, round after round, with books
// that have forgotten it when a round begins: what they say is there must be.
func races(t *testing.T, s blob.Store, age func()) {
	data := []byte("kept and collected")
	h := blob.Sum(data)
	var booked atomic.Bool
	unused := func(context.Context, offpeak.Hash) (bool, error) { return !booked.Load(), nil }
	for range 100 {
		booked.Store(false)
		age()
		var wg sync.WaitGroup
		wg.Go(func() {
			err := s.Collect(t.Context(), h, func(ctx context.Context) (bool, error) { return unused(ctx, h) })
			if err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := s.Sweep(t.Context(), unused); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			err := s.Keep(t.Context(), h, bytes.NewReader(data), func(context.Context, offpeak.Bytes) error {
				booked.Store(true)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		if got, err := Read(t.Context(), s, h); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("what is booked holds %q, %v", got, err)
		}
	}
}

// Aging is a bucket with a clock that a test puts forward.
type Aging struct {
	blob.Bucket

	mu    sync.Mutex // guards what follows
	ahead time.Duration
	// dated is how far ahead the clock was when an object was written.
	dated map[string]time.Duration
}

// Age puts the clock forward.
func (a *Aging) Age(by time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ahead += by
}

// Now implements blob.Bucket.
func (a *Aging) Now(ctx context.Context) (time.Time, error) {
	now, err := a.Bucket.Now(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	return now.Add(a.ahead), err
}

// Write implements blob.Bucket.
func (a *Aging) Write(ctx context.Context, key string, data []byte) error {
	a.mu.Lock()
	if a.dated == nil {
		a.dated = map[string]time.Duration{}
	}
	a.dated[key] = a.ahead
	a.mu.Unlock()
	return a.Bucket.Write(ctx, key, data)
}

// List implements blob.Bucket.
func (a *Aging) List(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		for o, err := range a.Bucket.List(ctx, prefix) {
			a.mu.Lock()
			ahead, ok := a.dated[o.Key]
			if !ok {
				ahead = a.ahead // a bucket's own, on its way
			}
			a.mu.Unlock()
			o.Written = o.Written.Add(ahead)
			if !yield(o, err) {
				return
			}
		}
	}
}
