package placement

import (
	"math"
	"strconv"
	"strings"

	"offpeak"
)

// Weights say how much each part of a score counts. They are data: another set
// over the same picture shows what it would have chosen.
type Weights struct {
	// Version tells sets of weights apart: every placement records it. Who changes
	// weights counts it up; 0 are the defaults.
	Version int64 `json:"version"`
	// VRAM weighs a tight fit of the devices: the heaviest part.
	VRAM float64 `json:"vram"`
	// CPU and Memory weigh tight fits of the rest.
	CPU    float64 `json:"cpu"`
	Memory float64 `json:"memory"`
	// SpareGPU weighs, for jobs without devices, that no idle device is taken
	// hostage by the node's CPU being used up.
	SpareGPU float64 `json:"spare_gpu"`
	// Price weighs the lowest price that fits over the node's, under the policy
	// balanced.
	Price float64 `json:"price"`
	// Reliability, Return, Speed, Latency and Cached weigh the secondary metrics.
	Reliability float64 `json:"reliability"`
	Return      float64 `json:"return"`
	Speed       float64 `json:"speed"`
	Latency     float64 `json:"latency"`
	Cached      float64 `json:"cached"`
	// Baseline is how many nodes must fit before secondary metrics count.
	Baseline int `json:"baseline_fleet"`
}

// maxWeight and maxBaseline bound weights, so that sums of them stay exact enough
// and counting stays cheap.
const (
	maxWeight   = 1000
	maxBaseline = 100_000
)

// DefaultWeights returns the weights of a hub that sets none.
func DefaultWeights() Weights {
	return Weights{
		VRAM: 8, CPU: 1, Memory: 1, SpareGPU: 4, Price: 4,
		Reliability: 2, Return: 2, Speed: 1, Latency: 0.5, Cached: 1, Baseline: 100,
	}
}

// Validate returns a *offpeak.FieldError for a weight that is negative, no number
// or too large, and where another part weighs as much as VRAM.
func (w Weights) Validate() error {
	var heavy []string
	for _, p := range w.list() {
		if p.name != "vram" && p.weight >= w.VRAM && p.weight <= maxWeight {
			heavy = append(heavy, p.name)
		}
	}
	// Where several are, it is that one that was set too low.
	if len(heavy) > 1 && w.VRAM >= 0 {
		return &offpeak.FieldError{Field: "weights.vram", Value: strconv.FormatFloat(w.VRAM, 'g', -1, 64), Rule: "is the heaviest, and not above " + strings.Join(heavy, ", ")}
	}
	for _, p := range w.list() {
		field := "weights." + p.name
		value := strconv.FormatFloat(p.weight, 'g', -1, 64)
		switch {
		case math.IsNaN(p.weight) || p.weight < 0 || p.weight > maxWeight:
			return &offpeak.FieldError{Field: field, Value: value, Rule: "is from 0 to 1000"}
		case p.name != "vram" && p.weight >= w.VRAM:
			return &offpeak.FieldError{Field: field, Value: value, Rule: "is below weights.vram, the heaviest"}
		}
	}
	if w.Baseline < 0 || w.Baseline > maxBaseline {
		return &offpeak.FieldError{Field: "weights.baseline_fleet", Value: strconv.Itoa(w.Baseline), Rule: "is from 0 to 100000"}
	}
	if w.Version < 0 {
		return &offpeak.FieldError{Field: "weights.version", Value: strconv.FormatInt(w.Version, 10), Rule: "is not negative"}
	}
	return nil
}

type named struct {
	name   string
	weight float64
}

func (w *Weights) list() []named {
	return []named{
		{"vram", w.VRAM}, {"cpu", w.CPU}, {"memory", w.Memory}, {"spare_gpu", w.SpareGPU}, {"price", w.Price},
		{"reliability", w.Reliability}, {"return", w.Return}, {"speed", w.Speed}, {"latency", w.Latency}, {"cached", w.Cached},
	}
}

// secondary is what the metrics weigh together.
func (w *Weights) secondary() float64 {
	return w.Reliability + w.Return + w.Speed + w.Latency + w.Cached
}
