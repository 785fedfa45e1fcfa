package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// Folders of probes that were killed go, those of one under way and whatever
// else is there stay.
func TestProbesLeftBehindAreSwept(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	for name, age := range map[string]time.Duration{"probe-old": time.Hour, "probe-new": time.Second, "state": time.Hour} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(p, "inside"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "probe-file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sweepProbes(dir, now); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"probe-file", "probe-new", "state"}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
}
