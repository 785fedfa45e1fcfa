package placement

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"offpeak"
)

// Tuning is what an admin may change of placement while the grid runs: the
// weights, and the policy of jobs that name none.
type Tuning struct {
	Policy Policy `json:"policy"`
	Weights
}

// DefaultTuning is that of a grid whose admin changed nothing.
func DefaultTuning() Tuning { return Tuning{Policy: Cheapest, Weights: DefaultWeights()} }

// Validate returns a *offpeak.FieldError for weights that make no sense, and for a
// policy that is not there.
func (t Tuning) Validate() error {
	if !t.Policy.Valid() {
		return &offpeak.FieldError{Field: "policy", Value: string(t.Policy), Rule: "is cheapest, balanced or fastest"}
	}
	return t.Weights.Validate()
}

// With returns the tuning with what is named changed, and with the policy if that is
// not "". It returns a *offpeak.FieldError for each name that is no weight, and what
// Validate returns of the whole.
func (t Tuning) With(policy Policy, weights map[string]float64) (Tuning, error) {
	m := t.Named()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		value := weights[name]
		text := strconv.FormatFloat(value, 'g', -1, 64)
		switch _, known := m[name]; {
		case !known:
			errs = append(errs, &offpeak.FieldError{Field: "weights." + name, Rule: "is no weight: there are " + strings.Join(WeightNames(), ", ")})
		case math.IsNaN(value) || math.IsInf(value, 0):
			errs = append(errs, &offpeak.FieldError{Field: "weights." + name, Value: text, Rule: "is a number"})
		case name == baselineName && value != math.Trunc(value):
			errs = append(errs, &offpeak.FieldError{Field: "weights." + name, Value: text, Rule: "is a whole number of nodes"})
		}
		m[name] = value
	}
	if err := errors.Join(errs...); err != nil {
		return t, err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(text, &t.Weights); err != nil {
		return t, &offpeak.FieldError{Field: "weights", Rule: "are numbers that fit: " + err.Error()}
	}
	if policy != "" {
		t.Policy = policy
	}
	return t, t.Validate()
}

// baselineName is the one weight that counts nodes.
const baselineName = "baseline_fleet"

// Named returns the weights by their names in JSON, without the version.
func (w Weights) Named() map[string]float64 {
	text, err := json.Marshal(w)
	if err != nil {
		panic("placement: weights have no JSON: " + err.Error()) // they are numbers, and finite
	}
	var m map[string]float64
	if err := json.Unmarshal(text, &m); err != nil {
		panic("placement: weights are no numbers: " + err.Error())
	}
	delete(m, "version")
	return m
}

// WeightNames lists the names of the weights, that of VRAM first.
func WeightNames() []string {
	const vram = "vram"
	names := slices.Sorted(maps.Keys(DefaultWeights().Named()))
	names = slices.DeleteFunc(names, func(n string) bool { return n == vram })
	return append([]string{vram}, names...)
}
