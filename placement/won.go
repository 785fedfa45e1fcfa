package placement

import "offpeak"

// Filter is one filter with what it leaves.
type Filter struct {
	Code offpeak.FitCode
	// Failed nodes passed all filters before this one; Left passed it too.
	Failed, Left int
}

// survivors counts what is left of so many nodes after each filter that failed any.
func survivors(nodes int, causes []Cause) (out []Filter) {
	failed := make(map[offpeak.FitCode]int, len(causes))
	for _, c := range causes {
		failed[c.Code] = c.Nodes
	}
	for _, code := range offpeak.FitCodes() {
		if n := failed[code]; n > 0 {
			nodes -= n
			out = append(out, Filter{code, n, nodes})
		}
	}
	return out
}

// Won says by what one node comes before another.
type Won struct {
	// Over is the second, "" where no other fits.
	Over offpeak.NodeID
	// By is the first thing in the order of the policy that differs: "fence" (an
	// earlier attempt ended badly on the second), "speed", "price", "score" or "tie"
	// (all is the same, and the job's id decides).
	By string
	// Part is the part that sets the scores apart most, where they decide.
	Part string
}

func (f *Fleet) won(a *ask, fits []found) *Won {
	switch len(fits) {
	case 0:
		return nil
	case 1:
		return &Won{}
	}
	first, second := &fits[0], &fits[1]
	w := &Won{Over: second.key.node, By: first.key.differs(&second.key)}
	if w.By == "score" {
		x, y := a.shares(f.sheet(a, first.node)), a.shares(f.sheet(a, second.node))
		most := 0.0
		for _, p := range a.weights.list() {
			if by := x[p.name] - y[p.name]; by > most {
				most, w.Part = by, p.name
			}
		}
	}
	return w
}

// differs names what decides between two keys.
func (a *key) differs(b *key) string {
	switch {
	case a.avoided != b.avoided:
		return "fence"
	case a.speed != b.speed:
		return "speed"
	case a.price != b.price:
		return "price"
	case a.score != b.score:
		return "score"
	}
	return "tie"
}

// shares are what the parts of a sheet add to the score.
func (a *ask) shares(sheet map[string]float64) map[string]float64 {
	out := make(map[string]float64, len(sheet))
	for _, p := range a.weights.list() {
		if part, counts := sheet[p.name]; counts && a.total > 0 {
			out[p.name] = part * p.weight / a.total
		}
	}
	return out
}
