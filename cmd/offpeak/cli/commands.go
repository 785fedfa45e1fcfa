package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/money"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/pipeline"
	"offpeak/cmd/offpeak/cli/trading"
	"offpeak/cmd/offpeak/cli/tuning"
)

// commands lists the commands of offpeak.
func commands(env Env) []*cobra.Command {
	own := []*cobra.Command{newHub(env), newAgent(env), newRestore(env), newMigrate(env), newPayments(env), newVersion(env)}
	return slices.Concat(own, people.New(env), money.New(env), pipeline.New(env), trading.New(env), tuning.New(env, openRecorded))
}
