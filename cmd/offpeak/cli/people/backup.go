package people

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newBackup(env world.Env) *cobra.Command {
	c := &client{env: env}
	return c.command(&cobra.Command{
		Use:   "backup PATH",
		Short: "Write a backup on the hub's machine",
		Long: `Backup writes the hub's database, stored data and key to a new folder on the
hub's own machine while the hub goes on working. PATH is absolute and must not
exist yet. Bring it back with offpeak restore. Blobs that lie elsewhere (--blobs
of the hub) are not in it, only where they lie.

Keep it as secret as the hub's data folder: with the key (hub.key) anybody can
pose as this hub.`,
		Example: `  offpeak backup /var/backups/offpeak/2026-01-31`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := args[0]
			if !filepath.IsAbs(path) || filepath.Clean(path) != path {
				return world.Refuse(&offpeak.FieldError{Field: "PATH", Value: path, Rule: "is not an absolute path: name a folder on the hub's machine by its whole path, without . and .."})
			}
			if err := c.dial(); err != nil {
				return err
			}
			op := remote.NewOp()
			err := c.hub.Call(cmd.Context(), remote.Mutating, func(ctx context.Context, d *wire.Direct) error { return d.Backup(ctx, op, path) })
			if err != nil {
				return err
			}
			return c.print(map[string]string{"path": path}, args, func(t *render.Table) { t.Line("Backup written to " + path + " on the hub's machine.") })
		},
	})
}
