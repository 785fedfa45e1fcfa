package sqlite_test

import (
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/store/sqlite"
)

func TestSecondHubIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	open(t, path, sqlite.Options{})
	_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	locked, ok := errors.AsType[*sqlite.LockedError](err)
	if !ok || locked.PID != os.Getpid() || locked.Path != path {
		t.Fatalf("the second Open = %v, want a *LockedError with pid %d", err, os.Getpid())
	}
	if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("the error %q names neither file nor holder", err)
	}
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := newGrid(t, s)
	j, err := g.submit()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, path, sqlite.Options{})
	if got, err := again.Job(t.Context(), account, j.ID); err != nil || got.State != offpeak.JobQueued {
		t.Errorf("Job after reopening = %+v, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the store's mode = %v, %v; want 0600", info.Mode(), err)
	}
}

// made writes a store with a few hundred jobs and closes it.
func made(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, newGrid(t, s), 300)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDamagedFilesAreRefused(t *testing.T) {
	whole, err := os.ReadFile(made(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		bend func(b []byte) []byte
	}{
		{"half of it", func(b []byte) []byte { return b[:len(b)/2] }},
		{"its last page cut off", func(b []byte) []byte { return b[:len(b)-4096] }},
		{"fifty bytes", func(b []byte) []byte { return b[:50] }},
		{"text", func([]byte) []byte { return []byte(strings.Repeat("not a database ", 500)) }},
		{"a page of noise", func(b []byte) []byte {
			for i := range 4096 {
				b[8*4096+i] = byte(i*7 + 1)
			}
			return b
		}},
		{"every interior page damaged", func(b []byte) []byte {
			for at := 4096; at+4096 <= len(b); at += 4096 {
				b[at] ^= 0xff
			}
			return b
		}},
	} {
		path := filepath.Join(t.TempDir(), "store.db")
		bad := c.bend(slices.Clone(whole))
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if _, ok := errors.AsType[*sqlite.CorruptError](err); !ok {
			t.Errorf("%s: Open = %v, want a *CorruptError", c.name, err)
		}
		if err == nil {
			s.Close()
		}
		if after, err := os.ReadFile(path); err != nil || !slices.Equal(after, bad) {
			t.Errorf("%s: Open changed the damaged file (%v)", c.name, err)
		}
	}
}

// raw opens a store's file beside the store.
func raw(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_pragma=ignore_check_constraints(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := made(t)
	if _, err := raw(t, path).Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`); err != nil {
		t.Fatal(err)
	}
	_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if e, ok := errors.AsType[*sqlite.SchemaError](err); !ok || e.Have != 99 {
		t.Errorf("Open of a newer store = %v, want a *SchemaError", err)
	}
}

func TestRestore(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	path, copied := filepath.Join(dir, "store.db"), filepath.Join(dir, "backup.db")
	s, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := newGrid(t, s)
	kept, err := g.submit()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Backup(ctx, copied); err != nil {
		t.Fatal(err)
	}
	for range 5 { // each raises the node's revision beyond what the backup has
		if err := g.cycle(); err != nil {
			t.Fatal(err)
		}
	}
	seen, err := s.Node(ctx, "", nodeID)
	if err != nil {
		t.Fatal(err)
	}
	lost, err := g.submit()
	if err != nil {
		t.Fatal(err)
	}
	last, err := s.LastEvent(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlite.Restore(ctx, copied, path, sqlite.RestoreOptions{Force: true}); !errors.Is(err, offpeak.ErrUnavailable) {
		t.Errorf("Restore under a running hub = %v, want a *LockedError", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sqlite.Restore(ctx, copied, path, sqlite.RestoreOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Restore over a store = %v, want %v", err, fs.ErrExist)
	}
	if err := sqlite.Restore(ctx, copied, path, sqlite.RestoreOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, sqlite.Options{})
	if _, err := s.Job(ctx, "", kept.ID); err != nil {
		t.Errorf("Job from before the backup: %v", err)
	}
	if _, err := s.Job(ctx, "", lost.ID); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("Job from after the backup = %v, want not found", err)
	}
	if n, err := s.Node(ctx, "", nodeID); err != nil || n.Revision <= seen.Revision {
		t.Errorf("the node's revision is %d, %v: its agent has followed %d and would ignore it", n.Revision, err, seen.Revision)
	}
	ev, err := s.Events(ctx, "", last, 10)
	if err != nil || len(ev) != 1 || ev[0].Type != "hub.restored" || ev[0].Cursor <= last {
		t.Errorf("Events after the newest cursor of the lost store = %+v, %v", ev, err)
	}
	if bad, err := s.Check(ctx); err != nil || len(bad) != 0 {
		t.Errorf("Check = %v, %v", bad, err)
	}
	// A second restore of the backup uses no cursor of the first again.
	first := ev[0].Cursor
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	later := func() time.Time { return time.Now().Add(time.Minute) }
	if err := sqlite.Restore(ctx, copied, path, sqlite.RestoreOptions{Force: true, Now: later}); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, sqlite.Options{})
	if next, err := s.LastEvent(ctx); err != nil || next < first+1<<24 || next > 1<<53 {
		t.Errorf("restored a minute later the newest event is %d, %v; the first time it was %d", next, err, first)
	}
	// What is no backup is not put in place.
	noise := filepath.Join(dir, "noise")
	if err := os.WriteFile(noise, []byte(strings.Repeat("noise", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{noise, empty, filepath.Join(dir, "nowhere")} {
		target := filepath.Join(dir, "other.db")
		if err := sqlite.Restore(ctx, bad, target, sqlite.RestoreOptions{}); err == nil {
			t.Errorf("Restore of %s succeeded", bad)
		}
		if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Restore of %s left %s (%v)", bad, target, err)
		}
	}
}

// TestStatesMatchSchema compares the CHECKs of the schema with the tables.
func TestStatesMatchSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	open(t, path, sqlite.Options{})
	db := raw(t, path)
	list := func(states ...string) string { return "IN ('" + strings.Join(states, "', '") + "')" }
	for _, c := range []struct{ table, column, want string }{
		{"jobs", "state", list(names(offpeak.JobStates())...)},
		{"leases", "state", list(names(offpeak.LeaseStates())...)},
		{"nodes", "liveness", list(names(offpeak.Livenesses())...)},
		{"nodes", "intent", list(names(offpeak.Intents())...)},
		{"nodes", "availability", list(names(offpeak.Availabilities())...)},
		{"node_availability", "availability", list(names(offpeak.Availabilities())...)},
	} {
		var ddl string
		if err := db.QueryRow(`SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?`, c.table).Scan(&ddl); err != nil {
			t.Fatal(err)
		}
		if want := "CHECK (" + c.column + " " + c.want + ")"; !strings.Contains(ddl, want) {
			t.Errorf("table %s lacks %s", c.table, want)
		}
	}
	// The partial indexes and CHECKs repeat what the tables say of the states.
	var all string
	if err := db.QueryRow(`SELECT group_concat(sql, ' ') FROM sqlite_schema`).Scan(&all); err != nil {
		t.Fatal(err)
	}
	pick := func(keep func(offpeak.LeaseState) bool) string {
		var out []string
		for _, s := range offpeak.LeaseStates() {
			if keep(s) {
				out = append(out, string(s))
			}
		}
		return list(out...)
	}
	for _, want := range []string{
		"WHERE state " + pick(func(s offpeak.LeaseState) bool { return !s.Terminal() }),
		"(ended_at <> 0) = (state " + pick(offpeak.LeaseState.Terminal),
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the schema lacks %s", want)
		}
	}
}

func names[S ~string](states []S) []string {
	out := make([]string, len(states))
	for i, s := range states {
		out[i] = string(s)
	}
	return out
}

// TestStartWithManyJobs holds the start of a hub with many jobs to bounds
// that only a wrong plan or a leak would break.
func TestStartWithManyJobs(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 5,000 jobs")
	}
	const jobs = 5_000
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, newGrid(t, s), jobs)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s = open(t, path, sqlite.Options{})
	n, shared := 0, map[*offpeak.Requirements]bool{}
	for q, err := range s.Queue(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		shared[q.Requirements] = true
	}
	took := time.Since(began)
	t.Logf("opened and read %d jobs in %v", n, took)
	if n != jobs || len(shared) != 1 || took > 5*time.Second {
		t.Errorf("read %d jobs with %d requirements in %v", n, len(shared), took)
	}
}

var _ store.Store = (*sqlite.Store)(nil)

// A hub was killed in the middle of a checkpoint: the first page says the new
// length, the last pages are still in the log only.
func TestKilledInACheckpoint(t *testing.T) {
	path := made(t)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, path, sqlite.Options{})
	g := &grid{Store: s}
	g.n.Store(1_000_000) // ids that made did not use
	fill(t, g, 300)
	last, err := g.submit()
	if err != nil {
		t.Fatal(err)
	}
	crash := filepath.Join(t.TempDir(), "store.db")
	for _, end := range []string{"", "-wal"} {
		data, err := os.ReadFile(path + end)
		if err != nil {
			t.Fatal(err)
		}
		if end == "" {
			data = data[:before.Size()]
			binary.BigEndian.PutUint32(data[28:], uint32(before.Size()/4096)+40)
		}
		if err := os.WriteFile(crash+end, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again := open(t, crash, sqlite.Options{})
	if _, err := again.Job(t.Context(), account, last.ID); err != nil {
		t.Errorf("the last acknowledged job: %v", err)
	}
	if found, err := again.Check(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("Check = %v, %v", found, err)
	}
}
