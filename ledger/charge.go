package ledger

import (
	"math"
	"math/bits"
	"time"

	"offpeak"
)

const (
	millisPerHour = 3_600_000
	wholeShare    = 10_000
)

// MaxMillis bounds the time that one attempt can be metered:
// offpeak.MaxDuration.
const MaxMillis = offpeak.Millis(offpeak.MaxDuration / offpeak.Duration(time.Millisecond))

// MaxAmount bounds every single amount that comes in or goes out: 10¹² credits.
const MaxAmount = offpeak.MaxAmount

// MaxDeposits bounds all that ever comes into a grid, together: the world's account
// of deposits only grows, and has 63 bits as every other. What accounts have came
// from there, so none of them reaches its own bound.
const MaxDeposits = offpeak.MicroCredits(math.MaxInt64)

// DepositsRoom is how much may still come in, of the balance of the world's account.
func DepositsRoom(balance offpeak.MicroCredits) offpeak.MicroCredits { return MaxDeposits + balance }

// BasisPoints is a share in hundredths of a percent, 0 … 10,000.
type BasisPoints int

// Charge returns what time costs at a price, rounded down. It returns a
// *RangeError for a price outside 0 … offpeak.MaxPrice and for a time outside
// 0 … MaxMillis; within those bounds no charge overflows.
func Charge(price offpeak.Price, billed offpeak.Millis) (offpeak.MicroCredits, error) {
	if err := inRange("price", int64(price), 0, int64(offpeak.MaxPrice)); err != nil {
		return 0, err
	}
	if err := inRange("metered_ms", int64(billed), 0, int64(MaxMillis)); err != nil {
		return 0, err
	}
	return charge(price, billed), nil
}

// MaxCharge returns the most that one attempt of a job can cost: its price
// limit times its time limit. A job whose submission passes it can't overflow
// anything here. It returns a *RangeError like Charge.
func MaxCharge(price offpeak.Price, limit offpeak.Duration) (offpeak.MicroCredits, error) {
	if err := inRange("limits.time", int64(limit), 0, int64(offpeak.MaxDuration)); err != nil {
		return 0, err
	}
	// A part of a millisecond counts as a whole one.
	ms := (limit + offpeak.Duration(time.Millisecond) - 1) / offpeak.Duration(time.Millisecond)
	return Charge(price, min(offpeak.Millis(ms), MaxMillis))
}

// charge is Charge within its bounds.
func charge(price offpeak.Price, billed offpeak.Millis) offpeak.MicroCredits {
	hi, lo := bits.Mul64(uint64(price), uint64(billed))
	q, _ := bits.Div64(hi, lo, millisPerHour)
	return offpeak.MicroCredits(q)
}

// affords returns the longest time that an amount pays for at a price.
func affords(price offpeak.Price, amount offpeak.MicroCredits) offpeak.Millis {
	if amount < 0 {
		return 0
	}
	if price == 0 {
		return MaxMillis
	}
	// The longest time t with ⌊price·t / hour⌋ ≤ amount is the longest with
	// price·t ≤ (amount + 1)·hour − 1.
	hi, lo := bits.Mul64(uint64(amount)+1, millisPerHour)
	lo, borrow := bits.Sub64(lo, 1, 0)
	hi -= borrow
	if hi >= uint64(price) {
		return MaxMillis
	}
	q, _ := bits.Div64(hi, lo, uint64(price))
	return offpeak.Millis(min(q, uint64(MaxMillis)))
}

// Split says who gets what of a charge. Its three parts sum to the charge.
type Split struct {
	// Earned goes to the node's owner.
	Earned offpeak.MicroCredits `json:"earned"`
	// Fee goes to the grid's operator.
	Fee offpeak.MicroCredits `json:"fee"`
	// Rounding is what both roundings leave: 0 or 1.
	Rounding offpeak.MicroCredits `json:"rounding"`
}

// Divide splits a charge between owner and operator. It returns a *RangeError
// for a negative charge and for a fee outside 0 … 10,000.
func Divide(charged offpeak.MicroCredits, fee BasisPoints) (Split, error) {
	if err := inRange("charged", int64(charged), 0, math.MaxInt64); err != nil {
		return Split{}, err
	}
	if err := inRange("fee", int64(fee), 0, wholeShare); err != nil {
		return Split{}, err
	}
	return divide(charged, fee), nil
}

func divide(charged offpeak.MicroCredits, fee BasisPoints) Split {
	part := func(points BasisPoints) offpeak.MicroCredits {
		hi, lo := bits.Mul64(uint64(charged), uint64(points))
		q, _ := bits.Div64(hi, lo, wholeShare)
		return offpeak.MicroCredits(q)
	}
	s := Split{Earned: part(wholeShare - fee), Fee: part(fee)}
	s.Rounding = charged - s.Earned - s.Fee
	return s
}

// add sums two amounts; ok is false where the sum is not an int64.
func add(a, b offpeak.MicroCredits) (sum offpeak.MicroCredits, ok bool) {
	sum = a + b
	return sum, (sum > a) == (b > 0)
}

// Meter is what is known when an agent says how long its lease has run.
type Meter struct {
	// Was is what had been accepted before.
	Was offpeak.Millis
	// Said is the agent's own count since the start, without frozen time.
	Said offpeak.Millis
	// Started is when the start was acknowledged, in the hub's time; zero
	// before that.
	Started time.Time
	// Limit is the attempt's time limit.
	Limit offpeak.Millis
	// Holding is whether the lease still holds its resources: its process has
	// not been reported gone.
	Holding bool
}

// Accept returns what is metered by now: what the agent says, but no more than
// has passed since the start was acknowledged, nor than the time limit. It
// never falls below what was accepted before, so reports may come twice, late
// and in any order; and it stands still before the start and once the process
// is gone. Frozen time is in none of it, since the agent does not count it.
func (m Meter) Accept(now time.Time) offpeak.Millis {
	if m.Started.IsZero() || !m.Holding {
		return m.Was
	}
	seen := offpeak.Millis(now.Sub(m.Started).Milliseconds())
	return max(m.Was, min(m.Said, seen, m.Limit))
}
