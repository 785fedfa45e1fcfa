package people

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/market"
	"offpeak/wire"
)

const nodeHelp = `NODE is a node's id, its name, or the end (or beginning) of an id that fits one
node only.`

func newNodes(env world.Env) *cobra.Command {
	c := &client{env: env}
	var watch bool
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List nodes, look at one, or order what it does",
		Long: `Nodes lists the nodes you may see. STATE is what was measured (online, late,
offline), ordered (draining, closed), said by the node (in use, and why), and held
against it (quarantined, until when: jobs kept dying there by its fault).`,
		Example: `  offpeak nodes
  offpeak nodes show tower
  offpeak nodes drain tower --stop`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			if watch {
				return c.watch(cmd.Context(), "node.", func() error { return c.listNodes(cmd.Context()) })
			}
			return c.listNodes(cmd.Context())
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print the list anew whenever it changes")
	cmd.AddCommand(
		newNodesShow(env),
		newIntent(env, "drain", offpeak.NodeDraining, "Take no new work; close once the last job has left"),
		newIntent(env, "open", offpeak.NodeOpen, "Take new work again"),
		newIntent(env, "close", offpeak.NodeClosed, "Take no work until somebody opens the node"),
		newNodesTrust(env),
		newNodesRemove(env),
	)
	return c.command(cmd)
}

func (c *client) listNodes(ctx context.Context) error {
	nodes, err := c.nodes(ctx)
	if err != nil {
		return err
	}
	return c.print(nodes, ids(nodes.Items, func(n offpeak.Node) offpeak.NodeID { return n.ID }), func(t *render.Table) {
		if len(nodes.Items) == 0 {
			t.Line("No nodes. Add one: offpeak token join here, then offpeak agent join TOKEN there.")
			return
		}
		now := time.Now()
		t.Row("NODE", "NAME", "STATE", "CORES", "MEMORY", "GPUS", "ASK", "HEARD")
		for _, n := range nodes.Items {
			t.Row(string(n.ID), n.Name, nodeState(n), used(render.Cores(n.Reserved.CPU), render.Cores(n.Capacity.CPU)),
				used(render.About(n.Reserved.Memory), render.About(n.Capacity.Memory)),
				used(fmt.Sprint(len(n.Reserved.Devices)), fmt.Sprint(len(n.Inventory.Devices))), askText(n.Ask), render.Ago(now, n.LastHeard))
		}
	})
}

// askText prints what a node asks: the same for both uses once, none where it is
// offered to nobody.
func askText(a *offpeak.Ask) string {
	if a == nil {
		return "none"
	}
	return market.FormatAsk(*a)
}

func used(taken, of string) string { return taken + " of " + of }

// nodeState puts liveness, intent and availability into a few words.
func nodeState(n offpeak.Node) string {
	words := []string{string(n.Liveness)}
	if n.Intent != offpeak.NodeOpen {
		words = append(words, string(n.Intent))
	}
	if n.Availability == offpeak.NodeInUse {
		words = append(words, inUse(n.Why))
	}
	if q := n.Quarantine; q != nil {
		words = append(words, quarantined(q, time.Now()))
	}
	return strings.Join(words, ", ")
}

// quarantined says until when a node gets no work, or that it has a probe to pass.
func quarantined(q *offpeak.Quarantine, now time.Time) string {
	if q.Until == nil || !q.Until.After(now) {
		return "on probation"
	}
	return "quarantined until " + render.Stamp(q.Until)
}

func inUse(why offpeak.EndReason) string {
	if why == "" {
		return "in use"
	}
	return "in use (" + strings.ReplaceAll(string(why), "_", " ") + ")"
}

func newNodesShow(env world.Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:     "show NODE",
		Short:   "Show a node and what it has",
		Long:    "Show prints what a node has, what of it is taken, what its agent warns of, and, once\nenough is known, what its past lets expect of it.\n\n" + nodeHelp,
		Example: `  offpeak nodes show tower`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			id, err := c.node(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			n, err := remote.Ask(cmd.Context(), c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (offpeak.Node, error) { return d.Node(ctx, id) })
			if err != nil {
				return err
			}
			return c.print(n, []string{string(n.ID)}, func(t *render.Table) { showNode(t, n, time.Now()) })
		},
	}
	cmd.ValidArgsFunction = c.completeNodes
	return c.command(cmd)
}

