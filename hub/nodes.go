package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"offpeak"
	"offpeak/placement"
	"offpeak/store"
	"offpeak/wire"
)

// reportsAtOnce is how many leases' reports of one request are applied side by
// side, so that they share commits.
const reportsAtOnce = 32

// Enrol turns a join token into a node of the fleet.
func (h *Hub) Enrol(ctx context.Context, join offpeak.Token, in wire.Enrol, address string) (wire.Enrolled, error) {
	if err := checkInventory(&in.Inventory); err != nil {
		return wire.Enrolled{}, err
	}
	ctx, done := h.settling(ctx)
	defer done()
	out, err := h.access.Enrol(ctx, join, in, address)
	if err != nil {
		return wire.Enrolled{}, h.failed(err)
	}
	if err := h.reload(ctx, out.Node); err != nil {
		h.distrust(out.Node)
	}
	if err := h.trade.Look(ctx, out.Node); err != nil {
		h.env.Log.Warn("a new node asks nothing yet", "node", out.Node, "err", err)
	}
	return out, nil
}

// OpenSession checks the signature and opens a node's session: its agent began
// anew, or goes on. It returns ErrUnknownNode, ErrUnauthenticated, or
// ErrIdentityConflict.
func (h *Hub) OpenSession(ctx context.Context, in wire.OpenSession, address string) (wire.Session, error) {
	ctx, done := h.settling(ctx)
	defer done()
	s, err := h.access.OpenSession(ctx, in, address)
	if err != nil {
		return wire.Session{}, h.failed(err)
	}
	h.peers.get(in.Node).renewed()
	return s, nil
}

// checkInventory refuses what no machine has.
func checkInventory(inv *offpeak.Inventory) error {
	var errs []error
	within := func(field string, n, most int64) {
		if n < 0 || n > most {
			errs = append(errs, &offpeak.FieldError{Field: field, Value: fmt.Sprint(n), Rule: fmt.Sprintf("is from 0 to %d", most)})
		}
	}
	within("inventory.cpu_milli", inv.CPU, 4096*1000)
	within("inventory.memory_bytes", int64(inv.Memory), int64(offpeak.MaxBytes))
	within("inventory.disk_bytes", int64(inv.Disk), int64(offpeak.MaxBytes))
	within("inventory.devices", int64(len(inv.Devices)), 64)
	within("inventory.drivers", int64(len(inv.Drivers)), 64)
	within("inventory.shared_drivers", int64(len(inv.Shared)), 64)
	within("inventory.labels", int64(len(inv.Labels)), 64)
	seen := make(map[offpeak.DeviceID]bool, len(inv.Devices))
	for i, d := range inv.Devices {
		field := fmt.Sprintf("inventory.devices[%d]", i)
		within(field+".vram_bytes", int64(d.VRAM), int64(16*offpeak.TiB))
		within(field+".total_bytes", int64(d.Total), int64(16*offpeak.TiB))
		if d.Total != 0 && d.VRAM > d.Total {
			errs = append(errs, &offpeak.FieldError{Field: field + ".vram_bytes", Value: d.VRAM.String(), Rule: "is at most total_bytes, " + d.Total.String()})
		}
		if d.ID == "" || len(d.ID) > 128 || seen[d.ID] {
			errs = append(errs, &offpeak.FieldError{Field: field + ".id", Value: string(d.ID), Rule: "names the device, once, in at most 128 bytes"})
		}
		seen[d.ID] = true
	}
	if e := inv.Egress; e != nil {
		within("inventory.egress.drivers", int64(len(e.Drivers)), 64)
	}
	errs = append(errs, inv.Egress.Validate("inventory.egress.hosts"))
	return errors.Join(append(errs, inv.Guests.Validate("inventory.guests.allow", "inventory.guests.deny"))...)
}

// Watch returns a channel that holds a token whenever what the node should hold
// may have changed, beginning with one, and a function that ends the watch.
func (h *Hub) Watch(node offpeak.NodeID) (changed <-chan struct{}, stop func()) {
	p := h.peers.get(node)
	w := p.watch()
	return w, func() { p.unwatch(w) }
}

// Desired is what a node should hold now.
func (h *Hub) Desired(ctx context.Context, node offpeak.NodeID) (wire.Sync, error) {
	revision, held, err := h.env.Store.Assignments(ctx, node)
	if err != nil {
		return wire.Sync{}, fmt.Errorf("read assignments of %s: %w", node, err)
	}
	out := wire.Sync{Revision: revision, Interval: offpeak.Duration(h.cfg.Interval), Leases: make([]wire.Desired, 0, len(held))}
	for i := range held {
		a := &held[i]
		d := desired(&a.Lease)
		d.Offer = offpeak.Duration(a.Left)
		if a.Lease.State == offpeak.LeaseOffered || a.Taken {
			d.Work = work(a)
		}
		out.Leases = append(out.Leases, d)
	}
	return out, nil
}

