package money

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newStatement(env world.Env) *cobra.Command {
	c := people.NewClient(env)
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
			if csv && cmd.Flag("format").Value.String() != "table" {
				return world.BadInput("--csv: goes without -o")
			}
			if csv {
				q.Set("format", "csv")
			}
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			a, err := c.Account(cmd.Context(), first(args))
			if err != nil {
				return err
			}
			q.Set("account", string(a.ID))
			// Whole, or not at all: a statement that ends early looks like one that is right.
			whole, err := read(cmd.Context(), hub, func(ctx context.Context, d *wire.Direct) ([]byte, error) {
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
				_, err := env.Stdout.Write(whole)
				return err
			}
			return statement(c, bytes.NewReader(whole))
		},
	}
	f := cmd.Flags()
	f.BoolVar(&csv, "csv", false, "print CSV, with amounts in credits")
	f.StringVar(&from, "from", "", "from this `time` on, for example 2026-12-01")
	f.StringVar(&until, "until", "", "before this `time`")
	return c.Command(cmd)
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

func statement(c *people.Client, body io.Reader) error {
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
	ids := make([]string, len(list.Items))
	for i, l := range list.Items {
		ids[i] = l.Transaction
	}
	return c.Print(list, ids, func(t *render.Table) {
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
