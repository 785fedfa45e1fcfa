package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

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
