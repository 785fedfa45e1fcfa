package storetest

import (
	"context"
	"encoding/json"
	"testing"

	"offpeak"
	"offpeak/store"
)

// Events alone say what members of arrays ask for and what accounts are bound to, once
// each: a replay needs no more.
func toldForReplay(t *testing.T, g *grid) {
	ctx := context.Background()
	q := offpeak.Quota{Running: 3}
	bound, err := g.CreateAccount(ctx, g.op(), offpeak.Account{ID: "acct_bound", Name: "bound", Quota: q})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.SetQuota(ctx, g.op(), bound.ID, offpeak.Quota{GPUs: 2}); err != nil {
		t.Fatal(err)
	}
	id := g.submitGroup(store.NewGroup{Array: offpeak.Array{Indexes: indexes(t, "0-99"), AtOnce: 7}}).Group.ID
	if _, err := g.FillGroup(ctx, id, 1000); err != nil {
		t.Fatal(err)
	}
	waits := g.submitGroup(store.NewGroup{Array: offpeak.Array{Indexes: indexes(t, "0-9")}, After: []offpeak.After{{Job: g.submit(spec()).ID}}}).Group.ID
	events, err := g.Events(ctx, "", 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	type told struct {
		Quota *offpeak.Quota `json:"quota"`
		GPUs  int            `json:"gpus"`
		Was   *offpeak.Quota `json:"was"`
	}
	var quotas []told
	asks := map[offpeak.GroupID][]bool{}
	for _, e := range events {
		switch e.Type {
		case "account.created", "account.quota":
			if e.Account == bound.ID {
				quotas = append(quotas, told{})
				if err := json.Unmarshal(e.Data, &quotas[len(quotas)-1]); err != nil {
					t.Fatal(err)
				}
			}
		case "group.queued", "group.blocked":
			var d offpeak.GroupIndexes
			if err := json.Unmarshal(e.Data, &d); err != nil {
				t.Fatal(err)
			}
			asks[d.Group] = append(asks[d.Group], d.GroupAsks != nil)
			if d.GroupAsks != nil && (d.Driver != spec().Task.Driver || d.Requirements == nil || d.Requirements.CPU != spec().Requirements.CPU || d.Limit != spec().Limits.Time) {
				t.Errorf("%s tells %s", e.Type, e.Data)
			}
		}
	}
	if len(quotas) != 2 || quotas[0].Quota == nil || *quotas[0].Quota != q || quotas[1].GPUs != 2 || quotas[1].Was == nil || *quotas[1].Was != q {
		t.Errorf("quotas are told as %+v", quotas)
	}
	if !equal(asks[id], []bool{true, false}) || !equal(asks[waits], []bool{true}) {
		t.Errorf("what members ask for is told with %v of the batches, and %v of those of the one that waits", asks[id], asks[waits])
	}
}
