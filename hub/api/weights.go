package api

import (
	"context"

	"offpeak/wire"
)

func (a *api) weights(ctx context.Context, _ *caller, _ *none) (wire.Weights, error) {
	return a.hub.Tuning().Weights(ctx)
}

func (a *api) setWeights(ctx context.Context, c *caller, _ *none) (wire.Weights, error) {
	in, err := decode[wire.NewWeights](c.body)
	if err != nil {
		return wire.Weights{}, err
	}
	return a.hub.Tuning().Set(ctx, c.op, in)
}

func (a *api) weightsHistory(ctx context.Context, _ *caller, in *Page) (wire.List[wire.Weights], error) {
	return listOf(a.hub.Tuning().History(ctx, in.store()))
}
