package market_test

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/market"
)

var (
	card     = market.Kind{Vendor: "nvidia", Model: "RTX 4090", VRAM: 24 * gib}
	segments = rapid.SampledFrom([]market.Segment{{}, {Region: "eu"}, {Kind: card, Region: "eu"}, {Kind: card, Region: "us"}})
)

func newHistory(t rapid.TB, r market.Retention) *market.History {
	h, err := market.NewHistory(r)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func drawTrade(t *rapid.T) market.Trade {
	return market.Trade{
		Segment: segments.Draw(t, "segment"), Price: offpeak.Price(rapid.Int64Range(0, 9).Draw(t, "price")), Metered: offpeak.Millis(rapid.Int64Range(0, 3).Draw(t, "metered")),
		// Many in one minute and at one moment, some hours apart.
		At: now.Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "hour"))*time.Hour + time.Duration(rapid.IntRange(0, 5).Draw(t, "half minute"))*30*time.Second),
	}
}

// byScan is what a scan over all trades makes of them: the newest candles.
func byScan(trades []market.Trade, s market.Segment, length time.Duration, most int) []market.Candle {
	stretches := map[time.Time][]market.Trade{}
	for _, t := range trades {
		if t.Segment == s {
			start := t.At.Truncate(length)
			stretches[start] = append(stretches[start], t)
		}
	}
	var out []market.Candle
	for start, in := range stretches {
		slices.SortFunc(in, func(a, b market.Trade) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Price, b.Price)) })
		c := market.Candle{Start: start, Open: in[0].Price, Close: in[len(in)-1].Price, Low: in[0].Price, Trades: int64(len(in))}
		for _, t := range in {
			c.High, c.Low, c.Metered = max(c.High, t.Price), min(c.Low, t.Price), c.Metered+t.Metered
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b market.Candle) int { return a.Start.Compare(b.Start) })
	return out[max(len(out)-most, 0):]
}

// TestHistoryIsAScan: in whatever order trades come, the history holds the
// candles that a scan over all of them makes, the newest of each resolution, and
// answers any range of them.
func TestHistoryIsAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := market.Retention{Minutes: rapid.IntRange(1, 6).Draw(t, "minutes"), Hours: rapid.IntRange(1, 4).Draw(t, "hours"), Segments: 4}
		h := newHistory(t, r)
		trades := rapid.SliceOfN(rapid.Custom(drawTrade), 0, 40).Draw(t, "trades")
		for _, trade := range trades {
			if _, err := h.Add(trade); err != nil {
				t.Fatal(err)
			}
		}
		var known []market.Segment
		for _, s := range []market.Segment{{}, {Region: "eu"}, {Kind: card, Region: "eu"}, {Kind: card, Region: "us"}} {
			if slices.ContainsFunc(trades, func(t market.Trade) bool { return t.Segment == s }) {
				known = append(known, s)
			}
			from := now.Add(time.Duration(rapid.IntRange(-60, 300).Draw(t, "from")) * time.Minute)
			until := now.Add(time.Duration(rapid.IntRange(-60, 300).Draw(t, "until")) * time.Minute)
			for resolution, most := range map[market.Resolution]int{market.Minutes: r.Minutes, market.Hours: r.Hours} {
				want := byScan(trades, s, resolution.Length(), most)
				if got := h.Candles(s, resolution, time.Time{}, now.AddDate(1, 0, 0)); !slices.Equal(got, want) {
					t.Fatalf("%+v: got %+v\nwant %+v", s, got, want)
				}
				want = slices.DeleteFunc(want, func(c market.Candle) bool { return c.Start.Before(from) || !c.Start.Before(until) })
				if got := h.Candles(s, resolution, from, until); !slices.Equal(got, want) {
					t.Fatalf("%+v from %s to %s: got %+v\nwant %+v", s, from, until, got, want)
				}
			}
		}
		if got := h.Segments(); !slices.Equal(got, known) {
			t.Fatalf("segments %+v, want %+v", got, known)
		}
	})
}

