package people

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newBalance(env world.Env) *cobra.Command {
	c := &client{env: env}
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
			if err := c.dial(); err != nil {
				return err
			}
			if grid {
				return c.gridBalance(cmd.Context())
			}
			a, err := c.account(cmd.Context(), first(args))
			if err != nil {
				return err
			}
			b, err := remote.Ask(cmd.Context(), c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.Balance, error) { return d.Balance(ctx, a.ID) })
			if err != nil {
				return err
			}
			return c.print(b, []string{string(b.Account)}, func(t *render.Table) {
				t.Row("ACCOUNT", "AVAILABLE", "HELD")
				t.Row(a.Name, b.Available.String(), b.Held.String())
			})
		},
	}
	cmd.Flags().BoolVar(&grid, "grid", false, "the sums of the whole ledger (admins)")
	return c.command(cmd)
}

func (c *client) gridBalance(ctx context.Context) error {
	b, err := remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.GridBalance, error) { return d.GridBalance(ctx) })
	if err != nil {
		return err
	}
	return c.print(b, nil, func(t *render.Table) {
		t.Row("DEPOSITS", "PAYOUTS", "AVAILABLE", "HELD", "FEE", "ROUNDING")
		t.Row(b.Deposits.String(), b.Payouts.String(), b.Available.String(), b.Held.String(), b.Fee.String(), b.Rounding.String())
	})
}

func newReceipt(env world.Env) *cobra.Command {
	c := &client{env: env}
	return c.command(&cobra.Command{
		Use: "receipt JOB", Short: "Show what a job cost, attempt by attempt",
		Long: `Receipt shows a line for each attempt and price term of a job that is settled, from
which the charge can be recomputed: the billed time times the price an hour, rounded
down to a millionth of a credit. Whose node ran it sees the lines that paid them.
` + jobHelp,
		Example: `  offpeak receipt -
  offpeak receipt 01jd8n -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeJobs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			id, err := c.job(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := remote.Ask(cmd.Context(), c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.Receipt, error) { return d.Receipt(ctx, id) })
			if err != nil {
				return err
			}
			return c.print(r, []string{string(r.Job)}, func(t *render.Table) {
				t.Row("ATTEMPT", "TERM", "PRICE/H", "METERED", "BILLED", "RULE", "REASON", "CHARGED")
				for _, l := range r.Lines {
					t.Row(strconv.Itoa(int(l.Attempt)), strconv.Itoa(l.Term), offpeak.MicroCredits(l.Price).String(), seconds(l.Metered), seconds(l.Billed), string(l.Rule), string(l.Reason), l.Charged.String())
				}
				t.Row("total", "", "", "", "", "", "", r.Total.String())
			})
		},
	})
}

// seconds prints metered time to the millisecond.
func seconds(ms offpeak.Millis) string { return fmt.Sprintf("%d.%03ds", ms/1000, ms%1000) }

func newStatement(env world.Env) *cobra.Command {
	c := &client{env: env}
	var csv bool
	var from, until string
	cmd := &cobra.Command{
		Use: "statement [ACCOUNT]", Short: "Show what changed an account's balances",
		Long: `Statement shows every deposit, payout, hold and settlement of an account, the oldest
first, with what the account had after each. It is your own account's unless you are
an admin and name another. --from and --until are days or moments, in UTC.`,
		Example: `  offpeak statement --from 2026-12-01
  offpeak statement --csv > december.csv
  offpeak statement vision-lab -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{}
			for _, bound := range []struct{ name, text string }{{"from", from}, {"until", until}} {
				if bound.text == "" {
					continue
				}
				at, err := moment(bound.name, bound.text)
				if err != nil {
					return err
				}
				q.Set(bound.name, at.Format(time.RFC3339Nano))
			}
			if csv && c.output != "table" {
				return world.BadInput("--csv: goes without -o")
			}
			if csv {
				q.Set("format", "csv")
			}
			if err := c.dial(); err != nil {
				return err
			}
			a, err := c.account(cmd.Context(), first(args))
			if err != nil {
				return err
			}
			q.Set("account", string(a.ID))
			// Whole, or not at all: a statement that ends early looks like one that is right.
			whole, err := remote.Ask(cmd.Context(), c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) ([]byte, error) {
				body, err := d.Statement(ctx, q)
				if err != nil {
					return nil, err
				}
				defer body.Close()
				text, err := io.ReadAll(body)
				if err != nil {
					return nil, fmt.Errorf("read statement: %w", errors.Join(offpeak.ErrUnavailable, err))
				}
				return text, nil
			})
			if err != nil {
				return err
			}
			if csv {
				_, err := c.env.Stdout.Write(whole)
				return err
			}
			return c.statement(bytes.NewReader(whole))
		},
	}
	f := cmd.Flags()
	f.BoolVar(&csv, "csv", false, "print CSV, with amounts in credits")
	f.StringVar(&from, "from", "", "from this `time` on, for example 2026-12-01")
	f.StringVar(&until, "until", "", "before this `time`")
	return c.command(cmd)
}