// Work is one lease with what is needed to run it.
func (h *Hub) Work(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID) (wire.Desired, error) {
	_, held, err := h.env.Store.Assignments(ctx, node)
	if err != nil {
		return wire.Desired{}, fmt.Errorf("read assignments of %s: %w", node, err)
	}
	for i := range held {
		if a := &held[i]; a.Lease.ID == lease {
			d := desired(&a.Lease)
			d.Work = work(a)
			return d, nil
		}
	}
	return wire.Desired{}, &offpeak.StaleLeaseError{Lease: lease}
}

func desired(l *offpeak.Lease) wire.Desired {
	return wire.Desired{Lease: l.ID, Job: l.Job, Attempt: l.Attempt, State: l.State, Stop: l.Stop}
}

func work(a *store.Assignment) *wire.Work {
	task := a.Spec.Task
	if a.Member != nil {
		// The spec's map is shared by all members.
		task.Env = make(map[string]string, len(a.Spec.Task.Env)+len(a.Member))
		maps.Copy(task.Env, a.Spec.Task.Env)
		maps.Copy(task.Env, a.Member)
	}
	w := &wire.Work{
		JobName: a.Spec.Name, Account: a.Lease.Account, Task: task, Limits: a.Spec.Limits, Egress: a.Spec.Requirements.Egress,
		Resources: a.Lease.Resources, Checkpoints: a.Checkpoints,
	}
	// A lease has its devices in the order in which the job asks for them.
	for _, g := range a.Spec.Requirements.GPUs {
		w.VRAM = append(w.VRAM, g.VRAM)
	}
	for _, in := range a.Inputs {
		w.Inputs = append(w.Inputs, wire.Input{Into: in.Into, Tree: in.Tree})
	}
	return w
}

// Report applies reports, each for itself; those of one lease in their order.
func (h *Hub) Report(ctx context.Context, node offpeak.NodeID, in []wire.Report) []wire.ReportResult {
	out := make([]wire.ReportResult, len(in))
	byLease := make(map[offpeak.LeaseID][]int, len(in))
	var order []offpeak.LeaseID
	for i := range in {
		if _, seen := byLease[in[i].Lease]; !seen {
			order = append(order, in[i].Lease)
		}
		byLease[in[i].Lease] = append(byLease[in[i].Lease], i)
	}
	apply := func(lease offpeak.LeaseID) {
		for _, i := range byLease[lease] {
			out[i] = h.report(ctx, node, &in[i])
		}
	}
	if len(order) == 1 {
		apply(order[0])
		return out
	}
	var group sync.WaitGroup
	slots := make(chan struct{}, reportsAtOnce)
	for _, lease := range order {
		slots <- struct{}{}
		group.Go(func() {
			apply(lease)
			<-slots
		})
	}
	group.Wait()
	return out
}

func (h *Hub) report(ctx context.Context, node offpeak.NodeID, in *wire.Report) wire.ReportResult {
	c, err := h.applyReport(ctx, node, in)
	if err != nil {
		h.refuse(node, in.Lease, in.Attempt, in.Kind, err)
		return wire.ReportResult{Problem: wire.ProblemOf(fmt.Errorf("report %s of %s: %w", in.Kind, in.Lease, err))}
	}
	out := wire.ReportResult{}
	if c.Lease != nil {
		out.State = c.Lease.State
	}
	return out
}

func (h *Hub) applyReport(ctx context.Context, node offpeak.NodeID, in *wire.Report) (store.Change, error) {
	if err := checkReport(in); err != nil {
		return store.Change{}, err
	}
	r := store.Report{
		Node: node, Lease: in.Lease, Attempt: in.Attempt, Incarnation: in.Incarnation, Seq: in.Seq,
		Kind: store.ReportKind(in.Kind), Ran: in.Ran, Started: in.Started, Restored: in.Restored,
		Reason: in.Reason, Detail: in.Detail, ExitCode: in.ExitCode, Signal: in.Signal,
		Output: in.Output, LogEnd: in.LogEnd,
	}
	for _, piece := range in.Logs {
		a, err := h.data.Piece(ctx, node, in.Lease, piece)
		if err != nil {
			return store.Change{}, err
		}
		r.Logs = append(r.Logs, a)
	}
	ctx, done := h.settling(ctx)
	defer done()
	next, handing := h.handOver(&r)
	if handing {
		r.Then = &next.claim
		if in.Takes {
			r.Then.Taken = in.Incarnation
		}
	}
	c, err := h.env.Store.Report(ctx, r)
	if err == nil {
		h.metrics.reports.WithLabelValues(in.Kind).Inc()
		// Followers are woken for the bytes before the end is seen: both are there.
		h.rang(string(in.Lease))
		h.applyFrom(node, c)
	}
	if handing {
		h.handedOver(ctx, r.Lease, next, c.Then, err)
	}
	return c, h.failed(err)
}

