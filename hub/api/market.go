package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

func (a *api) nodeAsk(ctx context.Context, c *caller, in *NodePath) (wire.NodeAsk, error) {
	return a.hub.Trade().Ask(ctx, c.account, in.Node)
}

func (a *api) setNodeAsk(ctx context.Context, c *caller, in *NodePath) (wire.NodeAsk, error) {
	plan, err := decode[wire.AskPlan](c.body)
	if err != nil {
		return wire.NodeAsk{}, err
	}
	return a.hub.Trade().SetAsk(ctx, c.op, c.account, in.Node, plan)
}

func (a *api) clearNodeAsk(ctx context.Context, c *caller, in *NodePath) (wire.NodeAsk, error) {
	return a.hub.Trade().ClearAsk(ctx, c.op, c.account, in.Node)
}

type askHistoryQuery struct {
	NodePath
	Page
}

func (a *api) askHistory(ctx context.Context, c *caller, in *askHistoryQuery) (wire.List[wire.AskChange], error) {
	list, next, err := a.hub.Trade().AskHistory(ctx, c.account, in.Node, in.store())
	out := make([]wire.AskChange, len(list))
	for i := range list {
		out[i] = wire.AskChange(list[i])
	}
	return listOf(out, next, err)
}

func (a *api) suggestAsk(ctx context.Context, c *caller, in *NodePath) (wire.Suggested, error) {
	facts, err := decode[wire.SuggestRequest](c.body)
	if err != nil {
		return wire.Suggested{}, err
	}
	return a.hub.Trade().Suggest(ctx, c.account, in.Node, facts)
}

// named is the account of a path: the caller's own, or any that is there for an
// admin. Another account is not found, whether it is there or not.
func (a *api) named(ctx context.Context, c *caller, in *AccountPath) (offpeak.AccountID, error) {
	if c.account != "" && in.Account != c.account {
		return "", fmt.Errorf("account %s: %w", in.Account, offpeak.ErrNotFound)
	}
	if _, err := a.hub.Store().Account(ctx, in.Account); err != nil {
		return "", fmt.Errorf("account %s: %w", in.Account, err)
	}
	return in.Account, nil
}

func (a *api) accountAsk(ctx context.Context, c *caller, in *AccountPath) (wire.AskPlan, error) {
	account, err := a.named(ctx, c, in)
	if err != nil {
		return wire.AskPlan{}, err
	}
	return a.hub.Trade().AccountAsk(ctx, account)
}

func (a *api) setAccountAsk(ctx context.Context, c *caller, in *AccountPath) (wire.List[wire.NodeAsk], error) {
	plan, err := decode[wire.AskPlan](c.body)
	if err != nil {
		return wire.List[wire.NodeAsk]{}, err
	}
	account, err := a.named(ctx, c, in)
	if err != nil {
		return wire.List[wire.NodeAsk]{}, err
	}
	return a.hub.Trade().SetAccountAsk(ctx, c.op, account, plan)
}

func (a *api) clearAccountAsk(ctx context.Context, c *caller, in *AccountPath) (wire.List[wire.NodeAsk], error) {
	account, err := a.named(ctx, c, in)
	if err != nil {
		return wire.List[wire.NodeAsk]{}, err
	}
	return a.hub.Trade().ClearAccountAsk(ctx, c.op, account)
}

// quote is for a job of the account whose token it is, also an admin's.
func (a *api) quote(ctx context.Context, c *caller, _ *none) (offpeak.Quote, error) {
	in, err := decode[wire.QuoteRequest](c.body)
	if err != nil {
		return offpeak.Quote{}, err
	}
	return a.hub.Trade().Quote(ctx, c.token.Account, in)
}

func (a *api) market(ctx context.Context, _ *caller, _ *none) (wire.Market, error) {
	m, err := a.hub.Trade().Market(ctx)
	if m.Classes == nil {
		m.Classes = []offpeak.GPUClass{}
	}
	return m, err
}

type candlesQuery struct {
	Page
	Resolution string `query:"resolution" doc:"minute, or hour (default)"`
	Vendor     string `query:"vendor" maxLength:"128" doc:"only devices of this vendor"`
	Model      string `query:"model" maxLength:"128" doc:"only devices with this in their model's name, letter case ignored"`
	VRAM       string `query:"vram" maxLength:"32" doc:"only devices with exactly this memory, for example 24GiB"`
	Region     string `query:"region" maxLength:"128" doc:"only this region"`
	Plain      bool   `query:"plain" doc:"only work without devices"`
	From       string `query:"from" maxLength:"64" doc:"no stretch that began before this time, for example 2026-03-01T00:00:00Z"`
	Until      string `query:"until" maxLength:"64" doc:"no stretch that began then or later"`
}

// filter reads the query. It returns a *offpeak.FieldError for what is wrong.
func (q *candlesQuery) filter() (f store.CandleFilter, err error) {
	f = store.CandleFilter{Resolution: offpeak.Hours, Vendor: q.Vendor, Model: q.Model, Region: q.Region, Plain: q.Plain}
	if q.Resolution != "" {
		f.Resolution = offpeak.Resolution(q.Resolution)
	}
	if !slices.Contains(offpeak.Resolutions(), f.Resolution) {
		return f, &offpeak.FieldError{Field: "query.resolution", Value: q.Resolution, Rule: "is minute or hour"}
	}
	if q.VRAM != "" {
		if f.VRAM, err = offpeak.ParseBytes(q.VRAM); err != nil || f.VRAM == 0 {
			return f, &offpeak.FieldError{Field: "query.vram", Value: q.VRAM, Rule: "is a size with a unit, for example 24GiB, from 1B to 1024TiB"}
		}
	}
	if q.Plain && (q.Vendor != "" || q.Model != "" || q.VRAM != "") {
		return f, &offpeak.FieldError{Field: "query.plain", Value: "true", Rule: "is work without devices: it has no vendor, model or vram"}
	}
	for _, at := range []struct {
		field, text string
		into        *time.Time
	}{{"query.from", q.From, &f.From}, {"query.until", q.Until, &f.Until}} {
		if at.text == "" {
			continue
		}
		if *at.into, err = time.Parse(time.RFC3339, at.text); err != nil {
			return f, &offpeak.FieldError{Field: at.field, Value: at.text, Rule: "is a time with its zone, for example 2026-03-01T00:00:00Z"}
		}
	}
	if !f.From.IsZero() && !f.Until.IsZero() && !f.From.Before(f.Until) {
		return f, &offpeak.FieldError{Field: "query.until", Value: q.Until, Rule: "is after from"}
	}
	return f, nil
}

func (a *api) candles(ctx context.Context, _ *caller, in *candlesQuery) (wire.List[offpeak.Candle], error) {
	f, err := in.filter()
	if err != nil {
		return wire.List[offpeak.Candle]{}, err
	}
	return listOf(a.hub.Trade().Candles(ctx, f, in.store()))
}
