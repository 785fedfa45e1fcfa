package market

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"offpeak"
)

// Bounds of a quote: it is a question that people ask, and must not hold up
// what the book is for.
const (
	// maxQuoted is how many offers a quote names at most.
	maxQuoted = 100
	// maxSeen is how many offers are looked at for another hour: the cheapest
	// now, since who is dear now is rarely cheapest tonight.
	maxSeen = 10_000
	// maxCounted is where counting ends: a quote says "10,000" for more.
	maxCounted = 10_000
	// ahead is how far another hour is looked for.
	ahead = 24
)

// Inquiry asks for a quote.
type Inquiry struct {
	Requirements offpeak.Requirements
	Account      offpeak.AccountID
	Driver       string
	// For is how long the job is reckoned to run.
	For offpeak.Duration
	// Limit is how many offers to name, at most 100.
	Limit int
	// Plan returns a node's plan, nil where its ask never changes. A nil Plan is
	// a grid without schedules.
	Plan func(offpeak.NodeID) *Plan
}

func (in *Inquiry) validate() error {
	switch r := &in.Requirements; {
	case in.For <= 0 || in.For > offpeak.MaxDuration:
		return &offpeak.FieldError{Field: "for", Value: in.For.String(), Rule: "is longer than nothing and at most ten years"}
	case in.Limit < 1 || in.Limit > maxQuoted:
		return &offpeak.FieldError{Field: "limit", Value: fmt.Sprint(in.Limit), Rule: fmt.Sprintf("is from 1 to %d", maxQuoted)}
	case r.MaxPrice != nil && (*r.MaxPrice < 0 || *r.MaxPrice > offpeak.MaxPrice):
		return &offpeak.FieldError{Field: "requirements.max_price", Value: r.MaxPrice.String(), Rule: "is from 0/h to 1000000/h"}
	}
	return nil
}

// Total is what a price comes to over a time, rounded up to the micro-credit: a
// quote never promises less than can be charged. With both within their bounds
// it can't overflow; a negative argument counts as zero.
func Total(p offpeak.Price, d offpeak.Duration) offpeak.MicroCredits {
	p, d = min(max(p, 0), offpeak.MaxPrice), min(max(d, 0), offpeak.MaxDuration)
	hi, lo := bits.Mul64(uint64(p), uint64(d))
	q, rest := bits.Div64(hi, lo, uint64(time.Hour))
	if rest > 0 {
		q++
	}
	return offpeak.MicroCredits(q)
}

// Quote says what a job would cost now. It returns a *offpeak.FieldError for an
// inquiry out of bounds.
func (b *Book) Quote(in Inquiry, now time.Time) (offpeak.Quote, error) {
	if err := in.validate(); err != nil {
		return offpeak.Quote{}, fmt.Errorf("quote: %w", err)
	}
	q := offpeak.Quote{For: in.For}
	for o := range b.Ascending(in.Requirements, in.Account, in.Driver) {
		if q.Fits++; q.Fits > maxCounted {
			q.Fits = maxCounted
			break
		}
		if len(q.Offers) < in.Limit {
			price := o.Ask.For(in.Requirements)
			q.Offers = append(q.Offers, offpeak.QuotedOffer{Node: o.Node, Region: o.Region, Devices: names(in.Requirements, &o), Price: price, Total: Total(price, in.For), Note: in.Requirements.Tolerated(&o)})
		}
	}
	lowest := offpeak.MaxPrice + 1
	if q.Fits > 0 {
		lowest, q.Start = q.Offers[0].Price, &now
	} else if o, ok := b.soonest(in.Requirements, in.Account, in.Driver); ok {
		free := o.FreeAt
		if free.Before(now) {
			free = now // its leases are about to end
		}
		q.Start = &free
	}
	for _, find := range []func(*Inquiry, time.Time, offpeak.Price) (offpeak.Alternative, bool){b.lessVRAM, b.anotherHour, b.higherCeiling} {
		if a, ok := find(&in, now, lowest); ok {
			a.Total = Total(a.Price, in.For)
			q.Instead = append(q.Instead, a)
		}
	}
	return q, nil
}

// names are the models of the devices that the job would get.
func names(r offpeak.Requirements, o *offpeak.Offer) []string {
	if len(r.GPUs) == 0 {
		return nil
	}
	res, _ := r.Assign(*o)
	var out []string
	for _, id := range res.Devices {
		for _, d := range o.FreeDevices {
			if d.ID == id {
				out = append(out, d.Model)
				break
			}
		}
	}
	return out
}

// lessVRAM finds the largest size of device below the one asked for of which a
// cheaper offer fits.
func (b *Book) lessVRAM(in *Inquiry, _ time.Time, lowest offpeak.Price) (offpeak.Alternative, bool) {
	var asked offpeak.Bytes
	for _, g := range in.Requirements.GPUs {
		asked = max(asked, g.VRAM)
	}
	if asked == 0 {
		return offpeak.Alternative{}, false
	}
	for _, vram := range b.sizesBelow(asked) {
		r := in.Requirements
		r.GPUs = slices.Clone(r.GPUs)
		for i := range r.GPUs {
			r.GPUs[i].VRAM = min(r.GPUs[i].VRAM, vram)
		}
		if o, ok := b.Cheapest(r, in.Account, in.Driver); ok && o.Ask.For(r) < lowest {
			return offpeak.Alternative{Kind: offpeak.LessVRAM, Price: o.Ask.For(r), VRAM: vram}, true
		}
	}
	return offpeak.Alternative{}, false
}

