package hub_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/ledger"
	"offpeak/store"
	"offpeak/wire"
)

// guest makes an account that owns no node, with money.
func (g *grid) guest(name string) offpeak.AccountID {
	g.t.Helper()
	a, err := g.hub.Access().CreateAccount(g.t.Context(), g.op(), wire.NewAccount{Name: name})
	must(g.t, err)
	d, err := ledger.Deposit(ledger.Movement{External: name, Account: a.ID, Amount: 1000 * offpeak.Credit}, time.Now())
	must(g.t, err)
	_, err = g.store.Post(g.t.Context(), g.op(), []ledger.Transaction{d})
	must(g.t, err)
	return a.ID
}

// bids submits a job of an account with the most that it pays.
func (g *grid) bids(account offpeak.AccountID, most offpeak.Price, change func(*offpeak.Spec)) offpeak.JobID {
	g.t.Helper()
	time.Sleep(time.Millisecond) // jobs of one instant have no order
	sp := small()
	sp.Requirements.MaxPrice = &most
	if change != nil {
		change(&sp)
	}
	op := g.op()
	op.Actor = offpeak.Actor{Account: account, Role: offpeak.RoleSubmitter}
	j, err := g.hub.Submit(g.t.Context(), op, account, sp)
	must(g.t, err)
	return j.ID
}

// asks sets what is asked for a node.
func (g *grid) asks(node offpeak.NodeID, price offpeak.Price, change func(*wire.AskPlan)) wire.NodeAsk {
	g.t.Helper()
	p := wire.AskPlan{Ask: &wire.Prices{GPU: &price}}
	if change != nil {
		change(&p)
	}
	a, err := g.hub.Trade().SetAsk(g.t.Context(), g.op(), g.account, node, p)
	must(g.t, err)
	return a
}

func (g *grid) price(job offpeak.JobID) offpeak.Price {
	g.t.Helper()
	list, err := g.store.Attempts(g.t.Context(), "", job)
	must(g.t, err)
	if len(list) == 0 {
		g.t.Fatalf("job %s was never placed", job)
	}
	return list[len(list)-1].Price
}

// works takes what a node is offered and runs it.
func (a *agent) works() wire.Desired {
	a.g.t.Helper()
	d := a.offered()
	a.accept(d)
	a.run(d)
	return d
}

// meters beats and says how long a lease has run.
func (a *agent) meters(lease offpeak.LeaseID, ran time.Duration) wire.Sync {
	a.g.t.Helper()
	in := a.heartbeat(lease)
	in.Held[0].Metered = offpeak.Millis(ran.Milliseconds())
	sent := time.Now()
	s, err := a.g.hub.Heartbeat(a.g.t.Context(), a.id, in)
	must(a.g.t, err)
	a.ack = sent
	return s
}

const cent = offpeak.Price(offpeak.Credit / 100)

func TestCheapestNodeThatFitsIsTaken(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		dear, cheap, middle := g.join("dear"), g.join("cheap"), g.join("middle")
		g.asks(dear.id, 30*cent, nil)
		g.asks(cheap.id, 10*cent, nil)
		g.asks(middle.id, 20*cent, nil)
		guest := g.guest("guest")
		q, err := g.hub.Trade().Quote(t.Context(), guest, wire.QuoteRequest{For: offpeak.Duration(2 * time.Hour)})
		must(t, err)
		if q.Fits != 3 || q.Offers[0].Node != cheap.id || q.Offers[0].Total != offpeak.MicroCredits(20*cent) || q.Offers[2].Price != 30*cent {
			t.Errorf("quoted %+v", q)
		}
		first, second, third := g.bids(guest, 20*cent, nil), g.bids(guest, 20*cent, nil), g.bids(guest, 20*cent, nil)
		if d := cheap.works(); d.Job != first || g.price(first) != 10*cent {
			t.Errorf("the cheapest node was offered %s at %s", d.Job, g.price(first))
		}
		if d := middle.works(); d.Job != second || g.price(second) != 20*cent {
			t.Errorf("the next was offered %s at %s", d.Job, g.price(second))
		}
		e, err := g.hub.Explain(t.Context(), guest, third)
		must(t, err)
		if len(e.Causes) != 2 || e.Causes[1].Code != offpeak.FitPrice || e.Causes[1].Nodes != 1 {
			t.Errorf("explained with %+v", e.Causes)
		}
		// A price that fell lets it go on at once.
		g.asks(dear.id, 15*cent, nil)
		time.Sleep(time.Millisecond) // trades of one instant have no order
		if d := dear.works(); d.Job != third || g.price(third) != 15*cent {
			t.Errorf("the dear node was offered %s at %s", d.Job, g.price(third))
		}
		m, err := g.hub.Trade().Market(t.Context())
		must(t, err)
		if len(m.Classes) != 1 || m.Classes[0].Devices != 3 || m.Classes[0].Free != 0 || m.Queued != 0 {
			t.Errorf("the market is %+v", m)
		}
		time.Sleep(5 * time.Second)
		list, _, err := g.hub.Trade().Candles(t.Context(), store.CandleFilter{Resolution: offpeak.Hours}, store.Page{Limit: 10})
		must(t, err)
		if len(list) != 1 || list[0].Trades != 3 || list[0].Open != 10*cent || list[0].High != 20*cent || list[0].Low != 10*cent || list[0].Close != 15*cent {
			t.Errorf("the history is %+v", list)
		}
	})
}

