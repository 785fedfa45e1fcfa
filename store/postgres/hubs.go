package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/store/sqlstore"

	"github.com/jackc/pgx/v5"
)

// channel is where hubs tell each other.
const channel = "offpeak"

// Attend notes that a hub is at work and asks for the lead.
func (s *Store) Attend(ctx context.Context, hub offpeak.Hub, lead time.Duration) (store.Attendance, error) {
	var out store.Attendance
	err := s.db.Write(ctx, func(t sqlstore.Tx) (err error) {
		out, err = attend(t, hub, lead)
		return err
	})
	if err != nil {
		return store.Attendance{}, fmt.Errorf("attend as %s: %w", hub.ID, err)
	}
	return out, nil
}

func attend(t sqlstore.Tx, hub offpeak.Hub, lead time.Duration) (out store.Attendance, err error) {
	now := t.Now().UnixMicro()
	addresses, err := json.Marshal(hub.Addresses)
	if err != nil {
		return out, err
	}
	if out.Grid, err = sqlstore.Belong(t, hub); err != nil {
		return out, err
	}
	if _, err := t.Exec(`INSERT INTO hubs (id, addresses, version, blobs, started_at, seen_at, fingerprint) VALUES ($1, $2, $3, $4, $5, $5, $6)
		ON CONFLICT (id) DO UPDATE SET addresses = excluded.addresses, version = excluded.version, seen_at = excluded.seen_at`,
		string(hub.ID), string(addresses), hub.Version, hub.Blobs, now, hub.Fingerprint); err != nil {
		return out, err
	}
	if lead > 0 {
		// Whoever finds the row taken does not wait: it will ask again.
		n, err := t.Exec(`UPDATE leader SET term = term + CASE WHEN hub = $1 THEN 0 ELSE 1 END, hub = $1, until = $2
			WHERE one = (SELECT one FROM leader WHERE hub = $1 OR until < $3 FOR NO KEY UPDATE SKIP LOCKED)`, string(hub.ID), now+lead.Microseconds(), now)
		if err != nil {
			return out, err
		}
		out.Leads = n == 1
		if err := one(t, `SELECT term FROM leader`, nil, &out.Term); err != nil {
			return out, err
		}
	}
	out.Addresses = hub.Addresses
	rows, err := t.Query(`SELECT addresses FROM hubs WHERE id <> $1 AND seen_at > $2 ORDER BY id`, string(hub.ID), now-store.AliveFor.Microseconds())
	if err != nil {
		return out, err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		var more []string
		if err := rows.Scan(&text); err != nil {
			return out, err
		}
		if err := json.Unmarshal([]byte(text), &more); err != nil {
			return out, fmt.Errorf("read a hub's addresses: %w", err)
		}
		out.Others++
		out.Addresses = append(out.Addresses[:len(out.Addresses):len(out.Addresses)], more...)
	}
	return out, rows.Err()
}

// MoveBlobs says that the grid's blobs lie elsewhere now.
func (s *Store) MoveBlobs(ctx context.Context, hub offpeak.HubID, to, at string) error {
	err := s.db.Write(ctx, func(t sqlstore.Tx) error {
		var others int
		if err := one(t, `SELECT count(*) FROM hubs WHERE id <> $1 AND seen_at > $2`, []any{string(hub), t.Now().Add(-store.AliveFor).UnixMicro()}, &others); err != nil {
			return err
		}
		if others > 0 {
			return fmt.Errorf("%d other hubs are at work: %w", others, offpeak.ErrConflict)
		}
		return sqlstore.MoveBlobs(t, to, at)
	})
	if err != nil {
		return fmt.Errorf("move blobs to %s: %w", to, err)
	}
	return nil
}

// one reads the one row of a query.
func one(t sqlstore.Tx, query string, args []any, dest ...any) error {
	rows, err := t.Query(query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return err
		}
		return offpeak.ErrNotFound
	}
	if err := rows.Scan(dest...); err != nil {
		return err
	}
	return rows.Close()
}

// Leave gives a hub's lead up and forgets it.
func (s *Store) Leave(ctx context.Context, hub offpeak.HubID) error {
	err := s.db.Write(ctx, func(t sqlstore.Tx) error {
		if _, err := t.Exec(`UPDATE leader SET until = 0 WHERE hub = $1`, string(hub)); err != nil {
			return err
		}
		_, err := t.Exec(`DELETE FROM hubs WHERE id = $1 OR seen_at < $2`, string(hub), t.Now().Add(-day).UnixMicro())
		return err
	})
	if err != nil {
		return fmt.Errorf("leave as %s: %w", hub, err)
	}
	return nil
}

const day = 24 * time.Hour

// Hubs lists the hubs of the last day.
func (s *Store) Hubs(ctx context.Context) ([]offpeak.Hub, error) {
	var out []offpeak.Hub
	err := s.db.Read(ctx, func(t sqlstore.Tx) error {
		now := t.Now()
		rows, err := t.Query(`SELECT h.id, h.addresses, h.version, h.blobs, h.started_at, h.seen_at, h.fingerprint, l.hub = h.id AND l.until >= $1
			FROM hubs h, leader l WHERE h.seen_at > $2 ORDER BY h.started_at DESC, h.id`, now.UnixMicro(), now.Add(-day).UnixMicro())
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var h offpeak.Hub
			var addresses string
			var started, seen int64
			if err := rows.Scan(&h.ID, &addresses, &h.Version, &h.Blobs, &started, &seen, &h.Fingerprint, &h.Leads); err != nil {
				return err
			}
			if err := json.Unmarshal([]byte(addresses), &h.Addresses); err != nil {
				return fmt.Errorf("read addresses of %s: %w", h.ID, err)
			}
			h.StartedAt, h.SeenAt = time.UnixMicro(started).UTC(), time.UnixMicro(seen).UTC()
			out = append(out, h)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("list hubs: %w", err)
	}
	return out, nil
}

// Tell says a text to all hubs that listen.
func (s *Store) Tell(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeout(ctx, connectFor)
	defer cancel()
	c, err := s.db.acquire(ctx)
	if err != nil {
		return fmt.Errorf("tell hubs: %w", err)
	}
	defer c.Release()
	b := &pgx.Batch{}
	// What may be lost need not be on the disk before it is told.
	b.Queue(beginWrite)
	b.Queue(`SET LOCAL synchronous_commit = off`)
	b.Queue(`SELECT pg_notify($1, $2)`, channel, text)
	b.Queue(`COMMIT`)
	if err := c.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("tell hubs: %w", classify(err))
	}
	return nil
}

// Listen hears what hubs tell, over a connection of its own.
func (s *Store) Listen(ctx context.Context, heard func(text string)) error {
	if s.db.closed.Load() {
		return errClosed()
	}
	c, err := pgx.ConnectConfig(ctx, s.db.cfg.ConnConfig)
	if err != nil {
		return fmt.Errorf("listen to hubs: %w", classify(err))
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	if _, err := c.Exec(ctx, `LISTEN `+channel); err != nil {
		return fmt.Errorf("listen to hubs: %w", classify(err))
	}
	heard("")
	for {
		n, err := c.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("listen to hubs: %w", classify(err))
		}
		heard(n.Payload)
	}
}
