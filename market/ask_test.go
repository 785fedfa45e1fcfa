package market_test

import (
	"errors"
	"testing"
	"time"
	_ "time/tzdata" // the same zones on every machine

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/market"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func drawWindow(t *rapid.T) market.Window {
	// Bounds around which clocks are moved are as likely as all others together.
	bound := func(last int) *rapid.Generator[market.Clock] {
		return rapid.OneOf(rapid.SampledFrom([]market.Clock{0, 60, 105, 120, 135, 150, 180, 1380}), rapid.Custom(func(t *rapid.T) market.Clock {
			return market.Clock(rapid.IntRange(0, last).Draw(t, "minute"))
		}))
	}
	w := market.Window{
		Days: market.Days(rapid.IntRange(1, 127).Draw(t, "days")), From: bound(1439).Draw(t, "from"), To: bound(1440).Draw(t, "to"),
		Ask: offpeak.Ask{GPU: offpeak.Price(rapid.Int64Range(0, 3).Draw(t, "gpu")), CPU: offpeak.Price(rapid.Int64Range(0, 1).Draw(t, "cpu"))},
	}
	if w.From == w.To {
		w.To = w.From + 1
	}
	return w
}

// byHand is what the plan asks, told minute by minute.
func byHand(p *market.Plan, t time.Time) (offpeak.Ask, bool) {
	if t.Before(p.From) || (!p.Until.IsZero() && !t.Before(p.Until)) {
		return offpeak.Ask{}, false
	}
	local := t.In(p.Zone)
	clock := market.Clock(local.Hour()*60 + local.Minute())
	ask := p.Base
	for _, w := range p.Windows {
		open := w.Days.Has(local.Weekday()) && clock >= w.From && clock < w.To
		if w.To < w.From {
			yesterday := (local.Weekday() + 6) % 7
			open = (w.Days.Has(local.Weekday()) && clock >= w.From) || (w.Days.Has(yesterday) && clock < w.To)
		}
		if open {
			ask = w.Ask
			break
		}
	}
	return offpeak.Ask{GPU: max(ask.GPU, p.Floor.GPU), CPU: max(ask.CPU, p.Floor.CPU)}, true
}

// TestPlanIsAWalkByMinutes: over days on which clocks are moved, by an hour or
// by half of one, the plan says at each minute what a person with a clock says,
// and that it holds until just when it changes.
func TestPlanIsAWalkByMinutes(t *testing.T) {
	jumps := []time.Time{}
	zones := []*time.Location{}
	for _, c := range []struct {
		zone string
		near time.Time
	}{
		{"Europe/Berlin", time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC)}, {"Europe/Berlin", time.Date(2026, 10, 24, 0, 0, 0, 0, time.UTC)},
		{"America/New_York", time.Date(2026, 3, 7, 0, 0, 0, 0, time.UTC)}, {"America/New_York", time.Date(2026, 10, 31, 0, 0, 0, 0, time.UTC)},
		{"Australia/Lord_Howe", time.Date(2026, 4, 3, 0, 0, 0, 0, time.UTC)}, {"Australia/Lord_Howe", time.Date(2026, 10, 2, 0, 0, 0, 0, time.UTC)},
		{"Pacific/Apia", time.Date(2011, 12, 29, 0, 0, 0, 0, time.UTC)}, // a day was left out
		{"Africa/Cairo", time.Date(2026, 4, 23, 0, 0, 0, 0, time.UTC)},  // at midnight
		{"Asia/Kolkata", time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)},
	} {
		zones, jumps = append(zones, zone(t, c.zone)), append(jumps, c.near)
	}
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(zones)-1).Draw(t, "zone")
		p := market.Plan{
			Zone: zones[i], Windows: rapid.SliceOfN(rapid.Custom(drawWindow), 0, 4).Draw(t, "windows"),
			Base: offpeak.Ask{GPU: 2, CPU: 1}, Floor: offpeak.Ask{GPU: offpeak.Price(rapid.Int64Range(0, 1).Draw(t, "floor"))},
		}
		start := jumps[i].Add(time.Duration(rapid.IntRange(0, 24*60).Draw(t, "start")) * time.Minute)
		if rapid.Bool().Draw(t, "bounded") {
			p.From, p.Until = start.Add(5*time.Hour), start.Add(40*time.Hour)
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		var said market.Standing
		for m := range 60 * 60 {
			at := start.Add(time.Duration(m) * time.Minute)
			want, valid := byHand(&p, at)
			if m == 0 || (!said.Until.IsZero() && !at.Before(said.Until)) {
				said = p.At(at)
				if before, was := byHand(&p, at.Add(-time.Minute)); m > 0 && before == want && was == valid {
					t.Fatalf("%s: said to change at %s, but does not", p.Windows, at.In(p.Zone))
				}
			}
			if said.Valid != valid || said.Ask != want {
				t.Fatalf("%s at %s: %+v, want %+v, %v", p.Windows, at.In(p.Zone), said, want, valid)
			}
		}
	})
}

