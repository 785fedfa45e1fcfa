package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"offpeak"
	"offpeak/store"
)

func weights(t *testing.T, g *grid) {
	ctx := context.Background()
	_, err := g.Weights(ctx)
	refused(t, "Weights that nobody set", err, offpeak.ErrNotFound)
	before, err := g.LastEvent(ctx)
	if err != nil {
		t.Fatal(err)
	}
	op := g.op()
	first, err := g.SetWeights(ctx, op, 0, json.RawMessage(`{"n": 1}`))
	if err != nil || first.Version != 1 || !first.At.Equal(g.clock.Now()) || first.Member != "member_1" || first.Account != g.account || string(first.Text) != `{"n": 1}` {
		t.Fatalf("SetWeights = %+v, %v", first, err)
	}
	if again, err := g.SetWeights(ctx, op, 1, json.RawMessage(`{"n": 2}`)); err != nil || again.Version != 1 {
		t.Errorf("the same operation again = %+v, %v", again, err)
	}
	events, err := g.Events(ctx, "", before, 10)
	var told struct {
		Version int64
		Weights json.RawMessage
	}
	if err != nil || len(events) != 1 || events[0].Type != "weights.set" || json.Unmarshal(events[0].Data, &told) != nil || told.Version != 1 || string(told.Weights) != `{"n":1}` {
		t.Errorf("events of it: %+v, %v", events, err)
	}
	if own, err := g.Events(ctx, g.account, before, 10); err != nil || len(own) != 0 {
		t.Errorf("an account was told: %+v, %v", own, err)
	}
	_, err = g.SetWeights(ctx, g.op(), 0, json.RawMessage(`{"n": 3}`))
	refused(t, "SetWeights after an old version", err, offpeak.ErrConflict)
	_, err = g.SetWeights(ctx, g.op(), 2, json.RawMessage(`{"n": 3}`))
	refused(t, "SetWeights after one that is not there", err, offpeak.ErrConflict)
	_, err = g.SetWeights(ctx, g.op(), 1, json.RawMessage(`{`))
	refused(t, "SetWeights of no JSON", err, offpeak.ErrInvalid)

	// Of many who set the next version at once, one does.
	var group sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		op := g.op()
		group.Go(func() { _, errs[i] = g.SetWeights(ctx, op, 1, json.RawMessage(fmt.Sprintf(`{"n": %d}`, 10+i))) })
	}
	group.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			refused(t, "SetWeights that lost", err, offpeak.ErrConflict)
		}
	}
	if now, err := g.Weights(ctx); err != nil || now.Version != 2 || won != 1 {
		t.Errorf("Weights = %+v, %v; %d were heard", now, err, won)
	}
	page, next, err := g.WeightsHistory(ctx, store.Page{Limit: 1})
	if err != nil || len(page) != 1 || page[0].Version != 2 || next == "" {
		t.Fatalf("WeightsHistory = %+v, %q, %v", page, next, err)
	}
	page, next, err = g.WeightsHistory(ctx, store.Page{Limit: 1, Cursor: next})
	if err != nil || len(page) != 1 || !page[0].At.Equal(first.At) || page[0].Version != 1 || next != "" {
		t.Errorf("the next page = %+v, %q, %v", page, next, err)
	}
	_, _, err = g.WeightsHistory(ctx, store.Page{Limit: 1, Cursor: "x"})
	refused(t, "WeightsHistory from nowhere", err, offpeak.ErrInvalid)
}