// The price history counts work that began, not what was offered.
func TestOfferThatNobodyTakesIsNoTrade(t *testing.T) {
	bubble(t, hub.Config{Offer: 2 * time.Second}, func(t *testing.T, g *grid) {
		a := g.join("one")
		g.asks(a.id, 10*cent, nil)
		job := g.bids(g.guest("guest"), 20*cent, nil)
		had := func() []offpeak.Candle {
			a.keep(10 * time.Second)
			list, _, err := g.hub.Trade().Candles(t.Context(), store.CandleFilter{Resolution: offpeak.Hours}, store.Page{Limit: 10})
			must(t, err)
			return list
		}
		a.offered()
		if list := had(); len(list) != 0 || g.job(job).Attempt < 2 {
			t.Errorf("after offers that lapsed, at attempt %d: %+v", g.job(job).Attempt, list)
		}
		d := a.works()
		a.run(d) // said again, it is the same beginning
		a.keep(time.Second, d.Lease)
		a.end(d, offpeak.EndCompleted)
		if list := had(); len(list) != 1 || list[0].Trades != 1 || list[0].Open != 10*cent {
			t.Errorf("after it began: %+v", list)
		}
	})
}

func TestAskFollowsItsSchedule(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		// The bubble's clock begins at midnight UTC, one in the morning in Berlin.
		a := g.join("one")
		asked := g.asks(a.id, 50*cent, func(p *wire.AskPlan) {
			p.Windows, p.Zone = []string{"daily 02:00-03:00 0.10/h"}, "Europe/Berlin"
		})
		if asked.Ask == nil || asked.Ask.CPU != 50*cent || asked.Next == nil {
			t.Fatalf("asks %+v", asked)
		}
		guest := g.guest("guest")
		q, err := g.hub.Trade().Quote(t.Context(), guest, wire.QuoteRequest{})
		must(t, err)
		if len(q.Instead) != 1 || q.Instead[0].Kind != offpeak.AnotherHour || q.Instead[0].Price != 10*cent || !q.Instead[0].At.Equal(*asked.Next) {
			t.Errorf("instead: %+v", q.Instead)
		}
		job := g.bids(guest, 20*cent, nil)
		a.keep(time.Until(*asked.Next) - time.Minute)
		if j := g.job(job); j.State != offpeak.JobQueued {
			t.Fatalf("before the window the job is %s", j.State)
		}
		a.keep(time.Minute)
		d := a.works()
		if d.Job != job || g.price(job) != 10*cent {
			t.Errorf("offered %s at %s", d.Job, g.price(job))
		}
		a.keep(time.Hour, d.Lease)
		if n := g.node(a.id); n.Ask == nil || n.Ask.CPU != 50*cent {
			t.Errorf("after the window it asks %+v", n.Ask)
		}
		a.end(d, offpeak.EndCompleted)
	})
}

