package trading

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newSuggest(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var t target
	var in wire.SuggestRequest
	var kWh tariff
	var cost manifest.Credits
	var floor manifest.Price
	var works life
	var where string
	cmd := &cobra.Command{
		Use:   "suggest [NODE]",
		Short: "Propose an ask and show its sum",
		Long: `Suggest adds up what an hour costs you, electricity and wear, raises it where such
machines are scarce and to what is usually paid, and prints each line of the sum,
what is not in it and why, and the command that asks so. Amounts are of one GPU,
or of the machine where it has none. Nothing is changed.

` + people.NodeHelp,
		Example: `  offpeak ask suggest --kwh 0.30
  offpeak ask suggest tower --kwh 0.30 --watts 350 --measured --cost 1600 --life 3y`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			in.KWh, in.Life = kWh, offpeak.Duration(works)
			if cmd.Flags().Changed("cost") {
				in.Cost = (*offpeak.MicroCredits)(&cost)
			}
			if cmd.Flags().Changed("floor") {
				in.Floor = (*offpeak.Price)(&floor)
			}
			if in.Watts < 0 || in.Measured && in.Watts == 0 {
				return world.Refuse(&offpeak.FieldError{Field: "--watts", Rule: "is what it draws under load; --measured says that you measured it"})
			}
			// What the hour of the day is, the owner's clock says.
			if err := written(cmd, "zone"); err != nil {
				return err
			}
			name, _, err := zone(where, env.Getenv)
			if err != nil && (where != "" || len(in.KWh) > 1) {
				return err
			}
			in.Zone = wire.Zone(name)
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			nodes, err := t.nodes(ctx, c, args)
			if err != nil {
				return err
			}
			s, err := read(ctx, hub, func(ctx context.Context, d *wire.Direct) (wire.Suggested, error) { return d.Suggest(ctx, nodes[0], in) })
			if err != nil {
				return err
			}
			return c.Print(s, []string{s.Price.String()}, func(t *render.Table) { showSuggested(t, s, in, first(args)) })
		},
	}
	f := cmd.Flags()
	f.Var(&kWh, "kwh", "what a kilowatt-hour costs in credits, for example 0.30; or 24 prices with commas, the first from midnight to one")
	f.Int64Var(&in.Watts, "watts", 0, "what it draws under load (default: what its maker says, where that is known)")
	f.BoolVar(&in.Measured, "measured", false, "the watts were measured")
	f.Var(&cost, "cost", "what the hardware cost, in credits")
	f.Var(&works, "life", "for how much work the hardware is good, for example 3y or 20000h (default 3y)")
	f.Var(&floor, "floor", "never propose less, for example 0.10/h")
	f.StringVar(&where, "zone", "", "your time `zone`, for example Europe/Berlin (default: this machine's)")
	cmd.ValidArgsFunction = c.CompleteNodes
	return c.Command(cmd)
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func showSuggested(t *render.Table, s wire.Suggested, in wire.SuggestRequest, node string) {
	for _, l := range s.Lines {
		change := l.Change.String()
		if l.Change >= 0 {
			change = "+" + change
		}
		t.Row(l.Rule, change, l.Why)
	}
	if s.Price == 0 {
		hint := "."
		if in.KWh == nil {
			hint = ": say what power costs with --kwh."
		}
		t.Line("Nothing is known that an hour costs, and nothing was paid for such a machine" + hint)
	} else {
		t.Row("ask", s.Price.String())
	}
	if len(s.LeftOut) > 0 {
		t.Line("")
		t.Line("Not in it:")
		for _, l := range s.LeftOut {
			if l.Needs != "" {
				l.Why += " (--" + l.Needs + ")"
			}
			t.Line("  " + l.Rule + ": " + l.Why)
		}
	}
	if s.Price > 0 {
		t.Line("")
		t.Line("  " + setCommand(s, in, node))
	}
}

// setCommand is the command line that asks what was suggested.
func setCommand(s wire.Suggested, in wire.SuggestRequest, node string) string {
	words := []string{"offpeak ask set", s.Price.String()}
	if node != "" {
		words = append(words, node)
	}
	if in.Floor != nil {
		words = append(words, "--floor", in.Floor.String())
	}
	for _, w := range s.Windows {
		words = append(words, "--window", `"`+w+`"`)
	}
	if len(s.Windows) > 0 && in.Zone != "" {
		words = append(words, "--zone", string(in.Zone))
	}
	return strings.Join(words, " ")
}
