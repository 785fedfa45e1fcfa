package offpeak

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"
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
// *ValueError for anything else.
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
			return 0, &ValueError{Value: s, Rule: "days are daily, or mon, tue, wed, thu, fri, sat and sun with commas and ranges, for example mon-fri or sat,sun"}
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

// Midnight is the end of a day.
const Midnight Clock = 24 * 60

func (c Clock) String() string { return fmt.Sprintf("%02d:%02d", c/60, c%60) }

func parseClock(s string) (Clock, bool) {
	h, m, ok := strings.Cut(s, ":")
	if !ok || len(h) != 2 || len(m) != 2 {
		return 0, false
	}
	hour, err := strconv.ParseUint(h, 10, 8)
	minute, err2 := strconv.ParseUint(m, 10, 8)
	c := Clock(hour*60 + minute)
	return c, err == nil && err2 == nil && minute < 60 && c <= Midnight
}

// Window is some hours of some days, by the clock on the wall: it is open whenever
// that clock shows a time within it, so an hour that is skipped when clocks go
// forward is not in it and one that comes twice is in it twice.
type Window struct {
	Days Days
	// From is the first minute, To the one after the last. Where To is not after
	// From it runs over midnight, and the day is the one it begins on.
	From, To Clock
}

// String prints the window as ParseWindow reads them.
func (w Window) String() string { return fmt.Sprintf("%s %s-%s", w.Days, w.From, w.To) }

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

// ParseWindow reads "mon-fri 22:00-06:00", or "22:00-06:00" for every day. It
// returns a *ValueError for anything else.
func ParseWindow(s string) (Window, error) {
	w := Window{Days: Everyday}
	text := strings.TrimSpace(s)
	if days, rest, ok := strings.Cut(text, " "); ok {
		var err error
		if w.Days, err = ParseDays(days); err != nil {
			return Window{}, err
		}
		text = strings.TrimSpace(rest)
	}
	from, to, _ := strings.Cut(text, "-")
	var ok, ok2 bool
	w.From, ok = parseClock(from)
	w.To, ok2 = parseClock(to)
	if !ok || !ok2 || !w.Sound() {
		return Window{}, &ValueError{Value: s, Rule: "a window is days and a time of day from-to, for example mon-fri 22:00-06:00; a whole day is 00:00-24:00"}
	}
	return w, nil
}

// Sound says that the window has a length: one that begins when it ends might be
// a whole day or nothing.
func (w Window) Sound() bool {
	return w.Days != 0 && w.Days&^Everyday == 0 && w.From >= 0 && w.From < Midnight && w.To >= 0 && w.To <= Midnight && w.From != w.To
}

// Open says whether a clock that shows t, in t's own zone, is within the window.
func (w Window) Open(t time.Time) bool {
	return w.Hold(t.Weekday(), Clock(t.Hour()*60+t.Minute()))
}

// Hold says whether this minute of this day is within the window.
func (w Window) Hold(day time.Weekday, at Clock) bool {
	if w.From < w.To {
		return w.Days.Has(day) && w.From <= at && at < w.To
	}
	return (w.Days.Has(day) && at >= w.From) || (w.Days.Has((day+6)%7) && at < w.To)
}

// Turn is the first moment after t at which any of the windows may open or close:
// a clock in t's zone shows one of their bounds or midnight, or is moved.
func Turn(t time.Time, windows iter.Seq[Window]) time.Time {
	hour, minute, second := t.Clock()
	shows := time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second + time.Duration(t.Nanosecond())
	wait := 24*time.Hour - shows
	for w := range windows {
		for _, c := range [...]Clock{w.From, w.To} {
			if d := time.Duration(c)*time.Minute - shows; d > 0 {
				wait = min(wait, d)
			}
		}
	}
	next := t.Add(wait)
	// Until the clock is moved it runs evenly.
	if _, moved := t.ZoneBounds(); !moved.IsZero() && moved.Before(next) {
		return moved
	}
	return next
}