// A plan whose answer was lost is asked for again, also after its end: it is done, and
// by now nothing is asked.
func TestAPlanIsSaidAgainWhenItIsOver(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		until, price := time.Now().Add(time.Minute), 50*cent
		plan := wire.AskPlan{Ask: &wire.Prices{GPU: &price}, Until: &until}
		op := g.op()
		first, err := g.hub.Trade().SetAsk(t.Context(), op, g.account, a.id, plan)
		must(t, err)
		a.keep(2 * time.Minute)
		again, err := g.hub.Trade().SetAsk(t.Context(), op, g.account, a.id, plan)
		must(t, err)
		if first.Ask == nil || again.Ask != nil || again.Of != first.Of || again.Plan == nil {
			t.Errorf("first it asks %+v, then %+v", first, again)
		}
		if got, err := g.hub.Trade().SetAsk(t.Context(), g.op(), g.account, a.id, plan); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("another operation: %+v, %v, want it refused", got, err)
		}
	})
}

func TestPlanThatIsNotInForceOffersToNobody(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		from := time.Now().Add(time.Hour)
		_, err := g.hub.Trade().SetAccountAsk(t.Context(), g.op(), g.account, wire.AskPlan{Ask: &wire.Prices{GPU: new(offpeak.Price)}, From: &from})
		must(t, err)
		a := g.join("one")
		job := g.submit(small())
		synctest.Wait()
		e, err := g.hub.Explain(t.Context(), g.account, job)
		must(t, err)
		if len(e.Causes) != 1 || e.Causes[0].Code != offpeak.FitNoAsk {
			t.Fatalf("explained with %+v", e.Causes)
		}
		a.keep(time.Hour + 2*time.Second)
		if d := a.works(); d.Job != job || g.price(job) != 0 {
			t.Errorf("offered %s", d.Job)
		}
	})
}

func TestHigherBidTakesAScarceNode(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		g.asks(a.id, 50*cent, nil)
		poor, rich := g.guest("poor"), g.guest("rich")
		displaced := g.bids(poor, 100*cent, nil)
		d := a.works()
		own := g.bids(g.account, 900*cent, nil) // owners displace nobody at home
		near := g.bids(rich, 109*cent, nil)     // not by the margin
		a.keep(11*time.Minute, d.Lease)
		if s := a.beat(d.Lease); s.Leases[0].Stop != "" {
			t.Fatalf("displaced for %s", s.Leases[0].Stop)
		}
		e, err := g.hub.Explain(t.Context(), rich, near)
		must(t, err)
		if !strings.Contains(e.Summary, "A bid of 1.10/h (--max-price) would take a node") {
			t.Errorf("explained with %q", e.Summary)
		}
		_, err = g.hub.Cancel(t.Context(), g.op(), g.account, own)
		must(t, err)
		// Who can't pay displaces nobody either.
		broke, err := g.hub.Access().CreateAccount(t.Context(), g.op(), wire.NewAccount{Name: "broke"})
		must(t, err)
		g.bids(broke.ID, 990*cent, nil)
		a.keep(10*time.Second, d.Lease)
		if s := a.beat(d.Lease); s.Leases[0].Stop != "" {
			t.Fatalf("displaced by who has nothing, for %s", s.Leases[0].Stop)
		}
		// Nor whose budget is too small to begin.
		g.bids(rich, 980*cent, func(s *offpeak.Spec) { s.Limits.Budget = new(offpeak.MicroCredits(1000)) })
		a.keep(10*time.Second, d.Lease)
		if s := a.beat(d.Lease); s.Leases[0].Stop != "" {
			t.Fatalf("displaced by who can't begin, for %s", s.Leases[0].Stop)
		}
		winner := g.bids(rich, 150*cent, nil)
		a.keep(10*time.Second, d.Lease)
		if s := a.beat(d.Lease); s.Leases[0].Stop != offpeak.EndOutbid {
			t.Fatalf("the job with the lower bid is asked to go for %q", s.Leases[0].Stop)
		}
		// Who is first in the queue and fits does not get in between.
		a.end(d, offpeak.EndOutbid)
		w := a.works()
		if w.Job != winner || g.price(winner) != 100*cent+1000 {
			t.Fatalf("%s has the node at %s", w.Job, g.price(winner))
		}
		if j := g.job(displaced); j.State != offpeak.JobQueued || j.OutbidAt == nil {
			t.Errorf("the displaced job is %s", j.State)
		}
		// Its first term over, the winner pays what is asked.
		a.keep(62*time.Minute, w.Lease)
		if p := g.price(winner); p != 50*cent {
			t.Errorf("in its second term it pays %s", p)
		}
		a.end(w, offpeak.EndCompleted)
		if next := a.works(); next.Job != displaced && next.Job != near {
			t.Errorf("then %s has it", next.Job)
		}
	})
}

