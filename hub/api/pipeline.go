package api

import (
	"context"

	"offpeak"
	"offpeak/wire"
)

type pipelinePath struct {
	Pipeline string `path:"pipeline" maxLength:"128"`
}

func (a *api) submitPipeline(ctx context.Context, c *caller, _ *none) (wire.PipelineJobs, error) {
	in, err := decode[offpeak.Pipeline](c.body)
	if err != nil {
		return wire.PipelineJobs{}, err
	}
	return a.hub.SubmitPipeline(ctx, c.op, c.token.Account, in)
}

func (a *api) pipeline(ctx context.Context, c *caller, in *pipelinePath) (wire.PipelineJobs, error) {
	return a.hub.Pipeline(ctx, c.account, in.Pipeline)
}

func (a *api) cancelPipeline(ctx context.Context, c *caller, in *pipelinePath) (wire.PipelineJobs, error) {
	return a.hub.CancelPipeline(ctx, c.op, c.account, in.Pipeline)
}

func (a *api) retryPipeline(ctx context.Context, c *caller, in *pipelinePath) (wire.PipelineJobs, error) {
	return a.hub.RetryPipeline(ctx, c.op, c.account, in.Pipeline)
}
