package money

import (
	"context"

	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newBalance(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var grid bool
	cmd := &cobra.Command{
		Use: "balance [ACCOUNT]", Short: "Show what an account has and what is held for its jobs",
		Long: `Balance shows an account's credits: what is available for new jobs and payouts, and
what is held for jobs that run. It is your own account's unless you are an admin and
name another. With --grid an admin sees the sums of the whole ledger.`,
		Example: `  offpeak balance
  offpeak balance vision-lab
  offpeak balance --grid`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if grid && len(args) > 0 {
				return world.BadInput("--grid: is of no single account")
			}
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			if grid {
				return gridBalance(cmd.Context(), c, hub)
			}
			a, err := c.Account(cmd.Context(), first(args))
			if err != nil {
				return err
			}
			b, err := read(cmd.Context(), hub, func(ctx context.Context, d *wire.Direct) (wire.Balance, error) { return d.Balance(ctx, a.ID) })
			if err != nil {
				return err
			}
			return c.Print(b, []string{string(b.Account)}, func(t *render.Table) {
				t.Row("ACCOUNT", "AVAILABLE", "HELD")
				t.Row(a.Name, b.Available.String(), b.Held.String())
			})
		},
	}
	cmd.Flags().BoolVar(&grid, "grid", false, "the sums of the whole ledger (admins)")
	return c.Command(cmd)
}

func gridBalance(ctx context.Context, c *people.Client, hub *remote.Hub) error {
	b, err := read(ctx, hub, func(ctx context.Context, d *wire.Direct) (wire.GridBalance, error) { return d.GridBalance(ctx) })
	if err != nil {
		return err
	}
	return c.Print(b, nil, func(t *render.Table) {
		t.Row("DEPOSITS", "PAYOUTS", "AVAILABLE", "HELD", "FEE", "ROUNDING")
		t.Row(b.Deposits.String(), b.Payouts.String(), b.Available.String(), b.Held.String(), b.Fee.String(), b.Rounding.String())
	})
}
