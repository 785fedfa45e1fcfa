package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"offpeak"
	"offpeak/store"
)

// protection is how long a blob that was just stored or asked about is safe
// from collection: a client may be about to refer to it.
const protection = 24 * time.Hour

// AddBlob says that an account has a blob.
func (s *Store) AddBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash, size offpeak.Bytes) error {
	if size < 0 || len(hash) != 64 {
		return &offpeak.FieldError{Field: "hash", Value: string(hash), Rule: "is a SHA-256 in hex, of at least 0 bytes"}
	}
	_, err := write(ctx, s, "add blob "+string(hash), func(t *verb) (struct{}, error) {
		until := micros(t.now.Add(protection))
		n, err := t.Exec(`UPDATE blobs SET protected_until = $1 WHERE hash = $2 AND account = $3`, until, string(hash), string(account))
		if err != nil || n == 1 {
			return struct{}{}, err
		}
		if err := t.lockAccount(account); err != nil {
			return struct{}{}, err
		}
		a, err := t.account(account)
		if err != nil {
			return struct{}{}, err
		}
		if a.Quota.Storage > 0 && size > a.Quota.Storage-a.Stored {
			return struct{}{}, fmt.Errorf("%w: %s stored and %s more is over %s", offpeak.ErrQuota, a.Stored, size, a.Quota.Storage)
		}
		// Another upload of the same bytes may be a moment ahead.
		if err := t.must(`INSERT INTO blobs (hash, account, size, protected_until) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`, string(hash), string(account), int64(size), until); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, t.must(`UPDATE accounts SET stored = stored + $1 WHERE id = $2`, int64(size), string(account))
	})
	return err
}

// MissingBlobs returns the hashes that an account does not have.
func (s *Store) MissingBlobs(ctx context.Context, account offpeak.AccountID, hashes []offpeak.Hash) ([]offpeak.Hash, error) {
	return write(ctx, s, "find missing blobs", func(t *verb) ([]offpeak.Hash, error) {
		list := texts(hashes)
		if err := t.Lock(`SELECT 1 FROM blobs WHERE account = $1 AND hash = ANY($2) ORDER BY hash`+forUpdate, string(account), list); err != nil {
			return nil, err
		}
		has := make(map[offpeak.Hash]bool, len(hashes))
		if err := t.each(`SELECT hash FROM blobs WHERE account = $1 AND hash = ANY($2)`, []any{string(account), list}, func(rows Rows) error {
			var h offpeak.Hash
			err := rows.Scan(&h)
			has[h] = true
			return err
		}); err != nil {
			return nil, err
		}
		if len(has) > 0 {
			if _, err := t.Exec(`UPDATE blobs SET protected_until = $1 WHERE account = $2 AND hash = ANY($3)`, micros(t.now.Add(protection)), string(account), list); err != nil {
				return nil, err
			}
		}
		var missing []offpeak.Hash
		for _, h := range hashes {
			if !has[h] {
				missing = append(missing, h)
			}
		}
		return missing, nil
	})
}

// lockAccount locks an account whose use is compared with a quota.
func (t *verb) lockAccount(id offpeak.AccountID) error {
	return t.Lock(`SELECT 1 FROM accounts WHERE id = $1`+forUpdate, string(id))
}

// keep holds blobs against collection until the verb has referred to them.
func (t *verb) keep(account offpeak.AccountID, hashes ...offpeak.Hash) error {
	return t.Lock(`SELECT 1 FROM blobs WHERE account = $1 AND hash = ANY($2) ORDER BY hash FOR KEY SHARE`, string(account), texts(hashes))
}

// hasBlob returns nil if the account has the blob, else ErrNotFound.
func (t *verb) hasBlob(account offpeak.AccountID, hash offpeak.Hash) error {
	ok, err := t.exists(`SELECT 1 FROM blobs WHERE hash = $1 AND ($2 = '' OR account = $2)`, string(hash), string(account))
	if err == nil && !ok {
		err = offpeak.ErrNotFound
	}
	return err
}

// hasTree returns nil if the account has the tree, else ErrBlobMissing.
func (t *verb) hasTree(account offpeak.AccountID, tree offpeak.Hash) error {
	if err := t.keep(account, tree); err != nil {
		return err
	}
	ok, err := t.exists(`SELECT 1 FROM trees WHERE tree = $1 AND account = $2`, string(tree), string(account))
	if err == nil && !ok {
		err = fmt.Errorf("tree %s: %w", tree, offpeak.ErrBlobMissing)
	}
	return err
}

