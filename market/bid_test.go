package market_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/market"
)

func priced(p offpeak.Price) *offpeak.Price { return &p }

// running is a lease that a bid of more than 0.40/h displaces from a node that
// asks 0.20/h.
func running() market.Holding {
	return market.Holding{
		Lease: "lease_1", Account: "acct_held", Node: "node_1", Owner: "acct_owner",
		Bid: priced(400_000), Ask: 200_000, Started: now.Add(-time.Hour),
	}
}

func TestWeigh(t *testing.T) {
	const (
		bidder = offpeak.AccountID("acct_bidder")
		most   = offpeak.MaxPrice
	)
	for _, c := range []struct {
		name  string
		bid   market.Bid
		hold  func(*market.Holding)
		price offpeak.Price
		why   market.BidCode
	}{
		{"the margin exactly", market.Bid{Price: priced(440_000)}, nil, 401_000, market.BidOK},
		{"just below the margin", market.Bid{Price: priced(439_999)}, nil, 0, market.BidMargin},
		{"the margin is rounded up", market.Bid{Price: priced(440_001)}, func(h *market.Holding) { h.Bid = priced(400_001) }, 0, market.BidMargin},
		{"a dear bid pays no more", market.Bid{Price: priced(most)}, nil, 401_000, market.BidOK},
		{"the ask if it is higher", market.Bid{Price: priced(450_000)}, func(h *market.Holding) { h.Ask = 450_000 }, 450_000, market.BidOK},
		{"the ask is above the bid", market.Bid{Price: priced(450_000)}, func(h *market.Holding) { h.Ask = 450_001 }, 0, market.BidPrice},
		{"the ask overflows", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Ask = most + 1 }, 0, market.BidPrice},
		{"a step above nothing", market.Bid{Price: priced(1000)}, func(h *market.Holding) { h.Bid, h.Ask = priced(0), 0 }, 1000, market.BidOK},
		{"less than a step above nothing", market.Bid{Price: priced(999)}, func(h *market.Holding) { h.Bid, h.Ask = priced(0), 0 }, 0, market.BidMargin},
		{"a step where the margin is less", market.Bid{Price: priced(6000)}, func(h *market.Holding) { h.Bid, h.Ask = priced(5000), 0 }, 6000, market.BidOK},
		{"no maximum displaces nobody", market.Bid{}, nil, 0, market.BidUnnamed},
		{"nobody exceeds no maximum", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Bid = nil }, 0, market.BidMargin},
		{"nobody exceeds the greatest", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Bid = priced(most) }, 0, market.BidMargin},
		{"the premium", market.Bid{Price: priced(501_250), NonInterruptible: true}, nil, 501_250, market.BidOK},
		{"the premium is above the bid", market.Bid{Price: priced(501_249), NonInterruptible: true}, nil, 0, market.BidPrice},
		{"not interruptible", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.NonInterruptible = true }, 0, market.BidNonInterruptible},
		{"the owner bids", market.Bid{Account: "acct_owner", Price: priced(most)}, nil, 0, market.BidOwnNode},
		{"the owner runs", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Account = "acct_owner" }, 0, market.BidOwnerRuns},
		{"ten minutes", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Started = now.Add(-10 * time.Minute) }, 401_000, market.BidOK},
		{"less than ten minutes", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Started = now.Add(1 - 10*time.Minute) }, 0, market.BidTooSoon},
		{"begins later", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Started = now.Add(time.Hour) }, 0, market.BidTooSoon},
		{"not yet running", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Started = time.Time{} }, 0, market.BidTooSoon},
		{"preempted ten minutes ago", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Preempted = now.Add(-10 * time.Minute) }, 401_000, market.BidOK},
		{"preempted less than ten minutes ago", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Preempted = now.Add(1 - 10*time.Minute) }, 0, market.BidRespite},
		{"a negative bid", market.Bid{Price: priced(-1)}, nil, 0, market.BidInvalid},
		{"a bid over the limit", market.Bid{Price: priced(math.MaxInt64)}, nil, 0, market.BidInvalid},
		{"a negative bid is held", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Bid = priced(math.MinInt64) }, 0, market.BidInvalid},
		{"a bid over the limit is held", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Bid = priced(most + 1) }, 0, market.BidInvalid},
		{"a negative ask", market.Bid{Price: priced(most)}, func(h *market.Holding) { h.Ask = -1 }, 0, market.BidInvalid},
		{"an endless ask", market.Bid{Price: priced(most), NonInterruptible: true}, func(h *market.Holding) { h.Ask = math.MaxInt64 }, 0, market.BidPrice},
	} {
		h := running()
		if c.hold != nil {
			c.hold(&h)
		}
		if c.bid.Account == "" {
			c.bid.Account = bidder
		}
		a := market.DefaultAuction()
		if price, why := a.Weigh(c.bid, &h, now); price != c.price || why != c.why {
			t.Errorf("%s: %s, %q; want %s, %q", c.name, price, why, c.price, c.why)
		}
	}
}

