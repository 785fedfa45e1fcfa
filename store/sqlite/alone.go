package sqlite

import (
	"context"
	"time"

	"offpeak"
	"offpeak/store"
)

// Attend leads: a file serves one hub.
func (s *Store) Attend(_ context.Context, hub offpeak.Hub, _ time.Duration) (store.Attendance, error) {
	return store.Attendance{Alone: true, Leads: true, Term: 1, Addresses: hub.Addresses}, nil
}

// MoveBlobs has nobody who must know.
func (s *Store) MoveBlobs(context.Context, offpeak.HubID, string) error { return nil }

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
