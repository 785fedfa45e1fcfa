package sqlite

import (
	"context"
	"fmt"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/store/sqlstore"
)

// Attend leads: a file serves one hub.
func (s *Store) Attend(ctx context.Context, hub offpeak.Hub, _ time.Duration) (store.Attendance, error) {
	out := store.Attendance{Alone: true, Leads: true, Term: 1, Addresses: hub.Addresses}
	err := s.db.Write(ctx, func(t sqlstore.Tx) (err error) {
		out.Grid, err = sqlstore.Belong(t, hub)
		return err
	})
	if err != nil {
		return store.Attendance{}, fmt.Errorf("attend as %s: %w", hub.ID, err)
	}
	return out, nil
}

// MoveBlobs says that the grid's blobs lie elsewhere now.
func (s *Store) MoveBlobs(ctx context.Context, _ offpeak.HubID, to, at string) error {
	if err := s.db.Write(ctx, func(t sqlstore.Tx) error { return sqlstore.MoveBlobs(t, to, at) }); err != nil {
		return fmt.Errorf("move blobs to %s: %w", to, err)
	}
	return nil
}

// Leave has nobody to tell.
func (s *Store) Leave(context.Context, offpeak.HubID) error { return nil }

// Hubs lists none: nobody else would read it.
func (s *Store) Hubs(context.Context) ([]offpeak.Hub, error) { return nil, nil }

// Tell has nobody to tell.
func (s *Store) Tell(context.Context, string) error { return nil }

// Listen hears nothing.
func (s *Store) Listen(ctx context.Context, heard func(string)) error {
	heard("")
	<-ctx.Done()
	return ctx.Err()
}