func TestDecideTies(t *testing.T) {
	a := market.DefaultAuction()
	bid := market.Bid{Account: "acct_bidder", Price: priced(2_000_000)}
	with := func(change func(*market.Holding)) market.Holding {
		h := running()
		h.Lease = "lease_2"
		change(&h)
		return h
	}
	for name, h := range map[string]market.Holding{
		"costs the winner more": with(func(h *market.Holding) { h.Bid = priced(400_001) }),
		"bids more, for one price": with(func(h *market.Holding) {
			h.Bid, h.Ask = priced(400_001), 401_001
		}),
		"began earlier":    with(func(h *market.Holding) { h.Started = h.Started.Add(-1) }),
		"has a greater id": with(func(*market.Holding) {}),
		"is not displaced": with(func(h *market.Holding) { h.Bid, h.NonInterruptible = priced(0), true }),
	} {
		first := running()
		if name == "bids more, for one price" {
			first.Ask = 401_001
		}
		for _, held := range [][]market.Holding{{first, h}, {h, first}} {
			d, why := a.Decide(bid, held, now)
			if why != market.BidOK || d.Holding.Lease != first.Lease {
				t.Errorf("%s: displaces %s, %q", name, d.Holding.Lease, why)
			}
		}
	}
	if _, why := a.Decide(bid, nil, now); why != market.BidNothingHeld {
		t.Errorf("nobody there: %q", why)
	}
	// The reason of who came closest to giving way.
	soon, firm := with(func(h *market.Holding) { h.Started = now }), with(func(h *market.Holding) { h.NonInterruptible = true })
	for _, held := range [][]market.Holding{{soon, firm}, {firm, soon}} {
		if d, why := a.Decide(bid, held, now); why != market.BidTooSoon || d != (market.Displacement{}) {
			t.Errorf("%+v, %q", d, why)
		}
	}
}

// drawPrice draws prices of all sizes: crowded at nothing, anywhere, and at the end.
func drawPrice(t *rapid.T, label string) offpeak.Price {
	return offpeak.Price(rapid.OneOf(rapid.Int64Range(0, 5000), rapid.Int64Range(0, int64(offpeak.MaxPrice)), rapid.Int64Range(int64(offpeak.MaxPrice)-5000, int64(offpeak.MaxPrice))).Draw(t, label))
}

func drawAuction(t *rapid.T) market.Auction {
	a := market.Auction{
		Margin: market.BasisPoints(rapid.Int64Range(100, 100_000).Draw(t, "margin")), Step: offpeak.Price(rapid.Int64Range(1, 2000).Draw(t, "step")),
		MinRun: offpeak.Duration(rapid.Int64Range(0, 3).Draw(t, "min run")) * hour, Respite: offpeak.Duration(rapid.Int64Range(0, 3).Draw(t, "respite")) * hour,
		Premium: market.BasisPoints(rapid.Int64Range(0, 100_000).Draw(t, "premium")),
	}
	if err := a.Validate(); err != nil {
		t.Fatal(err)
	}
	return a
}

// exact is what the winner pays in rational arithmetic, nil if it displaces nobody.
func exact(a market.Auction, b market.Bid, h market.Holding, at time.Time) *big.Int {
	bid, below := big.NewInt(int64(*b.Price)), big.NewInt(int64(*h.Bid))
	need := new(big.Rat).Mul(new(big.Rat).SetInt(below), big.NewRat(int64(market.Whole+a.Margin), int64(market.Whole)))
	price := new(big.Int).Add(below, big.NewInt(int64(a.Step)))
	if new(big.Rat).SetInt(bid).Cmp(need) < 0 || bid.Cmp(price) < 0 {
		return nil
	}
	if ask := big.NewInt(int64(h.Ask)); ask.Cmp(price) > 0 {
		price = ask
	}
	if b.NonInterruptible {
		r := new(big.Rat).Mul(new(big.Rat).SetInt(price), big.NewRat(int64(market.Whole+a.Premium), int64(market.Whole)))
		price = new(big.Int).Div(new(big.Int).Sub(new(big.Int).Add(r.Num(), r.Denom()), big.NewInt(1)), r.Denom())
	}
	young := at.Sub(h.Started) < a.MinRun.Std()
	early := !h.Preempted.IsZero() && at.Sub(h.Preempted) < a.Respite.Std()
	if price.Cmp(bid) > 0 || young || early || h.NonInterruptible || b.Account == h.Owner || h.Account == h.Owner {
		return nil
	}
	return price
}