// sizesBelow are the sizes of free devices below the one given, largest first,
// in whole GiB: cards of one size report a little less than its name says.
func (b *Book) sizesBelow(asked offpeak.Bytes) []offpeak.Bytes {
	var out []offpeak.Bytes
	for _, l := range b.devices.lists {
		if v := offpeak.Bytes(l.class.vram) * offpeak.GiB; v > 0 && v < asked && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(x, y offpeak.Bytes) int { return cmp.Compare(y, x) })
	return out
}

// anotherHour finds the lowest price that a node which fits now asks at a later
// full hour within a day, and the first hour at which one asks it.
func (b *Book) anotherHour(in *Inquiry, now time.Time, lowest offpeak.Price) (offpeak.Alternative, bool) {
	if in.Plan == nil {
		return offpeak.Alternative{}, false
	}
	most := limit(in.Requirements)
	open := in.Requirements
	open.MaxPrice = nil
	best := offpeak.Alternative{Kind: offpeak.AnotherHour, Price: min(lowest, most+1)}
	seen := 0
	for o := range b.Ascending(open, in.Account, in.Driver) {
		if seen++; seen > maxSeen {
			break
		}
		p := in.Plan(o.Node)
		if p == nil {
			continue
		}
		for h := 1; h <= ahead; {
			at := now.Truncate(time.Hour).Add(time.Duration(h) * time.Hour)
			s := p.At(at)
			if price := s.Ask.For(open); s.Valid && (price < best.Price || (price == best.Price && best.At != nil && at.Before(*best.At))) {
				best.Price, best.At = price, &at
			}
			// On to the first full hour at which something may have changed.
			if s.Until.IsZero() {
				break
			}
			h = max(h+1, int((s.Until.Sub(now.Truncate(time.Hour))+time.Hour-1)/time.Hour))
		}
	}
	return best, best.At != nil
}

// higherCeiling counts the offers that the job's maximum price keeps out.
func (b *Book) higherCeiling(in *Inquiry, _ time.Time, _ offpeak.Price) (offpeak.Alternative, bool) {
	if in.Requirements.MaxPrice == nil {
		return offpeak.Alternative{}, false
	}
	open, a := in.Requirements, offpeak.Alternative{Kind: offpeak.HigherCeiling}
	open.MaxPrice = nil
	for o := range b.above(open, in.Account, in.Driver, *in.Requirements.MaxPrice) {
		if a.More++; a.More == 1 {
			a.Price = o.Ask.For(open)
		}
		if a.More == maxCounted {
			break
		}
	}
	return a, a.More > 0
}

// core is what work without devices needs at least, in thousandths.
const core = 1000

// Use counts the devices of a segment that take work, and those of them that
// leases hold; for the zero kind, machines, and those with no core left. It looks
// at every offer.
func (b *Book) Use(s offpeak.Segment) (devices, taken int) {
	for _, e := range b.entries {
		if !e.offer.Ready || e.offer.Region != s.Region {
			continue
		}
		if s.Kind == (offpeak.Kind{}) {
			devices++
			if e.offer.Free.CPU < core {
				taken++
			}
			continue
		}
		all := count(e.offer.Devices, s.Kind)
		devices += all
		taken += all - count(e.offer.FreeDevices, s.Kind)
	}
	return devices, taken
}

// count counts the devices of one kind.
func count(list []offpeak.Device, k offpeak.Kind) (n int) {
	for i := range list {
		if d := &list[i]; d.Vendor == k.Vendor && d.Model == k.Model && d.VRAM == k.VRAM {
			n++
		}
	}
	return n
}

// Classes returns the order book: the devices of all offers that take work, by
// model, those with the most memory first; at the end, without a model, machines
// as places for work without devices. It looks at every offer.
func (b *Book) Classes() []offpeak.GPUClass {
	type tally struct {
		offpeak.GPUClass
		asks []offpeak.Price
	}
	kinds := map[offpeak.Kind]*tally{}
	of := func(d *offpeak.Device) *tally {
		k := offpeak.Kind{Vendor: d.Vendor, Model: d.Model, VRAM: d.VRAM}
		if kinds[k] == nil {
			kinds[k] = &tally{GPUClass: offpeak.GPUClass{Vendor: d.Vendor, Model: d.Model, VRAM: d.VRAM}}
		}
		return kinds[k]
	}
	for _, e := range b.entries {
		if !e.offer.Ready {
			continue
		}
		for i := range e.offer.Devices {
			of(&e.offer.Devices[i]).Devices++
		}
		for i := range e.offer.FreeDevices {
			c := of(&e.offer.FreeDevices[i])
			c.asks = append(c.asks, e.offer.Ask.GPU)
		}
		c := of(&offpeak.Device{})
		if c.Devices++; e.offer.Free.CPU >= core {
			c.asks = append(c.asks, e.offer.Ask.CPU)
		}
	}
	out := make([]offpeak.GPUClass, 0, len(kinds))
	for _, c := range kinds {
		if c.Free = len(c.asks); c.Free > 0 {
			slices.Sort(c.asks)
			// Of an even number the lower of the two in the middle: somebody asks it.
			lowest, median, highest := c.asks[0], c.asks[(c.Free-1)/2], c.asks[c.Free-1]
			c.Lowest, c.Median, c.Highest = &lowest, &median, &highest
		}
		out = append(out, c.GPUClass)
	}
	slices.SortFunc(out, func(x, y offpeak.GPUClass) int {
		return cmp.Or(cmp.Compare(y.VRAM, x.VRAM), cmp.Compare(x.Vendor, y.Vendor), cmp.Compare(x.Model, y.Model))
	})
	return out
}
