package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// oldestServer is the oldest server_version_num that will do.
const oldestServer = 150000

// open connects, looks at the server, and brings the schema up to date.
func (d *db) open(ctx context.Context) (err error) {
	if d.pool, err = pgxpool.NewWithConfig(ctx, d.cfg); err != nil {
		return classify(err)
	}
	defer func() {
		if err != nil {
			d.pool.Close()
		}
	}()
	if err := d.examine(ctx); err != nil {
		return d.refusal(err)
	}
	if d.opts.ReadOnly {
		return d.refusal(d.known(ctx))
	}
	if err := d.migrate(ctx); err != nil {
		return d.refusal(err)
	}
	return d.settleIn(ctx)
}

// refusal says in our words what keeps a hub out of a database for good.
func (d *db) refusal(err error) error {
	user, database := d.cfg.ConnConfig.User, d.cfg.ConnConfig.Database
	c, _ := code(err)
	switch c {
	case "28000", "28P01": // invalid_authorization_specification, invalid_password
		return &RefusedError{Why: fmt.Sprintf("the server does not let user %q in: give the right user and password, in the URL, PGPASSWORD or ~/.pgpass", user)}
	case "3D000": // invalid_catalog_name
		return &RefusedError{Why: fmt.Sprintf("the server has no database %q: create it first, for example with createdb", database)}
	case "42501": // insufficient_privilege
		return &RefusedError{Why: fmt.Sprintf("user %q may not create tables in database %q: make it the owner with ALTER DATABASE … OWNER TO …", user, database)}
	case "42P07", "42P01": // duplicate_table, undefined_table
		return &RefusedError{Why: fmt.Sprintf("database %q holds tables that are not a grid's: name an empty one", database)}
	}
	return err
}

// examine refuses servers that a grid can't rely on.
func (d *db) examine(ctx context.Context) error {
	var version int
	var replica bool
	if err := d.pool.QueryRow(ctx, `SELECT CAST(current_setting('server_version_num') AS INT), pg_is_in_recovery()`).Scan(&version, &replica); err != nil {
		return classify(err)
	}
	switch {
	case version < oldestServer:
		return &RefusedError{Why: fmt.Sprintf("the server is PostgreSQL %d, 15 is the oldest that will do: upgrade it", version/10000)}
	case replica:
		return &RefusedError{Why: "the server is a read replica: name the primary, or all servers with target_session_attrs=read-write"}
	}
	return nil
}

// migrate brings the schema up to date. One hub at a time does; the others wait
// for it. A schema that is newer is worked with as long as it says that it can be:
// so hubs are upgraded one by one.
func (d *db) migrate(ctx context.Context) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	cfg := d.cfg.ConnConfig.Copy()
	// A migration may wait for its turn, and take its time.
	cfg.RuntimeParams["lock_timeout"] = "0"
	cfg.RuntimeParams["statement_timeout"] = "0"
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	pool := stdlib.OpenDB(*cfg)
	defer pool.Close()
	turn, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return err
	}
	if err := d.foreign(ctx); err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, pool, files, goose.WithSessionLocker(turn))
	if err != nil {
		return classify(err)
	}
	sources := p.ListSources()
	know := sources[len(sources)-1].Version
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return classify(err)
	}
	if have > know {
		return d.compatible(ctx, have, know)
	}
	if have < know {
		d.opts.Log.Info("bringing the schema up to date; of hubs that start at the same time one does, the others wait", "from", have, "to", know)
		if _, err := p.Up(ctx); err != nil {
			return fmt.Errorf("migrate from version %d: %w", have, classify(err))
		}
	}
	return nil
}

// known refuses a schema that can't be read as it is.
func (d *db) known(ctx context.Context) error {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	know := int64(0)
	for _, name := range files {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return err
		}
		know = max(know, version)
	}
	var there bool
	if err := d.pool.QueryRow(ctx, `SELECT to_regclass('goose_db_version') IS NOT NULL AND to_regclass('grid') IS NOT NULL`).Scan(&there); err != nil {
		return classify(err)
	}
	if !there {
		return &RefusedError{Why: fmt.Sprintf("database %q holds no grid: name the database of a hub", d.cfg.ConnConfig.Database)}
	}
	var have int64
	if err := d.pool.QueryRow(ctx, `SELECT COALESCE(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&have); err != nil {
		return classify(err)
	}
	switch {
	case have > know:
		return d.compatible(ctx, have, know)
	case have < know:
		return &RefusedError{Why: fmt.Sprintf("the schema has version %d, this offpeak reads version %d: read it with the offpeak of its hubs, or upgrade these first", have, know)}
	}
	return nil
}

// foreign refuses a database with tables of others, before there is one of ours.
func (d *db) foreign(ctx context.Context) error {
	var tables, ours int
	if err := d.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE relname = 'goose_db_version') FROM pg_class
		WHERE relkind IN ('r', 'p') AND relnamespace = CAST(current_schema() AS regnamespace)`).Scan(&tables, &ours); err != nil {
		return classify(err)
	}
	if tables > 0 && ours == 0 {
		return &RefusedError{Why: fmt.Sprintf("database %q holds tables that are not a grid's: name an empty one", d.cfg.ConnConfig.Database)}
	}
	return nil
}

func (d *db) compatible(ctx context.Context, have, know int64) error {
	var oldest int64
	if err := d.pool.QueryRow(ctx, `SELECT oldest_hub FROM grid`).Scan(&oldest); err != nil {
		return classify(err)
	}
	if know < oldest {
		return &RefusedError{Why: fmt.Sprintf("the schema has version %d and is for hubs that know version %d or newer, this one knows up to %d: use the newer offpeak", have, oldest, know)}
	}
	d.newer = true
	d.opts.Log.Warn("the schema is newer than this hub, which it can still work with: upgrade the hub", "schema", have, "knows", know)
	return nil
}
