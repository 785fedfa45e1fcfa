package data

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"offpeak"
	"offpeak/blob"
	"offpeak/hub/bell"
	"offpeak/store"
	"offpeak/wire"
)

const (
	// inlineLog is the longest piece of a log that is kept in the store itself.
	inlineLog = 64 << 10
	// logPage is how many segments are read at once.
	logPage = 64
	// logPatience is how long a follower waits before it looks without having
	// been woken, in case another hub took the bytes.
	logPatience = 5 * time.Second
)

// Piece makes a piece of a log ready for the store: long ones become blobs.
func (v *Vault) Piece(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID, in wire.LogPiece) (store.LogAppend, error) {
	switch {
	case in.Stream != "stdout" && in.Stream != "stderr":
		return store.LogAppend{}, &offpeak.FieldError{Field: "stream", Value: in.Stream, Rule: "is stdout or stderr"}
	case in.Offset < 0:
		return store.LogAppend{}, &offpeak.FieldError{Field: "offset", Value: strconv.FormatInt(in.Offset, 10), Rule: "is not negative"}
	case len(in.Data) > int(wire.MaxInlineLog):
		return store.LogAppend{}, fmt.Errorf("%d bytes of log, at most %d at once: %w", len(in.Data), wire.MaxInlineLog, offpeak.ErrTooLarge)
	case len(in.Data) <= inlineLog:
		return store.LogAppend{Stream: in.Stream, Offset: in.Offset, Data: in.Data}, nil
	}
	account, _, err := v.env.Store.LeaseAccount(ctx, node, lease)
	if err != nil {
		return store.LogAppend{}, err
	}
	hash := blob.Sum(in.Data)
	if err := v.Put(ctx, account, hash, bytes.NewReader(in.Data)); err != nil {
		return store.LogAppend{}, err
	}
	return store.LogAppend{Stream: in.Stream, Offset: in.Offset, Blob: hash, Length: int64(len(in.Data))}, nil
}

// segmentBytes returns the bytes of a segment. The store may have cut the
// front of a blob off, where a retry overlapped what it had.
func (v *Vault) segmentBytes(ctx context.Context, s *store.LogSegment) ([]byte, error) {
	if s.Blob == "" {
		return s.Data, nil
	}
	r, size, err := v.env.Blobs.Open(ctx, s.Blob)
	if err != nil {
		return nil, fmt.Errorf("open log segment: %w", err)
	}
	defer r.Close()
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("read log segment: %w", err)
	}
	// The check of the hash stands at the end of the bytes.
	if _, err := r.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read log segment: %w", err)
	}
	if int64(size) < s.Length {
		return nil, fmt.Errorf("read log segment: %d of %d bytes: %w", size, s.Length, offpeak.ErrStorage)
	}
	return data[int64(size)-s.Length:], nil
}

// FollowLog walks over the log of all attempts and both streams in the order
// of arrival, from after ("" or "attempt.n"). With follow it waits for more
// until the job has ended.
func (v *Vault) FollowLog(ctx context.Context, account offpeak.AccountID, job offpeak.JobID, after string, follow bool) iter.Seq2[wire.LogRecord, error] {
	return func(yield func(wire.LogRecord, error) bool) {
		if err := v.followLog(ctx, account, job, after, follow, yield); err != nil && ctx.Err() == nil {
			yield(wire.LogRecord{}, fmt.Errorf("follow log of %s: %w", job, err))
		}
	}
}

// standing is how a job and its attempts stand. It is read before segments are: a
// log is whole before its attempt's end shows, so what is read after an end is all
// there is. The job is read first, so that one that has ended has ended attempts.
func (v *Vault) standing(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) (offpeak.Job, []offpeak.Lease, error) {
	j, err := v.env.Store.Job(ctx, account, job)
	if err != nil {
		return j, nil, err
	}
	leases, err := v.env.Store.Attempts(ctx, account, job)
	return j, leases, err
}

func (v *Vault) followLog(ctx context.Context, account offpeak.AccountID, job offpeak.JobID, after string, follow bool, yield func(wire.LogRecord, error) bool) error {
	attempt, n, err := parseAfter(after)
	if err != nil {
		return err
	}
	onJob := v.env.Bells.Listen(string(job))
	defer onJob.Stop()
	for {
		moved := onJob.Next()
		j, leases, err := v.standing(ctx, account, job)
		if err != nil {
			return err
		}
		for i := range leases {
			l := &leases[i]
			if l.Attempt < attempt {
				continue
			}
			if l.Attempt > attempt {
				attempt, n = l.Attempt, 0
			}
			wait := follow && !l.State.Terminal()
			goOn, err := v.followAttempt(ctx, account, l, &n, wait, moved, yield)
			if err != nil || !goOn {
				return err
			}
		}
		if j.State.Terminal() || !follow {
			return nil
		}
		if !v.waitFor(ctx, moved, nil) {
			return ctx.Err()
		}
	}
}

