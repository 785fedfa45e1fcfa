package hub_test

import (
	"strings"
	"testing"

	"offpeak"
	"offpeak/hub"
	"offpeak/placement"
	"offpeak/wire"
)

// The same fleet and the same job, by three orders: three nodes. What is explained,
// foretold and recorded names the order and whose it is.
func TestJobsNameTheirPolicy(t *testing.T) {
	g := newGrid(t, hub.Config{})
	account := g.guest("ada")
	nodes := map[string]*agent{"cheap": g.joinWith("cheap", 64_000), "tight": g.joinWith("tight", 1000), "fast": g.joinWith("fast", 32_000)}
	for name, price := range map[string]offpeak.Price{"cheap": 100 * cent, "tight": 105 * cent, "fast": 400 * cent} {
		g.asks(nodes[name].id, price, nil)
	}
	g.hub.SetMetrics(nodes["fast"].id, placement.Metrics{CPUSpeed: 3})
	ask := func(p offpeak.Policy) offpeak.Spec {
		sp := small()
		sp.Policy = p
		return sp
	}
	// Each gets its node though the others are free, and gives it back.
	for _, c := range []struct {
		named        offpeak.Policy
		grid         string
		node, by, of string
	}{
		{"", "", "cheap", "cheapest", "grid"},
		{offpeak.PolicyCheapest, "", "cheap", "cheapest", "job"},
		{offpeak.PolicyBalanced, "", "tight", "balanced", "job"},
		{offpeak.PolicyFastest, "", "fast", "fastest", "job"},
		// The grid's holds for jobs that name none.
		{"", "balanced", "tight", "balanced", "grid"},
		{offpeak.PolicyCheapest, "balanced", "cheap", "cheapest", "job"},
	} {
		if c.grid != "" {
			_, err := g.hub.Tuning().Set(t.Context(), g.op(), wire.NewWeights{Policy: c.grid})
			must(t, err)
		}
		a := nodes[c.node]
		would, err := g.hub.Foretell(t.Context(), account, ask(c.named))
		if err != nil || would.Policy != c.by || would.PolicyFrom != c.of || would.Nodes[0].Node != a.id {
			t.Errorf("%q is foretold %+v, %v", c.named, would, err)
		}
		op := g.op()
		op.Actor = offpeak.Actor{Account: account, Role: offpeak.RoleSubmitter}
		j, err := g.hub.Submit(t.Context(), op, account, ask(c.named))
		must(t, err)
		d := a.offered()
		e, err := g.hub.Explain(t.Context(), account, j.ID)
		must(t, err)
		if p := e.Placed; p == nil || p.Node != a.id || p.Policy != c.by || p.PolicyFrom != c.of {
			t.Errorf("%q was placed by %+v, want on %s by %s of the %s", c.named, e.Placed, c.node, c.by, c.of)
		}
		a.accept(d)
		a.run(d)
		a.end(d, offpeak.EndCompleted)
	}
	g.sound()
}

// Jobs that ask for the same by different orders share no look at the fleet; a job
// that waits is explained by its own order, also by a hub that starts anew, and a
// member of an array like any other.
func TestPoliciesOfThoseThatWait(t *testing.T) {
	g := newGrid(t, hub.Config{})
	one := small()
	one.Policy = offpeak.PolicyFastest
	two := small()
	two.Policy = offpeak.PolicyBalanced
	first, second, third := g.submit(one), g.submit(two), g.submit(small())
	made, err := g.hub.SubmitGroup(t.Context(), g.op(), g.account, one, offpeak.Array{Indexes: offpeak.Indexes{{First: 0, Last: 1}}})
	must(t, err)
	g.stop()
	g.begin()
	for id, want := range map[offpeak.JobID]string{first: "fastest job", second: "balanced job", third: "cheapest grid", made.ID.Member(1): "fastest job"} {
		e, err := g.hub.Explain(t.Context(), g.account, id)
		must(t, err)
		if got := e.Policy + " " + e.PolicyFrom; got != want {
			t.Errorf("%s waits by %q, want %q", id, got, want)
		}
	}
	a := g.joinWith("a", 8000)
	g.eventually("all to be placed", func() bool {
		s, err := g.hub.Desired(t.Context(), a.id)
		must(t, err)
		return len(s.Leases) == 5
	})
	for id, want := range map[offpeak.JobID]string{first: "fastest", second: "balanced", third: "cheapest", made.ID.Member(0): "fastest"} {
		if p := g.chosen(id); p.Policy != want {
			t.Errorf("%s was placed by %+v, want %s", id, p, want)
		}
	}
}

// Steps of a pipeline have policies of their own, also those that are queued when
// others have ended, and what repeats a job is placed as that was.
func TestPoliciesOfSteps(t *testing.T) {
	g := newGrid(t, hub.Config{})
	named := func(name string, p offpeak.Policy, after ...string) offpeak.Step {
		s := offpeak.Step{Spec: small(), After: after}
		s.Name, s.Policy = name, p
		return s
	}
	bad := offpeak.Pipeline{Name: "p", Steps: []offpeak.Step{named("one", "dearest")}}
	if _, err := g.hub.SubmitPipeline(t.Context(), g.op(), g.account, bad); err == nil || !strings.Contains(err.Error(), "policy") {
		t.Errorf("submitted: %v", err)
	}
	array := named("array", offpeak.PolicyCheapest, "one")
	array.Array = &offpeak.Array{Indexes: offpeak.Indexes{{First: 0, Last: 0}}}
	made, err := g.hub.SubmitPipeline(t.Context(), g.op(), g.account, offpeak.Pipeline{Name: "p", Steps: []offpeak.Step{
		named("one", offpeak.PolicyFastest), named("two", offpeak.PolicyBalanced, "one"), array,
	}})
	must(t, err)
	a := g.join("a")
	for range 3 {
		d := a.offered()
		a.accept(d)
		a.run(d)
		a.end(d, offpeak.EndCompleted)
	}
	for i, want := range []string{"fastest", "balanced", "cheapest"} {
		id := made.Jobs[i].ID
		if i == 2 {
			id = offpeak.GroupID(id).Member(0)
		}
		if p := g.chosen(id); p.Policy != want {
			t.Errorf("step %d was placed by %+v, want %s", i, p, want)
		}
	}
	again, err := g.hub.Retry(t.Context(), g.op(), g.account, made.Jobs[0].ID)
	must(t, err)
	a.offered()
	if p := g.chosen(again.ID); p.Policy != "fastest" {
		t.Errorf("the repeated job was placed by %+v", p)
	}
}

func TestPolicyThatIsNone(t *testing.T) {
	g := newGrid(t, hub.Config{})
	sp := small()
	sp.Policy = "dearest"
	if _, err := g.hub.Submit(t.Context(), g.op(), g.account, sp); err == nil || !strings.Contains(err.Error(), `policy: "dearest": is cheapest, balanced or fastest`) {
		t.Errorf("submitted: %v", err)
	}
}
