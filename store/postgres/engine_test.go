package postgres_test

import (
	"context"
	"errors"
	neturl "net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"offpeak"
	"offpeak/internal/pgtest"
	"offpeak/store"
	"offpeak/store/postgres"
)

// plain is a connection beside the store's.
func plain(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func exec(t *testing.T, c *pgx.Conn, query string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// op is an operation of the account's first member.
func op(id string) store.Op {
	return store.Op{ID: offpeak.OpID(id), Actor: offpeak.Actor{Account: "acct_a", Member: "member_a", Role: offpeak.RoleAdmin}}
}

func bootstrap(t *testing.T, s store.Store) {
	t.Helper()
	if _, err := s.Bootstrap(t.Context(), offpeak.Account{ID: "acct_a", Name: "a"}, offpeak.Member{ID: "member_a", Name: "a", Role: offpeak.RoleAdmin},
		offpeak.Token{ID: "tok_a", Role: offpeak.RoleAdmin, Name: "a", SecretHash: make([]byte, 32), UsesLeft: -1}); err != nil {
		t.Fatal(err)
	}
}

// A transaction that began to write before another, and commits after it, must
// not be missed by who read between the two.
func TestEventsWaitForWhatMayStillCommit(t *testing.T) {
	url := pg.Database(t)
	s := open(t, url, postgres.Options{})
	bootstrap(t, s)
	start, err := s.LastEvent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slow := plain(t, url)
	exec(t, slow, `BEGIN`)
	exec(t, slow, `INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data)
		SELECT (CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT) + event_epoch) * 65536, 0, 'test.slow', '', '', 0, '', '', '', '' FROM grid`)
	if _, err := s.SetQuota(t.Context(), op("quick"), "acct_a", offpeak.Quota{Queued: 7}); err != nil {
		t.Fatal(err)
	}
	types := func() (out []string) {
		events, err := s.Events(t.Context(), "", start, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			out = append(out, e.Type)
		}
		return out
	}
	if got := types(); len(got) != 0 {
		t.Errorf("before the older transaction has ended: %v, want nothing", got)
	}
	if last, err := s.LastEvent(t.Context()); err != nil || last != start {
		t.Errorf("LastEvent = %d, %v; want %d", last, err, start)
	}
	exec(t, slow, `COMMIT`)
	got := types()
	for len(got) == 0 { // transactions of other tests on this server hold events up too
		got = types()
	}
	if want := []string{"test.slow", "account.quota"}; !slices.Equal(got, want) {
		t.Errorf("after it has ended: %v, want %v", got, want)
	}
}

// A hub that freezes in a transaction holds its locks only for a while.
func TestFrozenHubLetsGo(t *testing.T) {
	t.Parallel()
	url := pg.Database(t)
	s := open(t, url, postgres.Options{})
	bootstrap(t, s)
	frozen := plain(t, url)
	// The same limits as every connection of a store has.
	exec(t, frozen, `SET idle_in_transaction_session_timeout = '3s'`)
	exec(t, frozen, `BEGIN`)
	exec(t, frozen, `SELECT 1 FROM accounts WHERE id = 'acct_a' FOR UPDATE`)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if _, err := s.SetQuota(ctx, op("behind"), "acct_a", offpeak.Quota{Queued: 7}); err != nil {
		t.Errorf("SetQuota behind a frozen hub: %v", err)
	}
	var limit string
	if err := frozen.QueryRow(ctx, `SELECT 1`).Scan(&limit); err == nil {
		t.Error("the frozen transaction is still there")
	}
}

// Verbs that read and write the same rows in any order come to an end, all of them.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	url := pg.Database(t)
	a, b := open(t, url, postgres.Options{Hub: "hub_a"}), open(t, url, postgres.Options{Hub: "hub_b"})
	bootstrap(t, a)
	const n = 40
	errs := make(chan error, 2*n)
	for i := range n {
		for _, s := range []*postgres.Store{a, b} {
			go func() {
				_, err := s.SetQuota(t.Context(), op("same"), "acct_a", offpeak.Quota{Queued: 7})
				if err == nil && i%4 == 0 {
					err = s.AddBlob(t.Context(), "acct_a", offpeak.Hash("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), 5)
				}
				errs <- err
			}()
		}
	}
	for range 2 * n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if _, err := a.SetQuota(t.Context(), op("last"), "acct_a", offpeak.Quota{Queued: 8}); err != nil {
		t.Fatal(err)
	}
	quotas := -1 // the last one
	for seen := false; !seen; {
		// Transactions of other tests on this server hold events up.
		events, err := a.Events(t.Context(), "acct_a", 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		quotas = -1
		for _, e := range events {
			if e.Type == "account.quota" {
				quotas++
				seen = seen || strings.Contains(string(e.Data), "8")
			}
		}
	}
	if quotas != 1 {
		t.Errorf("one operation, asked %d times of two hubs, was done %d times", 2*n, quotas)
	}
	if got, err := a.Account(t.Context(), "acct_a"); err != nil || got.Stored != 5 {
		t.Errorf("stored = %v, %v; want 5 bytes, counted once", got.Stored, err)
	}
	sound(t, a)
}

func sound(t *testing.T, s store.Store) {
	t.Helper()
	violations, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range violations {
		t.Errorf("%s: %s %s", v.Invariant, v.Object, v.Detail)
	}
}

func TestLead(t *testing.T) {
	t.Parallel()
	url := pg.Database(t)
	a, b := open(t, url, postgres.Options{}), open(t, url, postgres.Options{})
	attend := func(s *postgres.Store, id offpeak.HubID, lead time.Duration) store.Attendance {
		t.Helper()
		got, err := s.Attend(t.Context(), offpeak.Hub{ID: id, Addresses: []string{"https://" + string(id)}, Blobs: "one place"}, lead)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := attend(a, "hub_a", 0); got.Leads || got.Others != 0 {
		t.Errorf("who asks for no lead = %+v", got)
	}
	if got := attend(a, "hub_a", time.Minute); !got.Leads || got.Term != 1 {
		t.Errorf("the first to ask = %+v", got)
	}
	if got := attend(b, "hub_b", time.Minute); got.Leads || got.Others != 1 || !slices.Equal(got.Addresses, []string{"https://hub_b", "https://hub_a"}) {
		t.Errorf("the second = %+v", got)
	}
	if got := attend(a, "hub_a", time.Microsecond); !got.Leads || got.Term != 1 {
		t.Errorf("again = %+v, want the same term", got)
	}
	if got := attend(b, "hub_b", time.Minute); !got.Leads || got.Term != 2 {
		t.Errorf("after it has lapsed = %+v", got)
	}
	if err := b.Leave(t.Context(), "hub_b"); err != nil {
		t.Fatal(err)
	}
	if got := attend(a, "hub_a", time.Minute); !got.Leads || got.Term != 3 || got.Others != 0 {
		t.Errorf("after the other has left = %+v", got)
	}
	hubs, err := b.Hubs(t.Context())
	if err != nil || len(hubs) != 1 || hubs[0].ID != "hub_a" || !hubs[0].Leads {
		t.Errorf("Hubs = %+v, %v", hubs, err)
	}
	elsewhere := new(store.BlobsElsewhereError)
	if _, err := b.Attend(t.Context(), offpeak.Hub{ID: "hub_c", Blobs: "another place"}, 0); !errors.As(err, &elsewhere) || elsewhere.There != "one place" {
		t.Errorf("a hub with blobs elsewhere: %v", err)
	}
}

func TestHubsHearEachOther(t *testing.T) {
	t.Parallel()
	url := pg.Database(t)
	a, b := open(t, url, postgres.Options{}), open(t, url, postgres.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	heard, ended := make(chan string, 8), make(chan error, 1)
	go func() { ended <- b.Listen(ctx, func(text string) { heard <- text }) }()
	if got := <-heard; got != "" {
		t.Errorf("first heard %q, want that it listens", got)
	}
	if err := a.Tell(t.Context(), "hub_a lease_1"); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != "hub_a lease_1" {
		t.Errorf("heard %q", got)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("Listen returned nil after its end")
	}
}

// A server that is killed and comes back: verbs fail as unavailable, and go on.
func TestServerGone(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	s := open(t, server.Database(t), postgres.Options{})
	bootstrap(t, s)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.Account(ctx, "acct_a"); !errors.Is(err, offpeak.ErrUnavailable) {
		t.Errorf("read without a server: %v", err)
	}
	if _, err := s.SetQuota(ctx, op("lost"), "acct_a", offpeak.Quota{Queued: 7}); !errors.Is(err, offpeak.ErrUnavailable) {
		t.Errorf("write without a server: %v", err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetQuota(t.Context(), op("lost"), "acct_a", offpeak.Quota{Queued: 7}); err != nil {
		t.Errorf("the same write once it is back: %v", err)
	}
	sound(t, s)
}

// What is wrong with a URL is said, and its password is not.
func TestCheckURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"mysql://u:verysecret@h/db":                        "postgres://",
		"postgres://u:verysecret%ss@h/db":                  "percent-encoded",
		"postgres://u:verysecret#x@h/db":                   "%23",
		"postgres://u:verysecret@h:abc/db":                 "port",
		"postgres://u:verysecret@h:99999/db":               "port",
		"postgres://u:verysecret/x@h/db":                   "percent-encoded",
		"postgres://u:verysecret@h/db?pool_max_conns=many": "pool_max_conns",
		"postgres://u:verysecret@h/db?sslmode=perhaps":     "sslmode",
		"postgres://u:verysecret@[::1":                     "IPv6",
	} {
		if err := postgres.CheckURL(url); !errors.Is(err, offpeak.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "verysecret") {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
	if err := postgres.CheckURL("postgresql://u:verysecret@h:5433/db?sslmode=disable"); err != nil {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	if _, err := postgres.Open(t.Context(), "postgres://u:verysecret@[::1", postgres.Options{}); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("a URL that is none: %v", err)
	}
	refused := new(postgres.RefusedError)
	why := func(url, want string) {
		t.Helper()
		_, err := postgres.Open(t.Context(), url, postgres.Options{})
		if !errors.As(err, &refused) || !strings.Contains(refused.Why, want) || strings.Contains(err.Error(), "verysecret") {
			t.Errorf("Open = %v, want a refusal that says %q", err, want)
		}
	}
	foreign := pg.Database(t)
	exec(t, plain(t, foreign), `CREATE TABLE jobs (id INT)`)
	why(foreign, "not a grid's")
	var left int
	if err := plain(t, foreign).QueryRow(t.Context(), `SELECT count(*) FROM pg_class WHERE relname = 'goose_db_version'`).Scan(&left); err != nil || left != 0 {
		t.Errorf("a refused database has a table of ours: %v", err)
	}
	why(strings.Replace(foreign, "/test", "/none", 1), "no database")
	poor := pg.Database(t)
	exec(t, plain(t, poor), `CREATE ROLE poor LOGIN PASSWORD 'verysecret'`)
	at, err := neturl.Parse(poor)
	if err != nil {
		t.Fatal(err)
	}
	at.User = neturl.UserPassword("poor", "verysecret")
	why(at.String(), "may not create tables")
	at.User = neturl.UserPassword("nobody_here", "verysecret")
	why(at.String(), "does not let user")
	url := pg.Database(t)
	s := open(t, url, postgres.Options{})
	bootstrap(t, s)
	c := plain(t, url)
	exec(t, c, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, TRUE)`)
	newer := open(t, url, postgres.Options{})
	if _, err := newer.Account(t.Context(), "acct_a"); err != nil {
		t.Errorf("a newer schema that this hub can work with: %v", err)
	}
	exec(t, c, `UPDATE grid SET oldest_hub = 99`)
	if _, err := postgres.Open(t.Context(), url, postgres.Options{}); !errors.As(err, &refused) {
		t.Errorf("a newer schema that is for newer hubs: %v", err)
	}
}

// waiting counts who waits for a lock in the database of a connection.
func waiting(t *testing.T, c *pgx.Conn) (n int) {
	t.Helper()
	if err := c.QueryRow(t.Context(), `SELECT count(DISTINCT a.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database()`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// waits returns once somebody waits for a lock.
func waits(t *testing.T, c *pgx.Conn) {
	t.Helper()
	for waiting(t, c) == 0 {
	}
}
