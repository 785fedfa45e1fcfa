package pgtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"offpeak/internal/pgtest"
)

var pg pgtest.Shared

func TestMain(m *testing.M) { os.Exit(pg.Around(m).Run()) }

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec(t testing.TB, conn *pgx.Conn, query string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func ask(t testing.TB, conn *pgx.Conn, query string) string {
	t.Helper()
	var answer string
	if err := conn.QueryRow(t.Context(), query).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return answer
}

// Each test has a database of its own, on a server as durable as in production.
func TestDatabases(t *testing.T) {
	a, b := connect(t, pg.Database(t)), connect(t, pg.Database(t))
	exec(t, a, "create table only_here (x int)")
	if got := ask(t, b, "select count(*)::text from pg_tables where tablename = 'only_here'"); got != "0" {
		t.Errorf("the other database has the table too")
	}
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "server_encoding": "UTF8", "lc_collate": "C",
	} {
		if got := ask(t, a, "show "+setting); got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}
}

// What was committed before a kill is there after it; what was not is not.
func TestKill(t *testing.T) {
	s := pgtest.Start(t)
	url := s.Database(t)
	conn := connect(t, url)
	exec(t, conn, "create table rows (n int)")
	for i := range 3 {
		exec(t, conn, fmt.Sprintf("insert into rows values (%d)", i))
		exec(t, conn, "begin")
		exec(t, conn, "insert into rows values (100)")
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		if left := s.Processes(); len(left) != 0 {
			t.Fatalf("processes %v outlived the kill", left)
		}
		if _, err := conn.Exec(t.Context(), "commit"); err == nil {
			t.Fatal("a killed server acknowledged a commit")
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		conn = connect(t, url)
		if got, want := ask(t, conn, "select count(*) || ' ' || max(n) from rows"), fmt.Sprintf("%d %d", i+1, i); got != want {
			t.Fatalf("after kill %d the table holds %q, want %q", i+1, got, want)
		}
	}
}

// A stopped server is gone, and the same server at the same place when it is back.
func TestStop(t *testing.T) {
	s := pgtest.Start(t)
	exec(t, connect(t, s.URL()), "create table kept (n int)")
	for _, m := range []pgtest.Mode{pgtest.Fast, pgtest.Immediate} {
		if err := s.Stop(m); err != nil {
			t.Fatal(err)
		}
		if left := s.Processes(); len(left) != 0 {
			t.Fatalf("processes %v outlived the stop", left)
		}
		if _, err := pgx.Connect(t.Context(), s.URL()); err == nil {
			t.Fatal("a stopped server answers")
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		exec(t, connect(t, s.URL()), "insert into kept values (1)")
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, connect(t, s.URL()), "select count(*)::text from kept"); got != "2" {
		t.Errorf("after restarts the table holds %s rows, want 2", got)
	}
}

// A frozen server answers nobody; its sessions go on when it thaws.
func TestFreeze(t *testing.T) {
	s := pgtest.Start(t)
	conn := connect(t, s.URL())
	if err := s.Freeze(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "select 1")
		answered <- err
	}()
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := pgx.Connect(short, s.URL()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connecting to a frozen server: %v, want a timeout", err)
	}
	select {
	case err := <-answered:
		t.Fatalf("a frozen server answered: %v", err)
	default:
	}
	if err := s.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("after the thaw: %v", err)
	}
}

// gone fails the test if a server's folder is still there.
func gone(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", filepath.Base(dir), err)
	}
}
