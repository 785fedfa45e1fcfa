package blob

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"offpeak"
)

// memory is a Remote that can be told to fail.
type memory struct {
	mu      sync.Mutex
	blobs   map[offpeak.Hash][]byte
	trees   map[offpeak.Hash]bool
	calls   map[string]int
	uploads []offpeak.Hash
	// fail is asked before each call; it holds mu while it runs.
	fail func(call string, h offpeak.Hash) error
	// bend changes what a download returns.
	bend func(h offpeak.Hash, data []byte) []byte
}

func newMemory() *memory {
	return &memory{blobs: map[offpeak.Hash][]byte{}, trees: map[offpeak.Hash]bool{}, calls: map[string]int{}}
}

func (m *memory) enter(call string, h offpeak.Hash) error {
	m.calls[call]++
	if m.fail == nil {
		return nil
	}
	return m.fail(call, h)
}

func (m *memory) Missing(_ context.Context, hashes []offpeak.Hash) ([]offpeak.Hash, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.enter("missing", ""); err != nil {
		return nil, err
	}
	if len(hashes) > 1000 {
		return nil, fmt.Errorf("%d hashes: %w", len(hashes), offpeak.ErrTooLarge)
	}
	var out []offpeak.Hash
	for _, h := range hashes {
		if _, ok := m.blobs[h]; !ok {
			out = append(out, h)
		}
	}
	return out, nil
}

func (m *memory) Upload(_ context.Context, h offpeak.Hash, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.enter("upload", h); err != nil {
		return err
	}
	if Sum(data) != h {
		return offpeak.ErrHashMismatch
	}
	m.blobs[h] = append([]byte(nil), data...)
	m.uploads = append(m.uploads, h)
	return nil
}

func (m *memory) Commit(_ context.Context, tree offpeak.Hash) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.enter("commit", tree); err != nil {
		return err
	}
	data, ok := m.blobs[tree]
	if !ok {
		return offpeak.ErrBlobMissing
	}
	man, err := ParseManifest(data)
	if err != nil {
		return err
	}
	for _, h := range man.Chunks() {
		if _, ok := m.blobs[h]; !ok {
			return offpeak.ErrBlobMissing
		}
	}
	m.trees[tree] = true
	return nil
}

func (m *memory) Download(_ context.Context, h offpeak.Hash) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.enter("download", h); err != nil {
		return nil, err
	}
	data, ok := m.blobs[h]
	if !ok {
		return nil, offpeak.ErrNotFound
	}
	if m.bend != nil {
		data = m.bend(h, data)
	}
	return append([]byte(nil), data...), nil
}

// put stores bytes unseen, as a hostile uploader with a patched hub would.
func (m *memory) put(data []byte) offpeak.Hash {
	h := Sum(data)
	m.blobs[h] = data
	return h
}

func openRoot(t testing.TB, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	p := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func pack(t testing.TB, dir string, opts PackOptions, paths ...string) *Packed {
	t.Helper()
	p, err := Pack(context.Background(), openRoot(t, dir), paths, opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func paths(m Manifest) []string {
	out := []string{}
	for _, e := range m.Entries {
		p := e.Path
		if e.Kind == KindDir {
			p += "/"
		}
		out = append(out, p)
	}
	return out
}
