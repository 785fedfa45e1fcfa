package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"offpeak"
	"offpeak/blob/place"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/hub"
	"offpeak/hub/data"
	"offpeak/store"
)

// openPlace opens the blobs of a hub whose data folder is dir.
func openPlace(ctx context.Context, text, dir string, now func() time.Time) (*place.Place, error) {
	spec, err := place.Parse(text)
	if err != nil {
		return nil, badInput("--blobs: %w", err)
	}
	p, err := spec.Open(ctx, place.Env{Own: filepath.Join(dir, data.BlobFolder), Now: now})
	switch {
	case errors.Is(err, offpeak.ErrInvalid):
		return nil, badInput("--blobs: %w", err)
	case err != nil && spec.Shared():
		return nil, world.Hint(err, "Look at --blobs, and at the credentials where it is a bucket.")
	}
	return p, err
}

// checkBlobs refuses to begin a new grid on another one's blobs: it would take
// all of them for nobody's and remove them.
func (o *hubOptions) checkBlobs(ctx context.Context, db store.Store, blobs *place.Place) error {
	if !blobs.Shared() {
		return nil // the data folder was looked at before the database was made
	}
	accounts, _, err := db.Accounts(ctx, store.Page{Limit: 1})
	if err != nil || len(accounts) > 0 {
		return err
	}
	empty, err := blobs.Empty(ctx)
	if err != nil || empty {
		return err
	}
	return world.Hint(fmt.Errorf("open blobs at %s: a grid's blobs lie there, and this hub's database is new", o.blobs),
		"Use the database of that grid (a backup comes back with `offpeak restore`), or another --blobs for a new grid.")
}

// join has the hub join its grid, with its blobs where the grid's are.
func (s *service) join(ctx context.Context, h *hub.Hub) error {
	if s.options.blobsMoved {
		if err := s.store.MoveBlobs(ctx, s.id, s.options.blobsIn(s.blobs), s.options.blobs); err != nil {
			return world.Hint(err, "Stop the other hubs, copy the blobs, then start this one with --blobs-moved and the others without.")
		}
	}
	err := h.Join(ctx)
	if elsewhere := new(store.BlobsElsewhereError); errors.As(err, &elsewhere) {
		return world.Hint(err, "Give this hub the same --blobs as the grid had. If the blobs were copied here, stop the other hubs and start this one with --blobs-moved.")
	}
	if err != nil {
		return err
	}
	err = s.blobs.Claim(ctx, h.Grid(), s.options.blobsMoved)
	if taken := new(place.TakenError); errors.As(err, &taken) {
		if err := s.store.Leave(context.WithoutCancel(ctx), s.id); err != nil {
			s.log.Warn("leave the other hubs", "err", err)
		}
		return world.Hint(fmt.Errorf("%w, and this hub's is another one or a copy of it: each would remove the other's blobs", err),
			"While that grid still runs, copy its blobs, and name the copy with --blobs and --blobs-moved. If it is gone for good, start this hub with --blobs-moved.")
	}
	return err
}

// blobsIn says where blobs lie, the same for hubs that reach the same: another
// hub's own folder is another place.
func (o *hubOptions) blobsIn(p *place.Place) string {
	if p.ID == place.Own {
		return o.own()
	}
	return p.ID
}

// own is the data folder as a place of blobs. A file is only ever its folder's, which
// may be moved; hubs on one database have a folder each.
func (o *hubOptions) own() string {
	if o.db == "" {
		return "the data folder"
	}
	return "the data folder " + o.place()
}
