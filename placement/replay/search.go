package replay

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"offpeak/placement"
)

// Objective says what is bad, in hours a job.
type Objective struct {
	// Wait is what an hour of waiting counts.
	Wait float64 `json:"wait"`
	// Stranded is how many hours a stranded job counts on top of its wait.
	Stranded float64 `json:"stranded"`
	// Lost is what an hour of interrupted work that is not kept counts.
	Lost float64 `json:"lost"`
	// Price is what a credit counts. It is taken of the price of an hour of work
	// times the hours of an average job, so that who runs less does not win.
	Price float64 `json:"price"`
}

// DefaultObjective counts an hour as an hour, a stranded job as a lost day, and a
// credit as an hour.
func DefaultObjective() Objective { return Objective{Wait: 1, Stranded: 24, Lost: 1, Price: 1} }

// Of is what a result comes to: the less the better.
func (o Objective) Of(r *Result) float64 {
	if r.Jobs == 0 {
		return 0
	}
	jobs := float64(r.Jobs)
	sum := o.Wait*r.WaitMean.Std().Hours() + o.Stranded*float64(r.StrandedJobs)/jobs + o.Lost*r.LostHours/jobs
	if r.WorkHours > 0 {
		const credit = 1_000_000
		sum += o.Price * float64(r.Paid) / credit / r.WorkHours * r.JobHours
	}
	return sum
}

// Search is a search for weights that make an objective smaller.
type Search struct {
	// From is where it begins, and what the policy is.
	From Set
	// Budget is how many sets are tried at most, Seed which.
	Budget    int
	Seed      uint64
	Objective Objective
	// Flat names weights that change nothing, and so are left as they are.
	Flat []string
	// Try replays the traffic that is learned from under each of the sets.
	Try func([]Set) ([]Result, error)
	// Found is called with the best so far when there is a better one.
	Found func(tried int, best Set, value float64)
}

// Range of a weight as a part of that of VRAM, in powers of two. What is below
// counts as zero.
const (
	lowest  = -8.0
	highest = -0.05
	step0   = 2.0
	stepMin = 0.24
)

// errSpent says that the budget is used up.
var errSpent = errors.New("budget spent")

// Run searches: from the set that is in force, from the defaults, and from random
// sets, each time one weight after the other up and down by steps that shrink as
// nothing gets better. It returns the best set, which may be the one it began with,
// and what it came to.
func (s *Search) Run() (best Set, value float64, tried int, err error) {
	h := &hunt{search: s, known: make(map[string]float64), best: s.From, value: math.Inf(1), rng: rand.New(rand.NewPCG(s.Seed, 0))}
	h.base = s.From.Named()
	for _, name := range slices.Sorted(maps.Keys(h.base)) {
		if !slices.Contains([]string{"vram", "baseline_fleet"}, name) && !slices.Contains(s.Flat, name) {
			h.names = append(h.names, name)
		}
	}
	starts := []point{h.point(h.base), h.point(placement.DefaultWeights().Named())}
	for err == nil {
		var at point
		if len(starts) > 0 {
			at, starts = starts[0], starts[1:]
		} else {
			at = h.random()
		}
		err = h.climb(at)
	}
	if errors.Is(err, errSpent) {
		err = nil
	}
	return h.best, h.value, len(h.known), err
}

// point is a set as powers of two of each weight over that of VRAM.
type point []float64

type hunt struct {
	search *Search
	rng    *rand.Rand
	base   map[string]float64
	names  []string
	known  map[string]float64
	best   Set
	value  float64
}

func (h *hunt) point(weights map[string]float64) point {
	p := make(point, len(h.names))
	for i, name := range h.names {
		p[i] = lowest
		if share := weights[name] / weights["vram"]; share > 0 {
			p[i] = min(max(math.Log2(share), lowest), highest)
		}
	}
	return p
}

func (h *hunt) random() point {
	p := make(point, len(h.names))
	for i := range p {
		p[i] = lowest + h.rng.Float64()*(highest-lowest)
	}
	return p
}

// set is the weights of a point, with that of VRAM as it is in the defaults, to
// three digits.
func (h *hunt) set(p point) (Set, error) {
	vram := placement.DefaultWeights().VRAM
	m := maps.Clone(h.base)
	m["vram"] = vram
	for _, name := range h.search.Flat {
		m[name] = digits(m[name] / h.base["vram"] * vram)
	}
	for i, name := range h.names {
		m[name] = 0
		if p[i] > lowest {
			m[name] = digits(vram * math.Exp2(p[i]))
		}
	}
	out := h.search.From
	out.Name = "proposed"
	var err error
	out.Tuning, err = out.With("", m)
	out.Version = 0
	return out, err
}

