package hub

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"offpeak"
	"offpeak/hub/trade"
	"offpeak/ledger"
	"offpeak/market"
	"offpeak/placement"
	"offpeak/store"
)

// auctionClasses is the most kinds of jobs that one look at the auction weighs.
const auctionClasses = 32

// stake is what an auction must know of a running lease whose job has a bid.
type stake struct {
	account offpeak.AccountID
	// bid is the job's; where it names none, the price that it pays: who keeps to
	// themselves what they would pay can't have the machine for ever at the ask.
	bid      offpeak.Price
	named    bool
	steady   bool // not interruptible
	started  time.Time
	outbidAt time.Time
}

// stakes notes what an auction must know of a lease. What runs for nothing and named
// no price is left alone.
func (d *deadlines) stakes(l *offpeak.Lease, r *offpeak.Requirements, outbidAt *time.Time) {
	e := d.byID[l.ID]
	if e == nil {
		return
	}
	e.stake = nil
	if r.MaxPrice == nil && l.Price == 0 || l.State != offpeak.LeaseRunning || l.Stop != "" || l.StartedAt == nil {
		return
	}
	e.stake = &stake{account: l.Account, bid: l.Price, named: r.MaxPrice != nil, steady: r.NonInterruptible, started: *l.StartedAt}
	if r.MaxPrice != nil {
		e.stake.bid = *r.MaxPrice
	}
	if outbidAt != nil {
		e.stake.outbidAt = *outbidAt
	}
}

// repriced notes that a lease's price was renewed.
func (d *deadlines) repriced(lease offpeak.LeaseID, price offpeak.Price) {
	if e := d.byID[lease]; e != nil && e.stake != nil && !e.stake.named {
		e.stake.bid = price
	}
}

// prize is a node that a job has won: the lease that gives way ends, then the job
// is claimed there, before anybody else and at its price.
type prize struct {
	offpeak.Outbid
	node offpeak.NodeID
	// ready says that what the lease held is free.
	ready bool
}

// award notes a prize, and keeps others off the node until it is settled.
func (h *Hub) award(lease offpeak.LeaseID, p prize) {
	if _, there := h.prizes[lease]; !there {
		h.prizes[lease] = p
		h.fleet.Keep(p.node, true)
	}
}

// yielded notes that a lease no longer holds anything.
func (h *Hub) yielded(lease offpeak.LeaseID) {
	if p, won := h.prizes[lease]; won {
		p.ready = true
		h.prizes[lease] = p
	}
}

// settlePrize ends a prize, taken or not.
func (h *Hub) settlePrize(lease offpeak.LeaseID) {
	node := h.prizes[lease].node
	delete(h.prizes, lease)
	for _, other := range h.prizes {
		if other.node == node {
			return
		}
	}
	h.fleet.Keep(node, false)
	h.queue.Freed(node)
}

// collect makes claims of the prizes that are ready. A job that is no longer queued
// or no longer fits goes without.
func (h *Hub) collect(batch []attempt) []attempt {
	for lease, p := range h.prizes {
		if !p.ready || len(batch) == claimBatch {
			continue
		}
		h.settlePrize(lease)
		it := h.queue.Item(p.Job)
		if it == nil {
			continue
		}
		best, ok := h.fleet.Candidate(h.queue.Placement(it), p.node)
		if !ok {
			continue
		}
		id, err := h.newLease()
		if err != nil {
			h.env.Log.Error("no claim made", "err", err)
			continue
		}
		a := h.take(it, best, id)
		a.claim.Price = p.Price
		batch = append(batch, a)
	}
	return batch
}

// auction lets jobs that find no node displace others whose bids they exceed.
func (h *Hub) auction(ctx context.Context, now time.Time) {
	select {
	case <-h.loaded:
	default:
		return
	}
	if !h.leads() {
		return
	}
	h.mu.Lock()
	won := h.displacements(now)
	h.mu.Unlock()
	for _, w := range won {
		short, err := h.covered(ctx, &w)
		var c store.Change
		if err == nil && short == nil {
			c, err = h.env.Store.Outbid(ctx, w.lease, w.Outbid)
		}
		if err != nil || short != nil {
			h.mu.Lock()
			h.settlePrize(w.lease)
			if it := h.queue.Item(w.Job); it != nil && short != nil {
				h.queue.Lack(it, short) // others may bid
			}
			h.mu.Unlock()
		}
		if err != nil {
			if !errors.Is(err, offpeak.ErrConflict) && !errors.Is(err, offpeak.ErrStaleLease) {
				h.refused(ctx, "displace a lease", err)
			}
			continue
		}
		if short != nil {
			continue
		}
		h.env.Log.Info("a higher bid takes the node", "lease", w.lease, "node", w.node, "job", w.Job, "price", w.Price)
		h.apply(c)
	}
}

