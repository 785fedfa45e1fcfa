package pgtest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"offpeak/internal/gridtest"
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

// The clock jumps both ways under a running server, in old sessions and new, and
// after a restart; what only counts goes on.
func TestSkew(t *testing.T) {
	s := pgtest.StartSkewable(t)
	conn := connect(t, s.URL())
	for _, d := range []time.Duration{2 * time.Hour, -2 * time.Hour, 0} {
		if err := s.Skew(d); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]*pgx.Conn{"an old": conn, "a new": connect(t, s.URL())} {
			var now time.Time
			if err := c.QueryRow(t.Context(), "select clock_timestamp()").Scan(&now); err != nil {
				t.Fatal(err)
			}
			if off := time.Until(now) - d; off.Abs() > time.Minute {
				t.Errorf("%s session's clock is %s off where %s was asked for", name, time.Until(now), d)
			}
		}
	}
	if err := s.Skew(-time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	var now time.Time
	if err := connect(t, s.URL()).QueryRow(t.Context(), "select clock_timestamp()").Scan(&now); err != nil {
		t.Fatal(err)
	}
	if off := time.Until(now) + time.Hour; off.Abs() > time.Minute {
		t.Errorf("after a restart the clock is %s off, want an hour behind", time.Until(now))
	}
	if err := pg.Server(t).Skew(time.Hour); err == nil {
		t.Error("the clock of an ordinary server could be set")
	}
}

// However the process of a test ends, nothing of its servers is left, neither of
// one that runs nor of one that is frozen, nor of one that was killed.
func TestNothingOutlivesTheTests(t *testing.T) {
	if os.Getenv("PGTEST_CHILD") != "" {
		live(t)
		return
	}
	child := osexec.Command(os.Args[0], "-test.run=^TestNothingOutlivesTheTests$", "-test.v")
	child.Env = append(os.Environ(), "PGTEST_CHILD=1")
	var said strings.Builder
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// The child ends with this process too, however that ends.
	if _, err := child.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(io.TeeReader(out, &said))
	var left []pgtest.Trace
	for len(left) == 0 && lines.Scan() {
		if line, ok := strings.CutPrefix(lines.Text(), "left: "); ok {
			if err := json.Unmarshal([]byte(line), &left); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	if len(left) != 4 {
		t.Fatalf("the child started %d servers:\n%s", len(left), &said)
	}
	for _, l := range left {
		if l.Memory == 0 || len(l.Processes) == 0 && !l.Killed {
			t.Errorf("%s: the child did not say what there was: %+v", l.Name, l)
		}
		gridtest.Eventually(t, 30*time.Second, "the "+l.Name+" server to be gone", l.Gone)
	}
}

// live starts servers, says what there is of them, and waits to be killed.
func live(t *testing.T) {
	traces := []pgtest.Trace{
		pgtest.TraceOf(t, "running", pgtest.Start(t)),
		pgtest.TraceOf(t, "skewable", pgtest.StartSkewable(t)),
	}
	frozen := pgtest.Start(t)
	traces = append(traces, pgtest.TraceOf(t, "frozen", frozen))
	killed := pgtest.Start(t)
	trace := pgtest.TraceOf(t, "killed", killed)
	trace.Killed = true
	traces = append(traces, trace)
	if err := errors.Join(frozen.Freeze(), killed.Kill()); err != nil {
		t.Fatal(err)
	}
	said, err := json.Marshal(traces)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\nleft: %s\n", said)
	_, _ = io.Copy(io.Discard, os.Stdin)
}
