package offpeak

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size in bytes, 0 … 2⁶³−1. In JSON it is written as an integer and
// read as an integer or as a string with a unit, so that people can write
// "24GB" in a file while programs never lose a byte.
type Bytes int64

// Sizes with decimal (vendor) and binary (kernel) units.
const (
	KB  Bytes = 1000
	MB        = 1000 * KB
	GB        = 1000 * MB
	TB        = 1000 * GB
	KiB Bytes = 1024
	MiB       = 1024 * KiB
	GiB       = 1024 * MiB
	TiB       = 1024 * GiB
)

// MaxBytes bounds every size a person may ask for: 1 PiB.
const MaxBytes = 1024 * TiB

var byteUnits = []struct {
	name string
	size Bytes
}{
	{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
	{"TB", TB}, {"GB", GB}, {"MB", MB}, {"KB", KB}, {"kB", KB},
	{"B", 1},
}

// ParseBytes reads a size: a whole or decimal number and one of the units B,
// KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024),
// written exactly so, with an optional space. A number without a unit is
// refused, since nobody agrees on what it would mean. It returns a
// *ValueError for anything else, for a negative size and above MaxBytes.
func ParseBytes(s string) (Bytes, error) {
	t := strings.TrimSpace(s)
	for _, u := range byteUnits {
		num, ok := strings.CutSuffix(t, u.name)
		if !ok {
			continue
		}
		n, _, err := parseDecimal(strings.TrimSuffix(num, " "), int64(u.size))
		if err != nil || n > int64(MaxBytes) {
			break
		}
		return Bytes(n), nil
	}
	return 0, &ValueError{Value: s, Rule: "a size is a number with a unit, for example 24GB, 24GiB or 512MiB, from 0B to 1024TiB"}
}

// String prints the size exactly where at most five digits and a unit do, in
// the unit that needs the fewest (binary before decimal), else with two
// decimals of the largest binary unit, rounded towards zero, so that a size
// just below 24GiB is never shown as 24GiB.
func (b Bytes) String() string {
	if b == 0 {
		return "0B"
	}
	number, unit := "", ""
	for _, u := range byteUnits {
		if n := strconv.FormatInt(int64(b/u.size), 10); b%u.size == 0 && (unit == "" || len(n) < len(number)) {
			number, unit = n, u.name
		}
	}
	if len(strings.TrimPrefix(number, "-")) > 5 {
		for _, u := range byteUnits[:4] {
			if whole := b / u.size; whole != 0 {
				hundredths := b % u.size * 100 / u.size
				return fmt.Sprintf("%d.%02d%s", whole, max(hundredths, -hundredths), u.name)
			}
		}
	}
	return number + unit
}

// UnmarshalJSON reads an integer number of bytes or a string with a unit.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		v, err := ParseBytes(s)
		if err != nil {
			return err
		}
		*b = v
		return nil
	}
	n, err := strconv.ParseInt(string(data), 10, 64)
	if err != nil || n < 0 || Bytes(n) > MaxBytes {
		return &ValueError{Value: string(data), Rule: "a size is a whole number of bytes or a string with a unit, from 0 to 1024TiB"}
	}
	*b = Bytes(n)
	return nil
}

// MicroCredits is an amount of money: one credit is 1,000,000 of them. Money
// is never a float.
type MicroCredits int64

// Credit is one credit in micro-credits.
const Credit MicroCredits = 1_000_000

// String prints the amount in credits with the decimals it needs, at least two.
func (m MicroCredits) String() string { return formatDecimal(int64(m)) }

// MaxAmount bounds every amount that a person may name: 10¹² credits.
const MaxAmount = 1_000_000_000_000 * Credit

// ParseCredits reads an amount of credits, "5.00" or "5", with at most six
// decimals. It returns a *ValueError for anything else: exponents, NaN, infinities,
// hexadecimal, negative numbers, currencies and amounts above MaxAmount.
func ParseCredits(s string) (MicroCredits, error) {
	n, exact, err := parseDecimal(strings.TrimSpace(s), int64(Credit))
	if err != nil || !exact || n > int64(MaxAmount) {
		return 0, &ValueError{Value: s, Rule: "an amount is credits with at most six decimals, for example 5.00, from 0 to 1000000000000"}
	}
	return MicroCredits(n), nil
}

// Price is a price per hour in micro-credits, 0 … MaxPrice.
type Price int64

// MaxPrice bounds every price: 1,000,000 credits an hour.
const MaxPrice = Price(1_000_000 * Credit)

// ParsePrice reads a price per hour in credits, "0.40/h", with at most six
// decimals. The unit is not optional: nobody should guess whether a price is for
// an hour or a day. It returns a *ValueError for anything else: exponents, NaN,
// infinities, hexadecimal, negative numbers, other currencies and prices above
// MaxPrice.
func ParsePrice(s string) (Price, error) {
	num, unit := strings.CutSuffix(strings.TrimSpace(s), "/h")
	n, exact, err := parseDecimal(num, int64(Credit))
	if err != nil || !unit || !exact || n > int64(MaxPrice) {
		return 0, &ValueError{Value: s, Rule: "a price is credits per hour with at most six decimals, for example 0.40/h, from 0 to 1000000/h"}
	}
	return Price(n), nil
}

// String prints the price in credits per hour, for example "0.40/h".
func (p Price) String() string { return formatDecimal(int64(p)) + "/h" }

// parseDecimal reads an unsigned decimal number times scale without passing
// through a float, rounded down; exact says that nothing was lost.
func parseDecimal(s string, scale int64) (n int64, exact bool, err error) {
	whole, frac, dotted := strings.Cut(s, ".")
	if whole == "" || (dotted && frac == "") || len(whole) > 18 || len(frac) > 18 {
		return 0, false, strconv.ErrSyntax
	}
	w, err := digits(whole)
	if err != nil {
		return 0, false, err
	}
	hi, lo := bits.Mul64(w, uint64(scale))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, false, strconv.ErrRange
	}
	if !dotted {
		return int64(lo), true, nil
	}
	f, err := digits(frac)
	if err != nil {
		return 0, false, err
	}
	den := uint64(1)
	for range len(frac) {
		den *= 10
	}
	// f < den, so the product's high word is below den and Div64 can't panic.
	fhi, flo := bits.Mul64(f, uint64(scale))
	q, r := bits.Div64(fhi, flo, den)
	if lo+q > math.MaxInt64 {
		return 0, false, strconv.ErrRange
	}
	return int64(lo + q), r == 0, nil
}

func digits(s string) (uint64, error) {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, strconv.ErrSyntax
		}
	}
	return strconv.ParseUint(s, 10, 64)
}

func formatDecimal(n int64) string {
	sign, u := "", uint64(n)
	if n < 0 {
		sign, u = "-", uint64(-n)
	}
	s := strings.TrimRight(fmt.Sprintf("%06d", u%uint64(Credit)), "0")
	for len(s) < 2 {
		s += "0"
	}
	return sign + strconv.FormatUint(u/uint64(Credit), 10) + "." + s
}

// Duration is a length of time that is written as Go writes it ("1h30m") in
// JSON, YAML and flags.
type Duration time.Duration

// MaxDuration bounds every duration a person may ask for: 10 years of 365 days.
const MaxDuration = Duration(10 * 365 * 24 * time.Hour)

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String prints the duration as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration reads. It returns a *ValueError
// for anything else, for negative durations and above MaxDuration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 || v > time.Duration(MaxDuration) {
		return &ValueError{Value: string(text), Rule: "a duration is a number with a unit, for example 90s, 15m or 24h, from 0s to ten years"}
	}
	*d = Duration(v)
	return nil
}