// refuse makes it visible that a node spoke of a lease that is not its own any
// more: it is told so, and the hub's keeper reads it here.
func (h *Hub) refuse(node offpeak.NodeID, lease offpeak.LeaseID, attempt offpeak.Attempt, what string, err error) {
	stale, ok := errors.AsType[*offpeak.StaleLeaseError](err)
	if !ok {
		return
	}
	h.env.Log.Warn("stale report refused", "lease", lease, "attempt", attempt, "node", node,
		"what", what, "newest", stale.Attempt, "state", stale.State)
}

func checkReport(in *wire.Report) error {
	kinds := []store.ReportKind{store.ReportAccepted, store.ReportRunning, store.ReportFinishing, store.ReportEnded}
	switch {
	case !slices.Contains(kinds, store.ReportKind(in.Kind)):
		return &offpeak.FieldError{Field: "kind", Value: in.Kind, Rule: "is accepted, running, finishing or ended"}
	case in.Incarnation == "" || in.Seq <= 0:
		return &offpeak.FieldError{Field: "seq", Value: fmt.Sprint(in.Seq), Rule: "counts from 1 within an incarnation"}
	case in.Ran < 0:
		return &offpeak.FieldError{Field: "ran_ms", Value: fmt.Sprint(in.Ran), Rule: "is not negative"}
	case len(in.Detail) > 4096 || len(in.Signal) > 64:
		return &offpeak.FieldError{Field: "detail", Rule: "is at most 4096 bytes, signal 64"}
	}
	if in.Reason != "" || store.ReportKind(in.Kind) == store.ReportEnded {
		if _, known := offpeak.EndOf(in.Reason); !known {
			return &offpeak.FieldError{Field: "reason", Value: string(in.Reason), Rule: "is a reason of the table of ends"}
		}
	}
	if in.Output != "" && !in.Output.Valid() {
		return &offpeak.FieldError{Field: "output", Value: string(in.Output), Rule: "is the hash of a stored tree"}
	}
	return nil
}

// AppendLog stores a piece of a log and wakes its followers.
func (h *Hub) AppendLog(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID, attempt offpeak.Attempt, stream string, offset int64, data []byte) (end int64, err error) {
	if err := h.data.Full(); err != nil {
		return 0, fmt.Errorf("append log of %s: %w", lease, err)
	}
	a, err := h.data.Piece(ctx, node, lease, wire.LogPiece{Stream: stream, Offset: offset, Data: data})
	if err != nil {
		h.refuse(node, lease, attempt, "log", err)
		return 0, fmt.Errorf("append log of %s: %w", lease, err)
	}
	if end, err = h.env.Store.AppendLog(ctx, node, lease, attempt, a); err != nil {
		h.refuse(node, lease, attempt, "log", err)
		return 0, fmt.Errorf("append log of %s: %w", lease, err)
	}
	h.rang(string(lease))
	return end, nil
}

// AddCheckpoint declares a stored tree to be a checkpoint.
func (h *Hub) AddCheckpoint(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID, in wire.NewCheckpoint) (offpeak.Checkpoint, error) {
	switch {
	case in.Name == "" || len(in.Name) > 255:
		return offpeak.Checkpoint{}, &offpeak.FieldError{Field: "name", Value: in.Name, Rule: "is the entry's name, 1 to 255 bytes"}
	case !in.Tree.Valid():
		return offpeak.Checkpoint{}, &offpeak.FieldError{Field: "tree", Value: string(in.Tree), Rule: "is the hash of a stored tree"}
	case in.Metered < 0 || in.Size < 0:
		return offpeak.Checkpoint{}, &offpeak.FieldError{Field: "metered_ms", Rule: "is not negative, nor is size_bytes"}
	}
	c, err := h.env.Store.AddCheckpoint(ctx, store.NewCheckpoint{
		Node: node, Lease: lease, Attempt: in.Attempt, Name: in.Name, Tree: in.Tree, Metered: in.Metered, Size: in.Size,
	})
	if err != nil {
		h.refuse(node, lease, in.Attempt, "checkpoint", err)
		return offpeak.Checkpoint{}, fmt.Errorf("add checkpoint of %s: %w", lease, h.failed(err))
	}
	h.wrote()
	h.bells.Ring(string(c.Job))
	return c, nil
}

