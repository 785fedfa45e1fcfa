package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"offpeak"
	"offpeak/internal/require"
	"offpeak/store/sqlite"
)

// TestFullDisk fills a small file system and asks that nothing acknowledged is
// lost, nothing is half done, and that the store works again once there is room.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	require.Met(t, syscall.Mount("offpeak-test", dir, "tmpfs", 0, "size=2m"), "root, to mount a small disk")
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(context.Background(), filepath.Join(dir, "store.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // before the file system goes
	g := newGrid(t, s)
	var acked []offpeak.JobID
	for range 20_000 {
		j, submitErr := g.submit()
		if submitErr != nil {
			err = submitErr
			break
		}
		acked = append(acked, j.ID)
	}
	if !errors.Is(err, offpeak.ErrStorage) {
		t.Fatalf("after %d jobs Submit = %v, want storage", len(acked), err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	j, err := g.submit()
	if err != nil {
		t.Fatalf("Submit once there is room: %v", err)
	}
	acked = append(acked, j.ID)
	counts, err := s.CountJobs(context.Background(), "")
	if err != nil || counts[offpeak.JobQueued] != len(acked) {
		t.Errorf("%d jobs are stored, %d were acknowledged, %v", counts[offpeak.JobQueued], len(acked), err)
	}
	if bad, err := s.Check(context.Background()); err != nil || len(bad) != 0 {
		t.Errorf("Check = %v, %v", bad, err)
	}
}