// AddTree says that a blob is a manifest.
func (s *Store) AddTree(ctx context.Context, account offpeak.AccountID, tree offpeak.Hash, chunks []offpeak.Hash) error {
	_, err := write(ctx, s, "add tree "+string(tree), func(t *verb) (struct{}, error) {
		all := append([]offpeak.Hash{tree}, chunks...)
		if err := t.keep(account, all...); err != nil {
			return struct{}{}, err
		}
		for _, h := range all {
			err := t.hasBlob(account, h)
			if errors.Is(err, offpeak.ErrNotFound) {
				err = fmt.Errorf("blob %s: %w", h, offpeak.ErrBlobMissing)
			}
			if err != nil {
				return struct{}{}, err
			}
		}
		// The tree is about to be named: it is safe for as long as a new blob.
		if err := t.must(`UPDATE blobs SET protected_until = $1 WHERE hash = $2 AND account = $3`, micros(t.now.Add(protection)), string(tree), string(account)); err != nil {
			return struct{}{}, err
		}
		n, err := t.Exec(`INSERT INTO trees (account, tree) VALUES ($1, $2) ON CONFLICT DO NOTHING`, string(account), string(tree))
		if err != nil || n == 0 {
			return struct{}{}, err
		}
		for _, c := range chunks {
			if _, err := t.Exec(`INSERT INTO tree_chunks (account, tree, chunk) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, string(account), string(tree), string(c)); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return err
}

// HasBlob returns nil if the account has the blob.
func (s *Store) HasBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash) error {
	_, err := read(ctx, s, "look for blob "+string(hash), func(t *verb) (struct{}, error) { return struct{}{}, t.hasBlob(account, hash) })
	return err
}

// LeaseAccount returns whose job a live lease runs.
func (s *Store) LeaseAccount(ctx context.Context, node offpeak.NodeID, id offpeak.LeaseID) (offpeak.AccountID, offpeak.JobID, error) {
	l, err := read(ctx, s, "look up lease "+string(id), func(t *verb) (*lease, error) {
		l, _, err := s.fence(t, node, id, 0)
		return l, err
	})
	if err != nil {
		return "", "", err
	}
	return l.Account, l.Job, nil
}

// LeaseReads says whether a lease may read a blob.
func (s *Store) LeaseReads(ctx context.Context, node offpeak.NodeID, id offpeak.LeaseID, hash offpeak.Hash) error {
	_, err := read(ctx, s, "read blob "+string(hash)+" under lease "+string(id), func(t *verb) (struct{}, error) {
		l, j, err := s.fence(t, node, id, 0)
		if err != nil {
			return struct{}{}, err
		}
		ok, err := t.exists(`WITH roots (tree) AS (SELECT $1 UNION SELECT tree FROM checkpoints WHERE job = $2 UNION SELECT output FROM job_after WHERE job IN ($2, $5))
			SELECT 1 FROM roots WHERE tree <> '' AND (tree = $3 OR EXISTS (SELECT 1 FROM tree_chunks c WHERE c.account = $4 AND c.tree = roots.tree AND c.chunk = $3))`,
			string(j.Spec.Task.Input), string(j.ID), string(hash), string(l.Account), j.Group)
		if err == nil && !ok {
			err = offpeak.ErrNotFound
		}
		return struct{}{}, err
	})
	return err
}

// free says that nothing refers to a blob b. A tree goes before its chunks: they
// are in use as long as it is there.
const free = `NOT EXISTS (SELECT 1 FROM tree_chunks c WHERE c.chunk = b.hash AND c.account = b.account AND c.tree <> b.hash)
	AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.input = b.hash AND j.account = b.account AND j.input <> '')
	AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.output = b.hash AND j.account = b.account AND j.output <> '')
	AND NOT EXISTS (SELECT 1 FROM job_after a WHERE a.output = b.hash AND a.account = b.account AND a.output <> '')
	AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.output = b.hash AND l.account = b.account AND l.output <> '')
	AND NOT EXISTS (SELECT 1 FROM checkpoints k WHERE k.tree = b.hash AND k.account = b.account)
	AND NOT EXISTS (SELECT 1 FROM log_segments s WHERE s.blob = b.hash AND s.account = b.account AND s.blob <> '')`

// Unused lists blobs that may be collected. Those it finds in use are no
// candidates until something ceases to refer to them, which a trigger notes: so
// what a look costs is what came to its end since the last.
func (s *Store) Unused(ctx context.Context, limit int) ([]store.BlobRef, error) {
	const candidate = `b.candidate = 1 AND b.protected_until <= $1`
	some, err := read(ctx, s, "list unused blobs", func(t *verb) (bool, error) {
		return t.exists(`SELECT 1 FROM blobs b WHERE `+candidate+` LIMIT 1`, micros(t.now))
	})
	if err != nil || !some {
		return nil, err
	}
	for {
		used := 0
		out, err := write(ctx, s, "list unused blobs", func(t *verb) (out []store.BlobRef, err error) {
			var inUse []store.BlobRef
			// What ceases to refer to one of these waits, so that its note is not lost;
			// what somebody has in hand is for another look.
			var hashes []offpeak.Hash
			locked := map[store.BlobRef]bool{}
			if err := t.each(`SELECT b.account, b.hash FROM blobs b WHERE `+candidate+` ORDER BY b.protected_until LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED`,
				[]any{micros(t.now), int64(max(limit, mostPerStep))}, func(rows Rows) error {
					var r store.BlobRef
					err := rows.Scan(&r.Account, &r.Hash)
					locked[r] = true
					hashes = append(hashes, r.Hash)
					return err
				}); err != nil {
				return nil, err
			}
			err = t.each(`SELECT b.account, b.hash, `+free+` FROM blobs b WHERE `+candidate+` AND b.hash = ANY($2) ORDER BY b.protected_until`, []any{micros(t.now), texts(hashes)}, func(rows Rows) error {
				var r store.BlobRef
				var unused bool
				err := rows.Scan(&r.Account, &r.Hash, &unused)
				switch {
				case !locked[r]:
				case unused:
					out = append(out, r)
				default:
					inUse = append(inUse, r)
				}
				return err
			})
			if err != nil {
				return nil, err
			}
			for _, r := range inUse {
				if err := t.must(`UPDATE blobs SET candidate = 0 WHERE hash = $1 AND account = $2`, string(r.Hash), string(r.Account)); err != nil {
					return nil, err
				}
			}
			used = len(inUse)
			return out[:min(limit, len(out))], nil
		})
		if err != nil || len(out) == limit || used == 0 {
			return out, err
		}
	}
}

// DropBlob removes an account's hold on a blob.
func (s *Store) DropBlob(ctx context.Context, ref store.BlobRef) (dropped, last bool, err error) {
	type did struct{ dropped, last bool }
	d, err := write(ctx, s, "drop blob "+string(ref.Hash), func(t *verb) (d did, err error) {
		var size int64
		// The look at who refers to it comes after the lock: nobody does so later. All
		// accounts' holds are locked, so that one of those who drop theirs at once
		// sees that it is the last.
		if err := t.Lock(`SELECT 1 FROM blobs WHERE hash = $1 ORDER BY account FOR UPDATE`, string(ref.Hash)); err != nil {
			return d, err
		}
		err = t.row(`DELETE FROM blobs AS b WHERE b.hash = $2 AND b.account = $3 AND b.protected_until <= $1 AND `+free+` RETURNING size`, []any{micros(t.now), string(ref.Hash), string(ref.Account)}, &size)
		if errors.Is(err, offpeak.ErrNotFound) {
			return d, nil
		}
		if err != nil {
			return d, err
		}
		d.dropped = true
		for _, q := range []string{`DELETE FROM trees WHERE account = $1 AND tree = $2`, `DELETE FROM tree_chunks WHERE account = $1 AND tree = $2`} {
			if _, err := t.Exec(q, string(ref.Account), string(ref.Hash)); err != nil {
				return d, err
			}
		}
		if err := t.must(`UPDATE accounts SET stored = stored - $1 WHERE id = $2`, size, string(ref.Account)); err != nil {
			return d, err
		}
		kept, err := t.exists(`SELECT 1 FROM blobs WHERE hash = $1`, string(ref.Hash))
		d.last = !kept
		t.audit(byHub(), "blob.drop", string(ref.Hash), string(ref.Account))
		return d, err
	})
	return d.dropped, d.last, err
}

// AppendLog stores a piece of a log.
func (s *Store) AppendLog(ctx context.Context, node offpeak.NodeID, id offpeak.LeaseID, attempt offpeak.Attempt, a store.LogAppend) (int64, error) {
	end, err := write(ctx, s, "append log of lease "+string(id), func(t *verb) (int64, error) {
		l, _, err := s.fenceLease(t, node, id, attempt)
		if err != nil {
			return 0, err
		}
		if err := t.loadLogs(l); err != nil {
			return 0, err
		}
		return t.appendLog(l, a)
	})
	if stale, ok := errors.AsType[*offpeak.StaleLeaseError](err); ok {
		if err := s.countStale(ctx, node, stale, "log"); err != nil {
			return 0, err
		}
	}
	return end, err
}

func (t *verb) appendLog(l *lease, a store.LogAppend) (end int64, err error) {
	if a.Stream != "stdout" && a.Stream != "stderr" {
		return 0, &offpeak.FieldError{Field: "stream", Value: a.Stream, Rule: "is stdout or stderr"}
	}
	if (len(a.Data) > 0) == (a.Blob != "") && len(a.Data) > 0 || a.Offset < 0 || a.Length < 0 {
		return 0, &offpeak.FieldError{Field: "log", Rule: "has either data or a blob, at an offset that is not negative"}
	}
	length := int64(len(a.Data))
	if a.Blob != "" {
		length = a.Length
		if err := t.keep(l.Account, a.Blob); err != nil {
			return 0, err
		}
		err := t.hasBlob(l.Account, a.Blob)
		if errors.Is(err, offpeak.ErrNotFound) {
			err = fmt.Errorf("blob %s: %w", a.Blob, offpeak.ErrBlobMissing)
		}
		if err != nil {
			return 0, err
		}
	}
	stored := l.log.end(a.Stream)
	end = *stored
	switch {
	case a.Offset > end:
		return end, &offpeak.LogGapError{Want: end, Got: a.Offset}
	case length <= end-a.Offset:
		return end, nil // nothing new in it
	case a.Offset < end && a.Blob != "":
		// Bytes in a blob can't be cut here; the sender goes on from the end.
		return end, &offpeak.LogGapError{Want: end, Got: a.Offset}
	}
	kept := a.Data
	if cut := end - a.Offset; cut > 0 {
		kept = kept[cut:]
		length -= cut
	}
	if a.Blob != "" {
		kept = nil
	}
	l.log.n++
	*stored = end + length
	t.later(addLog, string(l.ID), l.log.n, string(l.Account), a.Stream, end, length, kept, string(a.Blob), micros(t.now))
	return *stored, nil
}

const segmentColumns = `n, stream, start, length, data, blob, at`

func (t *verb) segments(query string, args ...any) (out []store.LogSegment, err error) {
	err = t.each(query, args, func(rows Rows) error {
		var g store.LogSegment
		var at int64
		err := rows.Scan(&g.N, &g.Stream, &g.Offset, &g.Length, &g.Data, &g.Blob, &at)
		g.At = moment(at)
		out = append(out, g)
		return err
	})
	return out, err
}

// LogSegments lists a lease's log in the order of arrival.
func (s *Store) LogSegments(ctx context.Context, account offpeak.AccountID, id offpeak.LeaseID, after int64, limit int) ([]store.LogSegment, error) {
	return read(ctx, s, "read log of lease "+string(id), func(t *verb) ([]store.LogSegment, error) {
		if err := t.owns(account, "leases", string(id)); err != nil {
			return nil, err
		}
		return t.segments(`SELECT `+segmentColumns+` FROM log_segments WHERE lease = $1 AND n > $2 ORDER BY n LIMIT $3`, string(id), after, int64(limit))
	})
}

// LogAt lists one stream from the segment that holds an offset.
func (s *Store) LogAt(ctx context.Context, account offpeak.AccountID, id offpeak.LeaseID, stream string, offset int64, limit int) ([]store.LogSegment, error) {
	return read(ctx, s, "read log of lease "+string(id), func(t *verb) ([]store.LogSegment, error) {
		if err := t.owns(account, "leases", string(id)); err != nil {
			return nil, err
		}
		return t.segments(`SELECT `+segmentColumns+` FROM log_segments WHERE lease = $1 AND stream = $2
			AND start >= COALESCE((SELECT max(start) FROM log_segments WHERE lease = $1 AND stream = $2 AND start <= $3), 0) AND start + length > $3
			ORDER BY start LIMIT $4`, string(id), stream, offset, int64(limit))
	})
}
