package hub_test

import (
	"encoding/json"
	"testing"

	"offpeak"
	"offpeak/hub"
	"offpeak/internal/pgtest"
	"offpeak/wire"
)

// chosen is what the event of a job's newest claim says of the choice.
func (g *grid) chosen(id offpeak.JobID) (p struct {
	Policy  string
	Weights int64
	Score   float64
},
) {
	g.t.Helper()
	events, err := g.store.Events(g.t.Context(), "", 0, 1000)
	must(g.t, err)
	for _, e := range events {
		if e.Type == "lease.offered" && e.Job == id {
			var data struct {
				Placement json.RawMessage `json:"placement"`
			}
			must(g.t, json.Unmarshal(e.Data, &data))
			must(g.t, json.Unmarshal(data.Placement, &p))
		}
	}
	return p
}

// A placement records by which version of the weights, and by which policy, it was
// made; a change holds from the next one on.
func TestPlacementsRecordTheirWeights(t *testing.T) {
	g := newGrid(t, hub.Config{})
	a := g.join("a")
	id := g.submit(small())
	a.offered()
	if p := g.chosen(id); p.Policy != "cheapest" || p.Weights != 0 || p.Score <= 0 {
		t.Errorf("chosen by %+v", p)
	}
	w, err := g.hub.Tuning().Set(t.Context(), g.op(), wire.NewWeights{Policy: "balanced", Weights: map[string]float64{"vram": 50}})
	must(t, err)
	b := g.join("b")
	id = g.submit(small())
	g.eventually("the second job to be placed", func() bool { return g.job(id).State != offpeak.JobQueued })
	if p := g.chosen(id); p.Policy != "balanced" || p.Weights != w.Version || w.Version != 1 {
		t.Errorf("chosen by %+v", p)
	}
	_ = b
	// They outlive the hub.
	g.stop()
	g.begin()
	if now := g.hub.Tuning().Tuning(); now.Version != 1 || now.VRAM != 50 {
		t.Errorf("after a restart: %+v", now)
	}
}

// What one hub is told holds in all, without a restart.
func TestWeightsReachEveryHub(t *testing.T) {
	hubs := several(t, 2, pgtest.Start(t).Database(t), hub.Config{}, nil)
	w, err := hubs[0].hub.Tuning().Set(t.Context(), hubs[0].op(), wire.NewWeights{Weights: map[string]float64{"cpu": 0.5}})
	must(t, err)
	hubs[1].eventually("the other hub to weigh likewise", func() bool {
		now := hubs[1].hub.Tuning().Tuning()
		return now.Version == w.Version && now.CPU == 0.5
	})
}
