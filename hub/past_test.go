package hub_test

import (
	"math"
	"testing"

	"offpeak"
	"offpeak/hub"
	"offpeak/internal/pgtest"
	"offpeak/wire"
)

// drops has a node lose jobs: it beats on without them.
func (a *agent) drops(jobs int) {
	a.g.t.Helper()
	for range jobs {
		id := a.g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		a.beat()
		a.g.eventually("the job to be lost", func() bool { return a.g.job(id).Reason == offpeak.EndNodeRestarted })
		_, err := a.g.hub.Cancel(a.g.t.Context(), a.g.op(), "", id)
		must(a.g.t, err)
		a.g.eventually("the job to be gone", func() bool { return a.g.job(id).State.Terminal() })
	}
}

// tries has a job placed, says where, and takes it back.
func (g *grid) tries(agents ...*agent) offpeak.NodeID {
	g.t.Helper()
	id := g.submit(small())
	g.eventually("the job to be placed", func() bool { return g.job(id).Lease != "" })
	node := g.job(id).Node
	for _, a := range agents {
		if a.id == node {
			d := a.offered()
			a.accept(d)
			a.run(d)
			_, err := g.hub.Cancel(g.t.Context(), g.op(), "", id)
			must(g.t, err)
			a.end(d, offpeak.EndCancelled)
		}
	}
	return node
}

func (g *grid) measured(id offpeak.NodeID) offpeak.Measured {
	g.t.Helper()
	n, err := g.hub.Node(g.t.Context(), "", id)
	must(g.t, err)
	if n.Measured == nil {
		return offpeak.Measured{}
	}
	return *n.Measured
}

// A node that lost jobs comes after an equal one once as many nodes fit as must for
// that to count, and like any other below. A hub that starts anew knows it still.
func TestNodesThatLoseJobsComeLast(t *testing.T) {
	g := newGrid(t, hub.Config{})
	bad := g.join("bad")
	if m := g.measured(bad.id); m != (offpeak.Measured{}) {
		t.Errorf("of a new node is known: %+v", m)
	}
	bad.drops(5)
	good := g.join("good")
	before := g.measured(bad.id)
	if before.Reliability == nil || math.Abs(*before.Reliability-3.6/9) > 1e-3 {
		t.Errorf("five of five jobs were lost: %+v", before)
	}
	if m := g.measured(good.id); m.Reliability != nil {
		t.Errorf("of a new node is known: %+v", m)
	}
	// Two fit, and a hundred must: the job's id decides, on a ring that two nodes
	// may share as unevenly as they like.
	e, err := g.hub.Foretell(t.Context(), g.account, small())
	must(t, err)
	if e.Asleep == 0 || e.Won.By != "tie" || e.Nodes[0].Score != e.Nodes[1].Score {
		t.Errorf("below the baseline foretold %+v, won by %+v", e.Nodes, e.Won)
	}
	_, err = g.hub.Tuning().Set(t.Context(), g.op(), wire.NewWeights{Weights: map[string]float64{"baseline_fleet": 2}})
	must(t, err)
	always := func(when string) {
		for range 8 {
			if g.tries(bad, good) != good.id {
				t.Errorf("%s: a job went to the node that loses them", when)
			}
		}
		e, err := g.hub.Foretell(t.Context(), g.account, small())
		must(t, err)
		if e.Asleep != 0 || e.Nodes[0].Node != good.id || e.Won.Part != "reliability" || e.Nodes[0].Shares["reliability"] <= e.Nodes[1].Shares["reliability"] {
			t.Errorf("%s: foretold %+v, won by %+v", when, e.Nodes, e.Won)
		}
	}
	always("at the baseline")
	g.stop()
	g.begin()
	if m := g.measured(bad.id); m.Reliability == nil || math.Abs(*m.Reliability-*before.Reliability) > 0.01 {
		t.Errorf("a hub that begins anew knows %+v, known was %+v", m, before)
	}
	bad.open("bad-2")
	bad.beat()
	good.open("good-2")
	good.beat()
	always("after a restart")
	// Jobs that it keeps mend it.
	must(t, g.hub.RemoveNode(t.Context(), g.op(), "", good.id))
	for range 3 {
		g.submit(small())
		d := bad.offered()
		bad.accept(d)
		bad.run(d)
		bad.end(d, offpeak.EndCompleted)
	}
	if m := g.measured(bad.id); m.Reliability == nil || *m.Reliability <= *before.Reliability+0.05 {
		t.Errorf("three jobs later: %+v, it was %+v", m, before)
	}
}

// A node whose owner comes back soon each time comes after one that stays.
func TestNodesThatAreWantedBackComeLast(t *testing.T) {
	g := newGrid(t, hub.Config{})
	_, err := g.hub.Tuning().Set(t.Context(), g.op(), wire.NewWeights{Weights: map[string]float64{"baseline_fleet": 2}})
	must(t, err)
	busy, calm := g.join("busy"), g.join("calm")
	for range 8 {
		for _, av := range []offpeak.Availability{offpeak.NodeInUse, offpeak.NodeAvailable} {
			in := busy.heartbeat()
			if in.Availability = av; av == offpeak.NodeInUse {
				in.Why = offpeak.EndOwnerReturned
			}
			_, err := g.hub.Heartbeat(t.Context(), busy.id, in)
			must(t, err)
		}
	}
	check := func() {
		m := g.measured(busy.id)
		if m.Return == nil || m.Return.Std() > 2*60*60*1e9 || m.Reliability != nil {
			t.Errorf("wanted back eight times at once: %+v", m)
		}
		if m := g.measured(calm.id); m.Return != nil {
			t.Errorf("never wanted back: %+v", m)
		}
		for range 6 {
			if g.tries(busy, calm) != calm.id {
				t.Error("a job went to the node that is wanted back soon")
			}
		}
	}
	check()
	g.stop()
	g.begin()
	busy.open("busy-2")
	busy.beat()
	calm.open("calm-2")
	calm.beat()
	check()
}

// What one hub measures, the others measure too.
func TestEveryHubMeasures(t *testing.T) {
	hubs := several(t, 2, pgtest.Start(t).Database(t), hub.Config{}, nil)
	a := hubs[0].join("a")
	hubs[1].eventually("the other hub to know the node", func() bool {
		_, known := hubs[1].hub.Weighed(a.id)
		return known
	})
	a.drops(3)
	want := hubs[0].measured(a.id)
	if want.Reliability == nil {
		t.Fatalf("measured %+v", want)
	}
	hubs[1].eventually("the other hub to measure the same", func() bool {
		m := hubs[1].measured(a.id)
		return m.Reliability != nil && math.Abs(*m.Reliability-*want.Reliability) < 1e-3
	})
}
