package trading

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/market"
	"offpeak/wire"
)

func newAsk(env world.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ask",
		Short: "Set and show what your nodes cost",
		Long: `An ask is a price per hour: of each GPU that a job takes, and of a job that takes
none ("0.25/h", or "0.25/h cpu 0.03/h" where the two differ). A node without a
plan asks 0.00/h: it is free, and a grid of such nodes needs no money at all.`,
		Example: `  offpeak ask set 0.25/h
  offpeak ask show
  offpeak ask suggest --kwh 0.30`,
	}
	cmd.AddCommand(newSet(env), newShow(env), newHistory(env), newClear(env), newAuto(env), newSuggest(env))
	return people.Group(cmd)
}

// target is what a plan is for: nodes, or the account.
type target struct {
	account, all bool
}

func (t *target) bind(cmd *cobra.Command, all bool) {
	f := cmd.Flags()
	f.BoolVar(&t.account, "account", false, "for all nodes of your account that have no plan of their own, also those that join later")
	if all {
		f.BoolVar(&t.all, "all", false, "for each of your account's nodes")
	}
}

// nodes are the nodes that a person means: those they name, all, or the only one
// they have.
func (t *target) nodes(ctx context.Context, c *people.Client, refs []string) ([]offpeak.NodeID, error) {
	var out []offpeak.NodeID
	for _, ref := range refs {
		id, err := c.Node(ctx, ref)
		if err != nil {
			return nil, err
		}
		if slices.Contains(out, id) {
			return nil, world.Refuse(&offpeak.FieldError{Field: "NODE", Value: ref, Rule: "is named once: two of those you named are this node"})
		}
		out = append(out, id)
	}
	if len(out) > 0 {
		return out, nil
	}
	own, err := c.OwnNodes(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(own) == 0:
		return nil, world.Hint(errors.New("your account has no nodes"), "Add one: `offpeak token join` here, then `offpeak agent join TOKEN` there.")
	case len(own) > 1 && !t.all:
		return nil, world.Refuse(world.Hint(&offpeak.FieldError{Field: "NODE", Rule: fmt.Sprintf("is needed: your account has %d nodes", len(own))}, "Name one, see `offpeak nodes`; or use --account, which also holds for nodes that join later."))
	}
	for _, n := range own {
		out = append(out, n.ID)
	}
	return out, nil
}

// check refuses nodes and flags that contradict each other.
func (t *target) check(refs []string) error {
	if t.account && (t.all || len(refs) > 0) || t.all && len(refs) > 0 {
		return world.Refuse(&offpeak.FieldError{Field: "NODE, --all, --account", Rule: "exclude each other"})
	}
	return nil
}

// set sends a plan for what is meant and shows what is asked now.
func (t *target) set(ctx context.Context, c *people.Client, refs []string, plan wire.AskPlan) error {
	return t.each(ctx, c, refs,
		func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.AccountID) (wire.List[wire.NodeAsk], error) {
			return d.SetAccountAsk(ctx, op, id, plan)
		},
		func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.NodeID) (wire.NodeAsk, error) {
			return d.SetAsk(ctx, op, id, plan)
		})
}

// each changes what is asked for an account or some nodes and shows what is asked now.
func (t *target) each(ctx context.Context, c *people.Client, refs []string,
	account func(context.Context, *wire.Direct, offpeak.OpID, offpeak.AccountID) (wire.List[wire.NodeAsk], error),
	node func(context.Context, *wire.Direct, offpeak.OpID, offpeak.NodeID) (wire.NodeAsk, error)) error {
	if err := t.check(refs); err != nil {
		return err
	}
	hub, err := c.Dial()
	if err != nil {
		return err
	}
	if t.account {
		own, err := c.OwnAccount(ctx)
		if err != nil {
			return err
		}
		list, err := change(ctx, hub, func(ctx context.Context, d *wire.Direct, op offpeak.OpID) (wire.List[wire.NodeAsk], error) {
			list, err := account(ctx, d, op, own.ID)
			return list, inFlags(err)
		})
		if err != nil {
			return err
		}
		return show(ctx, c, hub, list.Items, "No node goes by this plan now; those that join will.")
	}
	nodes, err := t.nodes(ctx, c, refs)
	if err != nil {
		return err
	}
	list, errs := []wire.NodeAsk{}, []error{}
	for _, id := range nodes {
		a, err := change(ctx, hub, func(ctx context.Context, d *wire.Direct, op offpeak.OpID) (wire.NodeAsk, error) {
			a, err := node(ctx, d, op, id)
			return a, inFlags(err)
		})
		if err == nil {
			list = append(list, a)
		}
		errs = append(errs, err)
	}
	if len(list) == 0 {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, show(ctx, c, hub, list, ""))...)
}

