package market_test

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/market"
)

const hour = offpeak.Duration(time.Hour)

// TestQuoteIsALinearScan: what a quote names and counts is what a scan finds.
func TestQuoteIsALinearScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		book, model := market.NewBook(), map[offpeak.NodeID]offpeak.Offer{}
		for i := range rapid.IntRange(0, 40).Draw(t, "offers") {
			o := drawOffer(t, i)
			if err := book.Put(o); err != nil {
				t.Fatal(err)
			}
			model[o.Node] = o
		}
		a := drawAsked(t)
		q, err := book.Quote(market.Inquiry{Requirements: a.r, Account: a.account, Driver: a.driver, For: hour, Limit: 3}, now)
		if err != nil {
			t.Fatal(err)
		}
		want := scan(model, a)
		if q.Fits != len(want) || len(q.Offers) != min(3, len(want)) || (len(want) > 0) != (q.Start != nil && q.Start.Equal(now) && len(q.Offers) > 0) {
			t.Fatalf("%+v, want %v", q, want)
		}
		for i, o := range q.Offers {
			if p := model[o.Node].Ask.For(a.r); o.Node != want[i] || o.Price != p || o.Total != offpeak.MicroCredits(p) {
				t.Fatalf("%+v, want %s at %s", o, want[i], p)
			}
		}
		open := a
		open.r.MaxPrice = nil
		more := len(scan(model, open)) - len(want)
		for _, alt := range q.Instead {
			if alt.Kind == offpeak.HigherCeiling {
				if more -= alt.More; alt.Price <= *a.r.MaxPrice {
					t.Fatalf("a higher ceiling begins at %s", alt.Price)
				}
			}
		}
		if more != 0 {
			t.Fatalf("%d offers above the ceiling are not told of: %+v", more, q.Instead)
		}
	})
}

func TestQuoteRefuses(t *testing.T) {
	negative := offpeak.Price(-1)
	for _, in := range []market.Inquiry{
		{For: 0, Limit: 1}, {For: -hour, Limit: 1}, {For: offpeak.MaxDuration + 1, Limit: 1}, {For: hour}, {For: hour, Limit: 101},
		{For: hour, Limit: 1, Requirements: offpeak.Requirements{MaxPrice: &negative}},
	} {
		if _, err := market.NewBook().Quote(in, now); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%+v: %v", in, err)
		}
	}
	if got := market.Total(offpeak.MaxPrice, offpeak.MaxDuration); got != 87_600*offpeak.MicroCredits(offpeak.MaxPrice) {
		t.Errorf("the most there can be is %s", got)
	}
}
