package trading

import (
	"context"
	"errors"
	"net/url"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newShow(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	cmd := &cobra.Command{
		Use:   "show [NODE]",
		Short: "Show what nodes ask now, until when, and by whose plan",
		Long: `Show prints what your account's nodes ask now, when that is looked at next, and
whose plan says so; with NODE that plan as well. A node that asks none is
offered to nobody: its plan does not hold now.

` + people.NodeHelp,
		Example: `  offpeak ask show
  offpeak ask show tower`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			get := func(id offpeak.NodeID) (wire.NodeAsk, error) {
				return read(ctx, hub, func(ctx context.Context, d *wire.Direct) (wire.NodeAsk, error) { return d.Ask(ctx, id) })
			}
			if len(args) == 1 {
				id, err := c.Node(ctx, args[0])
				if err != nil {
					return err
				}
				a, err := get(id)
				if err != nil {
					return err
				}
				return c.Print(a, []string{string(id)}, func(t *render.Table) { showAsk(t, a) })
			}
			nodes, err := c.OwnNodes(ctx)
			if err != nil {
				return err
			}
			var list []wire.NodeAsk
			for _, n := range nodes {
				a, err := get(n.ID)
				if errors.Is(err, offpeak.ErrNotFound) {
					continue // it left meanwhile
				}
				if err != nil {
					return err
				}
				list = append(list, a)
			}
			return show(ctx, c, hub, list, "Your account has no nodes. Add one: offpeak token join here, then offpeak agent join TOKEN there.")
		},
	}
	cmd.ValidArgsFunction = c.CompleteNodes
	return c.Command(cmd)
}

func showAsk(t *render.Table, a wire.NodeAsk) {
	t.Row("Node", string(a.Node))
	t.Row("Asks", askText(a.Ask))
	if a.Next != nil {
		t.Row("Next look", render.Stamp(a.Next))
	}
	t.Row("By", by(a))
	if a.Plan == nil {
		return
	}
	for _, r := range planText(a.Plan) {
		t.Row(r[0], r[1])
	}
}

func newHistory(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var limit int
	cmd := &cobra.Command{
		Use:     "history NODE",
		Short:   "Show what a node asked, newest first",
		Long:    "History lists what a node asked and since when.\n\n" + people.NodeHelp,
		Example: `  offpeak ask history tower --limit 20`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := atLeastOne("--limit", limit); err != nil {
				return err
			}
			if _, err := c.Dial(); err != nil {
				return err
			}
			id, err := c.Node(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			list, err := people.Pages(cmd.Context(), c, url.Values{}, limit, func(ctx context.Context, d *wire.Direct, q url.Values) (wire.List[wire.AskChange], error) {
				return d.AskHistory(ctx, id, q)
			})
			if err != nil {
				return err
			}
			ids := make([]string, len(list.Items))
			for i, h := range list.Items {
				ids[i] = askText(h.Ask)
			}
			return c.Print(list, ids, func(t *render.Table) {
				if len(list.Items) == 0 {
					t.Line("It has asked nothing yet.")
					return
				}
				t.Row("FROM", "ASK")
				for i, h := range list.Items {
					t.Row(render.Stamp(&h.From), ids[i])
				}
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "the newest `n` only")
	cmd.ValidArgsFunction = c.CompleteNodes
	return c.Command(cmd)
}