// SetInventory says what a node has.
func (h *Hub) SetInventory(ctx context.Context, node offpeak.NodeID, inv offpeak.Inventory) error {
	if err := checkInventory(&inv); err != nil {
		return err
	}
	if err := h.warned(ctx, &inv); err != nil {
		return fmt.Errorf("set inventory of %s: %w", node, err)
	}
	ctx, done := h.settling(ctx)
	defer done()
	n, changes, err := h.env.Store.SetInventory(ctx, node, inv)
	if err != nil {
		return fmt.Errorf("set inventory of %s: %w", node, h.failed(err))
	}
	h.apply(changes...)
	h.reread(ctx, node, n.Revision)
	return nil
}

// SetReadings says what a node's devices do now.
func (h *Hub) SetReadings(ctx context.Context, node offpeak.NodeID, readings []offpeak.Reading) error {
	if err := checkReadings(readings); err != nil {
		return err
	}
	ctx, done := h.settling(ctx)
	defer done()
	if err := h.env.Store.SetReadings(ctx, node, readings); err != nil {
		return fmt.Errorf("set readings of %s: %w", node, h.failed(err))
	}
	return nil
}

// checkReadings refuses what no machine's devices do.
func checkReadings(readings []offpeak.Reading) error {
	if len(readings) > 64 {
		return &offpeak.FieldError{Field: "readings", Value: fmt.Sprint(len(readings)), Rule: "are at most 64"}
	}
	var errs []error
	for i, r := range readings {
		refuse := func(field, value, rule string) {
			errs = append(errs, &offpeak.FieldError{Field: fmt.Sprintf("readings[%d].%s", i, field), Value: value, Rule: rule})
		}
		if r.Device == "" || len(r.Device) > 128 {
			refuse("device", string(r.Device), "names the device in at most 128 bytes")
		}
		for field, n := range map[string]*int{"temperature_celsius": r.Temperature, "power_watts": r.Power, "utilisation_percent": r.Utilisation} {
			if n != nil && (*n < -273 || *n > 1_000_000) {
				refuse(field, fmt.Sprint(*n), "is from -273 to 1000000")
			}
		}
		for field, b := range map[string]*offpeak.Bytes{"used_bytes": r.Used, "used_by_others_bytes": r.Others} {
			if b != nil && (*b < 0 || *b > offpeak.MaxBytes) {
				refuse(field, fmt.Sprint(int64(*b)), "is an amount of bytes")
			}
		}
		if len(r.Throttled) > 8 || slices.ContainsFunc(r.Throttled, func(s string) bool { return len(s) > 32 }) {
			refuse("throttled", "", "are at most 8 words of 32 bytes")
		}
	}
	return errors.Join(errs...)
}

// reread takes a node's new state into the picture and tells its watchers,
// since leases of it may have been asked to stop.
func (h *Hub) reread(ctx context.Context, node offpeak.NodeID, revision int64) {
	if err := h.reload(ctx, node); err != nil {
		h.distrust(node)
	}
	h.peers.changed(node, revision, true)
	h.wrote()
	h.wake()
}

// SetIntent orders a node open, draining or closed, and tells it at once.
func (h *Hub) SetIntent(ctx context.Context, op store.Op, account offpeak.AccountID, node offpeak.NodeID, in wire.IntentChange) (offpeak.Node, error) {
	if !slices.Contains(offpeak.Intents(), in.Intent) {
		return offpeak.Node{}, &offpeak.FieldError{Field: "intent", Value: string(in.Intent), Rule: "is open, draining or closed"}
	}
	ctx, done := h.settling(ctx)
	defer done()
	n, changes, err := h.env.Store.SetIntent(ctx, op, account, node, in.Intent, in.Stop)
	if err != nil {
		return offpeak.Node{}, h.failed(err)
	}
	h.changedNode(node, func(f *placement.Fleet) { f.SetIntent(node, n.Intent) })
	h.apply(changes...)
	h.peers.changed(node, n.Revision, true)
	h.until(&n)
	return n, nil
}

// RemoveNode forgets a node; its agent learns it with its next call.
func (h *Hub) RemoveNode(ctx context.Context, op store.Op, account offpeak.AccountID, node offpeak.NodeID) error {
	ctx, done := h.settling(ctx)
	defer done()
	changes, err := h.env.Store.RemoveNode(ctx, op, account, node)
	if err != nil {
		return h.failed(err)
	}
	h.access.Forget(node)
	h.apply(changes...)
	h.forget(node)
	h.wrote()
	return nil
}

// distrust has a node read anew before the next match.
func (h *Hub) distrust(id offpeak.NodeID) {
	h.mu.Lock()
	h.stale[id] = struct{}{}
	h.mu.Unlock()
	h.wake()
}
