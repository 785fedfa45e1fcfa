package sqlstore

import (
	"context"
	"time"

	"offpeak/store"
)

// Used sums up what leases that have ended held.
func (s *Store) Used(ctx context.Context, since time.Time) ([]store.Used, error) {
	const step = int64(time.Hour / time.Microsecond)
	return read(ctx, s, "read what accounts used", func(t *verb) (out []store.Used, err error) {
		// Within an hour of beginning and one of end all count from the middle of these:
		// far less than a half-life. Devices are a JSON list: they are counted by what
		// stands between two.
		err = t.each(`SELECT account, offered_at / $1, ended_at / $1, CAST(avg(offered_at) AS BIGINT), CAST(avg(ended_at) AS BIGINT), CAST(sum(cpu) AS BIGINT),
			CAST(sum(CASE WHEN devices = '' THEN 0 ELSE 1 + (length(devices) - length(replace(devices, '","', ''))) / 3 END) AS BIGINT)
			FROM leases WHERE ended_at > $2 GROUP BY 1, 2, 3`, []any{step, since.UnixMicro()}, func(r Rows) error {
			var u store.Used
			var bucket, from, to, gpus int64
			err := r.Scan(&u.Account, &bucket, &bucket, &from, &to, &u.CPU, &gpus)
			u.From, u.To, u.GPUs = moment(from), moment(to), int(gpus)
			out = append(out, u)
			return err
		})
		return out, err
	})
}
