package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"offpeak"
	"offpeak/store"
)

// offered asks how jobs were placed: the newest attempt's offer counts.
func offered(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	j, other := g.submit(spec()), g.submit(spec())
	if _, err := g.Offered(ctx, j.ID); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("the offer of a job that waits: %v, want not found", err)
	}
	g.claim(other.ID, 1, n.ID)
	for attempt := range offpeak.Attempt(2) {
		c := g.ask(j.ID, attempt+1, n.ID)
		c.Placement, c.Price = json.RawMessage(`{"policy":"cheapest"}`), 0 // for nothing, so that it needs no money
		got, err := g.Claim(ctx, []store.Claim{c})
		if err != nil || got[0].Err != nil {
			t.Fatal(err, got)
		}
		e, err := g.Offered(ctx, j.ID)
		var d struct {
			Placement struct {
				Policy string `json:"policy"`
			} `json:"placement"`
		}
		if err != nil || e.Job != j.ID || e.Attempt != attempt+1 || e.Lease != c.Lease || e.Node != n.ID || e.At.IsZero() || json.Unmarshal(e.Data, &d) != nil || d.Placement.Policy != "cheapest" {
			t.Errorf("attempt %d was offered by %+v, %v", attempt+1, e, err)
		}
		g.ended(*got[0].Lease, offpeak.EndDeclined, 0)
	}
}
