package people

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newHubs(env world.Env) *cobra.Command {
	c := &client{env: env}
	return c.command(&cobra.Command{
		Use:   "hubs",
		Short: "List the hubs of the grid",
		Long: `Hubs lists the hubs of the grid that were at work in the last day, the newest
first, and which of them matches jobs with nodes now. A hub that was stopped in
good order is not listed; one that died is, until a day has passed.`,
		Example: `  offpeak hubs`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			hubs, err := remote.Ask(cmd.Context(), c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Hub], error) { return d.Hubs(ctx) })
			if err != nil {
				return err
			}
			return c.print(hubs, ids(hubs.Items, func(h offpeak.Hub) offpeak.HubID { return h.ID }), func(t *render.Table) {
				now := time.Now()
				t.Row("HUB", "ADDRESSES", "VERSION", "MATCHES", "STARTED", "SEEN")
				for _, h := range hubs.Items {
					matches := "-"
					if h.Leads {
						matches = "yes"
					}
					t.Row(string(h.ID), strings.Join(h.Addresses, ", "), render.Dash(h.Version), matches, render.Ago(now, &h.StartedAt), render.Ago(now, &h.SeenAt))
				}
			})
		},
	})
}
