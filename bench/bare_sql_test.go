package bench

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"offpeak/store/postgres"
	"offpeak/store/sqlite"
)

//go:embed cycle_*.sql
var scripts embed.FS

// bareBatch is how many jobs each statement of a script writes.
const bareBatch = 64

// script is the sections of a script by name, each a list of statements with the
// parameters that they name, in their order.
type script map[string][]statement

type statement struct {
	text   string
	params []string
}

func readScript(b *testing.B, engine string) script {
	b.Helper()
	text, err := scripts.ReadFile("cycle_" + engine + ".sql")
	if err != nil {
		b.Fatal(err)
	}
	out := script{}
	for section := range strings.SplitSeq(string(text), "-- section: ") {
		name, body, _ := strings.Cut(section, "\n")
		for text := range strings.SplitSeq(body, ";\n") {
			s := statement{text: text}
			for _, p := range []string{"first", "last", "now", "event", "lane"} {
				if strings.Contains(s.text, ":"+p) {
					s.params = append(s.params, p)
					bound := fmt.Sprintf("CAST($%d AS BIGINT)", len(s.params))
					if engine == "sqlite" {
						bound = fmt.Sprintf("?%d", len(s.params))
					}
					s.text = strings.ReplaceAll(s.text, ":"+p, bound)
				}
			}
			if len(s.params) > 0 || strings.Contains(text, "INSERT") {
				out[name] = append(out[name], s)
			}
		}
	}
	return out
}

// bareSQL writes what cycles of jobs write, without anything around it.
type bareSQL struct {
	b      *testing.B
	script script
	// begin opens a connection's transactions: each runs a section.
	lanes []func(statements []statement, args map[string]int64) error
	jobs  atomic.Int64
	event atomic.Int64
}

// newBareSQL makes an empty store of an engine beside what is under test, with
// all tables and indexes, and lanes connections to it.
func newBareSQL(b *testing.B, c *cluster, lanes int) *bareSQL {
	b.Helper()
	ctx := context.Background()
	s := &bareSQL{b: b}
	if c.server == nil {
		s.script = readScript(b, "sqlite")
		path := filepath.Join(c.Dir, "bare.db")
		st, err := sqlite.Open(ctx, path, sqlite.Options{})
		if err != nil {
			b.Fatal(err)
		}
		st.Close()
		dsn := url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_txlock=immediate"}
		db, err := sql.Open("sqlite", dsn.String())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { db.Close() })
		db.SetMaxOpenConns(1)
		s.lanes = append(s.lanes, sqliteLane(db))
	} else {
		s.script = readScript(b, "postgres")
		database := c.server.Database(b)
		st, err := postgres.Open(ctx, database, postgres.Options{})
		if err != nil {
			b.Fatal(err)
		}
		st.Close()
		for range lanes {
			conn, err := pgx.Connect(ctx, database)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { conn.Close(ctx) })
			// Tables without statistics yet would be read from end to end.
			if _, err := conn.Exec(ctx, "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"); err != nil {
				b.Fatal(err)
			}
			s.lanes = append(s.lanes, postgresLane(conn))
		}
	}
	s.run("account", 0, 0)
	for i := range s.lanes {
		s.run("nodes", i, 0)
	}
	return s
}

func sqliteLane(db *sql.DB) func([]statement, map[string]int64) error {
	prepared := make(map[string]*sql.Stmt)
	return func(statements []statement, args map[string]int64) error {
		for _, s := range statements {
			if prepared[s.text] == nil {
				p, err := db.Prepare(s.text) //nolint:sqlclosecheck // kept until the database closes
				if err != nil {
					return fmt.Errorf("%s: %w", s.text, err)
				}
				prepared[s.text] = p
			}
		}
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		for _, s := range statements {
			if _, err := tx.Stmt(prepared[s.text]).Exec(s.args(args)...); err != nil { //nolint:sqlclosecheck // the transaction closes it
				_ = tx.Rollback()
				return fmt.Errorf("%s: %w", s.text, err)
			}
		}
		return tx.Commit()
	}
}

func postgresLane(conn *pgx.Conn) func([]statement, map[string]int64) error {
	return func(statements []statement, args map[string]int64) error {
		batch := &pgx.Batch{}
		batch.Queue("BEGIN")
		for _, s := range statements {
			batch.Queue(s.text, s.args(args)...)
		}
		batch.Queue("COMMIT")
		return conn.SendBatch(context.Background(), batch).Close()
	}
}

func (s statement) args(values map[string]int64) []any {
	out := make([]any, len(s.params))
	for i, p := range s.params {
		out[i] = values[p]
	}
	return out
}

func (s *bareSQL) run(section string, lane int, first int64) {
	args := map[string]int64{"first": first, "last": first + bareBatch - 1, "now": time.Now().UnixMicro(), "lane": int64(lane), "event": s.event.Add(3*bareBatch) - 3*bareBatch}
	if err := s.lanes[lane](s.script[section], args); err != nil {
		s.b.Errorf("%s: %v", section, err)
	}
}

// rate is how many jobs a second go through a full cycle.
func (s *bareSQL) rate(jobs int) float64 {
	s.b.Helper()
	left := int64(jobs / bareBatch)
	turns := atomic.Int64{}
	began := time.Now()
	group := errgroup.Group{}
	for lane := range s.lanes {
		group.Go(func() error {
			for turns.Add(1) <= left && !s.b.Failed() {
				first := s.jobs.Add(bareBatch) - bareBatch + 1
				for _, section := range []string{"submit", "claim", "start", "end"} {
					s.run(section, lane, first)
				}
			}
			return nil
		})
	}
	_ = group.Wait()
	took := time.Since(began)
	if s.b.Failed() {
		s.b.FailNow()
	}
	return float64(left*bareBatch) / took.Seconds()
}
