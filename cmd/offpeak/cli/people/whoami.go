package people

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newWhoami(env world.Env) *cobra.Command {
	c := &client{env: env}
	return c.command(&cobra.Command{
		Use:     "whoami",
		Short:   "Say who you are and on which hub",
		Long:    `Whoami asks the hub whose token it is that commands use.`,
		Example: `  offpeak whoami`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			who, err := remote.Ask(cmd.Context(), c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.Whoami, error) { return d.Whoami(ctx) })
			if err != nil {
				return err
			}
			return c.print(who, []string{string(who.Account.ID)}, func(t *render.Table) {
				target := c.hub.Target()
				t.Row("Account", who.Account.Name+" ("+string(who.Account.ID)+")")
				t.Row("Role", string(who.Role))
				t.Row("Token", string(who.Token))
				t.Row("Expires", render.Dash(render.Stamp(&who.Expires)))
				t.Row("Context", target.Name)
				t.Row("Hub", strings.Join(target.Hubs, ", "))
				t.Row("Hub version", render.Dash(who.Version))
			})
		},
	})
}
