package trade

import (
	"context"
	"errors"
	"slices"
	"time"

	"offpeak"
	"offpeak/market"
	"offpeak/store"
)

// How often Run looks for asks that are due, and how often what was paid is stored.
const (
	turnEvery  = time.Second
	storeEvery = 2 * time.Second
)

// Run moves asks when they are due and stores what was paid, until ctx is done.
func (f *Floor) Run(ctx context.Context) error {
	turn, keep := time.NewTicker(turnEvery), time.NewTicker(storeEvery)
	defer turn.Stop()
	defer keep.Stop()
	for {
		var what string
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-turn.C:
			if f.env.Leads() {
				what, err = "move asks", f.Turn(ctx)
			}
		case <-keep.C:
			what, err = "store what was paid", f.Flush(ctx)
		}
		if err != nil && ctx.Err() == nil {
			f.env.Log.Warn(what, "err", err)
		}
	}
}

// Note takes a trade onto the tape. Work that costs nothing leaves no trace: a grid
// without prices has no price history.
func (f *Floor) Note(trades ...market.Trade) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range trades {
		if t.Price == 0 {
			continue
		}
		if noted, err := f.tape.Add(t); err != nil || !noted {
			f.env.Log.Debug("a trade is not in the history", "price", t.Price, "err", err)
		}
	}
}

// Flush stores what is on the tape. The history is a statistic: what was on its way
// when the store was lost may be missing from it, never be in it twice.
func (f *Floor) Flush(ctx context.Context) error {
	f.mu.Lock()
	candles := slices.Concat(f.unsaved, f.tape.Take())
	f.unsaved = nil
	f.mu.Unlock()
	if len(candles) == 0 {
		return nil
	}
	err := f.env.Store.AddCandles(ctx, candles)
	if err != nil && !errors.Is(err, offpeak.ErrUnavailable) && len(candles) < maxUnsaved {
		f.mu.Lock()
		f.unsaved = candles
		f.mu.Unlock()
	}
	return err
}

// maxUnsaved bounds what waits for the store to take candles again.
const maxUnsaved = 20_000

// Candles lists what was paid.
func (f *Floor) Candles(ctx context.Context, filter store.CandleFilter, page store.Page) ([]offpeak.Candle, string, error) {
	return f.env.Store.Candles(ctx, filter, page)
}
