package people

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
)

func newContext(env world.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "List, choose and forget the grids you are logged in to",
		Long: `A context is a grid and who you are there. A command takes, in this order: the
flag --context; OFFPEAK_HUB and OFFPEAK_TOKEN from the environment (with
OFFPEAK_FINGERPRINT where the hub signs its own certificate); the context in use;
the hub that runs on this machine under your name.`,
		Example: `  offpeak context ls
  offpeak context use lab`,
		Args: cobra.NoArgs,
		RunE: help,
	}
	cmd.AddCommand(newContextLs(env), newContextUse(env), newContextRm(env))
	return strict(cmd)
}

func newContextLs(env world.Env) *cobra.Command {
	c := &client{env: env}
	return c.command(&cobra.Command{
		Use:     "ls",
		Short:   "List contexts",
		Long:    `Ls lists the contexts; a star marks the one in use.`,
		Example: `  offpeak context ls`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			contexts, err := remote.LoadContexts(c.contextsPath())
			if err != nil {
				return err
			}
			return c.print(contexts, ids(contexts.Contexts, func(t remote.Target) string { return t.Name }), func(t *render.Table) {
				if len(contexts.Contexts) == 0 {
					t.Line("No contexts. Log in: offpeak login URL")
					return
				}
				t.Row("", "NAME", "HUBS", "KEY")
				for _, x := range contexts.Contexts {
					mark := " "
					if x.Name == contexts.Current {
						mark = "*"
					}
					t.Row(mark, x.Name, strings.Join(x.Hubs, ", "), render.Dash(x.Fingerprint[:min(16, len(x.Fingerprint))]))
				}
			})
		},
	})
}

// changeContext is a command that changes the contexts file.
func changeContext(env world.Env, use, short, long, example string, change func(*remote.Contexts, string) bool) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			contexts, err := remote.LoadContexts(c.contextsPath())
			if err != nil {
				return err
			}
			if !change(&contexts, args[0]) {
				return world.Refuse(world.Hint(fmt.Errorf("there is no context %q", render.Safe(args[0])), "See `offpeak context ls`."))
			}
			if err := contexts.Save(c.contextsPath()); err != nil {
				return err
			}
			return c.print(contexts, args, func(t *render.Table) {
				if contexts.Current == "" {
					t.Line("No context is in use: commands go to the hub on this machine.")
					return
				}
				t.Line("Context " + contexts.Current + " is in use.")
			})
		},
	}
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		contexts, _ := remote.LoadContexts(c.contextsPath())
		return ids(contexts.Contexts, func(t remote.Target) string { return t.Name }), cobra.ShellCompDirectiveNoFileComp
	}
	return c.command(cmd)
}

func newContextUse(env world.Env) *cobra.Command {
	return changeContext(env, "use NAME", "Use a context from now on",
		`Use makes a context the one that commands take by default. The name local stands
for the hub on this machine.`, `  offpeak context use lab`,
		func(c *remote.Contexts, name string) bool {
			if name == "local" {
				c.Current = ""
				return true
			}
			_, ok := c.Find(name)
			c.Current = name
			return ok
		})
}

func newContextRm(env world.Env) *cobra.Command {
	return changeContext(env, "rm NAME", "Forget a context and its token",
		`Rm forgets a context. The token stays good: revoke it with offpeak token revoke.`, `  offpeak context rm lab`,
		(*remote.Contexts).Remove)
}
