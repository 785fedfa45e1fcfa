package postgres

import (
	"fmt"
	"strconv"
	"strings"

	"offpeak/store/sqlstore"

	"github.com/jackc/pgx/v5"
)

// ExecMany runs each statement once over all lists of its arguments, and all
// statements in one round trip.
func (t *tx) ExecMany(list ...sqlstore.Many) ([]int64, error) {
	b := &pgx.Batch{}
	for _, m := range list {
		if len(m.Args) == 0 {
			continue
		}
		if len(m.Args) == 1 {
			b.Queue(m.Query, bound(m.Args[0])...)
			continue
		}
		columns, types, err := turned(m.Args)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Query, err)
		}
		b.Queue(t.db.overMany(m.Query, types), columns...)
	}
	if err := t.countEvents(); err != nil {
		return nil, err
	}
	rows := make([]int64, len(list))
	if b.Len() == 0 {
		return rows, nil
	}
	r := t.c.SendBatch(t.ctx, b)
	var err error
	for i, m := range list {
		if len(m.Args) == 0 {
			continue
		}
		tag, failed := r.Exec()
		if failed != nil {
			err = failed
			break
		}
		rows[i] = tag.RowsAffected()
	}
	if end := r.Close(); err == nil {
		err = end
	}
	return rows, classify(err)
}

// turned makes lists of arguments, one a row, a list for each column, and names
// the columns' types.
func turned(rows [][]any) (columns []any, types string, err error) {
	names := make([]string, len(rows[0]))
	columns = make([]any, len(rows[0]))
	for k, v := range rows[0] {
		switch v.(type) {
		case string:
			columns[k], names[k] = column[string](rows, k), "text"
		case int64:
			columns[k], names[k] = column[int64](rows, k), "bigint"
		case *int64:
			columns[k], names[k] = column[*int64](rows, k), "bigint"
		case bool:
			columns[k], names[k] = column[bool](rows, k), "boolean"
		case []byte:
			columns[k], names[k] = column[[]byte](rows, k), "bytea"
		default:
			return nil, "", fmt.Errorf("parameter $%d is a %T, which no column is made of", k+1, v)
		}
	}
	return columns, strings.Join(names, " "), nil
}

func column[T any](rows [][]any, k int) []T {
	out := make([]T, len(rows))
	for i, row := range rows {
		out[i], _ = bound(row[k : k+1])[0].(T) // a statement's arguments are of the same types each time
	}
	return out
}

// overMany makes a statement for one row, of parameters of the types, one over the
// rows of a table of such parameters, which come as a list for each column.
func (d *db) overMany(query, types string) string {
	key := [2]string{query, types}
	if q, ok := d.spread.Load(key); ok {
		return q.(string)
	}
	var lists, names []string
	for i, t := range strings.Fields(types) {
		lists = append(lists, fmt.Sprintf("CAST($%d AS %s[])", i+1, t))
		names = append(names, "p"+strconv.Itoa(i+1))
	}
	table := "unnest(" + strings.Join(lists, ", ") + ") AS v (" + strings.Join(names, ", ") + ")"
	named := sqlstore.Parameters(query, func(n int) string { return "v.p" + strconv.Itoa(n) })
	var q string
	if before, rest, found := strings.Cut(named, "VALUES ("); found {
		row, after, _ := strings.Cut(rest, ")")
		q = before + "SELECT " + row + " FROM " + table + after
	} else {
		at := outerWhere(named)
		joined := " FROM "
		if strings.HasPrefix(named, "INSERT") {
			joined = ", "
		}
		q = named[:at] + joined + table + " " + named[at:]
	}
	d.spread.Store(key, q)
	return q
}

// outerWhere is where a statement's own WHERE begins, not that of a subquery.
func outerWhere(query string) int {
	depth := 0
	for i := range len(query) {
		switch query[i] {
		case '(':
			depth++
		case ')':
			depth--
		case 'W':
			if depth == 0 && strings.HasPrefix(query[i:], "WHERE ") {
				return i
			}
		}
	}
	panic("postgres: a statement over many rows has no WHERE: " + query)
}
