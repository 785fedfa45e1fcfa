package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"offpeak"
	"offpeak/store/moving"
	"offpeak/wire"
)

// query asks a database for one value.
func query[T any](t *testing.T, c *pgx.Conn, text string) (v T) {
	t.Helper()
	if err := c.QueryRow(t.Context(), text).Scan(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func dial(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// refusedWith runs a command that must fail with a code and a word.
func refusedWith(t *testing.T, home string, code int, word string, args ...string) {
	t.Helper()
	have, stdout, stderr := once(t, home, args...)
	if have != code || !strings.Contains(stderr, word) || stdout != "" {
		t.Errorf("offpeak %s: exit code %d, want %d; said %q, want %q; printed %q", strings.Join(args, " "), have, code, stderr, word, stdout)
	}
	if strings.Contains(stderr, "verysecret") {
		t.Errorf("offpeak %s shows a password: %s", strings.Join(args, " "), stderr)
	}
}

// A grid moves to PostgreSQL with its blobs, is served by another hub there, backed
// up, brought back elsewhere, and moves home again.
func TestMigrate(t *testing.T) {
	home, input, shared, url := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "blobs"), pg.Database(t)
	if err := os.WriteFile(filepath.Join(input, "data"), []byte("carried"), 0o600); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(home, "hub")
	h := startHub(t, home)
	code, stdout, stderr := once(t, home, "submit", "--name", "kept", "--input", input, "--", "true")
	if code != 0 {
		t.Fatalf("submit: %s", stderr)
	}
	job := offpeak.JobID(strings.TrimSpace(stdout))
	backup := filepath.Join(home, "backup")
	if code, _, stderr := once(t, home, "backup", backup); code != 0 {
		t.Fatalf("backup: %s", stderr)
	}
	there := []string{"migrate", "--from", "sqlite:" + folder, "--to", url}
	refusedWith(t, home, 1, "in use", there...)
	h.stop()

	refusedWith(t, home, 2, "--from", "migrate", "--to", url)
	refusedWith(t, home, 2, "--to", "migrate", "--from", "sqlite:"+folder, "--to", "mysql://me:verysecret@db/offpeak")
	refusedWith(t, home, 2, "both SQLite", "migrate", "--from", "sqlite:"+folder, "--to", "sqlite:"+folder)
	refusedWith(t, home, 2, "pg_dump", "migrate", "--from", url, "--to", url)
	refusedWith(t, home, 2, "no database", "migrate", "--from", "sqlite:"+t.TempDir(), "--to", url)
	garbage := t.TempDir()
	if err := os.WriteFile(filepath.Join(garbage, "offpeak.db"), []byte(strings.Repeat("garbage", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	refusedWith(t, home, 1, "not an SQLite database", "migrate", "--from", "sqlite:"+garbage, "--to", url)
	refusedWith(t, home, 1, "not an SQLite database", "restore", garbage, "--data", filepath.Join(home, "new"))
	refusedWith(t, home, 2, "offpeak restore", "migrate", "--from", "sqlite:"+backup, "--to", url)
	refusedWith(t, home, 2, "holds no grid", "migrate", "--from", url, "--to", "sqlite:"+filepath.Join(home, "new"))
	refusedWith(t, home, 2, "holds a hub's state", "migrate", "--from", url, "--to", "sqlite:"+folder)
	refusedWith(t, home, 2, "--blobs", "migrate", "--from", url, "--to", "sqlite:"+filepath.Join(home, "new"), "--blobs", shared)
	refusedWith(t, home, 1, "--to", "migrate", "--from", "sqlite:"+folder, "--to", "postgres://me:verysecret@127.0.0.1:1/offpeak")

	if code, stdout, stderr = once(t, home, append(there, "--blobs", shared, "-o", "json")...); code != 0 {
		t.Fatalf("migrate: exit code %d: %s", code, stderr)
	}
	var out struct {
		Rows   int64
		Blobs  int64
		Tables []moving.Table
	}
	if err := json.Unmarshal([]byte(stdout), &out); err != nil || out.Rows < 5 || out.Blobs == 0 || len(out.Tables) < 20 || len(out.Tables[0].Checksum) != 64 {
		t.Errorf("migrate -o json: %v: %s", err, stdout)
	}
	refusedWith(t, home, 2, "holds a grid already", there...)

	// serves starts a hub and looks for the job and its blobs.
	serves := func(args ...string) *running {
		t.Helper()
		h := startHub(t, home, args...)
		d := direct(localFile(t, home))
		got, err := d.Job(t.Context(), job)
		if err != nil || got.Spec.Name != "kept" {
			t.Fatalf("the job: %+v, %v", got, err)
		}
		if _, err := (wire.Blobs{Direct: d}).Download(t.Context(), got.Spec.Task.Input); err != nil {
			t.Errorf("its input: %v", err)
		}
		if c, err := d.Check(t.Context()); err != nil || !c.OK {
			t.Errorf("check: %+v, %v", c, err)
		}
		return h
	}
	h = serves("--data", filepath.Join(home, "second"), "--db", url, "--blobs", shared)
	back := []string{"migrate", "--from", url, "--to", "sqlite:" + filepath.Join(home, "new")}
	refusedWith(t, home, 1, "error: hub hub_", back...)
	if _, err := os.Lstat(filepath.Join(home, "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a move that was refused leaves a data folder: %v", err)
	}
	second := filepath.Join(home, "backup2")
	if code, _, stderr := once(t, home, "backup", second); code != 0 {
		t.Fatalf("backup: %s", stderr)
	}
	h.stop()

	if code, stdout, stderr = once(t, home, back...); code != 0 || !strings.Contains(stdout, "each read back") || !strings.Contains(stdout, "--data "+filepath.Join(home, "new")+" --blobs '"+shared+"'\n") {
		t.Fatalf("migrate back: exit code %d: %s%s", code, stdout, stderr)
	}
	refusedWith(t, home, 1, "the grid's in "+shared, "hub", "--listen", "127.0.0.1:0", "--data", filepath.Join(home, "new"))
	serves("--data", filepath.Join(home, "new"), "--blobs", shared).stop()

	elsewhere := pg.Database(t)
	refusedWith(t, home, 2, "holds a grid already", "restore", second, "--data", filepath.Join(home, "third"), "--db", url)
	refusedWith(t, home, 2, "--db", "restore", second, "--data", filepath.Join(home, "third"), "--db", "sqlite:"+folder)
	if code, stdout, stderr = once(t, home, "restore", second, "--data", filepath.Join(home, "third"), "--db", elsewhere, "--blobs", shared); code != 0 || !strings.Contains(stdout, "--db") {
		t.Fatalf("restore: exit code %d: %s%s", code, stdout, stderr)
	}
	refusedWith(t, home, 1, "--blobs-moved", "hub", "--listen", "127.0.0.1:0", "--data", filepath.Join(home, "third"), "--db", elsewhere, "--blobs", shared)
	serves("--data", filepath.Join(home, "third"), "--db", elsewhere, "--blobs", shared, "--blobs-moved").stop()
	if n := query[int64](t, dial(t, elsewhere), `SELECT count(*) FROM events WHERE type = 'hub.restored'`); n != 1 {
		t.Errorf("%d events tell of the restore", n)
	}
}

// Ctrl-C leaves the target empty.
func TestMigrateInterrupted(t *testing.T) {
	home, url := t.TempDir(), pg.Database(t)
	folder := filepath.Join(home, "hub")
	startHub(t, home).stop()
	args := []string{"migrate", "--from", "sqlite:" + folder, "--to", url}
	// The schema is made first, so that there is a table to hold.
	elsewhere := filepath.Join(home, "elsewhere")
	refusedWith(t, home, 2, "holds no grid", "migrate", "--from", url, "--to", "sqlite:"+elsewhere)
	holder, watch := dial(t, url), dial(t, url)
	tx, err := holder.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE audit`); err != nil {
		t.Fatal(err)
	}
	cmd := offpeakCommand(t, home, args...)
	said := &lines{more: make(chan struct{}, 1)}
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); query[int64](t, watch, `SELECT count(*) FROM pg_locks WHERE NOT granted`) == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("migrate does not come to the table that is held: %s", said)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), "interrupted") {
		t.Errorf("migrate, interrupted: %v: %s", err, said)
	}
	if err := tx.Rollback(t.Context()); err != nil && !errors.Is(err, syscall.EPIPE) {
		t.Fatal(err)
	}
	if n := query[int64](t, watch, `SELECT (SELECT count(*) FROM accounts) + (SELECT count(*) FROM audit)`); n != 0 {
		t.Errorf("the target has %d rows", n)
	}
	if code, _, stderr := once(t, home, args...); code != 0 {
		t.Errorf("migrate again: exit code %d: %s", code, stderr)
	}
}
