package hub_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/wire"
)

// blocker is one thing that a job waits for: how a grid with a node is made to
// lack it, what explain must name, and how it is lifted.
type blocker struct {
	name string
	// job is what the job asks for.
	job func(*offpeak.Spec)
	// block and lift are what happens to the grid before the job comes and after.
	block, lift func(g *grid, a *agent)
	// after is what happens to the job before the others block it.
	after func(g *grid, a *agent)
	// cause is the filter that explain counts, withheld what it lists beside, says
	// what the summary has; "" where it need not.
	cause    offpeak.FitCode
	withheld string
	says     string
}

// has changes what a node's agent says that it has.
func (a *agent) has(change func(*offpeak.Inventory)) {
	a.g.t.Helper()
	inv := a.g.node(a.id).Inventory
	change(&inv)
	must(a.g.t, a.g.hub.SetInventory(a.g.t.Context(), a.id, inv))
}

func (g *grid) quota(change func(*offpeak.Quota)) {
	g.t.Helper()
	acc, err := g.store.Account(g.t.Context(), g.account)
	must(g.t, err)
	q := acc.Quota
	change(&q)
	_, err = g.hub.Access().SetQuota(g.t.Context(), g.op(), g.account, q)
	must(g.t, err)
}

func (g *grid) intends(node offpeak.NodeID, i offpeak.Intent) {
	g.t.Helper()
	_, err := g.hub.SetIntent(g.t.Context(), g.op(), g.account, node, wire.IntentChange{Intent: i})
	must(g.t, err)
}

func card(i int, vram offpeak.Bytes) offpeak.Device {
	return offpeak.Device{ID: offpeak.DeviceID(fmt.Sprint("GPU-", i)), Vendor: "nvidia", Model: "RTX", VRAM: vram}
}

// others are the leases of jobs that a blocker started: they go on being held.
func (a *agent) occupy(change func(*offpeak.Spec)) wire.Desired {
	a.g.t.Helper()
	sp := small()
	change(&sp)
	a.g.submit(sp)
	return a.works()
}

