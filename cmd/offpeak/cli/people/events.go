package people

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/market"
)

func newEvents(env world.Env) *cobra.Command {
	c := &client{env: env}
	var job, after string
	var limit int
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print what happens on the grid, as it happens",
		Long: `Events prints a line for each thing that happens to your account's jobs and
nodes, from now on, until interrupted. Broken connections are taken up again
where they broke. With -o json each line is the API's event; its cursor is what
--after goes on from.`,
		Example: `  offpeak events
  offpeak events --job - --limit 10
  offpeak events --after 0 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n, err := strconv.ParseInt(after, 10, 64); after != "" && (err != nil || n < 0) {
				return world.Refuse(&offpeak.FieldError{Field: "--after", Value: after, Rule: "is the cursor of an event, 0 for the oldest kept"})
			}
			if limit < 0 {
				return world.Refuse(&offpeak.FieldError{Field: "--limit", Value: fmt.Sprint(limit), Rule: "is 0 (no limit) or more"})
			}
			if err := c.dial(); err != nil {
				return err
			}
			var id offpeak.JobID
			if job != "" {
				var err error
				if id, err = c.job(cmd.Context(), job); err != nil {
					return err
				}
			}
			enough := errors.New("enough events")
			lines, n := newJSONLines(c), 0
			err := c.hub.Events(cmd.Context(), after, id, nil, func(e offpeak.Event) error {
				if err := c.event(e, lines); err != nil {
					return err
				}
				if n++; limit > 0 && n == limit {
					return enough
				}
				return nil
			})
			if errors.Is(err, enough) {
				return nil
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&job, "job", "", "only events of this `job`")
	f.StringVar(&after, "after", "", "begin after this `cursor`; 0 begins with the oldest event kept (default: new ones only)")
	f.IntVar(&limit, "limit", 0, "end after `n` events")
	_ = cmd.RegisterFlagCompletionFunc("job", c.completeJobs())
	return c.command(cmd)
}

func (c *client) event(e offpeak.Event, lines func(any) error) error {
	switch c.output {
	case "json":
		return lines(e)
	case "name":
		_, err := fmt.Fprintln(c.env.Stdout, e.Cursor)
		return err
	}
	line := render.Stamp(&e.At) + "  " + fmt.Sprintf("%-18s", render.Safe(e.Type))
	for _, part := range []string{string(e.Job), attemptText(e.Attempt), string(e.Node), string(e.Reason)} {
		if part != "" {
			line += "  " + render.Safe(part)
		}
	}
	if what := tradeText(e); what != "" {
		line += "  " + render.Safe(what)
	} else if e.Job == "" && e.Node == "" && len(e.Data) > 2 {
		line += "  " + render.Safe(string(e.Data))
	}
	_, err := fmt.Fprintln(c.env.Stdout, line)
	return err
}

// tradeText says what an event of the market means, "" for any other.
func tradeText(e offpeak.Event) string {
	var d struct {
		Ask   *offpeak.Ask    `json:"ask"`
		Plan  json.RawMessage `json:"plan"`
		Term  int             `json:"term"`
		Price *offpeak.Price  `json:"price"`
		Job   offpeak.JobID   `json:"job"`
		offpeak.GroupIndexes
	}
	if len(e.Data) > 0 && json.Unmarshal(e.Data, &d) != nil {
		return ""
	}
	switch {
	case d.Group != "" && len(d.Indexes) > 0:
		return string(d.Group) + "  " + d.Indexes.String()
	case e.Type == "node.ask" && d.Ask == nil:
		return "asks nothing of anybody: it is offered to nobody"
	case e.Type == "node.ask":
		return "asks " + market.FormatAsk(*d.Ask)
	case e.Type == "ask.plan":
		whose := "of the account "
		if e.Node != "" {
			whose = ""
		}
		if string(d.Plan) == "null" || len(d.Plan) == 0 {
			return "plan " + whose + "taken back"
		}
		return "plan " + whose + "set"
	case e.Type == "lease.renewed" && d.Price != nil:
		return fmt.Sprintf("term %d at %s", d.Term, d.Price)
	case e.Type == "lease.stopping" && e.Reason == offpeak.EndOutbid && d.Price != nil:
		return "gives way to " + string(d.Job) + " at " + d.Price.String()
	}
	return ""
}

func attemptText(a offpeak.Attempt) string {
	if a == 0 {
		return ""
	}
	return fmt.Sprintf("attempt %d", a)
}

// newJSONLines returns a function that prints values as JSON, one a line.
func newJSONLines(c *client) func(any) error {
	enc := json.NewEncoder(c.env.Stdout)
	return func(v any) error { return enc.Encode(v) }
}
