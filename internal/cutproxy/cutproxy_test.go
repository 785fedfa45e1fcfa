package cutproxy_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"offpeak/internal/cutproxy"
	"offpeak/internal/gridtest"
	"offpeak/internal/pgtest"
)

var pg pgtest.Shared

func TestMain(m *testing.M) { os.Exit(pg.Around(m).Run()) }

// world is a proxy before a database with a table of rows.
type world struct {
	*cutproxy.Proxy
	t      testing.TB
	direct *pgx.Conn
	url    string // through the proxy
}

func start(t testing.TB) *world {
	t.Helper()
	database := pg.Database(t)
	w := &world{t: t}
	w.direct = w.connect(database)
	if _, err := w.direct.Exec(t.Context(), "create table rows (n int)"); err != nil {
		t.Fatal(err)
	}
	w.anew(database)
	return w
}

// anew empties the table and puts a new proxy before the database.
func (w *world) anew(database string) {
	w.t.Helper()
	if _, err := w.direct.Exec(w.t.Context(), "delete from rows"); err != nil {
		w.t.Fatal(err)
	}
	w.Proxy = cutproxy.Start(w.t, pg.Server(w.t).Addr())
	w.url = w.URL(w.t, database)
}

func (w *world) connect(url string) *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), url)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (w *world) count() int {
	w.t.Helper()
	var n int
	if err := w.direct.QueryRow(w.t.Context(), "select count(*) from rows").Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// quiet waits until the server has no other session on the database: whatever a
// cut client had begun is over.
func (w *world) quiet() {
	w.t.Helper()
	gridtest.Eventually(w.t, 10*time.Second, "the cut session to be over", func() error {
		var n int
		if err := w.direct.QueryRow(w.t.Context(), `select count(*) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'`).Scan(&n); err != nil {
			return err
		}
		if n > 0 {
			return errors.New("it is still there")
		}
		return nil
	})
}

// ways are the ways in which clients commit one row.
var ways = map[string]func(ctx context.Context, c *pgx.Conn) error{
	"transaction": func(ctx context.Context, c *pgx.Conn) error {
		tx, err := c.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "insert into rows values ($1)", 1); err != nil {
			return err
		}
		return tx.Commit(ctx)
	},
	"one statement": func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "insert into rows values ($1)", 1)
		return err
	},
	"one statement with an answer": func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "with x as (insert into rows values ($1) returning n) select n from x", 1).Scan(new(int))
	},
	"simple protocol": func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "insert into rows values (1)", pgx.QueryExecModeSimpleProtocol)
		return err
	},
	"one simple query": func(ctx context.Context, c *pgx.Conn) error {
		return c.PgConn().Exec(ctx, "begin; insert into rows values (1); /* ; */ commit -- done").Close()
	},
	"batch": func(ctx context.Context, c *pgx.Conn) error {
		var b pgx.Batch
		b.Queue("select $1::int", 1)
		b.Queue("insert into rows values ($1)", 1)
		b.Queue("select $1::int", 2)
		return c.SendBatch(ctx, &b).Close()
	},
	"batch with its transaction": func(ctx context.Context, c *pgx.Conn) error {
		var b pgx.Batch
		b.Queue("begin")
		b.Queue("insert into rows values ($1)", 1)
		b.Queue("commit")
		return c.SendBatch(ctx, &b).Close()
	},
	"batch in a transaction": func(ctx context.Context, c *pgx.Conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue("savepoint s")
			b.Queue("insert into rows values ($1)", 7)
			b.Queue("rollback to savepoint s")
			b.Queue("insert into rows values ($1)", 1)
			return tx.SendBatch(ctx, &b).Close()
		})
	},
	"pipeline": func(ctx context.Context, c *pgx.Conn) error {
		p := c.PgConn().StartPipeline(ctx)
		p.SendQueryParams("begin", nil, nil, nil, nil)
		p.SendQueryParams("insert into rows values (1)", nil, nil, nil, nil)
		p.SendQueryParams("commit", nil, nil, nil, nil)
		return errors.Join(p.Sync(), p.Close())
	},
	"copy": func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.CopyFrom(ctx, pgx.Identifier{"rows"}, []string{"n"}, pgx.CopyFromRows([][]any{{1}}))
		return err
	},
}

// However a client commits, it can be cut before it, and nothing is there; after
// it, and it is there though nobody was told; or left in peace.
func TestCuts(t *testing.T) {
	for name, commit := range ways {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			for _, c := range []struct {
				cut  cutproxy.Cut
				fail bool
				rows int
			}{{cutproxy.None, false, 1}, {cutproxy.Before, true, 0}, {cutproxy.After, true, 1}} {
				w.anew(w.url)
				w.Next(c.cut)
				conn := w.connect(w.url)
				err := commit(t.Context(), conn)
				if (err != nil) != c.fail {
					t.Errorf("cut %s: the client saw %v", c.cut, err)
				}
				// Not waited for: once a client knows of a cut after the commit,
				// the commit is over.
				if got := w.count(); got != c.rows {
					t.Errorf("cut %s: %d rows, want %d", c.cut, got, c.rows)
				}
				if c.fail && conn.Ping(t.Context()) == nil {
					t.Errorf("cut %s: the connection is still good", c.cut)
				}
				_ = conn.Close(t.Context())
				want := cutproxy.Counts{Commits: 1}
				switch c.cut {
				case cutproxy.Before:
					want.Before = 1
					w.quiet()
					if got := w.count(); got != 0 {
						t.Errorf("cut before: %d rows came later", got)
					}
				case cutproxy.After:
					want.After = 1
				}
				if got := w.Counts(); got != want {
					t.Errorf("cut %s: counted %+v, want %+v", c.cut, got, want)
				}
			}
		})
	}
}

