package cli

import "github.com/spf13/cobra"

// commands lists the commands of offpeak.
func commands(env Env) []*cobra.Command {
	return append([]*cobra.Command{newHub(env), newRestore(env), newVersion(env)}, clientCommands(env)...)
}