// show prints what nodes ask, with their names.
func show(ctx context.Context, c *people.Client, hub *remote.Hub, list []wire.NodeAsk, empty string) error {
	if list == nil {
		list = []wire.NodeAsk{}
	}
	ids := make([]string, len(list))
	names := make([]string, len(list))
	for i, a := range list {
		ids[i] = string(a.Node)
		// What was changed is shown without a name rather than not at all.
		if n, err := read(ctx, hub, func(ctx context.Context, d *wire.Direct) (offpeak.Node, error) { return d.Node(ctx, a.Node) }); err == nil {
			names[i] = n.Name
		}
	}
	return c.Print(wire.List[wire.NodeAsk]{Items: list}, ids, func(t *render.Table) {
		if len(list) == 0 {
			t.Line(empty)
			return
		}
		t.Row("NODE", "NAME", "ASK", "UNTIL", "BY")
		for i, a := range list {
			t.Row(ids[i], names[i], askText(a.Ask), stamp(a.Next), by(a))
		}
	})
}

// by says whose plan holds.
func by(a wire.NodeAsk) string {
	if a.Plan == nil {
		return "no plan"
	}
	words := a.Of + "'s plan"
	if a.Plan.Auto != nil {
		words += ", follows the market"
	}
	return words
}

// schedule are the flags that say when what is asked.
type schedule struct {
	floor       asked
	cpu         manifest.Price
	windows     windows
	zone        string
	from, until string
}

func (s *schedule) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&s.cpu, "cpu", "`price` of a job that takes no GPU, for example 0.03/h (default: the same)")
	f.Var(&s.floor, "floor", "the least that is asked, whatever a window says, for example 0.10/h")
	f.Var(&s.windows, "window", "days, times and what is asked then, for example \"mon-fri 22:00-07:00 0.10/h\"; the first that is open holds (repeatable, at most 64)")
	f.StringVar(&s.zone, "zone", "", "time `zone` that windows, --from and --until mean, for example Europe/Berlin (default: this machine's)")
	f.StringVar(&s.from, "from", "", "`time` before which the node is offered to nobody, for example 2026-03-01 or \"2026-03-01 18:00\"")
	f.StringVar(&s.until, "until", "", "`time` from which the node is offered to nobody")
}

// plan is what the flags and a price say.
func (s *schedule) plan(cmd *cobra.Command, price string, getenv func(string) string, now time.Time) (wire.AskPlan, error) {
	if err := written(cmd, "zone", "from", "until"); err != nil {
		return wire.AskPlan{}, err
	}
	ask, err := market.ParseAsk(price)
	if err != nil {
		return wire.AskPlan{}, refused("PRICE", err)
	}
	if cmd.Flags().Changed("cpu") {
		ask.CPU = offpeak.Price(s.cpu)
	}
	p := wire.AskPlan{Ask: prices(&ask), Floor: prices(s.floor.ask), Windows: s.windows}
	if len(s.windows) > market.MaxWindows {
		return p, world.Refuse(&offpeak.FieldError{Field: "--window", Value: fmt.Sprint(len(s.windows)), Rule: fmt.Sprintf("is given at most %d times", market.MaxWindows)})
	}
	if len(s.windows) == 0 && s.zone == "" && s.from == "" && s.until == "" {
		return p, nil
	}
	name, z, err := zone(s.zone, getenv)
	if err != nil {
		return p, err
	}
	p.Zone = wire.Zone(name)
	if p.From, err = moment("--from", s.from, z); err != nil {
		return p, err
	}
	if p.Until, err = moment("--until", s.until, z); err != nil {
		return p, err
	}
	if p.From != nil && p.Until != nil && !p.From.Before(*p.Until) {
		return p, world.Refuse(&offpeak.FieldError{Field: "--until", Value: s.until, Rule: "is after --from"})
	}
	if p.Until != nil && !p.Until.After(now) {
		return p, world.Refuse(&offpeak.FieldError{Field: "--until", Value: s.until, Rule: "is a time to come: from then on the node is offered to nobody"})
	}
	return p, nil
}