// moment reads a day or a moment.
func moment(flag, text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, world.Refuse(&offpeak.FieldError{Field: "--" + flag, Value: text, Rule: "is a day or a moment, for example 2026-12-01 or 2026-12-01T12:00:00Z"})
}

func (c *client) statement(body io.Reader) error {
	list := wire.List[wire.StatementLine]{Items: []wire.StatementLine{}}
	for dec := json.NewDecoder(body); ; {
		var l wire.StatementLine
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read statement: %w", errors.Join(offpeak.ErrUnavailable, err))
		}
		list.Items = append(list.Items, l)
	}
	return c.print(list, ids(list.Items, func(l wire.StatementLine) string { return l.Transaction }), func(t *render.Table) {
		t.Row("AT", "KIND", "WHAT FOR", "AVAILABLE", "HELD", "AVAILABLE AFTER", "HELD AFTER")
		for _, l := range list.Items {
			what := l.External
			if l.Job != "" {
				what = fmt.Sprintf("%s attempt %d", l.Job, l.Attempt)
			}
			t.Row(render.Stamp(&l.At), l.Kind, what, signed(l.Available), signed(l.Held), l.AvailableAfter.String(), l.HeldAfter.String())
		}
	})
}

// signed prints a change with its sign.
func signed(n offpeak.MicroCredits) string {
	switch {
	case n > 0:
		return "+" + n.String()
	case n == 0:
		return ""
	}
	return n.String()
}

// printPosted says what became of deposits or payouts.
func (c *client) printPosted(p wire.Posted) error {
	return c.print(p, p.Transactions, func(t *render.Table) {
		switch {
		case p.Fresh == 0:
			t.Line(fmt.Sprintf("%s credits in %d: all there already; nothing changed", p.Total, p.Count))
		case p.Fresh < p.Count:
			t.Line(fmt.Sprintf("%s credits in %d: %d new, the others were there already", p.Total, p.Count, p.Fresh))
		default:
			t.Line(fmt.Sprintf("%s credits in %d", p.Total, p.Count))
		}
	})
}

// post finds the account and makes one deposit or payout.
func (c *client) post(ctx context.Context, args []string, ref string, send func(context.Context, *wire.Direct, offpeak.OpID, wire.NewMovement) (wire.Posted, error)) error {
	if ref == "" {
		return world.BadInput("--ref: is needed: the world's reference, under which it counts once")
	}
	if err := c.dial(); err != nil {
		return err
	}
	a, err := c.account(ctx, args[0])
	if err != nil {
		return err
	}
	op := remote.NewOp()
	p, err := remote.Ask(ctx, c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (wire.Posted, error) {
		return send(ctx, d, op, wire.NewMovement{External: ref, Account: a.ID, Amount: args[1]})
	})
	if err != nil {
		return err
	}
	return c.printPosted(p)
}

func newDeposit(env world.Env) *cobra.Command {
	c := &client{env: env}
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
			return c.post(cmd.Context(), args, ref, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, in wire.NewMovement) (wire.Posted, error) {
				return d.Deposit(ctx, op, in)
			})
		},
	}
	cmd.Flags().StringVar(&ref, "ref", "", "the world's `reference`")
	cmd = c.command(cmd)
	cmd.AddCommand(newDepositImport(env))
	return cmd
}

func newDepositImport(env world.Env) *cobra.Command {
	c := &client{env: env}
	return c.command(&cobra.Command{
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
			if err := c.dial(); err != nil {
				return err
			}
			op := remote.NewOp()
			p, err := remote.Ask(cmd.Context(), c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (wire.Posted, error) {
				return d.ImportDeposits(ctx, op, data)
			})
			if err != nil {
				return err
			}
			return c.printPosted(p)
		},
	})
}
