package hub_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/store"
	"offpeak/wire"
)

// priced claims every lease at a credit a second.
type priced struct{ store.Store }

func (p priced) Claim(ctx context.Context, claims []store.Claim) ([]store.Claimed, error) {
	for i := range claims {
		claims[i].Price = offpeak.Price(3600 * offpeak.Credit)
	}
	return p.Store.Claim(ctx, claims)
}

// A job whose account can't pay waits and says so, and a deposit lets it go on at
// once.
func TestMoneyIsWaitedFor(t *testing.T) {
	t.Parallel()
	g := newGridWith(t, hub.Config{}, func(s store.Store) store.Store { return priced{s} }, nil)
	lab, err := g.hub.Access().CreateAccount(t.Context(), g.op(), wire.NewAccount{Name: "lab"})
	must(t, err)
	g.join("tower")
	op := g.op()
	op.Actor.Account = lab.ID
	spec := small()
	spec.Task.Driver = "wasm"
	j, err := g.hub.Submit(t.Context(), op, lab.ID, spec)
	must(t, err)
	said := func() string {
		e, err := g.hub.Explain(t.Context(), "", j.ID)
		must(t, err)
		return e.Summary
	}
	g.eventually("it says that money lacks", func() bool { return strings.Contains(said(), "too little money") })
	if s := said(); !strings.Contains(s, "0.00 are available and 0.00 held") || !strings.Contains(s, "interval needs") || !strings.Contains(s, "`offpeak balance`") {
		t.Errorf("it says: %s", s)
	}
	_, err = g.hub.Money().Deposit(t.Context(), g.op(), wire.NewMovement{External: "bank-1", Account: lab.ID, Amount: "1000"})
	must(t, err)
	paid := time.Now()
	g.eventually("it is leased", func() bool { return g.job(j.ID).State == offpeak.JobLeased })
	if waited := time.Since(paid); waited > 3*time.Second {
		t.Errorf("it waited for %v after the deposit", waited)
	}
	b, err := g.hub.Money().Balance(t.Context(), lab.ID)
	must(t, err)
	if b.Held == 0 || b.Available+b.Held != 1000*offpeak.Credit {
		t.Errorf("balances are %+v", b)
	}
	g.sound()
}
