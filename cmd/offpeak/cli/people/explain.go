package people

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newExplain(env world.Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:   "explain JOB",
		Short: "Say why a job does not run, or where it does",
		Long: `Explain says in a sentence why a job waits and what would help. Then: the nearest
changes that would let it start, each of which was put to the filters; how many
nodes each filter leaves; how many nodes fail each filter first, and at all; for
each node why not, or what it would cost and how it scores, by part; and why the
first of those that fit comes first.

Of a job that was placed it says how: the order that chose, the version of the
weights, the score and the price. What it would say of a job before that is handed
in, run --dry-run and submit --dry-run say.

` + jobHelp,
		Example: `  offpeak explain -`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			id, err := c.job(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			e, err := remote.Ask(cmd.Context(), c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.Explanation, error) {
				return d.Explain(ctx, id)
			})
			if err != nil {
				return err
			}
			return c.print(e, []string{string(id)}, func(t *render.Table) { explain(t, e, time.Now()) })
		},
	}
	cmd.ValidArgsFunction = c.completeJobs()
	return c.command(cmd)
}

func explain(t *render.Table, e wire.Explanation, now time.Time) {
	head := ""
	if e.Job != "" {
		head = string(e.Job) + " is " + string(e.State) + ". "
	}
	t.Line(head + e.Summary)
	if e.NotBefore != nil && e.NotBefore.After(now) {
		t.Line("It pauses for another " + render.Span(e.NotBefore.Sub(now)) + " after a failure.")
	}
	if p := e.Placed; p != nil {
		t.Line("")
		placed(t, p)
	}
	if len(e.After) > 0 {
		t.Line("")
		t.Row("WAITS FOR", "NAME", "TO", "IT IS")
		for _, a := range e.After {
			to := "succeed"
			if a.Any {
				to = "end"
			}
			t.Row(string(a.Job), render.Dash(a.Name), to, render.Dash(string(a.State)))
		}
	}
	if len(e.Nearest) > 0 {
		t.Line("")
		t.Row("NODES", "WOULD TAKE IT")
		for _, n := range e.Nearest {
			t.Row(fmt.Sprint(n.Nodes), n.Sentence)
		}
	}
	if len(e.Filters) > 0 {
		t.Line("")
		t.Row("FILTER", "FAILED", "LEFT")
		for _, f := range e.Filters {
			t.Row(string(f.Code), fmt.Sprint(f.Failed), fmt.Sprint(f.Left))
		}
	}
	if len(e.Causes) > 0 {
		t.Line("")
		t.Row("NODES", "IN ALL", "FAIL FIRST BY", "WANTED", "NEAREST HAS")
		for _, c := range e.Causes {
			all := "-"
			if c.All > 0 {
				all = fmt.Sprint(c.All)
			}
			t.Row(fmt.Sprint(c.Nodes), all, string(c.Code), render.Dash(c.Example.Want), render.Dash(c.Example.Have))
		}
	}
	if e.Seen > 0 {
		t.Line(fmt.Sprintf("Causes in all and what would take it are of %d nodes: the others were not looked at so closely.", e.Seen))
	}
	if len(e.Nodes) > 0 {
		t.Line("")
		t.Row("NODE", "FITS", "PRICE", "SCORE", "REASON")
		for i := range e.Nodes {
			n := &e.Nodes[i]
			if !n.Fits {
				t.Row(called(n), "no", "-", "-", render.Dash(reasons(n)+n.Note))
				continue
			}
			price := "-"
			if n.Price != nil {
				price = n.Price.String()
			}
			t.Row(called(n), "yes", price, fmt.Sprintf("%.3f", n.Score), render.Dash(strings.TrimSpace(shares(n.Shares)+"  "+n.Note)))
		}
	}
	if e.Won != nil {
		t.Line(called(&e.Nodes[0]) + " comes first. " + e.Won.Sentence)
	}
	if e.Policy != "" && len(e.Nodes) > 0 {
		asleep := ""
		if e.Asleep > 0 {
			asleep = fmt.Sprintf("; what was measured of them counts once %d fit", e.Asleep)
		}
		t.Line("Nodes that fit stand in the order " + ordered(e.Policy, e.PolicyFrom) + asleep + ".")
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func called(n *wire.NodeVerdict) string {
	if n.Name != "" {
		return n.Name
	}
	return string(n.Node)
}

// reasons are all that keeps a job from a node.
func reasons(n *wire.NodeVerdict) string {
	all := []string{n.Reason.String()}
	for _, r := range n.Also {
		all = append(all, r.String())
	}
	return strings.Join(all, "; ")
}

// shares are what makes a score, the most first.
func shares(parts map[string]float64) string {
	names := slices.Sorted(maps.Keys(parts))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(parts[b], parts[a]) })
	var out []string
	for _, name := range names {
		out = append(out, fmt.Sprintf("%s %.3f", name, parts[name]))
	}
	return strings.Join(out, " + ")
}

// ordered is a policy with who named it, as far as that is known.
func ordered(policy, from string) string {
	switch from {
	case "job":
		return policy + " (the job's own)"
	case "grid":
		return policy + " (the grid's)"
	}
	return policy
}

// placed says how an attempt came to its node.
func placed(t *render.Table, p *wire.Placed) {
	policy := p.Policy
	if policy == "" {
		policy = "?"
	}
	line := fmt.Sprintf("Attempt %d was placed on %s at %s by the order %s: it scored %.3f at %s", p.Attempt, p.Node, render.Stamp(&p.At), ordered(policy, p.PolicyFrom), p.Score, p.Price)
	if p.Candidates > 0 {
		line += fmt.Sprintf(" among at least %s", count(p.Candidates, "node"))
	}
	if p.Weights > 0 {
		line += fmt.Sprintf(", by version %d of the weights", p.Weights)
	}
	t.Line(line + ".")
}
