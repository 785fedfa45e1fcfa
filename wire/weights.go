package wire

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"offpeak"
)

// Weights is one version of what placement weighs.
type Weights struct {
	// Version 0 are the defaults of the hub that answers: nobody has set any.
	Version int64              `json:"version" doc:"every placement records the version that chose; 0: the defaults, nobody has set any"`
	At      *time.Time         `json:"at,omitempty"`
	By      offpeak.MemberID   `json:"by,omitempty" doc:"the member who set it"`
	Policy  string             `json:"policy" doc:"of jobs that name none: cheapest, balanced or fastest"`
	Weights map[string]float64 `json:"weights" doc:"by name; vram is the heaviest"`
}

// NewWeights changes what placement weighs. What is left out stays.
type NewWeights struct {
	// Defaults begins with the defaults instead of what is in force.
	Defaults bool               `json:"defaults,omitempty" doc:"what is left out becomes the default again, instead of staying"`
	Policy   string             `json:"policy,omitempty" doc:"cheapest, balanced or fastest"`
	Weights  map[string]float64 `json:"weights,omitempty" doc:"by name, each from 0 and below that of vram"`
}

// Weights returns the weights in force.
func (d *Direct) Weights(ctx context.Context) (out Weights, err error) {
	err = d.Do(ctx, http.MethodGet, "/weights", "", nil, &out)
	return out, err
}

// SetWeights sets weights, which makes another version of them.
func (d *Direct) SetWeights(ctx context.Context, op offpeak.OpID, in NewWeights) (out Weights, err error) {
	err = d.Do(ctx, http.MethodPut, "/weights", op, in, &out)
	return out, err
}

// WeightsHistory lists the versions, the newest first.
func (d *Direct) WeightsHistory(ctx context.Context, q url.Values) (out List[Weights], err error) {
	err = d.Do(ctx, http.MethodGet, "/weights/history?"+q.Encode(), "", nil, &out)
	return out, err
}