// covered says what a winner lacks to begin at its price, nil for nothing: it would
// displace somebody, and then not run. It is what the claim will hold, by the job's
// budget as well as by its account's balance.
func (h *Hub) covered(ctx context.Context, w *winner) (*ledger.FundsError, error) {
	j, err := h.env.Store.Job(ctx, w.account, w.Job)
	if err != nil {
		return nil, err
	}
	b, err := h.env.Store.Balances(ctx, w.account)
	if err != nil {
		return nil, err
	}
	limits := j.Spec.Limits
	need := ledger.Least(h.cfg.Holds.Noticed(j.Spec.Task.Grace.Std()), offpeak.Millis(limits.Time.Std().Milliseconds()), w.Price)
	if b.Available < need {
		return &ledger.FundsError{Need: need, Have: b.Available}, nil
	}
	if limits.Budget == nil {
		return nil, nil
	}
	lines, err := h.env.Store.Receipts(ctx, w.account, w.Job)
	if err != nil {
		return nil, err
	}
	left := *limits.Budget
	for i := range lines {
		left -= lines[i].Charged
	}
	if left < need {
		return &ledger.FundsError{Need: need, Have: max(left, 0), Budget: true}, nil
	}
	return nil, nil
}

// auctionNodes is how many nodes are looked at for a bid at a time, with mu held.
const auctionNodes = 256

// wouldTake says what bid would take over a node of the fleet for a queued job that
// finds none: each node with what it is leased for when its turn comes.
func (h *Hub) wouldTake(j *offpeak.Job, fleet *placement.Snapshot) string {
	r := j.Spec.Requirements
	b := market.Bid{Account: j.Account, NonInterruptible: r.NonInterruptible}
	r.MaxPrice = nil
	a := h.trade.Auction()
	would := placement.Job{Account: j.Account, Driver: j.Spec.Task.Driver, Requirements: &r}
	var ids []offpeak.NodeID
	for o := range fleet.Offers {
		if idle := idle(o); o.Ready && r.Fits(j.Account, j.Spec.Task.Driver, &idle) {
			ids = append(ids, o.Node)
		}
	}
	need, found := offpeak.Price(0), false
	for some := range slices.Chunk(ids, auctionNodes) {
		h.mu.Lock()
		if it := h.queue.Item(j.ID); it != nil {
			p := h.queue.Placement(it)
			would.Fences, would.Now = p.Fences, p.Now
		}
		least, any := a.Needed(b, h.holdings(h.fleet.OffersOf(some), &would))
		h.mu.Unlock()
		if any && (!found || least < need) {
			need, found = least, true
		}
	}
	switch most := j.Spec.Requirements.MaxPrice; {
	case !found:
		return ""
	case most != nil && *most >= need:
		return fmt.Sprintf(" Its bid displaces a job with a lower one, once that has run for %s.", a.MinRun)
	default:
		return fmt.Sprintf(" A bid of %s (--max-price) would take a node from a job with a lower one, once that has run for %s.", need, a.MinRun)
	}
}

// winner is a prize with the lease that gives way.
type winner struct {
	prize
	lease   offpeak.LeaseID
	account offpeak.AccountID
}

// displacements decides who displaces whom now; mu is held. Each kind of job gets
// one node at a time, those first in the queue first.
func (h *Hub) displacements(now time.Time) (won []winner) {
	for _, it := range h.queue.Bidders(auctionClasses) {
		j := h.queue.Placement(it)
		if h.winning(j.ID) {
			continue
		}
		asks := it.Job().Requirements
		b := market.Bid{Account: j.Account, Price: asks.MaxPrice, NonInterruptible: asks.NonInterruptible}
		d, code := h.trade.Auction().Decide(b, h.holdings(h.fleet.Offers(), &j), now)
		if code != market.BidOK {
			continue
		}
		w := winner{prize{offpeak.Outbid{Job: j.ID, Price: d.Price}, d.Holding.Node, false}, d.Holding.Lease, j.Account}
		h.award(w.lease, w.prize)
		won = append(won, w)
	}
	return won
}

