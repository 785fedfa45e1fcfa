package cli

import (
	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/trading"
)

// commands lists the commands of offpeak.
func commands(env Env) []*cobra.Command {
	return append([]*cobra.Command{newHub(env), newAgent(env), newRestore(env), newMigrate(env), newVersion(env)}, append(people.New(env), trading.New(env)...)...)
}
