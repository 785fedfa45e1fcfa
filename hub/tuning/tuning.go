// Package tuning is where an admin turns what placement weighs, while the grid
// runs.
//
// It owns which weights are in force: the newest version in the store, or the
// hub's own defaults while there is none. What weights mean and which make sense is
// placement's; who may set them is package api's; matching takes them up through
// Apply. Every hub of a grid has a desk and follows the event that a change writes,
// so a new version holds everywhere within moments and no hub is started anew.
//
// All methods may be called from any number of goroutines. It is tested on the real
// embedded store.
package tuning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"offpeak"
	"offpeak/placement"
	"offpeak/store"
	"offpeak/wire"
)

// Env is the outside world, handed in.
type Env struct {
	Store store.Weights
	Log   *slog.Logger
	// Default is in force until somebody sets something.
	Default placement.Tuning
	// Apply takes up what is in force from now on. Calls do not overlap.
	Apply func(placement.Tuning)
	// Wrote is called after a change, which has left an event.
	Wrote func()
}

// Desk is one hub's.
type Desk struct {
	env Env

	mu  sync.Mutex // guards now, and holds while it is applied
	now placement.Tuning
}

// New returns a desk with the defaults in force.
func New(env Env) *Desk {
	env.Default.Version = 0
	return &Desk{env: env, now: env.Default}
}

// Load takes up the newest version in the store.
func (d *Desk) Load(ctx context.Context) error {
	w, err := d.env.Store.Weights(ctx)
	if errors.Is(err, offpeak.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("load weights: %w", err)
	}
	d.take(w.Version, w.Text)
	return nil
}

// Follow takes up what another hub's admin set.
func (d *Desk) Follow(e *offpeak.Event) {
	if e.Type != "weights.set" {
		return
	}
	var set struct {
		Version int64           `json:"version"`
		Weights json.RawMessage `json:"weights"`
	}
	if err := json.Unmarshal(e.Data, &set); err != nil {
		d.env.Log.Error("weights can't be read", "err", err)
		return
	}
	d.take(set.Version, set.Weights)
}

// take puts a version in force, unless a newer one is. One that makes no sense here,
// from a newer Offpeak perhaps, leaves the one that was.
func (d *Desk) take(version int64, text json.RawMessage) {
	t, err := parse(version, text)
	if err != nil {
		d.env.Log.Error("weights can't be taken up", "version", version, "err", err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if version <= d.now.Version {
		return
	}
	d.now = t
	d.env.Apply(t)
	d.env.Log.Info("weights taken up", "version", version)
}

func parse(version int64, text json.RawMessage) (placement.Tuning, error) {
	var t placement.Tuning
	if err := json.Unmarshal(text, &t); err != nil {
		return t, err
	}
	t.Version = version
	return t, t.Validate()
}

// Tuning is what is in force.
func (d *Desk) Tuning() placement.Tuning {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

// Weights says what is in force.
func (d *Desk) Weights(ctx context.Context) (wire.Weights, error) {
	w, err := d.env.Store.Weights(ctx)
	if errors.Is(err, offpeak.ErrNotFound) {
		return shown(d.env.Default), nil
	}
	if err != nil {
		return wire.Weights{}, err
	}
	return d.version(w)
}

// History lists what was set, the newest first.
func (d *Desk) History(ctx context.Context, page store.Page) (out []wire.Weights, next string, err error) {
	list, next, err := d.env.Store.WeightsHistory(ctx, page)
	for _, w := range list {
		shown, err := d.version(w)
		if err != nil {
			return nil, "", err
		}
		out = append(out, shown)
	}
	return out, next, err
}

func (d *Desk) version(w store.WeightsVersion) (wire.Weights, error) {
	var t placement.Tuning
	if err := json.Unmarshal(w.Text, &t); err != nil {
		return wire.Weights{}, fmt.Errorf("read version %d of the weights: %w", w.Version, err)
	}
	t.Version = w.Version
	out := shown(t)
	out.At, out.By = &w.At, w.Member
	return out, nil
}

// shown is a tuning in the words of the API.
func shown(t placement.Tuning) wire.Weights {
	return wire.Weights{Version: t.Version, Policy: string(t.Policy), Weights: t.Named()}
}

// Set makes another version: what is in force, or the defaults, with what in
// changes.
func (d *Desk) Set(ctx context.Context, op store.Op, in wire.NewWeights) (wire.Weights, error) {
	if !in.Defaults && in.Policy == "" && len(in.Weights) == 0 {
		return wire.Weights{}, &offpeak.FieldError{Field: "weights", Rule: "name at least one weight, a policy, or the defaults"}
	}
	const often = 5
	for try := 1; ; try++ {
		w, err := d.set(ctx, op, in)
		if errors.Is(err, offpeak.ErrConflict) && !errors.Is(err, offpeak.ErrOperationConflict) && try < often {
			continue // another admin was first: on top of theirs
		}
		return w, err
	}
}

func (d *Desk) set(ctx context.Context, op store.Op, in wire.NewWeights) (wire.Weights, error) {
	base, after := d.env.Default, int64(0)
	have := base
	switch w, err := d.env.Store.Weights(ctx); {
	case errors.Is(err, offpeak.ErrNotFound):
	case err != nil:
		return wire.Weights{}, err
	default:
		after = w.Version
		if have, err = parse(w.Version, w.Text); err == nil && !in.Defaults {
			base = have
		} else if !in.Defaults {
			return wire.Weights{}, fmt.Errorf("read version %d of the weights: %w", w.Version, err)
		}
	}
	next, err := base.With(placement.Policy(in.Policy), in.Weights)
	if err != nil {
		return wire.Weights{}, err
	}
	if next.Version = have.Version; next == have && have.Version == after {
		return d.Weights(ctx) // nothing changes, so it is no version of its own
	}
	next.Version = after + 1
	text, err := json.Marshal(next)
	if err != nil {
		return wire.Weights{}, err
	}
	w, err := d.env.Store.SetWeights(ctx, op, after, text)
	if err != nil {
		return wire.Weights{}, err
	}
	d.take(w.Version, w.Text)
	d.env.Wrote()
	return d.version(w)
}
