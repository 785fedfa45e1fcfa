package api

import (
	"context"
	"errors"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

// GroupPath names a group.
type GroupPath struct {
	Group offpeak.GroupID `path:"group" maxLength:"128"`
}

func (a *api) submitGroup(ctx context.Context, c *caller, _ *none) (offpeak.Group, error) {
	in, err := decode[wire.NewGroup](c.body)
	if err != nil {
		return offpeak.Group{}, err
	}
	return a.hub.SubmitGroup(ctx, c.op, c.token.Account, in.Spec, in.Array, in.After...)
}

type groupsQuery struct {
	Page
	Scope
	State []string `query:"state,explode" doc:"only groups with a member in one of these states"`
}

func (a *api) groups(ctx context.Context, c *caller, in *groupsQuery) (wire.List[offpeak.Group], error) {
	var empty wire.List[offpeak.Group]
	account, err := a.scoped(ctx, c, in.Account)
	if err != nil {
		return empty, err
	}
	states, err := statesOf(in.State)
	if err != nil {
		return empty, err
	}
	return listOf(a.hub.Store().Groups(ctx, store.GroupFilter{Account: account, States: states}, in.store()))
}

type groupQuery struct {
	GroupPath
	Wait string `query:"wait" doc:"answer when all members have ended, or after this long; at most 1m"`
}

func (a *api) group(ctx context.Context, c *caller, in *groupQuery) (offpeak.Group, error) {
	wait, err := waitOf(in.Wait)
	if err != nil || wait == 0 {
		return orElse(err, func() (offpeak.Group, error) { return a.hub.Store().Group(ctx, c.account, in.Group) })
	}
	ctx, stop := a.untilClosing(ctx)
	defer stop()
	group, err := a.hub.WaitGroup(ctx, c.account, in.Group, min(wait, time.Minute))
	if errors.Is(err, context.Canceled) && a.opts.Streams.Err() != nil {
		return a.hub.Store().Group(context.WithoutCancel(ctx), c.account, in.Group)
	}
	return group, err
}

func orElse[T any](err error, do func() (T, error)) (none T, _ error) {
	if err != nil {
		return none, err
	}
	return do()
}

func (a *api) cancelGroup(ctx context.Context, c *caller, in *GroupPath) (offpeak.Group, error) {
	return a.hub.CancelGroup(ctx, c.op, c.account, in.Group)
}

func (a *api) retryGroup(ctx context.Context, c *caller, in *GroupPath) (offpeak.Group, error) {
	what, err := decode[wire.GroupRetry](c.body)
	if err != nil {
		return offpeak.Group{}, err
	}
	return a.hub.RetryGroup(ctx, c.op, c.account, in.Group, what.Failed)
}
