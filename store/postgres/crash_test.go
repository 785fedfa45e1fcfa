package postgres_test

import (
	"errors"
	"testing"

	"offpeak"
	"offpeak/internal/cutproxy"
	"offpeak/internal/pgtest"
	"offpeak/store/postgres"
)

// A server that crashes before a commit gives the transaction's id out again: that
// another transaction with it was committed says nothing of the one that was lost.
func TestCommitLostInCrash(t *testing.T) {
	server := pgtest.Start(t)
	url := server.Database(t)
	proxy := cutproxy.Start(t, server.Addr())
	s := open(t, proxy.URL(t, url), postgres.Options{})
	bootstrap(t, s)
	crash := func() {
		if err := errors.Join(server.Kill(), server.Start()); err != nil {
			t.Error(err)
		}
		others := plain(t, url)
		for range 100 {
			exec(t, others, `SELECT pg_current_xact_id()`)
		}
	}
	crashed := false
	proxy.Decide(func() cutproxy.Cut {
		if crashed {
			return cutproxy.None
		}
		crashed = true
		crash()
		return cutproxy.Before
	})
	_, err := s.SetQuota(t.Context(), op("quota"), "acct_a", offpeak.Quota{Queued: 7})
	if err != nil && !errors.Is(err, offpeak.ErrUnavailable) {
		t.Fatal(err)
	}
	a, read := s.Account(t.Context(), "acct_a")
	if read != nil {
		t.Fatal(read)
	}
	if !crashed || err == nil && a.Quota.Queued != 7 {
		t.Errorf("crashed %v, acknowledged, but the quota is %d", crashed, a.Quota.Queued)
	}
}