func newSet(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var t target
	var s schedule
	cmd := &cobra.Command{
		Use:   "set PRICE [NODE...]",
		Short: "Set what is asked for nodes",
		Long: `Set says what your nodes ask from now on, in place of any plan before. PRICE is
per hour and GPU, with its unit: 0.25/h. Without NODE it is for your only node.

Windows are asks for some hours, by the clock on the wall of --zone: they run
over midnight where they end before they begin, and stay where they are when
clocks are moved. Jobs that run keep the price they began with until their term
ends (1h unless the grid's operator says else).

` + people.NodeHelp,
		Example: `  offpeak ask set 0.25/h
  offpeak ask set 0.25/h tower --cpu 0.03/h --window "mon-fri 22:00-07:00 0.10/h" --window "sat,sun 00:00-24:00 0.10/h" --zone Europe/Berlin
  offpeak ask set 0.25/h --account --floor 0.10/h
  offpeak ask set 0/h --all`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			plan, err := s.plan(cmd, args[0], env.Getenv, time.Now())
			if err != nil {
				return err
			}
			return t.set(cmd.Context(), c, args[1:], plan)
		},
	}
	t.bind(cmd, true)
	s.bind(cmd)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.CompleteNodes(cmd, args, to)
	}
	return c.Command(cmd)
}

func newAuto(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var t target
	var floor asked
	discount, slack := manifest.Part(0), manifest.Part(200)
	cmd := &cobra.Command{
		Use:   "auto [NODE...]",
		Short: "Have asks follow the market, above your floor",
		Long: `Auto has the hub ask what is usually paid for such a machine in its region, less
--discount, and never less than --floor. It looks every five minutes at the
last 24 hours, and leaves an ask alone that is off by less than --slack. Where
nothing was paid, the ask stays.

` + people.NodeHelp,
		Example: `  offpeak ask auto --floor 0.10/h
  offpeak ask auto tower --floor "0.10/h cpu 0.02/h" --discount 5%`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if floor.ask == nil {
				return world.Refuse(&offpeak.FieldError{Field: "--floor", Rule: "is needed: the least you ask, for example 0.10/h"})
			}
			return t.set(cmd.Context(), c, args, wire.AskPlan{
				Ask: prices(floor.ask), Floor: prices(floor.ask), Auto: &wire.AutoAsk{Discount: int64(discount), Slack: int64(slack)},
			})
		},
	}
	cmd.Args = cobra.ArbitraryArgs
	t.bind(cmd, true)
	f := cmd.Flags()
	f.Var(&floor, "floor", "the least that is asked, for example 0.10/h")
	f.Var(&discount, "discount", "how much to stay below what is usually paid, at most 100%")
	f.Var(&slack, "slack", "how far off an ask has to be before it is changed, at most 100%")
	cmd.ValidArgsFunction = c.CompleteNodes
	return c.Command(cmd)
}

func newClear(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var t target
	cmd := &cobra.Command{
		Use:   "clear [NODE...]",
		Short: "Take a plan back",
		Long: `Clear takes the plan of a node back, or with --account that of your account. A
node without a plan of its own goes by its account's; without that it is free.

` + people.NodeHelp,
		Example: `  offpeak ask clear tower
  offpeak ask clear --account`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.each(cmd.Context(), c, args,
				func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.AccountID) (wire.List[wire.NodeAsk], error) {
					return d.ClearAccountAsk(ctx, op, id)
				},
				func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.NodeID) (wire.NodeAsk, error) {
					return d.ClearAsk(ctx, op, id)
				})
		},
	}
	t.bind(cmd, true)
	cmd.ValidArgsFunction = c.CompleteNodes
	return c.Command(cmd)
}

// planText prints a plan, a line a part.
func planText(p *wire.AskPlan) [][2]string {
	ask := func(in *wire.Prices) string {
		if in == nil || in.GPU == nil {
			return ""
		}
		a := offpeak.Ask{GPU: *in.GPU, CPU: *in.GPU}
		if in.CPU != nil {
			a.CPU = *in.CPU
		}
		return market.FormatAsk(a)
	}
	rows := [][2]string{{"Plan", ask(p.Ask)}, {"Floor", ask(p.Floor)}}
	for _, w := range p.Windows {
		rows = append(rows, [2]string{"Window", w})
	}
	if a := p.Auto; a != nil {
		words := "what is usually paid"
		if a.Discount > 0 {
			words += ", less " + market.BasisPoints(a.Discount).String()
		}
		rows = append(rows, [2]string{"Follows", words})
	}
	rows = append(rows, [2]string{"Zone", string(p.Zone)}, [2]string{"From", render.Stamp(p.From)}, [2]string{"Until", render.Stamp(p.Until)})
	out := rows[:0]
	for _, r := range rows {
		if strings.TrimSpace(r[1]) != "" {
			out = append(out, r)
		}
	}
	return out
}