// followAttempt yields one attempt's segments after n. With wait it goes on
// until the job moves. It says whether the walk goes on.
func (v *Vault) followAttempt(ctx context.Context, account offpeak.AccountID, l *offpeak.Lease, n *int64, wait bool, moved <-chan struct{}, yield func(wire.LogRecord, error) bool) (bool, error) {
	onLease := v.env.Bells.Listen(string(l.ID))
	defer onLease.Stop()
	for {
		more := onLease.Next()
		segments, err := v.env.Store.LogSegments(ctx, account, l.ID, *n, logPage)
		if err != nil {
			return false, err
		}
		for i := range segments {
			s := &segments[i]
			data, err := v.segmentBytes(ctx, s)
			if err != nil {
				return false, err
			}
			*n = s.N
			if !yield(wire.LogRecord{Attempt: l.Attempt, N: s.N, Stream: s.Stream, Offset: s.Offset, Data: data}, nil) {
				return false, nil
			}
		}
		if len(segments) > 0 {
			continue
		}
		if !wait {
			return true, nil
		}
		select {
		case <-moved:
			return true, nil // read the state again; it comes back here if the attempt goes on
		default:
		}
		if !v.waitFor(ctx, moved, more) {
			return false, ctx.Err()
		}
	}
}

// waitFor waits until one of two bells rings, or a while. It says whether to
// go on.
func (v *Vault) waitFor(ctx context.Context, one, other <-chan struct{}) bool {
	t := time.NewTimer(logPatience)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-v.env.Stopped:
		return false
	case <-one:
	case <-other:
	case <-t.C:
	}
	return true
}

func parseAfter(after string) (offpeak.Attempt, int64, error) {
	if after == "" {
		return 0, 0, nil
	}
	a, n, ok := strings.Cut(after, ".")
	attempt, err := strconv.Atoi(a)
	number, err2 := strconv.ParseInt(n, 10, 64)
	if !ok || err != nil || err2 != nil || attempt < 0 || number < 0 {
		return 0, 0, &offpeak.FieldError{Field: "after", Value: after, Rule: "is attempt.n of the last record read, for example 1.42"}
	}
	return offpeak.Attempt(attempt), number, nil
}

// ReadLog walks over the bytes of one stream of one attempt (0: the newest)
// from offset. With follow it waits for more until the attempt has ended; the
// newest attempt of a job that has none yet is waited for too.
func (v *Vault) ReadLog(ctx context.Context, account offpeak.AccountID, job offpeak.JobID, attempt offpeak.Attempt, stream string, offset int64, follow bool) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if err := v.readLog(ctx, account, job, attempt, stream, offset, follow, yield); err != nil && ctx.Err() == nil {
			yield(nil, fmt.Errorf("read log of %s: %w", job, err))
		}
	}
}

func (v *Vault) readLog(ctx context.Context, account offpeak.AccountID, job offpeak.JobID, attempt offpeak.Attempt, stream string, offset int64, follow bool, yield func([]byte, error) bool) error {
	if stream != "stdout" && stream != "stderr" {
		return &offpeak.FieldError{Field: "stream", Value: stream, Rule: "is stdout or stderr"}
	}
	if offset < 0 || attempt < 0 {
		return &offpeak.FieldError{Field: "offset", Value: strconv.FormatInt(offset, 10), Rule: "is not negative, nor is attempt"}
	}
	onJob := v.env.Bells.Listen(string(job))
	defer onJob.Stop()
	var onLease *bell.Listener
	for {
		moved := onJob.Next()
		j, leases, err := v.standing(ctx, account, job)
		if err != nil {
			return err
		}
		if attempt == 0 {
			attempt = j.Attempt
		}
		var l *offpeak.Lease
		for i := range leases {
			if leases[i].Attempt == attempt {
				l = &leases[i]
			}
		}
		var more <-chan struct{}
		if l != nil {
			if onLease == nil { // the attempt is settled now, so once is enough
				onLease = v.env.Bells.Listen(string(l.ID))
				defer onLease.Stop()
			}
			more = onLease.Next()
			offset, err = v.readStream(ctx, account, l, stream, offset, yield)
			if err != nil {
				return err
			}
			if offset < 0 {
				return nil
			}
		}
		switch {
		case !follow, l != nil && l.State.Terminal(), l == nil && j.State.Terminal():
			return nil
		case l == nil && attempt > j.Attempt:
			return fmt.Errorf("attempt %d: %w", attempt, offpeak.ErrNotFound)
		}
		if !v.waitFor(ctx, moved, more) {
			return ctx.Err()
		}
	}
}

// readStream yields what is stored of a stream from offset and returns where
// it ends, −1 when the reader has had enough.
func (v *Vault) readStream(ctx context.Context, account offpeak.AccountID, l *offpeak.Lease, stream string, offset int64, yield func([]byte, error) bool) (int64, error) {
	for {
		segments, err := v.env.Store.LogAt(ctx, account, l.ID, stream, offset, logPage)
		if err != nil {
			return 0, err
		}
		before := offset
		for i := range segments {
			s := &segments[i]
			if s.Offset+s.Length <= offset {
				continue
			}
			data, err := v.segmentBytes(ctx, s)
			if err != nil {
				return 0, err
			}
			if skip := offset - s.Offset; skip > 0 {
				data = data[skip:]
			}
			if !yield(data, nil) {
				return -1, nil
			}
			offset = s.Offset + s.Length
		}
		if offset == before {
			return offset, nil
		}
	}
}