func blockers() []blocker {
	price := func(p offpeak.Price) func(*offpeak.Spec) {
		return func(s *offpeak.Spec) { s.Requirements.MaxPrice = &p }
	}
	var held wire.Desired // of the blocker under way: they are used one after the other
	return []blocker{
		{name: "vram", cause: offpeak.FitVRAM,
			job: func(s *offpeak.Spec) { s.Requirements.GPUs = []offpeak.GPURequest{{VRAM: 20 * offpeak.GiB}} },
			lift: func(_ *grid, a *agent) {
				a.has(func(i *offpeak.Inventory) { i.Devices = append(i.Devices, card(9, 24*offpeak.GiB)) })
			}},
		{name: "disk", cause: offpeak.FitDisk,
			job:  func(s *offpeak.Spec) { s.Requirements.Disk = 100 * offpeak.GiB },
			lift: func(_ *grid, a *agent) { a.has(func(i *offpeak.Inventory) { i.Disk = 200 * offpeak.GiB }) }},
		{name: "cpu", cause: offpeak.FitCPU,
			job:  func(s *offpeak.Spec) { s.Requirements.CPU = 30_000 },
			lift: func(_ *grid, a *agent) { a.has(func(i *offpeak.Inventory) { i.CPU = 32_000 }) }},
		{name: "label", cause: offpeak.FitLabel,
			job: func(s *offpeak.Spec) { s.Requirements.Where = map[string]string{"room": "lab"} },
			lift: func(_ *grid, a *agent) {
				a.has(func(i *offpeak.Inventory) { i.Labels = map[string]string{"room": "lab"} })
			}},
		{name: "price ceiling", cause: offpeak.FitPrice, job: price(20 * cent),
			block: func(g *grid, a *agent) {
				g.deposits(g.account, "100")
				g.asks(a.id, 30*cent, nil)
			},
			lift: func(g *grid, a *agent) { g.asks(a.id, 10*cent, nil) }},
		{name: "window", cause: offpeak.FitNoAsk,
			block: func(g *grid, a *agent) {
				from := time.Now().Add(time.Hour)
				g.asks(a.id, 0, func(p *wire.AskPlan) { p.From = &from })
			},
			lift: func(g *grid, a *agent) { a.keep(time.Hour, a.carries()...) }},
		{name: "closed node", cause: offpeak.FitClosed,
			block: func(g *grid, a *agent) { g.intends(a.id, offpeak.NodeClosed) },
			lift:  func(g *grid, a *agent) { g.intends(a.id, offpeak.NodeOpen) }},
		{name: "owner at the machine", cause: offpeak.FitInUse,
			block: func(g *grid, a *agent) {
				b := a.heartbeat()
				b.Availability, b.Why = offpeak.NodeInUse, offpeak.EndOwnerReturned
				_, err := g.hub.Heartbeat(g.t.Context(), a.id, b)
				must(g.t, err)
			},
			lift: func(_ *grid, a *agent) { a.beat() }},
		{name: "silent node", cause: offpeak.FitOffline,
			block: func(*grid, *agent) { time.Sleep(30 * time.Second) },
			lift:  func(_ *grid, a *agent) { a.beat() }},
		{name: "capacity", cause: offpeak.FitBusyCPU,
			job:   func(s *offpeak.Spec) { s.Requirements.CPU = 4000 },
			block: func(_ *grid, a *agent) { held = a.occupy(func(s *offpeak.Spec) { s.Requirements.CPU = 2000 }) },
			lift:  func(_ *grid, a *agent) { a.end(held, offpeak.EndCompleted) }},
		{name: "quota of running jobs", withheld: "running_jobs", says: "quota",
			block: func(g *grid, a *agent) {
				held = a.occupy(func(*offpeak.Spec) {})
				g.quota(func(q *offpeak.Quota) { q.Running = 1 })
			},
			lift: func(_ *grid, a *agent) { a.end(held, offpeak.EndCompleted) }},
		{name: "quota of running jobs, raised", withheld: "running_jobs", says: "quota",
			block: func(g *grid, a *agent) {
				held = a.occupy(func(*offpeak.Spec) {})
				g.quota(func(q *offpeak.Quota) { q.Running = 1 })
			},
			lift: func(g *grid, _ *agent) { g.quota(func(q *offpeak.Quota) { q.Running = 2 }) }},
		{name: "quota of GPUs", withheld: "gpus", says: "holds 1 GPU of the 1",
			job: func(s *offpeak.Spec) { s.Requirements.GPUs = []offpeak.GPURequest{{VRAM: offpeak.GiB}} },
			block: func(g *grid, a *agent) {
				a.has(func(i *offpeak.Inventory) {
					i.Devices = []offpeak.Device{card(0, 8*offpeak.GiB), card(1, 8*offpeak.GiB)}
				})
				held = a.occupy(func(s *offpeak.Spec) { s.Requirements.GPUs = []offpeak.GPURequest{{VRAM: offpeak.GiB}} })
				g.quota(func(q *offpeak.Quota) { q.GPUs = 1 })
			},
			lift: func(_ *grid, a *agent) { a.end(held, offpeak.EndCompleted) }},
		{name: "balance", withheld: "balance", says: "too little money",
			// Its own node costs an account nothing, so somebody else's asks.
			block: func(g *grid, a *agent) {
				g.asks(a.id, 30*cent, nil)
				g.account = g.poor("poor")
			},
			lift: func(g *grid, _ *agent) { g.deposits(g.account, "100") }},
		{name: "failed attempt", says: "It pauses until", after: fails,
			lift: func(_ *grid, a *agent) { a.keep(time.Minute) }},
		{name: "fence", cause: offpeak.FitFence, says: "fence", after: func(g *grid, a *agent) {
			fails(g, a)
			a.keep(2*time.Second, a.carries()...) // its pause is over
		}, lift: func(_ *grid, a *agent) { a.keep(58*time.Second, a.carries()...) }},
	}
}

