package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"offpeak/store"
	"offpeak/store/postgres"
	"offpeak/store/sqlite"
)

// openRecorded opens the database of a grid to be read. A file is copied first: so
// the hub may go on with it, and a backup stays as it was.
func openRecorded(ctx context.Context, place string) (store.Store, func() error, error) {
	if strings.HasPrefix(place, "postgres") {
		h, err := parseHouse("from", place)
		if err != nil {
			return nil, nil, err
		}
		s, err := postgres.Open(ctx, h.url, postgres.Options{ReadOnly: true})
		if err != nil {
			return nil, nil, databaseError(h.flag, err)
		}
		return s, s.Close, nil
	}
	if err := sqlite.Examine(place); err != nil {
		return nil, nil, fmt.Errorf("--from: %w", err)
	}
	dir, err := os.MkdirTemp("", "offpeak-replay-")
	if err != nil {
		return nil, nil, fmt.Errorf("copy the database to read it: %w", err)
	}
	path := filepath.Join(dir, "copy.db")
	err = sqlite.Snapshot(ctx, place, path)
	var s *sqlite.Store
	if err == nil {
		s, err = sqlite.Open(ctx, path, sqlite.Options{})
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--from: %w", storeError(err)), os.RemoveAll(dir))
	}
	return s, func() error { return errors.Join(s.Close(), os.RemoveAll(dir)) }, nil
}
