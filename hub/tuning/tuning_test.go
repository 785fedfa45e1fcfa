package tuning_test

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/hub/tuning"
	"offpeak/placement"
	"offpeak/store"
	"offpeak/store/sqlite"
	"offpeak/wire"
)

// world is a store that desks share, as hubs do.
type world struct {
	*testing.T
	store *sqlite.Store
	ops   int
}

func newWorld(t *testing.T) *world {
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "offpeak.db"), sqlite.Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &world{T: t, store: s}
}

func (w *world) op() store.Op {
	w.ops++
	return store.Op{ID: offpeak.OpID(fmt.Sprint("op-", w.ops)), Actor: offpeak.Actor{Account: "acct", Member: "ada"}}
}

func (w *world) desk(applied *placement.Tuning) *tuning.Desk {
	return tuning.New(tuning.Env{
		Store: w.store, Log: slog.New(slog.DiscardHandler), Default: placement.DefaultTuning(),
		Apply: func(t placement.Tuning) { *applied = t }, Wrote: func() {},
	})
}

func TestSetAndFollow(t *testing.T) {
	w := newWorld(t)
	var here, there, late placement.Tuning
	a, b := w.desk(&here), w.desk(&there)
	if got, err := a.Weights(t.Context()); err != nil || got.Version != 0 || got.At != nil || got.Weights["vram"] != 8 || got.Policy != "cheapest" {
		t.Errorf("nobody set anything: %+v, %v", got, err)
	}
	got, err := a.Set(t.Context(), w.op(), wire.NewWeights{Weights: map[string]float64{"vram": 20, "cpu": 3}})
	if err != nil || got.Version != 1 || got.By != "ada" || got.At == nil || got.Weights["cpu"] != 3 || got.Weights["memory"] != 1 {
		t.Fatalf("Set = %+v, %v", got, err)
	}
	if here.Version != 1 || here.VRAM != 20 || here.Memory != 1 || a.Tuning() != here {
		t.Errorf("applied here: %+v", here)
	}
	// The other desk sets on top of what it has not heard of yet.
	if got, err = b.Set(t.Context(), w.op(), wire.NewWeights{Policy: "balanced"}); err != nil || got.Version != 2 || got.Weights["vram"] != 20 || got.Policy != "balanced" {
		t.Fatalf("Set elsewhere = %+v, %v", got, err)
	}
	events, err := w.store.Events(t.Context(), "", 0, 10)
	if err != nil || len(events) != 2 {
		t.Fatal(events, err)
	}
	// Events may come twice, and in another order.
	for _, i := range []int{1, 0, 1} {
		a.Follow(&events[i])
	}
	if here != there || here.Version != 2 || here.Policy != placement.Balanced {
		t.Errorf("one hub weighs %+v, the other %+v", here, there)
	}
	if err := w.desk(&late).Load(t.Context()); err != nil || late != here {
		t.Errorf("a hub that starts weighs %+v, %v", late, err)
	}
	if got, err = a.Set(t.Context(), w.op(), wire.NewWeights{Defaults: true}); err != nil || got.Version != 3 || got.Weights["vram"] != 8 || got.Policy != "cheapest" {
		t.Errorf("the defaults again = %+v, %v", got, err)
	}
	// What changes nothing is no version.
	if got, err = a.Set(t.Context(), w.op(), wire.NewWeights{Policy: "cheapest", Weights: map[string]float64{"vram": 8}}); err != nil || got.Version != 3 {
		t.Errorf("the same again = %+v, %v", got, err)
	}
	list, _, err := b.History(t.Context(), store.Page{Limit: 10})
	if err != nil || len(list) != 3 || list[0].Version != 3 || list[2].Weights["cpu"] != 3 || list[2].By != "ada" {
		t.Errorf("History = %+v, %v", list, err)
	}
}

func TestWhatIsRefused(t *testing.T) {
	w := newWorld(t)
	var applied placement.Tuning
	d := w.desk(&applied)
	for want, in := range map[string]wire.NewWeights{
		"name at least one weight":                     {},
		"weights.vrma: is no weight: there are vram":   {Weights: map[string]float64{"vrma": 3}},
		"weights.version: is no weight":                {Weights: map[string]float64{"version": 3}},
		`weights.cpu: "-1": is from 0`:                 {Weights: map[string]float64{"cpu": -1}},
		`weights.vram: "1e+09": is from 0`:             {Weights: map[string]float64{"vram": 1e9}},
		"weights.cpu: \"8\": is below weights.vram":    {Weights: map[string]float64{"cpu": 8}},
		`weights.vram: "0": is the heaviest, and not `: {Weights: map[string]float64{"vram": 0}},
		"weights.baseline_fleet: \"2.5\": is a whole ": {Weights: map[string]float64{"baseline_fleet": 2.5}},
		`policy: "dearest": is cheapest, balanced`:     {Policy: "dearest"},
	} {
		if _, err := d.Set(t.Context(), w.op(), in); !errors.Is(err, offpeak.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", in, err, want)
		}
	}
	if _, err := w.store.Weights(t.Context()); !errors.Is(err, offpeak.ErrNotFound) || applied.Version != 0 {
		t.Errorf("something was set: %v, %+v", err, applied)
	}
	// What a newer Offpeak set, and this one does not know, changes nothing here.
	if _, err := w.store.SetWeights(t.Context(), w.op(), 0, []byte(`{"policy":"dearest","vram":1}`)); err != nil {
		t.Fatal(err)
	}
	if err := d.Load(t.Context()); err != nil || applied.Version != 0 || d.Tuning().VRAM != 8 {
		t.Errorf("Load = %v, applied %+v", err, applied)
	}
}
