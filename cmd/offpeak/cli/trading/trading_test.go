package trading

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/wire"
)

func TestValues(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for text, want := range map[string]time.Duration{"3": 3 * time.Hour, "0.5": 30 * time.Minute, "0.000001": 3600 * time.Microsecond, "87600": 10 * year} {
		var v hours
		if err := v.Set(text); err != nil || time.Duration(v) != want || v.String() != text && text != "0.000001" {
			t.Errorf("%s hours: %s, %v, want %s", text, time.Duration(v), err, want)
		}
	}
	for text, want := range map[string]time.Duration{"3y": 3 * year, "700d": 700 * 24 * time.Hour, "20000h": 20000 * time.Hour, "10y": 10 * year} {
		var v life
		if err := v.Set(text); err != nil || time.Duration(v) != want {
			t.Errorf("a life of %s: %s, %v, want %s", text, time.Duration(v), err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "87600.1", "1h", "NaN", "1e3"} {
		if (*hours).Set(new(hours), text) == nil {
			t.Errorf("%q was taken for hours", text)
		}
	}
	for _, text := range []string{"", "y", "0y", "-1y", "11y", "3651d", "1.5y", "59m", "9999999999999y"} {
		if (*life).Set(new(life), text) == nil {
			t.Errorf("%q was taken for a life", text)
		}
	}
	var v tariff
	if err := v.Set(strings.TrimSuffix(strings.Repeat("0.30,", 24), ",")); err != nil || len(v) != 24 || v[23] != 300_000 {
		t.Errorf("24 prices: %v, %v", v, err)
	}
}

// The command that is proposed asks what was suggested: its words are read by the
// flags that it names.
func TestSuggestedCommand(t *testing.T) {
	floor := offpeak.Price(100_000)
	s := wire.Suggested{Price: 250_000, Windows: []string{"daily 00:00-06:00 0.10/h", "daily 06:00-24:00 0.25/h"}}
	got := setCommand(s, wire.SuggestRequest{Floor: &floor, Zone: "Europe/Berlin"}, "tower")
	const want = `offpeak ask set 0.25/h tower --floor 0.10/h --window "daily 00:00-06:00 0.10/h" --window "daily 06:00-24:00 0.25/h" --zone Europe/Berlin`
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var w windows
	for _, text := range s.Windows {
		if err := w.Set(text); err != nil {
			t.Error(err)
		}
	}
}

// What is shown where there is little to show.
func TestEmptyStates(t *testing.T) {
	show := func(f func(*render.Table)) string {
		var out bytes.Buffer
		table := render.NewTable(&out)
		f(table)
		if err := table.Flush(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	free, most, at := offpeak.Price(0), offpeak.Price(100_000), time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct{ got, want string }{
		"no node": {show(func(t *render.Table) { showMarket(t, wire.Market{}) }), "Nothing is offered"},
		"a free grid": {show(func(t *render.Table) {
			showMarket(t, wire.Market{Classes: []offpeak.GPUClass{{Devices: 1, Free: 1, Lowest: &free, Highest: &free}}})
		}), "this grid is free"},
		"nothing known": {show(func(t *render.Table) { showSuggested(t, wire.Suggested{}, wire.SuggestRequest{}, "") }), "--kwh"},
		"what is left out": {show(func(t *render.Table) {
			showSuggested(t, wire.Suggested{Price: 1, LeftOut: []wire.SuggestedLeftOut{{Rule: "electricity", Why: "what it draws is not known", Needs: "watts"}, {Rule: "market", Why: "nobody paid"}}}, wire.SuggestRequest{}, "tower")
		}), "Not in it:\n  electricity: what it draws is not known (--watts)\n  market: nobody paid\n"},
		"nothing was paid": {show(func(t *render.Table) { (&paid{from: at}).show(t, wire.List[offpeak.Candle]{}) }), "Nothing was paid since"},
		"nothing fits":     {show(func(t *render.Table) { showQuote(t, offpeak.Quote{}, offpeak.Requirements{}) }), "No offer fits, and nobody knows"},
		"taken":            {show(func(t *render.Table) { showQuote(t, offpeak.Quote{Start: &at}, offpeak.Requirements{}) }), "free again by"},
		"too dear": {show(func(t *render.Table) {
			showQuote(t, offpeak.Quote{Instead: []offpeak.Alternative{{Kind: offpeak.HigherCeiling, Price: 250_000, Total: 250_000, More: 2}}}, offpeak.Requirements{MaxPrice: &most})
		}), "cost more than 0.10/h.\n\nWhat would help:\n  with --max-price 0.25/h or more: 2 further offers"},
	} {
		if !strings.Contains(tt.got, tt.want) {
			t.Errorf("%s: %q, want it to say %q", name, tt.got, tt.want)
		}
	}
	if got := show(func(t *render.Table) { showMarket(t, wire.Market{Classes: []offpeak.GPUClass{{Devices: 1}}}) }); strings.Contains(got, "free") && strings.Contains(got, "Nobody asks") {
		t.Errorf("what is asked for taken machines is not known, shown %q", got)
	}
}

// What a hub refuses of a plan is named by the flag that said it.
func TestPlansAreRefusedInFlags(t *testing.T) {
	for field, want := range map[string]string{
		"ask": "PRICE", "ask.gpu": "PRICE", "ask.cpu": "--cpu", "windows": "--window", "windows[0]": "--window", "windows[12].cpu": "--window",
		"zone": "--zone", "from": "--from", "until": "--until", "floor": "--floor", "floor.gpu": "--floor", "auto.floor": "--floor",
		"auto.discount_basis_points": "--discount", "auto.slack_basis_points": "--slack", "something": "something",
	} {
		p := wire.ProblemOf(&offpeak.FieldError{Field: field, Value: "7", Rule: "is right"})
		err := inFlags(fmt.Errorf("asked: %w", p))
		if got := err.Error(); got != want+`: "7": is right` || !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%s: %s", field, got)
		}
		if p.Errors[0].Location != field {
			t.Errorf("%s: the problem itself is changed", field)
		}
	}
	if err := errors.New("other"); !errors.Is(inFlags(err), err) || inFlags(nil) != nil {
		t.Error("what is no refusal is changed")
	}
}
