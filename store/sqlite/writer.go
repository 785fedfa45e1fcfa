package sqlite

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/store/sqlstore"
)

// mostPerCommit bounds how many verbs share a commit, so that the first of a
// long queue is not answered last.
const mostPerCommit = 256

// task is one verb that waits for the writer.
type task struct {
	ctx  context.Context
	fn   func(tx sqlstore.Tx) error
	err  error
	done chan struct{}
}

type counters struct{ commits, verbs, committing, failures atomic.Int64 }

func (d *db) stats() store.Stats {
	return store.Stats{
		Commits: d.count.commits.Load(), Verbs: d.count.verbs.Load(),
		Committing: time.Duration(d.count.committing.Load()), Failures: d.count.failures.Load(),
	}
}

// Write queues fn for the writer and waits for the commit.
func (d *db) Write(ctx context.Context, fn func(tx sqlstore.Tx) error) error {
	t := &task{ctx: ctx, fn: fn, done: make(chan struct{})}
	d.mu.RLock()
	if d.closed {
		d.mu.RUnlock()
		return errClosed()
	}
	select {
	case d.queue <- t:
		d.mu.RUnlock()
	case <-ctx.Done():
		d.mu.RUnlock()
		return fmt.Errorf("wait for the writer: %w", ctx.Err())
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the commit, outcome unknown: %w: %w", offpeak.ErrUnavailable, ctx.Err())
	}
}

// run is the writer. It ends when the queue is closed.
func (d *db) run() {
	defer close(d.done)
	batch := make([]*task, 0, mostPerCommit)
	for t := range d.queue {
		batch = append(batch[:0], t)
	gather:
		for len(batch) < mostPerCommit {
			select {
			case t, ok := <-d.queue:
				if !ok {
					break gather
				}
				batch = append(batch, t)
			default:
				break gather
			}
		}
		d.commit(batch)
		for i, t := range batch {
			close(t.done)
			batch[i] = nil
		}
	}
}

// commit runs the batch in one transaction and sets every task's err.
func (d *db) commit(batch []*task) {
	err := d.reconnect()
	if err == nil {
		_, err = d.writer.Exec(`BEGIN IMMEDIATE`)
	}
	if err != nil {
		d.fail(batch, err, false)
		return
	}
	wrote := 0
	for _, t := range batch {
		if t.err = t.ctx.Err(); t.err != nil {
			continue // nobody waits for it any more
		}
		// The engine may have undone everything, not just this verb, when the
		// disk failed it: nobody's work of this batch is certain then.
		if len(batch) == 1 {
			t.err = t.fn(d.writer) // undone with the transaction
		} else {
			t.err = d.writer.Sub(func() error { return t.fn(d.writer) })
		}
		if sqlstore.Broken(t.err) {
			d.fail(batch, t.err, false)
			return
		}
		if t.err == nil {
			wrote++
		}
	}
	if wrote == 0 {
		if _, err := d.writer.Exec(`ROLLBACK`); err != nil {
			d.fail(batch, err, false)
		}
		return
	}
	began := time.Now()
	if _, err := d.writer.Exec(`COMMIT`); err != nil {
		d.fail(batch, err, true)
		return
	}
	d.count.committing.Add(int64(time.Since(began)))
	d.count.commits.Add(1)
	d.count.verbs.Add(int64(wrote))
}

// fail answers a whole batch whose transaction did not commit, and gives up the
// connection: after a failed write or sync neither its cache nor its picture of
// the log can be trusted. What a failed COMMIT left on the disk is unknown
// unless the disk was merely full.
func (d *db) fail(batch []*task, cause error, committing bool) {
	d.count.failures.Add(1)
	d.opts.Log.Error("store transaction failed", "err", cause)
	if committing && !isFull(cause) {
		cause = fmt.Errorf("commit, outcome unknown: %w: %w", offpeak.ErrUnavailable, cause)
	}
	for _, t := range batch {
		if t.err == nil || sqlstore.Broken(t.err) {
			t.err = cause
		}
	}
	if d.writer != nil {
		if err := d.writer.close(); err != nil {
			d.opts.Log.Error("close a failed connection", "err", err)
		}
		d.writer = nil
	}
}

// reconnect opens the file again after a failure.
func (d *db) reconnect() (err error) {
	if d.writer == nil {
		d.writer, err = d.connect(context.Background(), false)
	}
	return err
}
