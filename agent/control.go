package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"offpeak"
	"offpeak/agent/books"
	"offpeak/agent/egress"
	"offpeak/agent/presence"
	"offpeak/agent/state"
	"offpeak/wire"
)

// Order is what an owner may ask of an agent.
type Order string

// The orders.
const (
	// OrderStatus changes nothing.
	OrderStatus Order = "status"
	// OrderPause takes jobs off the machine now, with notice, and takes no new
	// ones. It works while no hub can be reached, and outlives a restart.
	OrderPause Order = "pause"
	// OrderResume ends a pause or a drain.
	OrderResume Order = "resume"
	// OrderDrain takes no new work and pauses once the last job has ended.
	OrderDrain Order = "drain"
	// OrderLeave takes jobs off the machine and removes the node from its hub.
	OrderLeave Order = "leave"
	// OrderPolicy sets the owner's rules, from now on and for later agents.
	OrderPolicy Order = "policy"
)

// request is one line on the control socket.
type request struct {
	Order Order            `json:"order"`
	For   offpeak.Duration `json:"for,omitempty"`
	// Policy is what OrderPolicy sets.
	Policy *presence.Policy `json:"policy,omitempty"`
}

// answer is the line that comes back.
type answer struct {
	Status Status `json:"status"`
	Error  string `json:"error,omitempty"`
}

// Status is what an agent says of itself to the machine's owner.
type Status struct {
	Running bool           `json:"running"`
	PID     int            `json:"pid,omitempty"`
	Version string         `json:"version,omitempty"`
	Node    offpeak.NodeID `json:"node,omitempty"`
	Name    string         `json:"name,omitempty"`
	Hubs    []string       `json:"hubs,omitempty"`
	// Connected says that the last call was answered; Heard is when a heartbeat
	// was last acknowledged.
	Connected    bool                 `json:"connected"`
	Heard        time.Time            `json:"last_acknowledged_at,omitzero"`
	Availability offpeak.Availability `json:"availability,omitempty"`
	Why          offpeak.EndReason    `json:"why,omitempty"`
	Until        time.Time            `json:"paused_until,omitzero"`
	Draining     bool                 `json:"draining,omitempty"`
	Conflict     bool                 `json:"identity_conflict,omitempty"`
	// Problem is what stands in the way, for people.
	Problem string `json:"problem,omitempty"`
	// Presence is what the owner's rules make of the machine now, nil before the
	// first look. Policy are the rules, PolicyProblem what is wrong with their file.
	Presence      *presence.Verdict `json:"presence,omitempty"`
	Policy        *presence.Policy  `json:"policy,omitempty"`
	PolicyProblem string            `json:"policy_problem,omitempty"`
	Leases        []LeaseStatus     `json:"leases"`
	// Network says what jobs may reach of the network.
	Network string `json:"network,omitempty"`
	// Egress are the last jobs that reached something of the network, and have ended.
	Egress []egress.Ended `json:"egress_ended,omitempty"`
	// Account is whose node it is, Blocked whose jobs it never runs.
	Account offpeak.AccountID   `json:"account,omitempty"`
	Blocked []offpeak.AccountID `json:"blocked_accounts,omitempty"`
	// Devices are its GPUs as they were last measured, at Measured.
	Devices        []books.Device `json:"devices,omitempty"`
	DeviceWarnings []string       `json:"device_warnings,omitempty"`
	Measured       time.Time      `json:"measured_at,omitzero"`
	// Earnings is what the node brought; nil while no agent runs.
	Earnings *books.Earnings `json:"earnings,omitempty"`
	// Yields is how soon jobs left when the owner came; nil where that is not known.
	Yields *books.Yields `json:"yields,omitempty"`
	// Ended are the last jobs, the newest first.
	Ended []books.Ended `json:"ended,omitempty"`
}