// TestDecideIsExact: of any holdings the one that gives way costs least of all
// that do in rational arithmetic, whatever their order; the price is that sum to
// the micro-credit and within the bid.
func TestDecideIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawAuction(t)
		b := market.Bid{Account: accounts.Draw(t, "bidder"), Price: priced(drawPrice(t, "bid")), NonInterruptible: rapid.Bool().Draw(t, "premium")}
		var held []market.Holding
		for i := range rapid.IntRange(0, 6).Draw(t, "holdings") {
			h := market.Holding{
				Lease: offpeak.LeaseID(fmt.Sprint("lease_", i)), Account: accounts.Draw(t, "holder"), Owner: accounts.Draw(t, "owner"),
				Bid: priced(drawPrice(t, "held")), Ask: drawPrice(t, "ask"), NonInterruptible: rapid.IntRange(0, 5).Draw(t, "firm") == 0,
				Started: now.Add(-time.Duration(rapid.Int64Range(0, 5).Draw(t, "hours")) * time.Hour),
			}
			if rapid.Bool().Draw(t, "was preempted") {
				h.Preempted = now.Add(-time.Duration(rapid.Int64Range(0, 5).Draw(t, "ago")) * time.Hour)
			}
			held = append(held, h)
		}
		var least *big.Int
		for _, h := range held {
			price := exact(a, b, h, now)
			if got, why := a.Weigh(b, &h, now); (price != nil) != (why == market.BidOK) || (price != nil && price.Int64() != int64(got)) {
				t.Fatalf("%+v weighs %s, %q; want %s", h, got, why, price)
			}
			if price != nil && (least == nil || price.Cmp(least) < 0) {
				least = price
			}
		}
		d, why := a.Decide(b, held, now)
		if (least != nil) != (why == market.BidOK) || (least != nil && least.Int64() != int64(d.Price)) || d.Price > *b.Price {
			t.Fatalf("%+v, %q; want %s", d, why, least)
		}
		again, _ := a.Decide(b, rapid.Permutation(held).Draw(t, "order"), now)
		if again != d {
			t.Fatalf("in another order %+v, not %+v", again, d)
		}
	})
}

// TestAuctionsEnd: jobs outbid one another over a few machines, each displaced
// job bidding again, until nobody moves. Each machine changes hands no more often
// than its bid can grow by the margin, nobody is displaced within the minimum
// run or its respite, and in the end no bid that waits displaces one that runs.
func TestAuctionsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawAuction(t)
		type job struct {
			bid       market.Bid
			preempted time.Time
		}
		draw := func() *job {
			return &job{bid: market.Bid{Account: accounts.Draw(t, "account"), Price: priced(drawPrice(t, "bid")), NonInterruptible: rapid.IntRange(0, 9).Draw(t, "firm") == 0}}
		}
		type machine struct {
			holding market.Holding
			job     *job
		}
		var machines []*machine
		var queue []*job
		var top, bound = offpeak.Price(0), 0
		at := now
		for i := range rapid.IntRange(1, 4).Draw(t, "machines") {
			m := &machine{job: draw()}
			m.holding = market.Holding{Lease: offpeak.LeaseID(fmt.Sprint("lease_", i)), Owner: accounts.Draw(t, "owner"), Ask: drawPrice(t, "ask"), Started: at}
			machines, top = append(machines, m), max(top, *m.job.bid.Price)
		}
		for range rapid.IntRange(1, 8).Draw(t, "jobs") {
			queue = append(queue, draw())
			top = max(top, *queue[len(queue)-1].bid.Price)
		}
		for _, m := range machines {
			for bid := a.Exceeds(*m.job.bid.Price); bid <= top; bid = a.Exceeds(bid) {
				bound++
			}
		}
		turn := func(j *job) (market.Displacement, market.BidCode) {
			held := make([]market.Holding, len(machines))
			for i, m := range machines {
				h := m.holding
				h.Account, h.Bid, h.NonInterruptible, h.Preempted = m.job.bid.Account, m.job.bid.Price, m.job.bid.NonInterruptible, m.job.preempted
				held[i] = h
			}
			return a.Decide(j.bid, held, at)
		}
		moves, still := 0, 0
		for still < 5 { // hours in which nobody moved: longer than each wait
			still++
			for i, j := range queue {
				d, why := turn(j)
				if why != market.BidOK {
					continue
				}
				for _, m := range machines {
					if m.holding.Lease != d.Holding.Lease {
						continue
					}
					if at.Sub(m.holding.Started) < a.MinRun.Std() || (!m.job.preempted.IsZero() && at.Sub(m.job.preempted) < a.Respite.Std()) {
						t.Fatalf("%+v was displaced too soon", m.holding)
					}
					if d.Price <= *m.job.bid.Price || d.Price > *j.bid.Price {
						t.Fatalf("a bid of %s displaces one of %s for %s", j.bid.Price, m.job.bid.Price, d.Price)
					}
					queue[i], m.job, m.holding.Started = m.job, j, at
					queue[i].preempted = at
				}
				still = 0
				if moves++; moves > bound {
					t.Fatalf("%d displacements, and %d are all there can be", moves, bound)
				}
			}
			at = at.Add(time.Hour)
		}
		for _, j := range queue {
			if d, why := turn(j); why == market.BidOK || why == market.BidTooSoon || why == market.BidRespite {
				t.Fatalf("a bid of %s waits, but displaces %+v: %q", j.bid.Price, d, why)
			}
		}
	})
}

