package market

import (
	"cmp"
	"errors"
	"time"

	"offpeak"
)

// Auction says who gives way to whom on a scarce machine, and at what price. Its
// fields are the operator's rules; DefaultAuction has the usual ones.
type Auction struct {
	// Margin is by how much of the displaced bid a bid has to be higher. At least
	// 1 %: it bounds how often a machine can change hands.
	Margin BasisPoints `json:"margin_basis_points"`
	// Step is what the winner pays above the displaced bid at least.
	Step offpeak.Price `json:"step"`
	// MinRun is how long a lease runs before it can be displaced.
	MinRun offpeak.Duration `json:"min_run"`
	// Respite is how long a job that was preempted isn't displaced again.
	Respite offpeak.Duration `json:"respite"`
	// Premium is what a job that can't be interrupted pays on top, a share of the price.
	Premium BasisPoints `json:"premium_basis_points"`
}

// DefaultAuction returns the usual rules.
func DefaultAuction() Auction {
	const tenMinutes = offpeak.Duration(10 * time.Minute)
	return Auction{Margin: 1000, Step: 1000, MinRun: tenMinutes, Respite: tenMinutes, Premium: 2500}
}

// Validate returns *offpeak.FieldErrors for the rules that are out of bounds.
func (a *Auction) Validate() error {
	return errors.Join(
		within("auction.margin_basis_points", int64(a.Margin), 100, int64(maxBasisPoints), percent),
		within("auction.step", int64(a.Step), 1, int64(offpeak.MaxPrice), priced),
		within("auction.min_run", int64(a.MinRun), 0, int64(offpeak.MaxDuration), lasting),
		within("auction.respite", int64(a.Respite), 0, int64(offpeak.MaxDuration), lasting),
		within("auction.premium_basis_points", int64(a.Premium), 0, int64(maxBasisPoints), percent),
	)
}

// Bid is what a queued job brings to an auction.
type Bid struct {
	Account offpeak.AccountID
	// Price is the job's MaxPrice. Who names none displaces nobody: "no limit" is
	// no sum to hold anybody to.
	Price *offpeak.Price
	// NonInterruptible: the job will pay the premium.
	NonInterruptible bool
}

// Holding is a running lease whose end would make room for the bidder's job: the
// caller has found that it would fit then.
type Holding struct {
	Lease   offpeak.LeaseID
	Account offpeak.AccountID
	Node    offpeak.NodeID
	// Owner is the account of the node.
	Owner offpeak.AccountID
	// Bid is the MaxPrice of the job that runs. Nil has no limit: nobody exceeds it.
	Bid *offpeak.Price
	// Ask is what the node asks now for the bidder's job.
	Ask offpeak.Price
	// NonInterruptible: the job that runs pays the premium.
	NonInterruptible bool
	// Started is when it began to run, the zero time if it has not.
	Started time.Time
	// Preempted is when its job was last preempted, the zero time if never.
	Preempted time.Time
}

// BidCode is the stable code of why a holding stays; "" gives way.
type BidCode string

// The reasons, in the order in which they are tried. Those from BidTooSoon on
// pass with time.
const (
	BidOK BidCode = ""
	// BidNothingHeld: no lease's end would make room for the job.
	BidNothingHeld BidCode = "nothing_held"
	// BidInvalid: a price is negative or above the greatest there is.
	BidInvalid BidCode = "invalid"
	// BidUnnamed: the job names no maximum price.
	BidUnnamed BidCode = "unnamed"
	// BidOwnNode: the bidder's account owns the node.
	BidOwnNode BidCode = "own_node"
	// BidOwnerRuns: the node's owner runs a job of its own there.
	BidOwnerRuns BidCode = "owner_runs"
	// BidNonInterruptible: what runs has paid for not being interrupted.
	BidNonInterruptible BidCode = "non_interruptible"
	// BidMargin: the bid does not exceed the other by the margin.
	BidMargin BidCode = "margin"
	// BidPrice: the bidder would pay more than it bids.
	BidPrice BidCode = "price"
	// BidTooSoon: what runs has not run for the minimum.
	BidTooSoon BidCode = "too_soon"
	// BidRespite: its job was preempted a short time ago.
	BidRespite BidCode = "respite"
)

// rank is the place of a code in the order in which reasons are tried.
func (c BidCode) rank() int {
	for i, k := range [...]BidCode{
		BidNothingHeld, BidInvalid, BidUnnamed, BidOwnNode, BidOwnerRuns, BidNonInterruptible, BidMargin, BidPrice, BidTooSoon, BidRespite,
	} {
		if c == k {
			return i
		}
	}
	return -1
}

// Displacement is a holding that gives way and the price that the winner's
// lease has for its first term.
type Displacement struct {
	Holding Holding
	Price   offpeak.Price
}

