package market

import (
	"cmp"
	"math"
	"slices"
	"time"

	"offpeak"
)

// Trade is a price that was agreed for a lease's term, or time that was had for
// it.
type Trade struct {
	offpeak.Segment
	// At is when.
	At time.Time
	// Price is of one device, or of the job where it has none.
	Price offpeak.Price
	// Agreed says that the term begins with it: it counts as a trade.
	Agreed bool
	// Metered is what was had.
	Metered offpeak.Millis
}

// Validate returns the first *offpeak.FieldError for what is out of bounds.
func (t *Trade) Validate() error {
	// Before the epoch nobody rented anything.
	if t.At.Unix() < 0 {
		return &offpeak.FieldError{Field: "trade.at", Value: t.At.String(), Rule: "is after 1970"}
	}
	return cmp.Or(
		within("trade.price", int64(t.Price), 0, int64(offpeak.MaxPrice), priced),
		within("trade.metered_ms", int64(t.Metered), 0, offpeak.MaxDuration.Std().Milliseconds(), plain),
	)
}

// Tape sums up trades until somebody takes what came together. What it returns
// does not depend on the order in which trades come. The zero Tape is empty.
type Tape struct {
	candles map[candleKey]offpeak.Candle
}

type candleKey struct {
	offpeak.Segment
	resolution offpeak.Resolution
	start      int64 // Unix seconds
}

// maxTaped bounds what a tape holds that nobody takes.
const maxTaped = 10_000

// Add notes a trade, in any order. It says whether there was room for it. It
// returns a *offpeak.FieldError, and changes nothing, for a trade out of bounds.
func (t *Tape) Add(in Trade) (bool, error) {
	if err := in.Validate(); err != nil {
		return false, err
	}
	c := offpeak.Candle{
		Segment: in.Segment, Open: in.Price, High: in.Price, Low: in.Price, Close: in.Price,
		OpenedAt: in.At.UTC(), ClosedAt: in.At.UTC(), Metered: in.Metered,
	}
	if in.Agreed {
		c.Trades = 1
	}
	for _, c.Resolution = range offpeak.Resolutions() {
		length := int64(c.Resolution.Length() / time.Second)
		k := candleKey{in.Segment, c.Resolution, in.At.Unix() / length * length}
		c.Start = time.Unix(k.start, 0).UTC()
		have, there := t.candles[k]
		switch {
		case there:
			t.candles[k] = have.Join(c)
		case len(t.candles) >= maxTaped:
			return false, nil
		default:
			if t.candles == nil {
				t.candles = make(map[candleKey]offpeak.Candle)
			}
			t.candles[k] = c
		}
	}
	return true, nil
}

// Take returns what the tape holds, in order of segment, resolution and start,
// and empties it.
func (t *Tape) Take() []offpeak.Candle {
	out := make([]offpeak.Candle, 0, len(t.candles))
	for _, c := range t.candles {
		out = append(out, c)
	}
	t.candles = nil
	slices.SortFunc(out, func(a, b offpeak.Candle) int {
		return cmp.Or(a.Compare(b.Segment), cmp.Compare(a.Resolution, b.Resolution), a.Start.Compare(b.Start))
	})
	return out
}

// Clearing returns what is usually paid: the lowest closing price at or below
// which half of the time was had, or of the trades where no time is known yet.
// It is false without any trade.
func Clearing(candles []offpeak.Candle) (offpeak.Price, bool) {
	byPrice := slices.Clone(candles)
	slices.SortFunc(byPrice, func(a, b offpeak.Candle) int { return cmp.Compare(a.Close, b.Close) })
	for _, volume := range []func(*offpeak.Candle) int64{
		func(c *offpeak.Candle) int64 { return int64(c.Metered) },
		func(c *offpeak.Candle) int64 { return c.Trades },
	} {
		all := int64(0)
		for i := range byPrice {
			all = sum(all, volume(&byPrice[i]))
		}
		if all == 0 {
			continue
		}
		had := int64(0)
		for i := range byPrice {
			if had = sum(had, volume(&byPrice[i])); had >= all-had {
				return byPrice[i].Close, true
			}
		}
	}
	return 0, false
}

// sum adds numbers that are not negative and stops at the largest there is.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
