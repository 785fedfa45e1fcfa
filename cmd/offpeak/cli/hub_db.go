package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"offpeak"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/hub/data"
	"offpeak/internal/steady"
	"offpeak/store"
	"offpeak/store/moving"
	"offpeak/store/postgres"
	"offpeak/store/sqlite"
)

// kept is a store that counts what it writes.
type kept interface {
	store.Store
	store.Counted
}

// openStore opens what --db names: the file in the data folder, or a database
// that hubs share.
func (o *hubOptions) openStore(ctx context.Context, id offpeak.HubID, clock *steady.Clock, log *slog.Logger) (kept, error) {
	if o.db != "" {
		db, err := postgres.Open(ctx, o.db, postgres.Options{Hub: id, Elapsed: steady.Counter(), Log: log, Money: o.market.money(), Backup: moving.Backup})
		if err != nil {
			return nil, databaseError("db", err)
		}
		return db, nil
	}
	if err := data.CheckFolder(o.data); err != nil {
		return nil, world.Hint(err, "Restore the last backup into a new folder (`offpeak restore`), or, to begin anew, choose another folder with --data.")
	}
	db, err := sqlite.Open(ctx, filepath.Join(o.data, data.DatabaseFile), sqlite.Options{Log: log, Now: clock.Now, Money: o.market.money()})
	if err != nil {
		return nil, storeError(err)
	}
	return db, nil
}

// place tells the hubs of a shared database apart that write local files.
func (o *hubOptions) place() string {
	if o.db == "" {
		return ""
	}
	host, _ := os.Hostname() // without it, the folder alone
	folder, err := filepath.Abs(o.data)
	if err != nil {
		folder = o.data
	}
	return host + ":" + folder
}

// checkDB refuses what is no URL of a PostgreSQL database. It is not shown: it may
// hold a password.
func (o *hubOptions) checkDB(getenv func(string) string) error {
	field := new(offpeak.FieldError)
	if o.db == "" || !errors.As(postgres.CheckURL(o.db), &field) {
		return nil
	}
	from := "--db"
	if getenv("OFFPEAK_DB") == o.db {
		from = "--db (from OFFPEAK_DB)"
	}
	return badInput("%s: %s; without it the state lies in the data folder", from, field.Rule)
}

// databaseError adds the next step to an error of opening the database that a flag
// names.
func databaseError(flag string, err error) error {
	field := new(offpeak.FieldError)
	refused := new(postgres.RefusedError)
	switch {
	case errors.As(err, &field):
		return badInput("--%s: %s", flag, field.Rule)
	case errors.As(err, &refused):
		return err
	case errors.Is(err, offpeak.ErrUnavailable):
		return world.Hint(err, "Is the database running, and may this user and password in? See --"+flag+".")
	}
	return fmt.Errorf("%w; see --%s", err, flag)
}

// storeError adds the next step to an error of opening the store that does not
// name one itself.
func storeError(err error) error {
	locked := new(sqlite.LockedError)
	corrupt := new(sqlite.CorruptError)
	schema := new(sqlite.SchemaError)
	switch {
	case errors.As(err, &locked):
		return world.Hint(err, "Use the hub that runs already, or name a folder of its own for this one with --data.")
	case errors.As(err, &corrupt), errors.As(err, &schema), isDiskFull(err):
		return diskFull(err)
	}
	return fmt.Errorf("%w; if the file is damaged, move it aside and bring a backup back with `offpeak restore`", err)
}
