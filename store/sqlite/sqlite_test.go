package sqlite_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"offpeak/store"
	"offpeak/store/sqlite"
	"offpeak/store/sqlstore"
	"offpeak/store/storetest"
)

func open(t testing.TB, path string, opts sqlite.Options) *sqlite.Store {
	t.Helper()
	if opts.Rand == nil {
		opts.Rand = rand.New(rand.NewPCG(1, 2))
	}
	s, err := sqlite.Open(t.Context(), path, opts)
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
		return open(t, filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Now: clock.Now, Money: sqlstore.Money{Price: storetest.Price}})
	})
}
