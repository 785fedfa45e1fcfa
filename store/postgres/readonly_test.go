package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"offpeak"
	"offpeak/store/postgres"
)

// What is opened to be read stays as it is: no schema is made, none brought up to date,
// and nothing is written.
func TestReadOnly(t *testing.T) {
	url := pg.Database(t)
	refused := func(why string) {
		t.Helper()
		s, err := postgres.Open(t.Context(), url, postgres.Options{ReadOnly: true})
		if err == nil {
			s.Close()
		}
		if _, ok := errors.AsType[*postgres.RefusedError](err); !ok || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	refused("holds no grid")
	c := plain(t, url)
	var tables int
	if err := c.QueryRow(t.Context(), `SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace`).Scan(&tables); err != nil || tables != 0 {
		t.Errorf("%d tables were made, %v", tables, err)
	}
	s := open(t, url, postgres.Options{})
	bootstrap(t, s)
	read := open(t, url, postgres.Options{ReadOnly: true})
	if a, err := read.Account(t.Context(), "acct_a"); err != nil || a.Name != "a" {
		t.Errorf("Account = %+v, %v", a, err)
	}
	if _, err := read.SetQuota(t.Context(), op("quota"), "acct_a", offpeak.Quota{Running: 1}); err == nil {
		t.Error("a quota was set by who may only read")
	}
	if a, err := s.Account(t.Context(), "acct_a"); err != nil || a.Quota.Running != 0 {
		t.Errorf("Account = %+v, %v", a, err)
	}
	exec(t, c, `UPDATE goose_db_version SET is_applied = FALSE WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`)
	refused("read it with the offpeak of its hubs")
}
