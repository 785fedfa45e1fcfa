package cli

import (
	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/people"
)

// commands lists the commands of offpeak.
func commands(env Env) []*cobra.Command {
	return append([]*cobra.Command{newHub(env), newAgent(env), newRestore(env), newMigrate(env), newPayments(env), newVersion(env)}, people.New(env)...)
}
