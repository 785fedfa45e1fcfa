package sqlstore

import (
	"context"
	"fmt"

	"offpeak"
	"offpeak/store"
)

// What meta says of the grid as a whole. The first hub to attend sets each. They
// move house with the rows; a restored copy is another grid and has none.
const (
	// gridKey is the grid's id: that of the hub which attended first.
	gridKey = "grid"
	// blobsKey is where its blobs lie, blobsAtKey how a person names that place.
	blobsKey   = "blobs"
	blobsAtKey = "blobs_at"
)

// Place says which grid it is, and where its blobs lie.
func (s *Store) Place(ctx context.Context) (p store.Place, err error) {
	err = s.db.Read(ctx, func(t Tx) (err error) {
		p, err = place(t)
		return err
	})
	if err != nil {
		return p, fmt.Errorf("read the grid's place: %w", err)
	}
	return p, nil
}

// place reads what meta says.
func place(t Tx) (p store.Place, err error) {
	rows, err := t.Query(`SELECT key, value FROM meta WHERE key IN ($1, $2, $3)`, gridKey, blobsKey, blobsAtKey)
	if err != nil {
		return p, err
	}
	defer rows.Close()
	for rows.Next() {
		var key, value string
		if err := rows.Scan(&key, &value); err != nil {
			return p, err
		}
		switch key {
		case gridKey:
			p.Grid = value
		case blobsKey:
			p.Blobs = value
		case blobsAtKey:
			p.BlobsAt = value
		}
	}
	return p, rows.Err()
}

// Belong returns the id of the grid that a hub attends, and refuses a hub with blobs
// elsewhere. The first hub says what is not known yet.
func Belong(t Tx, hub offpeak.Hub) (grid string, err error) {
	p, err := place(t)
	if err != nil {
		return "", err
	}
	if p.Grid == "" || p.Blobs == "" && hub.Blobs != "" {
		for _, set := range []struct{ key, value string }{{gridKey, string(hub.ID)}, {blobsKey, hub.Blobs}, {blobsAtKey, hub.BlobsAt}} {
			if set.value == "" || set.key == blobsAtKey && p.Blobs != "" {
				continue
			}
			if _, err := t.Exec(`INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING`, set.key, set.value); err != nil {
				return "", err
			}
		}
		// Another hub may have been first.
		if p, err = place(t); err != nil {
			return "", err
		}
	}
	if p.Blobs != "" && p.Blobs != hub.Blobs {
		return "", &store.BlobsElsewhereError{Here: hub.Blobs, There: p.Blobs, At: p.BlobsAt}
	}
	return p.Grid, nil
}

// MoveBlobs says that the grid's blobs lie elsewhere now.
func MoveBlobs(t Tx, to, at string) error {
	for _, set := range []struct{ key, value string }{{blobsKey, to}, {blobsAtKey, at}} {
		if _, err := t.Exec(`INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value`, set.key, set.value); err != nil {
			return fmt.Errorf("note %s: %w", set.key, err)
		}
	}
	return nil
}
