package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"offpeak"
	"offpeak/wire"
)

// placed is what was recorded of the choice of a job's newest attempt, nil where
// there was none or the event is gone.
func (h *Hub) placed(ctx context.Context, j *offpeak.Job) (*wire.Placed, error) {
	if j.Attempt == 0 {
		return nil, nil
	}
	e, err := h.env.Store.Offered(ctx, j.ID)
	if errors.Is(err, offpeak.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("explain job %s: %w", j.ID, err)
	}
	var d struct {
		Price     offpeak.Price `json:"price"`
		Placement struct {
			Policy     string  `json:"policy"`
			From       string  `json:"policy_from"`
			Weights    int64   `json:"weights"`
			Score      float64 `json:"score"`
			Candidates int     `json:"candidates"`
		} `json:"placement"`
	}
	// What another Offpeak wrote may lack any of it.
	_ = json.Unmarshal(e.Data, &d)
	p := d.Placement
	return &wire.Placed{
		Attempt: e.Attempt, Node: e.Node, At: e.At, Price: d.Price,
		Policy: p.Policy, PolicyFrom: p.From, Weights: p.Weights, Score: p.Score, Candidates: p.Candidates,
	}, nil
}
