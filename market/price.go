package market

import (
	"fmt"
	"math"
	"math/bits"

	"offpeak"
)

// BasisPoints count ten-thousandths: 1000 of them are a tenth.
type BasisPoints int64

// Whole is all of something.
const Whole BasisPoints = 10_000

// maxBasisPoints bounds every share that a person may set: ten times the whole.
const maxBasisPoints = 10 * Whole

// String prints the share in per cent, "12.5%".
func (b BasisPoints) String() string {
	sign, n := "", uint64(b)
	if b < 0 {
		sign, n = "-", uint64(-b)
	}
	switch {
	case n%100 == 0:
		return fmt.Sprintf("%s%d%%", sign, n/100)
	case n%10 == 0:
		return fmt.Sprintf("%s%d.%d%%", sign, n/100, n%100/10)
	}
	return fmt.Sprintf("%s%d.%02d%%", sign, n/100, n%100)
}

// share is n × num / den, rounded down, for numbers that are not negative and
// den above zero; the largest int64 where it would be more.
func share(n, num, den int64) int64 {
	q, _ := divide(n, num, den)
	return q
}

// shareUp is share, rounded up.
func shareUp(n, num, den int64) int64 {
	q, rest := divide(n, num, den)
	if rest && q < math.MaxInt64 {
		q++
	}
	return q
}

func divide(n, num, den int64) (q int64, rest bool) {
	hi, lo := bits.Mul64(uint64(n), uint64(num))
	if hi >= uint64(den) {
		return math.MaxInt64, false
	}
	u, r := bits.Div64(hi, lo, uint64(den))
	if u > math.MaxInt64 {
		return math.MaxInt64, false
	}
	return int64(u), r > 0
}

// within returns a *offpeak.FieldError for a number out of bounds.
func within(field string, n, least, most int64, text func(int64) string) error {
	if n >= least && n <= most {
		return nil
	}
	return &offpeak.FieldError{Field: field, Value: text(n), Rule: "is from " + text(least) + " to " + text(most)}
}

// plain, priced, percent and lasting are the texts of numbers.
func plain(n int64) string   { return fmt.Sprint(n) }
func priced(n int64) string  { return offpeak.Price(n).String() }
func percent(n int64) string { return BasisPoints(n).String() }
func lasting(n int64) string { return offpeak.Duration(n).String() }

// validPrice says that a price is within its bounds.
func validPrice(p offpeak.Price) bool { return p >= 0 && p <= offpeak.MaxPrice }