func TestJobThatNamesNoPriceBidsWhatItPays(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		g.asks(a.id, 50*cent, nil)
		g.bids(g.guest("quiet"), 0, func(s *offpeak.Spec) { s.Requirements.MaxPrice = nil })
		d := a.works()
		a.keep(11*time.Minute, d.Lease)
		winner := g.bids(g.guest("rich"), 55*cent, nil)
		a.keep(10*time.Second, d.Lease)
		if s := a.beat(d.Lease); s.Leases[0].Stop != offpeak.EndOutbid {
			t.Fatalf("it is asked to go for %q", s.Leases[0].Stop)
		}
		a.end(d, offpeak.EndOutbid)
		if w := a.works(); w.Job != winner || g.price(winner) != 50*cent+1000 {
			t.Errorf("%s has the node at %s", w.Job, g.price(w.Job))
		}
	})
}

func TestPrizeSurvivesARestart(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		g.asks(a.id, 50*cent, nil)
		poor, rich := g.guest("poor"), g.guest("rich")
		g.bids(poor, 100*cent, nil)
		d := a.works()
		a.keep(11*time.Minute, d.Lease)
		g.bids(poor, 60*cent, nil)
		winner := g.bids(rich, 150*cent, nil)
		a.keep(10*time.Second, d.Lease)
		g.stop()
		g.start()
		a.beat(d.Lease)
		a.end(d, offpeak.EndOutbid)
		if w := a.works(); w.Job != winner || g.price(winner) != 100*cent+1000 {
			t.Errorf("%s has the node at %s", w.Job, g.price(w.Job))
		}
	})
}

func TestNonInterruptibleJobStaysAndPaysForIt(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		g.asks(a.id, 80*cent, nil)
		poor, rich := g.guest("poor"), g.guest("rich")
		steady := func(s *offpeak.Spec) { s.Requirements.NonInterruptible = true }
		short := g.bids(poor, 99*cent, steady) // 80 and a quarter are 100
		synctest.Wait()
		if j := g.job(short); j.State != offpeak.JobQueued {
			t.Fatalf("a job that can't pay the premium is %s", j.State)
		}
		job := g.bids(poor, 100*cent, steady)
		d := a.works()
		if d.Job != job || g.price(job) != 100*cent {
			t.Fatalf("%s runs at %s", d.Job, g.price(job))
		}
		g.bids(rich, 900*cent, nil)
		a.keep(15*time.Minute, d.Lease)
		if s := a.beat(d.Lease); s.Leases[0].Stop != "" {
			t.Errorf("displaced for %s", s.Leases[0].Stop)
		}
		a.end(d, offpeak.EndCompleted)
	})
}

func TestAutomaticAskFollowsTheMarket(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a, b := g.join("one"), g.join("two")
		g.asks(a.id, 40*cent, nil)
		floor := 20 * cent
		g.asks(b.id, 90*cent, func(p *wire.AskPlan) { p.Floor, p.Auto = &wire.Prices{GPU: &floor}, &wire.AutoAsk{Discount: 500} })
		guest := g.guest("guest")
		g.bids(guest, 50*cent, nil)
		d := a.works()
		for range 8 {
			a.keep(time.Minute, d.Lease)
			b.beat()
		}
		if n := g.node(b.id); n.Ask == nil || n.Ask.CPU != 38*cent {
			t.Errorf("it asks %+v", n.Ask)
		}
		a.end(d, offpeak.EndCompleted)
	})
}

