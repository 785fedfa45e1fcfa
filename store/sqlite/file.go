package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"offpeak"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// LockedError says that another process has the store open.
type LockedError struct {
	// Path is the store's file.
	Path string
	// PID is the holder's process id, 0 where it is not known.
	PID int
}

func (e *LockedError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s is in use by %s; one SQLite file serves one hub: stop that hub or give this one another folder", e.Path, who)
}

// Unwrap makes errors.Is(e, offpeak.ErrUnavailable) true.
func (e *LockedError) Unwrap() error { return offpeak.ErrUnavailable }

// CorruptError says that a file is damaged or is no Offpeak database.
type CorruptError struct {
	Path string
	// Finding is what is wrong with it.
	Finding string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged: %s; it was not changed. Restore a backup with `offpeak restore`", e.Path, e.Finding)
}

// Unwrap makes errors.Is(e, offpeak.ErrStorage) true.
func (e *CorruptError) Unwrap() error { return offpeak.ErrStorage }

// SchemaError says that a newer Offpeak wrote the file.
type SchemaError struct {
	Path string
	// Have is the file's schema version, Know the newest that this binary knows.
	Have, Know int64
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("%s has schema version %d, this offpeak knows versions up to %d: use the newer offpeak, or restore an older backup", e.Path, e.Have, e.Know)
}

// lock is held on a file beside the store's.
type lock struct{ f *os.File }

func lockFile(path string) (*lock, error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", offpeak.ErrStorage, err)
	}
	taken, err := tryLock(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if taken {
		defer f.Close()
		b, _ := io.ReadAll(io.LimitReader(f, 32)) // the pid is a courtesy
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return nil, &LockedError{Path: path, PID: pid}
	}
	// The pid is for people; the lock holds without it, as on a full disk.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &lock{f: f}, nil
}

// unlock lets go. The file stays: removing it would race with who opens it.
func (l *lock) unlock() {
	if l != nil {
		_ = l.f.Truncate(0)
		_ = l.f.Close()
	}
}

// examineFile looks at the file before the engine does: whether it is a
// database at all and as long as it says.
func examineFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", offpeak.ErrStorage, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", offpeak.ErrStorage, err)
	}
	if info.IsDir() {
		return &CorruptError{Path: path, Finding: "it is a folder"}
	}
	if info.Size() == 0 {
		return nil
	}
	var head [100]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return &CorruptError{Path: path, Finding: "it is shorter than a database's header"}
	}
	if string(head[:16]) != "SQLite format 3\x00" {
		return &CorruptError{Path: path, Finding: "it is not an SQLite database"}
	}
	// While there is a log, the file's end may be in it: a hub that is killed in
	// the middle of a checkpoint has written the new length, which stands on the
	// first page, before the last pages. The engine puts that right.
	if wal, err := os.Stat(path + "-wal"); err == nil && wal.Size() > 0 {
		return nil
	}
	page := int64(binary.BigEndian.Uint16(head[16:]))
	if page == 1 {
		page = 65536
	}
	pages := int64(binary.BigEndian.Uint32(head[28:]))
	if info.Size() < page*pages {
		return &CorruptError{Path: path, Finding: fmt.Sprintf("it has %d bytes and should have %d: its end was cut off", info.Size(), page*pages)}
	}
	return nil
}

// wholeCheck is the size up to which the whole file is checked at start: about
// half a second's work. Larger files are checked by `offpeak check`.
const wholeCheck = 64 << 20

// examine asks the engine whether the file is sound.
func examine(ctx context.Context, pool *sql.DB, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%w: %w", offpeak.ErrStorage, err)
	}
	query := `PRAGMA quick_check(1)`
	if info.Size() > wholeCheck {
		query = `PRAGMA quick_check(nodes)`
	}
	var finding string
	if err := pool.QueryRowContext(ctx, query).Scan(&finding); err != nil {
		return damaged(path, err)
	}
	if finding != "ok" {
		return &CorruptError{Path: path, Finding: finding}
	}
	return nil
}

// damaged tells a damaged file from other errors.
func damaged(path string, err error) error {
	if isCorrupt(err) {
		return &CorruptError{Path: path, Finding: err.Error()}
	}
	return classify(err)
}

// migrate brings the schema up to date.
func migrate(ctx context.Context, pool *sql.DB, path string) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, pool, files)
	if err != nil {
		return damaged(path, err)
	}
	sources := p.ListSources()
	know := sources[len(sources)-1].Version
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return damaged(path, err)
	}
	if have > know {
		return &SchemaError{Path: path, Have: have, Know: know}
	}
	if have == know {
		return nil
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate from version %d: %w", have, damaged(path, err))
	}
	return nil
}

// place renames a finished file into its place and makes both durable.
func place(part, path string) error {
	f, err := os.OpenFile(part, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}
