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
	card     = offpeak.Kind{Vendor: "nvidia", Model: "RTX 4090", VRAM: 24 * gib}
	segments = rapid.SampledFrom([]offpeak.Segment{{}, {Region: "eu"}, {Kind: card, Region: "eu"}, {Kind: card, Region: "us"}})
)

func drawTrade(t *rapid.T) market.Trade {
	return market.Trade{
		Segment: segments.Draw(t, "segment"), Price: offpeak.Price(rapid.Int64Range(0, 9).Draw(t, "price")),
		Metered: offpeak.Millis(rapid.Int64Range(0, 3).Draw(t, "metered")), Agreed: rapid.Bool().Draw(t, "agreed"),
		// Many in one minute and at one moment, some hours apart.
		At: now.Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "hour"))*time.Hour + time.Duration(rapid.IntRange(0, 5).Draw(t, "half minute"))*30*time.Second),
	}
}

// byScan is what a scan over all trades makes of them.
func byScan(trades []market.Trade) []offpeak.Candle {
	type stretch struct {
		offpeak.Segment
		offpeak.Resolution
		start time.Time
	}
	stretches := map[stretch][]market.Trade{}
	for _, t := range trades {
		for _, r := range offpeak.Resolutions() {
			k := stretch{t.Segment, r, t.At.Truncate(r.Length())}
			stretches[k] = append(stretches[k], t)
		}
	}
	var out []offpeak.Candle
	for k, in := range stretches {
		slices.SortFunc(in, func(a, b market.Trade) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Price, b.Price)) })
		first, last := in[0], in[len(in)-1]
		c := offpeak.Candle{Segment: k.Segment, Resolution: k.Resolution, Start: k.start, Open: first.Price, Close: last.Price, Low: first.Price, OpenedAt: first.At, ClosedAt: last.At}
		for _, t := range in {
			c.High, c.Low, c.Metered = max(c.High, t.Price), min(c.Low, t.Price), c.Metered+t.Metered
			if t.Agreed {
				c.Trades++
			}
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b offpeak.Candle) int {
		return cmp.Or(a.Compare(b.Segment), cmp.Compare(a.Resolution, b.Resolution), a.Start.Compare(b.Start))
	})
	return out
}

// TestTapeIsAScan: in whatever order trades come, and however often somebody takes
// what there is and joins it, the candles are those that a scan over all makes.
func TestTapeIsAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tape market.Tape
		var taken []offpeak.Candle
		take := func() {
			for _, c := range tape.Take() {
				i := slices.IndexFunc(taken, func(d offpeak.Candle) bool {
					return d.Segment == c.Segment && d.Resolution == c.Resolution && d.Start.Equal(c.Start)
				})
				if i < 0 {
					taken = append(taken, c)
				} else if joined := taken[i].Join(c); joined != c.Join(taken[i]) {
					t.Fatalf("the order matters: %+v and %+v", taken[i], c)
				} else {
					taken[i] = joined
				}
			}
		}
		trades := rapid.SliceOfN(rapid.Custom(drawTrade), 0, 40).Draw(t, "trades")
		for _, trade := range trades {
			if noted, err := tape.Add(trade); !noted || err != nil {
				t.Fatal(noted, err)
			}
			if rapid.IntRange(0, 7).Draw(t, "take") == 0 {
				take()
			}
		}
		take()
		slices.SortFunc(taken, func(a, b offpeak.Candle) int {
			return cmp.Or(a.Compare(b.Segment), cmp.Compare(a.Resolution, b.Resolution), a.Start.Compare(b.Start))
		})
		if want := byScan(trades); !slices.Equal(taken, want) {
			t.Fatalf("got %+v\nwant %+v", taken, want)
		}
	})
}

// TestTapeIsBounded: a tape that nobody takes ceases to grow, and goes on once
// somebody does.
func TestTapeIsBounded(t *testing.T) {
	var tape market.Tape
	refused := 0
	for i := range 20_000 {
		if noted, err := tape.Add(market.Trade{At: now.Add(time.Duration(i) * time.Minute), Price: 1}); err != nil {
			t.Fatal(err)
		} else if !noted {
			refused++
		}
	}
	if held := len(tape.Take()); held != 10_000 || refused == 0 {
		t.Errorf("holds %d, refused %d", held, refused)
	}
	if noted, err := tape.Add(market.Trade{At: now, Price: 1}); !noted || err != nil {
		t.Errorf("taken, and still full: %v, %v", noted, err)
	}
}

func TestVolumeIsBounded(t *testing.T) {
	var tape market.Tape
	if _, err := tape.Add(market.Trade{At: now, Price: offpeak.MaxPrice, Metered: offpeak.Millis(offpeak.MaxDuration.Std().Milliseconds())}); err != nil {
		t.Fatal(err)
	}
	c := tape.Take()[0]
	for range 63 {
		c = c.Join(c)
	}
	if c.Metered != math.MaxInt64 || c.Close != offpeak.MaxPrice {
		t.Errorf("%+v", c)
	}
}

func TestTapeRefuses(t *testing.T) {
	var tape market.Tape
	for name, trade := range map[string]market.Trade{
		"negative price":   {At: now, Price: -1},
		"price over-limit": {At: now, Price: offpeak.MaxPrice + 1},
		"negative time":    {At: now, Metered: -1},
		"time over-limit":  {At: now, Metered: math.MaxInt64},
		"no moment":        {},
	} {
		if noted, err := tape.Add(trade); noted || !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, noted, err)
		}
	}
	if got := tape.Take(); len(got) != 0 {
		t.Errorf("keeps %+v", got)
	}
}

func TestClearing(t *testing.T) {
	for _, c := range []struct {
		name    string
		candles []offpeak.Candle
		want    offpeak.Price
		known   bool
	}{
		{"nothing", nil, 0, false},
		{"candles without trades", []offpeak.Candle{{Close: 5}}, 0, false},
		{"one", []offpeak.Candle{{Close: 5, Trades: 1, Metered: 1}}, 5, true},
		{"free", []offpeak.Candle{{Close: 0, Trades: 1}}, 0, true},
		{"half of the time", []offpeak.Candle{{Close: 9, Trades: 1, Metered: 50}, {Close: 5, Trades: 1, Metered: 50}}, 5, true},
		{"more than half", []offpeak.Candle{{Close: 9, Trades: 1, Metered: 51}, {Close: 5, Trades: 1, Metered: 50}}, 9, true},
		{"many dear trades without time", []offpeak.Candle{{Close: 9, Trades: 100}, {Close: 5, Trades: 1, Metered: 1}}, 5, true},
		{"no time known yet", []offpeak.Candle{{Close: 9, Trades: 100}, {Close: 5, Trades: 1}}, 9, true},
		{"sums that overflow", []offpeak.Candle{{Close: 9, Trades: 1, Metered: math.MaxInt64}, {Close: 5, Trades: 1, Metered: math.MaxInt64}}, 5, true},
	} {
		if got, known := market.Clearing(c.candles); got != c.want || known != c.known {
			t.Errorf("%s: %s, %v; want %s, %v", c.name, got, known, c.want, c.known)
		}
	}
}
