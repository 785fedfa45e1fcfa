package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
	"offpeak/wire"
)

// BenchmarkPaidCycle measures what money costs: BenchmarkCycle's jobs for nothing,
// at a price for one account, and at a price for fifty accounts, in turn.
func BenchmarkPaidCycle(b *testing.B) {
	for _, e := range engines() {
		b.Run(e.String(), func(b *testing.B) {
			const nodes, slots, accounts = 64, 8, 50
			c := startCluster(b, e, calm())
			f := startFleet(b)
			f.do(order{Join: &joinOrder{Hubs: c.URLs(), Token: c.JoinToken(nodes), Names: "v", Nodes: nodes, Slots: slots, Every: 5 * time.Second}})
			fifty := c.guests(accounts)
			load := loadOrder{Hubs: c.URLs(), Tokens: fifty, Spec: cycleSpec(), Jobs: 500, Clients: 64, Window: 512}
			f.do(order{Load: &load}) // warm everything up
			load.Jobs = 4000
			run := func(price offpeak.Price, tokens []string) float64 {
				c.asks(price)
				load.Tokens = tokens
				return float64(load.Jobs) / f.do(order{Load: &load}).Took.Seconds()
			}
			const price = 36 * offpeak.Price(offpeak.Credit) / 100
			var free, one, many []float64
			for b.Loop() {
				free = append(free, run(0, fifty))
				one = append(one, run(price, fifty[:1]))
				many = append(many, run(price, fifty))
			}
			b.ReportMetric(middle(free), "free/s")
			b.ReportMetric(middle(one), "one-account/s")
			b.ReportMetric(middle(many), "fifty-accounts/s")
			b.ReportMetric(100*(1-middle(many)/middle(free)), "%settlement")
			b.ReportMetric(100*(1-middle(one)/middle(many)), "%one-slower")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// guests makes accounts with money and returns a submitter's token of each.
func (c *cluster) guests(n int) (tokens []string) {
	c.b.Helper()
	ctx := context.Background()
	for i := range n {
		name := fmt.Sprintf("guest-%02d", i)
		a, err := c.Client.CreateAccount(ctx, gridtest.NewOp(), wire.NewAccount{Name: name})
		if err != nil {
			c.b.Fatal(err)
		}
		m, err := c.Client.Invite(ctx, gridtest.NewOp(), a.ID, wire.NewMember{Name: "ada", Role: offpeak.RoleSubmitter})
		if err != nil {
			c.b.Fatal(err)
		}
		if _, err := c.Client.Deposit(ctx, gridtest.NewOp(), wire.NewMovement{External: name, Account: a.ID, Amount: "1000000"}); err != nil {
			c.b.Fatal(err)
		}
		tokens = append(tokens, m.Secret)
	}
	return tokens
}

// asks has all nodes ask a price.
func (c *cluster) asks(price offpeak.Price) {
	c.b.Helper()
	who, err := c.Client.Whoami(context.Background())
	if err != nil {
		c.b.Fatal(err)
	}
	if _, err := c.Client.SetAccountAsk(context.Background(), gridtest.NewOp(), who.Account.ID, wire.AskPlan{Ask: &wire.Prices{GPU: &price}}); err != nil {
		c.b.Fatal(err)
	}
}
