package market

import (
	"cmp"
	"math"
	"slices"
	"time"

	"offpeak"
)

// Kind names devices that are alike to who rents them. The zero Kind is work
// without devices.
type Kind struct {
	Vendor string        `json:"vendor,omitempty"`
	Model  string        `json:"model,omitempty"`
	VRAM   offpeak.Bytes `json:"vram_bytes,omitempty"`
}

// Segment is a part of the market: one kind of device in one region.
type Segment struct {
	Kind
	Region string `json:"region,omitempty"`
}

func (s Segment) compare(t Segment) int {
	return cmp.Or(cmp.Compare(s.Vendor, t.Vendor), cmp.Compare(s.Model, t.Model), cmp.Compare(s.VRAM, t.VRAM), cmp.Compare(s.Region, t.Region))
}

// Trade is a price that was paid: a lease's, for one term or a part of it.
type Trade struct {
	Segment
	// At is when the price was agreed.
	At time.Time
	// Price is of one device, or of the job where it has none.
	Price offpeak.Price
	// Metered is what was had for it; 0 where that is not known yet.
	Metered offpeak.Millis
}

// Candle sums up the trades of one stretch of time.
type Candle struct {
	// Start is the first moment of the stretch.
	Start time.Time `json:"start"`
	// Open and Close are the first and the last price. Of trades at one moment
	// the lowest opens and the highest closes.
	Open  offpeak.Price `json:"open"`
	High  offpeak.Price `json:"high"`
	Low   offpeak.Price `json:"low"`
	Close offpeak.Price `json:"close"`
	// Trades and Metered are the volume.
	Trades  int64          `json:"trades"`
	Metered offpeak.Millis `json:"metered_ms"`
}

// Resolution is how long the stretch of a candle is.
type Resolution uint8

// The resolutions that are kept.
const (
	Minutes Resolution = iota
	Hours
	resolutions
)

// Length returns how long a stretch is.
func (r Resolution) Length() time.Duration {
	if r == Hours {
		return time.Hour
	}
	return time.Minute
}

// Retention bounds a history.
type Retention struct {
	// Minutes and Hours are how many candles of each are kept of a segment, the
	// newest that have trades.
	Minutes int `json:"minutes"`
	Hours   int `json:"hours"`
	// Segments are how many segments are kept, those that traded last.
	Segments int `json:"segments"`
}

// DefaultRetention keeps candles for a day of busy minutes and 90 of busy hours.
func DefaultRetention() Retention { return Retention{Minutes: 24 * 60, Hours: 90 * 24, Segments: 1024} }

// The most that a retention may ask for.
const (
	maxCandles  = 100_000
	maxSegments = 100_000
)

// Validate returns a *offpeak.FieldError for the first number out of bounds.
func (r *Retention) Validate() error {
	return cmp.Or(
		within("history.minutes", int64(r.Minutes), 1, maxCandles, plain),
		within("history.hours", int64(r.Hours), 1, maxCandles, plain),
		within("history.segments", int64(r.Segments), 1, maxSegments, plain),
	)
}

// History keeps what was paid, as candles. What it holds does not depend on the
// order in which trades come, but for segments that were forgotten between.
type History struct {
	retention Retention
	segments  map[Segment]*series
}

// series are the candles of one segment by resolution, oldest first.
type series struct {
	candles [resolutions][]candle
	last    time.Time // the newest trade
}

// candle is a Candle in the making.
type candle struct {
	Candle
	first, last time.Time // when it opened and closed
}

// NewHistory returns an empty history. It returns a *offpeak.FieldError for a
// retention out of bounds.
func NewHistory(r Retention) (*History, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return &History{retention: r, segments: make(map[Segment]*series)}, nil
}

