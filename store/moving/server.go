package moving

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"offpeak/store/postgres"

	"github.com/jackc/pgx/v5"
)

// server is a side in a PostgreSQL database.
type server struct {
	c *pgx.Conn
	// booleans are the columns that SQLite keeps as 0 and 1, by table and name. Set
	// by columns.
	booleans map[[2]string]bool
}

// lock keeps hubs from writing, and forgets what one that came and was refused has
// noted. It waits for nobody for long: one that is at work holds what it asks for.
func (s *server) lock(ctx context.Context) error {
	var names []string
	for _, t := range tables() {
		names = append(names, t.name)
	}
	if _, err := s.c.Exec(ctx, `LOCK TABLE grid, hubs, `+strings.Join(names, ", ")+` IN EXCLUSIVE MODE`); err != nil {
		return fmt.Errorf("lock the tables: %w", err)
	}
	if _, err := s.c.Exec(ctx, `DELETE FROM meta WHERE key IN ('grid', 'blobs', 'blobs_at') AND NOT EXISTS (SELECT FROM accounts)`); err != nil {
		return fmt.Errorf("forget hubs that were refused: %w", err)
	}
	return nil
}

// end has the planner know what came: it would guess until the server looks by itself.
func (s *server) end(ctx context.Context) error {
	for _, t := range tables() {
		if _, err := s.c.Exec(ctx, `ANALYZE `+t.name); err != nil {
			return fmt.Errorf("analyze table %s: %w", t.name, err)
		}
	}
	return nil
}

// mend replaces what a text of PostgreSQL can't hold, as store/postgres does.
func (s *server) mend(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

func (s *server) columns(ctx context.Context) (map[string]columns, error) {
	rows, err := s.c.Query(ctx, `SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relkind IN ('r', 'p') AND c.relnamespace = CAST(current_schema() AS regnamespace) AND a.attnum > 0 AND NOT a.attisdropped
		AND c.relname NOT IN ('goose_db_version', 'grid', 'hubs', 'leader')`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	kinds := map[string]string{"bigint": "INTEGER", "boolean": "INTEGER", "text": "TEXT", "bytea": "BLOB"}
	out := map[string]columns{}
	s.booleans = map[[2]string]bool{}
	for rows.Next() {
		var table, name, kind string
		if err := rows.Scan(&table, &name, &kind); err != nil {
			return nil, err
		}
		if out[table] == nil {
			out[table] = columns{}
		}
		out[table][name] = kind
		if known, ok := kinds[kind]; ok {
			out[table][name] = known
		}
		s.booleans[[2]string{table, name}] = kind == "boolean"
	}
	return out, rows.Err()
}

func (s *server) count(ctx context.Context, t table) (n int64, err error) {
	if err := s.c.QueryRow(ctx, `SELECT count(*) FROM `+t.name).Scan(&n); err != nil {
		return 0, fmt.Errorf("count table %s: %w", t.name, err)
	}
	return n, nil
}

func (s *server) rows(ctx context.Context, t table, cols []string) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		rows, err := s.c.Query(ctx, `SELECT `+quoted(cols)+` FROM `+t.name+t.order())
		if err != nil {
			yield(nil, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			row, err := rows.Values()
			if err != nil {
				yield(nil, err)
				return
			}
			for i, v := range row {
				if yes, ok := v.(bool); ok {
					row[i] = int64(0)
					if yes {
						row[i] = int64(1)
					}
				}
			}
			if !yield(row, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(nil, err)
		}
	}
}

func (s *server) counter(ctx context.Context, t table) (n int64, err error) {
	if t.name == events {
		return postgres.LastCursor(ctx, s.c)
	}
	var sequence string
	if err := s.c.QueryRow(ctx, `SELECT pg_get_serial_sequence($1, $2)`, t.name, t.counter).Scan(&sequence); err != nil {
		return 0, err
	}
	err = s.c.QueryRow(ctx, `SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM `+sequence).Scan(&n)
	return n, err
}

func (s *server) write(ctx context.Context, t table, cols []string, rows iter.Seq2[[]any, error]) error {
	next, stop := iter.Pull2(rows)
	defer stop()
	_, err := s.c.CopyFrom(ctx, pgx.Identifier{t.name}, cols, pgx.CopyFromFunc(func() ([]any, error) {
		row, err, ok := next()
		if !ok || err != nil {
			return nil, err
		}
		for i, v := range row {
			if n, ok := v.(int64); ok && s.booleans[[2]string{t.name, cols[i]}] {
				row[i] = n != 0
			}
		}
		return row, nil
	}))
	return err
}

func (s *server) goOn(ctx context.Context, t table, last int64) error {
	if t.name == events {
		return postgres.GoOnAfter(ctx, s.c, last)
	}
	// Not setval: that would stay when the transaction does not.
	_, err := s.c.Exec(ctx, fmt.Sprintf(`ALTER TABLE %s ALTER COLUMN %s RESTART WITH %d`, t.name, t.counter, last+1))
	return err
}
