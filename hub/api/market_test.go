package api

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"offpeak"
	"offpeak/wire"
)

func ptr[T any](v T) *T { return &v }

// flat is a plan that asks one price.
func flat(price offpeak.Price) wire.AskPlan { return wire.AskPlan{Ask: &wire.Prices{GPU: &price}} }

// A node goes by its own plan, else by its account's, else it is free; each change
// stands in its history.
func TestAsks(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	account, m := g.account("acme")
	owner, viewer := m[offpeak.RoleOwner], m[offpeak.RoleViewer]
	n := g.enrol(owner, "tower")
	other := g.enrol(owner, "laptop")
	now := func(what string, node offpeak.NodeID, ask *offpeak.Ask, of string) {
		t.Helper()
		got, err := viewer.Ask(ctx, node)
		if err != nil || (got.Ask == nil) != (ask == nil) || ask != nil && *got.Ask != *ask || got.Of != of || (got.Plan == nil) != (of == "") {
			t.Errorf("%s: %+v, %v, want %v of %q", what, got, err, ask, of)
		}
	}
	at := func(p offpeak.Price) *offpeak.Ask { return &offpeak.Ask{GPU: p, CPU: p} }
	now("without a plan", n.node, at(0), "")
	if _, err := viewer.AccountAsk(ctx, account); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("no plan: %v, want not found", err)
	}

	list, err := owner.SetAccountAsk(ctx, g.op(), account, flat(500))
	if err != nil || len(list.Items) != 2 || list.Items[0].Of != "account" || *list.Items[0].Ask != *at(500) {
		t.Fatalf("set the account's: %+v, %v", list, err)
	}
	now("by the account's plan", n.node, at(500), "account")
	op := g.op()
	plan := wire.AskPlan{Ask: &wire.Prices{GPU: ptr(offpeak.Price(700)), CPU: ptr(offpeak.Price(30))}}
	for range 2 { // the second time is the first one's answer lost
		if got, err := owner.SetAsk(ctx, op, n.node, plan); err != nil || got.Of != "node" || got.Ask == nil || got.Ask.CPU != 30 {
			t.Fatalf("set the node's: %+v, %v", got, err)
		}
	}
	if _, err := owner.SetAsk(ctx, op, n.node, flat(1)); !errors.Is(err, offpeak.ErrOperationConflict) {
		t.Errorf("another plan under the same operation: %v, want it refused", err)
	}
	now("by its own plan", n.node, &offpeak.Ask{GPU: 700, CPU: 30}, "node")
	now("its neighbour", other.node, at(500), "account")
	over := wire.AskPlan{Ask: &wire.Prices{GPU: ptr(offpeak.Price(9))}, Until: ptr(time.Now().Add(-time.Hour))}
	var field *offpeak.FieldError
	if got, err := owner.SetAsk(ctx, g.op(), n.node, over); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("a plan that is over: %+v, %v, want it refused", got, err)
	} else if errors.As(err, &field) && field.Field != "until" {
		t.Errorf("a plan that is over: %v", err)
	}
	later := wire.AskPlan{Ask: &wire.Prices{GPU: ptr(offpeak.Price(9))}, From: ptr(time.Now().Add(time.Hour))}
	if got, err := owner.SetAsk(ctx, g.op(), n.node, later); err != nil || got.Ask != nil {
		t.Errorf("a plan that has not begun: %+v, %v, want nothing asked", got, err)
	}
	now("by a plan that has not begun", n.node, nil, "node")
	if got, err := owner.ClearAsk(ctx, g.op(), n.node); err != nil || got.Of != "account" || got.Ask == nil || *got.Ask != *at(500) {
		t.Errorf("clear the node's: %+v, %v, want the account's", got, err)
	}
	if list, err := owner.ClearAccountAsk(ctx, g.op(), account); err != nil || len(list.Items) != 2 || *list.Items[0].Ask != *at(0) {
		t.Errorf("clear the account's: %+v, %v", list, err)
	}
	now("without a plan again", n.node, at(0), "")

	var seen []string
	q := url.Values{"limit": {"2"}}
	for {
		page, err := viewer.AskHistory(ctx, n.node, q)
		if err != nil || len(page.Items) > 2 {
			t.Fatalf("history: %+v, %v", page, err)
		}
		for _, h := range page.Items {
			if h.Ask == nil {
				seen = append(seen, "none")
			} else {
				seen = append(seen, h.Ask.GPU.String())
			}
		}
		if page.Next == "" {
			break
		}
		q.Set("cursor", page.Next)
	}
	want := []string{"0.00/h", "0.0005/h", "none", "0.0007/h", "0.0005/h", "0.00/h"}
	if len(seen) != len(want) {
		t.Fatalf("history %v, want %v", seen, want)
	}
	for i := range want {
		if seen[i] != want[i] {
			t.Errorf("history %v, want %v", seen, want)
			break
		}
	}
}

