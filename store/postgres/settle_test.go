package postgres_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"offpeak"
	"offpeak/internal/pgtest"
	"offpeak/store/postgres"
)

// Rows that come to a hub in another database, by a dump or a copy of the server's
// files, are a new generation: nothing that the lost database gave out since is given
// out again. In their own database they go on.
func TestBroughtBack(t *testing.T) {
	// Not beside tests that hold transactions open: events wait for those of the
	// whole server.
	ctx := t.Context()
	url := pg.Database(t)
	s := open(t, url, postgres.Options{})
	bootstrap(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	c := plain(t, url)
	exec(t, c, `INSERT INTO nodes (id, account, name, key, liveness, intent, availability, inventory, claimed_cpu, claimed_memory, claimed_disk, capacity_cpu, capacity_memory, capacity_disk, revision, timeout, enrolled_at)
		VALUES ('node_1', 'acct_a', '', '', 'offline', 'open', 'available', '{}', 0, 0, 0, 0, 0, 0, 5, 1, 1)`)
	_ = c.Close(ctx)
	// A database that is a copy of another, as pg_restore makes one.
	copied := copyOf(t, url)
	s = open(t, url, postgres.Options{})
	if _, err := s.SetQuota(ctx, op("after"), "acct_a", offpeak.Quota{Queued: 7}); err != nil {
		t.Fatal(err)
	}
	c = plain(t, url)
	exec(t, c, `UPDATE grid SET event_epoch = event_epoch + (1 << 29)`)
	if _, err := s.SetQuota(ctx, op("late"), "acct_a", offpeak.Quota{Queued: 8}); err != nil {
		t.Fatal(err)
	}
	lost, err := s.LastEvent(ctx)
	if err != nil {
		t.Fatal(err)
	}
	again := open(t, copied, postgres.Options{})
	news, err := again.Events(ctx, "", lost, 10)
	if err != nil || len(news) != 1 || news[0].Type != "hub.restored" {
		t.Fatalf("followers are told %+v, %v", news, err)
	}
	if a, err := again.Account(ctx, "acct_a"); err != nil || a.Quota.Queued >= 7 {
		t.Errorf("the copy has %+v, %v", a, err)
	}
	c = plain(t, copied)
	for query, want := range map[string]string{
		`SELECT CAST(revision >= 4294967301 AS TEXT) FROM nodes`:                                  "true",
		`SELECT value FROM meta WHERE key = 'generation'`:                                         "1",
		`SELECT CAST(count(*) AS TEXT) FROM audit WHERE verb = 'hub.restore' AND id > 4294967296`: "1",
	} {
		var have string
		if err := c.QueryRow(ctx, query).Scan(&have); err != nil || have != want {
			t.Errorf("%s: %q, %v; want %q", query, have, err, want)
		}
	}
	sound(t, again)
	// Another hub, or the same one later, finds it done.
	second := open(t, copied, postgres.Options{})
	if news, err := second.Events(ctx, "", lost, 10); err != nil || len(news) != 1 {
		t.Errorf("the second hub finds %+v, %v", news, err)
	}
}

// copyOf copies a database that nobody is connected to.
func copyOf(t *testing.T, url string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	name := cfg.Database + "_copy"
	exec(t, plain(t, pg.Server(t).URL()), `CREATE DATABASE `+name+` TEMPLATE `+cfg.Database)
	return strings.Replace(url, "/"+cfg.Database, "/"+name, 1)
}

// A hub says what is wrong with a server that it can't work with.
func TestServersThatWontDo(t *testing.T) {
	t.Parallel()
	t.Run("too old", func(t *testing.T) {
		t.Parallel()
		url := pg.Database(t)
		c := plain(t, url)
		exec(t, c, `CREATE SCHEMA old`)
		exec(t, c, `CREATE FUNCTION old.current_setting(TEXT) RETURNS TEXT LANGUAGE sql AS $$ SELECT '140012' $$`)
		wontDo(t, url+"&search_path=old,pg_catalog", "PostgreSQL 14, 15 is the oldest")
	})
	t.Run("a replica", func(t *testing.T) {
		t.Parallel()
		server := pgtest.Start(t)
		url := server.Database(t)
		s := open(t, url, postgres.Options{})
		bootstrap(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		c := plain(t, server.URL())
		var folder string
		if err := c.QueryRow(t.Context(), `SHOW data_directory`).Scan(&folder); err != nil {
			t.Fatal(err)
		}
		_ = c.Close(t.Context())
		if err := server.Stop(pgtest.Fast); err != nil {
			t.Fatal(err)
		}
		// A standby that has nobody to follow yet.
		if err := os.WriteFile(filepath.Join(folder, "standby.signal"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		wontDo(t, url, "read replica")
	})
}

// wontDo fails the test unless a hub refuses a server and says why.
func wontDo(t *testing.T, url, why string) {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, postgres.Options{})
	if err == nil {
		_ = s.Close()
	}
	refused := new(postgres.RefusedError)
	if !errors.As(err, &refused) || !strings.Contains(refused.Why, why) {
		t.Errorf("Open = %v, want it refused: %s", err, why)
	}
}

// A server whose system can't tell it that a client is gone is asked to look for that,
// and is served all the same.
func TestServerThatCanNotNoticeAClientGone(t *testing.T) {
	for which, served := range map[string]bool{"22023": true, "42501": false} {
		url := pg.Database(t)
		c := plain(t, url)
		exec(t, c, `CREATE SCHEMA other`)
		exec(t, c, `CREATE FUNCTION other.set_config(TEXT, TEXT, BOOLEAN) RETURNS TEXT LANGUAGE plpgsql AS $$
			BEGIN RAISE EXCEPTION '% must be 0 on this platform', $1 USING ERRCODE = '`+which+`'; END $$`)
		s, err := postgres.Open(t.Context(), url+"&search_path=other,pg_catalog", postgres.Options{})
		if (err == nil) != served {
			t.Errorf("refused with %s: %v", which, err)
		}
		if err == nil {
			bootstrap(t, s)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
