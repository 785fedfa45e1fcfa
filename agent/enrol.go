package agent

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"offpeak"
	"offpeak/agent/books"
	"offpeak/agent/link"
	"offpeak/agent/state"
	"offpeak/wire"
)

// Join enrols this machine with a join token and returns its name. The key is
// made here and never leaves; joining again with a key that the hub knows gives
// the same node back. It returns ErrEnrolled, ErrBusy, ErrTokenSpent, or why no
// hub could be reached.
func Join(ctx context.Context, cfg Config, env Env, token wire.JoinToken, name string) (string, error) {
	cfg.Times = cfg.Times.withDefaults()
	f, err := state.Open(cfg.Data, env.Log)
	if err != nil {
		return "", err
	}
	unlock, err := f.Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, _, err := f.Identity(); err == nil {
		return "", ErrEnrolled
	} else if !errors.Is(err, ErrNotEnrolled) && !errors.Is(err, ErrIdentityLost) {
		return "", err
	}
	key, err := f.MakeKey(env.Random)
	if err != nil {
		return "", err
	}
	inv, err := env.survey(ctx)
	if err != nil {
		return "", fmt.Errorf("look at the machine: %w", err)
	}
	if name == "" {
		name = inv.Hostname
	}
	join, err := tokenID(token.Token)
	if err != nil {
		return "", fmt.Errorf("read join token: %w", err)
	}
	in := wire.Enrol{
		Name: name, Key: key.Public().(ed25519.PublicKey), Inventory: inv,
		Proof: ed25519.Sign(key, wire.EnrolMessage(join)),
	}
	client := env.Client(token.Fingerprint)
	defer client.CloseIdleConnections()
	hubs := token.Hubs
	if len(cfg.Hubs) > 0 {
		hubs = cfg.Hubs
	}
	var errs []error
	for _, hub := range hubs {
		d := &wire.Direct{Client: client, Base: hub, Token: token.Token, Agent: "offpeak-agent/" + cfg.Version}
		once, cancel := context.WithTimeout(ctx, cfg.Times.Call)
		out, err := d.Enrol(once, in)
		cancel()
		if err == nil {
			id := link.Identity{Node: out.Node, Account: out.Account, Name: out.Name, Hubs: out.Hubs, Fingerprint: token.Fingerprint, Generation: out.Generation}
			if len(id.Hubs) == 0 {
				id.Hubs = hubs
			}
			return id.Name, f.SaveIdentity(id)
		}
		if errors.Is(err, offpeak.ErrUnauthenticated) {
			err = ErrTokenSpent
		}
		errs = append(errs, fmt.Errorf("enrol at %s: %w", hub, err))
		if !errors.Is(err, offpeak.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return "", errors.Join(errs...)
}

// tokenID is the public part of a token, offpeak_<kind>_<id>_<secret>.
func tokenID(token string) (offpeak.TokenID, error) {
	parts := strings.SplitN(token, "_", 4)
	if len(parts) != 4 || parts[0] != "offpeak" || parts[2] == "" {
		return "", &offpeak.FieldError{Field: "token", Rule: "is a join token of a hub"}
	}
	return offpeak.TokenID("tok_" + parts[2]), nil
}

// Enrolled says whether the data folder holds an identity: nil, ErrNotEnrolled,
// ErrIdentityLost, or why it can't be read.
func Enrolled(data string, log *slog.Logger) error {
	f, err := state.Open(data, log)
	if err != nil {
		return err
	}
	_, _, err = f.Identity()
	return err
}

// Offline returns what can be said of a node whose agent does not run.
func Offline(data string) (Status, error) {
	f, err := state.Open(data, slog.New(slog.DiscardHandler))
	if err != nil {
		return Status{}, err
	}
	id, _, err := f.Identity()
	st := Status{Node: id.Node, Name: id.Name, Hubs: id.Hubs, Problem: ErrNotRunning.Error(), Leases: []LeaseStatus{}}
	if err != nil {
		st.Problem = err.Error()
	}
	o := f.Orders()
	if o.Paused {
		st.Availability, st.Why, st.Until = offpeak.NodeInUse, offpeak.EndPaused, o.Until
	}
	st.Draining, st.Account, st.Ended = o.Draining, id.Account, books.Read(f)
	policy, spoilt, err := readPolicy(f)
	if err == nil {
		st.Policy = &policy
	}
	if spoilt {
		st.PolicyProblem = state.ErrSpoilt.Error()
	}
	journals, err := f.Peek()
	for _, j := range journals {
		st.Leases = append(st.Leases, LeaseStatus{Lease: j.Lease, Job: j.Job, Attempt: j.Attempt, Phase: "left to its supervisor"})
	}
	return st, err
}

// Keep writes an order of the owner down while no agent runs: the next one
// begins with it. It returns ErrBusy when one runs after all.
func Keep(cfg Config, env Env, order Order, lasting time.Duration) error {
	f, err := state.Open(cfg.Data, env.Log)
	if err != nil {
		return err
	}
	unlock, err := f.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	o, err := newOrders(order, lasting, env.Now())
	if err != nil {
		return err
	}
	return f.SaveOrders(o)
}

// Leave takes a node out of its grid whose agent does not run: its jobs are
// killed, its hub is told, its identity removed. A hub that does not know the
// node is no obstacle.
func Leave(ctx context.Context, cfg Config, env Env) error {
	a := New(cfg, env)
	var err error
	if a.folder, err = state.Open(cfg.Data, env.Log); err != nil {
		return err
	}
	unlock, err := a.folder.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	switch err := a.begin(); {
	case errors.Is(err, ErrIdentityLost), errors.Is(err, ErrNotEnrolled):
		return errors.Join(err, a.folder.Forget())
	case err != nil:
		return err
	}
	defer a.link.Close()
	if _, err := a.pool.Sweep(ctx, nil); err != nil {
		return err
	}
	err = a.link.Call(ctx, func(ctx context.Context, d *wire.Direct) error { return d.Leave(ctx) })
	if err != nil && !errors.Is(err, offpeak.ErrUnknownNode) {
		return fmt.Errorf("leave the grid: %w", err)
	}
	entries, err := os.ReadDir(a.folder.At("leases"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read leases: %w", err)
	}
	for _, e := range entries {
		a.folder.Drop(offpeak.LeaseID(e.Name()))
	}
	return a.folder.Forget()
}
