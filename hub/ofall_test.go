package hub_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"offpeak/hub"
)

// What the nearest node has is not said to be what all have.
func TestCausesOfManyNodes(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		g.joinWith("one", 2000)
		g.joinWith("two", 4000)
		synctest.Wait()
		wide := small()
		wide.Requirements.CPU = 5000
		e, err := g.hub.Foretell(t.Context(), g.account, wide)
		must(t, err)
		if !strings.Contains(e.Summary, "On 2 nodes cpu: wants 5 cores, they have at most 4 cores.") {
			t.Errorf("foretold %q", e.Summary)
		}
		wide.Requirements.CPU, wide.Requirements.Where = 1000, map[string]string{"rack": "7"}
		e, err = g.hub.Foretell(t.Context(), g.account, wide)
		must(t, err)
		if !strings.Contains(e.Summary, "On 2 nodes label: wants rack=7, the nearest has none.") {
			t.Errorf("foretold %q", e.Summary)
		}
	})
}