// poor makes an account without money, deposits gives it some.
func (g *grid) poor(name string) offpeak.AccountID {
	g.t.Helper()
	a, err := g.hub.Access().CreateAccount(g.t.Context(), g.op(), wire.NewAccount{Name: name})
	must(g.t, err)
	return a.ID
}

func (g *grid) deposits(account offpeak.AccountID, amount string) {
	g.t.Helper()
	_, err := g.hub.Money().Deposit(g.t.Context(), g.op(), wire.NewMovement{Account: account, Amount: amount, External: string(account)})
	must(g.t, err)
}

// fails has the job that was submitted last fail on its node.
func fails(_ *grid, a *agent) { a.end(a.works(), offpeak.EndExitNonzero) }

// blocked submits a job on a grid that lacks what blockers say.
func (g *grid) blocked(a *agent, list ...blocker) offpeak.JobID {
	g.t.Helper()
	sp := small()
	sp.Retry = &offpeak.RetryPolicy{User: 2}
	blocks := func() {
		for _, b := range list {
			if b.block != nil {
				b.block(g, a)
			}
		}
	}
	var after func(*grid, *agent)
	for _, b := range list {
		if b.job != nil {
			b.job(&sp)
		}
		if b.after != nil {
			after = b.after
		}
	}
	if after == nil {
		blocks()
	}
	op := g.op()
	op.Actor.Account = g.account
	j, err := g.hub.Submit(g.t.Context(), op, g.account, sp)
	must(g.t, err)
	if after != nil {
		after(g, a)
		blocks()
	}
	return j.ID
}

// explained fails where explain does not name what a blocker stands for.
func (g *grid) explained(job offpeak.JobID, b *blocker) {
	g.t.Helper()
	e, err := g.hub.Explain(g.t.Context(), g.account, job)
	must(g.t, err)
	named := b.cause == ""
	for _, c := range e.Causes {
		named = named || c.Code == b.cause && c.All >= 1
	}
	listed := b.withheld == ""
	for _, w := range e.Withheld {
		listed = listed || w.Code == b.withheld
	}
	if !named || !listed || !strings.Contains(e.Summary, b.says) {
		g.t.Errorf("%s: explained with %+v, %+v, %q", b.name, e.Causes, e.Withheld, e.Summary)
	}
}

// startsWithin waits for at most a scheduling interval, the monitor's tick, for a
// job to be offered.
func (g *grid) startsWithin(job offpeak.JobID, tick time.Duration) {
	g.t.Helper()
	began := time.Now()
	for {
		synctest.Wait()
		if g.job(job).State != offpeak.JobQueued {
			return
		}
		if time.Since(began) >= tick {
			e, _ := g.hub.Explain(g.t.Context(), g.account, job)
			g.t.Fatalf("%s after the cause was lifted it is not started: %s", tick, e.Summary)
		}
		time.Sleep(tick / 10)
	}
}

// Each cause of waiting is named before it is lifted, and the job starts within a
// scheduling interval after.
func TestEachCauseIsNamedAndItsEndWakesTheJob(t *testing.T) {
	for i := range blockers() {
		t.Run(strings.ReplaceAll(blockers()[i].name, " ", "-"), func(t *testing.T) {
			bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
				b := blockers()[i]
				a := g.joinWith("one", 4000)
				job := g.blocked(a, b)
				synctest.Wait()
				if s := g.job(job).State; s != offpeak.JobQueued {
					t.Fatalf("it is %s", s)
				}
				g.explained(job, &b)
				// It stays so for as long as nothing happens.
				if b.cause != offpeak.FitNoAsk && b.name != "failed attempt" && b.cause != offpeak.FitOffline {
					time.Sleep(6 * time.Second)
					synctest.Wait()
					if s := g.job(job).State; s != offpeak.JobQueued {
						t.Fatalf("before the cause is lifted it is %s", s)
					}
					a.beat(a.carries()...)
				}
				b.lift(g, a)
				g.startsWithin(job, time.Second)
			})
		})
	}
}

