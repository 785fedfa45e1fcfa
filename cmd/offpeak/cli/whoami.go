package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/wire"
)

func newWhoami(env Env) *cobra.Command {
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
			return c.print(who, []string{string(who.Account.ID)}, func(t *table) {
				target := c.hub.Target()
				t.row("Account", who.Account.Name+" ("+string(who.Account.ID)+")")
				t.row("Role", string(who.Role))
				t.row("Token", string(who.Token))
				t.row("Expires", dash(stamp(&who.Expires)))
				t.row("Context", target.Name)
				t.row("Hub", strings.Join(target.Hubs, ", "))
				t.row("Hub version", dash(who.Version))
			})
		},
	})
}
