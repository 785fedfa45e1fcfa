package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"offpeak"
	"offpeak/agent/link"
	"offpeak/agent/state"
	"offpeak/agent/supervisor"
	"offpeak/agent/transfer"
	"offpeak/agent/warm"
	"offpeak/wire"
)

// The kinds of report, as in the store's contract.
const (
	kindAccepted  = "accepted"
	kindRunning   = "running"
	kindFinishing = "finishing"
	kindEnded     = "ended"
)

// errDropped ends an attempt whose lease is not the node's any more.
var errDropped = errors.New("the lease is not held any more")

// stopError ends an attempt's preparation because it was asked to go.
type stopError struct{ reason offpeak.EndReason }

func (e *stopError) Error() string { return "asked to stop: " + string(e.reason) }

// attempt is one lease on its way through this node, in a goroutine of its own.
type attempt struct {
	a *Agent
	// Desired is the hub's word. Work is fetched if it was not in it.
	wire.Desired
	adopted *adoption
	// since is when the agent began with it.
	since time.Time
	// declined says that the offer is to be handed back.
	declined bool

	// ctx ends when the agent lets go (the job goes on) or, with cause
	// errDropped, when the lease is lost.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// stops holds the reason to go until it is acted on, grants the newest
	// deadline.
	stops  chan offpeak.EndReason
	grants chan supervisor.Lease

	slot     warm.Slot
	restored int64
	folder   *state.Lease
	data     *transfer.Lease
	// logs and saved are nil before the job is started.
	logs  *transfer.Logs
	saved *transfer.Checkpoints

	// kills holds an order to end the job at once.
	kills chan supervisor.Kill

	// mu guards what follows: root and limits as holds says.
	mu     sync.Mutex
	seen   seen
	root   int
	limits map[offpeak.DeviceID]offpeak.Bytes
}

// seen is the newest word of a supervisor, and when it came on the boot clock.
type seen struct {
	supervisor.Status
	at time.Duration
}

// adoption is what was found of the supervisor of a lease that goes on.
type adoption struct {
	slot  warm.Slot
	alive bool
}

func (a *Agent) newAttempt(d wire.Desired) *attempt {
	t := &attempt{
		a: a, Desired: d, folder: a.folder.Hold(d.Lease), since: a.env.Now(),
		stops: make(chan offpeak.EndReason, 1), grants: make(chan supervisor.Lease, 1), kills: make(chan supervisor.Kill, 1),
	}
	t.ctx, t.cancel = context.WithCancelCause(a.ctx)
	t.data = &transfer.Lease{
		ID: d.Lease, Attempt: d.Attempt, Folder: t.folder, Link: a.link, Bound: a.cfg.Times.Blob,
		Boot: a.env.Boot, Pause: a.pause, Note: a.note, Log: a.env.Log.With("job", d.Job, "attempt", d.Attempt, "lease", d.Lease),
		Ran:   func() offpeak.Millis { _, ran := t.meter(a.env.Boot()); return ran },
		Stale: func() { t.cancel(errDropped) },
	}
	return t
}

// askToStop and granted are called with the agent's mu held, so they alone
// write to their channels and can replace what was not read yet.
func (t *attempt) askToStop(reason offpeak.EndReason) {
	select {
	case t.stops <- reason:
	default:
	}
}

func (t *attempt) granted(l supervisor.Lease) {
	select {
	case <-t.grants:
	default:
	}
	t.grants <- l
}

// meter returns whether the job is frozen and how long it has run.
func (t *attempt) meter(now time.Duration) (frozen bool, ran offpeak.Millis) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ran = t.seen.Ran
	if t.seen.Phase == supervisor.Running && !t.seen.Frozen {
		ran += offpeak.Millis((now - t.seen.at).Milliseconds())
	}
	return t.seen.Frozen, ran
}

// saw takes the supervisor's newest word and says whether it tells of more
// output. One about the job before this one, or from before the exit, comes late
// and is passed over.
func (t *attempt) saw(st supervisor.Status) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if st.Lease != t.Lease || t.seen.Phase == supervisor.Exited {
		return false
	}
	more = st.Stdout+st.Stderr > t.seen.Stdout+t.seen.Stderr
	t.seen = seen{st, t.a.env.Boot()}
	return more
}

