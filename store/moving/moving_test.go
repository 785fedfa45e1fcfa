package moving_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"offpeak"
	"offpeak/internal/pgtest"
	"offpeak/store"
	"offpeak/store/moving"
	"offpeak/store/postgres"
	"offpeak/store/sqlite"
)

var pg pgtest.Shared

func TestMain(m *testing.M) { os.Exit(pg.Around(m).Run()) }

// opened closes a store with the test.
func opened[S interface{ Close() error }](t *testing.T, s S, err error) S {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func openFile(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	return opened(t, s, err)
}

func openServer(t *testing.T, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, postgres.Options{Backup: moving.Backup})
	return opened(t, s, err)
}

// owned is the URL of a new database of a user who may do nothing else.
func owned(t *testing.T) string {
	t.Helper()
	at := pg.Database(t)
	server(t, at, `CREATE ROLE owner LOGIN`, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO owner', current_database()); END $$`)
	return strings.Replace(at, "//postgres@", "//owner@", 1)
}

// server runs statements on a database.
func server(t *testing.T, url string, statements ...string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	for _, s := range statements {
		if _, err := c.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// asked is the one value that a query on a database returns.
func asked[T any](t *testing.T, url, query string) (v T) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if err := c.QueryRow(t.Context(), query).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// inFile runs statements on a file that is not open elsewhere.
func inFile(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// full makes a store in a file with rows in every table: the least and the greatest
// of what a column holds, NULLs, nothing, and what is hard to carry.
func full(t *testing.T) *sqlite.Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "offpeak.db")
	if err := openFile(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	hash := strings.Repeat("a", 64)
	inFile(t, path,
		`INSERT INTO meta VALUES ('events_pruned', '7'), ('generation', '2'), ('Ä', ''), ('z', 'x')`,
		`INSERT INTO accounts VALUES ('acct_1', 'lab', 1000, 1000, 9223372036854775807, 10, 1, 8), ('acct_2', 'Ünï 名前 😀', 0, 0, 0, 0, 1, 0)`,
		`INSERT INTO members VALUES ('m1', 'acct_1', 'ada', 'admin', 1)`,
		`INSERT INTO tokens (id, account, member, node, role, name, secret_hash, uses_left, created_at, expires_at) VALUES ('t1', 'acct_1', 'm1', '', 'admin', '', zeroblob(32), -1, 1, 2)`,
		fmt.Sprintf(`INSERT INTO specs VALUES ('%s', '{"a":"\u0000\\"}', 'process', '{}', 9, 'fastest')`, hash),
		fmt.Sprintf(`INSERT INTO jobs (seq, id, account, grp, idx, spec, name, priority, state, exit_code, detail, submitted_at, ended_at) VALUES
			(3, 'j3', 'acct_1', 'j3', 0, '%[1]s', 'a', -5, 'failed', -1, 'tab	and
line', 1, 2), (5, 'j5', 'acct_1', 'j5', 0, '%[1]s', 'b', 5, 'queued', NULL, '', 1, 0)`, hash),
		fmt.Sprintf(`INSERT INTO job_groups (id, account, spec, indexes, sweep, at_once, size, members, written, todo, submitted_at) VALUES
			('g1', 'acct_1', '%[1]s', '0-9', '', 0, 10, 10, 3, 1, 1), ('g2', 'acct_1', '%[1]s', '3,7', '[{"name":"lr","values":["0.1"]}]', 9223372036854775807, 5, 2, 2, 0, 1)`, hash),
		`UPDATE jobs SET awaited = 1 WHERE id = 'j5'`,
		`INSERT INTO weights VALUES (2, 1, 'acct_1', 'm1', '{"vram":8}'), (9223372036854775807, 3, '', '', '{}')`,
		fmt.Sprintf(`INSERT INTO jobs (seq, id, account, grp, idx, spec, name, priority, state, submitted_at, parents, waits) VALUES (6, 'j6', 'acct_1', 'pipe', 1, '%s', 'c', 0, 'blocked', 1, 2, 1)`, hash),
		`INSERT INTO job_after VALUES ('j6', 'acct_1', 0, 'j5', 1, '', '', ''), ('j6', 'acct_1', 1, 'j3', 1, 'in/j3', 'failed', 'tree')`,
		`INSERT INTO job_labels VALUES ('k', 'v', 3), ('k', 'V', 5), ('K', 'v', 5)`,
		`INSERT INTO nodes (id, account, name, key, liveness, intent, availability, inventory, claimed_cpu, claimed_memory, claimed_disk, proven_cpu, capacity_cpu, capacity_memory, capacity_disk, timeout, enrolled_at)
			VALUES ('n1', 'acct_1', 'tower', X'', 'online', 'open', 'available', '{}', 1, 2, 3, NULL, 1, 2, 3, 4, 5), ('n2', 'acct_1', 'box', X'00FF', 'offline', 'closed', 'in_use', '{}', 1, 2, 3, 7, 1, 2, 3, 4, 5)`,
		`UPDATE nodes SET ask_gpu = NULL, ask_cpu = NULL, ask_due = 5, ask_revision = 7 WHERE id = 'n2'`,
		`INSERT INTO node_devices VALUES ('n1', 'GPU-0', 'nvidia', 'RTX', 24, 0)`,
		// The same row twice: it has no key.
		`INSERT INTO node_availability VALUES ('n1', 2, 'in_use', 'owner'), ('n1', 1, 'available', ''), ('n1', 2, 'in_use', 'owner')`,
		`INSERT INTO plans VALUES ('acct_1', '', '{"a":1}', 1), ('acct_1', 'n1', '{}', 2)`,
		`INSERT INTO asks VALUES ('n1', 0, 'acct_1', 1, 400000, 0), ('n1', 3, 'acct_1', 2, NULL, NULL)`,
		`INSERT INTO candles VALUES ('nvidia', 'RTX', 24, 'eu', 'hour', 1, 2, 3, 4, 5, 6, 7, 8, 9), ('', '', 0, '', 'minute', 1, 2, 3, 4, 5, 6, 7, 8, 9)`,
		`INSERT INTO leases (id, job, account, attempt, node, state, frozen, cpu, memory, disk, price, expires_at, grace, time_limit, offered_at, ended_at) VALUES
			('l1', 'j3', 'acct_1', 1, 'n1', 'failed', 1, 1, 2, 3, 4, 5, 6, 7, 8, 9), ('l2', 'j3', 'acct_1', 2, 'n1', 'lost', 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)`,
		`UPDATE leases SET term = 2, outbid_by = 'j5', outbid_price = 9 WHERE id = 'l2'`,
		`INSERT INTO lease_devices VALUES ('l1', 'n1', 'GPU-0', 0)`,
		`INSERT INTO lease_terms VALUES ('l1', 1, 400000, 1, 0, 0)`,
		`INSERT INTO balances VALUES ('', 'deposits', -9223372036854775807), ('acct_1', 'available', 9223372036854775807), ('acct_1', 'held', 0)`,
		`INSERT INTO transactions VALUES (6, 'deposit/1', 'deposit', 1, '', '', 0, 0, '1', 0), (2, 'hold/l1/1', 'hold', 1, 'j3', 'l1', 1, 1, '', 0)`,
		`INSERT INTO entries VALUES ('deposit/1', '', 'deposits', -5), ('deposit/1', 'acct_1', 'available', 5)`,
		`INSERT INTO lease_money (lease, job, held, due_at, ledger) VALUES ('l1', 'j3', 5, 1, '{"a":1}')`,
		`INSERT INTO receipts VALUES ('l1', 1, 'j3', 'acct_1', 'acct_2', 5, '{}', 'n1', 7, 4)`,
		`INSERT INTO checkpoints VALUES (4, 'j3', 'acct_1', 1, 'l1', 'c', 'tree', 1, 2, 3)`,
		`INSERT INTO log_segments (lease, n, account, stream, start, length, data, blob, at) VALUES ('l1', 1, 'acct_1', 'stdout', 0, 3, X'610062', '', 1), ('l1', 2, 'acct_1', 'stdout', 3, 3, NULL, 'b', 1)`,
		`INSERT INTO blobs VALUES ('tree', 'acct_1', 10, 1, 0)`,
		`INSERT INTO trees VALUES ('acct_1', 'tree')`,
		`INSERT INTO tree_chunks VALUES ('acct_1', 'tree', 'chunk')`,
		`INSERT INTO operations VALUES ('op1', 'acct_1', zeroblob(32), '{}', 1)`,
		`INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data) VALUES (8, 1, 'job.queued', 'acct_1', 'j3', 0, '', '', '', ''), (9, 1, 'job.queued', 'acct_1', 'j5', 0, '', '', '', '{"a":1}')`,
		`INSERT INTO audit VALUES (6, 1, 'acct_1', '', '', '', '', 'verb', '', 'done')`,
		// Rows that were given out and are gone.
		`UPDATE sqlite_sequence SET seq = 1000 WHERE name IN ('jobs', 'checkpoints', 'audit', 'events', 'transactions')`,
	)
	return openFile(t, path)
}

func all(t *testing.T, s store.Store, after int64) []offpeak.Event {
	t.Helper()
	ev, err := s.Events(t.Context(), "", after, 100)
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// submit stores a job, which writes an event and an audit row.
func submit(t *testing.T, s store.Store, id string) {
	t.Helper()
	spec := offpeak.Spec{Task: offpeak.Task{Driver: "process", Command: []string{"true"}}}.WithDefaults()
	_, err := s.Submit(t.Context(), store.Op{ID: offpeak.OpID("op-" + id), Actor: offpeak.Actor{Account: "acct_1", Member: "m1"}, Digest: [32]byte{1}},
		store.NewJob{ID: offpeak.JobID(id), Account: "acct_1", Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
}

// To PostgreSQL and back: every row of every table is the same, and whatever is
// counted goes on.
func TestThereAndBack(t *testing.T) {
	source, url := full(t), owned(t)
	target := openServer(t, url)
	steps := map[string]moving.Step{}
	out, err := moving.ToPostgres(t.Context(), source, target, func(s moving.Step) { steps[fmt.Sprint(s.Table, s.Checking)] = s })
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range out {
		if table.Rows == 0 {
			t.Errorf("table %s is not tried: it has no rows", table.Name)
		}
		for _, checking := range []bool{false, true} {
			if s := steps[fmt.Sprint(table.Name, checking)]; s.Done != table.Rows || s.Of != table.Rows {
				t.Errorf("progress of %s ended with %+v, want %d rows", table.Name, s, table.Rows)
			}
		}
	}
	if n := asked[int64](t, url, `SELECT count(*) FROM leases WHERE frozen`); n != 1 {
		t.Errorf("%d leases are frozen, want 1", n)
	}
	before := all(t, source, 7)
	if got := all(t, target, 7); !cmp.Equal(got, before) || len(got) != 2 {
		t.Errorf("events there: %v", cmp.Diff(before, got))
	}

	back := filepath.Join(t.TempDir(), "back.db")
	again, err := moving.ToSQLite(t.Context(), target, back, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(out, again); diff != "" {
		t.Errorf("back again, tables differ: %s", diff)
	}

	home := openFile(t, back)
	submit(t, home, "job_home")
	if err := home.Close(); err != nil {
		t.Fatal(err)
	}
	// A number goes on where the engine that gave it out would have.
	inFile(t, back, `CREATE TABLE found (n INTEGER CHECK (n = 1001)) STRICT`, `INSERT INTO found SELECT seq FROM jobs WHERE id = 'job_home' UNION ALL SELECT max(id) FROM audit`)

	// A follower that has read all goes on with what is new, there and back.
	cursor := before[1].Cursor
	submit(t, target, "job_there")
	news := all(t, target, cursor)
	if len(news) == 0 || news[0].Job != "job_there" || news[0].Cursor <= 1000 {
		t.Fatalf("after the move a follower reads %+v", news)
	}
	cursor = news[len(news)-1].Cursor
	if n := asked[int64](t, url, `SELECT seq FROM jobs WHERE id = 'job_there'`); n != 1001 {
		t.Errorf("the next job is number %d, want 1001", n)
	}
	if n := asked[int64](t, url, `SELECT max(id) FROM audit`); n != 1001 {
		t.Errorf("the next audit row is number %d, want 1001", n)
	}
	// What comes while rows are copied is in no table of the copy.
	last, meanwhile := filepath.Join(t.TempDir(), "last.db"), false
	if _, err := moving.ToSQLite(t.Context(), target, last, func(s moving.Step) {
		if s.Table == "jobs" && !meanwhile {
			meanwhile = true
			submit(t, target, "job_late")
		}
	}); err != nil {
		t.Fatal(err)
	}
	home = openFile(t, last)
	if news := all(t, home, cursor); len(news) > 0 {
		t.Errorf("the copy has of what came meanwhile: %+v", news)
	}
	submit(t, home, "job_back")
	news = all(t, home, cursor)
	if len(news) == 0 || news[0].Job != "job_back" {
		t.Fatalf("after the way back a follower reads %+v", news)
	}
}

// Where rows are in a PostgreSQL already whose transactions are younger, cursors
// jump beyond them all the same.
func TestCursorsGoOn(t *testing.T) {
	source, url := full(t), pg.Database(t)
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	const late = int64(1) << 50
	inFile(t, source.Path(), fmt.Sprintf(`INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data) VALUES (%d, 1, 'x', '', '', 0, '', '', '', '')`, late))
	source, target := openFile(t, source.Path()), openServer(t, url)
	if _, err := moving.ToPostgres(t.Context(), source, target, nil); err != nil {
		t.Fatal(err)
	}
	if last, err := target.LastEvent(t.Context()); err != nil || last != late {
		t.Errorf("the newest event there is %d, %v; want %d", last, err, late)
	}
	submit(t, target, "job_new")
	if news := all(t, target, late); len(news) == 0 || news[0].Job != "job_new" || news[0].Cursor > late+math.MaxUint32 {
		t.Errorf("a follower reads %+v", news)
	}
}

// What PostgreSQL can't hold in a text is replaced, counted and said.
func TestTextsAreMended(t *testing.T) {
	source, url := full(t), pg.Database(t)
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	inFile(t, source.Path(), `UPDATE jobs SET detail = 'a' || char(0) || 'b', reason = CAST(X'66FF' AS TEXT) WHERE id = 'j3'`)
	out, err := moving.ToPostgres(t.Context(), openFile(t, source.Path()), openServer(t, url), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range out {
		if want := map[string]int64{"jobs": 2}[table.Name]; table.Mended != want {
			t.Errorf("%d texts of %s were mended, want %d", table.Mended, table.Name, want)
		}
	}
	if got := asked[string](t, url, `SELECT detail || reason FROM jobs WHERE id = 'j3'`); got != "a\uFFFDbf\uFFFD" {
		t.Errorf("the texts became %q", got)
	}
}

// empty fails the test unless a database has no rows of a grid, and counts from 1.
func empty(t *testing.T, url string) {
	t.Helper()
	for _, table := range []string{"meta", "accounts", "jobs", "events", "audit"} {
		if n := asked[int64](t, url, `SELECT count(*) FROM `+table); n != 0 {
			t.Errorf("table %s has %d rows", table, n)
		}
	}
	if asked[bool](t, url, `SELECT is_called OR last_value <> 1 FROM jobs_seq_seq`) {
		t.Error("jobs are counted from somewhere else")
	}
	if n := asked[int64](t, url, `SELECT event_epoch FROM grid`); n != 0 {
		t.Errorf("event_epoch = %d", n)
	}
}

// Whatever fails leaves the target as empty as it was, and the source as it was; the
// next try succeeds.
func TestFailureLeavesNothing(t *testing.T) {
	source, url := full(t), pg.Database(t)
	target := openServer(t, url)
	for _, tt := range []struct {
		name          string
		before, after []string
		cancel        bool
		check         func(error) bool
	}{
		{name: "interrupted", cancel: true, check: func(err error) bool { return errors.Is(err, context.Canceled) }},
		{name: "a row that is refused", before: []string{`ALTER TABLE audit ADD CONSTRAINT no CHECK (verb <> 'verb')`}, after: []string{`ALTER TABLE audit DROP CONSTRAINT no`},
			check: func(err error) bool { return errors.Is(err, offpeak.ErrConflict) }},
		{name: "a row that is changed", before: []string{
			`CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.name := NEW.name || '!'; RETURN NEW; END $$`,
			`CREATE TRIGGER change BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION change()`}, after: []string{`DROP TRIGGER change ON accounts`},
			check: func(err error) bool {
				e, ok := errors.AsType[*moving.DifferentError](err)
				return ok && e.Table == "accounts" && e.Source.Rows == e.There.Rows
			}},
		{name: "a row that is lost", before: []string{
			`CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`,
			`CREATE TRIGGER lose BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION lose()`}, after: []string{`DROP TRIGGER lose ON audit`},
			check: func(err error) bool {
				e, ok := errors.AsType[*moving.DifferentError](err)
				return ok && e.Table == "audit" && e.There.Rows == 0
			}},
		{name: "a column that only the target has", before: []string{`ALTER TABLE jobs ADD COLUMN more BIGINT NOT NULL DEFAULT 0`}, after: []string{`ALTER TABLE jobs DROP COLUMN more`}, check: unknown("more")},
		{name: "a column that the target lacks", before: []string{`ALTER TABLE jobs RENAME COLUMN not_before TO later`}, after: []string{`ALTER TABLE jobs RENAME COLUMN later TO not_before`}, check: unknown("column")},
		{name: "a column of another kind", before: []string{`ALTER TABLE members ALTER COLUMN name TYPE bytea USING ''`}, after: []string{`ALTER TABLE members ALTER COLUMN name TYPE TEXT COLLATE "C" USING ''`}, check: unknown("name")},
		{name: "a table that only the target has", before: []string{`CREATE TABLE more (a BIGINT)`}, after: []string{`DROP TABLE more`}, check: unknown("more")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server(t, url, tt.before...)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := moving.ToPostgres(ctx, source, target, func(s moving.Step) {
				if tt.cancel && s.Table == "audit" {
					cancel()
				}
			})
			if err == nil || !tt.check(err) {
				t.Errorf("ToPostgres = %v", err)
			}
			empty(t, url)
			server(t, url, tt.after...)
		})
	}
	if _, err := moving.ToPostgres(t.Context(), source, target, nil); err != nil {
		t.Errorf("ToPostgres again = %v", err)
	}
	full := new(moving.NotEmptyError)
	if _, err := moving.ToPostgres(t.Context(), source, target, nil); !errors.As(err, &full) || !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("ToPostgres over rows = %v", err)
	}
}

func unknown(what string) func(error) bool {
	return func(err error) bool {
		e, ok := errors.AsType[*moving.SchemaError](err)
		return ok && strings.Contains(e.Where, what)
	}
}

// The same on the way to a file.
func TestFailureLeavesNoFile(t *testing.T) {
	url := pg.Database(t)
	source := openServer(t, url)
	if _, err := moving.ToPostgres(t.Context(), full(t), source, nil); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "offpeak.db")
	files := func() (names []string) {
		found, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if f.Name() != "offpeak.db.lock" {
				names = append(names, f.Name())
			}
		}
		return names
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := moving.ToSQLite(ctx, source, path, func(s moving.Step) {
		if s.Checking {
			cancel()
		}
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("ToSQLite, interrupted = %v", err)
	}
	server(t, url, `CREATE TABLE more (a BIGINT)`)
	if _, err := moving.ToSQLite(t.Context(), source, path, nil); err == nil || !unknown("more")(err) {
		t.Errorf("ToSQLite of a table that is not known = %v", err)
	}
	if left := files(); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	server(t, url, `DROP TABLE more`)
	if _, err := moving.ToSQLite(t.Context(), source, path, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := moving.ToSQLite(t.Context(), source, path, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("ToSQLite over a file = %v", err)
	}
	if got := files(); !cmp.Equal(got, []string{"offpeak.db"}) {
		t.Errorf("files are there: %v", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	hub := openFile(t, filepath.Join(dir, "other.db"))
	locked := new(sqlite.LockedError)
	if _, err := moving.ToSQLite(t.Context(), source, hub.Path(), nil); !errors.As(err, &locked) {
		t.Errorf("ToSQLite where a hub is at work = %v", err)
	}
}

// A newer schema may hold what this binary does not know.
func TestNewerSchemaStays(t *testing.T) {
	url := pg.Database(t)
	openServer(t, url)
	server(t, url, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)`)
	newer := openServer(t, url)
	refused := new(postgres.RefusedError)
	if err := newer.Backup(t.Context(), filepath.Join(t.TempDir(), "b")); !errors.As(err, &refused) {
		t.Errorf("Backup of a newer schema = %v", err)
	}
	if _, err := moving.ToPostgres(t.Context(), full(t), newer, nil); !errors.As(err, &refused) {
		t.Errorf("ToPostgres into a newer schema = %v", err)
	}
}

// A backup is of one moment while hubs write on; brought back, its store is a new
// generation: cursors, revisions and an event tell.
func TestBackupComesBack(t *testing.T) {
	ctx := t.Context()
	url := pg.Database(t)
	s := openServer(t, url)
	if _, err := s.Bootstrap(ctx, offpeak.Account{ID: "acct_1", Name: "lab"}, offpeak.Member{ID: "m1", Name: "root", Role: offpeak.RoleAdmin},
		offpeak.Token{ID: "t1", Account: "acct_1", Member: "m1", Role: offpeak.RoleAdmin, SecretHash: make([]byte, 32), UsesLeft: -1, ExpiresAt: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	// Old enough that its cursors are beyond where a restore begins at the earliest.
	server(t, url, `UPDATE grid SET event_epoch = event_epoch + (CAST(1 AS BIGINT) << 34)`)
	submit(t, s, "job_before")
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { done <- n }()
		for {
			select {
			case <-stop:
				return
			default:
				submit(t, s, fmt.Sprintf("job_%04d", n))
				n++
			}
		}
	}()
	dir := t.TempDir()
	var backups []string
	for i := range 3 {
		path := filepath.Join(dir, fmt.Sprint("backup", i))
		if err := s.Backup(ctx, path); err != nil {
			t.Error(err)
		}
		backups = append(backups, path)
	}
	close(stop)
	written := <-done
	// As if the database had gone on for half a thousand million transactions.
	server(t, url, `UPDATE grid SET event_epoch = event_epoch + (1 << 29)`)
	submit(t, s, "job_after")
	last, err := s.LastEvent(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, backup := range backups {
		place := filepath.Join(dir, fmt.Sprint("restored", i))
		if err := sqlite.Restore(ctx, backup, place, sqlite.RestoreOptions{Now: time.Now}); err != nil {
			t.Fatal(err)
		}
		file := openFile(t, place)
		home := pg.Database(t)
		again := openServer(t, home)
		if _, err := moving.ToPostgres(ctx, file, again, nil); err != nil {
			t.Fatal(err)
		}
		for what, s := range map[string]store.Store{"the file": file, "the database": again} {
			if bad, err := s.Check(ctx); err != nil || len(bad) > 0 {
				t.Errorf("%s: Check = %v, %v", what, bad, err)
			}
			if _, err := s.Job(ctx, "", "job_before"); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if _, err := s.Job(ctx, "", "job_after"); !errors.Is(err, offpeak.ErrNotFound) {
				t.Errorf("%s knows what came after: %v", what, err)
			}
			news := all(t, s, last)
			if len(news) != 1 || news[0].Type != "hub.restored" {
				t.Fatalf("%s tells followers %+v", what, news)
			}
			submit(t, s, "job_after")
			if more := all(t, s, news[0].Cursor); len(more) == 0 || more[0].Job != "job_after" {
				t.Errorf("%s tells of what is new: %+v", what, more)
			}
		}
	}
	if written == 0 {
		t.Error("nothing was written meanwhile")
	}
}

// A grid stays while hubs are at work on it, and one that came and went meanwhile is
// noticed as well.
func TestHubsAtWork(t *testing.T) {
	ctx := t.Context()
	source, url := full(t), pg.Database(t)
	target := openServer(t, url)
	hub := offpeak.Hub{ID: "hub_1"}
	attend := func() {
		t.Helper()
		if _, err := target.Attend(ctx, hub, 0); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(err error) {
		t.Helper()
		if e, ok := errors.AsType[*moving.AttendedError](err); !ok || e.Hub != hub.ID {
			t.Errorf("moved where a hub is at work: %v", err)
		}
	}
	attend()
	_, err := moving.ToPostgres(ctx, source, target, nil)
	refused(err)
	// Killed a while ago.
	server(t, url, `UPDATE hubs SET seen_at = seen_at - 10000000`)
	if _, err := moving.ToPostgres(ctx, source, target, nil); err != nil {
		t.Fatal(err)
	}
	back := filepath.Join(t.TempDir(), "offpeak.db")
	attend()
	_, err = moving.ToSQLite(ctx, target, back, nil)
	refused(err)
	if err := target.Leave(ctx, hub.ID); err != nil {
		t.Fatal(err)
	}
	came := false
	_, err = moving.ToSQLite(ctx, target, back, func(moving.Step) {
		if !came {
			came = true
			attend()
		}
	})
	refused(err)
	if _, err := os.Stat(back); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a copy is left: %v", err)
	}
	if err := target.Leave(ctx, hub.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := moving.ToSQLite(ctx, target, back, nil); err != nil {
		t.Error(err)
	}
}
