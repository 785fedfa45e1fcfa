package hub_test

import (
	"testing"
	"testing/synctest"

	"offpeak/hub"
)

// metric reads a counter or gauge.
func (g *grid) metric(name string) float64 {
	g.t.Helper()
	families, err := g.hub.Metrics().Gather()
	must(g.t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		sum := 0.0
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return sum
	}
	g.t.Fatalf("no metric %s", name)
	return 0
}

func TestMetricsShowTheStoresCommits(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		before := g.store.Stats()
		g.submit(small())
		after := g.store.Stats()
		if after.Commits <= before.Commits || after.Verbs <= before.Verbs {
			t.Fatalf("a submission moved the counts from %+v to %+v", before, after)
		}
		synctest.Wait()
		st := g.store.Stats()
		for name, want := range map[string]float64{
			"offpeak_store_commits_total":        float64(st.Commits),
			"offpeak_store_verbs_total":          float64(st.Verbs),
			"offpeak_store_commit_seconds_total": st.Committing.Seconds(),
			"offpeak_store_failures_total":       0,
		} {
			if got := g.metric(name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}
