package offpeak

import (
	"cmp"
	"math"
	"time"
)

// Kind names devices that are alike to who rents them. The zero Kind is work
// without devices.
type Kind struct {
	Vendor string `json:"vendor,omitempty"`
	Model  string `json:"model,omitempty"`
	VRAM   Bytes  `json:"vram_bytes,omitempty"`
}

// Segment is a part of the market: one kind of device in one region.
type Segment struct {
	Kind
	Region string `json:"region,omitempty"`
}

// Compare orders segments by vendor, model, memory and region.
func (s Segment) Compare(t Segment) int {
	return cmp.Or(cmp.Compare(s.Vendor, t.Vendor), cmp.Compare(s.Model, t.Model), cmp.Compare(s.VRAM, t.VRAM), cmp.Compare(s.Region, t.Region))
}

// Resolution is how long the stretch of a candle is.
type Resolution string

// The resolutions that are kept.
const (
	Minutes Resolution = "minute"
	Hours   Resolution = "hour"
)

// Resolutions lists them, the finest first.
func Resolutions() []Resolution { return []Resolution{Minutes, Hours} }

// Length returns how long a stretch is.
func (r Resolution) Length() time.Duration {
	if r == Hours {
		return time.Hour
	}
	return time.Minute
}

// Candle sums up the trades of one segment in one stretch of time. Prices are
// of one device, or of the job where it has none.
type Candle struct {
	Segment
	Resolution Resolution `json:"resolution" doc:"minute or hour"`
	// Start is the first moment of the stretch, UTC.
	Start time.Time `json:"start"`
	// Open and Close are the first and the last price. Of trades at one moment
	// the lowest opens and the highest closes.
	Open  Price `json:"open"`
	High  Price `json:"high"`
	Low   Price `json:"low"`
	Close Price `json:"close"`
	// OpenedAt and ClosedAt are when those were agreed or paid.
	OpenedAt time.Time `json:"opened_at"`
	ClosedAt time.Time `json:"closed_at"`
	// Trades counts prices that were agreed, Metered the time that was had.
	Trades  int64  `json:"trades"`
	Metered Millis `json:"metered_ms"`
}

// Join returns the candle of what two candles of one segment and stretch sum up.
// It does not matter in which order candles are joined.
func (c Candle) Join(d Candle) Candle {
	if cmp.Or(d.OpenedAt.Compare(c.OpenedAt), cmp.Compare(d.Open, c.Open)) < 0 {
		c.OpenedAt, c.Open = d.OpenedAt, d.Open
	}
	if cmp.Or(d.ClosedAt.Compare(c.ClosedAt), cmp.Compare(d.Close, c.Close)) > 0 {
		c.ClosedAt, c.Close = d.ClosedAt, d.Close
	}
	c.High, c.Low = max(c.High, d.High), min(c.Low, d.Low)
	c.Trades = capped(c.Trades, d.Trades)
	c.Metered = Millis(capped(int64(c.Metered), int64(d.Metered)))
	return c
}

// capped adds numbers that are not negative and stops at the largest there is.
func capped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
