package people

import (
	"context"
	"fmt"
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
		Long: `Explain says in a sentence why a job waits and what would help, then for each
requirement how many nodes fail it first, and for each node why not or how it
scores.

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
	t.Line(string(e.Job) + " is " + string(e.State) + ". " + e.Summary)
	if e.NotBefore != nil && e.NotBefore.After(now) {
		t.Line("It pauses for another " + render.Span(e.NotBefore.Sub(now)) + " after a failure.")
	}
	if len(e.Causes) > 0 {
		t.Line("")
		t.Row("NODES", "FAIL FIRST BY", "WANTED", "NEAREST HAS")
		for _, c := range e.Causes {
			t.Row(fmt.Sprint(c.Nodes), string(c.Code), render.Dash(c.Example.Want), render.Dash(c.Example.Have))
		}
	}
	if len(e.Nodes) > 0 {
		t.Line("")
		t.Row("NODE", "FITS", "SCORE", "REASON")
		for _, n := range e.Nodes {
			name, fits, score := n.Name, "no", "-"
			if name == "" {
				name = string(n.Node)
			}
			if n.Fits {
				fits, score = "yes", fmt.Sprintf("%.3f", n.Score)
			}
			t.Row(name, fits, score, render.Dash(n.Reason.String()+n.Note))
		}
	}
}