// A client that is cut during its commit can't know how it went, but the commit
// arrives, late.
func TestCutDuring(t *testing.T) {
	w := start(t)
	w.Next(cutproxy.During)
	conn := w.connect(w.url)
	// The commit waits for a lock, so that it is under way for as long as we like.
	holder, err := w.direct.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), "lock table rows"); err != nil {
		t.Fatal(err)
	}
	// The request to cancel, which a cut client may send over another connection,
	// does not arrive.
	w.Refuse(true)
	if _, err := conn.Exec(t.Context(), "insert into rows values (1)"); err == nil {
		t.Error("the client was told of a commit that still waits")
	}
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.quiet()
	if got := w.count(); got != 1 {
		t.Errorf("%d rows, want the one whose commit was cut", got)
	}
	if got := w.Counts(); got.During != 1 {
		t.Errorf("counted %+v", got)
	}
}

// What does not commit is not cut.
func TestReadsPass(t *testing.T) {
	w := start(t)
	w.Decide(func() cutproxy.Cut { return cutproxy.Before })
	conn := w.connect(w.url)
	for _, sql := range []string{"select count(*) from rows", "show all", "begin", "insert into rows values (1)", "rollback", "select 1; select 2"} {
		if err := conn.PgConn().Exec(t.Context(), sql).Close(); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if _, err := conn.Prepare(t.Context(), "write", "insert into rows values ($1)"); err != nil {
		t.Errorf("prepare: %v", err)
	}
	if got := w.Counts(); got.Commits != 0 {
		t.Errorf("counted %+v", got)
	}
}

// Many clients under random cuts: every row that a client was told of is there,
// and none whose commit was cut before.
func TestRandomCuts(t *testing.T) {
	w := start(t)
	random := rand.New(rand.NewPCG(4, 2))
	w.Decide(func() cutproxy.Cut { return cutproxy.Cut(random.IntN(4)) })
	var told sync.Map
	var group sync.WaitGroup
	for client := range 4 {
		group.Go(func() {
			var conn *pgx.Conn
			for i := range 50 {
				n := client*1000 + i
				if conn == nil || conn.IsClosed() {
					var err error
					if conn, err = pgx.Connect(t.Context(), w.url); err != nil {
						t.Error(err)
						return
					}
				}
				if _, err := conn.Exec(t.Context(), "insert into rows values ($1)", n); err == nil {
					told.Store(n, true)
				}
			}
			_ = conn.Close(context.Background())
		})
	}
	group.Wait()
	w.quiet()
	rows, err := w.direct.Query(t.Context(), "select n from rows")
	if err != nil {
		t.Fatal(err)
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	known := map[int]bool{}
	for _, n := range there {
		known[n] = true
	}
	acknowledged := 0
	for n := range told.Range {
		acknowledged++
		if !known[n.(int)] {
			t.Errorf("row %v was acknowledged and is not there", n)
		}
	}
	c := w.Counts()
	if c.Before == 0 || c.During == 0 || c.After == 0 || acknowledged == 0 {
		t.Errorf("not all was tried: %+v, %d acknowledged", c, acknowledged)
	}
	// A client that was cut during its commit may have had it cancelled.
	if most := c.Commits - c.Before; len(there) > most || len(there) < most-c.During || c.Commits != 200 {
		t.Errorf("%d rows, want %d to %d: %+v", len(there), most-c.During, most, c)
	}
}

// Connections can be refused, reset and stalled.
func TestConnections(t *testing.T) {
	w := start(t)
	conn := w.connect(w.url)
	if err := conn.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Refuse(true)
	if _, err := pgx.Connect(t.Context(), w.url); err == nil {
		t.Error("a refused connection was made")
	}
	if err := conn.Ping(t.Context()); err != nil {
		t.Errorf("refusing new connections ended an old one: %v", err)
	}
	w.Refuse(false)
	if n := w.Reset(); n != 1 {
		t.Errorf("reset %d connections, want 1", n)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a reset connection is still good")
	}
	conn = w.connect(w.url)
	w.Stall(true)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := pgx.Connect(short, w.url); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connecting to a stalled server: %v, want a timeout", err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "insert into rows values (1)")
		answered <- err
	}()
	if got := w.count(); got != 0 {
		t.Error("a stalled statement arrived")
	}
	w.Stall(false)
	if err := <-answered; err != nil {
		t.Errorf("after the stall: %v", err)
	}
	if got := w.Counts(); got.Refused != 1 || got.Reset != 1 {
		t.Errorf("counted %+v", got)
	}
}
