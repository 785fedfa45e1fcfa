package market

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"offpeak"
)

// Rule proposes another price. A grid's operator chooses which rules there are
// and in which order they apply; allocation knows none of them.
type Rule interface {
	// Name is the rule's stable name, "electricity".
	Name() string
	// Adjust returns the price that it would ask instead, and says why in a few
	// words that hold every number it used. It depends on its arguments alone,
	// changes nothing, and returns the price with "" where it has nothing to say:
	// for example since a fact is not known.
	Adjust(price offpeak.Price, f *Facts) (offpeak.Price, string)
}

// Facts are what rules reckon with. All amounts are of one device, or of the
// machine where it has none.
type Facts struct {
	// Segment is the part of the market in which it is offered.
	offpeak.Segment
	// Hour is the hour of the owner's day for which a price is sought, 0 … 23.
	Hour int
	// Watts is what it draws under load; 0 is unknown. Measured says that somebody
	// measured it; otherwise the maker said so.
	Watts    int64
	Measured bool
	// Tariff is what electricity costs.
	Tariff Tariff
	// Cost is what the hardware costs and Life for how many hours of work it is
	// good; 0 is unknown.
	Cost offpeak.MicroCredits
	Life offpeak.Duration
	// Devices counts those in the segment that take work, Taken those of them that
	// leases hold.
	Devices, Taken int
	// Recent is what was paid in the segment of late.
	Recent []offpeak.Candle
	// Floor is the least that the owner asks.
	Floor offpeak.Price
}

// Tariff is the price of a kilowatt-hour by hour of the owner's day.
type Tariff [24]offpeak.MicroCredits

// Flat is a tariff that does not change over the day.
func Flat(kWh offpeak.MicroCredits) Tariff {
	var t Tariff
	for h := range t {
		t[h] = kWh
	}
	return t
}

// Bounds of the facts.
const (
	maxWatts = 100_000
	// maxAmount bounds the price of hardware and of a kilowatt-hour.
	maxAmount = offpeak.MicroCredits(offpeak.MaxPrice)
)

// Validate returns *offpeak.FieldErrors for the facts that are out of bounds.
func (f *Facts) Validate() error {
	amount := func(n int64) string { return offpeak.MicroCredits(n).String() }
	errs := []error{
		within("facts.hour", int64(f.Hour), 0, 23, plain),
		within("facts.watts", f.Watts, 0, maxWatts, plain),
		within("facts.cost", int64(f.Cost), 0, int64(maxAmount), amount),
		within("facts.floor", int64(f.Floor), 0, int64(offpeak.MaxPrice), priced),
		within("facts.taken", int64(f.Taken), 0, int64(max(f.Devices, 0)), plain),
	}
	if f.Life != 0 {
		errs = append(errs, within("facts.life", int64(f.Life), int64(time.Hour), int64(offpeak.MaxDuration), lasting))
	}
	for h, p := range f.Tariff {
		errs = append(errs, within(fmt.Sprintf("facts.tariff[%d]", h), int64(p), 0, int64(maxAmount), amount))
	}
	return errors.Join(errs...)
}

// Electricity adds what the machine's power costs at the hour, rounded up.
type Electricity struct{}

// Name returns "electricity".
func (Electricity) Name() string { return "electricity" }

// Adjust adds watts × tariff.
func (Electricity) Adjust(price offpeak.Price, f *Facts) (offpeak.Price, string) {
	kWh := f.Tariff[f.Hour]
	if f.Watts == 0 || kWh == 0 {
		return price, ""
	}
	known := "nominal"
	if f.Measured {
		known = "measured"
	}
	return price + offpeak.Price(shareUp(f.Watts, int64(kWh), 1000)), fmt.Sprintf("%d W, %s, at %s a kWh from %02d:00", f.Watts, known, kWh, f.Hour)
}

// Lacks says what of a bill is missing.
func (Electricity) Lacks(f *Facts) LeftOut {
	switch {
	case f.Tariff == Tariff{}:
		return LeftOut{Why: "it is not known what a kilowatt-hour costs", Needs: "kwh"}
	case f.Watts != 0:
		return LeftOut{Why: fmt.Sprintf("power costs nothing from %02d:00", f.Hour)}
	case f.Model == "":
		return LeftOut{Why: "it has no GPU, and what the machine draws is not known", Needs: "watts"}
	}
	return LeftOut{Why: fmt.Sprintf("what %q draws is not known", f.Model), Needs: "watts"}
}

// Depreciation adds what an hour of work takes of the hardware's price, rounded up.
type Depreciation struct{}

// Name returns "depreciation".
func (Depreciation) Name() string { return "depreciation" }

// Adjust adds cost ÷ life.
func (Depreciation) Adjust(price offpeak.Price, f *Facts) (offpeak.Price, string) {
	if f.Cost == 0 || f.Life == 0 {
		return price, ""
	}
	return price + offpeak.Price(shareUp(int64(f.Cost), int64(time.Hour), int64(f.Life))), fmt.Sprintf("%s over %s of work", f.Cost, f.Life)
}

