package agent

import (
	"context"
	"errors"
	"time"

	"offpeak"
	"offpeak/agent/books"
	"offpeak/agent/link"
	"offpeak/agent/supervisor"
	"offpeak/agent/transfer"
	"offpeak/wire"
)

// finish stores what the attempt leaves and reports its end. It returns when
// the hub has the end, or will never have it.
func (t *attempt) finish(end wire.Report) error {
	r := t.report(kindEnded)
	r.Reason, r.Detail, r.ExitCode, r.Signal, r.Ran, r.Started = end.Reason, end.Detail, end.ExitCode, end.Signal, end.Ran, end.Started
	if t.logs == nil {
		return t.send(&r)
	}
	defer t.logs.Close()
	defer t.keepResult()()
	if err := t.upload(&r); err != nil {
		return err
	}
	return t.send(&r)
}

// keepAfter is how long the hub has to take an end before the job's result is
// written down as well: two file operations cost as much as starting a process.
const keepAfter = 50 * time.Millisecond

// keepResult makes sure that the job's result outlives this agent and the
// supervisor for as long as the hub does not have it. The supervisor holds it,
// and writes it down when this agent is gone; when the supervisor is, or the hub
// takes long, the agent does.
func (t *attempt) keepResult() (stop func()) {
	if t.slot.Sup == nil {
		return func() {}
	}
	done, gone := make(chan struct{}), make(chan struct{})
	updates := t.slot.Sup.Updates()
	go func() {
		defer close(gone)
		late := time.NewTimer(keepAfter)
		defer late.Stop()
		for alive := true; alive; {
			select {
			case _, alive = <-updates:
			case <-late.C:
				alive = false
			case <-done:
				return
			}
		}
		if err := supervisor.KeepStatus(t.folder.Path(), t.last()); err != nil {
			t.data.Log.Warn("keep the result of a job", "error", err)
		}
	}()
	return func() { close(done); <-gone }
}

// send reports an end together with the rest of the logs. The hub refuses an
// end whose log has a gap: then the missing piece is sent and the end again.
func (t *attempt) send(r *wire.Report) error {
	for failures := 0; ; {
		if t.logs != nil {
			err := t.logs.Flush(t.ctx, int64(wire.MaxInlineLog))
			if err == nil {
				err = t.logs.Last(r)
			}
			if t.ctx.Err() != nil {
				return context.Cause(t.ctx)
			}
			if err != nil {
				failures++
				t.a.note("ship the rest of a log", err)
				if !errors.Is(err, offpeak.ErrUnavailable) && failures > 8 {
					// The node's own disk fails: an end without its log beats none.
					t.logs.Close()
					t.logs = nil
				}
				if err := t.a.pause(t.ctx, failures); err != nil {
					return context.Cause(t.ctx)
				}
				continue
			}
		}
		err := t.await(t.a.report(t.ctx, *r))
		_, gap := errors.AsType[*offpeak.LogGapError](err)
		switch {
		case err == nil:
			t.data.Log.Info("attempt ended", "reason", r.Reason)
			return nil
		case gap && t.logs != nil:
			if err := t.logs.Rewind(t.ctx); err != nil && t.ctx.Err() != nil {
				return context.Cause(t.ctx)
			}
		case errors.Is(err, offpeak.ErrBlobMissing) && r.Output != "":
			// Stored, but gone since: what is left of the folder is sent anew.
			if err := t.upload(r); err != nil {
				return err
			}
		case t.ctx.Err() != nil, link.Refused(err):
			return err
		default:
		}
		failures++
		if err := t.a.pause(t.ctx, failures); err != nil {
			return context.Cause(t.ctx)
		}
	}
}

// upload stores the last checkpoint and the outputs. An attempt that completed
// has all the time its lease has; another one's are stored as far as they come
// within bounds.
func (t *attempt) upload(r *wire.Report) error {
	paths := t.data.OutputPaths(t.Work.Task.Outputs)
	checkpoint := r.Reason != offpeak.EndCancelled && t.saved.Pending()
	if len(paths) == 0 && !checkpoint {
		return nil
	}
	if r.Output == "" {
		f := t.report(kindFinishing)
		f.Ran, f.Started = r.Ran, r.Started
		t.a.report(t.ctx, f)
	}
	ctx, cancel := t.untilCancelled()
	defer cancel()
	if r.Reason != offpeak.EndCompleted {
		var bounded context.CancelFunc
		ctx, bounded = context.WithTimeout(ctx, t.a.cfg.Times.Upload)
		defer bounded()
	}
	if checkpoint {
		if err := t.saved.FlushLast(ctx); errors.Is(err, offpeak.ErrStaleLease) {
			return err
		} else if err != nil {
			t.data.Log.Warn("store the last checkpoint", "error", err)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	out, err := t.data.StoreOutputs(ctx, paths)
	switch {
	case t.ctx.Err() != nil:
		return context.Cause(t.ctx)
	case errors.Is(err, offpeak.ErrStaleLease):
		return err
	case err != nil && r.Reason == offpeak.EndCompleted && ctx.Err() != nil:
		r.Reason, r.ExitCode = offpeak.EndCancelled, nil
	case err != nil && r.Reason == offpeak.EndCompleted:
		r.Reason, r.Detail = offpeak.EndOutputsMissing, "the outputs could not be stored: "+err.Error()
	case err != nil:
		t.data.Log.Warn("store the outputs of an attempt that did not complete", "error", err)
	default:
		stored(r, out)
	}
	return nil
}

// stored puts what became of the outputs into the end: a completed attempt
// that lacks one is one whose outputs are missing, with the rest stored.
func stored(r *wire.Report, out transfer.Outputs) {
	r.Output = out.Tree
	if out.Missing != nil && r.Reason == offpeak.EndCompleted {
		r.Reason, r.Detail = offpeak.EndOutputsMissing, out.Missing.Error()
	}
	if out.LeftOut != "" {
		if r.Detail != "" {
			r.Detail += "; "
		}
		r.Detail += out.LeftOut
	}
}

// untilCancelled returns a context that ends with the attempt's, or when the
// job is cancelled: then nobody waits for what is uploaded.
func (t *attempt) untilCancelled() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.ctx)
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for {
			select {
			case reason := <-t.stops:
				if reason == offpeak.EndCancelled {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(); <-heard }
}

// remember notes how an attempt ended for the node's owner; err is why the hub does
// not have its end.
func (t *attempt) remember(end wire.Report, err error) {
	lost := errors.Is(context.Cause(t.ctx), errDropped)
	if t.Work == nil || end.Reason == offpeak.EndDeclined || err != nil && !lost {
		return
	}
	if lost {
		end.Reason, end.Detail = offpeak.EndNodeLost, "the hub had given it up"
	}
	_, ran := t.meter(t.a.env.Boot())
	t.a.books.Add(books.Ended{
		Job: t.Job, Name: t.Work.JobName, Attempt: t.Attempt, Account: t.Work.Account, Ran: max(ran, end.Ran), Reason: end.Reason, Detail: end.Detail,
	})
}
