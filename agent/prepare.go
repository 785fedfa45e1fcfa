package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/hardware"
	"offpeak/agent/state"
	"offpeak/agent/supervisor"
	"offpeak/agent/warm"
	"offpeak/blob"
	"offpeak/wire"
)

var errPrepare = errors.New("fetching inputs and restoring took longer than the job allows")

// prepare fetches, restores and starts, in the folder if it could be laid out.
func (t *attempt) prepare(err error) error {
	ctx, cancel := context.WithCancelCause(t.ctx)
	ctx, timeout := context.WithTimeoutCause(ctx, t.Work.Limits.Prepare.Std(), errPrepare)
	defer timeout()
	asked := make(chan struct{})
	var stop *stopError
	go func() {
		defer close(asked)
		select {
		case reason := <-t.stops:
			stop = &stopError{reason}
			cancel(stop)
		case <-ctx.Done():
		}
	}()
	if err == nil && (!t.plain() || len(t.Work.Checkpoints) > 0) {
		err = t.fetch(ctx)
	}
	if cause := context.Cause(ctx); cause != nil && err != nil {
		err = cause
	}
	cancel(nil)
	<-asked
	// Not from the context's cause: the word may have come as it ended.
	if stop != nil {
		return stop
	}
	if err != nil {
		return err
	}
	return t.start()
}

// layOut makes the attempt's folder. What an input brings lands in an empty one,
// and a checkpoint folder elsewhere leaves none at the usual place.
func (t *attempt) layOut() error {
	if t.plain() {
		return t.folder.Lay()
	}
	return t.folder.Make()
}

// plain says that the usual empty folders are all that the job needs.
func (t *attempt) plain() bool {
	return t.Work.Task.Input == "" && len(t.Work.Inputs) == 0 && t.checkpoints() == state.CheckpointDir
}

// fetch brings the input, the job's folders and the newest checkpoint.
func (t *attempt) fetch(ctx context.Context) error {
	work, err := t.folder.Work()
	if err != nil {
		return err
	}
	defer work.Close()
	disk := t.Work.Resources.Disk
	if in := t.Work.Task.Input; in != "" {
		if err := blob.Unpack(ctx, t.data.Remote(), in, work, blob.UnpackOptions{Limit: disk}); err != nil {
			return &inputError{err}
		}
	}
	for _, in := range t.Work.Inputs {
		if err := t.fetchInto(ctx, work, in); err != nil {
			return err
		}
	}
	dir := t.checkpoints()
	if t.plain() {
		return t.restore(ctx, work, dir) // Lay made all there is
	}
	for _, d := range []string{state.OutputDir, filepath.Join(state.OwnDir, "tmp"), dir} {
		if err := work.MkdirAll(d, 0o700); err != nil {
			return &driver.StartError{Reason: offpeak.EndBadInput, Detail: fmt.Sprintf("the input has something that is not a folder at %s: %v", d, err)}
		}
	}
	return t.restore(ctx, work, dir)
}

// fetchInto brings the outputs of a job that this one waited for.
func (t *attempt) fetchInto(ctx context.Context, work *os.Root, in wire.Input) error {
	if err := work.MkdirAll(in.Into, 0o700); err != nil {
		return &driver.StartError{Reason: offpeak.EndBadInput, Detail: fmt.Sprintf("the input has something that is not a folder at %s: %v", in.Into, err)}
	}
	if in.Tree == "" {
		return nil
	}
	place, err := work.OpenRoot(in.Into)
	if err != nil {
		return &driver.StartError{Reason: offpeak.EndBadInput, Detail: fmt.Sprintf("the input has something that is not a folder at %s: %v", in.Into, err)}
	}
	defer place.Close()
	if err := blob.Unpack(ctx, t.data.Remote(), in.Tree, place, blob.UnpackOptions{Limit: t.Work.Resources.Disk}); err != nil {
		return &inputError{err}
	}
	return nil
}

// restore brings the newest checkpoint that is whole.
func (t *attempt) restore(ctx context.Context, work *os.Root, dir string) error {
	if len(t.Work.Checkpoints) == 0 {
		return nil
	}
	disk := t.Work.Resources.Disk
	place, err := work.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open checkpoint folder: %w", err)
	}
	defer place.Close()
	var errs []error
	for _, c := range t.Work.Checkpoints {
		err := blob.Unpack(ctx, t.data.Remote(), c.Tree, place, blob.UnpackOptions{Limit: disk, Overwrite: true})
		if err == nil {
			t.restored = c.ID
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, offpeak.ErrStaleLease) || errors.Is(err, offpeak.ErrStorage) {
			return err
		}
		t.data.Log.Warn("checkpoint can't be restored; trying the one before it", "checkpoint", c.ID, "error", err)
		errs = append(errs, fmt.Errorf("checkpoint %s: %w", c.Name, err))
		if state.ValidID(c.Name) {
			// What came of it must not look like a checkpoint to the job.
			_ = place.RemoveAll(c.Name)
		}
	}
	return &driver.StartError{Reason: offpeak.EndCheckpointUnusable, Detail: errors.Join(errs...).Error()}
}

// inputError says that an error came while the input was fetched.
type inputError struct{ error }

func (e *inputError) Unwrap() error { return e.error }