// carries are the leases that a node should hold.
func (a *agent) carries() (out []offpeak.LeaseID) {
	a.g.t.Helper()
	s, err := a.g.hub.Desired(a.g.t.Context(), a.id)
	must(a.g.t, err)
	for _, d := range s.Leases {
		if d.State != offpeak.LeaseOffered {
			out = append(out, d.Lease)
		}
	}
	return out
}

// Of two causes both are named, and the job starts when both are lifted, whichever
// goes first. Where one is the node's, another node has the other.
func TestTwoCausesAreBothNamed(t *testing.T) {
	pairs := [][2]string{
		{"vram", "quota of running jobs"}, {"label", "quota of GPUs"}, {"price ceiling", "quota of running jobs, raised"},
		{"closed node", "quota of running jobs"}, {"window", "quota of running jobs, raised"}, {"disk", "balance"},
		{"label", "balance"}, {"closed node", "fence"}, {"capacity", "fence"},
	}
	find := func(name string) blocker {
		for _, b := range blockers() {
			if b.name == name {
				return b
			}
		}
		panic(name)
	}
	for _, p := range pairs {
		for _, turned := range []bool{false, true} {
			name := strings.ReplaceAll(fmt.Sprintf("%s and %s, turned %t", p[0], p[1], turned), " ", "-")
			t.Run(name, func(t *testing.T) {
				bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
					a := g.joinWith("one", 4000)
					x, y := find(p[0]), find(p[1])
					// What an account holds is held before the node is closed.
					job := g.blocked(a, y, x)
					synctest.Wait()
					g.explained(job, &x)
					g.explained(job, &y)
					if turned {
						x, y = y, x
					}
					x.lift(g, a)
					time.Sleep(time.Second)
					synctest.Wait()
					if s := g.job(job).State; s != offpeak.JobQueued {
						t.Fatalf("with one of two causes lifted it is %s", s)
					}
					g.explained(job, &y)
					y.lift(g, a)
					g.startsWithin(job, time.Second)
				})
			})
		}
	}
}

// A member of an array that waits for its turn and for its account's quota goes when
// it has both; both are named.
func TestTurnAndQuota(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 8000)
		g.quota(func(q *offpeak.Quota) { q.Running = 1 })
		id := g.submitArray(small(), offpeak.Array{Indexes: upTo(5), AtOnce: 2}).ID
		waits := func(live int, index int, codes ...string) {
			t.Helper()
			synctest.Wait()
			if n := len(a.holds()); n != live {
				t.Fatalf("%d members hold leases, want %d", n, live)
			}
			e, err := g.hub.Explain(t.Context(), g.account, id.Member(index))
			must(t, err)
			var have []string
			for _, w := range e.Withheld {
				have = append(have, w.Code)
			}
			quota := slices.ContainsFunc(e.Causes, func(c wire.Cause) bool { return c.Code == offpeak.FitQuota })
			if !slices.Equal(have, codes) || quota != slices.Contains(codes, "running_jobs") {
				t.Errorf("explained with %v, %+v, want %v", have, e.Causes, codes)
			}
		}
		waits(1, 1, "running_jobs")
		g.quota(func(q *offpeak.Quota) { q.Running = 2 })
		waits(2, 2, "turn", "running_jobs")
		g.quota(func(q *offpeak.Quota) { q.Running = 8 })
		waits(2, 2, "turn")
		claims := g.metric("offpeak_claims_total")
		d := a.holds()[0]
		a.accept(d)
		a.end(d, offpeak.EndCompleted)
		waits(2, 3, "turn")
		if n := g.metric("offpeak_claims_total") - claims; n != 1 {
			t.Errorf("%v claims were made, want one", n)
		}
	})
}
