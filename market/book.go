package market

import (
	"cmp"
	"iter"
	"math"
	"strings"

	"offpeak"
)

// Book holds the offers of a grid and finds the cheapest that fit.
type Book struct {
	entries map[offpeak.NodeID]*entry
	// devices orders the offers that have free devices by the price of one;
	// plain orders all that are ready by the price of a job without devices;
	// busy orders those that are partly held by when they will be free.
	devices, plain, busy forest
}

// entry is an offer in the book and where the forests have it.
type entry struct {
	offer offpeak.Offer
	// in are the entry's lists and keys in devices, plain and busy; a nil list
	// where it is in none.
	in [3]place
}

// place is where a forest has an entry.
type place struct {
	list *list
	key  int64
}

// move gives the entry another key in its list, if it is in one.
func (p *place) move(key int64, e *entry) {
	if p.list == nil || p.key == key {
		return
	}
	i, at := p.list.find(p.key, e)
	b := p.list.blocks[i]
	// In this order, so that the list is never empty.
	p.list.insert(key, signature{b.traits[at], b.names[at]}, e)
	p.list.delete(p.key, e)
	p.key = key
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{entries: make(map[offpeak.NodeID]*entry)}
}

// Len counts the offers.
func (b *Book) Len() int { return len(b.entries) }

// Get returns the node's offer, and false if the book has none.
func (b *Book) Get(id offpeak.NodeID) (offpeak.Offer, bool) {
	if e := b.entries[id]; e != nil {
		return e.offer, true
	}
	return offpeak.Offer{}, false
}

// Put adds an offer or replaces the node's. The book keeps the offer's slices
// and maps: nobody may change them. It returns a *offpeak.FieldError, and
// changes nothing, for a price out of bounds.
func (b *Book) Put(o offpeak.Offer) error {
	if err := o.Ask.Validate(); err != nil {
		return err
	}
	e := b.entries[o.Node]
	if e == nil {
		e = new(entry)
		b.entries[o.Node] = e
	} else {
		b.unlink(e)
	}
	e.offer = o
	if !o.Ready {
		return nil
	}
	now := sign(&o, o.Free, len(o.FreeDevices))
	if len(o.FreeDevices) > 0 {
		e.in[0] = b.devices.add(deviceClass(o.FreeDevices), int64(o.Ask.GPU), now, e)
	}
	e.in[1] = b.plain.add(coreClass(o.Free.CPU), int64(o.Ask.CPU), now, e)
	if !o.FreeAt.IsZero() {
		e.in[2] = b.busy.add(deviceClass(o.Devices), o.FreeAt.UnixMilli(), sign(&o, o.Capacity, len(o.Devices)), e)
	}
	return nil
}

// SetAsk changes what a node asks, and says whether the book has an offer of it.
// It returns a *offpeak.FieldError, and changes nothing, for a price out of bounds.
func (b *Book) SetAsk(id offpeak.NodeID, ask offpeak.Ask) (bool, error) {
	if err := ask.Validate(); err != nil {
		return false, err
	}
	e := b.entries[id]
	if e == nil {
		return false, nil
	}
	e.offer.Ask = ask
	e.in[0].move(int64(ask.GPU), e)
	e.in[1].move(int64(ask.CPU), e)
	return true, nil
}

// Remove takes a node's offer out and says whether it was there.
func (b *Book) Remove(id offpeak.NodeID) bool {
	e := b.entries[id]
	if e == nil {
		return false
	}
	b.unlink(e)
	delete(b.entries, id)
	return true
}

func (b *Book) unlink(e *entry) {
	for i, f := range []*forest{&b.devices, &b.plain, &b.busy} {
		if p := e.in[i]; p.list != nil {
			f.remove(p, e)
		}
	}
	e.in = [3]place{}
}

// Cheapest returns the offer with the lowest price for the job, of several the
// one with the lowest node id; false if none fits.
func (b *Book) Cheapest(r offpeak.Requirements, account offpeak.AccountID, driver string) (offpeak.Offer, bool) {
	for o := range b.Ascending(r, account, driver) {
		return o, true
	}
	return offpeak.Offer{}, false
}

// Ascending yields the offers that fit the job in the order of what it would
// pay, those of one price by node id. Who prefers some of the cheapest to others
// takes all of the first price and chooses. The book must not change meanwhile.
func (b *Book) Ascending(r offpeak.Requirements, account offpeak.AccountID, driver string) iter.Seq[offpeak.Offer] {
	return b.above(r, account, driver, -1)
}

// above is Ascending for the offers that cost more than a price.
func (b *Book) above(r offpeak.Requirements, account offpeak.AccountID, driver string, price offpeak.Price) iter.Seq[offpeak.Offer] {
	return func(yield func(offpeak.Offer) bool) {
		q := newQuestion(&r, account, driver)
		f, each := &b.plain, offpeak.Price(1)
		if n := len(r.GPUs); n > 0 {
			f, each, q.cores = &b.devices, offpeak.Price(n), 0
		}
		q.limit = int64(limit(r) / each)
		if price >= 0 {
			q.least = int64(price/each) + 1
		}
		f.ascend(&q, func(e *entry) bool { return r.Fits(account, driver, &e.offer) }, func(e *entry) bool { return yield(e.offer) })
	}
}

// soonest returns the offer that fits the job once the leases on it have
// reached their time limits, the first to do so; false if there is none.
func (b *Book) soonest(r offpeak.Requirements, account offpeak.AccountID, driver string) (offpeak.Offer, bool) {
	q := newQuestion(&r, account, driver)
	q.cores, q.limit = 0, math.MaxInt64
	var found *entry
	b.busy.ascend(&q, func(e *entry) bool {
		idle := e.offer
		idle.Free, idle.FreeDevices = idle.Capacity, idle.Devices
		return r.Fits(account, driver, &idle)
	}, func(e *entry) bool { found = e; return false })
	if found == nil {
		return offpeak.Offer{}, false
	}
	return found.offer, true
}

// limit is the most that the job pays an hour.
func limit(r offpeak.Requirements) offpeak.Price {
	if r.MaxPrice != nil {
		return min(*r.MaxPrice, offpeak.MaxPrice)
	}
	return offpeak.MaxPrice
}

// compareEntries orders by key, then by node id.
func compareEntries(aKey int64, a *entry, bKey int64, b *entry) int {
	if c := cmp.Compare(aKey, bKey); c != 0 {
		return c
	}
	return strings.Compare(string(a.offer.Node), string(b.offer.Node))
}