// start hands the job to a supervisor.
func (t *attempt) start() error {
	i := slices.IndexFunc(t.a.env.Drivers, func(d driver.Driver) bool { return d.Name() == t.Work.Task.Driver })
	if i < 0 {
		return &driver.StartError{Reason: offpeak.EndNodeError, Detail: "this node has no driver " + strconv.Quote(t.Work.Task.Driver)}
	}
	work := filepath.Join(t.folder.Path(), state.WorkDir)
	cmd, err := t.a.env.Drivers[i].Command(driver.Task{
		Task: t.Work.Task, Work: work, Env: t.environment(work),
		Memory: t.Work.Resources.Memory, Cache: t.a.folder.At("cache"),
	})
	if err != nil {
		return err
	}
	for tries := startTries; ; tries-- {
		err := t.startOn(cmd)
		if err == nil {
			break
		}
		if t.slot.Sup != nil {
			t.a.pool.Drop(t.ctx, t.slot)
			t.slot = warm.Slot{}
		}
		// One that was kept ready may have died since, and whatever it began with
		// it; or it refuses, having been started by an older version.
		_, refused := errors.AsType[*supervisor.RefusedError](err)
		if tries <= 1 || !refused && !errors.Is(err, supervisor.ErrGone) || t.ctx.Err() != nil {
			return fmt.Errorf("start job: %w", err)
		}
	}
	t.follow()
	t.data.Log.Info("job started", "restored", t.restored)
	return nil
}

// startTries is how many supervisors are tried before a start is given up.
const startTries = 3

// startOn takes a supervisor and hands it the job.
func (t *attempt) startOn(cmd driver.Command) (err error) {
	if t.slot, err = t.a.pool.Take(t.ctx); err != nil {
		return err
	}
	if err := t.folder.Begin(state.Journal{
		Lease: t.Lease, Job: t.Job, Attempt: t.Attempt, Work: *t.Work, Restored: t.restored, Supervisor: t.slot.Name,
	}); err != nil {
		return err
	}
	t.a.mu.Lock()
	deadline := t.a.grantLocked()
	fallback := 12 * t.a.heard.interval
	t.a.mu.Unlock()
	if deadline.Timeout <= 0 {
		deadline = supervisor.Lease{Granted: int64(t.a.env.Boot()), Timeout: fallback}
	}
	res, lim := t.Work.Resources, t.Work.Limits
	if t.a.cfg.NoLimits {
		res.CPU, res.Memory, lim.Processes = 0, 0, 0
	}
	_, err = t.do(supervisor.Request{Start: &supervisor.Start{
		Lease: t.Lease, Forget: t.slot.Last, Command: cmd, Folder: t.folder.Path(), NoticePath: filepath.Join(cmd.Dir, state.OwnDir, "notice.json"),
		Limits: supervisor.Limits{CPU: res.CPU, Memory: res.Memory, Disk: res.Disk, Processes: lim.Processes, Log: lim.Log, Time: lim.Time.Std()},
		Grace:  t.Work.Task.Grace.Std(), KeepFrozen: lim.KeepFrozen.Std(), Deadline: deadline,
	}})
	return err
}

// checkpoints is the place of the checkpoint folder in the job's own.
func (t *attempt) checkpoints() string {
	dir := t.Work.Task.Checkpoint.Dir
	if dir == "" || !filepath.IsLocal(dir) {
		dir = state.CheckpointDir
	}
	return filepath.Clean(dir)
}

// environment is the job's whole environment: a small standard one and what
// the task adds.
func (t *attempt) environment(work string) []string {
	have := t.a.lastSample().Devices()
	visible := hardware.Visible(have, t.Work.Resources.Devices)
	env := map[string]string{
		"PATH":   "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME":   work,
		"TMPDIR": filepath.Join(work, state.OwnDir, "tmp"),
		"LANG":   "C.UTF-8",
	}
	maps.Copy(env, visible)
	maps.Copy(env, t.Work.Task.Env)
	maps.Copy(env, map[string]string{
		"OFFPEAK_JOB":            string(t.Job),
		"OFFPEAK_ATTEMPT":        strconv.Itoa(int(t.Attempt)),
		"OFFPEAK_LEASE":          string(t.Lease),
		"OFFPEAK_CHECKPOINT_DIR": filepath.Join(work, t.checkpoints()),
		"OFFPEAK_OUTPUT_DIR":     filepath.Join(work, state.OutputDir),
		"OFFPEAK_NOTICE":         filepath.Join(work, state.OwnDir, "notice.json"),
		"OFFPEAK_DEVICES":        visible["OFFPEAK_DEVICES"],
	})
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// prepareEnd says which end a failed preparation is.
func prepareEnd(err error) wire.Report {
	r := wire.Report{Reason: offpeak.EndNodeError, Detail: err.Error()}
	var stop *stopError
	var start *driver.StartError
	var input *inputError
	switch {
	case errors.As(err, &stop):
		r.Reason, r.Detail = stop.reason, ""
	case errors.As(err, &start):
		r.Reason, r.Detail = start.Reason, start.Detail
	case errors.Is(err, errPrepare):
		r.Reason, r.Detail = offpeak.EndPrepareTimeout, ""
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, offpeak.ErrStorage):
		r.Reason = offpeak.EndNodeDiskFull
	case errors.As(err, &input) && (errors.Is(err, offpeak.ErrInvalid) || errors.Is(err, offpeak.ErrTooLarge) || errors.Is(err, offpeak.ErrConflict)):
		r.Reason = offpeak.EndBadInput
	case errors.As(err, &input):
		r.Reason = offpeak.EndInputUnavailable
	}
	return r
}