func TestPlanNeverChanges(t *testing.T) {
	for name, p := range map[string]market.Plan{
		"no window":    {Base: offpeak.Ask{GPU: 5}},
		"all the same": {Base: offpeak.Ask{GPU: 5}, Windows: []market.Window{{Days: market.Everyday, From: 0, To: 600, Ask: offpeak.Ask{GPU: 5}}}},
		"all day":      {Windows: []market.Window{{Days: market.Everyday, From: 0, To: 1440, Ask: offpeak.Ask{GPU: 5}}}},
	} {
		if s := p.At(now); !s.Valid || s.Ask.GPU != 5 || !s.Until.IsZero() {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestPlanOverASkippedHour: the window lies in the hour that Berlin's clocks
// skip on one Sunday, so it next opens a week later.
func TestPlanOverASkippedHour(t *testing.T) {
	w, err := market.ParseWindow("sun 02:00-03:00 0.10/h")
	if err != nil {
		t.Fatal(err)
	}
	p := market.Plan{Zone: zone(t, "Europe/Berlin"), Windows: []market.Window{w}}
	want := time.Date(2026, 4, 5, 0, 0, 0, 0, time.UTC)
	if s := p.At(time.Date(2026, 3, 23, 0, 0, 0, 0, time.UTC)); !s.Until.Equal(want) {
		t.Errorf("until %s, want %s", s.Until, want)
	}
}

func TestWindowText(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"mon-fri 22:00-07:00 0.10/h", "mon-fri 22:00-07:00 0.10/h"},
		{"daily 00:00-24:00 0.1/h cpu 0.02/h", "daily 00:00-24:00 0.10/h cpu 0.02/h"},
		{" sat,sun  08:30-12:00  0/h ", "sat,sun 08:30-12:00 0.00/h"},
		{"fri-mon 00:00-01:00 1/h", "mon,fri-sun 00:00-01:00 1.00/h"},
		{"mon-sun 00:00-01:00 1/h cpu 1/h", "daily 00:00-01:00 1.00/h"},
	} {
		w, err := market.ParseWindow(c.in)
		if err != nil || w.String() != c.out {
			t.Errorf("%q: %q, %v", c.in, w.String(), err)
		}
	}
	for _, in := range []string{
		"", "mon", "mon 22:00-07:00", "mon 22:00-07:00 0.10", "mon 22:00-07:00 0.10/d", "mon 22:00-22:00 0.10/h", "mon 24:00-01:00 0.10/h",
		"mon 22:00-25:00 0.10/h", "mon 22-07 0.10/h", "mon 2:00-7:00 0.10/h", "mon 22:60-23:00 0.10/h", "monday 22:00-07:00 0.10/h", "mon- 22:00-07:00 0.10/h",
		"mon 22:00-07:00 -0.10/h", "mon 22:00-07:00 NaN/h", "mon 22:00-07:00 1e3/h", "mon 22:00-07:00 0.0000001/h", "mon 22:00-07:00 1000001/h",
		"mon 22:00-07:00 0.10/h cpu", "mon 22:00-07:00 0.10/h cpu 0.02", "mon 22:00-07:00 0.10 EUR/h", "mon,, 22:00-07:00 0.10/h", "mon +1:00-07:00 0.10/h",
	} {
		var bad *offpeak.ValueError
		if w, err := market.ParseWindow(in); !errors.As(err, &bad) {
			t.Errorf("%q: %v, %v", in, w, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		var back market.Window
		if err := back.UnmarshalText([]byte(w.String())); err != nil || back != w {
			t.Fatalf("%q reads as %+v, %v; want %+v", w, back, err, w)
		}
	})
}

func TestPlanRefuses(t *testing.T) {
	for name, p := range map[string]market.Plan{
		"negative":      {Base: offpeak.Ask{GPU: -1}},
		"over-limit":    {Floor: offpeak.Ask{CPU: offpeak.MaxPrice + 1}},
		"ends first":    {From: now, Until: now},
		"no length":     {Windows: []market.Window{{Days: 1, From: 5, To: 5}}},
		"no days":       {Windows: []market.Window{{From: 5, To: 6}}},
		"window's ask":  {Windows: []market.Window{{Days: 1, To: 6, Ask: offpeak.Ask{GPU: -1}}}},
		"many windows":  {Windows: make([]market.Window, market.MaxWindows+1)},
		"beyond a day":  {Windows: []market.Window{{Days: 1, From: 5, To: 1441}}},
		"unknown a day": {Windows: []market.Window{{Days: 255, From: 5, To: 6}}},
	} {
		if err := p.Validate(); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