// Add notes a trade, in any order. It says whether anything of it was kept: not
// if it is older than all that a full history keeps. It returns a
// *offpeak.FieldError, and changes nothing, for a trade out of bounds.
func (h *History) Add(t Trade) (bool, error) {
	// Before the epoch nobody rented anything.
	if t.At.Unix() < 0 {
		return false, &offpeak.FieldError{Field: "trade.at", Value: t.At.String(), Rule: "is after 1970"}
	}
	if err := cmp.Or(
		within("trade.price", int64(t.Price), 0, int64(offpeak.MaxPrice), priced),
		within("trade.metered_ms", int64(t.Metered), 0, offpeak.MaxDuration.Std().Milliseconds(), plain),
	); err != nil {
		return false, err
	}
	s := h.segments[t.Segment]
	if s == nil {
		if !h.room(&t) {
			return false, nil
		}
		s = new(series)
		h.segments[t.Segment] = s
	}
	if t.At.After(s.last) {
		s.last = t.At
	}
	minutes := s.add(Minutes, &t, h.retention.Minutes)
	hours := s.add(Hours, &t, h.retention.Hours)
	return minutes || hours, nil
}

// room makes room for one more segment, and says whether there is any: the one
// whose newest trade is oldest is forgotten, unless that is the new one.
func (h *History) room(t *Trade) bool {
	if len(h.segments) < h.retention.Segments {
		return true
	}
	var stale Segment
	var found *series
	for k, s := range h.segments {
		if found == nil || cmp.Or(s.last.Compare(found.last), k.compare(stale)) < 0 {
			stale, found = k, s
		}
	}
	if cmp.Or(t.At.Compare(found.last), t.compare(stale)) < 0 {
		return false
	}
	delete(h.segments, stale)
	return true
}

func (s *series) add(r Resolution, t *Trade, most int) bool {
	length := int64(r.Length() / time.Second)
	start := time.Unix(t.At.Unix()/length*length, 0).UTC()
	list := s.candles[r]
	i, there := find(list, start)
	switch {
	case there:
	case len(list) < most:
		list = slices.Insert(list, i, candle{})
	case i == 0:
		return false // older than all that are kept
	default:
		// The oldest goes; those up to the new one move down.
		i--
		copy(list, list[1:i+1])
		list[i] = candle{}
	}
	s.candles[r] = list
	list[i].take(start, t)
	return true
}

func find(list []candle, start time.Time) (int, bool) {
	return slices.BinarySearchFunc(list, start, func(c candle, t time.Time) int { return c.Start.Compare(t) })
}

func (c *candle) take(start time.Time, t *Trade) {
	if c.Trades == 0 {
		c.Candle = Candle{Start: start, Open: t.Price, High: t.Price, Low: t.Price, Close: t.Price}
		c.first, c.last = t.At, t.At
	}
	if cmp.Or(t.At.Compare(c.first), cmp.Compare(t.Price, c.Open)) < 0 {
		c.first, c.Open = t.At, t.Price
	}
	if cmp.Or(t.At.Compare(c.last), cmp.Compare(t.Price, c.Close)) > 0 {
		c.last, c.Close = t.At, t.Price
	}
	c.High, c.Low = max(c.High, t.Price), min(c.Low, t.Price)
	c.Trades = sum(c.Trades, 1)
	c.Metered = offpeak.Millis(sum(int64(c.Metered), int64(t.Metered)))
}

// sum adds numbers that are not negative and stops at the largest there is.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Candles returns the segment's candles that start at from or later and before
// until, oldest first. Stretches without trades have none.
func (h *History) Candles(s Segment, r Resolution, from, until time.Time) []Candle {
	have := h.segments[s]
	if have == nil || r >= resolutions {
		return nil
	}
	list := have.candles[r]
	first, _ := find(list, from)
	end, _ := find(list, until)
	if first >= end {
		return nil
	}
	out := make([]Candle, 0, end-first)
	for _, c := range list[first:end] {
		out = append(out, c.Candle)
	}
	return out
}

// Segments returns the segments of which there are candles, in order of vendor,
// model, memory and region.
func (h *History) Segments() []Segment {
	out := make([]Segment, 0, len(h.segments))
	for k := range h.segments {
		out = append(out, k)
	}
	slices.SortFunc(out, Segment.compare)
	return out
}

// Clearing returns what is usually paid: the lowest closing price at or below
// which half of the time was had, or of the trades where no time is known yet.
// It is false without any trade.
func Clearing(candles []Candle) (offpeak.Price, bool) {
	byPrice := slices.Clone(candles)
	slices.SortFunc(byPrice, func(a, b Candle) int { return cmp.Compare(a.Close, b.Close) })
	for _, volume := range []func(*Candle) int64{
		func(c *Candle) int64 { return int64(c.Metered) },
		func(c *Candle) int64 { return c.Trades },
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
