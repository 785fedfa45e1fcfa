package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/blob"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/hub/data"
	"offpeak/internal/steady"
	"offpeak/store"
	"offpeak/store/moving"
	"offpeak/store/postgres"
	"offpeak/store/sqlite"
)

func newMigrate(env Env) *cobra.Command {
	var from, to, blobs, format string
	cmd := &cobra.Command{
		Use:   "migrate --from PLACE --to PLACE",
		Short: "Carry a stopped grid from SQLite to PostgreSQL, or back",
		Long: `Carry all that a grid knows from one database to the other: from the file of one
hub (sqlite:FOLDER, its data folder) to a PostgreSQL database that several hubs
share (postgres://…), or back. Stop all hubs first; agents keep their jobs running
for as long as they may be without a hub. The target must be empty. What was copied
is read back and compared by its number of rows and a checksum before it counts;
whatever fails, or is interrupted, leaves the target empty and the source as it was.

Blobs (inputs, outputs, checkpoints, logs) are not in the database. On the way to
PostgreSQL, --blobs copies those in the data folder to a place that several hubs
reach, which they then name with their own --blobs. Otherwise blobs stay where they
are, and the hubs are told the same --blobs as before.

A password does not belong on a command line: PGPASSWORD and ~/.pgpass are read.
To bring a backup into PostgreSQL, see offpeak restore --db.`,
		Example: `  offpeak migrate --from sqlite:/var/lib/offpeak --to postgres://offpeak@db.example.org/offpeak --blobs s3://lab/offpeak
  offpeak migrate --from postgres://offpeak@db.example.org/offpeak --to sqlite:/var/lib/offpeak-new -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := tableOrJSON(format); err != nil {
				return err
			}
			source, err := parseHouse("from", from)
			if err != nil {
				return err
			}
			target, err := parseHouse("to", to)
			if err != nil {
				return err
			}
			ctx, restore := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer restore()
			context.AfterFunc(ctx, restore) // told again, it goes at once
			m := &move{env: env, from: source, to: target, blobs: blobs}
			if err := m.run(ctx); err != nil {
				if ctx.Err() != nil && m.moved.Tables == nil {
					// What an interrupt breaks, such as a connection, says nothing of it.
					return world.Hint(errors.New("interrupted: the target is as empty as it was, and the source as it was"), "Give the same command again.")
				}
				return diskFull(err)
			}
			if format == "json" {
				e := json.NewEncoder(env.Stdout)
				e.SetIndent("", "  ")
				return e.Encode(m.moved)
			}
			return m.show()
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "`place` of the grid: sqlite:FOLDER or postgres://…")
	f.StringVar(&to, "to", "", "`place` to carry it to")
	f.StringVar(&blobs, "blobs", "", "copy the data folder's blobs to this `place`, as the hubs on PostgreSQL will be told it")
	f.StringVarP(&format, "format", "o", "table", "print `table` or json")
	return cmd
}

// house is a place where a grid's rows are kept: a file or a database.
type house struct {
	flag string
	// file is the database's in a data folder, url a PostgreSQL database's; one is "".
	file, url string
}

// parseHouse reads what a flag says. A URL is not shown: it may hold a password.
func parseHouse(flag, text string) (house, error) {
	if path, ok := strings.CutPrefix(text, "sqlite:"); ok && path != "" {
		path = filepath.Clean(path)
		if info, err := os.Stat(path); filepath.Base(path) != data.DatabaseFile && (err != nil || info.IsDir()) {
			path = filepath.Join(path, data.DatabaseFile)
		}
		return house{flag: flag, file: path}, nil
	}
	if strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://") {
		if field := new(offpeak.FieldError); errors.As(postgres.CheckURL(text), &field) {
			return house{}, badInput("--%s: %s", flag, field.Rule)
		}
		return house{flag: flag, url: text}, nil
	}
	return house{}, badInput("--%s: is sqlite: and a hub's data folder, or the URL of a PostgreSQL database, for example postgres://offpeak@db.example.org/offpeak", flag)
}

// folder is the data folder that a file lies in.
func (h house) folder() string { return filepath.Dir(h.file) }

// String shows the place without what is secret.
func (h house) String() string {
	if h.file != "" {
		return "sqlite:" + h.folder()
	}
	u, err := url.Parse(h.url)
	if err != nil {
		return "postgres:"
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	q := u.Query()
	q.Del("password")
	q.Del("sslpassword")
	u.RawQuery = q.Encode()
	return u.String()
}

// moved is what is printed of a move.
type moved struct {
	From   string         `json:"from"`
	To     string         `json:"to"`
	Rows   int64          `json:"rows"`
	Tables []moving.Table `json:"tables"`
	// Blobs counts those that are at their place now; absent without --blobs.
	Blobs *int64 `json:"blobs,omitempty"`
}

// move is one run of the command.
type move struct {
	env      Env
	from, to house
	blobs    string
	moved    moved
	// copied says where blobs were copied to, as hubs compare it; place where they lie
	// in the end.
	copied string
	place  store.Place
}

func (m *move) run(ctx context.Context) (err error) {
	switch {
	case m.from.url != "" && m.to.url != "":
		return world.Hint(badInput("--from and --to are both PostgreSQL"), "Use pg_dump and pg_restore.")
	case m.from.file != "" && m.to.file != "":
		return world.Hint(badInput("--from and --to are both SQLite"), "Move the data folder, or use `offpeak backup` and `offpeak restore`.")
	}
	if m.to.file != "" && m.blobs != "" {
		return world.Hint(badInput("--blobs: is for the way to PostgreSQL"), "The one hub goes on with the place that the hubs had: `offpeak hub --blobs`.")
	}
	m.moved.From, m.moved.To = m.from.String(), m.to.String()
	if m.from.file != "" {
		err = m.toPostgres(ctx)
	} else {
		err = m.toSQLite(ctx)
	}
	for _, t := range m.moved.Tables {
		m.moved.Rows += t.Rows
	}
	return err
}

func (m *move) toPostgres(ctx context.Context) error {
	path := m.from.file
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return badInput("--from: there is no database at %s", path)
	}
	if err := sqlite.Examine(path); err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	if !sqlite.Served(path) {
		return world.Hint(badInput("--from: no hub has had %s in its data folder: it is a backup", path),
			"Bring it back as what it is: `offpeak restore "+m.from.folder()+" --db URL`.")
	}
	source, err := sqlite.Open(ctx, path, sqlite.Options{})
	if locked := new(sqlite.LockedError); errors.As(err, &locked) {
		return world.Hint(err, "Stop that hub first.")
	} else if err != nil {
		return storeError(err)
	}
	defer source.Close()
	target, err := m.to.openEmpty(ctx)
	if err != nil {
		return err
	}
	defer target.Close()
	if err := m.copyBlobs(ctx); err != nil {
		return err
	}
	if m.moved.Tables, err = moving.ToPostgres(ctx, source, target, m.progress()); err != nil {
		return err
	}
	return m.settleBlobs(ctx, source, target)
}

// settleBlobs tells the target where blobs lie, if that is not what it was, and notes
// how the hubs are told.
func (m *move) settleBlobs(ctx context.Context, source, target interface {
	Place(ctx context.Context) (store.Place, error)
	MoveBlobs(ctx context.Context, hub offpeak.HubID, to, at string) error
}) error {
	ctx = context.WithoutCancel(ctx) // the rows are there for good
	was, err := source.Place(ctx)
	if err != nil {
		return err
	}
	now := was
	file := hubOptions{data: m.to.folder()}
	shared := hubOptions{data: m.from.folder(), db: m.to.url}
	switch {
	case m.copied != "":
		now.Blobs, now.BlobsAt = m.copied, m.blobs
	case m.to.url != "" && was.Blobs == file.own():
		now.Blobs = shared.own()
	case m.to.file != "" && was.Blobs == (&hubOptions{data: m.to.folder(), db: m.from.url}).own():
		now.Blobs = file.own()
	}
	m.place = now
	if now == was {
		return nil
	}
	if err := target.MoveBlobs(ctx, "", now.Blobs, now.BlobsAt); err != nil {
		return world.Hint(fmt.Errorf("the rows were carried, but not where blobs lie: %w", err), "Start one hub with --blobs-moved.")
	}
	return nil
}

func (m *move) toSQLite(ctx context.Context) error {
	if _, err := os.Lstat(m.to.file); err == nil {
		return badInput("--to: %s holds a hub's state already: move it aside, or choose another folder", m.to.folder())
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look at the data folder: %w", err)
	}
	source, err := m.from.open(ctx)
	if err != nil {
		return err
	}
	defer source.Close()
	if there, err := holds(ctx, source); err != nil {
		return err
	} else if !there {
		return badInput("--from: the database holds no grid")
	}
	if err := moving.Unattended(ctx, source); err != nil {
		return err
	}
	_, err = os.Stat(m.to.folder())
	made := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(m.to.folder(), 0o700); err != nil {
		return fmt.Errorf("make data folder: %w", err)
	}
	defer func() {
		if made && m.moved.Tables == nil {
			// Whatever cannot go now is no hub's state.
			_ = os.Remove(m.to.file + ".lock")
			_ = os.Remove(m.to.folder())
		}
	}()
	if m.moved.Tables, err = moving.ToSQLite(ctx, source, m.to.file, m.progress()); err != nil {
		return err
	}
	target, err := sqlite.Open(context.WithoutCancel(ctx), m.to.file, sqlite.Options{})
	if err != nil {
		return storeError(err)
	}
	defer target.Close()
	return m.settleBlobs(ctx, source, target)
}

// open opens a database.
func (h house) open(ctx context.Context) (*postgres.Store, error) {
	db, err := postgres.Open(ctx, h.url, postgres.Options{Elapsed: steady.Counter()})
	if err != nil {
		return nil, databaseError(h.flag, err)
	}
	return db, nil
}

// openEmpty opens a database that is to take a grid.
func (h house) openEmpty(ctx context.Context) (*postgres.Store, error) {
	db, err := h.open(ctx)
	if err != nil {
		return nil, err
	}
	there, err := holds(ctx, db)
	if err == nil && there {
		err = world.Hint(badInput("--%s: the database holds a grid already", h.flag), "Name an empty database: a grid that is there is not replaced.")
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// holds says whether there is a grid in a store.
func holds(ctx context.Context, s store.Store) (bool, error) {
	accounts, _, err := s.Accounts(ctx, store.Page{Limit: 1})
	return len(accounts) > 0, err
}

// copyBlobs copies the data folder's blobs to the place that --blobs names.
func (m *move) copyBlobs(ctx context.Context) error {
	if m.blobs == "" {
		return nil
	}
	target, err := openPlace(ctx, m.blobs, m.from.folder(), time.Now)
	if err != nil {
		return err
	}
	defer target.Close()
	source, err := blob.OpenLocal(filepath.Join(m.from.folder(), data.BlobFolder))
	if err != nil {
		return fmt.Errorf("open the data folder's blobs: %w", err)
	}
	defer source.Close()
	n := int64(0)
	progress := m.progress()
	for hash, err := range source.All() {
		if err == nil {
			err = copyBlob(ctx, source, target.Store, hash)
		}
		if err != nil {
			return fmt.Errorf("copy blobs: %w", err)
		}
		n++
		progress(moving.Step{Table: "bytes of blobs", Done: n})
	}
	m.moved.Blobs, m.copied = &n, (&hubOptions{data: m.from.folder(), db: m.to.url}).blobsIn(target)
	return nil
}

// progress shows how far it is once that takes a while: on a terminal one line that
// changes, else a line now and then.
func (m *move) progress() moving.Progress {
	w, terminal, last := m.env.Stderr, world.Terminal(m.env.Stderr), time.Now()
	pause, format := 5*time.Second, "%s %s: %d of %d\n"
	if terminal {
		pause, format = 200*time.Millisecond, "\r\x1b[K%s %s: %d of %d"
	}
	return func(s moving.Step) {
		now := time.Now()
		if now.Sub(last) < pause {
			return
		}
		last = now
		verb := "copied"
		if s.Checking {
			verb = "checked"
		}
		fmt.Fprintf(w, format, verb, s.Table, s.Done, max(s.Done, s.Of))
	}
}

// show says what was moved, and what is left to do.
func (m *move) show() error {
	if world.Terminal(m.env.Stderr) {
		fmt.Fprint(m.env.Stderr, "\r\x1b[K")
	}
	t := render.NewTable(m.env.Stdout)
	t.Row("TABLE", "ROWS", "SHA-256")
	for _, table := range m.moved.Tables {
		t.Row(table.Name, fmt.Sprint(table.Rows), table.Checksum)
	}
	t.Line("")
	t.Line(fmt.Sprintf("%s was carried to %s: %d rows, each read back and the same.", m.moved.From, m.moved.To, m.moved.Rows))
	for _, table := range m.moved.Tables {
		if table.Mended > 0 {
			t.Line(fmt.Sprintf("PostgreSQL can't hold zero bytes in texts: U+FFFD stands for them in %d texts of table %s.", table.Mended, table.Name))
		}
	}
	for _, line := range m.next() {
		t.Line(line)
	}
	return t.Flush()
}

// next is what is left to do.
func (m *move) next() []string {
	if m.to.file != "" {
		folder := m.to.folder()
		blobs, next := "Blobs stay where they are.", "next: offpeak hub --data "+folder
		switch own := (&hubOptions{data: folder}).own(); {
		case m.place.BlobsAt != "":
			next += " --blobs '" + m.place.BlobsAt + "'"
		case m.place.Blobs != own && m.place.Blobs != "":
			blobs = "Blobs lie in " + m.place.Blobs + ": copy its " + data.BlobFolder + " to " + folder + " first."
			next += " --blobs-moved"
		}
		return []string{
			blobs,
			"The hubs' key, if they have one, is " + data.KeyFile + " in their data folders: copy it to " + folder + ".",
			next,
		}
	}
	folder := m.from.folder()
	blobs := "Blobs stay where they are. Those in " + filepath.Join(folder, data.BlobFolder) + " serve one hub only: for several, copy them with --blobs."
	next := "next: offpeak hub --data " + folder + " --db '" + m.moved.To + "'"
	if m.place.BlobsAt != "" {
		blobs = "Blobs stay where they are."
		next += " --blobs '" + m.place.BlobsAt + "'"
	}
	if m.moved.Blobs != nil {
		blobs = fmt.Sprintf("%d blobs were copied to %s.", *m.moved.Blobs, m.blobs)
	}
	return []string{blobs, m.from.file + " is as it was: start no hub on it again.", next}
}
