package tuning

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"offpeak"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/placement/replay"
	"offpeak/store/recorded"
)

// databaseFile is the name of a hub's database in its data folder and in a backup.
const databaseFile = "offpeak.db"

// load reads traffic from where --from says: a file of traffic or of events, a
// backup, a data folder, a database.
func (r *replaying) load(ctx context.Context) (*replay.Traffic, error) {
	from := r.from
	if from == "" {
		return nil, world.BadInput("--from: is needed: a backup or a hub's data folder, postgres://…, or a file of recorded traffic or of events")
	}
	if strings.HasPrefix(from, "postgres://") || strings.HasPrefix(from, "postgresql://") {
		return r.fromStore(ctx, from)
	}
	path := strings.TrimPrefix(from, "sqlite:")
	info, err := os.Stat(path)
	if err != nil {
		return nil, world.BadInput("--from: %w", err)
	}
	if info.IsDir() {
		path = filepath.Join(path, databaseFile)
		if _, err := os.Stat(path); err != nil {
			return nil, world.BadInput("--from: there is no database in %s: name a backup, a hub's data folder, or a file", from)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, world.BadInput("--from: %w", err)
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<16)
	begin, err := in.Peek(len(sqliteMagic))
	if err == nil && string(begin) == sqliteMagic {
		return r.fromStore(ctx, path)
	}
	line, err := firstLine(in)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("--from: read %s: %w", path, err)
	}
	return parse(ctx, path, line, in)
}

// parse reads a file of which the first line was read.
func parse(ctx context.Context, path string, line []byte, in io.Reader) (t *replay.Traffic, err error) {
	rest := io.MultiReader(bytes.NewReader(line), in)
	if replay.Known(line) {
		t, err = replay.Read(stoppable{ctx, rest})
	} else {
		t, err = replay.Record(replay.Events(lines(stoppable{ctx, rest})), replay.Base{})
	}
	if ctx.Err() != nil {
		return nil, ctx.Err() // what was read until then ends within a line
	}
	if errors.Is(err, bufio.ErrTooLong) {
		err = fmt.Errorf("%w: a line is at most %s", err, offpeak.Bytes(replay.MaxLine))
	}
	if err != nil {
		return nil, world.Hint(world.BadInput("--from: %s: %w", path, err), "Recorded traffic comes from `offpeak replay record`, events from `offpeak events --after 0 -o json`.")
	}
	return t, nil
}

const sqliteMagic = "SQLite format 3\x00"

func firstLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for len(line) < replay.MaxLine {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
	return line, nil
}

func lines(in io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s := bufio.NewScanner(in)
		s.Buffer(make([]byte, 1<<16), replay.MaxLine)
		for s.Scan() {
			if !yield(s.Bytes(), nil) {
				return
			}
		}
		if err := s.Err(); err != nil {
			yield(nil, err)
		}
	}
}

// stoppable ends reading when its context does.
type stoppable struct {
	ctx context.Context
	in  io.Reader
}

func (s stoppable) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.in.Read(p)
}

func (r *replaying) fromStore(ctx context.Context, place string) (_ *replay.Traffic, err error) {
	r.progress.begin("reading what was recorded")
	s, closeStore, err := r.open(ctx, place)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	t, err := recorded.Read(ctx, s, func(read, most int64) { r.progress.at(float64(read) / float64(max(most, 1))) })
	if err != nil && errors.Is(err, offpeak.ErrNotFound) {
		return nil, fmt.Errorf("--from: %w", err)
	}
	return t, err
}
