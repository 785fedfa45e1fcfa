package hub_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/wire"
)

// What is foretold becomes of the job that is submitted then, and each nearest
// change that is named lets it start.
func TestForetold(t *testing.T) {
	bid := offpeak.Price(1)
	for name, c := range map[string]struct {
		ask    func(*offpeak.Requirements)
		causes []offpeak.FitCode
		change func(*offpeak.Requirements)
		says   string
	}{
		"fits": {func(*offpeak.Requirements) {}, nil, nil, ""},
		"cpu":  {func(r *offpeak.Requirements) { r.CPU = 3000 }, []offpeak.FitCode{offpeak.FitCPU}, func(r *offpeak.Requirements) { r.CPU = 2000 }, "--cpu 2 instead of 3"},
		"cpu and label": {func(r *offpeak.Requirements) {
			r.CPU, r.Where = 3000, map[string]string{"rack": "7"}
		}, []offpeak.FitCode{offpeak.FitLabel, offpeak.FitCPU}, func(r *offpeak.Requirements) { r.CPU, r.Where = 2000, nil }, "--cpu 2 instead of 3 and without --where rack=7"},
		"memory and price": {func(r *offpeak.Requirements) {
			r.Memory, r.MaxPrice = 9*offpeak.GiB, &bid
		}, []offpeak.FitCode{offpeak.FitMemory}, func(r *offpeak.Requirements) { r.Memory = 8 * offpeak.GiB }, "--memory 8GiB instead of 9GiB (1GiB less)"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
				a := g.joinWith("one", 2000)
				spec := small()
				c.ask(&spec.Requirements)
				e, err := g.hub.Foretell(t.Context(), g.account, spec)
				must(t, err)
				if e.Starts != (c.change == nil) || e.Starts != (e.Fits == 1) || e.Job != "" {
					t.Fatalf("foretold %+v", e)
				}
				counts, err := g.store.CountJobs(t.Context(), g.account)
				must(t, err)
				if len(counts) != 0 {
					t.Fatalf("something was stored: %v", counts)
				}
				if c.change != nil {
					id := g.submit(spec)
					synctest.Wait()
					x, err := g.hub.Explain(t.Context(), g.account, id)
					must(t, err)
					if len(x.Causes) != len(c.causes) || x.Summary != e.Summary || len(x.Nearest) == 0 || x.Nearest[0].Sentence != c.says || x.Nearest[0].Nodes != 1 {
						t.Fatalf("explained as %+v, foretold %+v", x, e)
					}
					for i, code := range c.causes {
						if x.Causes[i].Code != code || x.Causes[i].All != 1 || !strings.Contains(x.Summary, string(code)+": wants") {
							t.Fatalf("causes are %+v, said as %s", x.Causes, x.Summary)
						}
					}
					c.change(&spec.Requirements)
				}
				id := g.submit(spec)
				if d := a.offered(); d.Job != id {
					t.Fatalf("offered %s", d.Job)
				}
				x, err := g.hub.Explain(t.Context(), g.account, id)
				must(t, err)
				if p := x.Placed; p == nil || p.Node != a.id || p.Attempt != 1 || p.Policy != "cheapest" || p.Score <= 0 {
					t.Fatalf("placed as %+v", x.Placed)
				}
			})
		})
	}
}

// What would keep a job that fits is said, and what Submit refuses is refused.
func TestForetoldByTheAccount(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 4000)
		quota := func(q offpeak.Quota) {
			_, err := g.store.SetQuota(t.Context(), g.op(), g.account, q)
			must(t, err)
		}
		first := g.submit(small())
		a.offered()
		e, err := g.hub.Foretell(t.Context(), g.account, small(), offpeak.After{Job: first})
		must(t, err)
		if e.Starts || len(e.After) != 1 || !strings.HasSuffix(e.Summary, "It would wait for 1 job to end first.") {
			t.Fatalf("after a job: %+v", e)
		}
		quota(offpeak.Quota{Running: 1})
		e, err = g.hub.Foretell(t.Context(), g.account, small())
		must(t, err)
		last := e.Filters[len(e.Filters)-1]
		if e.Starts || e.Fits != 1 || len(e.Causes) != 1 || e.Causes[0].Code != offpeak.FitQuota || last.Code != offpeak.FitQuota || last.Left != 0 {
			t.Fatalf("without quota: %+v", e)
		}
		quota(offpeak.Quota{Queued: 1})
		if _, err := g.hub.Foretell(t.Context(), g.account, small()); !errors.Is(err, offpeak.ErrQuota) {
			t.Fatalf("with all jobs that it may have: %v", err)
		}
		bad := small()
		bad.Task.Driver = "magic"
		for _, err := range []error{
			func() error { _, err := g.hub.Foretell(t.Context(), g.account, bad); return err }(),
			func() error {
				_, err := g.hub.Foretell(t.Context(), g.account, small(), offpeak.After{Job: "job_none"})
				return err
			}(),
		} {
			if !errors.Is(err, offpeak.ErrInvalid) {
				t.Fatalf("bad input: %v", err)
			}
		}
	})
}

