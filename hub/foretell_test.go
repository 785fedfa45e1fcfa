package hub_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"offpeak"
	"offpeak/hub"
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
