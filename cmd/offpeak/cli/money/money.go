// Package money holds the commands of money, one file a command: what an account
// has, what a job cost, what came in and went out.
//
// It owns their flags and what they print; how a hub is reached and accounts and
// jobs are named is people's. Nothing here decides what may be posted: the hub does.
// Commands are built by New and run one a process; the tests run them against a hub
// of their own.
package money

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// New returns the commands of money.
func New(env world.Env) []*cobra.Command {
	return []*cobra.Command{newBalance(env), newReceipt(env), newStatement(env), newDeposit(env), newPayout(env)}
}

// read is a call that changes nothing.
func read[T any](ctx context.Context, hub *remote.Hub, f func(context.Context, *wire.Direct) (T, error)) (T, error) {
	return remote.Ask(ctx, hub, remote.Reading, f)
}

// change is a call that changes something, once however often it is made.
func change[T any](ctx context.Context, hub *remote.Hub, f func(context.Context, *wire.Direct, offpeak.OpID) (T, error)) (T, error) {
	op := remote.NewOp()
	return remote.Ask(ctx, hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (T, error) { return f(ctx, d, op) })
}

// first is the argument, "" where there is none.
func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// printPosted says what became of deposits or payouts; what is one of them.
func printPosted(c *people.Client, what string, p wire.Posted) error {
	return c.Print(p, p.Transactions, func(t *render.Table) {
		said := fmt.Sprintf("%s credits in %s", p.Total, count(p.Count, what))
		switch {
		case p.Fresh == 0 && p.Count == 1:
			said += ", which was there already; nothing changed"
		case p.Fresh == 0:
			said += ", which were all there already; nothing changed"
		case p.Fresh < p.Count:
			said += fmt.Sprintf(": %d new, the others were there already", p.Fresh)
		}
		t.Line(said)
	})
}

// count is "1 deposit" or "3 deposits".
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// arguments is how the fields of a deposit or payout are written.
func arguments(field string) string {
	return map[string]string{"external": "--ref", "account": "ACCOUNT", "amount": "AMOUNT", "part": "PART"}[field]
}

// post finds the account and makes one deposit or payout; what says which.
func post(ctx context.Context, c *people.Client, what string, args []string, ref string, send func(context.Context, *wire.Direct, offpeak.OpID, wire.NewMovement) (wire.Posted, error)) error {
	if ref == "" {
		return noRef()
	}
	hub, err := c.Dial()
	if err != nil {
		return err
	}
	a, err := c.Account(ctx, args[0])
	if err != nil {
		return err
	}
	p, err := change(ctx, hub, func(ctx context.Context, d *wire.Direct, op offpeak.OpID) (wire.Posted, error) {
		return send(ctx, d, op, wire.NewMovement{External: ref, Account: a.ID, Amount: args[1]})
	})
	if err != nil {
		return world.Named(err, arguments)
	}
	return printPosted(c, what, p)
}

func noRef() error {
	return world.BadInput("--ref: is needed: the world's reference, under which it counts once")
}
