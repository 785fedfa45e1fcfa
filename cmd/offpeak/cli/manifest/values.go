package manifest

import (
	"fmt"
	"strconv"
	"strings"

	"offpeak"
	"offpeak/cmd/offpeak/cli/render"
)

// The values of flags follow: each reads what its type in the vocabulary reads.

// Size is the value of a flag that takes a size.
type Size offpeak.Bytes

// Set implements pflag.Value.
func (s *Size) Set(text string) error {
	v, err := offpeak.ParseBytes(text)
	*s = Size(v)
	return err
}

// String implements pflag.Value.
func (s *Size) String() string {
	if *s == 0 {
		return ""
	}
	return offpeak.Bytes(*s).String()
}

// Type implements pflag.Value.
func (s *Size) Type() string { return "size" }

// Price is the value of a flag that takes a price.
type Price offpeak.Price

// Set implements pflag.Value.
func (p *Price) Set(text string) error {
	v, err := offpeak.ParsePrice(text)
	*p = Price(v)
	return err
}

// String implements pflag.Value.
func (p *Price) String() string {
	if *p == 0 {
		return ""
	}
	return offpeak.Price(*p).String()
}

// Type implements pflag.Value.
func (p *Price) Type() string { return "price" }

// Credits is the value of a flag that takes an amount.
type Credits offpeak.MicroCredits

// Set implements pflag.Value.
func (c *Credits) Set(text string) error {
	v, err := offpeak.ParseCredits(text)
	*c = Credits(v)
	return err
}

// String implements pflag.Value.
func (c *Credits) String() string {
	if *c == 0 {
		return ""
	}
	return offpeak.MicroCredits(*c).String()
}

// Type implements pflag.Value.
func (c *Credits) Type() string { return "credits" }

// Percent is the value of a flag that takes a share; it counts basis points.
type Percent int64

// Set implements pflag.Value.
func (p *Percent) Set(text string) error {
	const whole = 1000 // ten times everything
	num, unit := strings.CutSuffix(strings.TrimSpace(text), "%")
	n, err := hundredths(num)
	if err != nil || !unit || n > whole*100 {
		return &offpeak.ValueError{Value: text, Rule: "is a share in per cent with at most two decimals, for example 5% or 2.5%, from 0% to 1000%"}
	}
	*p = Percent(n)
	return nil
}

// hundredths reads a number with at most two decimals.
func hundredths(s string) (int64, error) {
	whole, frac, dotted := strings.Cut(s, ".")
	if whole == "" || len(whole) > 4 || len(frac) > 2 || dotted && frac == "" {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(whole+frac+"00"[len(frac):], 10, 32)
	return int64(n), err
}

// String implements pflag.Value.
func (p *Percent) String() string {
	n := int64(*p)
	s := fmt.Sprintf("%d.%02d", n/100, n%100)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") + "%"
}

// Type implements pflag.Value.
func (p *Percent) Type() string { return "share" }

// Duration is the value of a flag that takes a length of time.
type Duration offpeak.Duration

// Set implements pflag.Value.
func (d *Duration) Set(text string) error { return (*offpeak.Duration)(d).UnmarshalText([]byte(text)) }

// String implements pflag.Value.
func (d *Duration) String() string {
	if *d == 0 {
		return ""
	}
	return offpeak.Duration(*d).String()
}

// Type implements pflag.Value.
func (d *Duration) Type() string { return "duration" }

// milli is a number of cores in thousandths.
type milli int64

// Set implements pflag.Value.
func (m *milli) Set(text string) error {
	rule := &offpeak.ValueError{Value: text, Rule: "is a number of cores with at most three decimals, for example 2 or 0.5, from 0.001 to 4096"}
	whole, frac, dotted := strings.Cut(text, ".")
	if whole == "" || len(whole) > 4 || len(frac) > 3 || (dotted && frac == "") {
		return rule
	}
	n := int64(0)
	for _, c := range []byte(whole + frac + "000"[len(frac):]) {
		if c < '0' || c > '9' {
			return rule
		}
		n = n*10 + int64(c-'0')
	}
	if n < 1 || n > 4096*1000 {
		return rule
	}
	*m = milli(n)
	return nil
}

// String implements pflag.Value.
func (m *milli) String() string {
	if *m == 0 {
		return ""
	}
	return render.Cores(int64(*m))
}

// Type implements pflag.Value.
func (m *milli) Type() string { return "cores" }
