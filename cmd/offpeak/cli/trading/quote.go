package trading

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newQuote(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var needs manifest.Flags
	last := hours(time.Hour)
	limit := 10
	cmd := &cobra.Command{
		Use:   "quote",
		Short: "Say what a job would cost now, and what would be cheaper",
		Long: `Quote lists the offers that fit, the cheapest first: what the whole job pays per
hour, and in all for --hours. It says when the job could begin, and what would be
cheaper: less memory, another hour of the day, or which higher limit shows more.
The flags that say what a job needs are those of run. Nothing is reserved.`,
		Example: `  offpeak quote --vram 24GB --gpus 1 --hours 3
  offpeak quote --cpu 8 --memory 16GB --max-price 0.10/h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 100 {
				return world.Refuse(&offpeak.FieldError{Field: "--limit", Value: fmt.Sprint(limit), Rule: "is from 1 to 100"})
			}
			spec, err := needs.Apply(offpeak.Spec{}, []string{"true"}, env.Getenv)
			if err != nil {
				return world.Refuse(err)
			}
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			if spec, err = needs.Resolve(spec, func(ref string) (offpeak.NodeID, error) { return c.Node(cmd.Context(), ref) }); err != nil {
				return err
			}
			in := wire.QuoteRequest{Requirements: spec.Requirements, Driver: spec.Task.Driver, For: offpeak.Duration(last), Limit: limit}
			q, err := read(cmd.Context(), hub, func(ctx context.Context, d *wire.Direct) (offpeak.Quote, error) { return d.Quote(ctx, in) })
			if err != nil {
				return err
			}
			ids := make([]string, len(q.Offers))
			for i := range q.Offers {
				ids[i] = string(q.Offers[i].Node)
			}
			return c.Print(q, ids, func(t *render.Table) { showQuote(t, q, spec.Requirements) })
		},
	}
	needs.BindNeeds(cmd)
	f := cmd.Flags()
	f.Var(&last, "hours", "how long the job is reckoned to run")
	f.IntVar(&limit, "limit", 10, "how many offers `n` to list, 1 to 100")
	return c.Command(cmd)
}

func showQuote(t *render.Table, q offpeak.Quote, r offpeak.Requirements) {
	long := hours(q.For)
	dear := slices.ContainsFunc(q.Instead, func(a offpeak.Alternative) bool { return a.Kind == offpeak.HigherCeiling })
	switch {
	case q.Fits == 0 && dear && r.MaxPrice != nil:
		t.Line("No offer fits: all that would do cost more than " + r.MaxPrice.String() + ".")
	case q.Fits == 0 && q.Start == nil:
		t.Line("No offer fits, and nobody knows when one will: ask for less, or see what there is (offpeak market, offpeak nodes).")
	case q.Fits == 0:
		t.Line("No offer fits now: what would do is taken, free again by " + stamp(q.Start) + " at the latest.")
	default:
		t.Line(fmt.Sprintf("%s %s, from %s for %s h; it would start at once.", count(q.Fits, "offer"), fit(q.Fits), q.Offers[0].Total, &long))
		t.Line("")
		t.Row("NODE", "REGION", "GPUS", "PRICE", "TOTAL")
		for _, o := range q.Offers {
			t.Row(string(o.Node), render.Dash(o.Region), render.Dash(strings.Join(o.Devices, ", ")), o.Price.String(), o.Total.String())
		}
		var notes []string
		for _, o := range q.Offers {
			if o.Note != "" && !slices.Contains(notes, o.Note) {
				notes = append(notes, o.Note)
			}
		}
		if len(notes) > 0 {
			t.Line("")
		}
		for _, note := range notes {
			t.Line(note + ".")
		}
	}
	if len(q.Instead) == 0 {
		return
	}
	t.Line("")
	t.Line("What would help:")
	for _, a := range q.Instead {
		t.Line("  " + instead(a))
	}
}

func fit(n int) string {
	if n == 1 {
		return "fits"
	}
	return "fit"
}

func instead(a offpeak.Alternative) string {
	cost := a.Price.String() + ", " + a.Total.String() + " in all"
	switch a.Kind {
	case offpeak.LessVRAM:
		return "with --vram " + a.VRAM.String() + ": " + cost
	case offpeak.AnotherHour:
		return "from " + stamp(a.At) + ": " + cost
	case offpeak.HigherCeiling:
		return "with --max-price " + a.Price.String() + " or more: " + count(a.More, "further offer") + ", the cheapest at " + cost
	}
	return string(a.Kind) + ": " + cost
}
