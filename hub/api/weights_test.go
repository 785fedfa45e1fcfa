package api

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"offpeak"
	"offpeak/wire"
)

func TestWeights(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	_, m := g.account("acme")
	viewer := m[offpeak.RoleViewer]
	if w, err := viewer.Weights(g.ctx()); err != nil || w.Version != 0 || w.Weights["vram"] == 0 {
		t.Errorf("the defaults: %+v, %v", w, err)
	}
	for role, d := range m {
		if _, err := d.SetWeights(g.ctx(), g.op(), wire.NewWeights{Policy: "balanced"}); !errors.Is(err, offpeak.ErrForbidden) && role != offpeak.RoleAdmin {
			t.Errorf("set by %s: %v", role, err)
		}
	}
	set, err := g.admin.SetWeights(g.ctx(), g.op(), wire.NewWeights{Weights: map[string]float64{"memory": 0.25}})
	if err != nil || set.Version == 0 || set.By == "" || set.Weights["memory"] != 0.25 {
		t.Fatalf("SetWeights = %+v, %v", set, err)
	}
	if w, err := viewer.Weights(g.ctx()); err != nil || w.Version != set.Version || w.Weights["memory"] != 0.25 {
		t.Errorf("Weights = %+v, %v", w, err)
	}
	if list, err := viewer.WeightsHistory(g.ctx(), nil); err != nil || len(list.Items) == 0 || list.Items[0].Version != set.Version {
		t.Errorf("WeightsHistory = %+v, %v", list, err)
	}
	for body, want := range map[string]string{
		`{"weights":{"colour":1}}`: "is no weight: there are",
		`{"weights":{"cpu":-1}}`:   "is from 0 to 1000",
		`{"weights":{"cpu":"1"}}`:  "number",
		`{"weight":{}}`:            "weight",
		`{}`:                       "name at least one weight",
	} {
		status, p := g.raw("PUT", "/v1/weights", g.admin.Token, http.Header{wire.HeaderOperation: {string(g.op())}}, strings.NewReader(body))
		text := p.Detail
		for _, e := range p.Errors {
			text += " " + e.Location + ": " + e.Message
		}
		if status != 422 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %q", body, status, text, want)
		}
	}
}
