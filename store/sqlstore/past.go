package sqlstore

import (
	"context"
	"errors"
	"iter"
	"time"

	"offpeak"
	"offpeak/store"
)

// Ends tells how leases ended.
func (s *Store) Ends(ctx context.Context, since time.Time) ([]store.Ends, error) {
	const day = int64(24 * time.Hour / time.Microsecond)
	return read(ctx, s, "read how leases ended", func(t *verb) (out []store.Ends, err error) {
		err = t.each(`SELECT node, reason, ended_at / $1, CAST(avg(ended_at) AS BIGINT), max(ended_at), count(*) FROM leases
			WHERE ended_at > $2 GROUP BY 1, 2, 3`, []any{day, micros(since)}, func(r Rows) error {
			var e store.Ends
			var bucket, at, last int64
			err := r.Scan(&e.Node, &e.Reason, &bucket, &at, &last, &e.Leases)
			e.At, e.Last = moment(at), moment(last)
			out = append(out, e)
			return err
		})
		return out, err
	})
}

// Stays walks over the times for which nodes were available.
func (s *Store) Stays(ctx context.Context, since time.Time) iter.Seq2[store.Stay, error] {
	return func(yield func(store.Stay, error) bool) {
		var stopped = errors.New("stopped")
		_, err := read(ctx, s, "read when nodes were available", func(t *verb) (struct{}, error) {
			return struct{}{}, t.each(`SELECT node, at, COALESCE(next, 0) FROM
				(SELECT node, at, availability, lead(at) OVER (PARTITION BY node ORDER BY at) AS next FROM node_availability WHERE at > $1) AS turns
				WHERE availability = $2 ORDER BY node, at`, []any{micros(since), string(offpeak.NodeAvailable)}, func(r Rows) error {
				var y store.Stay
				var from, to int64
				if err := r.Scan(&y.Node, &from, &to); err != nil {
					return err
				}
				y.From, y.To = moment(from), moment(to)
				if !yield(y, nil) {
					return stopped
				}
				return ctx.Err()
			})
		})
		if err != nil && !errors.Is(err, stopped) {
			yield(store.Stay{}, err)
		}
	}
}
