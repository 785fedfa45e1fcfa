package blob

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"offpeak"
	"offpeak/internal/require"
)

// smallDisk mounts a file system of size bytes; it needs root.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	require.Met(t, syscall.Mount("offpeak-test", dir, "tmpfs", 0, "size="+size), "root, to mount a small disk")
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestLocalFullDisk(t *testing.T) {
	dir := smallDisk(t, "3m")
	l := openLocal(t, dir)
	kept := put(t, l, bytes.Repeat([]byte("k"), 1<<20))
	big := bytes.Repeat([]byte("b"), 4<<20)
	for range 3 {
		_, err := l.Put(t.Context(), Sum(big), bytes.NewReader(big))
		if !errors.Is(err, offpeak.ErrStorage) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%v, want ErrStorage with its cause", err)
		}
	}
	if has, err := l.Has(t.Context(), Sum(big)); has || err != nil {
		t.Fatalf("Has = %v, %v after a refused Put", has, err)
	}
	if n := left(t, dir); n != 0 {
		t.Fatalf("%d temporary files fill the disk", n)
	}
	if _, err := read(l, kept); err != nil {
		t.Fatal(err)
	}
	// Space that comes back is used at once.
	if err := l.remove(kept); err != nil {
		t.Fatal(err)
	}
	put(t, l, bytes.Repeat([]byte("s"), 2<<20))
}

func TestFolderFullDisk(t *testing.T) {
	dir := smallDisk(t, "3m")
	f, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, big := NewShared(f), bytes.Repeat([]byte("b"), 4<<20)
	for range 3 {
		_, err := s.Put(t.Context(), Sum(big), bytes.NewReader(big))
		if !errors.Is(err, offpeak.ErrStorage) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%v, want ErrStorage with its cause", err)
		}
	}
	if has, err := s.Has(t.Context(), Sum(big)); has || err != nil {
		t.Fatalf("Has = %v, %v after a refused Put", has, err)
	}
	if n := left(t, dir); n != 0 {
		t.Fatalf("%d temporary files fill the disk", n)
	}
	if _, err := s.Put(t.Context(), Sum(big[:1<<20]), bytes.NewReader(big[:1<<20])); err != nil {
		t.Fatalf("what fits: %v", err)
	}
}

func TestUnpackFullDisk(t *testing.T) {
	src := t.TempDir()
	write(t, src, "small", "s")
	if err := os.WriteFile(src+"/big", bytes.Repeat([]byte("0123456789abcdef"), 1<<18), 0o644); err != nil {
		t.Fatal(err)
	}
	remote := newMemory()
	tree, err := Upload(t.Context(), remote, pack(t, src, PackOptions{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := smallDisk(t, "2m")
	err = Unpack(t.Context(), remote, tree, openRoot(t, dir), UnpackOptions{})
	if !errors.Is(err, offpeak.ErrStorage) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%v, want ErrStorage with its cause", err)
	}
	if _, err := os.Lstat(dir + "/big"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a half-written file has its name: %v", err)
	}
	if _, err := os.Lstat(dir + "/" + stagingDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half-written files fill the disk: %v", err)
	}
}
