package money

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newDeposit(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var ref string
	cmd := &cobra.Command{
		Use: "deposit ACCOUNT AMOUNT", Short: "Put credits into an account (admins)",
		Long: `Deposit puts AMOUNT credits into an account. --ref is the world's reference, for
example the bank's: the same deposit again changes nothing, and another one with its
reference is refused. Jobs that waited for money go on at once.`,
		Example: `  offpeak deposit vision-lab 12.50 --ref bank-7781
  offpeak deposit import signed.csv`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return post(cmd.Context(), c, "deposit", args, ref, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, in wire.NewMovement) (wire.Posted, error) {
				return d.Deposit(ctx, op, in)
			})
		},
	}
	cmd.Flags().StringVar(&ref, "ref", "", "the world's `reference`")
	cmd = c.Command(cmd)
	cmd.AddCommand(newDepositImport(env))
	return cmd
}

func newDepositImport(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	return c.Command(&cobra.Command{
		Use: "import FILE", Short: "Post a signed file of deposits (admins)",
		Long: `Import posts the deposits of a file that whoever receives the grid's money has
signed ("offpeak payments sign"). The hub verifies the signature with the key that
its --deposits-key names. The same file again changes nothing.`,
		Example: `  offpeak deposit import signed.csv`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if info, err := os.Stat(args[0]); err == nil && info.Size() > wire.MaxBatch {
				return world.BadInput("%s: is over %s, more than any batch", args[0], offpeak.Bytes(wire.MaxBatch))
			}
			data, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("read batch: %w", err)
			}
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			p, err := change(cmd.Context(), hub, func(ctx context.Context, d *wire.Direct, op offpeak.OpID) (wire.Posted, error) {
				return d.ImportDeposits(ctx, op, data)
			})
			if err != nil {
				return err
			}
			return printPosted(c, "deposit", p)
		},
	})
}