// LeaseStatus is one lease that the agent holds.
type LeaseStatus struct {
	Lease   offpeak.LeaseID   `json:"lease"`
	Job     offpeak.JobID     `json:"job"`
	Attempt offpeak.Attempt   `json:"attempt"`
	Phase   string            `json:"phase"`
	Frozen  bool              `json:"frozen,omitempty"`
	Stop    offpeak.EndReason `json:"stop,omitempty"`
	Ran     offpeak.Millis    `json:"ran_ms"`
	Fence   string            `json:"fence,omitempty"`
	Limited bool              `json:"limited,omitempty"`
	// Egress is what it may reach, Reached what it has.
	Egress  []string         `json:"egress,omitempty"`
	Reached []egress.Reached `json:"reached,omitempty"`
	// Name is the job's, Account who submitted it and Class what that account is to
	// the node's owner; absent while the hub has not said.
	Name    string             `json:"name,omitempty"`
	Account offpeak.AccountID  `json:"account,omitempty"`
	Class   string             `json:"class,omitempty"`
	Since   time.Time          `json:"since,omitzero"`
	Devices []offpeak.DeviceID `json:"devices,omitempty"`
}

var errLeft = fmt.Errorf("the node left the grid: %w", errStopping)

func (a *Agent) listen() (net.Listener, error) {
	path, done, err := a.folder.Socket()
	if err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	defer done()
	// The lock says that nobody listens there any more.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	// The folder has mode 0700; the socket says the same.
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	return l, nil
}

// serveControl answers the owner, one order at a time, until ctx is done or
// the node has left.
func (a *Agent) serveControl(ctx context.Context, l net.Listener) error {
	defer os.Remove(a.folder.At("agent.sock"))
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("accept on control socket: %w", err)
		}
		if err := a.serveOne(ctx, conn); err != nil {
			return err
		}
	}
}

func (a *Agent) serveOne(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(a.cfg.Times.Call))
	var req request
	if err := json.NewDecoder(bufio.NewReader(conn)).Decode(&req); err != nil {
		return nil
	}
	_ = conn.SetDeadline(time.Time{})
	err := a.obey(ctx, req)
	ans := answer{Status: a.status()}
	if err != nil && !errors.Is(err, errLeft) {
		ans.Error = err.Error()
	}
	_ = json.NewEncoder(conn).Encode(ans)
	if errors.Is(err, errLeft) {
		return err
	}
	return nil
}

func (a *Agent) obey(ctx context.Context, req request) error {
	switch req.Order {
	case OrderStatus:
		return nil
	case OrderLeave:
		return a.leave(ctx)
	case OrderPolicy:
		if req.Policy == nil {
			return &offpeak.FieldError{Field: "policy", Rule: "is given with this order"}
		}
		return a.setPolicy(*req.Policy)
	}
	o, err := newOrders(req.Order, req.For.Std(), a.env.Now())
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.orderLocked(o)
	a.mu.Unlock()
	select {
	case a.waking <- struct{}{}:
	default:
	}
	a.env.Log.Info("the owner orders", "order", req.Order, "for", req.For)
	return nil
}

// newOrders is what an order leaves in force; lasting bounds a pause.
func newOrders(order Order, lasting time.Duration, now time.Time) (state.Orders, error) {
	switch order {
	case OrderPause:
		o := state.Orders{Paused: true}
		if lasting > 0 {
			o.Until = now.Add(lasting)
		}
		return o, nil
	case OrderDrain:
		return state.Orders{Draining: true}, nil
	case OrderResume:
		return state.Orders{}, nil
	}
	return state.Orders{}, &offpeak.FieldError{Field: "order", Value: string(order), Rule: "is status, pause, resume, drain, leave or policy"}
}

// leave takes the jobs off the machine and the node out of the grid.
func (a *Agent) leave(ctx context.Context) error {
	a.mu.Lock()
	a.closing = true
	a.mu.Unlock()
	a.stopJobs(ctx, offpeak.EndNodeRemoved)
	err := a.link.Call(ctx, func(ctx context.Context, d *wire.Direct) error { return d.Leave(ctx) })
	if err != nil && !errors.Is(err, offpeak.ErrUnknownNode) {
		a.mu.Lock()
		a.closing = false
		a.mu.Unlock()
		return fmt.Errorf("leave the grid: %w", err)
	}
	if err := a.folder.Forget(); err != nil {
		return err
	}
	a.env.Log.Info("the node left the grid")
	return errLeft
}