// Charged returns the price to lock for a job where it is asked so much: with the
// premium, rounded up, if it can't be interrupted. It is above offpeak.MaxPrice,
// and so fits nobody, where it would be.
func (a *Auction) Charged(ask offpeak.Price, nonInterruptible bool) offpeak.Price {
	ask = min(max(ask, 0), offpeak.MaxPrice+1)
	if nonInterruptible {
		ask += offpeak.Price(shareUp(int64(ask), int64(a.Premium), int64(Whole)))
	}
	return min(ask, offpeak.MaxPrice+1)
}

// Affords returns the highest ask that a job with this bid can take: Charged for
// it is within the bid, for any higher one it is not.
func (a *Auction) Affords(bid offpeak.Price, nonInterruptible bool) offpeak.Price {
	if !nonInterruptible {
		return bid
	}
	return offpeak.Price(share(int64(max(bid, 0)), int64(Whole), int64(Whole+a.Premium)))
}

// Exceeds returns the lowest bid that displaces another.
func (a *Auction) Exceeds(bid offpeak.Price) offpeak.Price {
	return bid + max(offpeak.Price(shareUp(int64(bid), int64(a.Margin), int64(Whole))), a.Step)
}

// Decide returns whom the bid displaces at now: of those that give way the one
// that costs the winner least, of these the lowest bid, then who began last and
// so loses least, then the lowest lease id. It does not depend on the order of
// held. Without anybody it returns the reason of the holding that came closest.
//
// Of any jobs, however they bid in turn, a machine changes hands a bounded number
// of times: each time its holder's bid grows by the margin.
func (a *Auction) Decide(b Bid, held []Holding, now time.Time) (Displacement, BidCode) {
	var best Displacement
	code := BidNothingHeld
	for i := range held {
		h := &held[i]
		price, why := a.Weigh(b, h, now)
		switch {
		case why != BidOK:
			if code != BidOK && why.rank() > code.rank() {
				code = why
			}
		case code != BidOK || better(price, h, &best):
			best, code = Displacement{Holding: *h, Price: price}, BidOK
		}
	}
	return best, code
}

// Needed returns the lowest bid at which somebody gives way once time allows it, and
// false where nobody does at any. The bid's own price does not matter.
func (a *Auction) Needed(b Bid, held []Holding) (least offpeak.Price, found bool) {
	for i := range held {
		h := &held[i]
		if h.Bid == nil || !validPrice(*h.Bid) || h.Ask < 0 {
			continue
		}
		need := max(a.Exceeds(*h.Bid), a.Charged(max(h.Ask, *h.Bid+a.Step), b.NonInterruptible))
		b.Price = &need
		if _, why := a.Weigh(b, h, h.Started); why == BidOK || why.passes() {
			if !found || need < least {
				least, found = need, true
			}
		}
	}
	return least, found
}

// passes says that time alone lifts the reason.
func (c BidCode) passes() bool { return c == BidTooSoon || c == BidRespite }

// better says whether h at that price is rather displaced than d.
func better(price offpeak.Price, h *Holding, d *Displacement) bool {
	return cmp.Or(
		cmp.Compare(price, d.Price), cmp.Compare(*h.Bid, *d.Holding.Bid),
		d.Holding.Started.Compare(h.Started), cmp.Compare(h.Lease, d.Holding.Lease),
	) < 0
}

// Weigh returns what the bidder pays if the holding gives way at now, or why it
// does not: max(ask, the displaced bid + one step), with the premium of a job
// that can't be interrupted.
func (a *Auction) Weigh(b Bid, h *Holding, now time.Time) (offpeak.Price, BidCode) {
	switch {
	case b.Price != nil && !validPrice(*b.Price), h.Bid != nil && !validPrice(*h.Bid), h.Ask < 0:
		return 0, BidInvalid
	case b.Price == nil:
		return 0, BidUnnamed
	case b.Account == h.Owner:
		return 0, BidOwnNode
	case h.Account == h.Owner:
		return 0, BidOwnerRuns
	case h.NonInterruptible:
		return 0, BidNonInterruptible
	case h.Bid == nil || *b.Price < a.Exceeds(*h.Bid):
		return 0, BidMargin
	}
	price := a.Charged(max(h.Ask, *h.Bid+a.Step), b.NonInterruptible)
	switch {
	case price > *b.Price:
		return 0, BidPrice
	case h.Started.IsZero() || now.Sub(h.Started) < a.MinRun.Std():
		return 0, BidTooSoon
	case !h.Preempted.IsZero() && now.Sub(h.Preempted) < a.Respite.Std():
		return 0, BidRespite
	}
	return price, BidOK
}