func TestOwnersSuggestion(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		cost := 876 * offpeak.Credit
		s, err := g.hub.Trade().Suggest(t.Context(), g.account, a.id, wire.SuggestRequest{
			KWh: []offpeak.MicroCredits{300_000}, Watts: 200, Measured: true, Cost: &cost, Life: offpeak.Duration(8760 * time.Hour),
		})
		must(t, err)
		if s.Price != 160_000 || len(s.Lines) < 2 || s.Lines[0].Price != 60_000 {
			t.Errorf("suggested %+v", s)
		}
		// It has no GPU whose watts are known, and nothing was paid.
		s, err = g.hub.Trade().Suggest(t.Context(), g.account, a.id, wire.SuggestRequest{KWh: []offpeak.MicroCredits{300_000}, Life: offpeak.Duration(8760 * time.Hour)})
		must(t, err)
		if s.Price != 0 || len(s.LeftOut) != 3 || s.LeftOut[0].Needs != "watts" || s.LeftOut[1].Needs != "cost" || s.LeftOut[2].Rule != "market" {
			t.Errorf("suggested %+v", s)
		}
		var field *offpeak.FieldError
		if _, err = g.hub.Trade().Suggest(t.Context(), g.account, a.id, wire.SuggestRequest{Measured: true}); !errors.As(err, &field) || field.Field != "measured" {
			t.Errorf("measured, and no watts: %v", err)
		}
	})
}

// Case 58, in minutes: an account has money for five of them and two jobs of an
// hour. What runs is paid, what is not paid does not run, and money that comes in
// time keeps a job alive.
func TestUnfundedRun(t *testing.T) {
	const perSecond = 3600 * offpeak.Price(offpeak.Credit) // a credit a second
	fund := func(g *grid, account offpeak.AccountID, amount string) {
		_, err := g.hub.Money().Deposit(g.t.Context(), g.op(), wire.NewMovement{External: string(account) + amount, Account: account, Amount: amount})
		must(g.t, err)
	}
	begin := func(t *testing.T, g *grid) (account offpeak.AccountID, a *agent, first wire.Desired, second offpeak.JobID) {
		a = g.joinWith("one", 2000)
		g.asks(a.id, perSecond, nil)
		made, err := g.hub.Access().CreateAccount(t.Context(), g.op(), wire.NewAccount{Name: "poor"})
		must(t, err)
		fund(g, made.ID, "300")
		job := g.bids(made.ID, perSecond, nil)
		second = g.bids(made.ID, perSecond, nil)
		first = a.works()
		if first.Job != job {
			t.Fatalf("%s came first", first.Job)
		}
		synctest.Wait()
		if j := g.job(second); j.State != offpeak.JobQueued {
			t.Fatalf("the second job is %s: both would run on one balance", j.State)
		}
		return made.ID, a, first, second
	}
	t.Run("dry", func(t *testing.T) {
		bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
			account, a, d, second := begin(t, g)
			ran := time.Now()
			var stop offpeak.EndReason
			for stop == "" && time.Since(ran) < 10*time.Minute {
				time.Sleep(5 * time.Second)
				stop = a.meters(d.Lease, time.Since(ran)).Leases[0].Stop
			}
			if lasted := time.Since(ran); stop != offpeak.EndBudgetSpent || lasted > 5*time.Minute || lasted < 3*time.Minute {
				t.Fatalf("after %s it is asked to go for %q", lasted, stop)
			}
			a.end(d, stop)
			paid := offpeak.MicroCredits(time.Since(ran) / time.Microsecond)
			b, err := g.store.Balances(t.Context(), account)
			must(t, err)
			owner, err := g.store.Balances(t.Context(), g.account)
			must(t, err)
			if b.Held != 0 || b.Available < 0 || b.Available+owner.Available != 300*offpeak.Credit || owner.Available > paid {
				t.Errorf("of 300 the account has %+v, the owner %+v after %s", b, owner, time.Since(ran))
			}
			synctest.Wait()
			if j := g.job(second); j.State != offpeak.JobQueued {
				t.Errorf("with %s left the second job is %s", b.Available, j.State)
			}
			fund(g, account, "600")
			if next := a.works(); next.Job != second {
				t.Errorf("the money starts %s", next.Job)
			}
		})
	})
	t.Run("topped up", func(t *testing.T) {
		bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
			account, a, d, _ := begin(t, g)
			for ran := time.Now(); time.Since(ran) < 13*time.Minute; {
				time.Sleep(5 * time.Second)
				if s := a.meters(d.Lease, time.Since(ran)); s.Leases[0].Stop != "" {
					t.Fatalf("after %s it is asked to go for %s", time.Since(ran), s.Leases[0].Stop)
				}
				if time.Since(ran) == 200*time.Second {
					fund(g, account, "2000")
				}
			}
			a.end(d, offpeak.EndCompleted)
		})
	})
}

