package market

import (
	"fmt"
	"strings"

	"offpeak"
)

// Days are the vocabulary's.
type Days = offpeak.Days

// Clock is the vocabulary's.
type Clock = offpeak.Clock

// Everyday is all seven.
const Everyday = offpeak.Everyday

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
	span, err := offpeak.ParseWindow(days + " " + hours)
	if err != nil {
		// Days that are none say so; for the rest the rule is the window's.
		if _, bad := offpeak.ParseDays(days); bad != nil {
			return Window{}, bad
		}
		return Window{}, refused
	}
	w := Window{Days: span.Days, From: span.From, To: span.To}
	if w.Ask, err = ParseAsk(price); err != nil {
		return Window{}, err
	}
	return w, nil
}

// hours are the window without its price.
func (w Window) hours() offpeak.Window { return offpeak.Window{Days: w.Days, From: w.From, To: w.To} }

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
