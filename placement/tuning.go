package placement

import "offpeak"

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