// run takes the lease all its way. Whatever happens, the folder and the
// supervisor are cleared away, unless the agent only lets go of a running job.
func (t *attempt) run() {
	defer t.folder.Close()
	kept := false
	defer func() { t.a.env.Egress.End(t.Lease, kept) }()
	end, err := t.live()
	if err == nil {
		err = t.finish(end)
	}
	switch {
	case errors.Is(context.Cause(t.ctx), errDropped), errors.Is(err, offpeak.ErrStaleLease), errors.Is(err, offpeak.ErrNotFound):
		if t.slot.Sup != nil {
			_, _ = t.do(supervisor.Request{Kill: &supervisor.Kill{Reason: offpeak.EndNodeLost}})
			t.a.pool.Drop(t.ctx, t.slot)
		}
	case err != nil && t.ctx.Err() != nil:
		// The agent lets go. A job that was started goes on; nothing else is left.
		if t.slot.Sup != nil {
			if t.phase() == "" {
				t.a.pool.Drop(t.ctx, t.slot)
				break
			}
			t.slot.Sup.Close()
			kept = true
		}
		return
	case err != nil:
		t.data.Log.Error("the hub will not have the end of an attempt", "error", err)
		fallthrough
	default:
		// Without its journal the lease is over for the next agent too, so the
		// supervisor's name is free for another.
		t.folder.Settle()
		if t.slot.Sup != nil { // and its job has exited
			t.a.pool.Give(t.ctx, t.slot, t.Lease)
		}
	}
	t.a.apply(done{t.Lease})
	t.folder.Retire()
	// Last: the next job waits for none of it.
	t.remember(end, err)
}

func (t *attempt) phase() supervisor.Phase {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen.Phase
}

func (t *attempt) do(r supervisor.Request) (supervisor.Status, error) {
	st, err := t.a.pool.Do(t.ctx, t.slot.Sup, r)
	if err != nil {
		return st, fmt.Errorf("ask supervisor: %w", err)
	}
	t.saw(st)
	return st, nil
}

// live accepts, prepares and watches, and returns how the attempt ended. An
// error means that there is nothing to report: the lease is stale, or the agent
// lets go.
func (t *attempt) live() (wire.Report, error) {
	switch {
	case t.declined:
		return wire.Report{Reason: offpeak.EndDeclined}, nil
	case t.adopted != nil:
		return t.resume()
	}
	if t.Work == nil {
		if err := t.ask(); err != nil {
			return wire.Report{}, err
		}
		if !t.a.admits(t.Lease, t.Work.Resources.Devices) {
			return wire.Report{Reason: offpeak.EndDeclined}, nil
		}
	}
	if free, err := t.a.env.Free(t.a.folder.At()); err == nil && free < t.Work.Resources.Disk {
		t.data.Log.Warn("declining work: the disk is too full", "free", free, "wanted", t.Work.Resources.Disk)
		t.a.apply(diskFull{t.a.env.Boot() + t.a.cfg.Times.DiskPause})
		return wire.Report{Reason: offpeak.EndDeclined, Detail: fmt.Sprintf("%s free on the node's disk, %s wanted", free, t.Work.Resources.Disk)}, nil
	}
	// The folder is laid out while the acceptance is on its way, unless the lease
	// was taken ahead. It is all that is done before the hub has it: nothing is
	// fetched, begun or started.
	var accepted <-chan error
	if t.State == offpeak.LeaseOffered {
		accepted = t.a.report(t.ctx, t.report(kindAccepted))
	}
	laid := t.layOut()
	if accepted != nil {
		if err := t.await(accepted); err != nil {
			return wire.Report{}, err
		}
	}
	if err := t.prepare(laid); err != nil {
		if t.ctx.Err() != nil || errors.Is(err, offpeak.ErrStaleLease) {
			return wire.Report{}, err
		}
		return prepareEnd(err), nil
	}
	return t.watch()
}

// ask fetches what the attempt is about, when the hub's word did not say.
func (t *attempt) ask() error {
	for failures := 1; ; failures++ {
		err := t.a.link.Call(t.ctx, func(ctx context.Context, d *wire.Direct) error {
			got, err := d.Work(ctx, t.Lease)
			t.Work = got.Work
			return err
		})
		switch {
		case err == nil && t.Work != nil:
			return nil
		case t.ctx.Err() != nil:
			return context.Cause(t.ctx)
		case err == nil, link.Refused(err):
			return errors.Join(offpeak.ErrNotFound, err)
		}
		if err := t.a.pause(t.ctx, failures); err != nil {
			return context.Cause(t.ctx)
		}
	}
}

func (t *attempt) report(kind string) wire.Report {
	return wire.Report{Lease: t.Lease, Attempt: t.Attempt, Kind: kind, Restored: t.restored}
}

func (t *attempt) await(done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-t.ctx.Done():
		return context.Cause(t.ctx)
	}
}