// A job that takes none of a node's devices is traded as one without.
func TestPricedJobBesideAnIdleGPU(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 4000)
		must(t, g.hub.SetInventory(t.Context(), a.id, offpeak.Inventory{
			Hostname: "one", OS: "linux", Arch: "amd64", CPU: 4000, Memory: 8 * offpeak.GiB, Disk: 64 * offpeak.GiB, Drivers: []string{"process"}, Shared: []string{"process"},
			Devices: []offpeak.Device{{ID: "GPU-0", Vendor: "nvidia", Model: "RTX 4090", VRAM: 24 * offpeak.GiB}},
		}))
		price := 10 * cent
		g.asks(a.id, 50*cent, func(p *wire.AskPlan) { p.Ask.CPU = &price })
		guest := g.guest("guest")
		job := g.bids(guest, 20*cent, nil)
		d := a.works()
		if d.Job != job || g.price(job) != 10*cent {
			t.Fatalf("the node was offered %s at %s", d.Job, g.price(job))
		}
		a.keep(time.Second, d.Lease)
		a.end(d, offpeak.EndCompleted)
		time.Sleep(5 * time.Second)
		list, _, err := g.hub.Trade().Candles(t.Context(), store.CandleFilter{Resolution: offpeak.Hours, Plain: true}, store.Page{Limit: 10})
		must(t, err)
		if len(list) != 1 || list[0].Trades != 1 || list[0].Close != 10*cent || list[0].Kind != (offpeak.Kind{}) {
			t.Errorf("the history is %+v", list)
		}
	})
}

// Case 42: a node's owner switches its GPU off. No job is given to it any more, and
// one that was offered it and has not begun goes back at once, at nobody's cost.
func TestSwitchedOffDevice(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 4000)
		with := offpeak.Inventory{
			Hostname: "one", OS: "linux", Arch: "amd64", CPU: 4000, Memory: 8 * offpeak.GiB, Disk: 64 * offpeak.GiB, Drivers: []string{"process"}, Shared: []string{"process"},
			Devices: []offpeak.Device{{ID: "GPU-0", Vendor: "nvidia", Model: "RTX 4090", VRAM: 24 * offpeak.GiB}},
		}
		without := with
		without.Devices = nil
		must(t, g.hub.SetInventory(t.Context(), a.id, with))
		g.asks(a.id, 50*cent, nil)
		gpu := func(s *offpeak.Spec) { s.Requirements.GPUs = []offpeak.GPURequest{{VRAM: 20 * offpeak.GiB}} }
		guest := g.guest("guest")
		job := g.bids(guest, 60*cent, gpu)
		if d := a.offered(); d.Job != job {
			t.Fatalf("offered %s", d.Job)
		}
		must(t, g.hub.SetInventory(t.Context(), a.id, without))
		if s := a.beat(); len(s.Leases) != 0 {
			t.Errorf("a heartbeat later the node should hold %+v", s.Leases)
		}
		a.keep(30 * time.Second)
		j := g.job(job)
		if j.State != offpeak.JobQueued || j.Attempt != 1 || j.Counts != (offpeak.RetryCounts{}) {
			t.Errorf("the job is %s after attempt %d, with %+v", j.State, j.Attempt, j.Counts)
		}
		b, err := g.store.Balances(t.Context(), guest)
		must(t, err)
		if b.Held != 0 || b.Available != 1000*offpeak.Credit {
			t.Errorf("it cost: %+v", b)
		}
		must(t, g.hub.SetInventory(t.Context(), a.id, with))
		if d := a.works(); d.Job != job || d.Attempt != 2 {
			t.Errorf("switched on again it was offered %s", d.Job)
		}
	})
}
