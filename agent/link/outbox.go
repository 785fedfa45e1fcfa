package link

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"offpeak"
	"offpeak/wire"
)

// Outbox sends reports: at once when none is under way, else together with all
// that gathered meanwhile. One call is under way at a time, so reports arrive
// in the order they were posted. A report is sent until it is answered.
type Outbox struct {
	// mu guards queue.
	mu    sync.Mutex
	queue []*letter
	// kick holds a token while the queue may hold letters.
	kick chan struct{}
}

// letter is a report on its way.
type letter struct {
	// ctx ends when nobody cares for the report any more.
	ctx    context.Context
	report wire.Report
	size   int
	// done gets the one answer.
	done chan error
}

// mostBatch bounds the bytes of one call, well inside wire.MaxBody.
const mostBatch = int(wire.MaxBody) * 3 / 4

// NewOutbox returns an empty outbox.
func NewOutbox() *Outbox { return &Outbox{kick: make(chan struct{}, 1)} }

// Post puts a report in the outbox. The channel yields the hub's one answer to
// it, or why ctx ended first.
func (o *Outbox) Post(ctx context.Context, r wire.Report) <-chan error {
	l := &letter{ctx: ctx, report: r, size: 512 + len(r.Detail), done: make(chan error, 1)}
	for _, p := range r.Logs {
		l.size += len(p.Data)*4/3 + 128
	}
	o.mu.Lock()
	o.queue = append(o.queue, l)
	o.mu.Unlock()
	select {
	case o.kick <- struct{}{}:
	default:
	}
	return l.done
}

// gather takes what the next call carries, without letters nobody waits for.
func (o *Outbox) gather() (batch []*letter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	size := 0
	for len(o.queue) > 0 && len(batch) < wire.MaxReports {
		l := o.queue[0]
		if err := l.ctx.Err(); err != nil {
			l.done <- context.Cause(l.ctx)
		} else if size += l.size; len(batch) > 0 && size > mostBatch {
			break
		} else {
			batch = append(batch, l)
		}
		o.queue = o.queue[1:]
	}
	return batch
}

// putBack puts letters whose call was not answered in front again.
func (o *Outbox) putBack(batch []*letter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = append(batch, o.queue...)
}

// Run sends until ctx is done. send makes the call; pause waits after the nth
// failure in a row.
func (o *Outbox) Run(ctx context.Context, send func(context.Context, []wire.Report) ([]wire.ReportResult, error), pause func(ctx context.Context, n int) error) error {
	failures := 0
	for {
		batch := o.gather()
		if len(batch) == 0 {
			select {
			case <-o.kick:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		reports := make([]wire.Report, len(batch))
		for i, l := range batch {
			reports[i] = l.report
		}
		results, err := send(ctx, reports)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && len(results) == len(batch):
			var again []*letter
			for i, l := range batch {
				if err := resultError(results[i]); passing(err) {
					again = append(again, l)
				} else {
					l.done <- err
				}
			}
			if len(again) == 0 {
				failures = 0
				continue
			}
			o.putBack(again)
			failures++
			if err := pause(ctx, failures); err != nil {
				return err
			}
		case Refused(err) && len(batch) == 1:
			failures = 0
			batch[0].done <- err
		case Refused(err):
			// One of them is at fault: send each alone to find it.
			for _, l := range batch {
				results, err := send(ctx, []wire.Report{l.report})
				answered := err == nil && len(results) == 1
				if answered {
					err = resultError(results[0])
				}
				if answered && passing(err) || !answered && !Refused(err) {
					o.putBack([]*letter{l})
					continue
				}
				l.done <- err
			}
		default:
			o.putBack(batch)
			failures++
			if err := pause(ctx, failures); err != nil {
				return err
			}
		}
	}
}

func resultError(r wire.ReportResult) error {
	if r.Problem == nil {
		return nil
	}
	return r.Problem
}

// passing says that a hub which took a call could not do one of its reports: its
// store went away meanwhile. What it did of it is unknown, so it is said again.
func passing(err error) bool {
	return errors.Is(err, offpeak.ErrUnavailable) || errors.Is(err, offpeak.ErrStorage)
}

// Refused says that the hub looked at a request and will not have it, as
// against one that got no answer, or none that lasts.
func Refused(err error) bool {
	for _, lasting := range []error{offpeak.ErrInvalid, offpeak.ErrTooLarge, offpeak.ErrStaleLease, offpeak.ErrNotFound, offpeak.ErrIllegalMove, offpeak.ErrForbidden} {
		if errors.Is(err, lasting) {
			return true
		}
	}
	var syntax *json.UnsupportedValueError
	return errors.As(err, &syntax)
}