// digits rounds to three digits.
func digits(x float64) float64 {
	if x == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-2)
	return math.Round(x/unit) * unit
}

// climb goes from a point to where no step makes it better.
func (h *hunt) climb(at point) error {
	here, err := h.try(at)
	if err != nil {
		return err
	}
	for step := step0; step > stepMin; {
		moved := false
		for _, i := range h.rng.Perm(len(at)) {
			var ways []point
			for _, by := range []float64{step, -step} {
				p := slices.Clone(at)
				p[i] = min(max(p[i]+by, lowest), highest)
				if p[i] != at[i] {
					ways = append(ways, p)
				}
			}
			values, err := h.tryAll(ways)
			if err != nil {
				return err
			}
			for k, v := range values {
				if v < here-1e-9 {
					at, here, moved = ways[k], v, true
				}
			}
		}
		if !moved {
			step /= 2
		}
	}
	return nil
}

func (h *hunt) try(p point) (float64, error) {
	v, err := h.tryAll([]point{p})
	if err != nil {
		return 0, err
	}
	return v[0], nil
}

// tryAll replays under those of the points that are new.
func (h *hunt) tryAll(points []point) ([]float64, error) {
	keys := make([]string, len(points))
	var sets []Set
	var fresh []string
	for i, p := range points {
		set, err := h.set(p)
		if err != nil {
			return nil, err
		}
		if len(h.known) == 0 && i == 0 {
			set.Weights = h.search.From.Weights // exactly that, not what rounding makes of it
		}
		keys[i] = fmt.Sprint(p)
		if _, known := h.known[keys[i]]; !known && !slices.Contains(fresh, keys[i]) {
			sets, fresh = append(sets, set), append(fresh, keys[i])
		}
	}
	if len(h.known)+len(sets) > h.search.Budget {
		return nil, errSpent
	}
	if len(sets) > 0 {
		results, err := h.search.Try(sets)
		if err != nil {
			return nil, err
		}
		for i := range results {
			v := h.search.Objective.Of(&results[i])
			h.known[fresh[i]] = v
			if v < h.value-1e-9 {
				h.best, h.value = sets[i], v
				if h.search.Found != nil {
					h.search.Found(len(h.known), h.best, v)
				}
			}
		}
	}
	out := make([]float64, len(points))
	for i, k := range keys {
		out[i] = h.known[k]
	}
	return out, nil
}

// Flat names the weights that change nothing with this traffic under a policy: that
// of the price unless jobs are placed by balance, those of metrics that no node has.
func (t *Traffic) Flat(policy placement.Policy) (names []string) {
	balanced := policy == placement.Balanced
	var has placement.Metrics
	note := func(m *placement.Metrics) {
		if m != nil {
			has.Reliability, has.Return = max(has.Reliability, m.Reliability), max(has.Return, m.Return)
			has.GPUSpeed, has.Latency = max(has.GPUSpeed, m.GPUSpeed, m.CPUSpeed), max(has.Latency, m.Latency)
		}
	}
	for i := range t.Steps {
		s := &t.Steps[i]
		balanced = balanced || s.Submit != nil && s.Submit.Policy == placement.Balanced
		if s.Join != nil {
			note(s.Join.Metrics)
		}
		if s.Change != nil {
			note(s.Change.Metrics)
		}
	}
	if !balanced {
		names = append(names, "price")
	}
	for name, known := range map[string]bool{"reliability": has.Reliability > 0, "return": has.Return > 0, "speed": has.GPUSpeed > 0, "latency": has.Latency > 0} {
		if !known {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return append(names, "cached") // where inputs lie is not recorded
}

// LearnFrom is the part of the time that a search learns from; the rest shows what
// the proposal is worth.
const LearnFrom = 0.6

// Hold cuts traffic into what is learned from and what is held out.
func Hold(t *Traffic) (learn, held Traffic, err error) {
	learn, held = t.Split(LearnFrom)
	for _, part := range []*Traffic{&learn, &held} {
		if jobs, _, _ := part.Counts(); jobs == 0 {
			return learn, held, fmt.Errorf("from %s until %s no job was submitted: too little was recorded to learn from one part and test on the other",
				part.From.UTC().Format(time.RFC3339), part.Until.UTC().Format(time.RFC3339))
		}
	}
	return learn, held, nil
}