// Nearest changes hold for what its account and its budget allow too: what it would
// then wait for is a part of the change, and what lifts it is one.
func TestNearestChangesHoldForTheAccount(t *testing.T) {
	says := func(e *wire.Explanation) (out []string) {
		for _, n := range e.Nearest {
			out = append(out, n.Sentence)
		}
		return out
	}
	codes := func(e *wire.Explanation) (out []offpeak.FitCode) {
		for _, c := range e.Causes {
			out = append(out, c.Code)
		}
		return out
	}
	want := func(g *grid, account offpeak.AccountID, spec offpeak.Spec, causes []offpeak.FitCode, changes ...string) {
		g.t.Helper()
		e, err := g.hub.Foretell(g.t.Context(), account, spec)
		must(g.t, err)
		if e.Starts || !slices.Equal(codes(&e), causes) || !slices.Equal(says(&e), changes) {
			g.t.Errorf("foretold %q by %v, with %q; want %v, %q", e.Summary, codes(&e), says(&e), causes, changes)
		}
		op := g.op()
		op.Actor.Account = account
		j, err := g.hub.Submit(g.t.Context(), op, account, spec)
		must(g.t, err)
		synctest.Wait()
		x, err := g.hub.Explain(g.t.Context(), account, j.ID)
		must(g.t, err)
		if !slices.Equal(codes(&x), causes) || !slices.Equal(says(&x), changes) {
			g.t.Errorf("explained %q by %v, with %q; want %v, %q", x.Summary, codes(&x), says(&x), causes, changes)
		}
		for _, c := range x.Causes {
			if c.All == 0 {
				g.t.Errorf("%s is not counted in all", c.Code)
			}
		}
		op = g.op()
		op.Actor.Account = account
		_, err = g.hub.Cancel(g.t.Context(), op, account, j.ID)
		must(g.t, err)
	}
	t.Run("quota", func(t *testing.T) {
		bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
			a := g.joinWith("one", 4000)
			a.has(func(i *offpeak.Inventory) {
				i.Devices = []offpeak.Device{card(0, 8*offpeak.GiB), card(1, 8*offpeak.GiB), card(2, 8*offpeak.GiB)}
			})
			a.occupy(func(s *offpeak.Spec) { s.Requirements.GPUs = []offpeak.GPURequest{{}} })
			two := small()
			two.Requirements.GPUs = []offpeak.GPURequest{{}, {}}
			g.quota(func(q *offpeak.Quota) { q.GPUs = 2 })
			want(g, g.account, two, []offpeak.FitCode{offpeak.FitQuota}, "--gpus 1 instead of 2", "once another job of its account ends")
			three := small()
			three.Requirements.GPUs = []offpeak.GPURequest{{}, {}, {}}
			want(g, g.account, three, []offpeak.FitCode{offpeak.FitBusyGPU, offpeak.FitQuota}, "--gpus 1 instead of 3")
			g.quota(func(q *offpeak.Quota) { q.GPUs, q.Running = 0, 1 })
			wide := small()
			wide.Requirements.CPU = 5000
			want(g, g.account, wide, []offpeak.FitCode{offpeak.FitCPU, offpeak.FitQuota}, "--cpu 3 instead of 5 and once another job of its account ends")
		})
	})
	t.Run("money", func(t *testing.T) {
		bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
			a := g.joinWith("one", 4000)
			g.asks(a.id, 30*cent, nil)
			poor := g.poor("poor")
			spec := small()
			e, err := g.hub.Foretell(t.Context(), poor, spec)
			must(t, err)
			need := e.Causes[0].Example.Want
			bid := 10 * cent
			spec.Requirements.MaxPrice = &bid
			want(g, poor, spec, []offpeak.FitCode{offpeak.FitPrice, offpeak.FitBalance},
				"--max-price 0.30/h instead of 0.10/h (0.20/h more) and with "+need+" credits available instead of 0.00")
			g.deposits(poor, "100")
			little := offpeak.MicroCredits(1)
			spec.Requirements.MaxPrice, spec.Limits.Budget = nil, &little
			want(g, poor, spec, []offpeak.FitCode{offpeak.FitBudget}, "--budget "+need+" instead of 0.000001")
		})
	})
}

// An ask that comes into force is a change in time, at its price.
func TestNearestInTimeOfAnAsk(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 4000)
		from := time.Now().Add(47 * time.Second)
		g.asks(a.id, 0, func(p *wire.AskPlan) { p.From = &from })
		synctest.Wait()
		e, err := g.hub.Foretell(t.Context(), g.account, small())
		must(t, err)
		if e.Starts || len(e.Nearest) != 1 || e.Nearest[0].Nodes != 1 || e.Nearest[0].At == nil || !e.Nearest[0].At.Equal(from) || !strings.HasPrefix(e.Nearest[0].Sentence, "once its owner's ask is in force, in 47s (") {
			t.Errorf("foretold %q, %+v", e.Summary, e.Nearest)
		}
	})
}

// Who waits for a job that did not succeed ends at once; who waits for its end does not.
func TestForetoldAfterAFailure(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 4000)
		first := g.submit(small())
		a.end(a.works(), offpeak.EndExitNonzero)
		synctest.Wait()
		e, err := g.hub.Foretell(t.Context(), g.account, small(), offpeak.After{Job: first})
		must(t, err)
		if e.Starts || !strings.HasPrefix(e.Summary, "It would end at once with dependency_failed: "+string(first)) {
			t.Errorf("foretold %+v", e)
		}
		e, err = g.hub.Foretell(t.Context(), g.account, small(), offpeak.After{Job: first, Any: true})
		must(t, err)
		if !e.Starts {
			t.Errorf("after its end, however: %+v", e)
		}
	})
}
