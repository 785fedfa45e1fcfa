package postgres_test

import (
	"math/rand/v2"
	"os"
	"testing"

	"offpeak/internal/pgtest"
	"offpeak/store"
	"offpeak/store/moving"
	"offpeak/store/postgres"
	"offpeak/store/sqlstore"
	"offpeak/store/storetest"
)

var pg pgtest.Shared

func TestMain(m *testing.M) { os.Exit(pg.Around(m).Run()) }

// open opens a store in a new database.
func open(t testing.TB, url string, opts postgres.Options) *postgres.Store {
	t.Helper()
	if opts.Rand == nil {
		opts.Rand = rand.New(rand.NewPCG(1, 2))
	}
	s, err := postgres.Open(t.Context(), url, opts)
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

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T, clock *storetest.Clock) store.Store {
		return open(t, pg.Database(t), postgres.Options{Now: clock.Now, Money: sqlstore.Money{Price: storetest.Price}, Backup: moving.Backup})
	})
}
