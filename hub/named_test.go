package hub_test

import (
	"errors"
	"strings"
	"testing"

	"offpeak"
	"offpeak/hub"
)

// Accounts that are named and do not exist are refused where a job would run in spite
// of them, and said where a node goes without.
func TestAccountsThatDoNotExist(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.joinWith("one", 4000)
		spec := small()
		spec.Requirements.NotAccounts = []offpeak.AccountID{"acct_nobody"}
		_, single := g.hub.Submit(t.Context(), g.op(), g.account, spec)
		_, array := g.hub.SubmitGroup(t.Context(), g.op(), g.account, spec, offpeak.Array{Indexes: upTo(3)})
		_, steps := g.hub.SubmitPipeline(t.Context(), g.op(), g.account, offpeak.Pipeline{Steps: []offpeak.Step{{Spec: named(spec, "a")}}})
		_, asked := g.hub.Foretell(t.Context(), g.account, spec)
		for _, err := range []error{single, array, steps, asked} {
			if !errors.Is(err, offpeak.ErrInvalid) || !strings.Contains(err.Error(), `requirements.not_accounts[0]: "acct_nobody"`) {
				t.Errorf("not refused: %v", err)
			}
		}
		spec.Requirements.NotAccounts = []offpeak.AccountID{g.poor("other")}
		if _, err := g.hub.Foretell(t.Context(), g.account, spec); err != nil {
			t.Error(err)
		}
		a.has(func(i *offpeak.Inventory) {
			i.Guests = &offpeak.Guests{Allow: []offpeak.AccountID{"acct_nobody", spec.Requirements.NotAccounts[0]}}
		})
		if w := g.node(a.id).Inventory.Warnings; len(w) != 1 || !strings.HasPrefix(w[0], "--allow-account names acct_nobody, and") {
			t.Errorf("warned of %q", w)
		}
	})
}

func named(s offpeak.Spec, name string) offpeak.Spec {
	s.Name = name
	return s
}
