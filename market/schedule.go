package market

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"offpeak"
)

// Days is a set of weekdays: bit 0 is Sunday, as time.Weekday counts.
type Days uint8

// Everyday is all seven.
const Everyday Days = 1<<7 - 1

// Has says whether the day is in the set.
func (d Days) Has(day time.Weekday) bool { return d>>uint(day)&1 == 1 }

// dayNames begins the week with Monday, as people who write schedules do.
func dayNames() []string { return []string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"} }

// weekday turns the place of a name into a time.Weekday.
func weekday(i int) time.Weekday { return time.Weekday((i + 1) % 7) }

// String prints the days as ParseDays reads them: "daily", "mon-fri", "sat,sun".
func (d Days) String() string {
	if d&Everyday == Everyday {
		return "daily"
	}
	names := dayNames()
	var parts []string
	for i := 0; i < 7; i++ {
		if !d.Has(weekday(i)) {
			continue
		}
		last := i
		for last+1 < 7 && d.Has(weekday(last+1)) {
			last++
		}
		switch {
		case last-i >= 2:
			parts = append(parts, names[i]+"-"+names[last])
			i = last
		default:
			parts = append(parts, names[i])
		}
	}
	return strings.Join(parts, ",")
}

// ParseDays reads days: "daily", or names and ranges of names with commas. A
// range may run over the end of the week, "fri-mon". It returns a
// *offpeak.ValueError for anything else.
func ParseDays(s string) (Days, error) {
	if s == "daily" {
		return Everyday, nil
	}
	names := map[string]int{}
	for i, n := range dayNames() {
		names[n] = i
	}
	var out Days
	for part := range strings.SplitSeq(s, ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		i, known := names[first]
		k, known2 := names[last]
		if !known || !known2 {
			return 0, &offpeak.ValueError{Value: s, Rule: "days are daily, or mon, tue, wed, thu, fri, sat and sun with commas and ranges, for example mon-fri or sat,sun"}
		}
		for ; ; i = (i + 1) % 7 {
			out |= 1 << weekday(i)
			if i == k {
				break
			}
		}
	}
	return out, nil
}

// Clock is a time of day in minutes after midnight, 0 … 1440, by the clock on
// the wall.
type Clock int

// midnight is the end of a day.
const midnight Clock = 24 * 60

func (c Clock) String() string { return fmt.Sprintf("%02d:%02d", c/60, c%60) }

func parseClock(s string) (Clock, bool) {
	h, m, ok := strings.Cut(s, ":")
	if !ok || len(h) != 2 || len(m) != 2 {
		return 0, false
	}
	hour, err := strconv.ParseUint(h, 10, 8)
	minute, err2 := strconv.ParseUint(m, 10, 8)
	c := Clock(hour*60 + minute)
	return c, err == nil && err2 == nil && minute < 60 && c <= midnight
}

// Window is an ask for some hours of some days, by the clock on the wall.
type Window struct {
	Days Days
	// From is the first minute, To the one after the last. Where To is not after
	// From the window runs over midnight, and the day is the one it begins on.
	From, To Clock
	Ask      offpeak.Ask
}

// String prints the window as ParseWindow reads it.
func (w Window) String() string {
	return fmt.Sprintf("%s %s-%s %s", w.Days, w.From, w.To, FormatAsk(w.Ask))
}

// MarshalText writes the window as String does.
func (w Window) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads what ParseWindow reads.
func (w *Window) UnmarshalText(text []byte) error {
	v, err := ParseWindow(string(text))
	if err != nil {
		return err
	}
	*w = v
	return nil
}

// ParseWindow reads "mon-fri 22:00-07:00 0.10/h" or, with a price of its own for
// jobs without devices, "mon-fri 22:00-07:00 0.10/h cpu 0.02/h". It returns a
// *offpeak.ValueError for anything else.
func ParseWindow(s string) (Window, error) {
	refused := &offpeak.ValueError{Value: s, Rule: "a window is days, a time of day from-to and a price, for example mon-fri 22:00-07:00 0.10/h; a whole day is 00:00-24:00"}
	days, rest, _ := strings.Cut(strings.TrimSpace(s), " ")
	hours, price, ok := strings.Cut(strings.TrimSpace(rest), " ")
	if !ok {
		return Window{}, refused
	}
	var w Window
	var err error
	if w.Days, err = ParseDays(days); err != nil {
		return Window{}, err
	}
	from, to, _ := strings.Cut(hours, "-")
	var ok2 bool
	w.From, ok = parseClock(from)
	w.To, ok2 = parseClock(to)
	if !ok || !ok2 || !w.sound() {
		return Window{}, refused
	}
	if w.Ask, err = ParseAsk(price); err != nil {
		return Window{}, err
	}
	return w, nil
}

// sound says that the hours have a length: a window that begins when it ends
// might be a whole day or nothing.
func (w Window) sound() bool {
	return w.Days != 0 && w.Days&^Everyday == 0 && w.From >= 0 && w.From < midnight && w.To >= 0 && w.To <= midnight && w.From != w.To
}

// holds says whether the window is open at this minute of this day.
func (w Window) holds(day time.Weekday, at Clock) bool {
	if w.From < w.To {
		return w.Days.Has(day) && w.From <= at && at < w.To
	}
	return (w.Days.Has(day) && at >= w.From) || (w.Days.Has((day+6)%7) && at < w.To)
}

// ParseAsk reads "0.25/h", one price for both uses, or "0.25/h cpu 0.03/h". The
// unit is not optional: nobody should guess whether a price is for an hour or
// a day. It returns a *offpeak.ValueError for anything else.
func ParseAsk(s string) (offpeak.Ask, error) {
	device, plain, two := strings.Cut(strings.TrimSpace(s), " cpu ")
	if !two {
		plain = device
	}
	var ask offpeak.Ask
	for _, p := range []struct {
		text string
		into *offpeak.Price
	}{{device, &ask.GPU}, {strings.TrimSpace(plain), &ask.CPU}} {
		if !strings.HasSuffix(p.text, "/h") {
			return offpeak.Ask{}, &offpeak.ValueError{Value: s, Rule: "an ask is a price with its unit, for example 0.25/h or 0.25/h cpu 0.03/h"}
		}
		var err error
		if *p.into, err = offpeak.ParsePrice(p.text); err != nil {
			return offpeak.Ask{}, err
		}
	}
	return ask, nil
}

// FormatAsk prints an ask as ParseAsk reads it.
func FormatAsk(a offpeak.Ask) string {
	if a.GPU == a.CPU {
		return a.GPU.String()
	}
	return a.GPU.String() + " cpu " + a.CPU.String()
}
