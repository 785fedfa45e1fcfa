package trading

import (
	"strconv"
	"strings"
	"time"

	"offpeak"
	"offpeak/market"
	"offpeak/wire"
)

// The values of flags follow: each reads what the market or the vocabulary reads.

// asked is the value of a flag that takes an ask.
type asked struct{ ask *offpeak.Ask }

// Set implements pflag.Value.
func (v *asked) Set(text string) error {
	a, err := market.ParseAsk(text)
	v.ask = &a
	return err
}

// String implements pflag.Value.
func (v *asked) String() string {
	if v.ask == nil {
		return ""
	}
	return market.FormatAsk(*v.ask)
}

// Type implements pflag.Value.
func (v *asked) Type() string { return "ask" }

// prices is an ask as the API takes it.
func prices(a *offpeak.Ask) *wire.Prices {
	if a == nil {
		return nil
	}
	return &wire.Prices{GPU: &a.GPU, CPU: &a.CPU}
}

// windows is the value of a flag that is given once a window.
type windows []string

// Set implements pflag.Value.
func (v *windows) Set(text string) error {
	w, err := market.ParseWindow(text)
	if err != nil {
		return err
	}
	*v = append(*v, w.String())
	return nil
}

// String implements pflag.Value.
func (v *windows) String() string { return strings.Join(*v, "; ") }

// Type implements pflag.Value.
func (v *windows) Type() string { return "window" }

// hours is the value of a flag that takes a number of hours.
type hours offpeak.Duration

// Set implements pflag.Value.
func (v *hours) Set(text string) error {
	const micro = time.Hour / 1_000_000
	const most = int64(offpeak.MaxDuration) / int64(micro)
	// Hours have the decimals of credits.
	n, err := offpeak.ParseCredits(text)
	if err != nil || n <= 0 || int64(n) > most {
		return &offpeak.ValueError{Value: text, Rule: "is a number of hours, for example 3 or 0.5, above 0 and at most ten years"}
	}
	*v = hours(time.Duration(n) * micro)
	return nil
}

// String implements pflag.Value.
func (v *hours) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.FormatFloat(time.Duration(*v).Hours(), 'f', -1, 64)
}

// Type implements pflag.Value.
func (v *hours) Type() string { return "hours" }

// life is the value of a flag that takes years, days or any length of time.
type life offpeak.Duration

// Set implements pflag.Value.
func (v *life) Set(text string) error {
	rule := &offpeak.ValueError{Value: text, Rule: "is a length of time, for example 3y, 700d or 20000h, from 1h to 10y"}
	const day = 24 * time.Hour
	for unit, long := range map[string]time.Duration{"y": 365 * day, "d": day} {
		if num, ok := strings.CutSuffix(text, unit); ok {
			n, err := strconv.ParseUint(num, 10, 16)
			if err != nil || n == 0 || time.Duration(n) > time.Duration(offpeak.MaxDuration)/long {
				return rule
			}
			*v = life(time.Duration(n) * long)
			return nil
		}
	}
	if err := (*offpeak.Duration)(v).UnmarshalText([]byte(text)); err != nil || time.Duration(*v) < time.Hour {
		return rule
	}
	return nil
}

// String implements pflag.Value.
func (v *life) String() string {
	if *v == 0 {
		return ""
	}
	return offpeak.Duration(*v).String()
}

// Type implements pflag.Value.
func (v *life) Type() string { return "life" }

// tariff is the value of a flag that takes the price of a kilowatt-hour: one, or 24
// with commas.
type tariff []offpeak.MicroCredits

// Set implements pflag.Value.
func (v *tariff) Set(text string) error {
	const day = 24
	parts := strings.Split(text, ",")
	*v = make(tariff, len(parts))
	for i, part := range parts {
		n, err := offpeak.ParseCredits(part)
		if err != nil || len(parts) != 1 && len(parts) != day {
			return &offpeak.ValueError{Value: text, Rule: "is what a kilowatt-hour costs in credits, for example 0.30, or 24 of them with commas, the first from midnight to one"}
		}
		(*v)[i] = n
	}
	return nil
}

// String implements pflag.Value.
func (v *tariff) String() string { return "" }

// Type implements pflag.Value.
func (v *tariff) Type() string { return "kwh" }