// status says how the agent fares.
func (a *Agent) status() Status {
	id, _, _ := a.folder.Identity()
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.env.Boot()
	st := Status{
		Running: true, PID: os.Getpid(), Version: a.cfg.Version, Node: id.Node, Name: id.Name, Hubs: a.link.Hubs(),
		Connected: a.heard.ok && a.heard.err == nil, Heard: a.heard.at, Availability: offpeak.NodeAvailable,
		Until: a.picture.orders.Until, Draining: a.picture.orders.Draining, Conflict: a.picture.conflicted, Leases: []LeaseStatus{},
	}
	if why := a.picture.why(now); why != "" {
		st.Availability, st.Why = offpeak.NodeInUse, why
	}
	if a.heard.err != nil {
		st.Problem = a.heard.err.Error()
	}
	if v, ok := a.watcher.Verdict(); ok {
		st.Presence = &v
	}
	policy := a.policy.Clone()
	st.Policy = &policy
	if a.spoilt {
		st.PolicyProblem = state.ErrSpoilt.Error()
	}
	for _, lease := range slices.Sorted(maps.Keys(a.picture.leases)) {
		h := a.picture.leases[lease]
		ls := LeaseStatus{Lease: lease, Job: h.desired.Job, Attempt: h.desired.Attempt, Stop: h.stop, Phase: "preparing"}
		if t := a.running[lease]; t != nil {
			ls.Frozen, ls.Ran = t.meter(now)
			last := t.last()
			ls.Fence, ls.Limited = last.Fence, last.Limited
			ls.Egress, ls.Reached = a.env.Egress.Reached(lease)
			ls.Since = t.since
			if t.adopted != nil {
				// An agent before this one began it.
				ls.Since = a.env.Now().Add(-time.Duration(ls.Ran) * time.Millisecond)
			}
			ls.Devices = h.devices
			if w := h.desired.Work; w != nil {
				ls.Name, ls.Account, ls.Class = w.JobName, w.Account, a.books.Class(w.Account)
			}
			if last.Phase != "" {
				ls.Phase = string(last.Phase)
			}
		}
		st.Leases = append(st.Leases, ls)
	}
	st.Network, st.Egress = a.env.Network, a.env.Egress.Ended()
	shown := a.books.Show()
	st.Account, st.Blocked, st.Earnings, st.Ended = shown.Account, shown.Blocked, &shown.Earnings, shown.Ended
	st.Devices, st.DeviceWarnings, st.Measured = books.Devices(a.sample), a.sample.Warnings, a.sample.At
	return st
}

// Tell gives the agent that runs on a data folder an order and returns its
// status. ErrNotRunning: none answers there. A leave may take as long as its
// jobs need to go.
func Tell(ctx context.Context, data string, order Order, lasting time.Duration) (Status, error) {
	return tell(ctx, data, request{Order: order, For: offpeak.Duration(lasting)})
}

// TellPolicy gives the agent that runs on a data folder other rules, as Tell does.
func TellPolicy(ctx context.Context, data string, p presence.Policy) (Status, error) {
	return tell(ctx, data, request{Order: OrderPolicy, Policy: &p})
}

func tell(ctx context.Context, data string, req request) (Status, error) {
	path, done, err := state.At(data).Socket()
	if errors.Is(err, fs.ErrNotExist) {
		return Status{}, ErrNotRunning
	} else if err != nil {
		return Status{}, fmt.Errorf("find agent: %w", err)
	}
	defer done()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return Status{}, fmt.Errorf("%w (%w)", ErrNotRunning, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(req); err != nil {
		return Status{}, fmt.Errorf("tell agent: %w", err)
	}
	var ans answer
	if err := json.NewDecoder(conn).Decode(&ans); err != nil {
		return Status{}, fmt.Errorf("read agent's answer: %w", err)
	}
	if ans.Error != "" {
		return ans.Status, errors.New(ans.Error)
	}
	return ans.Status, nil
}