// TestCharged: what a bid affords is the highest ask whose charge is within it.
func TestCharged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawAuction(t)
		bid, firm := drawPrice(t, "bid"), rapid.Bool().Draw(t, "firm")
		ask := a.Affords(bid, firm)
		if a.Charged(ask, firm) > bid || (ask < bid && a.Charged(ask+1, firm) <= bid) {
			t.Fatalf("a bid of %s affords %s, charged %s; one more is charged %s", bid, ask, a.Charged(ask, firm), a.Charged(ask+1, firm))
		}
	})
	a := market.DefaultAuction()
	for _, c := range []struct{ ask, want offpeak.Price }{
		{0, 0}, {1, 2}, {4, 5}, {100_001, 125_002}, {offpeak.MaxPrice, offpeak.MaxPrice + 1}, {math.MaxInt64, offpeak.MaxPrice + 1}, {math.MinInt64, 0},
	} {
		if got := a.Charged(c.ask, true); got != c.want {
			t.Errorf("%s is charged %s, want %s", c.ask, got, c.want)
		}
	}
}

func TestAuctionRefuses(t *testing.T) {
	for name, change := range map[string]func(*market.Auction){
		"no margin":          func(a *market.Auction) { a.Margin = 99 },
		"endless margin":     func(a *market.Auction) { a.Margin = 100_001 },
		"no step":            func(a *market.Auction) { a.Step = 0 },
		"step over-limit":    func(a *market.Auction) { a.Step = offpeak.MaxPrice + 1 },
		"negative run":       func(a *market.Auction) { a.MinRun = -1 },
		"endless run":        func(a *market.Auction) { a.MinRun = offpeak.MaxDuration + 1 },
		"negative respite":   func(a *market.Auction) { a.Respite = -1 },
		"negative premium":   func(a *market.Auction) { a.Premium = -1 },
		"premium over-limit": func(a *market.Auction) { a.Premium = 100_001 },
	} {
		a := market.DefaultAuction()
		if err := a.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&a)
		var field *offpeak.FieldError
		if err := a.Validate(); !errors.As(err, &field) || !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNeededBid: what is said to be needed displaces somebody once time allows it,
// and nothing below it does.
func TestNeededBid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := market.DefaultAuction()
		a.Step = offpeak.Price(rapid.Int64Range(1, 50).Draw(t, "step"))
		accounts := rapid.SampledFrom([]offpeak.AccountID{"a", "b", "c"})
		var held []market.Holding
		for i := range rapid.IntRange(0, 5).Draw(t, "held") {
			h := market.Holding{
				Lease: offpeak.LeaseID(fmt.Sprint("lease_", i)), Account: accounts.Draw(t, "account"), Owner: accounts.Draw(t, "owner"),
				Ask: offpeak.Price(rapid.Int64Range(0, 300).Draw(t, "ask")), NonInterruptible: rapid.Bool().Draw(t, "steady"), Started: now.Add(-time.Hour),
			}
			if rapid.IntRange(0, 3).Draw(t, "bids") > 0 {
				bid := offpeak.Price(rapid.Int64Range(0, 300).Draw(t, "bid"))
				h.Bid = &bid
			}
			held = append(held, h)
		}
		b := market.Bid{Account: accounts.Draw(t, "bidder"), NonInterruptible: rapid.Bool().Draw(t, "premium")}
		least := offpeak.Price(-1)
		for p := offpeak.Price(0); p < 1000; p++ {
			at := b
			at.Price = &p
			if _, why := a.Decide(at, held, now); why == market.BidOK {
				least = p
				break
			}
		}
		if got, found := a.Needed(b, held); found != (least >= 0) || found && got != least {
			t.Fatalf("needed %s, %v; the least that displaces is %s", got, found, least)
		}
	})
}
