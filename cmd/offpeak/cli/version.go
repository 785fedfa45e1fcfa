package cli

import (
	"encoding/json"
	"fmt"

	"offpeak/cmd/offpeak/cli/world"

	"github.com/spf13/cobra"
)

func newVersion(env Env) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			b := world.NewBuild(env)
			switch format {
			case "json":
				e := json.NewEncoder(env.Stdout)
				e.SetIndent("", "  ")
				return e.Encode(b)
			case "table":
				commit := b.Commit
				if len(commit) > 12 {
					commit = commit[:12]
				}
				if b.Modified {
					commit += " with changes"
				}
				if commit != "" {
					commit = " (" + commit + ")"
				}
				_, err := fmt.Fprintf(env.Stdout, "offpeak %s%s, %s, %s/%s, protocol %d\n", b.Version, commit, b.Go, b.OS, b.Arch, b.Protocol)
				return err
			}
			return badInput("--format: %q: is table or json", format)
		},
	}
	cmd.Flags().StringVarP(&format, "format", "o", "table", "print `table` or json")
	return cmd
}

// tableOrJSON refuses other values of --format, before anything is done.
func tableOrJSON(format string) error {
	if format != "table" && format != "json" {
		return badInput("--format: %q: is table or json", format)
	}
	return nil
}

// badInput is an error that ends the process with exit code 2.
func badInput(format string, args ...any) error { return world.BadInput(format, args...) }

// noArgs refuses arguments as bad input.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return badInput("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// build reads what the binary knows of itself.
func build(version string) world.Build { return world.NewBuild(Env{Version: version}) }