// Prices of one account are set by its owners and by admins, by nobody else, and
// another account is not even told that they are there.
func TestAsksAreTheirOwners(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	account, m := g.account("acme")
	_, theirs := g.account("rival")
	n := g.enrol(m[offpeak.RoleOwner], "tower")
	for name, tt := range map[string]struct {
		by   *wire.Direct
		want error
	}{
		"an admin":             {g.admin, nil},
		"its owner":            {m[offpeak.RoleOwner], nil},
		"a submitter":          {m[offpeak.RoleSubmitter], offpeak.ErrForbidden},
		"a viewer":             {m[offpeak.RoleViewer], offpeak.ErrForbidden},
		"another's owner":      {theirs[offpeak.RoleOwner], offpeak.ErrNotFound},
		"another's submitters": {theirs[offpeak.RoleSubmitter], offpeak.ErrForbidden},
	} {
		does := func(_ any, err error) error { return err }
		for what, err := range map[string]error{
			"set a node's":       does(tt.by.SetAsk(ctx, g.op(), n.node, flat(1))),
			"set an account's":   does(tt.by.SetAccountAsk(ctx, g.op(), account, flat(1))),
			"suggest":            does(tt.by.Suggest(ctx, n.node, wire.SuggestRequest{})),
			"clear a node's":     does(tt.by.ClearAsk(ctx, g.op(), n.node)),
			"clear an account's": does(tt.by.ClearAccountAsk(ctx, g.op(), account)),
		} {
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: %s: %v, want %v", name, what, err, tt.want)
			}
		}
	}
	spy := theirs[offpeak.RoleViewer]
	for what, ask := range map[string]func(context.Context) error{
		"a node's ask": func(ctx context.Context) error { _, err := spy.Ask(ctx, n.node); return err },
		"its history":  func(ctx context.Context) error { _, err := spy.AskHistory(ctx, n.node, nil); return err },
		"the account's plan": func(ctx context.Context) error {
			_, err := spy.AccountAsk(ctx, account)
			return err
		},
	} {
		if err := ask(ctx); !errors.Is(err, offpeak.ErrNotFound) {
			t.Errorf("%s, looked at from another account: %v, want not found", what, err)
		}
	}
	if _, err := g.admin.SetAccountAsk(ctx, g.op(), "acct_none", flat(1)); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("an account that is not there: %v, want not found", err)
	}
}

// Quotes and the book agree about the offers there are, for everybody alike; a quote
// says what the premium makes of them and what would be needed to get one.
func TestQuoteAndBook(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	_, m := g.account("acme")
	_, theirs := g.account("rival")
	owner := m[offpeak.RoleOwner]
	for name, price := range map[string]offpeak.Price{"dear": 400_000, "cheap": 100_000} {
		n := g.enrol(owner, name)
		if _, err := owner.SetAsk(ctx, g.op(), n.node, flat(price)); err != nil {
			t.Fatal(err)
		}
		n.beat(t, ctx)
	}
	for name, by := range map[string]*wire.Direct{"an admin": g.admin, "a viewer": m[offpeak.RoleViewer], "a stranger": theirs[offpeak.RoleSubmitter]} {
		book, err := by.Market(ctx)
		if err != nil || len(book.Classes) != 1 || book.Classes[0].Free != 2 || *book.Classes[0].Lowest != 100_000 || *book.Classes[0].Highest != 400_000 {
			t.Errorf("the book for %s: %+v, %v", name, book, err)
		}
		q, err := by.Quote(ctx, wire.QuoteRequest{For: offpeak.Duration(3 * time.Hour)})
		if err != nil || q.Fits != 2 || len(q.Offers) != 2 || q.Offers[0].Price != 100_000 || q.Offers[0].Total != 300_000 || q.Offers[1].Price != 400_000 || q.Start == nil {
			t.Errorf("a quote for %s: %+v, %v", name, q, err)
		}
	}
	by := theirs[offpeak.RoleSubmitter]
	q, err := by.Quote(ctx, wire.QuoteRequest{Requirements: offpeak.Requirements{NonInterruptible: true}, Limit: 1})
	if err != nil || q.Fits != 2 || len(q.Offers) != 1 || q.Offers[0].Price != 125_000 {
		t.Errorf("with the premium: %+v, %v, want a quarter more", q, err)
	}
	q, err = by.Quote(ctx, wire.QuoteRequest{Requirements: offpeak.Requirements{MaxPrice: ptr(offpeak.Price(50_000))}})
	if err != nil || q.Fits != 0 || len(q.Offers) != 0 || len(q.Instead) == 0 || q.Instead[0].Kind != offpeak.HigherCeiling || q.Instead[0].Price != 100_000 {
		t.Errorf("below what is asked: %+v, %v, want to hear of a higher limit", q, err)
	}
	for _, resolution := range []string{"minute", "hour"} {
		if list, err := by.Candles(ctx, url.Values{"resolution": {resolution}, "plain": {"true"}, "from": {"2026-01-01T00:00:00+01:00"}}); err != nil || list.Items == nil || len(list.Items) != 0 {
			t.Errorf("history where nothing was paid: %+v, %v", list, err)
		}
	}
	s, err := owner.Suggest(ctx, nodeOf(t, ctx, owner, "cheap"), wire.SuggestRequest{KWh: []offpeak.MicroCredits{300_000}, Watts: 1000, Measured: true})
	if err != nil || s.Price != 300_000 || len(s.Lines) == 0 || s.Lines[0].Change != 300_000 {
		t.Errorf("a suggestion: %+v, %v, want the price of a kilowatt-hour", s, err)
	}
}

func nodeOf(t *testing.T, ctx context.Context, by *wire.Direct, name string) offpeak.NodeID {
	t.Helper()
	list, err := by.Nodes(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Items {
		if n.Name == name {
			return n.ID
		}
	}
	t.Fatalf("no node is named %s", name)
	return ""
}
