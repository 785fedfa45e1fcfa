package money

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newReceipt(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	return c.Command(&cobra.Command{
		Use: "receipt JOB", Short: "Show what a job cost, attempt by attempt",
		Long: `Receipt shows a line for each attempt and price term of a job that is settled, from
which the charge can be recomputed: the billed time times the price an hour, rounded
down to a millionth of a credit. Whose node ran it sees the lines that paid them.
` + people.JobHelp,
		Example: `  offpeak receipt -
  offpeak receipt 01jd8n -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteJobs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			id, err := c.Job(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := read(cmd.Context(), hub, func(ctx context.Context, d *wire.Direct) (wire.Receipt, error) { return d.Receipt(ctx, id) })
			if err != nil {
				return err
			}
			return c.Print(r, []string{string(r.Job)}, func(t *render.Table) {
				t.Row("ATTEMPT", "TERM", "PRICE/H", "METERED", "BILLED", "RULE", "REASON", "CHARGED")
				for _, l := range r.Lines {
					t.Row(strconv.Itoa(int(l.Attempt)), strconv.Itoa(l.Term), offpeak.MicroCredits(l.Price).String(), seconds(l.Metered), seconds(l.Billed), string(l.Rule), string(l.Reason), l.Charged.String())
				}
				t.Row("total", "", "", "", "", "", "", r.Total.String())
			})
		},
	})
}

// seconds prints metered time to the millisecond.
func seconds(ms offpeak.Millis) string { return fmt.Sprintf("%d.%03ds", ms/1000, ms%1000) }