func (h *Hub) winning(job offpeak.JobID) bool {
	for _, p := range h.prizes {
		if p.Job == job {
			return true
		}
	}
	return false
}

// idle is an offer as it would be without leases.
func idle(o *offpeak.Offer) offpeak.Offer {
	out := *o
	out.Free, out.FreeDevices = o.Capacity, o.Devices
	return out
}

// holdings are the leases on some nodes whose end would make room for a job; mu is
// held.
func (h *Hub) holdings(nodes iter.Seq2[*offpeak.Offer, iter.Seq2[offpeak.LeaseID, offpeak.Resources]], j *placement.Job) []market.Holding {
	var out []market.Holding
	for o, held := range nodes {
		if !o.Ready {
			continue
		}
		if _, fenced := j.Fenced(o.Node); fenced {
			continue
		}
		if idle := idle(o); !j.Requirements.Fits(j.Account, j.Driver, &idle) {
			continue
		}
		for lease, r := range held {
			e := h.live.byID[lease]
			if e == nil || e.stake == nil {
				continue
			}
			freed := *o
			freed.Free.CPU, freed.Free.Memory, freed.Free.Disk = o.Free.CPU+r.CPU, o.Free.Memory+r.Memory, o.Free.Disk+r.Disk
			freed.FreeDevices = slices.Clone(o.FreeDevices)
			for _, d := range o.Devices {
				if slices.Contains(r.Devices, d.ID) {
					freed.FreeDevices = append(freed.FreeDevices, d)
				}
			}
			if !j.Requirements.Fits(j.Account, j.Driver, &freed) {
				continue
			}
			s := e.stake
			out = append(out, market.Holding{
				Lease: lease, Account: s.account, Node: o.Node, Owner: o.Account, Bid: &s.bid, Ask: o.Ask.For(*j.Requirements),
				NonInterruptible: s.steady, Started: s.started, Preempted: s.outbidAt,
			})
		}
	}
	return out
}

// traded notes what was agreed or had for a price.
func (h *Hub) traded(paid *store.Paid, agreed bool) {
	if paid.Price == 0 || !agreed && paid.Metered == 0 {
		return // an offer that lapsed is a term too, in which nothing was had
	}
	h.mu.Lock()
	o, known := h.fleet.Offer(paid.Node)
	if known && !agreed {
		h.queue.Funded(o.Account) // who owns the node has earned something
	}
	h.mu.Unlock()
	if !known {
		return // the node is gone, and with it its segment
	}
	n := offpeak.Node{Inventory: offpeak.Inventory{Region: o.Region, Devices: o.Devices}}
	devices := paid.Devices
	if devices == nil {
		devices = []offpeak.DeviceID{}
	}
	h.trade.Note(market.Trade{
		Segment: trade.Segment(&n, devices), At: h.env.Now().UTC(),
		Price: paid.Price / offpeak.Price(max(len(devices), 1)), Agreed: agreed, Metered: paid.Metered,
	})
}

// offers returns the offers that changed since the last call, for the trading floor.
func (h *Hub) offers() (changed []offpeak.Offer, gone []offpeak.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range h.fleet.TakeChanged() {
		o, there := h.fleet.Offer(id)
		if !there {
			gone = append(gone, id)
			continue
		}
		for lease := range h.fleet.Leases(id) {
			if e := h.live.byID[lease]; e != nil && e.at.After(o.FreeAt) {
				o.FreeAt = e.at
			}
		}
		changed = append(changed, o)
	}
	return changed, gone
}

// waitingJobs counts queued jobs, and those of them that bid.
func (h *Hub) waitingJobs() (queued, bids int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queue.size(), h.queue.Bids()
}

// moved takes a node's new ask into the picture.
func (h *Hub) moved(node offpeak.NodeID, ask *offpeak.Ask) {
	h.changedNode(node, func(f *placement.Fleet) { f.SetAsk(node, ask) })
}