func TestHistoryForgets(t *testing.T) {
	h := newHistory(t, market.Retention{Minutes: 2, Hours: 1, Segments: 2})
	add := func(region string, at time.Duration) bool {
		t.Helper()
		kept, err := h.Add(market.Trade{Segment: market.Segment{Region: region}, At: now.Add(at), Price: 1})
		if err != nil {
			t.Fatal(err)
		}
		return kept
	}
	regions := func() (out string) {
		for _, s := range h.Segments() {
			out += s.Region
		}
		return out
	}
	for _, c := range []struct {
		region string
		at     time.Duration
		kept   bool
		have   string
	}{
		{"a", 0, true, "a"},
		{"b", 2 * time.Minute, true, "ab"},
		{"c", -time.Minute, false, "ab"}, // older than all
		{"c", time.Minute, true, "bc"},   // a traded longest ago
		{"b", 4 * time.Minute, true, "bc"},
		{"b", 3 * time.Minute, true, "bc"},                 // a minute between takes the place of the oldest
		{"b", time.Minute, true, "bc"},                     // too old for minutes, not for the hour
		{"b", -time.Hour, false, "bc"},                     // too old for both
		{"d", time.Minute, true, "bd"},                     // as stale as c: the later in order stays
		{"a", time.Minute, false, "bd"},                    // as stale as d: the earlier in order goes
		{"b", 100 * 24 * time.Hour, true, "bd"},            // a clock that is far ahead
		{"b", 5 * time.Minute, true, "bd"},                 // takes one place, and no more
		{"b", 4*time.Minute + 30*time.Second, false, "bd"}, // which the oldest lost
	} {
		if kept := add(c.region, c.at); kept != c.kept || regions() != c.have {
			t.Errorf("%s at %s: kept %v, have %s; want %v, %s", c.region, c.at, kept, regions(), c.kept, c.have)
		}
	}
}

func TestHistoryVolumeIsBounded(t *testing.T) {
	h := newHistory(t, market.DefaultRetention())
	long := offpeak.Millis(offpeak.MaxDuration.Std().Milliseconds())
	for range 3 {
		if _, err := h.Add(market.Trade{At: now, Price: offpeak.MaxPrice, Metered: long}); err != nil {
			t.Fatal(err)
		}
	}
	if c := h.Candles(market.Segment{}, market.Hours, now, now.Add(1)); len(c) != 1 || c[0].Metered != 3*long || c[0].Close != offpeak.MaxPrice || c[0].Trades != 3 {
		t.Errorf("%+v", c)
	}
}

func TestHistoryRefuses(t *testing.T) {
	h := newHistory(t, market.DefaultRetention())
	for name, trade := range map[string]market.Trade{
		"negative price":   {At: now, Price: -1},
		"price over-limit": {At: now, Price: offpeak.MaxPrice + 1},
		"negative time":    {At: now, Metered: -1},
		"time over-limit":  {At: now, Metered: math.MaxInt64},
		"no moment":        {},
	} {
		if kept, err := h.Add(trade); kept || !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, kept, err)
		}
	}
	if got := h.Segments(); len(got) != 0 {
		t.Errorf("keeps %+v", got)
	}
	for _, r := range []market.Retention{{Minutes: 0, Hours: 1, Segments: 1}, {Minutes: 1, Hours: -1, Segments: 1}, {Minutes: 1, Hours: 1}, {Minutes: 1, Hours: 1, Segments: math.MaxInt}} {
		if _, err := market.NewHistory(r); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if got := h.Candles(market.Segment{}, 7, now, now); got != nil {
		t.Errorf("a resolution that there is not: %+v", got)
	}
}

func TestClearing(t *testing.T) {
	for _, c := range []struct {
		name    string
		candles []market.Candle
		want    offpeak.Price
		known   bool
	}{
		{"nothing", nil, 0, false},
		{"candles without trades", []market.Candle{{Close: 5}}, 0, false},
		{"one", []market.Candle{{Close: 5, Trades: 1, Metered: 1}}, 5, true},
		{"free", []market.Candle{{Close: 0, Trades: 1}}, 0, true},
		{"half of the time", []market.Candle{{Close: 9, Trades: 1, Metered: 50}, {Close: 5, Trades: 1, Metered: 50}}, 5, true},
		{"more than half", []market.Candle{{Close: 9, Trades: 1, Metered: 51}, {Close: 5, Trades: 1, Metered: 50}}, 9, true},
		{"many dear trades without time", []market.Candle{{Close: 9, Trades: 100}, {Close: 5, Trades: 1, Metered: 1}}, 5, true},
		{"no time known yet", []market.Candle{{Close: 9, Trades: 100}, {Close: 5, Trades: 1}}, 9, true},
		{"sums that overflow", []market.Candle{{Close: 9, Trades: 1, Metered: math.MaxInt64}, {Close: 5, Trades: 1, Metered: math.MaxInt64}}, 5, true},
	} {
		if got, known := market.Clearing(c.candles); got != c.want || known != c.known {
			t.Errorf("%s: %s, %v; want %s, %v", c.name, got, known, c.want, c.known)
		}
	}
}
