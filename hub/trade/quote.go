package trade

import (
	"context"
	"fmt"
	"time"

	"offpeak"
	"offpeak/market"
	"offpeak/wire"
)

// Bounds of a quote.
const (
	usualLimit = 10
	usualTime  = offpeak.Duration(time.Hour)
	// planned is the most nodes whose plans are read for a quote, the cheapest.
	planned = 500
)

// Quote says what a job of an account would cost now, and what would be cheaper.
func (f *Floor) Quote(ctx context.Context, account offpeak.AccountID, in wire.QuoteRequest) (offpeak.Quote, error) {
	spec := offpeak.Spec{Task: offpeak.Task{Driver: in.Driver, Command: []string{"true"}}, Requirements: in.Requirements}
	if spec.Task.Driver == "" {
		spec.Task.Driver = "process"
	}
	spec = spec.WithDefaults()
	if err := spec.Validate(); err != nil {
		return offpeak.Quote{}, err
	}
	inquiry := market.Inquiry{
		Requirements: f.Effective(spec.Requirements), Account: account, Driver: spec.Task.Driver, For: in.For, Limit: in.Limit,
	}
	if inquiry.For == 0 {
		inquiry.For = usualTime
	}
	if inquiry.Limit == 0 {
		inquiry.Limit = usualLimit
	}
	open := inquiry.Requirements
	open.MaxPrice = nil
	var nodes []offpeak.NodeID
	f.mu.Lock()
	f.sync()
	for o := range f.book.Ascending(open, account, inquiry.Driver) {
		if nodes = append(nodes, o.Node); len(nodes) == planned {
			break
		}
	}
	f.mu.Unlock()
	plans := make(map[offpeak.NodeID]*market.Plan, len(nodes))
	if len(nodes) > 0 {
		due, err := f.env.Store.DueAsks(ctx, 0, nodes...)
		if err != nil {
			return offpeak.Quote{}, fmt.Errorf("quote: %w", err)
		}
		for i := range due {
			if len(due[i].Plan) == 0 {
				continue
			}
			if _, p, err := stored(due[i].Plan); err == nil && p.auto == nil {
				plans[due[i].Node.ID] = &p.Plan
			}
		}
	}
	inquiry.Plan = func(id offpeak.NodeID) *market.Plan { return plans[id] }
	f.mu.Lock()
	q, err := f.book.Quote(inquiry, f.env.Now())
	f.mu.Unlock()
	if err != nil {
		return q, err
	}
	if spec.Requirements.NonInterruptible {
		f.premium(&q)
	}
	return q, nil
}

// premium puts what a job that can't be interrupted pays on top into a quote.
func (f *Floor) premium(q *offpeak.Quote) {
	for i := range q.Offers {
		o := &q.Offers[i]
		o.Price = f.cfg.Auction.Charged(o.Price, true)
		o.Total = market.Total(o.Price, q.For)
	}
	for i := range q.Instead {
		a := &q.Instead[i]
		a.Price = f.cfg.Auction.Charged(a.Price, true)
		a.Total = market.Total(a.Price, q.For)
	}
}

// Effective returns requirements as offers are held against them: with the highest
// ask that the job can take, which is below its maximum price where it pays a premium.
func (f *Floor) Effective(r offpeak.Requirements) offpeak.Requirements {
	if r.NonInterruptible {
		most := offpeak.MaxPrice
		if r.MaxPrice != nil {
			most = *r.MaxPrice
		}
		most = f.cfg.Auction.Affords(most, true)
		r.MaxPrice = &most
	}
	return r
}

// Charged is what a job with these requirements pays where so much is asked of it.
func (f *Floor) Charged(ask offpeak.Price, r *offpeak.Requirements) offpeak.Price {
	return f.cfg.Auction.Charged(ask, r.NonInterruptible)
}

// Auction are the rules of bids and premiums.
func (f *Floor) Auction() *market.Auction { return &f.cfg.Auction }

// Market returns the order book.
func (f *Floor) Market(context.Context) (wire.Market, error) {
	f.mu.Lock()
	f.sync()
	classes := f.book.Classes()
	f.mu.Unlock()
	a := &f.cfg.Auction
	out := wire.Market{
		Classes: classes, At: f.env.Now().UTC(),
		Rules: wire.AuctionRules{Margin: int64(a.Margin), Step: a.Step, MinRun: a.MinRun, Respite: a.Respite, Premium: int64(a.Premium)},
	}
	out.Queued, out.Bids = f.env.Waiting()
	return out, nil
}

// sync takes into the book what changed in the fleet; mu is held.
func (f *Floor) sync() {
	changed, gone := f.env.Offers()
	for _, id := range gone {
		f.book.Remove(id)
	}
	for i := range changed {
		if err := f.book.Put(changed[i]); err != nil {
			// The store refuses such a price.
			f.env.Log.Error("an offer is out of bounds", "node", changed[i].Node, "err", err)
		}
	}
}
