package manifest

import (
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

type sizes []offpeak.Bytes

func (s *sizes) Set(text string) error {
	v, err := offpeak.ParseBytes(text)
	if err == nil {
		*s = append(*s, v)
	}
	return err
}
func (s *sizes) String() string { return "" }
func (s *sizes) Type() string   { return "size" }

type price offpeak.Price

// Set implements pflag.Value.
func (p *price) Set(text string) error {
	v, err := offpeak.ParsePrice(text)
	*p = price(v)
	return err
}

// String implements pflag.Value.
func (p *price) String() string { return "" }

// Type implements pflag.Value.
func (p *price) Type() string { return "price" }

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
