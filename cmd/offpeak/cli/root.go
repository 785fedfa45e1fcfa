// Package cli is the command line of offpeak: one file a command.
//
// It owns flags, what is printed and exit codes; what a command does is done by
// the packages it calls. Its commands read the world through Env only, so that
// tests can run them in their own process. Exit codes: 0, 2 for bad input, 1
// for every other failure, and that of the job for run.
package cli

import (
	"context"
	"slices"
	"strings"

	"offpeak/cmd/offpeak/cli/world"

	"github.com/spf13/cobra"
)

// Env is the outside world of a command.
type Env = world.Env

// Main runs a command line and returns the process's exit code.
func Main(ctx context.Context, args []string, env Env) int {
	root := New(env)
	root.SetArgs(lastMembers(args))
	return world.Report(env.Stderr, root.ExecuteContext(ctx))
}

// lastMembers lets -/7, a member of the array that was submitted last, stand where the
// id of a job does: it looks like flags, so it goes behind --.
func lastMembers(args []string) []string {
	if len(args) == 0 || args[0] == "run" || args[0] == "submit" || slices.Contains(args, "--") {
		return args
	}
	isMember := func(arg string) bool {
		index, ok := strings.CutPrefix(arg, "-/")
		return ok && index != "" && strings.Trim(index, "0123456789") == ""
	}
	members := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return !isMember(arg) })
	if len(members) == 0 {
		return args
	}
	return slices.Concat(slices.DeleteFunc(slices.Clone(args), isMember), []string{"--"}, members)
}

// New returns the command tree.
func New(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:           "offpeak",
		Short:         "A compute grid for idle consumer hardware",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return badInput("unknown command %q: did you mean %s?", args[0], strings.Join(near, " or "))
			}
			return badInput("unknown command %q: see offpeak --help", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return world.Refuse(world.FlagError(err)) })
	root.AddGroup(
		&cobra.Group{ID: "jobs", Title: "Jobs:"},
		&cobra.Group{ID: "market", Title: "Market and money:"},
		&cobra.Group{ID: "grid", Title: "The grid and who you are there:"},
		&cobra.Group{ID: "money", Title: "Money:"},
		&cobra.Group{ID: "machines", Title: "Machines that make a grid:"},
		&cobra.Group{ID: "operate", Title: "For operators:"},
	)
	root.AddCommand(commands(env)...)
	for _, cmd := range root.Commands() {
		cmd.GroupID = group(cmd.Name())
	}
	return root
}

// group is the heading that a command stands under in the root's help.
func group(name string) string {
	switch name {
	case "run", "submit", "ps", "show", "logs", "wait", "explain", "outputs", "cancel", "retry":
		return "jobs"
	case "ask", "market", "quote":
		return "market"
	case "nodes", "events", "login", "context", "whoami", "token":
		return "grid"
	case "balance", "receipt", "statement", "deposit", "payout", "payments":
		return "money"
	case "hub", "agent":
		return "machines"
	case "account", "hubs", "weights", "replay", "check", "backup", "restore", "migrate":
		return "operate"
	}
	return ""
}
