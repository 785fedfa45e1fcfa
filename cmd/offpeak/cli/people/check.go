package people

import (
	"context"

	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newCheck(env world.Env) *cobra.Command {
	c := &client{env: env}
	var ledger bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the grid's invariants on the live store",
		Long: `Check runs the grid's invariants as queries on the live store. It prints the rows
that break one and exits with 1 if there are any. Warnings (a disk that fills up)
go to standard error and do not change the exit code. With --ledger it recomputes every
balance and receipt from the ledger's entries, which it does otherwise too, and
nothing else.`,
		Example: `  offpeak check
  offpeak check --ledger`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			checked, err := remote.Ask(cmd.Context(), c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.Checked, error) {
				if ledger {
					return d.CheckLedger(ctx)
				}
				return d.Check(ctx)
			})
			if err != nil {
				return err
			}
			for _, w := range checked.Warnings {
				c.note("warning: " + w)
			}
			err = c.print(checked, ids(checked.Violations, func(v wire.Violation) string { return v.Object }), func(t *render.Table) {
				if len(checked.Violations) == 0 {
					if ledger {
						t.Line("Every balance and receipt follows from the entries.")
						return
					}
					t.Line("All invariants hold.")
					return
				}
				t.Row("INVARIANT", "OBJECT", "DETAIL")
				for _, v := range checked.Violations {
					t.Row(v.Invariant, v.Object, v.Detail)
				}
			})
			if err == nil && (!checked.OK || len(checked.Violations) > 0) {
				return &world.ExitError{Code: 1}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&ledger, "ledger", false, "only recompute the ledger")
	return c.command(cmd)
}