// Lacks says that nobody named a cost, or a life.
func (Depreciation) Lacks(f *Facts) LeftOut {
	switch {
	case f.Cost == 0 && f.Life != 0:
		return LeftOut{Why: "a life is named, and not what the hardware cost", Needs: "cost"}
	case f.Cost == 0:
		return LeftOut{Why: "it is not known what the hardware cost", Needs: "cost"}
	}
	return LeftOut{Why: "it is not known for how long the hardware is good", Needs: "life"}
}

// Demand multiplies the price by a factor that depends on how much of the
// segment is taken.
type Demand struct {
	// Factors are tried in order; the first that matches the segment decides.
	// Where none does the price stays.
	Factors []Factor
}

// Factor is the factor of some segments. Between the two ends it grows evenly.
type Factor struct {
	// Region and Model name what it is for; "" is any. Model is compared with
	// letter case ignored.
	Region string `json:"region,omitempty"`
	Model  string `json:"model,omitempty"`
	// Idle is the factor where nothing is taken, Full where all is.
	Idle BasisPoints `json:"idle_basis_points"`
	Full BasisPoints `json:"full_basis_points"`
}

func (f *Factor) matches(s *offpeak.Segment) bool {
	return (f.Region == "" || f.Region == s.Region) && (f.Model == "" || strings.EqualFold(f.Model, s.Model))
}

// at is the factor where taken of so many devices are, rounded down.
func (f *Factor) at(taken, devices int) BasisPoints {
	if f.Full >= f.Idle {
		return f.Idle + BasisPoints(share(int64(f.Full-f.Idle), int64(taken), int64(devices)))
	}
	return f.Full + BasisPoints(share(int64(f.Idle-f.Full), int64(devices-taken), int64(devices)))
}

// Validate returns *offpeak.FieldErrors for the factors that are out of bounds.
func (d Demand) Validate() error {
	var errs []error
	for i, f := range d.Factors {
		errs = append(errs,
			within(fmt.Sprintf("demand.factors[%d].idle_basis_points", i), int64(f.Idle), 0, int64(maxBasisPoints), percent),
			within(fmt.Sprintf("demand.factors[%d].full_basis_points", i), int64(f.Full), 0, int64(maxBasisPoints), percent))
	}
	return errors.Join(errs...)
}

// Name returns "demand".
func (Demand) Name() string { return "demand" }

// Adjust multiplies, rounded up.
func (d Demand) Adjust(price offpeak.Price, f *Facts) (offpeak.Price, string) {
	if f.Devices == 0 {
		return price, ""
	}
	for i := range d.Factors {
		if !d.Factors[i].matches(&f.Segment) {
			continue
		}
		by := d.Factors[i].at(f.Taken, f.Devices)
		where := strings.TrimSpace(f.Model + " " + f.Region)
		return offpeak.Price(shareUp(int64(price), int64(by), int64(Whole))),
			fmt.Sprintf("%s of the price, with %d of %d taken (%s)", by, f.Taken, f.Devices, cmp.Or(where, "anywhere"))
	}
	return price, ""
}

// Lacks says that there is nobody to be scarce, or no factor.
func (d Demand) Lacks(f *Facts) LeftOut {
	if f.Devices == 0 {
		return LeftOut{Why: "no such machine takes work now"}
	}
	return LeftOut{Why: "the grid's operator has no factor for such machines"}
}

// Clear raises the price to what is usually paid, less a discount. It never
// lowers it: what stands before it is what the hour costs the owner.
type Clear struct {
	Discount BasisPoints `json:"discount_basis_points"`
}

// Validate returns a *offpeak.FieldError for a discount out of bounds.
func (c Clear) Validate() error {
	return within("clear.discount_basis_points", int64(c.Discount), 0, int64(Whole), percent)
}

// Name returns "market".
func (Clear) Name() string { return "market" }

// Adjust raises the price to the market's.
func (c Clear) Adjust(price offpeak.Price, f *Facts) (offpeak.Price, string) {
	paid, known := Clearing(f.Recent)
	if !known {
		return price, ""
	}
	target := discounted(paid, c.Discount)
	less := ""
	if c.Discount > 0 {
		less = fmt.Sprintf(", less %s", c.Discount)
	}
	if target < price {
		return price, fmt.Sprintf("%s is usually paid%s: below what it costs", paid, less)
	}
	return target, fmt.Sprintf("%s is usually paid%s", paid, less)
}

// Lacks says that there is no price to go by.
func (Clear) Lacks(*Facts) LeftOut {
	return LeftOut{Why: "nobody paid for such a machine of late"}
}

// discounted is a price less a discount, rounded up.
func discounted(p offpeak.Price, by BasisPoints) offpeak.Price {
	return offpeak.Price(shareUp(int64(p), int64(Whole-by), int64(Whole)))
}
