package moving

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"strings"
)

// file is a side in an SQLite file.
type file struct{ c *sql.Conn }

func (f *file) end(context.Context) error { return nil }
func (f *file) mend(s string) string      { return s }

func (f *file) columns(ctx context.Context) (map[string]columns, error) {
	rows, err := f.c.QueryContext(ctx, `SELECT t.name, c.name, c.type FROM sqlite_schema t JOIN pragma_table_info(t.name) c
		WHERE t.type = 'table' AND t.name NOT IN ('sqlite_sequence', 'goose_db_version')`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]columns{}
	for rows.Next() {
		var table, name, kind string
		if err := rows.Scan(&table, &name, &kind); err != nil {
			return nil, err
		}
		if out[table] == nil {
			out[table] = columns{}
		}
		out[table][name] = kind
	}
	return out, rows.Err()
}

func (f *file) count(ctx context.Context, t table) (n int64, err error) {
	if err := f.c.QueryRowContext(ctx, `SELECT count(*) FROM `+t.name).Scan(&n); err != nil {
		return 0, fmt.Errorf("count table %s: %w", t.name, err)
	}
	return n, nil
}

func (f *file) rows(ctx context.Context, t table, cols []string) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		rows, err := f.c.QueryContext(ctx, `SELECT `+quoted(cols)+` FROM `+t.name+t.order())
		if err != nil {
			yield(nil, err)
			return
		}
		defer rows.Close()
		dest := make([]any, len(cols))
		for rows.Next() {
			row := make([]any, len(cols))
			for i := range row {
				dest[i] = &row[i]
			}
			if err := rows.Scan(dest...); err != nil {
				yield(nil, err)
				return
			}
			for i, v := range row {
				// The driver's word for no bytes, which is not NULL.
				if b, ok := v.([]byte); ok && b == nil {
					row[i] = []byte{}
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

func (f *file) counter(ctx context.Context, t table) (n int64, err error) {
	err = f.c.QueryRowContext(ctx, `SELECT seq FROM sqlite_sequence WHERE name = ?1`, t.name).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, err
}

func (f *file) write(ctx context.Context, t table, cols []string, rows iter.Seq2[[]any, error]) (err error) {
	insert, err := f.c.PrepareContext(ctx, `INSERT INTO `+t.name+` (`+quoted(cols)+`) VALUES (?`+strings.Repeat(", ?", len(cols)-1)+`)`)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, insert.Close()) }()
	for row, err := range rows {
		if err != nil {
			return err
		}
		if _, err := insert.ExecContext(ctx, row...); err != nil {
			return err
		}
	}
	return nil
}

func (f *file) goOn(ctx context.Context, t table, last int64) error {
	// The engine has a row here for a table that has had rows.
	have, err := f.counter(ctx, t)
	if err != nil {
		return err
	}
	if _, err := f.c.ExecContext(ctx, `DELETE FROM sqlite_sequence WHERE name = ?1`, t.name); err != nil {
		return err
	}
	_, err = f.c.ExecContext(ctx, `INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)`, t.name, max(have, last))
	return err
}