func showNode(t *render.Table, n offpeak.Node, now time.Time) {
	inv := n.Inventory
	for _, f := range [][2]string{
		{"Node", string(n.ID)}, {"Name", n.Name}, {"Account", string(n.Account)}, {"State", nodeState(n)},
		{"Heard", render.Ago(now, n.LastHeard)}, {"Timeout", time.Duration(n.Timeout).Round(time.Second).String()}, {"Enrolled", render.Stamp(&n.EnrolledAt)},
		{"Host", inv.Hostname}, {"System", inv.OS + "/" + inv.Arch}, {"Processor", inv.CPUModel},
		{"Cores", used(render.Cores(n.Reserved.CPU), render.Cores(n.Capacity.CPU))}, {"Memory", used(render.About(n.Reserved.Memory), render.About(n.Capacity.Memory))},
		{"Disk", used(render.About(n.Reserved.Disk), render.About(n.Capacity.Disk))}, {"Ask", askText(n.Ask)}, {"Region", inv.Region},
		{"Labels", strings.Join(render.Pairs(inv.Labels), ", ")}, {"Drivers", strings.Join(inv.Drivers, ", ")},
		{"Guests", guests(inv.Guests)}, {"Opens", render.Stamp(inv.Opens)},
		{"Reliability", reliability(n.Measured)}, {"Wanted back", wantedBack(n.Measured)},
		{"Fences", strings.Join(inv.Fences, ", ")}, {"Agent", inv.Version},
	} {
		if f[1] != "" {
			t.Row(f[0], f[1])
		}
	}
	if q := n.Quarantine; q != nil {
		t.Row("Quarantine", fmt.Sprintf("since %s, %s: %s", render.Stamp(&q.Since), times(q.Times), quarantineReason(q)))
	}
	for _, w := range inv.Warnings {
		t.Row("Warning", w)
	}
	if len(inv.Devices) > 0 {
		t.Line("")
		t.Row(append([]string{"DEVICE", "MODEL", "MEMORY", "TAKEN"}, doing(nil, n.Readings)...)...)
		for _, d := range inv.Devices {
			taken := "no"
			if slices.Contains(n.Reserved.Devices, d.ID) {
				taken = "yes"
			}
			t.Row(append([]string{string(d.ID), strings.TrimSpace(d.Vendor + " " + d.Model), memory(d), taken}, doing(&d, n.Readings)...)...)
		}
	}
}

// reliability and wantedBack are what the hub measured, as far as it can tell.
func reliability(m *offpeak.Measured) string {
	if m == nil || m.Reliability == nil {
		return ""
	}
	return fmt.Sprintf("%.0f %% of its leases are expected to end by themselves", 100**m.Reliability)
}

func wantedBack(m *offpeak.Measured) string {
	if m == nil || m.Return == nil {
		return ""
	}
	return "in about " + render.Span(m.Return.Std())
}

// doing is what a device does, or the columns' names for nil; nothing where the
// node has told of no device's doing.
func doing(d *offpeak.Device, all []offpeak.Reading) []string {
	if len(all) == 0 {
		return nil
	}
	if d == nil {
		return []string{"IN USE", "HEAT", "POWER", "BUSY", "SLOWED BY"}
	}
	var r offpeak.Reading
	if i := slices.IndexFunc(all, func(r offpeak.Reading) bool { return r.Device == d.ID }); i >= 0 {
		r = all[i]
	}
	number := func(n *int, unit string) string {
		if n == nil {
			return "–"
		}
		return fmt.Sprint(*n) + unit
	}
	used := "–"
	if r.Used != nil {
		used = render.About(*r.Used)
	}
	slowed := strings.ReplaceAll(strings.Join(r.Throttled, ", "), "_", " ")
	return []string{used, number(r.Temperature, " °C"), number(r.Power, " W"), number(r.Utilisation, " %"), slowed}
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times in a row", n)
}

// quarantineReason says why the last attempt there ended, and what comes next.
func quarantineReason(q *offpeak.Quarantine) string {
	end, _ := offpeak.EndOf(q.Reason)
	return strings.TrimSpace(end.Sentence + " It takes all work again when a job has passed there, or with `offpeak nodes trust`.")
}

// memory is what a job can have of a device, exactly, and whose it is.
func memory(d offpeak.Device) string {
	s := exact(d.VRAM)
	if d.Total > d.VRAM {
		s += " of " + exact(d.Total)
	}
	if d.Unified {
		s += " of the main memory"
	}
	return s
}