// resume goes on with a job that an earlier agent started.
func (t *attempt) resume() (wire.Report, error) {
	t.follow()
	if t.adopted.alive {
		if _, err := t.a.env.Egress.Begin(t.Lease, t.Job, t.Work.Egress); err != nil {
			t.data.Log.Warn("a job that goes on has lost its network", "error", err)
		}
		t.slot = t.adopted.slot
		t.a.pool.Adopted()
		if st, err := t.do(supervisor.Request{Status: &struct{}{}}); err == nil && st.Lease == t.Lease {
			return t.watch()
		}
		// It holds another lease or none: two journals can't both be right, and
		// a supervisor that is not this lease's is not this attempt's to end.
		t.slot.Sup.Close()
		t.slot = warm.Slot{}
		t.a.pool.Returned()
	}
	return t.orphaned(), nil
}

// orphaned says how a job ended whose supervisor is gone: as the supervisor
// wrote down, else it died with it.
func (t *attempt) orphaned() wire.Report {
	data, err := t.folder.Read(supervisor.StatusFile)
	var st supervisor.Status
	if err == nil && json.Unmarshal(data, &st) == nil && st.Phase == supervisor.Exited && st.Exit != nil && st.Lease == t.Lease {
		t.saw(st)
		return exitReport(st)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.data.Log.Warn("read what a supervisor left", "error", err)
	}
	return wire.Report{Reason: offpeak.EndSupervisorLost, Started: true}
}

// follow begins to ship logs and to store checkpoints.
func (t *attempt) follow() {
	t.data.Checkpoints = t.checkpoints()
	t.logs = transfer.NewLogs(t.data)
	t.saved = transfer.NewCheckpoints(t.data, t.restored != 0 && t.adopted == nil)
}

// watch follows the running job until it is gone.
func (t *attempt) watch() (wire.Report, error) {
	t.began(t.slot.Sup)
	ctx, cancel := context.WithCancel(t.ctx)
	var side sync.WaitGroup
	side.Go(func() { t.logs.Run(ctx, t.a.cfg.Times.Log) })
	side.Go(func() { t.saved.Run(ctx, t.Work.Task.Checkpoint.Every.Std()) })
	defer side.Wait()
	defer cancel()

	started := time.NewTimer(t.a.cfg.Times.Running)
	defer started.Stop()
	for {
		if st := t.last(); st.Phase == supervisor.Exited && st.Exit != nil {
			return exitReport(st), nil
		}
		select {
		case st, ok := <-t.slot.Sup.Updates():
			if ok {
				if t.saw(st) && st.Phase == supervisor.Running {
					t.logs.Came()
				}
				continue
			}
			if !t.reconnect() {
				return t.orphaned(), nil
			}
		case l := <-t.grants:
			if l.Timeout > 0 {
				t.tell(supervisor.Request{Lease: &l})
			}
		case reason := <-t.stops:
			t.data.Log.Info("giving a job notice", "reason", reason)
			t.tell(supervisor.Request{Notice: &supervisor.Notice{Reason: reason}})
		case k := <-t.kills:
			t.tell(supervisor.Request{Kill: &k})
		case <-started.C:
			r := t.report(kindRunning)
			_, r.Ran = t.meter(t.a.env.Boot())
			answer := t.a.report(ctx, r)
			side.Go(func() {
				if err := t.await(answer); errors.Is(err, offpeak.ErrStaleLease) || errors.Is(err, offpeak.ErrNotFound) {
					t.cancel(errDropped)
				}
			})
		case <-t.ctx.Done():
			return wire.Report{}, context.Cause(t.ctx)
		}
	}
}

func (t *attempt) last() supervisor.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen.Status
}

// tell asks the supervisor for something that it can only refuse when the job
// is gone already, which its status will say.
func (t *attempt) tell(r supervisor.Request) {
	if _, err := t.do(r); err != nil {
		t.data.Log.Debug("tell a supervisor", "error", err)
	}
}

// reconnect finds the supervisor again after its connection broke.
func (t *attempt) reconnect() bool {
	t.slot.Sup.Close()
	ctx, cancel := context.WithTimeout(t.ctx, t.a.cfg.Times.Call)
	defer cancel()
	sup, err := t.a.env.Supervisors.Adopt(ctx, t.a.folder.At("supervisors", t.slot.Name))
	if err != nil {
		t.a.pool.Release(t.slot.Name)
		t.a.pool.Returned()
		t.slot = warm.Slot{}
		return false
	}
	t.slot.Sup = sup
	_, err = t.do(supervisor.Request{Status: &struct{}{}})
	return err == nil
}

func exitReport(st supervisor.Status) wire.Report {
	x := st.Exit
	return wire.Report{Reason: x.Reason, Detail: x.Detail, ExitCode: x.Code, Signal: x.Signal, Ran: st.Ran, Started: true}
}
