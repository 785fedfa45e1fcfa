package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"offpeak"
)

func openLocal(t testing.TB, dir string) *Local {
	t.Helper()
	l, err := OpenLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func put(t testing.TB, l *Local, data []byte) offpeak.Hash {
	t.Helper()
	h := Sum(data)
	n, err := l.Put(t.Context(), h, bytes.NewReader(data))
	if err != nil || n != offpeak.Bytes(len(data)) {
		t.Fatalf("Put = %d, %v", n, err)
	}
	return h
}

func read(l *Local, h offpeak.Hash) ([]byte, error) {
	r, _, err := l.Open(context.Background(), h)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// left lists what lies in the temporary folder.
func left(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, tmpDir))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestLocalKeepsBlobs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blobs")
	l := openLocal(t, dir)
	for _, data := range [][]byte{{}, []byte("a"), bytes.Repeat([]byte("x"), int(MaxBlob))} {
		h := put(t, l, data)
		put(t, l, data)
		got, err := read(l, h)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("read %d of %d bytes: %v", len(got), len(data), err)
		}
		if has, err := l.Has(t.Context(), h); !has || err != nil {
			t.Fatalf("Has = %v, %v", has, err)
		}
	}
	n := 0
	for h, err := range l.All() {
		if err != nil || !h.Valid() {
			t.Fatal(h, err)
		}
		n++
	}
	if n != 3 {
		t.Fatalf("All yields %d blobs, want 3", n)
	}
	// A second opening finds them.
	h := Sum([]byte("a"))
	again := openLocal(t, dir)
	if got, err := read(again, h); err != nil || string(got) != "a" {
		t.Fatalf("after reopening: %q, %v", got, err)
	}
	for range 2 {
		if err := again.remove(h); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := read(again, h); !errors.Is(err, offpeak.ErrNotFound) {
		t.Fatalf("after removal: %v", err)
	}
	if n := left(t, dir); n != 0 {
		t.Fatalf("%d temporary files left", n)
	}
}

func TestLocalRefuses(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir)
	broken := errors.New("cable pulled")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	good := Sum([]byte("good"))
	for _, c := range []struct {
		name string
		ctx  context.Context
		hash offpeak.Hash
		r    io.Reader
		want error
	}{
		{"other bytes", t.Context(), good, strings.NewReader("evil"), offpeak.ErrHashMismatch},
		{"short", t.Context(), good, strings.NewReader("goo"), offpeak.ErrHashMismatch},
		{"too long", t.Context(), good, io.LimitReader(zeros{}, int64(MaxBlob)+1), offpeak.ErrTooLarge},
		{"endless", t.Context(), good, zeros{}, offpeak.ErrTooLarge},
		{"broken reader", t.Context(), good, io.MultiReader(strings.NewReader("go"), iotest.ErrReader(broken)), broken},
		{"cancelled", done, good, strings.NewReader("good"), context.Canceled},
		{"no hash", t.Context(), "", strings.NewReader("good"), offpeak.ErrInvalid},
		{"path for a hash", t.Context(), "../" + good[3:], strings.NewReader("good"), offpeak.ErrInvalid},
		{"upper case", t.Context(), offpeak.Hash(strings.ToUpper(string(good))), strings.NewReader("good"), offpeak.ErrInvalid},
	} {
		_, err := l.Put(c.ctx, c.hash, c.r)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if errors.Is(err, offpeak.ErrStorage) {
			t.Errorf("%s: blames the disk: %v", c.name, err)
		}
	}
	if has, _ := l.Has(t.Context(), good); has {
		t.Error("a refused blob is there")
	}
	if n := left(t, dir); n != 0 {
		t.Errorf("%d temporary files left", n)
	}
	for _, h := range []offpeak.Hash{"", "..", offpeak.Hash(strings.Repeat("/", 64)), "../" + good[3:]} {
		if _, _, err := l.Open(t.Context(), h); !errors.Is(err, offpeak.ErrNotFound) {
			t.Errorf("Open(%q): %v", h, err)
		}
		if has, err := l.Has(t.Context(), h); has || err != nil {
			t.Errorf("Has(%q) = %v, %v", h, has, err)
		}
		if err := l.remove(h); err != nil {
			t.Errorf("Remove(%q): %v", h, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestLocalNoticesDamageAndMendsIt(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir)
	data := []byte("precious bytes")
	h := put(t, l, data)
	file := filepath.Join(dir, filepath.FromSlash(blobPath(h)))
	for _, damage := range []string{"precious bytez", "prec", "", "precious bytes and more"} {
		if err := os.WriteFile(file, []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := read(l, h); !errors.Is(err, offpeak.ErrHashMismatch) {
			t.Fatalf("%q: %v, want a hash mismatch", damage, err)
		}
		put(t, l, data)
		if got, err := read(l, h); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("after sending it again: %q, %v", got, err)
		}
	}
}

func TestLocalSweepsAtOpen(t *testing.T) {
	dir := t.TempDir()
	h := put(t, openLocal(t, dir), []byte("kept"))
	if err := os.WriteFile(filepath.Join(dir, tmpDir, "HALF"), []byte("ke"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := openLocal(t, dir)
	if n := left(t, dir); n != 0 {
		t.Errorf("%d temporary files left", n)
	}
	if _, err := read(l, h); err != nil {
		t.Error(err)
	}
}

func TestLocalFolderCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLocal(filepath.Join(file, "blobs")); !errors.Is(err, offpeak.ErrStorage) {
		t.Fatalf("%v, want ErrStorage", err)
	}
}

func TestLocalLocks(t *testing.T) {
	l := openLocal(t, t.TempDir())
	h, other := Sum([]byte("a")), Sum([]byte("b"))
	var inside, worst atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				unlock := l.lock(h)
				if n := inside.Add(1); n > worst.Load() {
					worst.Store(n)
				}
				inside.Add(-1)
				unlock()
				unlock() // harmless
			}
		})
	}
	wg.Wait()
	if worst.Load() != 1 {
		t.Errorf("%d held one lock at once", worst.Load())
	}
	unlock := l.lock(h)
	l.lock(other)() // does not wait for h
	unlock()
	if len(l.locks) != 0 {
		t.Errorf("%d locks are remembered though nobody holds one", len(l.locks))
	}
}

func TestLocalAtOnce(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 4 {
				data := fmt.Appendf(nil, "blob %d", (i+k)%4)
				h := Sum(data)
				if _, err := l.Put(t.Context(), h, bytes.NewReader(data)); err != nil {
					t.Error(err)
				}
				if got, err := read(l, h); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
	if n := left(t, dir); n != 0 {
		t.Errorf("%d temporary files left", n)
	}
}