// exact prints a size to the byte, however many digits that takes.
func exact(b offpeak.Bytes) string {
	s := b.String()
	if v, err := offpeak.ParseBytes(s); err == nil && v == b {
		return s
	}
	if b%offpeak.MiB == 0 {
		return fmt.Sprintf("%dMiB", b/offpeak.MiB)
	}
	return fmt.Sprintf("%dB", int64(b))
}

// guests says which other accounts' jobs the owner takes; "" is all.
func guests(g *offpeak.Guests) string {
	if g == nil {
		return ""
	}
	list := func(ids []offpeak.AccountID) string {
		names := make([]string, len(ids))
		for i, id := range ids {
			names[i] = string(id)
		}
		return strings.Join(names, ", ")
	}
	var parts []string
	if len(g.Allow) > 0 {
		parts = append(parts, "only "+list(g.Allow))
	}
	if len(g.Deny) > 0 {
		parts = append(parts, "not "+list(g.Deny))
	}
	return strings.Join(parts, "; ")
}

func newIntent(env world.Env, verb string, intent offpeak.Intent, short string) *cobra.Command {
	c := &client{env: env}
	var stop bool
	cmd := &cobra.Command{
		Use:     verb + " NODE...",
		Short:   short,
		Long:    short + ".\n\n" + nodeHelp,
		Example: "  offpeak nodes " + verb + " tower",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.eachNode(cmd.Context(), args, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.NodeID) (offpeak.Node, error) {
				return d.SetIntent(ctx, op, id, wire.IntentChange{Intent: intent, Stop: stop})
			})
		},
	}
	if intent != offpeak.NodeOpen {
		cmd.Flags().BoolVar(&stop, "stop", false, "take running jobs off the node now, with notice; they go on elsewhere")
	}
	cmd.ValidArgsFunction = c.completeNodes
	return c.command(cmd)
}

func newNodesTrust(env world.Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:   "trust NODE...",
		Short: "End the quarantine of nodes that were mended",
		Long: `Trust ends the quarantine of nodes: what is held against them is forgotten, and
they take all work at once. Without it one job at a time tries a node first. Admins
only.

` + nodeHelp,
		Example: "  offpeak nodes trust tower",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.eachNode(cmd.Context(), args, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.NodeID) (offpeak.Node, error) {
				return d.TrustNode(ctx, op, id)
			})
		},
	}
	cmd.ValidArgsFunction = c.completeNodes
	return c.command(cmd)
}

func newNodesRemove(env world.Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:     "remove NODE...",
		Short:   "Forget nodes; their agents must join again",
		Long:    "Remove forgets nodes. What runs there is taken off with notice and goes on\nelsewhere; to come back, an agent must join again with a fresh token.\n\n" + nodeHelp,
		Example: "  offpeak nodes remove tower",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.eachNode(cmd.Context(), args, func(ctx context.Context, d *wire.Direct, op offpeak.OpID, id offpeak.NodeID) (offpeak.Node, error) {
				return offpeak.Node{ID: id}, d.RemoveNode(ctx, op, id)
			})
		},
	}
	cmd.ValidArgsFunction = c.completeNodes
	return c.command(cmd)
}

func (c *client) eachNode(ctx context.Context, refs []string, change func(context.Context, *wire.Direct, offpeak.OpID, offpeak.NodeID) (offpeak.Node, error)) error {
	if err := c.dial(); err != nil {
		return err
	}
	var errs []error
	nodes := []offpeak.Node{}
	for _, ref := range refs {
		id, err := c.node(ctx, ref)
		if err == nil {
			op := remote.NewOp()
			var n offpeak.Node
			n, err = remote.Ask(ctx, c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Node, error) { return change(ctx, d, op, id) })
			if err == nil {
				nodes = append(nodes, n)
			}
		}
		errs = append(errs, err)
	}
	errs = append(errs, c.print(wire.List[offpeak.Node]{Items: nodes}, ids(nodes, func(n offpeak.Node) offpeak.NodeID { return n.ID }), func(t *render.Table) {
		for _, n := range nodes {
			if n.Intent == "" {
				t.Row(string(n.ID), "removed")
			} else {
				t.Row(string(n.ID), n.Name, nodeState(n))
			}
		}
	}))
	return errors.Join(errs...)
}
