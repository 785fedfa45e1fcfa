package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"offpeak"
	"offpeak/agent/link"
	"offpeak/blob"
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
	defer t.logs.close()
	if err := t.upload(&r); err != nil {
		return err
	}
	return t.send(&r)
}

// send reports an end together with the rest of the logs. The hub refuses an
// end whose log has a gap: then the missing piece is sent and the end again.
func (t *attempt) send(r *wire.Report) error {
	for failures := 0; ; {
		if t.logs != nil {
			err := t.logs.flush(t.ctx, int64(wire.MaxInlineLog))
			if err == nil {
				err = t.logs.last(r)
			}
			if t.ctx.Err() != nil {
				return context.Cause(t.ctx)
			}
			if err != nil {
				failures++
				t.a.note("ship the rest of a log", err)
				if !errors.Is(err, offpeak.ErrUnavailable) && failures > 8 {
					// The node's own disk fails: an end without its log beats none.
					t.logs.close()
					t.logs = nil
				}
				if err := t.a.pause(t.ctx, failures); err != nil {
					return context.Cause(t.ctx)
				}
				continue
			}
		}
		err := t.await(t.a.report(t.ctx, *r))
		var gap *offpeak.LogGapError
		switch {
		case err == nil:
			t.a.log.Info("attempt ended", "job", t.job, "attempt", t.n, "lease", t.id, "reason", r.Reason)
			return nil
		case errors.As(err, &gap) && t.logs != nil:
			if err := t.logs.rewind(t.ctx); err != nil && t.ctx.Err() != nil {
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
	work, err := os.OpenRoot(filepath.Join(t.a.folder.lease(t.id), workDir))
	if err != nil {
		return nil
	}
	defer work.Close()
	paths := slices.Clone(t.work.Task.Outputs)
	if filled(work, outputDir) && !slices.Contains(paths, outputDir) {
		paths = append(paths, outputDir)
	}
	checkpoint := r.Reason != offpeak.EndCancelled && t.saved.pending()
	if len(paths) == 0 && !checkpoint {
		return nil
	}
	if r.Output == "" {
		f := t.report(kindFinishing)
		f.Ran, f.Started = r.Ran, r.Started
		t.a.report(t.ctx, f)
	}

	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	if r.Reason != offpeak.EndCompleted {
		ctx, cancel = context.WithTimeout(ctx, t.a.cfg.Times.Upload)
		defer cancel()
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		select {
		case reason := <-t.stops:
			if reason == offpeak.EndCancelled {
				cancel()
			}
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-asked }()

	if checkpoint {
		if err := t.saved.flush(ctx, packTries); errors.Is(err, offpeak.ErrStaleLease) {
			return err
		} else if err != nil {
			t.a.log.Warn("store the last checkpoint", "job", t.job, "attempt", t.n, "error", err)
		}
	}
	if len(paths) > 0 {
		err = t.outputs(ctx, work, paths, r)
	}
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
		t.a.log.Warn("store the outputs of an attempt that did not complete", "job", t.job, "attempt", t.n, "error", err)
	}
	return nil
}

// outputs stores what the patterns match. One that matches nothing turns a
// completed attempt into one whose outputs are missing, with the rest stored.
func (t *attempt) outputs(ctx context.Context, work *os.Root, paths []string, r *wire.Report) error {
	var packed *blob.Packed
	var err error
	for tries := packTries; ; tries-- {
		packed, err = blob.Pack(ctx, work, paths, blob.PackOptions{RefuseLinks: true})
		var none *blob.NoMatchError
		if errors.As(err, &none) {
			if r.Reason == offpeak.EndCompleted {
				r.Reason, r.Detail = offpeak.EndOutputsMissing, none.Error()
			}
			paths = slices.DeleteFunc(paths, func(p string) bool { return slices.Contains(none.Patterns, p) })
			if len(paths) == 0 {
				return nil
			}
			continue
		}
		if err == nil || tries <= 1 || !errors.Is(err, blob.ErrChanged) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("pack outputs: %w", err)
	}
	t.saved.skipped(packed)
	tree, err := blob.Upload(ctx, remote{t}, packed, nil)
	if err != nil {
		return fmt.Errorf("upload outputs: %w", err)
	}
	r.Output = tree
	return nil
}

// filled says that a folder is there and holds something.
func filled(work *os.Root, name string) bool {
	info, err := work.Lstat(name)
	if err != nil || !info.IsDir() {
		return false
	}
	f, err := work.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	entries, _ := f.ReadDir(1)
	return len(entries) > 0
}
