package blob

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"offpeak"
)

func TestPackSelects(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"a.txt", "a/one", "a/b/two", "out/x.pt", "out/y.pt", "out/z.log", "we[i]rd"} {
		write(t, dir, p, p)
	}
	for _, c := range []struct {
		paths []string
		want  []string
	}{
		{nil, []string{"a/", "a.txt", "a/b/", "a/b/two", "a/one", "out/", "out/x.pt", "out/y.pt", "out/z.log", "we[i]rd"}},
		{[]string{"."}, []string{"a/", "a.txt", "a/b/", "a/b/two", "a/one", "out/", "out/x.pt", "out/y.pt", "out/z.log", "we[i]rd"}},
		{[]string{"a"}, []string{"a/", "a/b/", "a/b/two", "a/one"}},
		{[]string{"a/b"}, []string{"a/", "a/b/", "a/b/two"}},
		{[]string{"out/*.pt"}, []string{"out/", "out/x.pt", "out/y.pt"}},
		{[]string{"*/one", "a.txt"}, []string{"a/", "a.txt", "a/one"}},
		{[]string{"a", "a/one"}, []string{"a/", "a/b/", "a/b/two", "a/one"}},
		{[]string{"we[i]rd"}, []string{"we[i]rd"}},
		{[]string{"*.txt"}, []string{"a.txt"}},
	} {
		if got := paths(pack(t, dir, PackOptions{}, c.paths...).Manifest); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.paths, got, c.want)
		}
	}
	_, err := Pack(t.Context(), openRoot(t, dir), []string{"a", "nope", "out/*.zip"}, PackOptions{})
	var none *NoMatchError
	if !errors.As(err, &none) || !slices.Equal(none.Patterns, []string{"nope", "out/*.zip"}) {
		t.Errorf("%v, want the two that match nothing", err)
	}
	for _, p := range []string{"", "/etc/passwd", "../x", "a/../../x", "a/", "[", "./a"} {
		if _, err := Pack(t.Context(), openRoot(t, dir), []string{p}, PackOptions{}); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%q: %v, want ErrInvalid", p, err)
		}
	}
}

func TestPackEqualTreesHaveEqualHashes(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for _, n := range []string{"x", "y/z", "q"} {
		write(t, a, n, n)
	}
	for _, n := range []string{"q", "y/z", "x"} {
		write(t, b, n, n)
	}
	if err := os.Chtimes(filepath.Join(b, "x"), t0, t0); err != nil {
		t.Fatal(err)
	}
	if x, y := pack(t, a, PackOptions{}).Tree, pack(t, b, PackOptions{}).Tree; x != y {
		t.Errorf("%s and %s", x, y)
	}
	if err := os.Chmod(filepath.Join(b, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if x, y := pack(t, a, PackOptions{}).Tree, pack(t, b, PackOptions{}).Tree; x == y {
		t.Error("an executable bit makes no difference")
	}
}

func TestPackBounds(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a", strings.Repeat("a", 600))
	write(t, dir, "b", strings.Repeat("b", 600))
	root := openRoot(t, dir)
	if _, err := Pack(t.Context(), root, nil, PackOptions{Limit: 1199}); !errors.Is(err, offpeak.ErrTooLarge) {
		t.Errorf("over the limit: %v", err)
	}
	p, err := Pack(t.Context(), root, nil, PackOptions{Limit: 1200})
	if err != nil || p.Size() != 1200 {
		t.Errorf("at the limit: %v", err)
	}
	// A sparse file of a terabyte is refused before it is read.
	if err := os.Truncate(filepath.Join(dir, "a"), 1<<40); err == nil {
		if _, err := Pack(t.Context(), root, nil, PackOptions{Limit: offpeak.GiB}); !errors.Is(err, offpeak.ErrTooLarge) {
			t.Errorf("sparse: %v", err)
		}
	}
	deep := t.TempDir()
	if err := os.MkdirAll(filepath.Join(deep, strings.Repeat("d/", MaxDepth+1)), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Pack(t.Context(), openRoot(t, deep), nil, PackOptions{}); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("too deep: %v", err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Pack(done, root, nil, PackOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestPackNoticesChange(t *testing.T) {
	big := strings.Repeat("x", int(ChunkSize)) + strings.Repeat("y", int(ChunkSize)) + strings.Repeat("z", int(ChunkSize))
	for name, change := range map[string]func(file string) error{
		"grows":    func(f string) error { return os.WriteFile(f, []byte(big+"y"), 0o644) },
		"shrinks":  func(f string) error { return os.Truncate(f, int64(ChunkSize)+5) },
		"written":  func(f string) error { return os.WriteFile(f, []byte("y"+big[1:]), 0o644) },
		"replaced": func(f string) error { return errors.Join(os.WriteFile(f+".new", []byte("y"+big[1:]), 0o644), os.Rename(f+".new", f)) },
		"removed":  os.Remove,
		"linked":   func(f string) error { return errors.Join(os.Remove(f), os.Symlink("/etc/passwd", f)) },
	} {
		dir := t.TempDir()
		write(t, dir, "f", big)
		p := pack(t, dir, PackOptions{})
		if err := change(filepath.Join(dir, "f")); err != nil {
			t.Fatal(err)
		}
		remote := newMemory()
		_, err := Upload(t.Context(), remote, p, nil)
		var changed *ChangedError
		// Bytes that were appended are not part of what was packed.
		if name == "grows" {
			if err != nil {
				t.Errorf("%s between packing and sending: %v", name, err)
			}
		} else if !errors.Is(err, ErrChanged) || !errors.As(err, &changed) || changed.Path != "f" {
			t.Errorf("%s between packing and sending: %v", name, err)
		} else if len(remote.trees) != 0 {
			t.Errorf("%s: a tree was committed all the same", name)
		}
		if name == "removed" || name == "replaced" || name == "linked" {
			continue // the open file is still the one that was seen
		}
		write(t, dir, "f", big)
		_, err = Pack(t.Context(), openRoot(t, dir), []string{"f"}, PackOptions{Progress: func(done, total offpeak.Bytes) {
			if done == ChunkSize {
				if err := change(filepath.Join(dir, "f")); err != nil {
					t.Error(err)
				}
			}
		}})
		if !errors.Is(err, ErrChanged) {
			t.Errorf("%s while it is packed: %v", name, err)
		}
	}
}

func TestPackKeepsMemoryFlat(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(32<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	root := openRoot(t, dir)
	per := testing.AllocsPerRun(1, func() {
		if _, err := Pack(t.Context(), root, nil, PackOptions{}); err != nil {
			t.Error(err)
		}
	})
	if per > 1000 {
		t.Errorf("%v allocations for 32 chunks", per)
	}
}
