package postgres_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"offpeak"
	"offpeak/internal/require"
	"offpeak/store"
	"offpeak/store/postgres"
)

// A database whose disk is full refuses and does nothing by halves: what it
// acknowledged is there, and with room it goes on.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	require.Met(t, syscall.Mount("offpeak-test", dir, "tmpfs", 0, "size=12m,mode=777"), "root, to mount a small disk")
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for up := filepath.Dir(dir); up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o755); err != nil { // the server is another user
			t.Fatal(err)
		}
	}
	url := pg.Database(t)
	c := plain(t, url)
	owned := filepath.Join(dir, "owned")
	var folder string
	if err := c.QueryRow(t.Context(), `SELECT current_setting('data_directory')`).Scan(&folder); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(owned, 0o700); err != nil {
		t.Fatal(err)
	}
	if who := info.Sys().(*syscall.Stat_t); os.Chown(owned, int(who.Uid), int(who.Gid)) != nil {
		t.Fatal("the server's user can't own the small disk")
	}
	exec(t, c, `CREATE TABLESPACE small LOCATION '`+owned+`'`)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, url, postgres.Options{})
	bootstrap(t, s)
	exec(t, c, `ALTER TABLE jobs SET TABLESPACE small`)
	exec(t, c, `ALTER TABLE specs SET TABLESPACE small`)
	noise := rand.New(rand.NewPCG(1, 2))
	submit := func(i int) error {
		long := make([]byte, 4000)
		for k := range long {
			long[k] = byte('0' + noise.IntN(64)) // the server would pack less
		}
		spec := offpeak.Spec{Name: fmt.Sprint("job", i), Labels: map[string]string{"n": fmt.Sprint(i)},
			Task: offpeak.Task{Driver: "process", Command: []string{"/bin/true", string(long)}}}.WithDefaults()
		_, err := s.Submit(t.Context(), op(fmt.Sprint("op", i)), store.NewJob{ID: offpeak.JobID(fmt.Sprint("job_", i)), Account: "acct_a", Spec: spec})
		return err
	}
	acked := 0
	for ; acked < 20_000; acked++ {
		if err = submit(acked); err != nil {
			break
		}
	}
	if !errors.Is(err, offpeak.ErrStorage) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("after %d jobs Submit = %v, want a full disk", acked, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := submit(acked); err != nil {
		t.Fatalf("Submit once there is room: %v", err)
	}
	counts, err := s.CountJobs(t.Context(), "")
	if err != nil || counts[offpeak.JobQueued] != acked+1 {
		t.Errorf("%d jobs are stored, %d were acknowledged, %v", counts[offpeak.JobQueued], acked+1, err)
	}
	sound(t, s)
	exec(t, c, `ALTER TABLE jobs SET TABLESPACE pg_default`)
	exec(t, c, `ALTER TABLE specs SET TABLESPACE pg_default`)
	exec(t, c, `DROP TABLESPACE small`)
}
