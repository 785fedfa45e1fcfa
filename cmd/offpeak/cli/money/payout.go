package money

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newPayout(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var ref string
	cmd := &cobra.Command{
		Use: "payout ACCOUNT AMOUNT", Short: "Take credits out of an account (admins)",
		Long: `Payout takes AMOUNT credits out of what an account has available. --ref is the
world's reference: the same payout again changes nothing, and another one with its
reference is refused.`,
		Example: `  offpeak payout vision-lab 12.50 --ref transfer-311
  offpeak payout export payouts.csv --batch 2026-12-02`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return post(cmd.Context(), c, "payout", args, ref, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, in wire.NewMovement) (wire.Posted, error) {
				return d.Payout(ctx, op, in)
			})
		},
	}
	cmd.Flags().StringVar(&ref, "ref", "", "the world's `reference`")
	cmd = c.Command(cmd)
	cmd.AddCommand(newPayoutExport(env), newPayoutReturn(env), newPayoutGrid(env))
	return cmd
}

func newPayoutExport(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var in wire.NewPayouts
	var pay []string
	cmd := &cobra.Command{
		Use: "export FILE", Short: "Post payouts and write them to a signed file (admins)",
		Long: `Export takes out what every account has available, from --minimum on, or what --pay
says, and writes it to FILE, signed by the hub, for whoever makes the transfers.
The payouts are posted in the same step. The same --batch with the same --minimum or
--pay gives the same file again and posts nothing, so a file that was lost can be had
once more and nobody is paid twice; with others it is refused.`,
		Example: `  offpeak payout export payouts.csv --batch 2026-12-02 --minimum 10
  offpeak payout export payouts.csv --batch ada-1 --pay vision-lab=12.50`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if in.Batch == "" {
				return world.BadInput("--batch: is needed: a name, under which the payouts are made once")
			}
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			for _, p := range pay {
				name, amount, ok := strings.Cut(p, "=")
				if !ok {
					return world.Refuse(&offpeak.FieldError{Field: "--pay", Value: p, Rule: "is ACCOUNT=AMOUNT"})
				}
				a, err := c.Account(cmd.Context(), name)
				if err != nil {
					return err
				}
				in.Payouts = append(in.Payouts, wire.Payout{Account: a.ID, Amount: amount})
			}
			batch, err := change(cmd.Context(), hub, func(ctx context.Context, d *wire.Direct, op offpeak.OpID) (wire.SignedPayouts, error) {
				return d.ExportPayouts(ctx, op, in)
			})
			if err != nil {
				return world.Named(err, func(field string) string { return exportFlag(field, pay) })
			}
			if err := os.WriteFile(args[0], batch.Data, 0o600); err != nil {
				return world.Hint(fmt.Errorf("write payouts: %w", err), "They are posted: the same command writes the same file.")
			}
			rows := max(0, bytes.Count(batch.Data, []byte("\n"))-3)
			return c.Print(exported{in.Batch, args[0], rows, batch.Again}, []string{in.Batch}, func(t *render.Table) {
				if batch.Again {
					t.Line(fmt.Sprintf("written to %s: batch %s with %s, which was posted before; nothing new is posted", args[0], in.Batch, count(rows, "payout")))
					return
				}
				t.Line(fmt.Sprintf("%s posted and written to %s", count(rows, "payout"), args[0]))
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.Batch, "batch", "", "`name` of the batch")
	f.StringVar(&in.Minimum, "minimum", "", "only accounts that have this `amount` or more")
	f.StringArrayVar(&pay, "pay", nil, "`ACCOUNT=AMOUNT` to pay instead of everything; may be repeated")
	return c.Command(cmd)
}

// exported is an export as people see it.
type exported struct {
	Batch   string `json:"batch"`
	File    string `json:"file"`
	Payouts int    `json:"payouts"`
	// Again: the batch had been posted before, and nothing was this time.
	Again bool `json:"again"`
}

// exportFlag is how a field of an export is written; pay are the values of --pay.
func exportFlag(field string, pay []string) string {
	for i, p := range pay {
		if strings.HasPrefix(field, fmt.Sprintf("payouts[%d].", i)) {
			return "--pay " + p
		}
	}
	return map[string]string{"batch": "--batch", "minimum": "--minimum", "payouts": "--pay"}[field]
}

func newPayoutReturn(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	return c.Command(&cobra.Command{
		Use: "return REFERENCE", Short: "Give back a payout that did not arrive (admins)",
		Long: `Return gives back what a payout took, once, to the account or the part of the grid
that it was from: for one that failed at the bank. REFERENCE is the payout's, as
"offpeak statement" and the signed file show it. To pay it again takes a new one.`,
		Example: `  offpeak payout return transfer-311
  offpeak payout return 2026-12-02/7`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			p, err := change(cmd.Context(), hub, func(ctx context.Context, d *wire.Direct, op offpeak.OpID) (wire.Posted, error) {
				return d.ReturnPayout(ctx, op, wire.NewReturn{External: args[0]})
			})
			if err != nil {
				return world.Named(err, func(field string) string { return map[string]string{"external": "REFERENCE"}[field] })
			}
			return printPosted(c, "returned payout", p)
		},
	})
}

func newPayoutGrid(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var ref string
	cmd := &cobra.Command{
		Use: "grid PART AMOUNT", Short: "Take out what the operator earned (admins)",
		Long: `Grid takes AMOUNT credits out of what the grid itself has. PART is fee, what the
operator earned, or rounding, what rounding left; "offpeak balance --grid" shows both.`,
		Example: `  offpeak payout grid fee 12.50 --ref transfer-312`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if ref == "" {
				return noRef()
			}
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			p, err := change(cmd.Context(), hub, func(ctx context.Context, d *wire.Direct, op offpeak.OpID) (wire.Posted, error) {
				return d.GridPayout(ctx, op, wire.NewGridPayout{External: ref, Part: args[0], Amount: args[1]})
			})
			if err != nil {
				return world.Named(err, arguments)
			}
			return printPosted(c, "payout", p)
		},
	}
	cmd.Flags().StringVar(&ref, "ref", "", "the world's `reference`")
	return c.Command(cmd)
}
